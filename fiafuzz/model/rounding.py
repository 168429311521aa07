"""Exact rounding of float64 numbers to a narrower format, and lookup tables for formats of up to 8 bits.

Nothing here rounds twice: ``round_exact`` works on the float64 number itself, and the tables are indexed by
its top bits with a sticky bit ("round to odd"), which keeps enough to decide every tie of a format with at
most three fraction bits.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .dtypes import DType

INDEX_BITS = 17
"""Bits of a table index: sign, 11 exponent bits, 5 fraction bits, the last of them sticky."""

_SHIFT = np.uint64(64 - INDEX_BITS)
_BELOW = np.uint64((1 << (64 - INDEX_BITS)) - 1)
_CHUNK = 1 << 16


def round_exact(values: NDArray[np.float64], dtype: DType, *, ties: Literal["even", "away"]) -> NDArray[np.float64]:
    """Round to the nearest number of a float format whose exponent range has no upper end.

    ``values`` float64 of any shape; the result is float64 of that shape, exact. A result beyond
    ``dtype.max_finite`` means overflow. Subnormals of the format are kept, signs of zeros too. E8M0 is taken as
    if it had a sign and, below its smallest number, zero (spec/numerics.md 18).
    """
    magnitude = np.abs(values)
    exponent = np.frexp(magnitude)[1] - 1
    quantum = _quantum(exponent, dtype)
    # Scaling by a power of two is exact here: the scaled number lies below 2 ** 54, or far below 1.
    scaled = np.ldexp(magnitude, -quantum)
    if ties == "even":
        rounded = np.rint(scaled)
    else:
        # Not floor(scaled + 0.5), which rounds the sum.
        rounded = np.floor(scaled)
        with np.errstate(invalid="ignore"):  # inf - inf
            rounded += scaled - rounded >= 0.5
    with np.errstate(over="ignore"):  # next to the end of float64 itself
        result = np.ldexp(rounded, quantum)
    return np.asarray(np.copysign(result, values))


def _quantum(exponent: NDArray[np.int32], dtype: DType) -> NDArray[np.int32]:
    if not dtype.tapered:
        return np.asarray(np.maximum(exponent, dtype.min_exponent) - dtype.mantissa_bits, dtype=np.int32)
    # HIFLOAT8: 3 fraction bits for |e| <= 3, 2 up to 7, 1 up to 15, none for the powers of two below.
    width = 3 - (np.abs(exponent) > 3).astype(np.int32) - (np.abs(exponent) > 7) - (exponent < -15)
    return np.asarray(np.maximum(exponent - width, -22), dtype=np.int32)


def table_values() -> NDArray[np.float64]:
    """The float64 number that stands for each index of a rounding table (2 ** 17 of them)."""
    return np.asarray(np.arange(1 << INDEX_BITS, dtype=np.uint64) << _SHIFT).view(np.float64)


def table_lookup(values: NDArray[np.float64], table: NDArray[Any]) -> NDArray[Any]:
    """Map every float64 through a table with one entry per number of ``table_values``."""
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint64)
    out = np.empty(flat.size, table.dtype)
    for begin in range(0, flat.size, _CHUNK):
        part = flat[begin : begin + _CHUNK]
        index = part >> _SHIFT
        index |= (part & _BELOW) != 0
        table.take(index.view(np.int64), out=out[begin : begin + _CHUNK], mode="clip")
    return out.reshape(values.shape)
