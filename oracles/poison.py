"""The pattern that output buffers hold before a run, recognisable where the format has room for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.dtypes import dtype

_PATTERNS = {
    "FLOAT16": 0x7EA5,  # quiet NaN with a payload
    "BFLOAT16": 0x7FE5,
    "FLOAT32": 0x7FC0A5A5,
    "DOUBLE": 0x7FF800000000A5A5,
}
_BYTE = 0xA5
"""For formats without NaN payloads: -91 as INT8, a finite number as an 8-bit float, an invalid BOOL."""


def poison(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """A new array in storage form of the format, filled with the pattern."""
    fmt = dtype(name)
    storage = np.dtype(fmt.storage)
    if storage.kind == "b":
        return np.zeros(shape, np.bool_)
    words = np.dtype(f"uint{8 * storage.itemsize}") if storage.kind != "c" else np.dtype(np.uint8)
    if storage.kind == "c":
        return np.full((*shape, storage.itemsize), _BYTE, np.uint8).view(storage)[..., 0]
    pattern = _PATTERNS.get(name)
    if pattern is None:
        pattern = int.from_bytes(bytes([_BYTE]) * storage.itemsize, "little")
        if fmt.bits == 4:
            pattern &= 5
    return np.full(shape, pattern, words).view(storage)


def holds_poison(name: str, stored: NDArray[Any]) -> NDArray[np.bool_]:
    """Where an array in storage form still holds the pattern, bit for bit."""
    storage = np.dtype(dtype(name).storage)
    if storage.kind in "bc" or stored.dtype != storage:
        return np.zeros(stored.shape, np.bool_)
    words = np.dtype(f"uint{8 * storage.itemsize}")
    return np.asarray(np.ascontiguousarray(stored).view(words) == poison(name, (1,)).view(words)[0])
