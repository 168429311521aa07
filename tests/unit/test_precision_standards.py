"""The published criteria on numbers chosen so that each limit is met or just missed."""

from __future__ import annotations

import numpy as np
import pytest

from oracles import precision_standards as ps


def ulp(x):
    return 2.0 ** (np.floor(np.log2(abs(x))) - 10)


def test_names_are_pinned():
    assert list(ps.STANDARDS) == [
        "mixed-2026-09",
        "mixed-2026-06",
        "mere-mare",
        "double-benchmark-L0",
        "double-benchmark-L1",
        "double-benchmark-L2",
        "half-percent",
        "fiafuzz",
    ]
    assert ps.DEFAULT_STANDARD == "mixed-2026-09"


@pytest.mark.parametrize(
    "dtype, rtol, floor",
    [
        ("FLOAT16", 2**-10, 0.1),
        ("BFLOAT16", 2**-7, 0.1),
        ("FLOAT32", 2**-13, 0.01),
        ("FLOAT8_E4M3FN", 2**-3, 1.0),
        ("FLOAT8_E5M2", 2**-2, 1.0),
    ],
)
def test_mixed_of_september(dtype, rtol, floor):
    g = np.full(100, 2.0)
    a = g.copy()
    a[0] += 3 * rtol * 0.999
    assert ps.mixed(ps.MIXED_2026_09, dtype, a, g).failed.sum() == 0
    a[0] = 2 + 3 * rtol * 1.01
    one = ps.mixed(ps.MIXED_2026_09, dtype, a, g)
    assert one.passed and one.failed.sum() == 1, "one per cent may be off"
    a[1] = a[0]
    assert not ps.mixed(ps.MIXED_2026_09, dtype, a, g).passed
    limit = max(floor, 32 * ps.unit_in_last_place(dtype, 2.0))
    a = g.copy()
    a[0] += limit * 1.01
    assert not ps.mixed(ps.MIXED_2026_09, dtype, a, g).passed, "no element may be beyond the limit"


def test_mixed_of_june_has_other_numbers():
    g, a = np.full(1, 1.0), np.full(1, 1 + 1.5 * 2**-9)
    assert not ps.mixed(ps.MIXED_2026_09, "FLOAT16", a, g).passed
    assert ps.mixed(ps.MIXED_2026_06, "FLOAT16", a, g).passed
    assert ps.MIXED_2026_06["FLOAT32"].atol == 2**-16 and ps.MIXED_2026_06["BFLOAT16"].floor == 1.0


def test_mixed_specials_pass_in_equal_pairs_only():
    g = np.array([1e6, np.inf, np.nan, 1.0])  # 1e6 is inf in FLOAT16
    assert ps.mixed(ps.MIXED_2026_09, "FLOAT16", np.array([np.inf, np.inf, np.nan, 1.0]), g).passed
    for a in ([65504.0, np.inf, np.nan, 1], [np.inf, -np.inf, np.nan, 1], [np.inf, np.inf, 0, 1], [np.inf, np.inf, np.nan, np.nan]):
        assert not ps.mixed(ps.MIXED_2026_09, "FLOAT16", np.array(a), g).passed
    assert ps.mixed(ps.MIXED_2026_09, "FLOAT16", np.zeros(0), np.zeros(0)).passed


def test_unit_in_last_place():
    assert ps.unit_in_last_place("FLOAT16", 1.5) == 2**-10
    assert ps.unit_in_last_place("FLOAT16", -4096.0) == 4
    assert ps.unit_in_last_place("FLOAT16", 1e-7) == 2**-24 == ps.unit_in_last_place("FLOAT16", 0.0)
    assert ps.unit_in_last_place("BFLOAT16", 1.0) == 2**-7


def test_mere_mare():
    g = np.full(1000, 1.0)
    a = g * (1 + 0.9 * 2**-10)
    assert ps.mere_mare("FLOAT16", a, g).passed
    assert not ps.mere_mare("FLOAT16", g * (1 + 1.1 * 2**-10), g).passed, "the mean"
    a = g.copy()
    a[0] = 1 + 10.1 * 2**-10
    assert not ps.mere_mare("FLOAT16", a, g).passed, "the largest"
    a[0] = 1 + 9.9 * 2**-10
    assert ps.mere_mare("FLOAT16", a, g).passed
    small = np.full(1000, 2.0**-12)
    off = small.copy()
    off[:2] += 2.0**-15
    assert ps.mere_mare("FLOAT16", off, small).passed
    off[2] += 2.0**-15
    assert not ps.mere_mare("FLOAT16", off, small).passed, "three small values off"


