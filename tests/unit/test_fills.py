"""Fills: what each kind promises, for every dtype that it suits, and the default of every parameter."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fiafuzz.model import streams
from fiafuzz.model.case import (
    Attrs,
    Band,
    Bernoulli,
    Case,
    CaseError,
    ColumnsFrom,
    Constant,
    Fill,
    Grid,
    Inputs,
    Normal,
    Patch,
    Patched,
    TensorSpec,
    Triu,
    Uniform,
)
from fiafuzz.model.codecs import decode, scale_from_uint64, unpack_int4
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.fills import DEFAULTS, PACKED_PARAMETERS, default_fill
from fiafuzz.model.parameters import TENSOR_INPUTS, TENSOR_LISTS
from fiafuzz.model.tensors import materialize_one

REAL = [d.name for d in DTYPES.values() if d.is_float]
WHOLE = [d.name for d in DTYPES.values() if d.is_integer]
PLAIN = "learnableSink"  # a parameter without packed or pattern carriers


def case_with(name: str, spec: TensorSpec, seed: int = 7, **attrs: object) -> Case:
    value = (spec,) if name in TENSOR_LISTS else spec
    return Case(seed=seed, inputs=Inputs(**{name: value}), attrs=Attrs(numHeads=1, **attrs))  # type: ignore[arg-type]


def stored(dtype: str, fill: Fill, shape: tuple[int, ...] = (64, 50), name: str = PLAIN, seed: int = 7) -> np.ndarray:
    return materialize_one(case_with(name, TensorSpec(shape, dtype, fill=fill), seed), name)


def numbers(dtype: str, fill: Fill, shape: tuple[int, ...] = (64, 50), name: str = PLAIN, seed: int = 7) -> np.ndarray:
    return decode(dtype, stored(dtype, fill, shape, name, seed))


# -- streams ------------------------------------------------------------------------------------------------------

def splitmix64(key: int, i: int) -> int:
    """Word i by Python integers."""
    mask = (1 << 64) - 1
    z = (key + (i + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return z ^ z >> 31


def test_splitmix64_gives_the_published_first_words() -> None:
    # The generator with seed 1234567, as printed in the usual test vectors.
    expected = [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
    ]
    assert [splitmix64(1234567, i) for i in range(5)] == expected
    assert streams.words(1234567, 0, 5).tolist() == expected


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 1 << 40), st.integers(0, 40))
def test_words_are_a_function_of_key_and_place(key: int, start: int, count: int) -> None:
    assert streams.words(key, start, count).tolist() == [splitmix64(key, start + i) for i in range(count)]


@pytest.mark.parametrize("width", [16, 32, 64])
@given(st.integers(0, (1 << 64) - 1), st.integers(0, 3000))
@settings(max_examples=20, deadline=None)
def test_lanes_are_the_words_from_the_lowest_bits_on(width: int, key: int, size: int) -> None:
    out = np.zeros(size, np.uint64)
    streams.fill_from(out, key, width, lambda lanes, part: np.copyto(part, lanes))
    per_word = 64 // width
    expected = [splitmix64(key, i // per_word) >> (width * (i % per_word)) & ((1 << width) - 1) for i in range(size)]
    assert out.tolist() == expected


def test_chunks_leave_no_seam() -> None:
    out = np.zeros(streams.CHUNK * 4 + 3, np.uint16)
    streams.fill_from(out, 5, 16, lambda lanes, part: np.copyto(part, lanes))
    for i in (streams.CHUNK * 4 - 1, streams.CHUNK * 4, streams.CHUNK * 4 + 2):
        assert int(out[i]) == splitmix64(5, i // 4) >> (16 * (i % 4)) & 0xFFFF


# -- random fills -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", [*REAL, *WHOLE])
@given(low=st.integers(-60, 60), size=st.integers(0, 40))
@settings(max_examples=15, deadline=None)
def test_grid_has_exactly_its_points(dtype: str, low: int, size: int) -> None:
    fmt = DTYPES[dtype]
    fill = Grid(low / 8, (low + size) / 8)
    if fmt.is_integer:
        points = [n for n in range(math.ceil(fill.low), math.floor(fill.high) + 1) if fmt.lowest <= n <= fmt.max_finite]
    else:
        wanted = [k / 8 for k in range(low, low + size + 1) if fmt.lowest <= k / 8 <= fmt.max_finite]
        from fiafuzz.model.codecs import encode
        points = sorted({abs(x) and x for x in decode(dtype, encode(dtype, wanted)).tolist()})
    if not points:
        with pytest.raises(CaseError, match="does not suit"):
            numbers(dtype, fill)
        return
    assert np.unique(numbers(dtype, fill)).tolist() == points


def test_grid_is_even_over_its_points() -> None:
    values, counts = np.unique(numbers("FLOAT16", Grid(), (1000, 330)), return_counts=True)
    assert values.tolist() == [k / 8 for k in range(-16, 17)]
    assert abs(counts - 10000).max() < 5 * math.sqrt(10000)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("INT32", -(2**31), 2**31 - 1), ("INT64", -(2**63), 2**63), ("UINT64", 0, 2**64), ("INT32", -70000, 70000),
     ("FLOAT32", -100000, 100000), ("DOUBLE", -1e12, 1e12), ("FLOAT16", -1e6, 1e6)],
)
def test_wide_grids(dtype: str, low: float, high: float) -> None:
    fmt = DTYPES[dtype]
    values = numbers(dtype, Grid(low, high), (4096,))
    bottom, top = max(low, fmt.lowest), min(high, fmt.max_finite)
    assert all(bottom <= v <= top for v in values.tolist())
    if dtype == "FLOAT16":  # eighths below 128, rounded above
        assert np.isfinite(values).all()
    elif not fmt.is_integer:
        assert (values * 8 % 1 == 0).all()
    # Both halves and both quarters at the ends are visited.
    span = float(top) - float(bottom)
    places = np.array([(float(v) - float(bottom)) / span for v in values.tolist()])
    assert abs(np.histogram(places, 4, (0, 1))[0] - 1024).max() < 5 * math.sqrt(1024)


def test_grid_of_packed_int4_speaks_of_nibbles() -> None:
    for name in sorted(PACKED_PARAMETERS):
        nibbles = unpack_int4(stored("INT32", Grid(-2, 2), (32, 8), name))
        assert np.unique(nibbles).tolist() == [-2, -1, 0, 1, 2]
        nibbles = unpack_int4(stored("INT32", Grid(-100, 100), (64, 8), name))
        values, counts = np.unique(nibbles, return_counts=True)
        assert values.tolist() == list(range(-8, 8)) and counts.min() > 150
        nibbles = unpack_int4(stored("INT32", Grid(-7, 7), (64, 8), name))
        assert np.unique(nibbles).tolist() == list(range(-7, 8))
    assert np.unique(numbers("INT32", Grid(-2, 2), name="pseShift")).tolist() == [-2, -1, 0, 1, 2]


def test_grid_of_scales_in_e8m0_has_powers_of_two() -> None:
    assert np.unique(numbers("FLOAT8_E8M0", Grid())).tolist() == [0.125, 0.25, 0.5, 1, 2]
    assert np.unique(numbers("FLOAT8_E8M0", Grid(3, 100))).tolist() == [4, 8, 16, 32, 64]
    with pytest.raises(CaseError, match=r"a grid from 3 to 3.5 does not suit FLOAT8_E8M0"):
        numbers("FLOAT8_E8M0", Grid(3, 3.5))


@pytest.mark.parametrize("dtype", ["FLOAT16", "BFLOAT16", "FLOAT32", "DOUBLE", "FLOAT8_E4M3FN", "HIFLOAT8"])
@given(low=st.floats(-1000, 1000), width=st.floats(0, 1000))
@settings(max_examples=20, deadline=None)
def test_uniform_stays_inside_up_to_rounding(dtype: str, low: float, width: float) -> None:
    fmt = DTYPES[dtype]
    values = numbers(dtype, Uniform(low, low + width), (500,))
    high = low + width
    # Half a step of the format; HIFLOAT8 has a fraction bit or two less farther out.
    slack = max(abs(low), abs(high), fmt.min_normal) * (0.5 if fmt.tapered else fmt.epsilon) + 1e-9
    bottom, top = (min(max(x, fmt.lowest), fmt.max_finite) for x in (low, high))
    assert (values >= bottom - slack).all() and (values <= top + slack).all()


def test_uniform_is_uniform_and_exact() -> None:
    values = numbers("DOUBLE", Uniform(-1, 1), (40000,))
    assert abs(np.histogram(values, 10, (-1, 1))[0] - 4000).max() < 5 * math.sqrt(4000)
    key = streams.stream_key(7, PLAIN, 0)
    for i in (0, 1, 777):
        lane = splitmix64(key, i // 2) >> (32 * (i % 2)) & 0xFFFFFFFF
        assert Fraction(values[i]) == Fraction(lane, 1 << 31) - 1
    assert np.unique(numbers("INT8", Uniform(-2, 2))).tolist() == [-2, -1, 0, 1, 2]
    assert np.unique(numbers("FLOAT8_E8M0", Uniform(0.5, 4))).tolist() == [0.5, 1, 2, 4]
    assert np.unique(numbers("FLOAT32", Uniform(0.75, 0.75))).tolist() == [0.75]


def test_uniform_over_the_whole_range_of_a_format_is_finite() -> None:
    for dtype in ("FLOAT16", "BFLOAT16", "FLOAT32", "DOUBLE"):
        fmt = DTYPES[dtype]
        values = numbers(dtype, Uniform(float(fmt.lowest), float(fmt.max_finite)), (2000,))
        widest = min(float(fmt.max_finite), 2.0**1000)  # DOUBLE is cut off there
        counts = np.histogram(values / widest, 4, (-1, 1))[0]
        assert counts.sum() == 2000 and abs(counts - 500).max() < 5 * math.sqrt(500)


def test_normal_is_normal() -> None:
    values = numbers("DOUBLE", Normal(), (200_000,))
    assert abs(values.mean()) < 0.01 and abs(values.std() - 1) < 0.01
    assert abs((values**3).mean()) < 0.03 and abs((values**4).mean() - 3) < 0.2
    # Shares within one, two and three deviations.
    for distance, share in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        assert abs((abs(values) < distance).mean() - share) < 0.005
    assert abs(values).max() < 5.7
    assert np.unique(values).size > 0.8 * values.size / (1 + values.size / 2**23)
    shifted = numbers("DOUBLE", Normal(3, 0.5), (200_000,))
    np.testing.assert_allclose(shifted, values * 0.5 + 3, rtol=1e-12)
    whole = numbers("INT8", Normal(100, 50), (2000,))
    assert whole.max() == 127 and whole.min() < 0


def normal_by_hand(word: int) -> Fraction:
    """The twelve nibbles and the fraction of a word, before scaling."""
    return sum((Fraction(word >> 4 * i & 15) for i in range(12)), Fraction(0)) * 65536 + (word >> 48)


def test_normal_is_the_sum_that_it_says() -> None:
    key = streams.stream_key(7, PLAIN, 0)
    values = numbers("DOUBLE", Normal(0, 1), (600,))
    scale = 65536 * math.sqrt(255 + 1 / 12)
    for i in (0, 1, 599):
        exact = float(normal_by_hand(splitmix64(key, i)) - 90 * 65536 - Fraction(65535, 2)) * (1.0 / scale)
        assert values[i] == exact


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0, 1e-7])
def test_bernoulli(p: float) -> None:
    for dtype in ("BOOL", "INT8", "UINT8", "FLOAT16", "BFLOAT16"):
        values = numbers(dtype, Bernoulli(p), (200, 200)).astype(float)
        assert set(np.unique(values)) <= {0.0, 1.0}
        assert abs(values.sum() - 40000 * p) <= 5 * math.sqrt(40000 * p * (1 - p))


def test_bernoulli_compares_a_lane_with_p_exactly() -> None:
    key = streams.stream_key(7, PLAIN, 0)
    lanes = [splitmix64(key, i // 2) >> (32 * (i % 2)) & 0xFFFFFFFF for i in range(50)]
    for threshold in (lanes[3], lanes[3] + 1):
        values = numbers("INT8", Bernoulli(threshold / 2**32), (50,))
        assert values.tolist() == [int(lane < threshold) for lane in lanes]


# -- fills by position ---------------------------------------------------------------------------------------------

SHAPES = st.lists(st.integers(0, 7), min_size=2, max_size=4).map(tuple)
BIG = st.one_of(st.integers(-9, 9), st.sampled_from([-(1 << 40), 1 << 40, -2147483647, 2147483647, (1 << 63) - 1]))


@given(SHAPES, BIG)
@settings(deadline=None)
def test_triu_by_definition(shape: tuple[int, ...], diagonal: int) -> None:
    values = numbers("FLOAT16", Triu(diagonal, "-inf", 2.5), shape)
    for place in np.ndindex(shape):
        assert values[place] == (-math.inf if place[-1] - place[-2] >= diagonal else 2.5)


@given(SHAPES, BIG, BIG)
@settings(deadline=None)
def test_band_by_definition(shape: tuple[int, ...], pre: int, nxt: int) -> None:
    values = numbers("BOOL", Band(pre, nxt), shape)
    for place in np.ndindex(shape):
        assert values[place] == (not -pre <= place[-1] - place[-2] <= nxt)


@given(SHAPES, st.lists(BIG, min_size=1, max_size=4).map(tuple))
@settings(deadline=None)
def test_columns_from_by_definition(shape: tuple[int, ...], start: tuple[int, ...]) -> None:
    values = numbers("INT8", ColumnsFrom(start), shape)
    for place in np.ndindex(shape):
        assert values[place] == int(place[-1] >= start[min(place[0], len(start) - 1)])


RANGES = st.one_of(st.none(), st.tuples(st.integers(0, 9), st.integers(0, 9)))


@given(
    st.tuples(st.integers(0, 6), st.integers(0, 6)),
    st.lists(st.tuples(RANGES, RANGES, st.integers(-5, 5)), max_size=4),
)
@settings(deadline=None)
def test_patched_by_definition(shape: tuple[int, int], patches: list[tuple[object, object, int]]) -> None:
    base = Grid()
    fill = Patched(base, tuple(Patch((a, b), v) for a, b, v in patches))  # type: ignore[arg-type]
    expected = numbers("FLOAT16", base, shape)
    for place in np.ndindex(shape):
        for *ranges, value in patches:
            if all(r is None or r[0] <= i < r[1] for r, i in zip(ranges, place)):  # type: ignore[index]
                expected[place] = value
    assert np.array_equal(numbers("FLOAT16", fill, shape), expected)


def test_patching_a_shared_triangle_leaves_it_alone() -> None:
    triangle = Triu(1)
    before = stored("BOOL", triangle, (2048, 2048)).copy()
    patched = stored("BOOL", Patched(triangle, (Patch(((0, 1), None), 1),)), (2048, 2048))
    assert patched[0].all() and patched.flags.writeable
    assert np.array_equal(stored("BOOL", triangle, (2048, 2048)), before) and not before[0, 0]


def test_patches_patch_patches() -> None:
    inner = Patched(Constant(1), (Patch(((0, 2),), 2),))
    outer = Patched(inner, (Patch(((1, 3),), "inf"), Patch((None,), 0)))
    assert numbers("FLOAT16", Patched(inner, outer.patches[:1]), (4,)).tolist() == [2, math.inf, math.inf, 1]
    assert numbers("FLOAT16", outer, (4,)).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("dtype", "value", "bits"),
    [("FLOAT16", "nan", 0x7E00), ("FLOAT16", "-inf", 0xFC00), ("BFLOAT16", 1.0, 0x3F80), ("FLOAT16", -0.0, 0x8000),
     ("FLOAT16", 0.0, 0), ("FLOAT8_E4M3FN", 448, 0x7E), ("FLOAT8_E8M0", 1, 127), ("HIFLOAT8", "inf", 0x6F),
     ("INT8", -1, 0xFF), ("UINT64", (1 << 64) - 1, (1 << 64) - 1), ("INT64", (1 << 53) + 1, (1 << 53) + 1),
     ("FLOAT4_E2M1", -6, 15)],
)
def test_constants(dtype: str, value: object, bits: int) -> None:
    array = stored(dtype, Constant(value), (2, 3))  # type: ignore[arg-type]
    assert array.view(f"u{array.itemsize}").tolist() == [[bits] * 3] * 2
    assert array.flags.writeable


# -- misfits --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(
    ("dtype", "fill", "message", "path"),
    [
        ("FLOAT16", Grid(2, -2), "a grid from 2 to -2 does not suit FLOAT16", ""),
        ("FLOAT16", Grid(0.01, 0.02), "a grid from 0.01 to 0.02 does not suit", ""),
        ("UINT8", Grid(-3, -1), "does not suit UINT8", ""),
        ("FLOAT16", Grid(-math.inf, 2), "bounds must be finite", ""),
        ("DOUBLE", Grid(-1e300, 1e300), r"more than 2\*\*53 points", ""),
        ("FLOAT16", Uniform(1, 0), "uniform from 1 to 0 is empty", ""),
        ("BOOL", Uniform(), "uniform from -1 to 1 does not suit BOOL", ""),
        ("FLOAT8_E8M0", Uniform(), "does not suit FLOAT8_E8M0", ""),
        ("FLOAT8_E8M0", Normal(), "normal with mean 0 and deviation 1 does not suit FLOAT8_E8M0", ""),
        ("FLOAT16", Normal(0, -1), "does not suit FLOAT16", ""),
        ("FLOAT16", Normal(math.nan), "bounds must be finite", ""),
        ("INT8", Bernoulli(1.5), r"probability 1.5 is outside 0 \.\. 1", ".p"),
        ("INT8", Bernoulli(math.nan), "probability nan is outside", ".p"),
        ("FLOAT8_E8M0", Bernoulli(), "FLOAT8_E8M0 cannot hold 0", ""),
        ("INT8", Constant(128), "INT8 cannot hold 128", ".value"),
        ("INT8", Constant(0.5), "INT8 cannot hold 0.5", ".value"),
        ("INT8", Constant("nan"), "INT8 cannot hold nan", ".value"),
        ("FLOAT16", Constant(65520), "FLOAT16 cannot hold 65520", ".value"),
        ("FLOAT8_E4M3FN", Constant("inf"), "FLOAT8_E4M3FN cannot hold inf", ".value"),
        ("FLOAT4_E2M1", Constant("nan"), "FLOAT4_E2M1 cannot hold nan", ".value"),
        ("FLOAT16", Constant(10**400), "FLOAT16 cannot hold an integer of over 128 bits", ".value"),
        ("INT64", Constant(1 << 63), "INT64 cannot hold 9223372036854775808", ".value"),
        ("BOOL", Constant(2), "BOOL cannot hold 2", ".value"),
        ("FLOAT8_E8M0", Triu(), "FLOAT8_E8M0 cannot hold 0", ".outside"),
        ("BOOL", Triu(1, 3), "BOOL cannot hold 3", ".inside"),
        ("BOOL", ColumnsFrom(()), "needs at least one start", ".start"),
        ("FLOAT16", Patched(Grid(), (Patch((None,), 1),)), "1 ranges for 2 axes", ".patches[0].at"),
        ("FLOAT16", Patched(Grid(), (Patch((None, (-1, 2)), 1),)), r"range -1 \.\. 2 begins or ends below 0",
         ".patches[0].at[1]"),
        ("FLOAT16", Patched(Grid(2, 1), ()), "a grid from 2 to 1", ".base"),
        ("INT8", Patched(Grid(), (Patch((None, None), 999),)), "INT8 cannot hold 999", ".patches[0].value"),
    ],
)
def test_misfits_name_their_place(dtype: str, fill: Fill, message: str, path: str) -> None:
    with pytest.raises(CaseError, match=message) as caught:
        stored(dtype, fill)
    assert caught.value.path == f"$.inputs.{PLAIN}.fill{path}"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fill", [Triu(), Band(), ColumnsFrom()])
def test_fills_by_position_need_two_axes(fill: Fill) -> None:
    with pytest.raises(CaseError, match="needs two axes, not 1"):
        stored("BOOL", fill, (5,))


# -- patterns -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["deqScale1", "deqScale2"])
def test_fills_of_uint64_scales_are_float32_patterns(name: str) -> None:
    for fill, expected in ((Constant(0.5), 0.5), (Grid(0.25, 0.25), 0.25), (Uniform(3, 3), 3.0)):
        array = stored("UINT64", fill, (5,), name)
        assert array.dtype == np.uint64 and scale_from_uint64(array).tolist() == [expected] * 5
        assert not (array & np.uint64(0x1FFF)).any()
    assert (stored("UINT64", Uniform(1, 2), (100,), name) & np.uint64(0x1FFF) == 0).all()
    assert stored("UINT64", Constant(3), (2,), "pseShift").tolist() == [3, 3]
    with pytest.raises(CaseError, match="FLOAT32 cannot hold 1e\\+60"):
        stored("UINT64", Constant(1e60), (1,), name)


# -- defaults -------------------------------------------------------------------------------------------------------

def full_case(query: str, key: str, **specs: TensorSpec) -> Case:
    data = TensorSpec((2, 4, 8, 16), key)
    inputs = Inputs(query=TensorSpec((2, 4, 8, 16), query), key=(data,), value=(data,))
    return Case(inputs=inputs, attrs=Attrs(numHeads=4)).replace(**specs)


def values_of(case: Case, name: str) -> np.ndarray:
    spec = getattr(case.inputs, name)
    spec = spec[0] if isinstance(spec, tuple) else spec
    array = materialize_one(case, name)
    if spec.dtype == "UINT64":
        return scale_from_uint64(array).astype(np.float64)
    return (unpack_int4(array) if spec.dtype == "INT32" else decode(spec.dtype, array)).astype(np.float64)


def test_every_tensor_input_has_a_default_with_a_reason() -> None:
    assert set(DEFAULTS) == {*TENSOR_INPUTS, *TENSOR_LISTS}
    assert all(default.why for default in DEFAULTS.values())


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_defaults_never_fail_on_an_odd_dtype(name: str, dtype: str) -> None:
    for shape in ((), (3,), (2, 0), (2, 16)):
        array = materialize_one(case_with(name, TensorSpec(shape, dtype)), name)
        assert array.shape == shape and array.dtype == DTYPES[dtype].storage
        values = decode(dtype, array)
        assert np.isfinite(values).all()


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "FLOAT8_E8M0"])
def test_default_data_fills_its_range(dtype: str) -> None:
    for name in ("query", "key", "value", "keySharedPrefix", "queryRope", "learnableSink"):
        values = decode(dtype, materialize_one(case_with(name, TensorSpec((80, 80), dtype)), name)).real.astype(float)
        if dtype == "INT32" and name in PACKED_PARAMETERS:
            assert values.min() < -2e9 and values.max() > 2e9
        elif dtype in ("INT8", "INT4") and name != "queryRope":
            assert (values.min(), values.max()) == (DTYPES[dtype].lowest, DTYPES[dtype].max_finite)
        else:
            low, high = max(-2, float(DTYPES[dtype].lowest)), min(2, float(DTYPES[dtype].max_finite))
            assert (values.min(), values.max()) == (low, high)


@pytest.mark.parametrize(
    ("dtype", "scale", "low", "high"),
    [("INT8", "FLOAT16", 2**-7, 2**-6), ("INT8", "BFLOAT16", 2**-7, 2**-6), ("INT4", "FLOAT32", 1 / 8, 1 / 4),
     ("INT32", "FLOAT16", 1 / 8, 1 / 4), ("FLOAT8_E4M3FN", "FLOAT32", 0.5, 1), ("HIFLOAT8", "FLOAT16", 0.5, 1),
     ("FLOAT4_E2M1", "FLOAT8_E8M0", 0.25, 1), ("FLOAT8_E4M3FN", "FLOAT8_E8M0", 0.25, 1)],
)
def test_default_data_times_default_scale_is_of_order_one(dtype: str, scale: str, low: float, high: float) -> None:
    for name in ("antiquantScale", "keyAntiquantScale", "valueAntiquantScale"):
        case = full_case("FLOAT16", dtype, **{name: TensorSpec((400,), scale)})
        scales = values_of(case, name)
        assert (scales.min(), scales.max()) == (low, high)
        largest = abs(values_of(case, "key")).max() * high
        assert 1.5 <= largest <= 2
    case = full_case(dtype, dtype, dequantScaleQuery=TensorSpec((400,), scale))
    scales = values_of(case, "dequantScaleQuery")
    assert (scales.min(), scales.max()) == (low, high)


def test_default_scales_follow_their_own_tensor() -> None:
    case = full_case("INT8", "FLOAT8_E4M3FN", dequantScaleQuery=TensorSpec((400,), "FLOAT32"),
                     keyAntiquantScale=TensorSpec((400,), "FLOAT32"), valueAntiquantScale=TensorSpec((400,), "FLOAT32"))
    case = case.replace(value=(TensorSpec((2, 4, 8, 16), "INT4"),))
    highest = [values_of(case, n).max() for n in ("dequantScaleQuery", "keyAntiquantScale", "valueAntiquantScale")]
    assert highest == [2**-6, 1, 1 / 4]


@pytest.mark.parametrize("carrier", ["FLOAT32", "UINT64"])
def test_defaults_of_per_tensor_full_quantisation_fit_together(carrier: str) -> None:
    one = TensorSpec((1,), carrier)
    case = full_case("INT8", "INT8", deqScale1=one, deqScale2=one, quantScale1=TensorSpec((1,), "FLOAT32"))
    assert values_of(case, "quantScale1").tolist() == [127]
    assert 2**-12 <= values_of(case, "deqScale1")[0] <= 2**-11
    # deqScale2 has to undo quantScale1 and brings the scale of value, 1/64.
    assert values_of(case, "deqScale2")[0] * 127 == pytest.approx(1 / 64, rel=1e-3)
    # Scores stay far from the clamp at 65504 for any D up to 512.
    assert 128 * 128 * 512 * 2**-11 < 65504
    case = full_case("FLOAT8_E4M3FN", "FLOAT8_E4M3FN", deqScale1=one, deqScale2=one,
                     quantScale1=TensorSpec((1,), "FLOAT32"))
    assert values_of(case, "quantScale1")[0] * values_of(case, "deqScale2")[0] == 1
    assert values_of(case, "quantScale1")[0] == 128 and 0.5 <= values_of(case, "deqScale1")[0] <= 1


def test_default_rope_beside_an_int8_query_is_pre_divided() -> None:
    rope = TensorSpec((40, 40), "BFLOAT16")
    assert abs(values_of(full_case("INT8", "INT8", queryRope=rope, keyRope=rope), "queryRope")).max() == 2 * 2**13
    assert abs(values_of(full_case("INT8", "INT8", queryRope=rope, keyRope=rope), "keyRope")).max() == 2
    for query in ("BFLOAT16", "FLOAT8_E4M3FN", "HIFLOAT8"):
        assert abs(values_of(full_case(query, query, queryRope=rope), "queryRope")).max() == 2


def test_default_masks() -> None:
    for shape in ((2048, 2048), (1, 2048, 2048), (1, 1, 2048, 2048)):
        for dtype in ("BOOL", "INT8", "UINT8"):
            array = materialize_one(case_with("attenMask", TensorSpec(shape, dtype)), "attenMask")
            assert array.shape == shape and array.dtype == DTYPES[dtype].storage
            assert np.array_equal(array.reshape(2048, 2048), np.triu(np.ones((2048, 2048), array.dtype), 1))
    for shape in ((2, 2048, 2048), (2048, 2047), (1, 1, 1, 2048, 2048)):
        assert not materialize_one(case_with("attenMask", TensorSpec(shape, "BOOL")), "attenMask").any()


def test_default_pse_is_slopes_for_alibi() -> None:
    for pse_type, dtype, low, high in (
        (0, "FLOAT16", -2, 2), (2, "FLOAT32", 1 / 16, 1 / 8), (3, "FLOAT32", 1 / 16, 1 / 8),
    ):
        case = case_with("pseShift", TensorSpec((500,), dtype), pseType=pse_type)
        values = decode(dtype, materialize_one(case, "pseShift"))
        assert (values.min(), values.max()) == (low, high)


def test_default_block_table_names_every_block_once_and_none_outside() -> None:
    cache = TensorSpec((6, 16, 8), "FLOAT16")
    table = TensorSpec((2, 3), "INT32")
    case = Case(inputs=Inputs(key=(cache,), value=(cache,), blockTable=table), attrs=Attrs(numHeads=1))
    assert materialize_one(case, "blockTable").tolist() == [[0, 1, 2], [3, 4, 5]]
    wide = case.replace(blockTable=TensorSpec((2, 4), "INT32"))
    assert materialize_one(wide, "blockTable").tolist() == [[0, 1, 2, 3], [4, 5, 0, 1]]
    alone = case_with("blockTable", table)
    assert materialize_one(alone, "blockTable").tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("name", ["quantOffset2", "antiquantOffset", "keyAntiquantOffset", "valueAntiquantOffset",
                                  "queryPaddingSize", "kvPaddingSize"])
def test_default_offsets_and_paddings_are_zero(name: str) -> None:
    for dtype in ("FLOAT16", "BFLOAT16", "FLOAT32", "INT64"):
        assert not materialize_one(case_with(name, TensorSpec((7,), dtype)), name).any()


def test_a_default_is_the_same_as_the_fill_written_out() -> None:
    spec = TensorSpec((40,), "FLOAT16")
    case = case_with("query", spec)
    fill = default_fill(case, "query", spec)
    assert fill == Grid()
    explicit = case_with("query", TensorSpec((40,), "FLOAT16", fill=Grid()))
    assert materialize_one(case, "query").tobytes() == materialize_one(explicit, "query").tobytes()
