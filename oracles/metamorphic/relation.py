"""What a relation is, and how two sides are compared.

A relation states its condition (``applies``), makes the other call or calls (``transform``) and says which rows must agree
(``sides``). Tolerances: none where the documents promise equal bits (``exact``); else twice the first tolerance of the row gate
(oracles/gate.py) for the output dtype, and where that is not enough twice the error bound of the row, since either side may be
off by as much. Elements that nobody defines are not compared (``Expected.compare``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.codecs import code_rank, encode
from fiafuzz.model.dtypes import FLOAT_QUERY
from fiafuzz.model.scene import Scene
from oracles.gate import SAFETY
from oracles.precision_standards import MIXED_2026_09

from .call import Call, Ran, Rows, rows_of

F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


class Relation:
    """One relation. ``name`` is short and stable, ``title`` says it in words, ``cites`` where it is promised.

    ``exact``: both sides must be equal bit for bit (up to the sign of zero and the payload of NaN).
    """

    name = ""
    title = ""
    cites: tuple[str, ...] = ()
    exact = False

    def applies(self, scene: Scene) -> bool:
        """Whether the relation holds for calls like this one, by the facts of the scene alone."""
        raise NotImplementedError

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        """Candidates for the other call or calls, the preferred ones first; none when the tensors offer no place for the
        change. The first whose calls are all accepted and can be expressed is run."""
        raise NotImplementedError

    def sides(self, first: Ran, others: Sequence[Ran]) -> tuple[Ran, Rows, Rows]:
        """The call whose bounds hold, and the rows of both sides in its order; a missing output is not compared."""
        return first, first.rows, self.restored(first, others)

    def restored(self, first: Ran, others: Sequence[Ran]) -> Rows:
        """The rows of the other call in the order of the first."""
        return others[0].rows

    def compare(self, first: Ran, others: Sequence[Ran]) -> Optional[str]:
        """None when the relation holds, else one line that shows both sides of the worst element."""
        judged, left, right = self.sides(first, others)
        for name in left:
            if name in right:
                found = self._output(judged.call, name, left[name], right[name])
                if found is not None:
                    return f"{found}; the other side: {self.title}"
        return None

    def _output(self, call: Call, name: str, left: Sequence[F64], right: Sequence[F64]) -> Optional[str]:
        compare = rows_of(call, name, call.expected.compare[name])
        bounds: Optional[list[F64]] = None
        worst: tuple[float, str] = (0.0, "")
        for b, (one, other, where) in enumerate(zip(left, right, compare)):
            if one.shape != other.shape:
                return f"{name} of batch {b} has rows of shape {list(one.shape)} and {list(other.shape)}"
            tolerance = self.tolerance(call, name, one, other)
            bad = where & outside(one, other, tolerance)
            if bad.any() and not self.exact:
                bounds = bounds if bounds is not None else _bounds(call, name)
                tolerance = tolerance + 2 * SAFETY * bounds[b]
                bad &= outside(one, other, tolerance)
                bad &= ~_same_code(call.scene, name, one, other)
            if bad.any():
                worst = max(worst, _worst(name, b, one, other, tolerance, bad))
        return worst[1] or None

    def tolerance(self, call: Call, name: str, one: F64, other: F64) -> F64:
        """How far two elements may lie apart at first sight."""
        if self.exact:
            return np.zeros(one.shape)
        size = np.maximum(np.abs(one), np.abs(other))
        size[~np.isfinite(size)] = 0.0
        if name == "softmaxLse":
            usual = MIXED_2026_09["FLOAT32"]
            return np.asarray(2 * (usual.atol + usual.rtol * size))
        dtype = call.scene.out_dtype or ""
        if dtype in FLOAT_QUERY:
            return np.asarray(2 * MIXED_2026_09[dtype].rtol * (min(1.0, call.expected.v_max) + size))
        return np.full(one.shape, 1.0 if dtype == "INT8" else 0.0)


def outside(one: F64, other: F64, tolerance: F64) -> Bool:
    """Where two sides lie farther apart than allowed, or are of another class; two NaN are equal."""
    with np.errstate(invalid="ignore"):
        near = (np.abs(one - other) <= tolerance) & np.isfinite(one) & np.isfinite(other)
        return np.asarray(~(near | (one == other) | (np.isnan(one) & np.isnan(other))))


def _bounds(call: Call, name: str) -> list[F64]:
    limits = call.expected.limits
    bound = limits.worst_lse if name == "softmaxLse" and limits.worst_lse is not None else limits.slack.get(name, limits.bound[name])
    return rows_of(call, name, bound)


def _same_code(scene: Scene, name: str, one: F64, other: F64) -> Bool:
    """8-bit floats: at most one place apart in the order of values."""
    dtype = scene.out_dtype or ""
    if name == "softmaxLse" or dtype in FLOAT_QUERY or dtype == "INT8":
        return np.zeros(one.shape, np.bool_)
    ranks = [np.asarray(code_rank(dtype, encode(dtype, side)), dtype=np.int64) for side in (one, other)]
    return np.asarray(np.abs(ranks[0] - ranks[1]) <= 1)


def _worst(name: str, batch: int, one: F64, other: F64, tolerance: F64, bad: Bool) -> tuple[float, str]:
    with np.errstate(invalid="ignore", divide="ignore"):
        distance = np.where(bad, np.nan_to_num(np.abs(one - other), nan=np.inf, posinf=np.inf), -1.0)
    at = np.unravel_index(int(np.argmax(distance)), distance.shape)
    head, row, *rest = (int(i) for i in at)
    place = f"{name} of batch {batch}, head {head}, row {row}" + "".join(f", column {d}" for d in rest)
    text = f"{place}: {one[at]:.7g} here, {other[at]:.7g} there, {tolerance[at]:.2g} allowed ({int(bad.sum())} of {bad.size} differ)"
    return float(distance[at]), text
