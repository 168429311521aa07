"""Reading and writing tensors in the stand-in's device memory, with strides, offsets and packed formats."""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class OffDevice(ValueError):
    """A tensor that does not lie in device memory."""


@cache
def runtime() -> ctypes.CDLL:
    """The runtime library that this process already uses."""
    library = ctypes.CDLL("libascendcl.so")
    library.standin_on_device.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.standin_on_device.restype = ctypes.c_bool
    return library


def on_device(address: int, size: int) -> bool:
    """Whether these bytes lie in one block of device memory."""
    return bool(runtime().standin_on_device(address, size))


def device_bytes(address: int, size: int) -> NDArray[np.uint8]:
    """Device memory as a writable array of bytes. OffDevice when it is none."""
    if not size:
        return np.empty(0, np.uint8)
    if not on_device(address, size):
        raise OffDevice(f"{size} bytes at {address:#x} are no device memory")
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


def read(address: int, dims: tuple[int, ...], strides: tuple[int, ...], offset: int, bits: int, storage: str) -> Array:
    """A tensor as a dense array of the storage dtype; elements of 4 bits are unpacked, the lower half of a byte first."""
    if not math.prod(dims):
        return np.empty(dims, storage)
    if bits == 4:
        return _nibbles(address, offset + _last(dims, strides) + 1, storage)[_places(dims, strides, offset)]
    view = _view(address, dims, strides, offset, np.dtype(storage))
    return np.array(view)


def write(address: int, dims: tuple[int, ...], strides: tuple[int, ...], offset: int, bits: int, dense: Array) -> None:
    """Put a dense array where a tensor lies; elements of 4 bits are packed, the lower half of a byte first."""
    if not math.prod(dims):
        return
    if bits == 4:
        places = _places(dims, strides, offset)
        raw = device_bytes(address, (offset + _last(dims, strides)) // 2 + 1)
        codes = dense.astype(np.uint8) & 15
        for parity in (0, 1):
            chosen = places % 2 == parity
            at = places[chosen] // 2
            raw[at] = (raw[at] & (0xF0 if parity == 0 else 0x0F)) | codes[chosen] << 4 * parity
        return
    _view(address, dims, strides, offset, dense.dtype)[...] = dense


def _view(address: int, dims: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: np.dtype[Any]) -> Array:
    step = dtype.itemsize
    raw = device_bytes(address, (offset + _last(dims, strides) + 1) * step)
    return np.ndarray(dims, dtype, raw.data, offset * step, tuple(s * step for s in strides))


def _last(dims: tuple[int, ...], strides: tuple[int, ...]) -> int:
    if min(strides, default=0) < 0:
        raise OffDevice(f"negative stride in {strides}")
    return sum((size - 1) * stride for size, stride in zip(dims, strides))


def _places(dims: tuple[int, ...], strides: tuple[int, ...], offset: int) -> NDArray[np.int64]:
    places = np.full((), offset, np.int64)
    for size, stride in zip(dims, strides):
        places = places[..., None] + np.arange(size, dtype=np.int64) * stride
    return places


def _nibbles(address: int, count: int, storage: str) -> Array:
    raw = device_bytes(address, (count + 1) // 2)
    codes = np.stack((raw & 15, raw >> 4), axis=-1).reshape(-1)
    if storage == "int8":
        return ((codes ^ 8).astype(np.int8) - 8).astype(np.int8)
    return codes.astype(storage)
