"""The stage-wise loop of full quantisation: key tile by key tile, with a running maximum, in float32.

What differs between the kinds (scores, maximum, rounding of the exponentials, product, end) are hooks of
``TiledOperands``. Arrays are (batches, KV_N, G, rows, n) in float32 unless said otherwise; dot products of 8-bit
numbers are formed in float64, where they are exact, and rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.codecs import decode, encode

from .attention import Rows
from .attention_mask import RowMask
from .expected import F64, Bool
from .operands import Operands
from .problem import Run
from .pse import RowBias

F32 = NDArray[np.float32]
ROW_ELEMENTS = 1 << 22
"""Score elements of a tile that are held at once."""


@dataclass
class Stage:
    """What the hooks of one run work on: plain query, key and value codes in float64, and scales by name."""

    run: Run
    q: F64
    k: F64
    v: F64
    scales: dict[str, F32]


@dataclass(frozen=True)
class Tile:
    """One step of the loop: query rows [begin, end) and key columns [first, last)."""

    begin: int
    end: int
    first: int
    last: int


class TiledOperands(Operands):
    """Operands of one kind of full quantisation with its stage-wise hooks."""

    masked = float("-inf")
    """Score of a masked column."""

    # ---- hooks -------------------------------------------------------------------------------------

    def tile_size(self, stage: Stage) -> int:
        """Key columns of a tile."""
        raise NotImplementedError

    def stage(self, run: Run) -> Stage:
        """Codes and scales of a run."""
        raise NotImplementedError

    def scores(self, stage: Stage, tile: Tile, dots: F64, bias: Optional[F64]) -> F32:
        """Scores of a tile from its dot products (float64, exact)."""
        raise NotImplementedError

    def raised(self, before: F32, top: F32) -> F32:
        """The running maximum after a tile with the maximum ``top``."""
        return np.maximum(before, top)

    def shift(self, level: F32) -> F32:
        """What is subtracted from scores before exp, for a running maximum ``level``."""
        return level

    def product(self, stage: Stage, tile: Tile, p: F32, share: F32) -> F32:
        """Exponentials rounded to 8 bits, times the value tile. ``share`` is exp(tile maximum - running maximum)."""
        raise NotImplementedError

    def added(self, out: F32, fade: F32, u: F32) -> F32:
        """The accumulator after a tile."""
        return out * fade + u

    def finished(self, stage: Stage, tile: Tile, out: F32, total: F32) -> F32:
        """The result of the rows of ``tile`` from accumulator and row sum (1 for dead rows)."""
        return out / total

    def lse(self, peak: F32, total: F32) -> F32:
        """lse from running maximum and row sum."""
        return peak + np.log(total)

    # ---- the loop ----------------------------------------------------------------------------------

    def staged(self, run: Run, mask: Optional[RowMask], bias: Optional[RowBias]) -> Rows:
        """Output (float32 numbers, not yet rounded) and lse of a run with the operator's roundings."""
        stage = self.stage(run)
        b, h, g, rows, _ = stage.q.shape
        size = max(1, ROW_ELEMENTS // max(1, b * h * g * self.tile_size(stage)))
        out: F64 = np.empty((b, h, g, rows, stage.v.shape[3]))
        lse: F64 = np.empty((b, h, g, rows))
        dead: Bool = np.zeros((b, h, g, rows), np.bool_)
        for begin in range(0, rows, size):
            end = min(begin + size, rows)
            out[:, :, :, begin:end], lse[:, :, :, begin:end], dead[:, :, :, begin:end] = self._rows(stage, mask, bias, begin, end)
        return Rows(out, lse, dead if dead.any() else None)

    def _rows(self, stage: Stage, mask: Optional[RowMask], bias: Optional[RowBias], begin: int, end: int) -> tuple[F64, F64, Bool]:
        q = stage.q[:, :, :, begin:end]
        b, h, g, rows, _ = q.shape
        columns, step = stage.k.shape[2], self.tile_size(stage)
        peak: F32 = np.full((b, h, g, rows, 1), -np.inf, np.float32)
        total: F32 = np.zeros((b, h, g, rows, 1), np.float32)
        out: F32 = np.zeros((b, h, g, rows, stage.v.shape[3]), np.float32)
        kept: Bool = np.zeros((b, h, g, rows, 1), np.bool_)
        for first in range(0, columns, step):
            tile = Tile(begin, end, first, min(first + step, columns))
            dots = dot(q, stage.k[:, :, first : tile.last])
            s = self.scores(stage, tile, dots, None if bias is None else _tile_bias(bias, g, tile))
            hidden = None if mask is None else mask.masked(begin, end, first, tile.last)
            if hidden is None:
                kept[...] = True
            else:
                hidden = hidden[:, None, None]
                np.copyto(s, np.float32(self.masked), where=hidden)
                kept |= (~hidden).any(axis=-1, keepdims=True)
            top = s.max(axis=-1, keepdims=True)
            before, peak = peak, self.raised(peak, top)
            level = np.where(np.isneginf(peak), np.float32(0), peak)
            fade = np.exp(before - level)  # 0 in the first tile
            p = np.exp(s - self.shift(level))
            total = total * fade + p.sum(axis=-1, keepdims=True, dtype=np.float32)
            out = self.added(out, fade, self.product(stage, tile, p, np.exp(top - level)))
        dead = ~kept[..., 0]
        total[dead] = 1.0
        result = self.finished(stage, Tile(begin, end, 0, columns), out, total).astype(np.float64)
        lse = self.lse(peak, total)[..., 0].astype(np.float64)
        result[dead] = 0.0
        lse[dead] = np.inf
        return result, lse, dead


def dot(q: F64, k: F64, *, transpose: bool = True) -> F64:
    """(b, h, g, rows, n) times (b, h, columns, n) over n, or times (b, h, n, width), in float64: exact for 8-bit
    codes.
    """
    b, h, g, rows, n = q.shape
    other = k.swapaxes(-1, -2) if transpose else k
    return np.asarray(np.matmul(q.reshape(b, h, g * rows, n), other).reshape(b, h, g, rows, -1))


def _tile_bias(bias: RowBias, group: int, tile: Tile) -> F64:
    heads = bias.heads.stop - bias.heads.start
    part = bias.block(slice(0, bias.count), slice(0, heads), tile.begin, tile.end, tile.first, tile.last)
    return part.reshape(part.shape[0], heads // group, group, part.shape[2], part.shape[3])


def eight_bits(dtype: str, numbers: F32, *, hybrid: bool = False) -> F64:
    """Numbers rounded to an 8-bit float, saturating; HIFLOAT8 by HYBRID or ties away."""
    rounding: Any = ("hybrid" if hybrid else "round") if dtype == "HIFLOAT8" else None
    return np.asarray(decode(dtype, encode(dtype, numbers, rounding=rounding, overflow="saturate")), dtype=np.float64)
