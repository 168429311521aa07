"""Full quantisation of Decode MLA: INT8, FLOAT8_E4M3FN or HIFLOAT8 nope halves, bf16 rope halves (spec/numerics.md
16.4).

The caller has divided the rope halves by the nope scales, so scales apply to the sum of both: s = (q . k + q_rope .
k_rope) * dequantScaleQuery * keyAntiquantScale * scaleValue. The value is the nope part of key.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from .expected import F64, ReferenceError
from .problem import Problem, Run
from .tiled import F32, Stage, Tile, TiledOperands, dot, eight_bits

TILE = 512
P_SCALE = {"INT8": 127.0, "FLOAT8_E4M3FN": 448.0, "HIFLOAT8": 32768.0}
"""Factor of the exponentials before they are rounded to 8 bits."""

PARTIAL = np.float32(1024.0)
"""The INT8 reference keeps partial results divided by this in FLOAT16."""

EVEN_SHARE = np.float32(2.2e-16)


class MlaOperands(TiledOperands):
    """Operands of Decode MLA in 8 bits, ideal form, and their codes for the stage-wise one."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.dtype = self.scene.q_dtype or ""
        self.integer = self.dtype == "INT8"
        self.factor = np.float32(P_SCALE.get(self.dtype, 1.0))
        self.k_scale = float(problem.numbers("keyAntiquantScale").reshape(-1)[0])
        self.q_scales = problem.numbers("dequantScaleQuery")

    def query_scale(self, run: Run) -> F64:
        """dequantScaleQuery of a run: (batches, KV_N, G, rows, 1).

        Its shape is (B, Q_S, Q_N) for BSH, else the query shape without D.
        """
        p = self.problem
        axes = {"BSH": "BSN", "BSND": "BSN", "BNSD": "BNS", "TND": "TN", "NTD": "NT"}[p.layout.inputs]
        scales = self.q_scales
        if scales.ndim != len(axes) or scales.shape[axes.index("N")] != p.Q_N:
            raise ReferenceError(f"dequantScaleQuery of shape {scales.shape} does not fit the axes {axes}")
        heads = slice(run.heads.start * p.G, run.heads.stop * p.G)
        if self.scene.packed:
            view = scales.T if axes == "TN" else scales
            part = view[heads, run.q_offset : run.q_offset + run.count * run.rows]
            part = part.reshape(part.shape[0], run.count, run.rows).transpose(1, 0, 2)
        else:
            view = scales.transpose(0, 2, 1) if axes == "BSN" else scales
            part = view[run.first : run.first + run.count, heads, run.q_begin : run.q_begin + run.rows]
        return np.ascontiguousarray(part).reshape(run.count, -1, p.G, run.rows, 1)

    def query(self, run: Run) -> F64:
        """Query codes and rope times dequantScaleQuery and scaleValue."""
        return self.query_numbers(run) * (self.query_scale(run) * self.problem.scale)

    def key(self, run: Run) -> F64:
        """Key codes and rope times keyAntiquantScale."""
        k = super().key(run)
        k *= self.k_scale
        return k

    # ---- stage-wise --------------------------------------------------------------------------------

    def tile_size(self, stage: Stage) -> int:
        """Key columns of a tile."""
        return TILE

    def stage(self, run: Run) -> Stage:
        """Plain codes with rope, and the scale of every row."""
        k = super().key(run)
        scale = (self.query_scale(run) * (self.k_scale * self.problem.scale)).astype(np.float32)
        return Stage(run, self.query_numbers(run), k, k[..., : self.problem.D], {"rows": scale})

    def scores(self, stage: Stage, tile: Tile, dots: F64, bias: Optional[F64]) -> F32:
        """All scales at once."""
        return dots.astype(np.float32) * stage.scales["rows"][:, :, :, tile.begin : tile.end]

    def product(self, stage: Stage, tile: Tile, p: F32, share: F32) -> F32:
        """Exponentials in 8 bits times value codes; INT8 scales each tile to its own maximum to fill the 8 bits."""
        v = stage.v[:, :, tile.first : tile.last]
        if not self.integer:
            return dot(eight_bits(self.dtype, p * self.factor), v, transpose=False).astype(np.float32)
        share = share + EVEN_SHARE
        codes = np.rint((p * self.factor / share).astype(np.float16).astype(np.float64))
        return np.asarray(dot(codes, v, transpose=False).astype(np.float32) * share / PARTIAL)

    def added(self, out: F32, fade: F32, u: F32) -> F32:
        """The accumulator, in FLOAT16 between tiles for INT8."""
        found = out * fade + u
        return found.astype(np.float16).astype(np.float32) if self.integer else found

    def finished(self, stage: Stage, tile: Tile, out: F32, total: F32) -> F32:
        """Division by the row sum and by the factor of the exponentials, times the scale of the value."""
        out = out * PARTIAL if self.integer else out
        return np.asarray(out / total / self.factor * np.float32(self.k_scale))
