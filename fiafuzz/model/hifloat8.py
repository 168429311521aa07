"""HIFLOAT8: the value of every code, and the pseudo-random HYBRID rounding.

A code is sign, a prefix of 2 to 4 bits that says how many exponent bits follow, the exponent in sign and
magnitude with an implicit leading one, and what is left as fraction (spec/numerics.md 18.1). Codes are not
ordered by value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NAN, INF = 0x80, 0x6F


def code_values() -> NDArray[np.float64]:
    """The value of all 256 codes, as float64."""
    half = np.array([_magnitude(code) for code in range(128)])
    values = np.concatenate([half, -half])
    values[NAN] = np.nan
    return values


def _magnitude(code: int) -> float:
    if code == INF:
        return float("inf")
    if code < 0x08:  # 0000 mmm: zero and powers of two
        return 2.0 ** (code - 23) if code else 0.0
    if code < 0x10:  # 0001 mmm: exponent 0
        return 1 + (code & 7) / 8
    # The prefixes 001, 01, 10 and 11 are followed by 1, 2, 3 and 4 bits of sign and exponent.
    size, fraction_bits = (1, 3) if code < 0x20 else (2, 3) if code < 0x40 else (3, 2) if code < 0x60 else (4, 1)
    field = (code >> fraction_bits) & ((1 << size) - 1)
    leading = 1 << (size - 1)
    magnitude = leading | (field & (leading - 1))
    exponent = -magnitude if field & leading else magnitude
    fraction = code & ((1 << fraction_bits) - 1)
    return float(2.0**exponent * (1 + fraction / (1 << fraction_bits)))


def hybrid_values(values: NDArray[np.float64], *, source: type[np.float32] | type[np.float16]) -> NDArray[np.float64]:
    """Round by HYBRID and return the rounded numbers (exact values of codes, 49152 for overflow, NaN, inf).

    The rounding is defined on the bit pattern of the source format, so ``values`` are first rounded to
    ``source`` (nearest even). Exponents of magnitude below 4 round to nearest, ties away. Farther out the
    14 bits (float16: 2 bits) after the kept fraction are compared with the number's own lowest 14 bits
    (float16: lowest bit and a one): not below means up, even when the number is representable. From 40960
    on the result is overflow, as in the published reference; the hardware text lets the comparison decide
    there (spec/numerics.md 18.1).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        given = values.astype(source).astype(np.float64)
    magnitude = np.abs(given)
    finite = np.isfinite(magnitude)
    significand, exponent = np.frexp(np.where(finite, magnitude, 0.0))
    exponent = exponent - 1
    bits, compared = (23, 14) if source is np.float32 else (10, 2)
    # A float16 subnormal is taken as a normalised number, a float32 one is far below the format anyway.
    fraction = np.ldexp(significand, bits + 1).astype(np.int64) & ((1 << bits) - 1)
    distance = np.abs(exponent)
    width = 3 - (distance > 3).astype(np.int64) - (distance > 7) - (distance > 15)
    kept = fraction >> (bits - width)
    nearest = (fraction >> (bits - width - 1)) & 1
    mask = (1 << compared) - 1
    # For width 3 nothing is compared; its shift must only not be negative.
    following = (fraction >> np.maximum(bits - compared - width, 0)) & mask
    threshold = fraction & mask if source is np.float32 else (fraction & 1) << 1 | 1
    up = np.where(distance < 4, nearest, following >= threshold)
    result = np.ldexp(((1 << width) + kept + up).astype(np.float64), (exponent - width).astype(np.int32))
    # Exponent -23 has no kept digit at all: the compared bits start with the leading one.
    below = (1 << (compared - 1)) | (fraction >> (bits - compared + 1))
    result = np.where(exponent == -23, np.where(below >= threshold, 2.0**-22, 0.0), result)
    result[(exponent < -23) | (magnitude == 0)] = 0.0
    result[magnitude >= 40960] = 49152.0
    result[~finite] = magnitude[~finite]
    return np.copysign(result, given)
