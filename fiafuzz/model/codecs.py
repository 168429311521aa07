"""Numbers to storage and back, exact and vectorised, for every format of ``dtypes``.

Storage is what dumps and materialised tensors hold (``DType.storage``). Nothing rounds twice: encoding
decides on the float64 (or integer) it is given. Sources: spec/numerics.md 15.3, 16.1, 18 and 18.1.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import hifloat8
from .dtypes import DType, dtype
from .rounding import round_exact, table_lookup, table_values

Array = NDArray[Any]
Rounding = Literal["rne", "rna", "round", "hybrid", "hybrid16"]
Overflow = Literal["saturate", "special", "wrap"]

_SIGN = {"FLOAT8_E4M3FN": 0x80, "FLOAT8_E5M2": 0x80, "FLOAT4_E2M1": 0x8, "FLOAT4_E1M2": 0x8}


def storage_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype that holds elements of the format."""
    return np.dtype(dtype(name).storage)


@cache
def code_values(name: str) -> NDArray[np.float64]:
    """The float64 value of every code of a coded format of up to 8 bits, read-only (16 codes for FLOAT4)."""
    fmt = dtype(name)
    if not fmt.is_coded or fmt.bits > 8:
        raise ValueError(f"{name} is not a coded format of up to 8 bits")
    if fmt.tapered:
        values = hifloat8.code_values()
    elif fmt.kind == "scale":
        values = np.ldexp(1.0, np.arange(256) - 127)
        values[255] = np.nan
    else:
        code = np.arange(1 << (fmt.bits - 1))
        exponent, fraction = code >> fmt.mantissa_bits, code & ((1 << fmt.mantissa_bits) - 1)
        significand = fraction + ((exponent > 0) << fmt.mantissa_bits)
        half = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - fmt.bias - fmt.mantissa_bits)
        if fmt.has_inf:
            top = (1 << fmt.exponent_bits) - 1
            half[exponent == top] = np.nan
            half[(exponent == top) & (fraction == 0)] = np.inf
        elif fmt.has_nan:
            half[-1] = np.nan
        values = np.concatenate([half, -half])
    values.flags.writeable = False
    return values


