"""Quantised keys and values under a float query: k = (code + offset) * scale (spec/numerics.md 15, corrections 2 to
7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.codecs import decode, encode

from .expected import F64, ReferenceError, Stored
from .operands import Operands
from .problem import Problem, Run
from .storage import paged_per_token

EXACT, REFERENCE, STEPS, ONCE = "exact", "reference", "steps", "once"
"""Orders of rounding: none; the published reference's; every step in the query dtype (950); the product alone (once).
"""

GROUP = 32
"""Elements that share one E8M0 scale."""


@dataclass(frozen=True)
class Side:
    """The antiquant parameters of key or value: ``mode`` as in the attribute, stored scale and offset with their
    dtypes.
    """

    mode: int
    scale: Stored
    scale_dtype: str
    offset: Optional[Stored]
    offset_dtype: str


def side_of(problem: Problem, name: str) -> Side:
    """The parameters of "key" or "value": the separate ones, else the row of the old combined ones (spec/numerics.md
    15.2).
    """
    scene = problem.scene
    if not scene.merged_antiquant:
        scale, offset = f"{name}AntiquantScale", f"{name}AntiquantOffset"
        mode = scene.antiquant_modes[0 if name == "key" else 1]
        return _side(problem, mode, scale, offset, None)
    return _side(problem, scene.case.attrs.antiquantMode, "antiquantScale", "antiquantOffset", 0 if name == "key" else 1)


def _side(problem: Problem, mode: int, scale: str, offset: str, row: Optional[int]) -> Side:
    given = problem.scene.given(offset)
    parts = [problem.stored(scale), problem.stored(offset) if given else None]
    if row is not None:
        if any(p is not None and (p.ndim == 0 or p.shape[0] != 2) for p in parts):
            raise ReferenceError("combined antiquant parameters need a leading axis of 2")
        parts = [None if p is None else p[row] for p in parts]
    first, second = parts
    assert first is not None
    return Side(mode, first, problem.dtype(scale), second, problem.dtype(offset) if given else "")


class AntiquantOperands(Operands):
    """Operands with dequantised keys and values, under one of the orders of rounding."""

    def __init__(self, problem: Problem, order: str = EXACT) -> None:
        super().__init__(problem)
        self.order = order
        self.sides = {name: side_of(problem, name) for name in ("key", "value")}

    def widened(self, name: str, stored: Stored, run: Run, *, prefix: bool) -> F64:
        """(code + offset) * scale of key, value or a prefix of theirs, float64."""
        codes = self.numbers(name, stored)
        side = self.sides.get("value" if name.startswith("value") else "key")
        if side is None or name == "keyRope":
            return codes
        width = codes.shape[-1]
        scale = self._spread(side, side.scale, side.scale_dtype, run, prefix, width)
        offset = None
        if side.offset is not None:
            offset = self._spread(side, side.offset, side.offset_dtype, run, prefix, width)
        return self._combined(self.problem.dtype(name), codes, scale, offset)

    def _combined(self, dtype: str, codes: F64, scale: F64, offset: Optional[F64]) -> F64:
        work = self.scene.q_dtype or "FLOAT16"
        if self.order == REFERENCE:
            return _as_reference("INT4" if self.scene.int4_carrier else dtype, codes, scale, offset)
        if self.order == STEPS:
            codes = codes if offset is None else rounded(work, codes + rounded(work, offset))
            return rounded(work, rounded(work, codes) * rounded(work, scale))
        if offset is not None:
            codes = codes + offset
        codes = codes * scale
        return rounded(work, codes) if self.order == ONCE else codes

    def _spread(self, side: Side, stored: Stored, dtype: str, run: Run, prefix: bool, width: int) -> F64:
        """A parameter as (1 or batches, 1 or heads, 1 or columns, 1 or width), float64 (index rules: spec/numerics.md
        15.1).
        """
        p = self.problem
        N, heads = p.KV_N, run.heads
        batches = slice(run.first, run.first + run.count)
        at = 0 if prefix else run.prefix + run.k_begin
        tokens = slice(at, at + (run.prefix if prefix else run.cols))
        part: Stored
        if side.mode == 0 and stored.size == 1:
            part = stored.reshape(1, 1, 1, 1)
        elif side.mode == 0:
            part = _shaped(stored, (1, N, 1, width))[:, heads]
        elif side.mode == 1:
            part = _shaped(stored, (p.B, -1))[batches, None, tokens, None]
        elif side.mode == 2:
            part = _shaped(stored, (1, N, 1, 1))[:, heads]
        elif side.mode == 3:
            part = _shaped(stored, (p.B, N, -1))[batches, heads, tokens, None]
        elif side.mode in (4, 5):
            got = paged_per_token(stored, self.ids(run, p.stored("key")), run.cols)
            part = (got if side.mode == 4 else got[:, heads])[..., None]
        elif side.mode == 6:
            groups = -(-width // GROUP)
            if stored.ndim == 4:  # the old combined form (1, B, S, H / 32)
                part = _shaped(stored, (p.B, -1, N, groups)).transpose(0, 2, 1, 3)[batches, heads, tokens]
            else:
                part = _shaped(stored, (p.B, N, -1, groups))[batches, heads, tokens]
            part = np.repeat(part, GROUP, axis=-1)[..., :width]
        else:
            raise ReferenceError(f"antiquant mode {side.mode} is not computed")
        if part.ndim == 4 and part.shape[2] not in (1, tokens.stop - tokens.start):
            raise ReferenceError(f"antiquant parameter of shape {stored.shape} has no {tokens.stop} tokens")
        return np.asarray(decode(dtype, np.ascontiguousarray(part)), dtype=np.float64)

    @property
    def disputed(self) -> str:
        """Why sources index the parameters differently: per-token axis behind a prefix that is not exactly P + KV_S."""
        if not self.problem.prefix:
            return ""
        for side in self.sides.values():
            axis = {1: -1, 3: -1, 6: -2}.get(side.mode)
            if axis is not None and side.scale.shape[axis] != self.problem.prefix + (self.scene.KV_S or 0):
                return "per-token parameters behind a prefix with another axis than prefix + KV_S"
        return ""


def _shaped(stored: Stored, shape: tuple[int, ...]) -> Stored:
    """The parameter in another shape; ReferenceError when the elements do not fit."""
    known = int(np.prod([n for n in shape if n >= 0]))
    if stored.size % max(known, 1) or (-1 not in shape and stored.size != known):
        raise ReferenceError(f"antiquant parameter of shape {stored.shape} does not fit {shape}")
    return stored.reshape(shape)


def rounded(dtype: str, numbers: F64) -> F64:
    """Numbers rounded to a dtype (nearest even) and back."""
    if dtype == "FLOAT16":
        with np.errstate(over="ignore"):
            return numbers.astype(np.float16).astype(np.float64)
    return np.asarray(decode(dtype, encode(dtype, numbers)), dtype=np.float64)


def _as_reference(dtype: str, codes: F64, scale: F64, offset: Optional[F64]) -> F64:
    """As the published reference rounds: INT8 float32, INT4 every step FLOAT16, FP8 and HIFLOAT8 the product, FP4
    nothing.
    """
    half = "FLOAT16"
    if dtype == "INT4":
        total = codes if offset is None else rounded(half, codes + rounded(half, offset))
        return rounded(half, total * rounded(half, scale))
    if dtype == "INT8":
        single: NDArray[np.float32] = codes.astype(np.float32)
        if offset is not None:
            single = single + offset.astype(np.float32)
        return np.asarray(single * scale.astype(np.float32), dtype=np.float64)
    if dtype.startswith("FLOAT4"):
        return codes * scale
    return rounded(half, (codes.astype(np.float32) * scale.astype(np.float32)).astype(np.float64))
