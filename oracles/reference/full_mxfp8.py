"""MXFP8 full quantisation: FLOAT8_E4M3FN data with an E8M0 scale for every 32 elements (spec/numerics.md 16.6).

Query and key have groups along D, value along the sequence, restarted in every batch and padded to an even number.
The rope halves are bf16 and not scaled. The running maximum is rounded up to a multiple of ln 2, exponentials lie in
[0, pScale]; lse keeps ln(pScale).
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from fiafuzz.model.codecs import decode

from .expected import F64, ReferenceError, Stored
from .problem import Problem, Run
from .tiled import F32, Stage, Tile, TiledOperands, dot, eight_bits

TILE = 256
GROUP = 32
LOG2_E, LN_2 = np.float32(1.4426950), np.float32(0.6931472)
TINY = np.float32(1e-20)


class Mxfp8Operands(TiledOperands):
    """Operands times their group scales: the ideal form and the numbers that the stage-wise one multiplies."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        given = self.scene.given("quantScale1")
        self.p_scale = float(problem.numbers("quantScale1").reshape(-1)[0]) if given else 1.0
        self.lse_shift = float(np.log(self.p_scale))
        groups = [-(-n // 64) for n in problem.kv_lens]
        self.v_offsets = [sum(groups[:b]) for b in range(problem.B)]

    def query_numbers(self, run: Run) -> F64:
        """Query codes times their scales, then rope: (batches, KV_N, G, rows, D + rope D)."""
        q = self.numbers("query", self.query_rows("query", run)) * self._query_scale(run)
        if self.rope:
            q = np.concatenate([q, self.numbers("queryRope", self.query_rows("queryRope", run))], axis=-1)
        return self.grouped(q, run)

    def widened(self, name: str, stored: Stored, run: Run, *, prefix: bool) -> F64:
        """Key or value codes times their scales; rope as it is."""
        numbers = self.numbers(name, stored)
        if name == "key":
            numbers *= self._key_scale(run)
        elif name == "value":
            numbers *= self._value_scale(run)
        return numbers

    def _query_scale(self, run: Run) -> F64:
        """(batches, Q_N, rows, D), from (T, Q_N, D/64, 2) or (KV_N, T, G, D/64, 2)."""
        p = self.problem
        stored = p.stored("dequantScaleQuery")
        tokens = slice(run.q_offset, run.q_offset + run.count * run.rows)
        if stored.ndim == 4 and stored.shape[:2] == (p.rows, p.Q_N):
            part = stored[tokens, run.heads.start * p.G : run.heads.stop * p.G].swapaxes(0, 1)
        elif stored.ndim == 5 and stored.shape[:3] == (p.KV_N, p.rows, p.G):
            part = stored[run.heads, tokens].swapaxes(1, 2)
            part = part.reshape(-1, *part.shape[2:])
        else:
            raise ReferenceError(f"dequantScaleQuery of shape {stored.shape} fits neither form")
        spread = self._along_d(part)  # (Q_N, tokens, D)
        return np.asarray(spread.reshape(spread.shape[0], run.count, run.rows, -1).swapaxes(0, 1))

    def _key_scale(self, run: Run) -> F64:
        """(batches, KV_N, columns, D), from (T, KV_N, D/64, 2) or a paged cache of scales."""
        p = self.problem
        stored = p.stored("keyAntiquantScale")
        if not self.scene.paged:
            part = stored[run.k_offset : run.k_offset + run.count * run.cols, run.heads].swapaxes(0, 1)
            spread = self._along_d(part)
            return np.asarray(spread.reshape(spread.shape[0], run.count, run.cols, -1).swapaxes(0, 1))
        ids = self.ids(run, p.stored("key"))
        if stored.ndim == 6:  # NZ: (blocks, KV_N, blockSize / 16, D / 64, 16, 2)
            got = stored[:, run.heads][ids].swapaxes(4, 5)  # (count, needed, N, bs/16, 16, D/64, 2)
            got = got.reshape(*got.shape[:3], -1, *got.shape[5:])
        elif stored.ndim == 5:
            got = stored[:, run.heads][ids]  # (count, needed, N, bs, D/64, 2)
        else:
            raise ReferenceError(f"keyAntiquantScale of shape {stored.shape} fits no cache")
        got = got.swapaxes(1, 2)
        got = got.reshape(got.shape[0], got.shape[1], -1, *got.shape[4:])[:, :, : run.cols]
        return self._along_d(got)

    def _along_d(self, part: Stored) -> F64:
        """Spread scales (..., D/64, 2) over D: group d // 32."""
        groups = np.asarray(decode("FLOAT8_E8M0", np.ascontiguousarray(part)), dtype=np.float64)
        flat = groups.reshape(*groups.shape[:-2], -1)
        return np.repeat(flat, GROUP, axis=-1)[..., : self.problem.D]

    def _value_scale(self, run: Run) -> F64:
        """(batches, KV_N, columns, V_D): group j // 32 of the batch; the last axis of the tensor is even and odd
        group.
        """
        p = self.problem
        stored = p.stored("valueAntiquantScale")
        pairs = -(-run.cols // 64)
        if not self.scene.paged:
            found = [stored[self.v_offsets[b] : self.v_offsets[b] + pairs, run.heads] for b in range(run.first, run.first + run.count)]
            got = np.stack(found)  # (count, pairs, N, D, 2)
        else:
            ids = self.ids(run, p.stored("key"))
            got = stored[:, run.heads][ids]
            if stored.ndim == 6:  # NZ: (count, needed, N, D/16, bs/64, 16, 2)
                got = got.transpose(0, 1, 4, 2, 3, 5, 6)
                got = got.reshape(*got.shape[:4], -1, got.shape[6])
            elif stored.ndim == 5:  # (count, needed, N, bs/64, D, 2)
                got = got.transpose(0, 1, 3, 2, 4, 5)
            else:
                raise ReferenceError(f"valueAntiquantScale of shape {stored.shape} fits no cache")
            got = got.reshape(got.shape[0], -1, *got.shape[3:])
        if got.shape[-2] != p.V_D:
            raise ReferenceError(f"valueAntiquantScale of shape {stored.shape} does not fit head size {p.V_D}")
        groups = np.asarray(decode("FLOAT8_E8M0", np.ascontiguousarray(got)), dtype=np.float64)
        spread = groups.transpose(0, 2, 1, 4, 3)  # (count, N, pairs, 2, D)
        spread = spread.reshape(*spread.shape[:2], -1, p.V_D)
        return np.repeat(spread, GROUP, axis=2)[:, :, : run.cols]

    # ---- stage-wise --------------------------------------------------------------------------------

    def tile_size(self, stage: Stage) -> int:
        """Key columns of a tile."""
        return TILE

    def stage(self, run: Run) -> Stage:
        """Scaled operands: the matrix unit applies group scales itself."""
        k = self.key(run)
        return Stage(run, self.query_numbers(run), k, self.value(run, k), {})

    def scores(self, stage: Stage, tile: Tile, dots: F64, bias: Optional[F64]) -> F32:
        """The scale."""
        return np.asarray(dots.astype(np.float32) * np.float32(self.problem.scale))

    def raised(self, before: F32, top: F32) -> F32:
        """The running maximum, rounded up to a multiple of ln 2."""
        return np.asarray(np.maximum(before, np.ceil(top * LOG2_E) * LN_2))

    def shift(self, level: F32) -> F32:
        """ln(pScale) below the maximum."""
        return np.asarray(level - np.float32(np.log(self.p_scale)))

    def product(self, stage: Stage, tile: Tile, p: F32, share: F32) -> F32:
        """Exponentials in FLOAT8_E4M3FN times scaled values."""
        v = stage.v[:, :, tile.first : tile.last]
        return dot(eight_bits("FLOAT8_E4M3FN", p), v, transpose=False).astype(np.float32)

    def finished(self, stage: Stage, tile: Tile, out: F32, total: F32) -> F32:
        """Division by the row sum."""
        return np.asarray(out / (total + TINY))
