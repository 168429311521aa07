"""How each fill of a case becomes values: one function per kind, writing storage form.

Everything random reads the tensor's own stream (``streams``); everything else is arithmetic on the shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from .case import (
    Band,
    Bernoulli,
    CaseError,
    ColumnsFrom,
    Constant,
    Fill,
    Grid,
    Normal,
    Patch,
    Patched,
    Triu,
    Uniform,
)
from .codecs import encode, pack_int4
from .dtypes import DType, dtype
from .scalars import encode_fill, encode_number
from .streams import fill_from

Array = NDArray[Any]


@dataclass(frozen=True)
class Steps:
    """Default fill: multiples k * 2**exponent for k in ``low`` .. ``high``, equally likely, rounded to the dtype."""

    low: int
    high: int
    exponent: int


@dataclass(frozen=True)
class Enumeration:
    """Default fill: element i (row-major) is i modulo ``count``."""

    count: int


AnyFill = Union[Fill, Steps, Enumeration]


@dataclass(frozen=True)
class Target:
    """What is filled: shape and format, the stream's key, where errors point to.

    ``pattern``: UINT64 that carries float32 patterns. ``packed``: INT32 that carries eight INT4 each; a grid then
    speaks of the nibbles, every other fill of whole words.
    """

    shape: tuple[int, ...]
    fmt: DType
    key: int
    path: str
    pattern: bool = False
    packed: bool = False

    @property
    def real(self) -> bool:
        """Whether elements stand for real numbers rather than integers."""
        return self.pattern or self.fmt.kind in ("float", "scale", "complex")

    def misfit(self, what: str) -> CaseError:
        """The error that the fill and the format do not go together."""
        return CaseError(f"{what} does not suit {self.fmt.name}", self.path)


def make(fill: AnyFill, target: Target) -> Array:
    """The values of a fill as a dense storage array. CaseError when fill, format and shape do not go together.

    The array is the caller's own, except that large causal triangles are shared and read-only.
    """
    if isinstance(fill, Grid):
        return _grid(fill, target)
    if isinstance(fill, Steps):
        return _levels(target, fill.low, fill.high - fill.low + 1, fill.exponent)
    if isinstance(fill, Enumeration):
        numbers = np.arange(math.prod(target.shape), dtype=np.int64) % max(fill.count, 1)
        return encode(target.fmt.name, numbers, overflow="saturate").reshape(target.shape)
    if isinstance(fill, Uniform):
        return _uniform(fill, target)
    if isinstance(fill, Normal):
        return _normal(fill, target)
    if isinstance(fill, Constant):
        number = encode_number(target.fmt, fill.value, f"{target.path}.value", pattern=target.pattern)
        # Untouched zero pages cost nothing.
        return np.full(target.shape, number[0]) if number.view(np.uint8).any() else np.zeros(target.shape, number.dtype)
    if isinstance(fill, Bernoulli):
        return _bernoulli(fill, target)
    if isinstance(fill, Triu):
        inside = encode_number(target.fmt, fill.inside, f"{target.path}.inside", pattern=target.pattern)
        outside = encode_number(target.fmt, fill.outside, f"{target.path}.outside", pattern=target.pattern)
        return _plane(target, "triu", fill.diagonal, None, inside, outside)
    if isinstance(fill, Band):
        inside, outside = (encode_number(target.fmt, n, target.path, pattern=target.pattern) for n in (0, 1))
        return _plane(target, "band", -fill.pre, fill.next, inside, outside)
    if isinstance(fill, ColumnsFrom):
        return _columns_from(fill, target)
    return _patched(fill, target)


# -- random values ----------------------------------------------------------------------------------------------

_TABLE = 1 << 16
_WIDEST = 2.0**1000
"""Where the bounds of DOUBLE are cut off: their difference has to be finite too."""


def _finite(target: Target, *bounds: float) -> None:
    if not all(map(math.isfinite, bounds)):
        raise CaseError("bounds must be finite", target.path)


def _grid(fill: Grid, target: Target) -> Array:
    _finite(target, fill.low, fill.high)
    fmt = dtype("FLOAT32") if target.pattern else dtype("INT4") if target.packed else target.fmt
    if not target.real:
        low, high = max(math.ceil(fill.low), int(fmt.lowest)), min(math.floor(fill.high), int(fmt.max_finite))
        exponent = 0
    else:
        # Clipped to the finite range first: times 8 could overflow otherwise.
        widest = min(float(fmt.max_finite), _WIDEST)
        least, most = max(fill.low, -widest), min(fill.high, widest)
        low, high = math.ceil(least * 8), math.floor(most * 8)
        exponent = -3
    if fmt.kind == "scale":
        # The grid points that the format has: powers of two from 1/8 on.
        first, last = max(low, 1), high
        exponents = [e for e in range(-3, 128) if first <= 2 ** (e + 3) <= last]
        if not exponents:
            raise target.misfit(f"a grid from {fill.low:g} to {fill.high:g}")
        codes = encode(fmt.name, np.ldexp(1.0, exponents))
        return _drawn(target, codes)
    if high < low:
        raise target.misfit(f"a grid from {fill.low:g} to {fill.high:g}")
    if high - low >= 1 << 64 or (target.real and high - low >= 1 << 53):
        raise CaseError("a grid of more than 2**53 points", target.path)
    return _levels(target, low, high - low + 1, exponent)


def _levels(target: Target, low: int, count: int, exponent: int) -> Array:
    """(low + i) * 2**exponent for i in 0 .. count - 1, equally likely."""
    if target.packed:
        return _packed(target, low, count)
    if count <= _TABLE:
        return _drawn(target, _level_codes(target.fmt.name, target.pattern, low, count, exponent))
    out = np.empty(math.prod(target.shape), target.fmt.storage)

    def convert(lanes: Array, part: Array) -> None:
        # 64 random bits: the remainder favours nothing that could be seen.
        place = (lanes % np.uint64(count) if count < 1 << 64 else lanes).astype(np.uint64, copy=False)
        if target.real:
            numbers = np.ldexp(place.astype(np.float64) + low, exponent)
            part[:] = encode_fill(target.fmt, numbers, pattern=target.pattern)
        else:
            part[:] = (place + np.uint64(low % (1 << 64))).astype(f"uint{8 * part.itemsize}").view(part.dtype)

    fill_from(out, target.key, 64, convert)
    return out.reshape(target.shape)


@lru_cache(maxsize=256)
def _level_codes(name: str, pattern: bool, low: int, count: int, exponent: int) -> Array:
    fmt = dtype(name)
    if pattern or not fmt.is_integer or exponent:
        return encode_fill(fmt, np.ldexp(np.arange(low, low + count, dtype=np.float64), exponent), pattern=pattern)
    whole = np.arange(count, dtype=np.uint64) + np.uint64(low % (1 << 64))
    return encode(name, whole if name == "UINT64" else whole.view(np.int64), overflow="saturate")


def _drawn(target: Target, codes: Array) -> Array:
    """Elements drawn from up to 65536 codes, equally likely but for less than the 256th part of a lane's range."""
    count = codes.size
    out = np.empty(math.prod(target.shape), codes.dtype)
    if count == 1:
        out[:] = codes[0]
        return out.reshape(target.shape)
    few = count <= 256
    width, wide = (16, np.uint32) if few else (32, np.uint64)
    factor, shift = wide(count), wide(width)

    def convert(lanes: Array, part: Array) -> None:
        place = np.multiply(lanes, factor, dtype=wide)
        place >>= shift
        codes.take(place.astype(np.intp), out=part, mode="clip")

    fill_from(out, target.key, 16 if few else 32, convert)
    return out.reshape(target.shape)


