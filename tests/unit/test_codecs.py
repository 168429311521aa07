"""The codecs: round trips of every code, and encoding against an exact search with fractions."""

from __future__ import annotations

import bisect
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fiafuzz.model import codecs
from fiafuzz.model.codecs import decode, encode
from fiafuzz.model.dtypes import DTYPES

FLOATS16 = ["FLOAT16", "BFLOAT16"]
CODED = [d.name for d in DTYPES.values() if d.is_coded and d.bits <= 8]
INTEGERS = [d.name for d in DTYPES.values() if d.is_integer]
NEAREST = [*CODED, "FLOAT16", "BFLOAT16", "FLOAT32"]
ML = {
    "BFLOAT16": ml_dtypes.bfloat16, "FLOAT8_E4M3FN": ml_dtypes.float8_e4m3fn, "FLOAT8_E5M2": ml_dtypes.float8_e5m2,
    "FLOAT8_E8M0": ml_dtypes.float8_e8m0fnu, "FLOAT4_E2M1": ml_dtypes.float4_e2m1fn,
}


def every_code(name: str) -> np.ndarray:
    fmt = DTYPES[name]
    return np.arange(1 << fmt.bits).astype(f"uint{max(fmt.bits, 8)}").view(fmt.storage)


# -- an independent judge: sorted exact values and a search ----------------------------------------------------

class Judge:
    """Nearest representable number by exact rational arithmetic over the list of all values."""

    def __init__(self, name: str, ties: str) -> None:
        self.fmt, self.ties = DTYPES[name], ties
        if name == "FLOAT32":
            self.step = self.around
            return
        values = decode(name, every_code(name))
        finite = sorted({abs(Fraction(v)) for v in values[np.isfinite(values)].tolist()})
        # One number more than there is: rounding to it is overflow.
        finite.append(2 * finite[-1] - finite[-2] if name not in ("HIFLOAT8", "FLOAT8_E8M0") else
                      Fraction(49152) if name == "HIFLOAT8" else 2 * finite[-1])
        self.finite = finite

    def around(self, x: Fraction) -> tuple[Fraction, Fraction, bool]:
        exponent = max(math.frexp(float(x))[1] - 1, -126) if x else -126
        quantum = Fraction(2) ** (exponent - 23)
        low = x // quantum
        return low * quantum, (low + 1) * quantum, low % 2 == 0

    def step(self, x: Fraction) -> tuple[Fraction, Fraction, bool]:
        place = bisect.bisect_right(self.finite, x)
        if place == 0:
            return self.finite[0], self.finite[0], True
        if place == len(self.finite):
            return self.finite[-1], self.finite[-1], True
        return self.finite[place - 1], self.finite[place], (place - 1) % 2 == 0

    def nearest(self, x: float) -> Fraction:
        """|x| rounded; more than max_finite means overflow."""
        exact = abs(Fraction(x))
        low, high, low_is_even = self.step(exact)
        if exact - low != high - exact:
            return low if exact - low < high - exact else high
        upwards = self.ties == "away" or not low_is_even or self.fmt.kind == "scale"
        return high if upwards else low


def check_nearest(name: str, ties: str, numbers: list[float], judge: Judge) -> None:
    fmt = DTYPES[name]
    rounding = ("round" if ties == "away" else None) if fmt.tapered else {"even": "rne", "away": "rna"}[ties]
    got = decode(name, encode(name, np.array(numbers), rounding=rounding, overflow="saturate"))
    for x, y in zip(numbers, got.tolist()):
        expected = min(judge.nearest(x), Fraction(fmt.max_finite))
        if fmt.kind == "scale" and x < 0:
            assert math.isnan(y)
            continue
        assert abs(Fraction(y)) == expected, (x, y, expected)
        if fmt.signed and (y != 0 or not fmt.tapered):
            assert math.copysign(1, y) == math.copysign(1, x), (x, y)


def ties_of(name: str) -> list[tuple[str, Judge]]:
    ways = ["away"] if DTYPES[name].tapered else ["even", "away"]
    return [(way, Judge(name, way)) for way in ways]


JUDGES = {name: ties_of(name) for name in NEAREST}


