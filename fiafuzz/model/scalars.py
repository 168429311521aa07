"""Numbers of a case (literals, constants) as storage, strictly: what a format cannot hold is an error.

A dequantisation scale in UINT64 (deqScale1, deqScale2) is a float32 pattern: fills give the scale itself, literal
``values`` the integer as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from .case import CaseError
from .codecs import encode, overflows, uint64_scale
from .dtypes import DType, dtype

Array = NDArray[Any]
_WORDS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def encode_fill(fmt: DType, numbers: Array, *, pattern: bool) -> Array:
    """Numbers of a fill as storage: rounded to nearest, clipped to the finite range."""
    if pattern:
        return uint64_scale(numbers)
    return encode(fmt.name, numbers, overflow="saturate")


def encode_number(fmt: DType, number: Union[int, float, str], path: str, *, pattern: bool = False) -> Array:
    """One number as a storage array of shape (1,), read-only. CaseError at ``path`` when the format cannot hold it."""
    # 0.0 and -0.0 are equal, so the sign has to be part of what the cache looks at.
    negative = isinstance(number, float) and math.copysign(1.0, number) < 0
    return _encode_number(fmt, number, negative, path, pattern)


@lru_cache(maxsize=1024)
def _encode_number(fmt: DType, number: Union[int, float, str], negative: bool, path: str, pattern: bool) -> Array:
    stored = encode_numbers(dtype("FLOAT32") if pattern else fmt, (number,), path, single=True)
    if pattern:
        stored = uint64_scale(stored)
    stored.flags.writeable = False
    return stored


def encode_numbers(fmt: DType, numbers: Sequence[Union[int, float, str]], path: str, *, single: bool = False) -> Array:
    """Numbers as a flat storage array, rounded to nearest.

    CaseError when the format cannot hold one of them: beyond the finite range after rounding, no inf or NaN in the
    format, no whole number for an integer, zero or less for E8M0. Its path is ``path``, with ``[i]`` for the
    offender unless ``single``.
    """
    if not numbers:
        return np.empty(0, fmt.storage)
    try:
        plain = [_WORDS[x] if isinstance(x, str) else float(x) for x in numbers]
    except OverflowError:
        place = next(i for i, x in enumerate(numbers) if isinstance(x, int) and abs(x) > 1 << 1023)
        raise _misfit(fmt, numbers, place, path, single) from None
    array = np.array(plain, np.float64)
    finite = np.isfinite(array)
    wrong = overflows(fmt.name, np.where(finite, array, 1.0)) & finite
    if not fmt.has_nan:
        wrong |= np.isnan(array)
    if not fmt.has_inf:
        wrong |= np.isinf(array)
    if not fmt.is_float and fmt.kind not in ("complex", "scale"):
        wrong |= finite & (np.where(finite, array, 0.0) % 1 != 0)
    if wrong.any():
        raise _misfit(fmt, numbers, int(wrong.argmax()), path, single)
    if fmt.is_integer:  # whole numbers, in the range after rounding to float64: now exactly
        whole = [int(x) for x in numbers]
        wrong = np.array([not fmt.lowest <= x <= fmt.max_finite for x in whole])
        if wrong.any():
            raise _misfit(fmt, numbers, int(wrong.argmax()), path, single)
        return np.array(whole, fmt.storage)
    return encode(fmt.name, array)


def _misfit(fmt: DType, numbers: Sequence[object], place: int, path: str, single: bool) -> CaseError:
    value = numbers[place]
    text = str(value) if not isinstance(value, int) or abs(value) < 1 << 128 else "an integer of over 128 bits"
    return CaseError(f"{fmt.name} cannot hold {text}", path if single else f"{path}[{place}]")