def _packed(target: Target, low: int, count: int) -> Array:
    if count == 16:
        out = np.empty(math.prod(target.shape), np.int32)
        fill_from(out, target.key, 32, lambda lanes, part: np.copyto(part, lanes.astype(np.uint32).view(np.int32)))
        return out.reshape(target.shape)
    nibbles = Target((math.prod(target.shape) * 8,), dtype("INT4"), target.key, target.path)
    return pack_int4(_levels(nibbles, low, count, 0)).reshape(target.shape)


def _uniform(fill: Uniform, target: Target) -> Array:
    _finite(target, fill.low, fill.high)
    if fill.high < fill.low:
        raise CaseError(f"uniform from {fill.low:g} to {fill.high:g} is empty", target.path)
    if target.fmt.kind == "bool" or (target.fmt.kind == "scale" and fill.low <= 0):
        raise target.misfit(f"uniform from {fill.low:g} to {fill.high:g}")
    low = max(fill.low, -_WIDEST)
    step = (min(fill.high, _WIDEST) - low) * 2.0**-32
    out = np.empty(math.prod(target.shape), target.fmt.storage)

    def convert(lanes: Array, part: Array) -> None:
        numbers = lanes.astype(np.float64)
        numbers *= step
        numbers += low
        part[:] = encode_fill(target.fmt, numbers, pattern=target.pattern)

    fill_from(out, target.key, 32, convert)
    return out.reshape(target.shape)


