"""Judging the outputs of one run against the expected ones; see ``precision`` for what is judged and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.case import Case
from fiafuzz.model.codecs import decode
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.scene import Scene

from .gate import Gate, Gated, gate_of
from .poison import holds_poison
from .precision_standards import (
    DEFAULT_STANDARD,
    F64,
    MIXED_2026_06,
    MIXED_2026_09,
    STANDARDS,
    Bool,
    Measured,
    double_benchmark,
    half_percent,
    mere_mare,
    mixed,
    within_codes,
    within_ranks,
)
from .reference.expected import Expected

WORST = 8
"""Failing elements that a record spells out."""

_QUANTISED = ("INT8", "HIFLOAT8")


@dataclass(frozen=True)
class ElementRecord:
    """One failing element: its index, what was expected, what the output holds, and how far off it might have been."""

    index: tuple[int, ...]
    expected: float
    got: float
    allowed: float


@dataclass
class OutputRecord:
    """What was found about one output.

    ``compared``, ``excluded``, ``failing``, ``unwritten``, ``nonfinite``: elements. ``worst``: failing ones, worst first.
    ``ratio``: largest |a - g| / tolerance. ``figures``: what the standard measured.
    ``arithmetic``: the order of roundings that fits, "" for the reference's own.
    """

    name: str
    dtype: str = ""
    compared: int = 0
    excluded: int = 0
    failing: int = 0
    unwritten: int = 0
    nonfinite: int = 0
    worst: list[ElementRecord] = field(default_factory=list)
    ratio: float = 0.0
    standard_passed: bool = True
    figures: dict[str, float] = field(default_factory=dict)
    arithmetic: str = ""
    problem: str = ""


@dataclass
class Judgement:
    """The verdict on the outputs of one run.

    ``code``: None when passed, else F101 wrong values, F102 non-finite, F103 shape or dtype, F104 left unwritten.
    ``standard_passed``: the letter of the standard. ``gate_passed``: the row gate. ``error_ratio``: the largest
    distance in units of its tolerance, for a search that climbs it. ``outputs``: one record per output, in order.
    """

    passed: bool
    code: Optional[str]
    standard: str
    standard_passed: bool
    gate_passed: bool
    outputs: list[OutputRecord]
    compared: int = 0
    excluded: int = 0
    untestable: int = 0
    error_ratio: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """One line: the verdict and the worst element."""
        head = "pass" if self.passed else f"{self.code}"
        parts = []
        for record in self.outputs:
            if record.problem:
                parts.append(f"{record.name}: {record.problem}")
            elif record.failing:
                worst = record.worst[0]
                parts.append(
                    f"{record.name}: {record.failing} of {record.compared} elements off, worst at {list(worst.index)}: "
                    f"expected {worst.expected:.6g}, got {worst.got:.6g}, allowed {worst.allowed:.3g}"
                )
            elif not record.standard_passed:
                figures = ", ".join(f"{k} {v:.4g}" for k, v in record.figures.items())
                parts.append(f"{record.name}: {self.standard} fails ({figures})")
        if not parts:
            parts.append(f"{self.compared} elements compared, {self.excluded} left out")
        return f"{head}: " + "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The judgement as plain data (inf and NaN as floats)."""
        own = {k: v for k, v in vars(self).items() if k != "outputs"}
        records = [{**vars(r), "worst": [{**vars(w), "index": list(w.index)} for w in r.worst]} for r in self.outputs]
        return {**own, "summary": self.summary, "outputs": records}


def judge_outputs(
    case: Case,
    scene: Scene,
    expected: Expected,
    outputs: Mapping[str, NDArray[Any]],
    standard: str = DEFAULT_STANDARD,
    *,
    lone: bool = False,
) -> Judgement:
    """Judge outputs (storage arrays by name) of a case by a standard and by the row gate.

    ``lone`` also reports a single element of lse that is off where all others are exact (see ``gate``): for outputs
    that somebody dumped, not for kernels whose exp is known to be quick. ValueError for an unknown standard. Outputs
    that the case does not ask for are not looked at.
    """
    if standard not in STANDARDS:
        raise ValueError(f"unknown precision standard {standard!r}; known: {', '.join(STANDARDS)}")
    records = []
    gate_passed = standard_passed = passed = True
    for name, wanted in expected.outputs.items():
        spec = scene.tensor(name)
        dtype = spec.dtype if spec is not None else "FLOAT32"
        record = OutputRecord(name, dtype)
        records.append(record)
        compare = expected.compare[name]
        record.excluded = int(compare.size - np.count_nonzero(compare))
        record.compared = compare.size - record.excluded
        stored = outputs.get(name)
        record.problem = _form_fault(name, dtype, wanted, stored)
        if record.problem or stored is None:
            passed = gate_passed = standard_passed = False
            continue
        numbers = np.asarray(decode(dtype, stored), dtype=np.float64)
        gated = gate_of(scene, expected, name, dtype, stored, numbers, lone=lone).judge()
        _fill(record, dtype, gated, stored, numbers)
        measured = _measure(standard, scene, expected, name, dtype, stored, numbers, gated)
        record.figures, record.standard_passed = measured.figures, measured.passed
        gate_passed &= record.failing == 0
        standard_passed &= measured.passed
        passed &= record.failing == 0 and (measured.passed or _explained(standard, measured, gated))
    judgement = Judgement(
        passed,
        None,
        standard,
        standard_passed,
        gate_passed,
        records,
        sum(r.compared for r in records),
        sum(r.excluded for r in records),
        expected.untestable,
        max((r.ratio for r in records), default=0.0),
        dict(expected.reasons),
    )
    judgement.code = None if passed else _code(records)
    return judgement


