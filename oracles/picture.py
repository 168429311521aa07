"""Pictures of wrong outputs: where in the worst head the error is, beside what each query token may see.

A picture is a small grid of characters, at most ``EDGE`` rows and columns; several elements share a cell when the head is
larger, and the worst of them decides. Kind "error" (rows: query tokens; columns: elements of the head, or heads for lse):

    .       inside its tolerance          1 .. 9  error in units of the tolerance: above 1, 3, 10, 30, ... 10**4
    0       a row that stands for no computation (padding, no keys, fully masked) and holds what it must
    -       not compared                  N  not finite where a finite number is due
    U       left unwritten

Kind "mask" (rows: query tokens; columns: key tokens, prefix first):

    .       seen                          #  masked
    +       a cell with both              -  outside the valid part of the batch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.scene import Scene

from .gate import gate_of
from .judge import Judgement, OutputRecord
from .poison import holds_poison
from .precision_standards import Bool
from .reference.attention_mask import row_mask
from .reference.expected import Expected
from .reference.problem import Problem, problem_of
from .reference.storage import heads_first

EDGE = 48
"""Largest number of rows and of columns of a picture."""
MAX_SCORES = 1 << 24
"""Scores of one head above which the mask is not drawn."""

_SKIPPED, _STILL, _FINE, _LEVEL, _NONFINITE, _UNWRITTEN = 0, 1, 2, 2, 12, 13
_SIGNS = "-0.123456789NU"
"""Character of a severity: the list above, the least severe first."""


@dataclass(frozen=True)
class Grid:
    """One picture. ``kind``: error or mask. ``where``: the batch and head in words. ``rows`` and ``columns`` name the axes,
    ``shape`` their real sizes; ``worst`` is the cell (row, column) of the worst element."""

    kind: str
    output: str
    where: str
    rows: str
    columns: str
    shape: tuple[int, int]
    cells: tuple[str, ...]
    worst: Optional[tuple[int, int]] = None


def error_pictures(scene: Scene, tensors: Any, expected: Expected, outputs: Any, judgement: Judgement) -> tuple[Grid, ...]:
    """Pictures of each output with failing elements, and of the masking of the batch that holds the worst one.

    ``tensors`` and ``outputs`` are storage arrays by name, as the reference and the judge take them. Nothing for outputs whose
    form is wrong, and for calls that have no heads to show.
    """
    failing = [r for r in judgement.outputs if r.failing and r.worst and not r.problem]
    if not failing or scene.layout is None:
        return ()
    problem = problem_of(scene, tensors)
    found, batches = [], []
    for record in failing:
        grid, batch = _error(problem, expected, record, np.asarray(outputs[record.name]))
        found.append(grid)
        batches.append(batch)
    mask = _mask(problem, batches[0])
    return (*found, mask) if mask is not None else tuple(found)


def _error(problem: Problem, expected: Expected, record: OutputRecord, stored: NDArray[Any]) -> tuple[Grid, int]:
    """The picture of one output, and the batch that it shows."""
    severity = _severity(problem.scene, expected, record, stored)
    packed, index = problem.scene.packed, record.worst[0].index
    marks = np.zeros(severity.shape, np.bool_)
    marks[index] = True
    if record.name == "softmaxLse":
        views = [a.transpose(1, 0, 2) if packed else a for a in (severity, marks)]  # (N, T, 1) or (B, N, S, 1)
    else:
        views = [heads_first(a, problem.layout.output, problem.Q_N) for a in (severity, marks)]
    place = [int(n) for n in np.unravel_index(int(np.argmax(views[1])), views[1].shape)]
    if packed:
        batch = _batch_of(problem, place[1])
        rows = slice(problem.q_offsets[batch], problem.q_offsets[batch] + max(1, problem.q_lens[batch]))
        head, token, column = place[0], place[1] - rows.start, place[2]
        block = views[0][:, rows]
    else:
        batch, head, token, column = place
        block = views[0][batch]
    if record.name == "softmaxLse":
        levels, column, where, columns = block[..., 0].T, head, f"batch {batch}, all query heads", "query head"
    else:
        levels, where, columns = block[head], f"batch {batch}, query head {head}", "element of the head"
    cells, worst = _cells(levels, (token, column))
    shape = (int(levels.shape[0]), int(levels.shape[1]))
    return Grid("error", record.name, where, "query token", columns, shape, cells, worst), batch


def _severity(scene: Scene, expected: Expected, record: OutputRecord, stored: NDArray[Any]) -> NDArray[np.int8]:
    """How bad each element is (places in ``_SIGNS``)."""
    from fiafuzz.model.codecs import decode

    dtype = record.dtype
    numbers = np.asarray(decode(dtype, stored), dtype=np.float64)
    gated = gate_of(scene, expected, record.name, dtype, stored, numbers).judge()
    floor = (0.125 if DTYPES[dtype].bits <= 8 else 2.0**-20) * np.maximum(np.abs(gated.expected), 1e-6)
    with np.errstate(all="ignore"):
        distance = np.abs(numbers - gated.expected)
        ratio = np.where(numbers == gated.expected, 0.0, distance / np.maximum(gated.allowed, floor))
    ratio = np.nan_to_num(ratio, nan=1e30, posinf=1e30)
    with np.errstate(divide="ignore"):
        level = np.clip(np.floor(2 * np.log10(np.maximum(ratio, 1.0))) + 1, 1, 9).astype(np.int8)
    found = np.where(gated.failing, _LEVEL + level, _FINE).astype(np.int8)
    fixed: Optional[Bool] = expected.fixed if record.name == "attentionOut" else None
    if fixed is not None:
        found[fixed & ~gated.failing] = _STILL
    found[~expected.compare[record.name]] = _SKIPPED
    found[gated.failing & ~np.isfinite(numbers) & np.isfinite(gated.expected)] = _NONFINITE
    found[gated.failing & holds_poison(dtype, stored)] = _UNWRITTEN
    return found


def _batch_of(problem: Problem, token: int) -> int:
    """The batch that holds a token of a packed layout."""
    inside = [b for b, (at, n) in enumerate(zip(problem.q_offsets, problem.q_lens)) if at <= token < at + n]
    return inside[0] if inside else 0


def _edges(size: int) -> NDArray[np.int64]:
    """Where the cells of an axis begin."""
    cells = min(size, EDGE)
    return np.asarray([i * size // cells for i in range(cells)], dtype=np.int64)


def _cells(levels: NDArray[np.int8], at: tuple[int, int]) -> tuple[tuple[str, ...], tuple[int, int]]:
    """A head as rows of characters, and the cell of one of its elements."""
    down, across = _edges(levels.shape[0]), _edges(levels.shape[1])
    coarse = np.maximum.reduceat(np.maximum.reduceat(levels, down, axis=0), across, axis=1)
    worst = (int(np.searchsorted(down, at[0], "right")) - 1, int(np.searchsorted(across, at[1], "right")) - 1)
    return tuple("".join(_SIGNS[n] for n in row) for row in coarse.tolist()), worst


def _mask(problem: Problem, batch: int) -> Optional[Grid]:
    """What the query tokens of a batch see, None when there is nothing to show or too much."""
    rows, total = problem.q_lens[batch], problem.prefix + problem.kv_lens[batch]
    if rows <= 0 or total <= 0 or problem.overflown(batch):
        return None
    begin, height = (0, rows) if problem.scene.packed else (max(0, problem.q_begins[batch]), problem.rows)
    if max(height, rows) * total > MAX_SCORES:
        return None
    mask = row_mask(
        problem.masking,
        first=batch,
        count=1,
        rows=rows,
        total=total,
        q_begin=problem.q_begins[batch],
        k_begin=problem.k_begins[batch],
    )
    hidden = mask.masked(0, rows, 0, total) if mask is not None else None
    seen = np.full((max(height, begin + rows), total), 0, np.int8)  # bits: 1 seen, 2 masked; 0 outside the batch
    seen[begin : begin + rows] = 1 if hidden is None else np.where(hidden[0], 2, 1)
    down, across = _edges(seen.shape[0]), _edges(total)
    coarse = np.bitwise_or.reduceat(np.bitwise_or.reduceat(seen, down, axis=0), across, axis=1)
    cells = tuple("".join("-.#+"[n] for n in row) for row in coarse.tolist())
    shape = (int(seen.shape[0]), total)
    return Grid("mask", "attenMask", f"batch {batch}", "query token", "key token", shape, cells)