@pytest.mark.parametrize("name", NEAREST)
def test_ties_and_their_neighbours_round_as_exact_arithmetic_says(name: str) -> None:
    rng = np.random.default_rng(1)
    if name in CODED:
        finite = decode(name, every_code(name))
    else:
        bits = rng.integers(0, 1 << DTYPES[name].bits, 1500).astype(f"uint{DTYPES[name].bits}")
        bits[:40] = np.arange(40)  # subnormals and zero
        finite = decode(name, bits.view(DTYPES[name].storage))
    finite = np.unique(np.abs(finite[np.isfinite(finite)]))
    for ties, judge in JUDGES[name]:
        numbers: list[float] = []
        for value in finite.tolist():
            low, high, _ = judge.step(Fraction(value))
            for x in (float(low), float((low + high) / 2), float(high)):
                numbers += [x, math.nextafter(x, math.inf), math.nextafter(x, 0.0)]
        check_nearest(name, ties, [*numbers, *[-x for x in numbers]], judge)


@pytest.mark.parametrize("name", NEAREST)
@given(numbers=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20))
@settings(max_examples=60, deadline=None)
def test_any_float64_rounds_as_exact_arithmetic_says(name: str, numbers: list[float]) -> None:
    for ties, judge in JUDGES[name]:
        if name == "FLOAT32":
            numbers = [x for x in numbers if abs(x) < 3.4e38]
        check_nearest(name, ties, numbers, judge)


# -- round trips ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", [*CODED, *FLOATS16])
def test_every_code_survives_the_round_trip(name: str) -> None:
    codes = every_code(name)
    values = decode(name, codes)
    assert values.dtype == np.float64 and values.shape == codes.shape
    back = encode(name, values, overflow="special" if DTYPES[name].has_nan else "saturate")
    assert back.dtype == codes.dtype
    ordinary = ~np.isnan(values)
    assert np.array_equal(back.view(f"u{codes.itemsize}")[ordinary], codes.view(f"u{codes.itemsize}")[ordinary])
    assert np.isnan(decode(name, back[~ordinary])).all()


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_survive_the_round_trip(name: str) -> None:
    low, high = int(DTYPES[name].lowest), int(DTYPES[name].max_finite)
    values = [low, low + 1, -1 if low else 1, 0, 1, high - 1, high]
    stored = encode(name, np.array(values, dtype=np.uint64 if name == "UINT64" else np.int64))
    assert stored.dtype == DTYPES[name].storage
    assert decode(name, stored).tolist() == values


@pytest.mark.parametrize("name", ML)
def test_decoding_agrees_with_ml_dtypes(name: str) -> None:
    codes = every_code(name)
    with np.errstate(invalid="ignore"):
        theirs = codes.view(ML[name]).astype(np.float64)
    np.testing.assert_array_equal(decode(name, codes), theirs)


