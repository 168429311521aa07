"""What the reference hands over: expected numbers, where they may be compared, and how far a kernel may be off.

Shapes are those of the case's outputs, numbers are float64 before rounding to the output dtype (after it in the
stage-wise form of a quantised output). Sources: spec/numerics.md 3.1, 6.2, 9 and 24, spec/numerics_corrections.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
Stored = NDArray[Any]
Tensors = dict[str, Union[Stored, list[Stored]]]

OUTPUTS: tuple[str, ...] = ("attentionOut", "softmaxLse")

MAX_WORK = 1 << 43
"""Multiply-adds of a case above which the reference refuses to start (about an hour of float64 on one core)."""

MAX_ELEMENTS = 1 << 29
"""Elements of one output above which the reference refuses to start."""


class ReferenceError(ValueError):
    """A case that the reference cannot compute: invalid, malformed or too large. The text is one line."""


@dataclass(frozen=True)
class Alternative:
    """Elements of one output that may hold something else than the expected number.

    ``where`` marks them. ``values`` are the other numbers (same shape, tolerance as for the expected ones);
    ``low`` and ``high`` instead allow any number in [low, high] (spec/numerics.md 24 items 3, 5 and 8).
    """

    where: Bool
    why: str
    values: Optional[F64] = None
    low: float = np.nan
    high: float = np.nan


@dataclass(frozen=True)
class Limits:
    """How far outputs may be off, per output and element (float64, shape of the output, never negative).

    ``bound`` holds for the reference's arithmetic in the operator's working precision; for softmaxLse it is what
    float32 usually does, and ``worst_lse`` the worst case. ``slack``, where it is wider, is for arithmetics that no
    document describes: it judges outputs of which only a part is inside the bound.
    """

    bound: dict[str, F64]
    worst_lse: Optional[F64] = None
    slack: dict[str, F64] = field(default_factory=dict)


@dataclass
class Expected:
    """Expected outputs of one case.

    ``outputs``: float64 arrays by output name; softmaxLse only when softmaxLseFlag is set. ``compare``: where an
    element may be compared at all. ``reasons``: why elements are left out -> how many (both outputs together);
    "untestable" counts elements of rows whose scores lose too much in the working precision. ``alternatives``:
    elements with two allowed values. ``form``: "ideal" (float64 throughout) or "stagewise" (with the roundings
    of the operator's published reference). ``error_bound`` and ``arithmetics`` are worked out at first use.
    """

    outputs: dict[str, F64]
    compare: dict[str, Bool]
    reasons: dict[str, int]
    form: str
    alternatives: dict[str, list[Alternative]] = field(default_factory=dict)
    v_max: float = 1.0
    """Largest magnitude among the value elements in use: the scale of attentionOut before post-quantisation."""
    fixed: Optional[Bool] = None
    """Elements of attentionOut that stand for no computation (padding, no keys, masked rows); None when there are
    none.
    """
    _limits: Optional[Callable[[], Limits]] = None
    _arithmetics: dict[str, Callable[[], dict[str, F64]]] = field(default_factory=dict)
    _benchmark: Optional[Callable[[], dict[str, F64]]] = None

    @cached_property
    def limits(self) -> Limits:
        """How far outputs may be off."""
        if self._limits is None:
            return Limits({name: np.zeros(value.shape) for name, value in self.outputs.items()})
        return self._limits()

    @property
    def error_bound(self) -> dict[str, F64]:
        """Per output, how far a correct kernel may be off per element (same shape, float64, never negative)."""
        return self.limits.bound

    @cached_property
    def benchmark(self) -> dict[str, F64]:
        """The outputs of the same-precision benchmark: stage-wise, rounded to the output dtypes (spec/numerics.md
        21.2).
        """
        return self.outputs if self._benchmark is None else self._benchmark()

    @property
    def arithmetics(self) -> tuple[str, ...]:
        """Names of further documented arithmetics of the operator for this case (order of roundings)."""
        return tuple(self._arithmetics)

    def by(self, arithmetic: str) -> dict[str, F64]:
        """The outputs under one of ``arithmetics``. KeyError for another name."""
        return self._arithmetics[arithmetic]()

    @property
    def untestable(self) -> int:
        """Elements left out because their row is ill-conditioned in the working precision."""
        return self.reasons.get("untestable", 0)
