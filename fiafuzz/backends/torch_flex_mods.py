"""What hides keys and what is added to scores, said as FlexAttention wants it: functions of one (b, h, i, j).

The functions are called with scalars under vmap, so they index captured tensors by tensors and never branch on values. They
are written from the operator's rules (spec/numerics.md 5, 6, 7); with the explicit masks of other kernels they share only the
lengths and the limits of the band.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import and_masks

from .cpu_mask import OPEN
from .cpu_operands import Operands
from .cpu_problem import Problem, Span

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Position = Callable[[Tensor, Tensor], Tensor]


class Batches:
    """Lengths and positions of every batch as int64 tensors (B,)."""

    def __init__(self, p: Problem, band: Callable[[Span], tuple[int, int]]) -> None:
        rows: list[tuple[int, ...]] = []
        for span in p.spans:
            entry = (span.q_at, span.q_len, span.kv_at, p.columns(span), span.q_row, span.kv_col, *band(span))
            rows.extend([entry] * span.count)
        table = torch.tensor(rows, dtype=torch.int64).reshape(-1, 8).T.contiguous()
        self.q_at, self.q_len, self.kv_at, self.columns, self.q_row, self.kv_col, self.low, self.high = table
        self.limited = bool((self.low > OPEN[0]).any()), bool((self.high < OPEN[1]).any())
        """Whether any batch has a lower and an upper limit of column - row."""


@dataclass(frozen=True)
class Frame:
    """How the axes of one kernel call stand for the batches, rows and columns of the operator's call.

    ``batch(b, i)``, ``row(b, i)`` and ``column(b, j)`` give the batch, and the row and column counted from its first valid one;
    ``inside`` hides what belongs to no batch or to another one (None: there is nothing of that kind).
    """

    batch: Position
    row: Position
    column: Position
    inside: Optional[MaskMod] = None


def span_frame(span: Span, i0: int) -> Frame:
    """The rows from i0 on and all columns of one span."""
    return Frame(lambda b, i: b + span.first, lambda b, i: i + i0, lambda b, j: j)


def padded_frame(t: Batches, q_at: Tensor, kv_at: Tensor, lengths: bool = True) -> Frame:
    """Whole padded tensors: valid rows and columns begin at ``q_at`` and ``kv_at`` (B,); what is outside them is hidden, columns
    behind the last only when ``lengths``."""

    def row(b: Tensor, i: Tensor) -> Tensor:
        return i - q_at[b]

    def column(b: Tensor, j: Tensor) -> Tensor:
        return j - kv_at[b]

    def rows_inside(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (row(b, i) >= 0) & (row(b, i) < t.q_len[b])

    def columns_inside(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (column(b, j) >= 0) & (column(b, j) < t.columns[b])

    inside = and_masks(rows_inside, columns_inside) if lengths else rows_inside
    return Frame(lambda b, i: b, row, column, inside)


def packed_frame(t: Batches, q_size: int, kv_size: int) -> Frame:
    """Whole packed tensors as one batch: every position knows whose it is, as in FlexAttention's document masks."""
    q_batch, q_pos = _positions(t.q_at.tolist(), t.q_len.tolist(), q_size)
    kv_batch, kv_pos = _positions(t.kv_at.tolist(), t.columns.tolist(), kv_size)

    def inside(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (q_batch[i] >= 0) & (q_batch[i] == kv_batch[j])

    return Frame(lambda b, i: q_batch[i].clamp(min=0), lambda b, i: q_pos[i], lambda b, j: kv_pos[j], inside)


def _positions(starts: Sequence[int], lengths: Sequence[int], size: int) -> tuple[Tensor, Tensor]:
    batch, position = torch.full((size,), -1), torch.zeros(size, dtype=torch.int64)
    for n, (start, length) in enumerate(zip(starts, lengths)):
        batch[start : start + length] = n
        position[start : start + length] = torch.arange(length)
    return batch, position


def mask_mod(t: Batches, x: Operands, frame: Frame) -> Optional[MaskMod]:
    """What a row sees: inside the frame, not in attenMask, within the band. None when it sees everything."""
    parts: list[MaskMod] = [] if frame.inside is None else [frame.inside]
    if x.mask is not None:
        parts.append(_given(t, x.mask, frame))
    if any(t.limited):
        parts.append(_band(t, frame))
    return and_masks(*parts) if parts else None


def _given(t: Batches, mask: Tensor, frame: Frame) -> MaskMod:
    seen = ~mask
    last_row, last_column = mask.shape[1] - 1, mask.shape[2] - 1
    one = seen[0] if mask.shape[0] == 1 else None

    def given(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        n = frame.batch(b, i)
        # Positions outside the frame are asked for, too, and may lie outside the mask; ``inside`` hides them.
        r = (frame.row(b, i) + t.q_row[n]).clamp(0, last_row)
        c = (frame.column(b, j) + t.kv_col[n]).clamp(0, last_column)
        return seen[n, r, c] if one is None else one[r, c]

    return given


def _band(t: Batches, frame: Frame) -> MaskMod:
    lower, upper = t.limited

    def above(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return frame.column(b, j) - frame.row(b, i) >= t.low[frame.batch(b, i)]

    def below(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return frame.column(b, j) - frame.row(b, i) <= t.high[frame.batch(b, i)]

    return and_masks(*([above] if lower else []), *([below] if upper else []))


def score_mod(t: Batches, p: Problem, x: Operands, frame: Frame) -> Optional[ScoreMod]:
    """The scaled score with pseShift's bias or distance penalty; None when nothing is added."""
    if x.pse is not None:
        return _biased(t, x.pse, frame)
    if x.slopes is not None:
        return _sloped(p, x.slopes, frame)
    return None


def _biased(t: Batches, pse: Tensor, frame: Frame) -> ScoreMod:
    last_row, last_column = pse.shape[2] - 1, pse.shape[3] - 1
    one = pse[0] if pse.shape[0] == 1 else None

    def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        n = frame.batch(b, i)
        r = (frame.row(b, i) + t.q_row[n]).clamp(0, last_row)
        c = (frame.column(b, j) + t.kv_col[n]).clamp(0, last_column)
        return score + (pse[n, h, r, c] if one is None else one[h, r, c])

    return biased


def _sloped(p: Problem, slopes: Tensor, frame: Frame) -> ScoreMod:
    shift, root = p.kv_start - p.q_start, p.scene.attrs.pseType == 3

    def sloped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        distance = (frame.column(b, j) + shift - frame.row(b, i)).abs().float()
        return score - slopes[h] * (distance.sqrt() if root else distance)

    return sloped
