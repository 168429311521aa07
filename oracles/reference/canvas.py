"""The output arrays of a case while they are filled, and views of them in the order of the computation."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.layouts import lse_shape, tensor_shape
from fiafuzz.model.scene import Scene

from .expected import F64, Alternative, Bool, ReferenceError
from .problem import Problem, Run
from .storage import heads_first

COMPUTED, PADDED, NO_KEYS, DEAD = 0, 1, 2, 3
"""What a row is: computed, outside the valid part, without any key, or fully masked."""


def output_shape(problem: Problem) -> tuple[int, ...]:
    """Shape of attentionOut under the layout; ReferenceError when the case gives another one."""
    p = problem
    shape = tensor_shape(p.layout.output, B=p.B, S=p.rows, N=p.Q_N, D=p.V_D, T=p.rows)
    given = p.scene.shape("attentionOut")
    if given is not None and given != shape:
        raise ReferenceError(f"attentionOut of shape {given} instead of {shape}")
    return shape


class Canvas:
    """attentionOut and softmaxLse with what may be compared of them; rows start as padding (0 and +inf).

    ``out`` and ``lse`` are in output layout, float64; ``out_rows`` (B, Q_N, Q_S, V_D) or (Q_N, T, V_D), ``lse_rows``
    and ``state`` (the same without the last axis) are views or arrays in the order of the computation.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        p = problem
        self.out: F64 = np.zeros(output_shape(p))
        self.out_rows = self.rows_of(self.out)
        self.lse_on = p.scene.lse_on
        packed = p.scene.packed
        shape = (p.Q_N, p.rows) if packed else (p.B, p.Q_N, p.rows)
        self.state: NDArray[np.int8] = np.full(shape, PADDED, np.int8)
        self.lse: F64 = np.full(lse_shape(p.layout, B=p.B, N=p.Q_N, S=p.rows, T=p.rows) if self.lse_on else (0,), np.inf)
        self.lse_rows: F64 = self.lse_rows_of(self.lse) if self.lse_on else self.lse
        self.reasons: dict[str, int] = {}
        self.compare_out: Bool = np.ones(self.out.shape, np.bool_)
        self.compare_lse: Bool = np.ones(self.lse.shape, np.bool_)
        self.alternatives: dict[str, list[Alternative]] = {}

    def rows_of(self, array: NDArray[Any]) -> NDArray[Any]:
        """A view of an array in the shape of attentionOut as (B, Q_N, Q_S, V_D) or (Q_N, T, V_D)."""
        return heads_first(array, self.problem.layout.output, self.problem.Q_N)

    def lse_rows_of(self, array: NDArray[Any]) -> NDArray[Any]:
        """A view of an array in the shape of softmaxLse as (B, Q_N, Q_S) or (Q_N, T)."""
        return array[:, :, 0].transpose(1, 0) if self.problem.scene.packed else array[..., 0]

    def window(self, rows: NDArray[Any], run: Run) -> NDArray[Any]:
        """The part of a rows view that belongs to a run: (batches, query heads of the run, rows, ...), a view."""
        p = self.problem
        heads = slice(run.heads.start * p.G, run.heads.stop * p.G)
        if not p.scene.packed:
            return rows[run.first : run.first + run.count, heads, run.q_begin : run.q_begin + run.rows]
        part = rows[heads, run.q_offset : run.q_offset + run.count * run.rows]
        return np.asarray(part.reshape(part.shape[0], run.count, run.rows, *part.shape[2:]).swapaxes(0, 1))

    def batch_rows(self, rows: NDArray[Any], batch: int) -> NDArray[Any]:
        """The valid rows of one batch: (Q_N, rows, ...), a view."""
        p = self.problem
        if not p.scene.packed:
            begin = max(0, p.q_begins[batch])
            return rows[batch, :, begin : begin + p.q_lens[batch]]
        offset = p.q_offsets[batch]
        return rows[:, offset : offset + p.q_lens[batch]]

    def put(self, run: Run, out: F64, lse: F64, dead: Optional[Bool]) -> None:
        """Write the result of a run: ``out`` (batches, KV_N, G, rows, V_D), the others without the last axis."""
        shape = (run.count, -1, run.rows)
        self.window(self.out_rows, run)[...] = out.reshape(run.count, out.shape[1] * out.shape[2], run.rows, out.shape[4])
        if self.lse_on:
            self.window(self.lse_rows, run)[...] = lse.reshape(shape)
        self.window(self.state, run)[...] = COMPUTED if dead is None else np.where(dead.reshape(shape), DEAD, COMPUTED)

    def marked(self, run: Run, rows: Bool) -> Bool:
        """Rows of a run (batches, query heads, rows) as marks in the shape of ``state``."""
        where: Bool = np.zeros(self.state.shape, np.bool_)
        self.window(where, run)[...] = rows
        return where

    def fixed(self) -> Optional[Bool]:
        """Elements of attentionOut that are not the result of a computation, in output layout; None when all are."""
        blank = self.state != COMPUTED
        if not blank.any():
            return None
        marks: Bool = np.zeros(self.out.shape, np.bool_)
        self.rows_of(marks)[blank] = True
        return marks

    def exclude(self, where: Bool, reason: str, *, out: bool = True, lse: bool = True) -> None:
        """Leave rows (marks in the shape of ``state``) of one or both outputs out of the comparison, and count them."""
        if not where.any():
            return
        count = 0
        if out:
            target = self.rows_of(self.compare_out)
            count += int((target & where[..., None]).sum())
            target[where] = False
        if lse and self.lse_on:
            marks = self.lse_rows_of(self.compare_lse)
            count += int((marks & where).sum())
            marks[where] = False
        if count:
            self.reasons[reason] = self.reasons.get(reason, 0) + count

    def exclude_elements(self, where: Bool, reason: str) -> None:
        """Leave elements (marks in the shape of ``out_rows``) of attentionOut out of the comparison, and count them."""
        target = self.rows_of(self.compare_out)
        count = int((target & where).sum())
        if count:
            self.reasons[reason] = self.reasons.get(reason, 0) + count
        target[where] = False

    def exclude_all(self, reason: str) -> None:
        """Leave everything out."""
        self.exclude(np.ones(self.state.shape, np.bool_), reason)

    def allow_out(self, where: Bool, values: F64, why: str) -> None:
        """Let rows (marked in the shape of ``state``) hold other numbers; ``values`` broadcasts over the rows view."""
        if not where.any():
            return
        marks: Bool = np.zeros(self.out.shape, np.bool_)
        self.rows_of(marks)[where] = True
        numbers: F64 = np.zeros(self.out.shape)
        self.rows_of(numbers)[...] = values
        self.alternatives.setdefault("attentionOut", []).append(Alternative(marks, why, numbers))

    def allow_lse(self, where: Bool, why: str, *, low: float = np.nan, high: float = np.nan, values: Optional[F64] = None) -> None:
        """Let the lse of rows be any number in [low, high], or one of ``values`` (in the shape of ``state``)."""
        if not self.lse_on or not where.any():
            return
        marks: Bool = np.zeros(self.lse.shape, np.bool_)
        self.lse_rows_of(marks)[where] = True
        numbers: Optional[F64] = None
        if values is not None:
            numbers = np.zeros(self.lse.shape)
            self.lse_rows_of(numbers)[...] = values
        self.alternatives.setdefault("softmaxLse", []).append(Alternative(marks, why, numbers, low, high))

    def allow_states(self, states: tuple[int, ...]) -> Bool:
        """Rows in one of the given states, in the shape of ``state``."""
        return np.isin(self.state, states)


def empty_output(scene: Scene, name: str) -> tuple[int, ...]:
    """Shape of an output of an empty call: as the case gives it; ReferenceError when it is missing."""
    shape = scene.shape(name)
    if shape is None:
        raise ReferenceError(f"{name} is missing")
    return shape