@pytest.mark.parametrize("level, limits", [("L0", (10, 2, 2)), ("L1", (5, 1.5, 1.5)), ("L2", (2, 1.2, 1.2))])
def test_double_benchmark_ratios(level, limits):
    assert ps.LEVELS[level] == limits
    g = np.full(1000, 1.0)
    t = g + np.where(np.arange(1000) % 2, 1.0, -1.0) * 2.0**-9
    for factor, passes in ((limits[1] * 0.99, True), (limits[1] * 1.05, False)):
        assert ps.double_benchmark(level, "FLOAT16", g + factor * (t - g), g, t).passed == passes
    a = t.copy()
    a[0] = 1 + limits[0] * 0.98 * 2.0**-9
    assert ps.double_benchmark(level, "FLOAT16", a, g, t).passed
    a[0] = 1 + limits[0] * 1.1 * 2.0**-9
    assert not ps.double_benchmark(level, "FLOAT16", a, g, t).passed


def test_double_benchmark_floor_small_values_and_specials():
    g = np.full(100, 1.0)
    a = g.copy()
    a[0] = 1 + 1.9 * 2.0**-11
    assert ps.double_benchmark("L2", "FLOAT16", a, g, g).passed, "an exact benchmark counts as half a unit"
    small = np.full(100, 2.0**-13)
    a = small.copy()
    a[:2] += 2.0**-14
    assert ps.double_benchmark("L0", "FLOAT16", a, small, small).passed
    a[2] += 2.0**-14
    assert not ps.double_benchmark("L0", "FLOAT16", a, small, small).passed
    g, t = np.array([1.0, 1e6]), np.array([1.0, 65504.0])
    assert ps.double_benchmark("L0", "FLOAT16", np.array([1.0, np.inf]), g, t).passed, "class of the reference"
    assert ps.double_benchmark("L0", "FLOAT16", np.array([1.0, 65504.0]), g, t).passed, "class of the benchmark"
    assert not ps.double_benchmark("L0", "FLOAT16", np.array([1.0, np.nan]), g, t).passed


def test_half_percent():
    g = np.full(1000, 1.0)
    a = g.copy()
    a[:5] = 1.1
    assert ps.half_percent("FLOAT16", a, g).passed
    a[5] = 1.1
    assert not ps.half_percent("FLOAT16", a, g).passed
    assert ps.half_percent("BFLOAT16", np.full(10, 1.0078), np.full(10, 1.0)).passed
    assert not ps.half_percent("FLOAT16", np.full(10, 1.0078), np.full(10, 1.0)).passed
    wrong = g.copy()
    wrong[0] = np.nan
    assert not ps.half_percent("FLOAT16", wrong, g).passed
    assert ps.half_percent("FLOAT16", np.zeros(0), np.zeros(0)).passed


def test_integers_may_be_one_code_off():
    g = np.array([1.4, -2.6, 126.9])
    assert ps.within_codes(np.array([2.0, -4.0, 127.0]), g).passed
    found = ps.within_codes(np.array([3.0, -3.0, 127.0]), g)
    assert not found.passed and found.failed.tolist() == [True, False, False]


def test_hifloat8_counts_places_in_value_order():
    g = np.array([0.98, 1.0, 1.0, 20.0])
    beside = np.array([0x1F, 0x1F, 0x09, 0x42], np.uint8)  # 0.9375, 0.9375, 1.125, 24
    assert ps.within_ranks("HIFLOAT8", beside, g, 0.0).passed
    assert not ps.within_ranks("HIFLOAT8", np.array([0x1E], np.uint8), np.array([1.0]), 0.0).passed
    assert not ps.within_ranks("HIFLOAT8", np.array([0x80], np.uint8), np.array([1.0]), 0.0).passed, "NaN"
    many = np.full(2000, 0x08, np.uint8)
    many[:2] = 0x10
    assert ps.within_ranks("HIFLOAT8", many, np.ones(2000), 0.001).passed
    many[2] = 0x10
    assert not ps.within_ranks("HIFLOAT8", many, np.ones(2000), 0.001).passed