_NIBBLES = np.uint64(0x0F0F0F0F0F0F)
_BYTES = np.uint64(0x010101010101)
_DEVIATION = 65536 * math.sqrt(255 + 1 / 12)


def _normal(fill: Normal, target: Target) -> Array:
    """The sum of twelve 4-bit numbers and a 16-bit fraction, all of one word, shifted and scaled.

    Twelve equal terms are as near to normal as a test needs (it ends at 5.7 standard deviations); the fraction
    spreads the 181 sums to steps of 2**-20 deviations. One multiplication and one addition in float64 follow, each
    exactly rounded by IEEE 754: no library function takes part.
    """
    _finite(target, fill.mean, fill.std)
    if fill.std < 0 or target.fmt.kind in ("bool", "scale"):
        raise target.misfit(f"normal with mean {fill.mean:g} and deviation {fill.std:g}")
    factor = fill.std / _DEVIATION
    out = np.empty(math.prod(target.shape), target.fmt.storage)

    def convert(lanes: Array, part: Array) -> None:
        bits = lanes.astype(np.uint64, copy=False)
        pairs = bits & _NIBBLES
        pairs += (bits >> np.uint64(4)) & _NIBBLES
        pairs *= _BYTES
        pairs >>= np.uint64(40)
        pairs &= np.uint64(0xFF)
        pairs <<= np.uint64(16)
        pairs |= bits >> np.uint64(48)
        numbers = pairs.view(np.int64).astype(np.float64)
        numbers -= 90 * 65536 + 32767.5  # the mean of both, exactly
        numbers *= factor
        numbers += fill.mean
        part[:] = encode_fill(target.fmt, numbers, pattern=target.pattern)

    fill_from(out, target.key, 64, convert)
    return out.reshape(target.shape)


def _bernoulli(fill: Bernoulli, target: Target) -> Array:
    if not 0 <= fill.p <= 1:
        raise CaseError(f"probability {fill.p:g} is outside 0 .. 1", f"{target.path}.p")
    codes = np.concatenate([encode_number(target.fmt, n, target.path, pattern=target.pattern) for n in (0, 1)])
    threshold = np.uint64(round(fill.p * 2**32))
    out = np.empty(math.prod(target.shape), codes.dtype)

    def convert(lanes: Array, part: Array) -> None:
        codes.take((lanes.astype(np.uint64) < threshold).view(np.int8), out=part, mode="clip")

    fill_from(out, target.key, 32, convert)
    return out.reshape(target.shape)


