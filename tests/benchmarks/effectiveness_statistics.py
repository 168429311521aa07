"""Statistics of bench_effectiveness.py: how soon a fault is found by two tools, where "not found" is an answer too.

A run that has not found a fault within its cases counts as later than every run that has (infinity). Ranks need no more than that:
neither the Mann-Whitney test nor A12 asks by how much. Medians do not invent a number either: they are infinite as soon as the
middle is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from scipy.stats import mannwhitneyu

ALPHA = 0.05
CLASSES: tuple[tuple[float, str], ...] = ((0.21, "large"), (0.14, "medium"), (0.06, "small"), (0.0, "negligible"))
"""Least distance of A12 from 1/2, and what Vargha and Delaney (2000) call it: 0.71, 0.64 and 0.56."""


def censored_median(values: Sequence[float]) -> float:
    """The median; infinite when a value in the middle is. ValueError without values."""
    return float(median(values))


def p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided p of the Mann-Whitney U test, normal approximation with corrections for ties and continuity; 1 when all values
    are the same. ValueError when a side is empty."""
    if not first or not second:
        raise ValueError("no values")
    return float(mannwhitneyu(first, second, method="asymptotic").pvalue)


def a12(first: Sequence[float], second: Sequence[float]) -> float:
    """Vargha and Delaney's A12: how likely a value of ``first`` is less than one of ``second``, ties counting half. ValueError when
    a side is empty."""
    if not first or not second:
        raise ValueError("no values")
    less = sum((a < b) + 0.5 * (a == b) for a in first for b in second)
    return less / (len(first) * len(second))


def size_class(effect: float) -> str:
    """What an A12 is called: negligible, small, medium or large."""
    distance = abs(effect - 0.5)
    return next(name for least, name in CLASSES if distance >= least - 1e-12)
