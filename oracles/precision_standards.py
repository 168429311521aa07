"""The published precision criteria, each under a pinned name, as functions of operator output, reference and benchmark.

a is the operator's output, g the reference, t a same-precision benchmark. Several texts of the same standard exist with
different numbers, so a name carries the month of its text (spec/numerics.md 21, 22).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.codecs import code_rank, decode, encode
from fiafuzz.model.dtypes import DTYPES

F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

FLOATS: tuple[str, ...] = ("FLOAT16", "BFLOAT16", "FLOAT32", "FLOAT8_E4M3FN", "FLOAT8_E5M2")


@dataclass(frozen=True)
class Tolerance:
    """|a - g| <= atol + rtol * |g| per element, and max |a - g| <= max(floor, 32 units of the output dtype)."""

    rtol: float
    atol: float
    floor: float


MIXED_2026_09: Mapping[str, Tolerance] = MappingProxyType(
    {
        "FLOAT16": Tolerance(2.0**-10, 2.0**-10, 0.1),
        "BFLOAT16": Tolerance(2.0**-7, 2.0**-7, 0.1),
        "FLOAT32": Tolerance(2.0**-13, 2.0**-13, 0.01),
        "FLOAT8_E4M3FN": Tolerance(2.0**-3, 2.0**-3, 1.0),
        "FLOAT8_E5M2": Tolerance(2.0**-2, 2.0**-2, 1.0),
    }
)
MIXED_2026_06: Mapping[str, Tolerance] = MappingProxyType(
    {
        "FLOAT16": Tolerance(2.0**-9, 2.0**-9, 0.1),
        "BFLOAT16": Tolerance(2.0**-6, 2.0**-6, 1.0),
        "FLOAT32": Tolerance(2.0**-10, 2.0**-16, 0.01),
        "FLOAT8_E4M3FN": Tolerance(2.0**-2, 2.0**-4, 1.0),
        "FLOAT8_E5M2": Tolerance(2.0**-1, 2.0**-3, 0.1),
    }
)
RELATIVE: Mapping[str, float] = MappingProxyType(
    {
        "FLOAT16": 2.0**-10,
        "BFLOAT16": 2.0**-7,
        "FLOAT32": 2.0**-13,
        "FLOAT8_E4M3FN": 2.0**-3,
        "FLOAT8_E5M2": 2.0**-2,
    }
)
"""Threshold of the mean relative error; the largest relative error may be ten times as much."""

SMALL: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "FLOAT16": (2.0**-11, 2.0**-16),
        "BFLOAT16": (2.0**-8, 2.0**-16),
        "FLOAT32": (2.0**-14, 2.0**-30),
        "FLOAT8_E4M3FN": (2.0**-4, 2.0**-6),
        "FLOAT8_E5M2": (2.0**-3, 2.0**-5),
    }
)
"""Small-value domain: elements with |g| below the first number are counted as errors where |a - g| exceeds the
second.
"""

FLOOR: Mapping[str, float] = MappingProxyType(
    {
        "FLOAT16": 2.0**-11,
        "BFLOAT16": 2.0**-8,
        "FLOAT32": 2.0**-14,
        "FLOAT8_E4M3FN": 2.0**-4,
        "FLOAT8_E5M2": 2.0**-3,
    }
)
"""Least metric of the benchmark in the ratios of the double benchmark."""

LEVELS: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {
        "L0": (10.0, 2.0, 2.0),
        "L1": (5.0, 1.5, 1.5),
        "L2": (2.0, 1.2, 1.2),
    }
)
"""Largest allowed ratios of maximum relative error, mean relative error and root mean square."""


@dataclass(frozen=True)
class Standard:
    """One criterion under its pinned name. ``benchmark`` says that it needs t."""

    name: str
    title: str
    cite: str
    benchmark: bool = False


STANDARDS: Mapping[str, Standard] = MappingProxyType(
    {
        s.name: s
        for s in (
            Standard("mixed-2026-09", "mixed tolerance, text of September 2026", "spec/numerics.md 21.1 v3"),
            Standard("mixed-2026-06", "mixed tolerance, text of June 2026", "spec/numerics.md 21.1 v2"),
            Standard("mere-mare", "mean and largest relative error, text until June 2026", "spec/numerics.md 21.1 v1"),
            Standard(
                "double-benchmark-L0",
                "ratios to a same-precision benchmark, level L0",
                "spec/numerics.md 21.2-21.4",
                True,
            ),
            Standard(
                "double-benchmark-L1",
                "ratios to a same-precision benchmark, level L1",
                "spec/numerics.md 21.2-21.4",
                True,
            ),
            Standard(
                "double-benchmark-L2",
                "ratios to a same-precision benchmark, level L2",
                "spec/numerics.md 21.2-21.4",
                True,
            ),
            Standard("half-percent", "0.5 % rule of the operator's own tests", "spec/numerics.md 22"),
            Standard("fiafuzz", "the row gate alone: every element inside its own bound", "oracles/precision.py"),
        )
    }
)
DEFAULT_STANDARD = "mixed-2026-09"


@dataclass
class Measured:
    """What a standard says about one output: ``passed``, its figures, and the elements that it calls failed (flat
    marks).
    """

    passed: bool
    figures: dict[str, float] = field(default_factory=dict)
    failed: Optional[Bool] = None
    note: str = ""


def unit_in_last_place(dtype: str, value: float) -> float:
    """Distance between neighbours of a float format at the magnitude of ``value``."""
    fmt = DTYPES[dtype]
    if not np.isfinite(value) or value == 0:
        return fmt.min_subnormal
    exponent = max(int(np.floor(np.log2(abs(value)))), fmt.min_exponent)
    return float(2.0 ** (exponent - fmt.mantissa_bits))


def rounded_to(dtype: str, values: F64) -> F64:
    """Numbers rounded to a float format (to inf beyond its range) and back."""
    return np.asarray(decode(dtype, encode(dtype, values)), dtype=np.float64)


def same_class(a: F64, g: F64) -> Bool:
    """Whether two numbers are of one class: finite, +inf, -inf or NaN."""
    return np.asarray((np.isfinite(a) & np.isfinite(g)) | (np.isnan(a) & np.isnan(g)) | (np.isinf(a) & (a == g)))


def mixed(table: Mapping[str, Tolerance], dtype: str, a: F64, g: F64) -> Measured:
    """Mixed tolerance: 99 % of the elements inside, and none farther off than the limit (spec/numerics.md 21.1)."""
    tol = table[dtype]
    if not a.size:
        return Measured(True)
    low = rounded_to(dtype, g)
    finite = np.isfinite(a) & np.isfinite(low)
    with np.errstate(invalid="ignore"):
        off = np.abs(a - g)
        good = np.where(finite, off <= tol.atol + tol.rtol * np.abs(g), same_class(a, low) & ~np.isfinite(a))
    share = float(good.mean())
    worst, limit = 0.0, tol.floor
    if finite.any():
        at = int(np.argmax(np.where(finite, off, -1.0)))
        worst = float(off[at])
        limit = max(tol.floor, 32 * unit_in_last_place(dtype, float(low[at])))
    return Measured(share >= 0.99 and worst <= limit, {"share": share, "max_abs": worst, "limit": limit}, ~good)


def mere_mare(dtype: str, a: F64, g: F64) -> Measured:
    """Mean and largest relative error below Th and 10 Th; elements of the small-value domain are counted instead.

    At most two small elements may be off, as without a benchmark its count is taken as one (spec/numerics.md 21.1 v1,
    21.3).
    """
    low = rounded_to(dtype, g)
    good = same_class(a, low)
    figures, failed = {"special": float((~good).sum())}, ~good
    finite = np.isfinite(a) & np.isfinite(low)
    small_limit, small_error = SMALL[dtype]
    with np.errstate(invalid="ignore"):
        off = np.abs(a - g)
        small = finite & (np.abs(g) < small_limit)
        big = finite & ~small
        relative = np.where(big, off / (np.abs(g) + 1e-7), 0.0)
        count = small & (off > small_error)
    threshold = RELATIVE[dtype]
    mean = float(relative[big].mean()) if big.any() else 0.0
    largest = float(relative.max(initial=0.0))
    figures.update(mere=mean, mare=largest, threshold=threshold, small=float(count.sum()))
    failed = failed | (relative >= 10 * threshold) | count
    passed = bool(good.all()) and mean < threshold and largest < 10 * threshold and int(count.sum()) <= 2
    return Measured(passed, figures, failed)


def double_benchmark(level: str, dtype: str, a: F64, g: F64, t: F64) -> Measured:
    """Ratios of the metrics of a and t against g, small-value domain and special values included (spec/numerics.md
    21.2-21.4).
    """
    low = rounded_to(dtype, g)
    good = same_class(a, low) | same_class(a, t)
    finite = np.isfinite(a) & np.isfinite(low) & np.isfinite(t)
    small_limit, small_error = SMALL[dtype]
    with np.errstate(invalid="ignore"):
        small = finite & (np.abs(g) < small_limit)
        big = finite & ~small
        mine, theirs = np.abs(a - g), np.abs(t - g)
    figures: dict[str, float] = {"special": float((~good).sum())}
    passed = bool(good.all())
    if big.any():
        scale = np.abs(g[big]) + 1e-7
        floor = FLOOR[dtype]
        for name, limit, mine_of, theirs_of in (
            ("max_ratio", LEVELS[level][0], (mine[big] / scale).max(), (theirs[big] / scale).max()),
            ("mean_ratio", LEVELS[level][1], (mine[big] / scale).mean(), (theirs[big] / scale).mean()),
            ("rms_ratio", LEVELS[level][2], np.sqrt((mine[big] ** 2).mean()), np.sqrt((theirs[big] ** 2).mean())),
        ):
            figures[name] = float(mine_of / max(float(theirs_of), floor))
            figures[f"{name}_limit"] = limit
            passed &= figures[name] <= limit
    with np.errstate(invalid="ignore"):
        counted = small & (mine > small_error)
        reference = int((small & (theirs > small_error)).sum())
    figures["small_ratio"] = float(counted.sum() / max(reference, 1))
    passed &= figures["small_ratio"] <= 2
    with np.errstate(invalid="ignore"):
        failed = ~good | counted | (big & (mine / (np.abs(g) + 1e-7) > LEVELS[level][0] * FLOOR[dtype]))
    return Measured(passed, figures, failed)


def half_percent(dtype: str, a: F64, g: F64) -> Measured:
    """Share of close elements at least 99.5 % and the rest below 10 in relative error (spec/numerics.md 22)."""
    rtol, atol = (2.0**-7, 1e-4) if dtype == "BFLOAT16" else (0.005, 2.5e-5)
    if not a.size:
        return Measured(True)
    low = rounded_to(dtype, g) if dtype in DTYPES and DTYPES[dtype].is_float else g
    good = same_class(a, low)
    finite = np.isfinite(a) & np.isfinite(low)
    with np.errstate(invalid="ignore"):
        off = np.abs(a - low)
        close = np.where(finite, off <= atol + rtol * np.abs(low), good)
        rest = np.where(finite & ~close, off / (np.maximum(np.maximum(np.abs(a), np.abs(low)), 0.01220703) + 1e-10), 0.0)
    share, worst = float(close.mean()), float(rest.max(initial=0.0))
    return Measured(bool(good.all()) and share >= 0.995 and worst < 10, {"share": share, "max_relative": worst}, ~close)


def within_codes(a: F64, g: F64) -> Measured:
    """Quantised integers: no element more than one code off (spec/numerics.md 21.2)."""
    with np.errstate(invalid="ignore"):
        off = np.abs(a - np.rint(g))
    failed = ~(off <= 1)
    return Measured(not failed.any(), {"max_codes": float(off.max(initial=0.0)), "share_exact": _share(off == 0)}, failed)


def within_ranks(dtype: str, stored: NDArray[Any], g: F64, share_off: float) -> Measured:
    """8-bit floats: at most one place off in value order, but for a small share (spec/numerics.md 23)."""
    rank = code_rank(dtype, stored).astype(np.int64)
    wanted = code_rank(dtype, encode(dtype, g, overflow="saturate")).astype(np.int64)
    off = np.abs(rank - wanted)
    failed = (off > 1) | (rank < 0)
    return Measured(_share(failed) <= share_off, {"max_ranks": float(off.max(initial=0)), "share_off": _share(failed)}, failed)


def _share(marks: Bool) -> float:
    return float(marks.mean()) if marks.size else 0.0
