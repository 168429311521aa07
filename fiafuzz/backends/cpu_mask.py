"""Which columns a row may see, and what is added to its scores (spec/numerics.md 5, 6, 7)."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from fiafuzz.model.parameters import INT_MAX

from .cpu_operands import Operands, split_axis
from .cpu_problem import Problem, Span

OPEN = (-(1 << 40), 1 << 40)
"""A band that hides nothing."""


class Visibility:
    """Masking and biasing of one tile of scores: rows [i0, i1) and columns [j0, j1) of a span, counted from its first
    valid row and column."""

    p: Problem
    x: Operands

    def band(self, span: Span) -> tuple[int, int]:
        """(lowest, highest) difference column - row that is seen, from the sparse mode and the lengths."""
        p = self.p
        pre, after = p.tokens
        corner = p.columns(span) - span.q_len
        if p.sparse_mode == 0:
            return (-pre if pre < INT_MAX else OPEN[0], after if after < INT_MAX else OPEN[1]) if p.mask_on else OPEN
        if p.sparse_mode == 2:
            return OPEN[0], 0
        if p.sparse_mode == 3:
            return OPEN[0], corner
        if p.sparse_mode == 4:
            return corner - pre if pre < INT_MAX else OPEN[0], corner + after if after < INT_MAX else OPEN[1]
        return OPEN

    def outside_band(self, span: Span, i0: int, i1: int, j0: int, j1: int) -> Optional[Tensor]:
        """(rows, columns) that the band hides; None when it hides nothing in this tile."""
        low, high = self.band(span)
        if j1 - 1 - i0 <= high and j0 - (i1 - 1) >= low:
            return None
        gap = torch.arange(j0, j1) - torch.arange(i0, i1).unsqueeze(1)
        hidden = gap > high
        return hidden | (gap < low) if low > OPEN[0] else hidden

    def masked(self, span: Span, i0: int, i1: int, j0: int, j1: int) -> Optional[Tensor]:
        """(1|count, rows, columns) that the mask hides, at positions of the padded tensors; None without a mask."""
        mask = self.x.mask
        if mask is None:
            return None
        if mask.shape[0] > 1:
            mask = mask[span.first : span.first + span.count]
        return mask[:, span.q_row + i0 : span.q_row + i1, span.kv_col + j0 : span.kv_col + j1]

    def hidden(self, span: Span, i0: int, i1: int, j0: int, j1: int) -> Optional[Tensor]:
        """What mask and band hide, broadcastable to (count, KV_N, G, rows, columns); None when nothing."""
        band = self.outside_band(span, i0, i1, j0, j1)
        mask = self.masked(span, i0, i1, j0, j1)
        if mask is None:
            return band
        mask = mask if band is None else mask | band
        return mask[:, None, None]

    def bias(self, span: Span, i0: int, i1: int, j0: int, j1: int) -> Optional[Tensor]:
        """What is added to the scaled scores, broadcastable to (count, KV_N, G, rows, columns); None without."""
        pse, slopes = self.x.pse, self.x.slopes
        if pse is not None:
            if pse.shape[0] > 1:
                pse = pse[span.first : span.first + span.count]
            tile = pse[:, :, span.q_row + i0 : span.q_row + i1, span.kv_col + j0 : span.kv_col + j1]
            return self.split_heads(tile.float())
        if slopes is not None:
            return self.split_heads(self.alibi(slopes, self.distance(i0, i1, j0, j1)))
        return None

    def distance(self, i0: int, i1: int, j0: int, j1: int) -> Tensor:
        """How far column and row are apart, start indices included, float32 (rows, columns)."""
        shift = self.p.kv_start - self.p.q_start
        return (torch.arange(j0 + shift, j1 + shift) - torch.arange(i0, i1).unsqueeze(1)).abs().float()

    def alibi(self, slopes: Tensor, distance: Tensor) -> Tensor:
        """Penalty of pseType 2 (distance) or 3 (its root), (Q_N, rows, columns): the slope counts negative."""
        if self.p.scene.attrs.pseType == 3:
            distance = distance.sqrt()
        return -slopes[:, None, None] * distance

    def split_heads(self, x: Tensor) -> Tensor:
        """(.., Q_N, rows, D) as (.., KV_N, G, rows, D): query head n belongs to key head n // G."""
        return split_axis(x, -3, self.p.KV_N, self.p.G)

    def join_heads(self, x: Tensor) -> Tensor:
        """The reverse of split_heads."""
        return x.flatten(-4, -3)