# -- fills by position ------------------------------------------------------------------------------------------

_ROWS_AT_ONCE = 1 << 18
_SHARED = 1 << 20
"""Elements from which on a single plane is cached: making it costs milliseconds, every causal case wants it."""


def _plane(target: Target, kind: str, first: int, last: int | None, inside: Array, outside: Array) -> Array:
    """``inside`` where first <= column - row (<= last), else ``outside``, on the last two axes."""
    if len(target.shape) < 2:
        raise CaseError(f"{kind} needs two axes, not {len(target.shape)}", target.path)
    rows, columns = target.shape[-2:]
    arguments = (
        rows, columns, max(min(first, columns), -rows), None if last is None else max(min(last, columns), -rows - 1),
        inside.dtype.str, inside.tobytes(), outside.tobytes(),
    )
    if math.prod(target.shape) == rows * columns >= _SHARED:
        shared: Array = _shared_plane(*arguments).reshape(target.shape)
        return shared
    own: Array = np.broadcast_to(_band(*arguments), target.shape).copy()
    return own


@lru_cache(maxsize=4)
def _shared_plane(
    rows: int, columns: int, first: int, last: int | None, storage: str, inside: bytes, outside: bytes
) -> Array:
    plane = _band(rows, columns, first, last, storage, inside, outside)
    plane.flags.writeable = False
    return plane


def _band(rows: int, columns: int, first: int, last: int | None, storage: str, inside: bytes, outside: bytes) -> Array:
    codes = np.frombuffer(outside + inside, storage)
    plane = np.empty((rows, columns), storage)
    column = np.arange(columns, dtype=np.int64)
    at_once = max(1, _ROWS_AT_ONCE // max(columns, 1))
    for begin in range(0, rows, at_once):
        row = np.arange(begin, min(begin + at_once, rows), dtype=np.int64)[:, None]
        chosen = column >= row + first
        if last is not None:
            chosen &= column <= row + last
        codes.take(chosen.view(np.int8), out=plane[begin : begin + at_once], mode="clip")
    return plane


def _columns_from(fill: ColumnsFrom, target: Target) -> Array:
    if len(target.shape) < 2:
        raise CaseError(f"columns_from needs two axes, not {len(target.shape)}", target.path)
    if not fill.start:
        raise CaseError("columns_from needs at least one start", f"{target.path}.start")
    zero, one = (encode_number(target.fmt, n, target.path, pattern=target.pattern)[0] for n in (0, 1))
    out = np.full(target.shape, zero)
    for batch in range(target.shape[0]):
        start = fill.start[min(batch, len(fill.start) - 1)]
        out[batch, ..., max(start, 0) :] = one
    return out


def _patched(fill: Patched, target: Target) -> Array:
    base = Target(target.shape, target.fmt, target.key, f"{target.path}.base", target.pattern, target.packed)
    out = make(fill.base, base)
    if not out.flags.writeable:
        out = out.copy()
    for place, patch in enumerate(fill.patches):
        path = f"{target.path}.patches[{place}]"
        value = encode_number(target.fmt, patch.value, f"{path}.value", pattern=target.pattern)
        out[_region(patch, target.shape, path)] = value[0]
    return out


def _region(patch: Patch, shape: tuple[int, ...], path: str) -> tuple[slice, ...]:
    """The slices of a patch. Ends beyond the tensor are cut off, so that a patch stays valid when axes shrink."""
    if len(patch.at) != len(shape):
        raise CaseError(f"{len(patch.at)} ranges for {len(shape)} axes", f"{path}.at")
    for axis, bounds in enumerate(patch.at):
        if bounds is not None and (bounds[0] < 0 or bounds[1] < 0):
            raise CaseError(f"range {bounds[0]} .. {bounds[1]} begins or ends below 0", f"{path}.at[{axis}]")
    return tuple(slice(None) if bounds is None else slice(*bounds) for bounds in patch.at)
