"""The row gate: every element of an output inside its own tolerance (see ``precision``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.codecs import code_rank, code_values, encode
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.scene import Scene

from .precision_standards import F64, MIXED_2026_09, Bool
from .reference.expected import Alternative, Expected

SAFETY = 2.0
"""Factor on the rigorous bound."""

FITS, FEWEST = 0.9, 10
"""Share (and number) of elements that must fit an order of roundings before the rest counts as wrong for not fitting
it.
"""

LONE, LONE_OF = 12.0, 4
"""How many times farther off than all others a lone element of lse must be, and of how many elements."""


@dataclass
class Gated:
    """What the gate says about one output, arrays in its shape.

    ``failing``: outside. ``inside``: not failing. ``alternative``: held an allowed alternative. ``allowed``: the
    tolerance in force (may broadcast). ``expected``: what it was compared with. ``ratio``: largest |a - g| /
    tolerance, at most 1 when nothing fails.
    """

    failing: Bool
    alternative: Bool
    allowed: F64
    expected: F64
    ratio: float
    arithmetic: str = ""
    clear: bool = True
    """Whether every compared element was inside its first tolerance."""

    @property
    def inside(self) -> Bool:
        """Elements that passed or were not compared."""
        return ~self.failing


class Gate:
    """The gate for float outputs: tolerances are absolute distances."""

    def __init__(self, scene: Scene, expected: Expected, name: str, dtype: str, numbers: F64, lone: bool = False) -> None:
        self.lone = lone
        self.scene, self.expected, self.name, self.dtype, self.numbers = scene, expected, name, dtype, numbers
        self.wanted = expected.outputs[name]
        self.compare = expected.compare[name]
        with np.errstate(invalid="ignore"):
            self.distance: F64 = np.abs(numbers - self.wanted)
        self.fixed = expected.fixed if name == "attentionOut" else None

    # ---- to be replaced for coded outputs ----------------------------------------------------------

    def near(self, wanted: F64) -> F64:
        """The first tolerance of every element."""
        if self.name == "softmaxLse":
            usual = MIXED_2026_09["FLOAT32"]
            return np.asarray(usual.atol + usual.rtol * np.abs(wanted))
        rtol = MIXED_2026_09[self.dtype].rtol
        tolerance = np.abs(wanted)
        tolerance += min(1.0, self.expected.v_max)
        tolerance *= rtol
        if self.fixed is not None:
            tolerance[self.fixed] = 0.0
        return tolerance

    def outside(self, wanted: F64, tolerance: F64) -> Bool:
        """Elements farther from ``wanted`` than ``tolerance``, or of another class."""
        distance = self.distance if wanted is self.wanted else np.abs(self.numbers - wanted)
        inside = distance <= tolerance
        inside &= distance < np.inf  # the tolerance of an infinite number is infinite
        found: Bool = ~inside
        if found.any():
            found &= self.numbers != wanted
        return found

    def ratio(self, wanted: F64, tolerance: F64, chosen: Bool) -> float:
        """Largest |a - g| / tolerance over the chosen elements; inf for another class."""
        distance = self.distance if wanted is self.wanted else np.abs(self.numbers - wanted)
        ratio = distance / tolerance
        found = float(ratio.max(initial=0.0))
        if not math.isfinite(found) or not chosen.all():
            ratio[self.numbers == wanted] = 0.0
            found = float(ratio[chosen].max(initial=0.0))
        return found if found == found else math.inf

    def wide(self, wanted: F64, near: F64) -> F64:
        """The tolerance with the rigorous bound."""
        limits = self.expected.limits
        if self.name == "softmaxLse":
            # The bound of lse is what float32 usually does; kernels with a quick exp are farther off.
            return np.maximum(near, SAFETY * limits.worst_lse) if limits.worst_lse is not None else near
        bound = SAFETY * limits.bound[self.name]
        if self.fixed is not None:
            bound = np.where(self.fixed, 0.0, bound)
        return np.maximum(near, bound)

    def widest(self, near: F64) -> Optional[F64]:
        """The tolerance for an arithmetic that no document describes, None when there is no wider one."""
        slack = self.expected.limits.slack.get(self.name)
        return None if slack is None else np.maximum(near, SAFETY * slack)

    # ---- the steps ---------------------------------------------------------------------------------

    @np.errstate(all="ignore")
    def judge(self) -> Gated:
        """Apply the conditions in order of their cost."""
        near = self.near(self.wanted)
        failing = self.outside(self.wanted, near) & self.compare
        result = Gated(failing, np.zeros(failing.shape, np.bool_), near, self.wanted, self.ratio(self.wanted, near, self.compare))
        if failing.any():
            result.clear = False
            self.look_closer(result)
        if self.lone and not result.failing.any():
            self.lone_outlier(result)
        if not result.failing.any():
            result.ratio = min(result.ratio, 1.0)
        return result

    def look_closer(self, result: Gated) -> None:
        """Alternatives, the rigorous bound, and other orders of rounding for what is outside the first tolerance."""
        for alternative in self.expected.alternatives.get(self.name, ()):
            result.alternative |= result.failing & self.fits(alternative)
        result.failing &= ~result.alternative
        if result.failing.any():
            result.allowed = self.wide(self.wanted, result.allowed)
            result.failing &= self.outside(self.wanted, result.allowed)
            if result.failing.any():
                self.by_arithmetic(result)
        result.ratio = self.ratio(result.expected, result.allowed, self.compare & ~result.alternative)

    def fits(self, alternative: Alternative) -> Bool:
        """Elements that hold an allowed alternative."""
        if alternative.values is None:
            found: Bool = (self.numbers >= alternative.low) & (self.numbers <= alternative.high)
        else:
            tolerance = self.near(alternative.values)
            found = ~self.outside(alternative.values, tolerance)
        return found & alternative.where

    def by_arithmetic(self, result: Gated) -> None:
        """Try the documented orders of rounding; the one that fits nearly all elements judges the rest.

        When none fits, the arithmetic is not a documented one and the wider ``slack`` judges.
        """
        compared = int(np.count_nonzero(self.compare))
        best, share = result, 1 - np.count_nonzero(result.failing) / max(compared, 1)
        for name in self.expected.arithmetics:
            wanted = self.expected.by(name)[self.name]
            allowed = self.wide(wanted, self.near(wanted))
            failing = self.outside(wanted, allowed) & self.compare & ~result.alternative
            fits = 1 - np.count_nonzero(failing) / max(compared, 1)
            if fits > share:
                best, share = Gated(failing, result.alternative, allowed, wanted, 0.0, name), fits
            if not failing.any():
                break
        if best.failing.any() and (share < FITS or compared < FEWEST):
            widest = self.widest(result.allowed)
            if widest is not None:
                failing = self.outside(self.wanted, widest) & self.compare & ~result.alternative
                best = Gated(failing, result.alternative, widest, self.wanted, 0.0)
        result.failing, result.allowed, result.expected, result.arithmetic = (
            best.failing,
            best.allowed,
            best.expected,
            best.arithmetic,
        )

    def lone_outlier(self, result: Gated) -> None:
        """Fail the one element of lse that is outside its usual bound while all others are far inside.

        A float32 kernel is off everywhere or nowhere, so a lone distance is a wrong row. Kernels that take a quick
        exp for long rows only can look the same, therefore this step is on request.
        """
        chosen = self.compare & np.isfinite(self.wanted) & np.isfinite(self.numbers)
        if np.count_nonzero(chosen) < LONE_OF:
            return
        distance = np.where(chosen, np.abs(np.where(chosen, self.numbers, 0.0) - np.where(chosen, self.wanted, 0.0)), 0.0)
        at = int(np.argmax(distance))
        worst = float(distance.reshape(-1)[at])
        second = float(np.partition(distance.reshape(-1), -2)[-2])
        if worst < LONE * second or worst <= 2.0**-21 * (4 + abs(float(self.wanted.reshape(-1)[at]))):
            return
        bound = self.expected.error_bound[self.name]
        if worst > float(bound.reshape(-1)[at]):
            result.failing.reshape(-1)[at] = True
            result.allowed = np.where(result.failing, bound, result.allowed)


class IntegerGate(Gate):
    """INT8: within one code of the number before rounding; rows without a result exactly."""

    def near(self, wanted: F64) -> F64:
        """One code."""
        tolerance = np.ones(wanted.shape)
        if self.fixed is not None:
            tolerance[self.fixed & (wanted == np.rint(wanted))] = 0.0
        return tolerance

    def wide(self, wanted: F64, near: F64) -> F64:
        """One code and the bound of the number before rounding."""
        bound = SAFETY * self.expected.error_bound[self.name]
        if self.fixed is not None:
            bound = np.where(self.fixed, 0.0, bound)
        return np.asarray(near + bound)


class CodeGate(Gate):
    """8-bit floats: at most one place off in value order, counted from the codes that the bound can reach."""

    def __init__(self, scene: Scene, expected: Expected, name: str, dtype: str, numbers: F64, stored: NDArray[Any]) -> None:
        super().__init__(scene, expected, name, dtype, numbers)
        self.rank = code_rank(dtype, stored)

    def near(self, wanted: F64) -> F64:
        """No distance at all beside the one place."""
        return np.zeros(wanted.shape)

    def ratio(self, wanted: F64, tolerance: F64, chosen: Bool) -> float:
        """Largest distance in units of the tolerance and one and a half places."""
        places = np.unique(code_values(self.dtype)[np.isfinite(code_values(self.dtype))])
        gaps = np.diff(places)
        at = np.clip(np.searchsorted(places, wanted), 1, gaps.size)
        step = np.maximum(gaps[at - 1], gaps[np.minimum(at, gaps.size - 1)])
        return super().ratio(wanted, tolerance + 1.5 * step, chosen)

    def wide(self, wanted: F64, near: F64) -> F64:
        """The bound of the number before rounding."""
        return np.asarray(SAFETY * self.expected.error_bound[self.name])

    def outside(self, wanted: F64, tolerance: F64) -> Bool:
        """More than one place outside the codes of [wanted - tolerance, wanted + tolerance]."""
        low, high = self._rank_of(wanted - tolerance) - 1, self._rank_of(wanted + tolerance) + 1
        found: Bool = (self.rank < np.maximum(low, 0)) | (self.rank > high)
        if self.fixed is not None:
            found |= self.fixed & (self.numbers != wanted) & (wanted == 0)
        return found

    def _rank_of(self, numbers: F64) -> NDArray[np.int32]:
        return code_rank(self.dtype, encode(self.dtype, numbers, overflow="saturate"))


def gate_of(scene: Scene, expected: Expected, name: str, dtype: str, stored: NDArray[Any], numbers: F64, *, lone: bool = False) -> Gate:
    """The gate for one output; ``numbers`` are the decoded ``stored`` elements."""
    if name == "softmaxLse" or DTYPES[dtype].bits > 8:
        return Gate(scene, expected, name, dtype, numbers, lone and name == "softmaxLse")
    if DTYPES[dtype].is_integer:
        return IntegerGate(scene, expected, name, dtype, numbers)
    return CodeGate(scene, expected, name, dtype, numbers, stored)