@pytest.mark.parametrize("name", ML)
@given(numbers=hnp.arrays(np.float32, 30, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
@settings(max_examples=60, deadline=None)
def test_encoding_agrees_with_ml_dtypes_inside_the_range(name: str, numbers: np.ndarray) -> None:
    fmt = DTYPES[name]
    clamped = np.clip(numbers, fmt.lowest, fmt.max_finite).astype(np.float32)
    if fmt.kind == "scale":
        # Zero and signs differ by design. Subnormal float32 it rounds up too early (1.16 * 2**-127 to 2**-126 in
        # 0.6.0); exact arithmetic decides for the nearest power, see above.
        clamped = np.maximum(np.abs(clamped), np.float32(2.0**-126))
        # Halfway between two powers of two its releases differ: 0.5.0 takes the even code, 0.6.0 the larger power.
        clamped = clamped[np.frexp(clamped)[0] != 0.75]
    theirs = clamped.astype(ML[name]).astype(np.float64)
    ours = decode(name, encode(name, clamped))
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(np.signbit(ours), np.signbit(theirs))


# -- overflow and specials --------------------------------------------------------------------------------------

@pytest.mark.parametrize(
    ("name", "number", "saturated", "special"),
    [
        ("FLOAT16", 65519.99, 0x7BFF, 0x7BFF), ("FLOAT16", 65520.0, 0x7BFF, 0x7C00),
        ("FLOAT16", -1e300, 0xFBFF, 0xFC00),
        ("BFLOAT16", 3.3961775292304957e38, 0x7F7F, 0x7F80), ("BFLOAT16", -math.inf, 0xFF7F, 0xFF80),
        ("FLOAT8_E4M3FN", 464.0, 0x7E, 0x7E), ("FLOAT8_E4M3FN", 465.0, 0x7E, 0x7F),
        ("FLOAT8_E4M3FN", -500.0, 0xFE, 0xFF), ("FLOAT8_E4M3FN", math.inf, 0x7E, 0x7F),
        ("FLOAT8_E5M2", 61439.0, 0x7B, 0x7B), ("FLOAT8_E5M2", 61440.0, 0x7B, 0x7C),
        ("HIFLOAT8", 40959.0, 0x6E, 0x6E), ("HIFLOAT8", 40960.0, 0x6E, 0x6F), ("HIFLOAT8", -math.inf, 0xEE, 0xEF),
        ("FLOAT8_E8M0", 1e300, 0xFE, 0xFE), ("FLOAT8_E8M0", math.inf, 0xFE, 0xFE), ("FLOAT8_E8M0", 1e-300, 0x00, 0x00),
        ("FLOAT8_E8M0", 0.0, 0x00, 0xFF), ("FLOAT8_E8M0", -1.0, 0xFF, 0xFF), ("FLOAT8_E8M0", math.nan, 0xFF, 0xFF),
        ("FLOAT8_E4M3FN", math.nan, 0x00, 0x7F), ("HIFLOAT8", math.nan, 0x00, 0x80), ("HIFLOAT8", -0.0, 0x00, 0x00),
        ("FLOAT16", math.nan, 0x0000, 0x7E00), ("BFLOAT16", math.nan, 0x0000, 0x7FC0),
    ],
)
def test_beyond_the_range(name: str, number: float, saturated: int, special: int) -> None:
    width = f"u{DTYPES[name].itemsize}"
    assert int(encode(name, [number], overflow="saturate").view(width)[0]) == saturated
    assert int(encode(name, [number], overflow="special").view(width)[0]) == special


@pytest.mark.parametrize("name", ["FLOAT4_E2M1", "FLOAT4_E1M2"])
def test_float4_has_no_specials(name: str) -> None:
    largest = DTYPES[name].max_finite
    got = decode(name, encode(name, [math.inf, 1e9, -math.inf, math.nan]))
    assert got.tolist() == [largest, largest, -largest, 0.0]
    with pytest.raises(ValueError, match="no overflow mode 'special'"):
        encode(name, [1.0], overflow="special")


def test_float4_values() -> None:
    assert codecs.code_values("FLOAT4_E2M1").tolist()[:8] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert codecs.code_values("FLOAT4_E1M2").tolist()[:8] == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75]


EDGES = st.builds(lambda power, sign, step: sign * (1 << power) + step,
                  st.integers(0, 66), st.sampled_from([-1, 1]), st.integers(-2, 2))


@given(value=st.one_of(EDGES, st.integers(-(1 << 70), 1 << 70)), name=st.sampled_from(INTEGERS))
@example(value=1 << 63, name="UINT64")
@example(value=1 << 63, name="INT64")
@example(value=-(1 << 63), name="INT64")
@example(value=1 << 64, name="UINT64")
@settings(max_examples=300)
def test_integers_saturate_or_keep_their_low_bits(value: int, name: str) -> None:
    fmt = DTYPES[name]
    low, high = int(fmt.lowest), int(fmt.max_finite)
    number = float(value)
    whole = int(number)
    assert int(decode(name, encode(name, [number], overflow="saturate"))[0]) == min(max(whole, low), high)
    wrapped = (whole - low) % (1 << fmt.bits) + low
    assert int(decode(name, encode(name, [number], overflow="wrap"))[0]) == wrapped


@given(value=st.integers(-(1 << 63), (1 << 63) - 1), name=st.sampled_from(INTEGERS))
def test_integers_are_not_sent_through_float64(value: int, name: str) -> None:
    fmt = DTYPES[name]
    low, high = int(fmt.lowest), int(fmt.max_finite)
    array = np.array([value], dtype=np.int64)
    assert int(decode(name, encode(name, array))[0]) == min(max(value, low), high)
    assert int(decode(name, encode(name, array, overflow="wrap"))[0]) == (value - low) % (1 << fmt.bits) + low


def test_rounding_to_integers() -> None:
    halves = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999999999999994, math.nan, math.inf]
    assert encode("INT8", halves).tolist() == [-2, -2, 0, 0, 2, 2, 0, 0, 127]
    assert encode("INT8", halves, rounding="rna").tolist() == [-3, -2, -1, 1, 2, 3, 0, 0, 127]
    assert encode("INT8", [257.0], overflow="wrap").tolist() == [1]  # the example of spec/numerics.md 18
    assert encode("BOOL", [0.0, -0.0, 0.1, -3, math.inf, math.nan]).tolist() == [False, False, True, True, True, False]


