"""FP8 full quantisation with scales per token and head (GQA FP8) or per block (spec/numerics.md 16.5).

s = q . k * scale_q * scale_k * scaleValue. Exponentials are taken relative to the row maximum minus ln(pScale), so
they lie in [0, pScale], and rounded to FLOAT8_E4M3FN; pScale cancels in output and lse.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from .expected import F64, ReferenceError
from .problem import Problem, Run
from .storage import paged_per_token
from .tiled import F32, Stage, Tile, TiledOperands, dot, eight_bits

TILE = 256
TINY = np.float32(1e-20)
Q_BLOCK, KV_BLOCK = 128, 256
"""Rows of one query scale, columns of one key or value scale in the per-block form."""


class Fp8Operands(TiledOperands):
    """Operands of FP8 full quantisation, ideal form, and their codes and scales for the stage-wise one."""

    half_scores = False

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        given = self.scene.given("quantScale1")
        self.p_scale = float(problem.numbers("quantScale1").reshape(-1)[0]) if given else 1.0

    def q_scale(self, run: Run) -> F64:
        """Scale of every query row: (batches, KV_N, G, rows, 1); GQA FP8 stores (Q_N, T)."""
        p = self.problem
        scales = p.numbers("dequantScaleQuery")
        if scales.shape != (p.Q_N, p.rows):
            raise ReferenceError(f"dequantScaleQuery of shape {scales.shape} instead of {(p.Q_N, p.rows)}")
        part = scales[run.heads.start * p.G : run.heads.stop * p.G, run.q_offset : run.q_offset + run.count * run.rows]
        part = part.reshape(part.shape[0], run.count, run.rows).transpose(1, 0, 2)
        return np.ascontiguousarray(part).reshape(run.count, -1, p.G, run.rows, 1)

    def k_scale(self, run: Run) -> F64:
        """Scale of every key column: (batches, KV_N, columns, 1); GQA FP8 stores (blocks, KV_N, blockSize)."""
        p = self.problem
        stored = p.stored("keyAntiquantScale")
        if stored.ndim != 3 or stored.shape[1] != p.KV_N:
            raise ReferenceError(f"keyAntiquantScale of shape {stored.shape} is not (blocks, {p.KV_N}, blockSize)")
        got = paged_per_token(stored[:, run.heads], self.ids(run, p.stored("key")), run.cols)
        return got.astype(np.float64)[..., None]

    def v_scale(self, run: Run) -> F64:
        """Scale of every value column: (1 or batches, KV_N, 1 or columns, 1); GQA FP8 stores (KV_N)."""
        return self.problem.numbers("valueAntiquantScale").reshape(1, self.problem.KV_N, 1, 1)[:, run.heads]

    def query(self, run: Run) -> F64:
        """Query codes times their scales and scaleValue."""
        return self.query_numbers(run) * (self.q_scale(run) * self.problem.scale)

    def key(self, run: Run) -> F64:
        """Key codes times their scales."""
        return super().key(run) * self.k_scale(run)

    def value(self, run: Run, key: F64) -> F64:
        """Value codes times their scales."""
        return self.side("value", run) * self.v_scale(run)

    # ---- stage-wise --------------------------------------------------------------------------------

    def tile_size(self, stage: Stage) -> int:
        """Key columns of a tile."""
        return TILE

    def stage(self, run: Run) -> Stage:
        """Plain codes and the scales of rows, columns and values."""
        columns = self.k_scale(run)[..., 0].astype(np.float32)[:, :, None, None]
        scales = {
            "rows": (self.q_scale(run) * self.problem.scale).astype(np.float32),
            "columns": columns,
            "values": self.v_scale(run).astype(np.float32),
        }
        return Stage(run, self.query_numbers(run), super().key(run), self.side("value", run), scales)

    def scores(self, stage: Stage, tile: Tile, dots: F64, bias: Optional[F64]) -> F32:
        """Scale of the row, then of the column."""
        rows = stage.scales["rows"][:, :, :, tile.begin : tile.end]
        s = dots.astype(np.float32) * rows * stage.scales["columns"][..., tile.first : tile.last]
        if self.half_scores:
            with np.errstate(over="ignore"):
                s = s.astype(np.float16).astype(np.float32)
        return s

    def raised(self, before: F32, top: F32) -> F32:
        """The running maximum, ln(pScale) below the largest score."""
        return np.asarray(np.maximum(before, top - np.float32(np.log(self.p_scale))))

    def product(self, stage: Stage, tile: Tile, p: F32, share: F32) -> F32:
        """Exponentials in FLOAT8_E4M3FN times value codes, and times the value scales of the tile's columns."""
        v, scale = stage.v[:, :, tile.first : tile.last], stage.scales["values"]
        if scale.shape[2] != 1:
            v = v * scale[:, :, tile.first : tile.last]
        return dot(eight_bits("FLOAT8_E4M3FN", p), v, transpose=False).astype(np.float32)

    def finished(self, stage: Stage, tile: Tile, out: F32, total: F32) -> F32:
        """The value scale of the head, and division by the row sum."""
        scale = stage.scales["values"]
        if scale.shape[2] == 1:
            out = out * scale[:, :, None]
        return np.asarray(out / (total + TINY))

    def lse(self, peak: F32, total: F32) -> F32:
        """Running maximum plus ln of the row sum: pScale cancels."""
        return np.asarray(peak + np.log(total + TINY))


class PerBlockOperands(Fp8Operands):
    """Operands with one scale for 128 query rows and for 256 key or value columns; scores pass through FLOAT16."""

    half_scores = True

    def q_scale(self, run: Run) -> F64:
        """Scales (B, KV_N, G, ceil(Q_S / 128), 1) spread over the rows."""
        p = self.problem
        stored = p.numbers("dequantScaleQuery").reshape(p.B, p.KV_N, p.G, -1)
        rows = np.repeat(stored[run.first : run.first + run.count, run.heads], Q_BLOCK, axis=-1)
        return self._cut(rows, run.q_begin, run.rows, "dequantScaleQuery")[..., None]

    def k_scale(self, run: Run) -> F64:
        """Scales (B, KV_N, ceil(KV_S / 256), 1) spread over the columns."""
        return self._columns("keyAntiquantScale", run)

    def v_scale(self, run: Run) -> F64:
        """Scales (B, KV_N, ceil(KV_S / 256), 1) spread over the columns."""
        return self._columns("valueAntiquantScale", run)

    def _columns(self, name: str, run: Run) -> F64:
        p = self.problem
        stored = p.numbers(name).reshape(p.B, p.KV_N, -1)
        columns = np.repeat(stored[run.first : run.first + run.count, run.heads], KV_BLOCK, axis=-1)
        return self._cut(columns, run.k_begin, run.cols, name)[..., None]

    @staticmethod
    def _cut(spread: F64, begin: int, count: int, name: str) -> F64:
        if spread.shape[-1] < begin + count:
            raise ReferenceError(f"{name} has too few blocks for {begin + count} tokens")
        return spread[..., begin : begin + count]
