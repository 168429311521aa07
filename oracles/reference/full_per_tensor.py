"""Full quantisation per tensor: INT8, FLOAT8_E4M3FN, FLOAT8_E5M2 or HIFLOAT8 query, key and value (spec/numerics.md
16.1 to 16.3).

Ideal: query * deqScale1 * scaleValue, value * deqScale2 * quantScale1 (deqScale2 contains 1 / quantScale1).
Stage-wise: scores in FLOAT16 (INT8) or float32, exponentials times quantScale1 and rounded to 8 bits, product times
deqScale2, division by the row sum at the end (which the INT8 reference rounds to FLOAT16, corrections 8).
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from fiafuzz.model.codecs import scale_from_uint64

from .expected import F64, ReferenceError
from .problem import Problem, Run
from .tiled import F32, Stage, Tile, TiledOperands, dot, eight_bits

HALF_MAX = np.float32(65504.0)
INT8_TILE, FP8_TILE, FP8_WIDE_TILE = 1024, 128, 64


def scale_of(problem: Problem, name: str, *, drop_low_bits: bool) -> np.float32:
    """deqScale1 or deqScale2 as float32: FLOAT32, or UINT64 with the pattern in the low half (spec/numerics.md 16.1).

    The matrix unit's register drops the 13 lowest bits of what passes through it.
    """
    stored = problem.stored(name).reshape(-1)
    if stored.size != 1:
        raise ReferenceError(f"{name} has {stored.size} elements instead of 1")
    if stored.dtype == np.uint64:
        stored = scale_from_uint64(stored, drop_low_bits=drop_low_bits)
    elif stored.dtype != np.float32:
        raise ReferenceError(f"{name} is stored as {stored.dtype}")
    elif drop_low_bits:
        stored = (stored.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    found: np.float32 = stored[0]
    return found


class PerTensorOperands(TiledOperands):
    """Operands of per-tensor full quantisation in the ideal form, and their plain codes for the stage-wise one."""

    masked = -65504.0

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.integer = self.scene.q_dtype == "INT8"
        self.deq1 = scale_of(problem, "deqScale1", drop_low_bits=True)
        self.deq2 = scale_of(problem, "deqScale2", drop_low_bits=not self.integer)
        self.p_scale = np.float32(problem.numbers("quantScale1").reshape(-1)[0])

    def query(self, run: Run) -> F64:
        """Query codes * deqScale1 * scaleValue."""
        return self.query_numbers(run) * (float(self.deq1) * self.problem.scale)

    def value(self, run: Run, key: F64) -> F64:
        """Value codes * deqScale2 * quantScale1."""
        return self.side("value", run) * (float(self.deq2) * float(self.p_scale))

    # ---- stage-wise --------------------------------------------------------------------------------

    def tile_size(self, stage: Stage) -> int:
        """1024 columns for INT8, 128 for 8-bit floats (64 for wide equal heads)."""
        if self.integer:
            return INT8_TILE
        D = stage.q.shape[-1]
        return FP8_WIDE_TILE if D > 128 and stage.v.shape[-1] == D else FP8_TILE

    def stage(self, run: Run) -> Stage:
        """Plain codes."""
        return Stage(run, self.query_numbers(run), self.key(run), self.side("value", run), {})

    def scores(self, stage: Stage, tile: Tile, dots: F64, bias: Optional[F64]) -> F32:
        """deqScale1, scale and bias: each step in FLOAT16 for INT8, in float32 for 8-bit floats."""
        x = dots.astype(np.float32) * self.deq1
        if not self.integer:
            x = x * np.float32(self.problem.scale)
            return np.asarray(x if bias is None else x + bias.astype(np.float32))
        half = np.clip(x, -HALF_MAX, HALF_MAX).astype(np.float16)
        with np.errstate(over="ignore"):
            half = half * np.float16(self.problem.scale)
            if bias is not None:
                half = half + bias.astype(np.float16)
        return np.asarray(half.astype(np.float32))

    def product(self, stage: Stage, tile: Tile, p: F32, share: F32) -> F32:
        """Exponentials in 8 bits times value codes times deqScale2; INT8 keeps later tiles in FLOAT16."""
        u = dot(self._quantised(p), stage.v[:, :, tile.first : tile.last], transpose=False).astype(np.float32) * self.deq2
        if self.integer and tile.first:
            u = np.clip(u, -HALF_MAX, HALF_MAX).astype(np.float16).astype(np.float32)
        return u

    def _quantised(self, p: F32) -> F64:
        if not self.integer:
            return eight_bits(self.scene.q_dtype or "", p * self.p_scale, hybrid=True)
        scaled = (p.astype(np.float16) * self.p_scale.astype(np.float16)).astype(np.float64)
        return np.asarray(np.clip(np.rint(scaled), -128, 127))

    def finished(self, stage: Stage, tile: Tile, out: F32, total: F32) -> F32:
        """Division by the row sum."""
        return out / (total.astype(np.float16).astype(np.float32) if self.integer else total)