@pytest.mark.parametrize("name", [*NEAREST, *INTEGERS])
@given(numbers=st.lists(st.floats(), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_overflow_is_recognised(name: str, numbers: list[float]) -> None:
    array = np.array([x for x in numbers if math.isfinite(x)] or [1.0])
    beyond = codecs.overflows(name, array)
    fmt = DTYPES[name]
    if fmt.is_integer:
        assert beyond.tolist() == [not fmt.lowest <= x <= fmt.max_finite for x in array.tolist()]
    elif fmt.has_inf or name == "FLOAT8_E4M3FN":
        assert beyond.tolist() == (~np.isfinite(decode(name, encode(name, array)))).tolist()
    else:
        rounded = [JUDGES[name][0][1].nearest(x) for x in array.tolist()]
        expected = [r > fmt.max_finite or (not fmt.signed and x <= 0) for r, x in zip(rounded, array.tolist())]
        assert beyond.tolist() == expected


# -- HIFLOAT8 ---------------------------------------------------------------------------------------------------

HIFLOAT8_CODES = {  # value of the non-negative codes by rows of eight, spec/numerics.md 18.1
    0x00: [0, *[2.0**e for e in range(-22, -15)]],
    0x08: [1, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875],
    0x10: [2, 2.25, 2.5, 2.75, 3, 3.25, 3.5, 3.75],
    0x18: [0.5, 0.5625, 0.625, 0.6875, 0.75, 0.8125, 0.875, 0.9375],
    0x20: [4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5],
    0x28: [8, 9, 10, 11, 12, 13, 14, 15],
    0x30: [0.25, 0.28125, 0.3125, 0.34375, 0.375, 0.40625, 0.4375, 0.46875],
    0x38: [0.125, 0.140625, 0.15625, 0.171875, 0.1875, 0.203125, 0.21875, 0.234375],
    0x40: [16, 20, 24, 28, 32, 40, 48, 56],
    0x48: [64, 80, 96, 112, 128, 160, 192, 224],
    0x50: [2.0**-e * f for e in (4, 5) for f in (1, 1.25, 1.5, 1.75)],
    0x58: [2.0**-e * f for e in (6, 7) for f in (1, 1.25, 1.5, 1.75)],
    0x60: [256, 384, 512, 768, 1024, 1536, 2048, 3072],
    0x68: [4096, 6144, 8192, 12288, 16384, 24576, 32768, math.inf],
    0x70: [2.0**-e * f for e in (8, 9, 10, 11) for f in (1, 1.5)],
    0x78: [2.0**-e * f for e in (12, 13, 14, 15) for f in (1, 1.5)],
}


def test_hifloat8_values_of_all_codes() -> None:
    values = codecs.code_values("HIFLOAT8").tolist()
    for first, row in HIFLOAT8_CODES.items():
        assert values[first : first + 8] == row
        negative = [-x for x in row]
        if first == 0:
            assert math.isnan(values[0x80])
            negative, first = negative[1:], 1
        assert values[0x80 + first : 0x80 + first + len(negative)] == negative


@pytest.mark.parametrize(
    ("bits", "code"),
    [
        (0x3F48849E, 0x1D), (0x3CFDC7CD, 0x54), (0x3F112A2C, 0x19), (0x3E2040ED, 0x3A), (0x43411383, 0x4E),
        (0x438E0E21, 0x60), (0x42356389, 0x46), (0x4686C7E7, 0x6C), (0x46E1CA4A, 0x6E), (0x453D6D1B, 0x67),
        (0x4743505E, 0x6F), (0x358B4F67, 0x03),
    ],
)
def test_hifloat8_round_check_values(bits: int, code: int) -> None:
    value = np.array([bits], np.uint32).view(np.float32)
    assert int(encode("HIFLOAT8", value)[0]) == code
    assert int(encode("HIFLOAT8", -value)[0]) == code | 0x80


def hybrid_by_hand(bits: int) -> float:
    """HYBRID on a positive float32 pattern, with integers and step by step."""
    e, f = (bits >> 23) - 127, bits & 0x7FFFFF
    if e == 128:
        return math.nan if f else math.inf
    if e > 15 or (e == 15 and f >= 1 << 21):
        return math.inf
    if e < -23:
        return 0.0
    if e == -23:
        return 2.0**-22 if (1 << 13 | f >> 10) >= (f & 0x3FFF) else 0.0
    w = 3 if abs(e) <= 3 else 2 if abs(e) <= 7 else 1 if abs(e) <= 15 else 0
    kept, dropped = divmod(f, 1 << (23 - w))
    if w == 3:
        up = dropped >> (22 - w)
    else:
        up = (dropped >> (23 - w - 14)) >= (f & 0x3FFF)
    value = Fraction((1 << w) + kept + int(up), 1 << w) * Fraction(2) ** e
    return float(value) if value <= 32768 else math.inf


@given(st.lists(st.integers(0, 0x7FFFFFFF), min_size=1, max_size=50))
@settings(max_examples=100, deadline=None)
def test_hifloat8_hybrid_follows_the_bit_rule(patterns: list[int]) -> None:
    # Most patterns are moved to the exponents that the format has.
    patterns += [(p & 0x7FFFFF) | (127 - 24 + p % 42) << 23 for p in patterns]
    values = np.array(patterns, np.uint32).view(np.float32)
    got = decode("HIFLOAT8", encode("HIFLOAT8", values, rounding="hybrid"))
    expected = [hybrid_by_hand(p) for p in patterns]
    np.testing.assert_array_equal(got, expected)
    finite = ~np.isnan(values)
    mirrored = decode("HIFLOAT8", encode("HIFLOAT8", -values[finite], rounding="hybrid"))
    np.testing.assert_array_equal(mirrored, -got[finite])


@pytest.mark.parametrize("value", [16.0, 0.0625, 32768.0, 2.0**-16, 256.0, 2.0**-22])
def test_hifloat8_hybrid_moves_exact_values_far_from_one(value: float) -> None:
    expected = {16.0: 20.0, 0.0625: 0.078125, 32768.0: math.inf, 2.0**-16: 2.0**-15, 256.0: 384.0, 2.0**-22: 2.0**-21}
    for rounding in ("hybrid", "hybrid16"):
        got = float(decode("HIFLOAT8", encode("HIFLOAT8", [value], rounding=rounding))[0])
        # The float16 threshold is never zero, so there an exact value stays.
        assert got == (expected[value] if rounding == "hybrid" else value)
    assert float(decode("HIFLOAT8", encode("HIFLOAT8", [value]))[0]) == value


def hybrid16_by_hand(bits: int) -> float:
    """The float16 variant on a positive pattern: two bits against {lowest bit, 1}."""
    e, f = (bits >> 10) - 15, bits & 0x3FF
    if e == 16:
        return math.nan if f else math.inf
    if e == -15:  # subnormal: normalise
        if f == 0:
            return 0.0
        shift = 11 - f.bit_length()
        e, f = -14 - shift, (f << shift) & 0x3FF
    threshold = (f & 1) << 1 | 1
    if e == 15 and f >= 1 << 8:
        return math.inf
    if e < -23:
        return 0.0
    if e == -23:
        return 2.0**-22 if (2 | f >> 9) >= threshold else 0.0
    w = 3 if abs(e) <= 3 else 2 if abs(e) <= 7 else 1 if abs(e) <= 15 else 0
    kept, dropped = divmod(f, 1 << (10 - w))
    up = dropped >> (9 - w) if w == 3 else (dropped >> (8 - w)) >= threshold
    value = Fraction((1 << w) + kept + int(up), 1 << w) * Fraction(2) ** e
    return float(value) if value <= 32768 else math.inf


def test_hifloat8_hybrid_from_float16_for_every_pattern() -> None:
    patterns = np.arange(0x8000, dtype=np.uint16)
    got = decode("HIFLOAT8", encode("HIFLOAT8", patterns.view(np.float16), rounding="hybrid16"))
    np.testing.assert_array_equal(got, [hybrid16_by_hand(p) for p in patterns.tolist()])


def test_hifloat8_saturates_under_hybrid_too() -> None:
    stored = encode("HIFLOAT8", [1e6, -1e6, 32768.0, math.nan], rounding="hybrid", overflow="saturate")
    assert stored.tolist() == [0x6E, 0xEE, 0x6E, 0x00]


def test_ranks_follow_the_values_where_codes_do_not() -> None:
    assert codecs.code_values("HIFLOAT8")[[0x08, 0x10, 0x18]].tolist() == [1, 2, 0.5]
    for name in CODED:
        values, ranks = codecs.code_values(name), codecs.code_rank(name, every_code(name))
        known = ~np.isnan(values)
        order = np.argsort(values[known], kind="stable")
        steps = np.diff(ranks[known][order])
        assert steps.tolist() == (np.diff(values[known][order]) != 0).astype(int).tolist()
        assert (ranks[~known] == -1).all()


# -- packed formats, misuse -------------------------------------------------------------------------------------

@given(hnp.arrays(np.int8, st.tuples(st.integers(0, 3), st.integers(0, 4).map(lambda n: 8 * n)),
                  elements=st.integers(-8, 7)))
def test_packed_int4_round_trip(values: np.ndarray) -> None:
    words = codecs.pack_int4(values)
    assert words.dtype == np.int32 and words.shape == (values.shape[0], values.shape[1] // 8)
    np.testing.assert_array_equal(codecs.unpack_int4(words), values)


def test_packed_int4_has_the_lowest_nibble_first() -> None:
    assert codecs.pack_int4([[1, 2, 3, 4, 5, 6, 7, -8]]).tolist() == [[int(np.uint32(0x87654321).view(np.int32))]]
    assert codecs.unpack_int4(np.array([-1], np.int32)).tolist() == [-1] * 8


@given(hnp.arrays(np.int32, hnp.array_shapes(min_dims=1, max_dims=3, max_side=5)))
def test_every_word_is_eight_int4(words: np.ndarray) -> None:
    np.testing.assert_array_equal(codecs.pack_int4(codecs.unpack_int4(words)), words)


def test_packing_refuses_what_does_not_fit() -> None:
    for wrong in ([8] * 8, [-9] * 8, [0] * 7, [0.5] * 8):
        with pytest.raises(ValueError, match="INT4"):
            codecs.pack_int4(wrong)
    with pytest.raises(ValueError, match="int32"):
        codecs.unpack_int4(np.zeros(4, np.int64))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_dequantisation_scales_in_uint64(value: float) -> None:
    stored = codecs.uint64_scale([value])
    assert stored.dtype == np.uint64 and int(stored[0]) & 0x1FFF == 0 and int(stored[0]) < 1 << 32
    kept = codecs.scale_from_uint64(stored)
    bits = int(np.array([value], np.float32).view(np.uint32)[0])
    assert int(kept.view(np.uint32)[0]) == bits & 0xFFFFE000
    raw = np.array([bits | 0xABCD << 32], np.uint64)
    assert int(codecs.scale_from_uint64(raw).view(np.uint32)[0]) == bits
    assert codecs.scale_from_uint64(raw, drop_low_bits=True).tobytes() == kept.tobytes()


def test_storage_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="BFLOAT16 is stored as uint16, not float32"):
        decode("BFLOAT16", np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"FLOAT4_E2M1 holds 16, outside 0 \.\. 15"):
        decode("FLOAT4_E2M1", np.array([1, 16], np.uint8))
    with pytest.raises(ValueError, match=r"INT4 holds -9, outside -8 \.\. 7"):
        decode("INT4", np.array([-9], np.int8))


def test_combinations_that_do_not_exist_are_refused() -> None:
    for name, arguments in {
        "HIFLOAT8": {"rounding": "rne"}, "FLOAT16": {"rounding": "hybrid"}, "INT8": {"overflow": "special"},
        "FLOAT32": {"overflow": "wrap"}, "BOOL": {"overflow": "wrap"},
    }.items():
        with pytest.raises(ValueError, match=name):
            encode(name, [1.0], **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DTYPES)
def test_shapes_are_kept(name: str) -> None:
    for shape in ((), (0,), (2, 3), (1, 0, 4)):
        stored = encode(name, np.ones(shape))
        assert stored.shape == shape and stored.dtype == DTYPES[name].storage
        assert decode(name, stored).shape == shape and (decode(name, stored) == 1).all()


def test_a_decoded_array_is_a_copy() -> None:
    for name in ("DOUBLE", "INT64", "BOOL", "COMPLEX128"):
        stored = np.zeros(3, DTYPES[name].storage)
        assert not np.shares_memory(decode(name, stored), stored)