def decode(name: str, stored: ArrayLike) -> Array:
    """The numbers that an array in storage form stands for, exactly, in a new array of the same shape.

    float64 for floats and E8M0, complex128 for complex, bool for BOOL, uint64 for UINT64, int64 for the other
    integers. ValueError when ``stored`` has not the storage dtype, or holds codes of more than 4 bits (FLOAT4)
    or values outside -8..7 (INT4).
    """
    fmt = dtype(name)
    array = np.asarray(stored)
    check_storage(fmt, array)
    if fmt.name == "BFLOAT16":
        with np.errstate(invalid="ignore"):  # signalling NaN
            return np.asarray(array.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if fmt.is_coded:
        return np.asarray(code_values(name).take(array))
    if fmt.is_integer:
        return array.astype(np.uint64 if name == "UINT64" else np.int64)
    with np.errstate(invalid="ignore"):
        return array.astype({"bool": np.bool_, "complex": np.complex128}.get(fmt.kind, np.float64))


def check_storage(fmt: DType, array: Array) -> None:
    """ValueError unless ``array`` has the storage dtype of ``fmt`` and, for 4-bit formats, only 4-bit content."""
    if array.dtype != np.dtype(fmt.storage):
        raise ValueError(f"{fmt.name} is stored as {fmt.storage}, not {array.dtype}")
    if fmt.bits == 4 and array.size:
        low, high = int(array.min()), int(array.max())
        bottom, top = (-8, 7) if fmt.kind == "int" else (0, 15)
        if low < bottom or high > top:
            raise ValueError(f"{fmt.name} holds {high if high > top else low}, outside {bottom} .. {top}")


def encode(
    name: str, values: ArrayLike, *, rounding: Rounding | None = None, overflow: Overflow | None = None
) -> Array:
    """Round numbers to a format and return them in storage form, same shape.

    ``values``: anything that becomes float64 exactly, integers of up to 64 bits, complex for complex formats.

    ``rounding``: "rne" (nearest, ties to even) or "rna" (ties away from zero) for every format but HIFLOAT8,
    "rne" when None. HIFLOAT8: "round" (ties away; when None), "hybrid" (from the float32 pattern) or "hybrid16"
    (from the float16 pattern). E8M0 takes the larger power on a tie either way, as IEEE 754 says for one digit.

    ``overflow``: what happens beyond the finite range, and to NaN.

    - "special" (floats, E8M0; None means this where the format has a NaN): overflow gives inf, NaN for
      FLOAT8_E4M3FN, 2**127 for E8M0; NaN stays NaN. E8M0: zero and negatives give NaN.
    - "saturate" (all; None for integers, BOOL, FLOAT4): overflow and inf give the largest number of that sign, NaN
      gives 0 (E8M0: NaN, since it has no zero; its zero gives 2**-127, its negatives NaN).
    - "wrap" (integers): the low bits of the rounded number are kept, NaN gives 0, inf saturates.

    BOOL is whether the number differs from zero (NaN: False). ValueError for a combination that does not exist.
    """
    fmt = dtype(name)
    given = np.asarray(values)
    array = given.reshape(-1)
    if overflow is None:
        overflow = "special" if fmt.has_nan else "saturate"
    if rounding is None:
        rounding = "round" if fmt.tapered else "rne"
    if rounding not in (("round", "hybrid", "hybrid16") if fmt.tapered else ("rne", "rna")):
        raise ValueError(f"{name} does not round by {rounding!r}")
    modes = {"saturate"} | ({"special"} if fmt.has_nan else set()) | ({"wrap"} if fmt.is_integer else set())
    if overflow not in modes:
        raise ValueError(f"{name} has no overflow mode {overflow!r}")
    if fmt.kind == "complex":
        with np.errstate(over="ignore", invalid="ignore"):
            stored: Array = array.astype(fmt.storage)
    elif fmt.kind == "bool":
        stored = (array != 0) & (array == array)
    elif fmt.is_integer:
        stored = _encode_integer(fmt, array, rounding, overflow)
    else:
        stored = _encode_float(fmt, array.astype(np.float64, copy=False), rounding, overflow)
    return stored.reshape(given.shape)


def _encode_float(fmt: DType, numbers: NDArray[np.float64], rounding: str, overflow: str) -> Array:
    if fmt.bits <= 8:
        if rounding in ("hybrid", "hybrid16"):
            source: Any = np.float32 if rounding == "hybrid" else np.float16
            numbers = hifloat8.hybrid_values(numbers, source=source)
        return table_lookup(numbers, _table(fmt.name, rounding == "rna", overflow == "saturate"))
    if overflow == "saturate":
        numbers = _saturated(fmt, numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        if rounding == "rna" and fmt.name != "DOUBLE":
            numbers = round_exact(numbers, fmt, ties="away")
            numbers[np.abs(numbers) > fmt.max_finite] *= np.inf
        if fmt.name == "BFLOAT16":
            return _encode_bfloat16(numbers)
        return numbers.astype(fmt.storage)


def overflows(name: str, values: ArrayLike) -> NDArray[np.bool_]:
    """Where finite numbers round (nearest even; HIFLOAT8 ties away) to something beyond the finite range.

    For integers and BOOL the number itself must lie in the range; E8M0 counts zero and negatives too.
    """
    fmt = dtype(name)
    array = np.atleast_1d(np.asarray(values))
    if fmt.is_integer or fmt.kind == "bool":
        return np.asarray((array < fmt.lowest) | (array > fmt.max_finite))
    numbers = np.asarray(array, dtype=np.float64)
    if fmt.kind == "complex" or name == "DOUBLE":
        return np.zeros(numbers.shape, np.bool_)
    rounded = round_exact(numbers, fmt, ties="away" if fmt.tapered else "even")
    return np.asarray(np.isfinite(numbers) & ((np.abs(rounded) > fmt.max_finite) | (not fmt.signed) & (numbers <= 0)))


def _saturated(fmt: DType, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    if numbers.size and numbers.min() >= fmt.lowest and numbers.max() <= fmt.max_finite:  # no NaN either
        return numbers
    clipped = np.clip(numbers, fmt.lowest, fmt.max_finite)
    return np.where(np.isnan(clipped), 0.0, clipped)


def _encode_bfloat16(numbers: NDArray[np.float64]) -> NDArray[np.uint16]:
    single = numbers.astype(np.float32)
    bits = single.view(np.uint32)
    # float32 on the way could turn a number beside a tie into the tie: step back to its own side.
    ties = np.nonzero((bits & np.uint32(0xFFFF)) == 0x8000)
    if ties[0].size:
        exact = np.abs(numbers[ties])
        reached = np.abs(single[ties].astype(np.float64))
        bits[ties] += (exact > reached).astype(np.uint32)
        bits[ties] -= (exact < reached).astype(np.uint32)
    nan = np.isnan(numbers)
    # Adding 0x7FFF and the lowest kept bit carries into the kept half exactly when rounding goes up.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    stored: NDArray[np.uint16] = rounded.astype(np.uint16)
    if nan.any():
        stored[nan] = np.where(np.signbit(numbers[nan]), 0xFFC0, 0x7FC0)
    return stored


@cache
def _table(name: str, away: bool, saturate: bool) -> NDArray[np.uint8]:
    """The code for every index of a rounding table."""
    fmt = dtype(name)
    values = table_values()
    with np.errstate(invalid="ignore"):
        rounded = round_exact(values, fmt, ties="away" if away or fmt.tapered else "even")
    known = code_values(name)
    # A FLOAT4 or E8M0 has nothing beyond its largest number, whatever the mode.
    clamp = saturate or (not fmt.has_inf and name != "FLOAT8_E4M3FN")
    beyond = np.abs(rounded) > fmt.max_finite
    magnitude = np.minimum(np.abs(rounded), fmt.max_finite)
    half = known[: 1 << (fmt.bits - 1)] if fmt.signed else known
    finite = np.nonzero(np.isfinite(half))[0]
    order = finite[np.argsort(half[finite])]
    codes = order[np.searchsorted(half[order], np.where(np.isnan(magnitude), 0.0, magnitude)).clip(max=order.size - 1)]
    if not clamp:
        codes[beyond] = {"FLOAT8_E4M3FN": 0x7F, "FLOAT8_E5M2": 0x7C, "HIFLOAT8": hifloat8.INF}[name]
    if fmt.tapered:  # no negative zero
        codes |= np.where(np.signbit(values) & (codes != 0), 0x80, 0)
        codes[np.isnan(values)] = 0 if saturate else hifloat8.NAN
    elif fmt.signed:
        codes |= np.where(np.signbit(values), _SIGN[name], 0)
        quiet = {"FLOAT8_E4M3FN": 0x7F, "FLOAT8_E5M2": 0x7E}.get(name, 0)
        codes[np.isnan(values)] = 0 if saturate else quiet
    else:  # what rounds to the zero that E8M0 lacks has found code 0, the smallest number
        codes[(values < 0) | np.isnan(values)] = 0xFF
        codes[values == 0] = 0 if saturate else 0xFF
    table: NDArray[np.uint8] = codes.astype(np.uint8)
    table.flags.writeable = False
    return table


def _encode_integer(fmt: DType, array: Array, rounding: str, overflow: str) -> Array:
    low, high = int(fmt.lowest), int(fmt.max_finite)
    if array.dtype.kind not in "iub":
        numbers = np.asarray(array, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            rounded = np.rint(numbers) if rounding == "rne" else np.trunc(numbers)
            if rounding == "rna":
                rounded += np.copysign(np.abs(numbers - rounded) >= 0.5, numbers)
        if numbers.size and rounded.min() > -(2.0**63) and rounded.max() < 2.0**63:  # no NaN either
            array = rounded.astype(np.int64)
    if array.dtype.kind in "iub":
        whole = array.astype(np.uint64) if overflow == "wrap" else _clip_integers(array, low, high)
    else:
        rounded = np.where(np.isnan(rounded), 0.0, rounded)
        # Two's complement of 64 bits for both halves of the range, exact for every integer float64.
        infinite = np.isinf(rounded)
        magnitude = np.fmod(np.where(infinite, 0.0, np.abs(rounded)), 2.0**64).astype(np.uint64)
        whole = np.where(rounded < 0, np.uint64(0) - magnitude, magnitude)
        # float(high) may be high + 1 (64 bits); both tests put that number on the right side.
        over, under = rounded >= float(high), rounded <= float(low)
        clamp: Array = infinite if overflow == "wrap" else np.ones_like(infinite)
        whole = np.where(clamp & over, np.uint64(high), np.where(clamp & under, np.uint64(low % (1 << 64)), whole))
    if fmt.bits == 4:
        return _signed_nibbles(whole.astype(np.int8) & np.int8(15))
    return whole.astype(f"uint{fmt.bits}").view(fmt.storage)


def _clip_integers(array: Array, low: int, high: int) -> Array:
    if array.dtype.kind == "b":
        return array.astype(np.uint64)
    limits = np.iinfo(array.dtype)
    return np.clip(array, max(low, limits.min), min(high, limits.max)).astype(np.uint64)


def code_rank(name: str, stored: ArrayLike) -> NDArray[np.int32]:
    """Place of each code among the distinct values of a coded format of up to 8 bits, in value order.

    Neighbouring values differ by one, both zeros share a place, -inf and inf stand at the ends; NaN is -1.
    HIFLOAT8 codes are not ordered by value, so their distance has to be taken here (spec/numerics.md 18.1).
    """
    array = np.asarray(stored)
    check_storage(dtype(name), array)
    values = code_values(name)
    ranks = np.searchsorted(np.unique(values[~np.isnan(values)]), values)
    return np.where(np.isnan(values), -1, ranks).astype(np.int32).take(array)


def _signed_nibbles(nibbles: NDArray[np.int8]) -> NDArray[np.int8]:
    return np.asarray((nibbles ^ np.int8(8)) - np.int8(8))


def pack_int4(values: ArrayLike) -> NDArray[np.int32]:
    """Pack values -8..7 by eights into words, lowest nibble first, two's complement (spec/numerics.md 15.3).

    The last axis must be a multiple of 8 and becomes an eighth of it. ValueError otherwise.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or not array.ndim or array.shape[-1] % 8:
        raise ValueError(f"INT4 packs integers by eights along the last axis, not {array.dtype} of shape {array.shape}")
    if array.size and (array.min() < -8 or array.max() > 7):
        raise ValueError("INT4 values must be -8 .. 7")
    nibbles = array.astype(np.uint8) & np.uint8(15)
    pairs = nibbles[..., 0::2] | nibbles[..., 1::2] << np.uint8(4)
    return np.ascontiguousarray(pairs).view("<i4").astype(np.int32, copy=False)


def unpack_int4(words: ArrayLike) -> NDArray[np.int8]:
    """The eight values -8..7 of every word, as int8; the last axis is eight times as long.

    ValueError unless ``words`` are int32 with at least one axis.
    """
    array = np.asarray(words)
    if array.dtype != np.int32 or not array.ndim:
        raise ValueError(f"packed INT4 is an int32 array, not {array.dtype} of shape {array.shape}")
    pairs = np.ascontiguousarray(array.astype("<i4", copy=False)).view(np.uint8)
    nibbles = np.empty((*pairs.shape[:-1], 2 * pairs.shape[-1]), np.int8)
    nibbles[..., 0::2] = pairs & np.uint8(15)
    nibbles[..., 1::2] = pairs >> np.uint8(4)
    return _signed_nibbles(nibbles)


def uint64_scale(values: ArrayLike) -> NDArray[np.uint64]:
    """Dequantisation scales as UINT64: the float32 pattern in the low half, its 13 lowest bits cleared.

    The matrix unit drops these 13 bits anyway (spec/numerics.md 16.1).
    """
    with np.errstate(over="ignore"):
        bits = np.asarray(values, dtype=np.float64).astype(np.float32).view(np.uint32)
    return np.asarray(bits & np.uint32(0xFFFFE000), dtype=np.uint64)


def scale_from_uint64(stored: ArrayLike, *, drop_low_bits: bool = False) -> NDArray[np.float32]:
    """The float32 in the low half of UINT64 dequantisation scales; optionally without its 13 lowest bits."""
    kept = 0xFFFFE000 if drop_low_bits else 0xFFFFFFFF
    bits = np.asarray(np.asarray(stored, dtype=np.uint64) & np.uint64(kept), dtype=np.uint32)
    return bits.view(np.float32)