def _form_fault(name: str, dtype: str, wanted: F64, stored: Optional[NDArray[Any]]) -> str:
    if stored is None:
        return "output is missing"
    if stored.shape != wanted.shape:
        return f"shape {list(stored.shape)} instead of {list(wanted.shape)}"
    storage = np.dtype(DTYPES[dtype].storage)
    if stored.dtype != storage:
        return f"stored as {stored.dtype} instead of {storage} ({dtype})"
    return ""


def _fill(record: OutputRecord, dtype: str, gated: Gated, stored: NDArray[Any], numbers: F64) -> None:
    record.ratio, record.arithmetic = gated.ratio, gated.arithmetic
    failing = gated.failing
    record.failing = int(np.count_nonzero(failing))
    if not record.failing:
        return
    at = np.flatnonzero(failing)
    got, want = numbers.reshape(-1)[at], gated.expected.reshape(-1)[at]
    allowed = np.broadcast_to(gated.allowed, numbers.shape).reshape(-1)[at]
    record.unwritten = int(np.count_nonzero(holds_poison(dtype, stored).reshape(-1)[at]))
    record.nonfinite = int(np.count_nonzero(~np.isfinite(got) & np.isfinite(want)))
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = np.nan_to_num(np.abs(got - want) / np.maximum(allowed, 1e-30), nan=np.inf)
    for i in np.argsort(-excess, kind="stable")[:WORST]:
        index = tuple(int(n) for n in np.unravel_index(at[i], numbers.shape))
        record.worst.append(ElementRecord(index, float(want[i]), float(got[i]), float(allowed[i])))


def _measure(
    standard: str,
    scene: Scene,
    expected: Expected,
    name: str,
    dtype: str,
    stored: NDArray[Any],
    numbers: F64,
    gated: Gated,
) -> Measured:
    """The standard's criterion for one output, over the elements that may be compared (spec/numerics.md 23)."""
    if standard == "fiafuzz":
        return Measured(not gated.failing.any())
    if gated.clear and standard.startswith("mixed") and (name == "softmaxLse" or DTYPES[dtype].bits == 16):
        # The first tolerance of the gate lies inside that of both standards, and inside their limits.
        return Measured(True, {"share": 1.0})
    chosen: Bool = expected.compare[name] & ~gated.alternative
    fixed = expected.fixed if name == "attentionOut" else None
    if fixed is not None:
        chosen = chosen & ~fixed
    a, g = numbers[chosen], gated.expected[chosen]
    if dtype == "INT8":
        return _at(chosen, within_codes(a, g))
    if dtype == "HIFLOAT8":
        return _at(chosen, within_ranks(dtype, stored[chosen], g, 0.001))
    if standard.startswith("double-benchmark"):
        t = expected.benchmark[name][chosen]
        return _at(chosen, double_benchmark(standard[-2:], dtype, a, g, t))
    if standard == "mere-mare":
        return _at(chosen, mere_mare(dtype, a, g))
    if name == "softmaxLse" and standard != "half-percent":
        return _at(chosen, _lse_criterion(a, g))
    if standard == "half-percent" or (scene.quant_kind == "full" and not dtype.startswith("FLOAT8")):
        # The operator's own tests compare with a reference that rounds as it does.
        found = half_percent(dtype, a, g)
        if not found.passed and expected.form == "ideal":
            rounded = half_percent(dtype, a, expected.benchmark[name][chosen])
            found = rounded if rounded.passed else found
        return _at(chosen, found)
    return _at(chosen, mixed(MIXED_2026_06 if standard == "mixed-2026-06" else MIXED_2026_09, dtype, a, g))


def _lse_criterion(a: F64, g: F64) -> Measured:
    """lse: |a - g| <= 1e-3 + 2**-10 |g|, specials by class (spec/numerics.md 23: a proposal, no official number)."""
    with np.errstate(invalid="ignore"):
        off = np.where(a == g, 0.0, np.abs(a - g))
        failed = ~(off <= 1e-3 + 2.0**-10 * np.where(np.isfinite(g), np.abs(g), 0.0))
    return Measured(not failed.any(), {"max_abs": float(np.nan_to_num(off, nan=np.inf).max(initial=0.0))}, failed)


def _at(chosen: Bool, measured: Measured) -> Measured:
    """Spread the marks of compared elements over the whole output."""
    if measured.failed is not None:
        marks = np.zeros(chosen.shape, np.bool_)
        marks[chosen] = measured.failed
        measured.failed = marks
    return measured


def _explained(standard: str, measured: Measured, gated: Gated) -> bool:
    """Whether a standard fails only for elements that the working precision explains (mixed tolerance and the 8-bit
    rules).
    """
    return standard.startswith("mixed") and measured.failed is not None and not (measured.failed & ~gated.inside).any()


def _code(records: list[OutputRecord]) -> str:
    if any(r.problem for r in records):
        return "F103"
    failing = sum(r.failing for r in records)
    unwritten = sum(r.unwritten for r in records)
    # One byte may hold the pattern by chance; four such elements hardly do.
    narrow = any(r.unwritten and DTYPES[r.dtype].bits <= 8 for r in records)
    if unwritten and 2 * unwritten >= failing and (unwritten >= 4 or not narrow):
        return "F104"
    return "F102" if any(r.nonfinite for r in records) else "F101"


__all__ = ["ElementRecord", "Gate", "Judgement", "OutputRecord", "judge_outputs"]
