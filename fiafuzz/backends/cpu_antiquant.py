"""Antiquant: a FLOAT16/BFLOAT16 query beside INT8, INT4, FP8, HIFLOAT8 or FP4 keys and values.

``(code + offset) * scale`` tile by tile, then the plain kernel. Roundings by format as the operator's published
computation has them: INT8 float32 throughout, INT4 FLOAT16 after every step, FP8 and HIFLOAT8 FLOAT16 after the
product, FP4 exact (spec/numerics.md 15, numerics_corrections.md 2, 3, 5, 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from torch import Tensor

from .cpu_kernel import Kernel
from .cpu_numbers import to_half, widen
from .cpu_operands import gather_blocks, split_axis, used_blocks
from .cpu_problem import CannotRun, Span, need

FIXED, TOKEN, PAGED = "fixed", "token", "paged"
GROUP = 32
"""Elements along D that share one E8M0 scale."""


@dataclass
class Parameter:
    """A scale or offset in one order: ``fixed`` (N|1, 1, D|1), ``token`` (B|1, N|1, S, D|1) or ``paged`` (nb, N|1, bs,
    1)."""

    how: str
    x: Tensor


@dataclass
class Dequantiser:
    """Scale and offset of the keys or of the values."""

    scale: Parameter
    offset: Optional[Parameter]


class AntiquantKernel(Kernel):
    """One call with antiquant."""

    def load(self) -> None:
        """Scales and offsets of key and value, from the separate parameters or, without them, the combined ones."""
        scene = self.p.scene
        separate = scene.given("keyAntiquantScale") or scene.given("valueAntiquantScale")
        need(separate or scene.given("antiquantScale"), "antiquant without scales")
        self.of_key = self.dequantiser("key", self.p.D, separate)
        self.of_value = self.dequantiser("value", self.p.V_D, separate)

    def dequantiser(self, which: str, head: int, separate: bool) -> Dequantiser:
        """Scale and offset of ``which`` ("key" or "value") with ``head`` columns a head."""
        scene, attrs = self.p.scene, self.p.scene.attrs
        if separate:
            mode = attrs.keyAntiquantMode if which == "key" else attrs.valueAntiquantMode
            scale = self.parameter(f"{which}AntiquantScale", self.x.tensor(f"{which}AntiquantScale"), mode, head)
            name = f"{which}AntiquantOffset"
            offset = self.parameter(name, self.x.tensor(name), mode, head) if scene.given(name) else None
            return Dequantiser(scale, offset)
        half = self.half_of_combined(which)
        scale = self.parameter("antiquantScale", self.combined("antiquantScale", half), attrs.antiquantMode, head)
        offset = None
        if scene.given("antiquantOffset"):
            offset = self.parameter(
                "antiquantOffset", self.combined("antiquantOffset", half), attrs.antiquantMode, head
            )
        return Dequantiser(scale, offset)

    def half_of_combined(self, which: str) -> int:
        """Index on the leading axis of the combined parameters: key first, value second."""
        return 0 if which == "key" else 1

    def combined(self, name: str, half: int) -> Tensor:
        """One half of a combined parameter."""
        x = self.x.tensor(name)
        need(x.dim() >= 1 and x.shape[0] == 2, f"{name} has no leading axis of 2")
        return x[half]

    def parameter(self, name: str, x: Tensor, mode: int, head: int) -> Parameter:
        """A scale or offset as float32 in the order of its mode (spec/numerics.md 15.1)."""
        p = self.p
        shape, dtype = tuple(x.shape), p.scene.dtype(name) or ""
        need(x.is_floating_point() or dtype == "FLOAT8_E8M0", f"{name} of dtype {dtype}")
        x = widen(x, dtype)
        wrong = f"{name} of shape {shape} does not fit mode {mode}"
        if mode == 0:
            if x.numel() == 1:
                return Parameter(FIXED, x.reshape(1, 1, 1))
            need(x.numel() == p.KV_N * head, wrong)
            return Parameter(FIXED, x.reshape(p.KV_N, 1, head))
        if mode == 1:
            x = x[0] if x.dim() == 3 and shape[0] == 1 else x
            need(x.dim() == 2 and x.shape[0] >= p.B, wrong)
            return self.per_token(name, x[:, None, :, None])
        if mode == 2:
            need(x.numel() == p.KV_N, wrong)
            return Parameter(FIXED, x.reshape(p.KV_N, 1, 1))
        if mode == 3:
            need(x.dim() == 3 and x.shape[0] >= p.B and x.shape[1] == p.KV_N, wrong)
            return self.per_token(name, x[..., None])
        if mode in (4, 5):
            cache = self.x.key.cache
            need(
                cache is not None and x.dim() == mode - 2 and shape[0] >= cache.shape[0] and shape[-1] == p.block_size,
                wrong,
            )
            need(mode == 4 or shape[1] == p.KV_N, wrong)
            return Parameter(PAGED, (x[:, None] if mode == 4 else x)[..., None])
        if mode == 6:
            return self.per_token(name, self.group_scales(x, head, wrong))
        raise CannotRun(f"antiquant mode {mode}")

    def group_scales(self, x: Tensor, head: int, wrong: str) -> Tensor:
        """E8M0 scales (1, B, N, S, D/32), or (1, B, S, H/32) of the combined form, as (B, N, S, D)."""
        p = self.p
        groups = -(-head // GROUP)
        if x.dim() == 4 and x.shape[0] == 1 and x.shape[3] == p.KV_N * groups:
            x = split_axis(x, -1, p.KV_N, groups).transpose(2, 3)
        need(
            x.dim() == 5 and x.shape[0] == 1 and x.shape[1] >= p.B and x.shape[2] == p.KV_N and x.shape[4] == groups,
            wrong,
        )
        return self.spread_groups(x[0], head)

    def spread_groups(self, x: Tensor, head: int) -> Tensor:
        """Every group scale once per element of its group."""
        return x.repeat_interleave(GROUP, dim=-1)[..., :head]

    def per_token(self, name: str, x: Tensor) -> Parameter:
        """A parameter with a position axis (B, N|1, S, D|1), after checking that the axis reaches far enough."""
        reach = max((s.kv_col + self.p.columns(s) for s in self.p.spans if s.q_len), default=0)
        need(x.shape[2] >= reach, f"{name} has {x.shape[2]} positions for {reach} columns")
        return Parameter(TOKEN, x)

    # ---- per span and tile -----------------------------------------------------------------------------

    def fetch_parameter(self, parameter: Optional[Parameter], span: Span) -> Optional[Tensor]:
        """A parameter for the columns of a span, (count|1, N|1, columns|1, D|1). Per-token parameters are indexed by
        padded position; with a shared prefix its columns come first on the same axis."""
        if parameter is None:
            return None
        if parameter.how == FIXED:
            return parameter.x.unsqueeze(0)
        if parameter.how == PAGED:
            return self.by_block(parameter.x, span)
        x = parameter.x[span.first : span.first + span.count]
        at = self.token_at(span)
        return x[:, :, at : at + self.p.columns(span)]

    def token_at(self, span: Span) -> int:
        """Where the span's first column stands on the position axis of per-token parameters."""
        return span.kv_col

    def by_block(self, x: Tensor, span: Span) -> Tensor:
        """A parameter that lies in cache blocks, read through the block table."""
        assert self.x.table is not None
        blocks = used_blocks(self.x.table, span, self.p.block_size, x.shape[0])
        return gather_blocks(x, blocks, span.kv_len)

    def keys(self, span: Span) -> Any:
        """Codes, scale and offset of the span's keys."""
        return (
            self.x.key.fetch(span),
            self.fetch_parameter(self.of_key.scale, span),
            self.fetch_parameter(self.of_key.offset, span),
        )

    def values(self, span: Span) -> Any:
        """Codes, scale and offset of the span's values."""
        return (
            self.x.value.fetch(span),
            self.fetch_parameter(self.of_value.scale, span),
            self.fetch_parameter(self.of_value.offset, span),
        )

    def key_tile(self, keys: Any, span: Span, j0: int, j1: int) -> Tensor:
        """float32 keys of the columns [j0, j1)."""
        return self.dequantise_tile(keys, j0, j1)

    def value_tile(self, values: Any, span: Span, j0: int, j1: int) -> Tensor:
        """float32 values of the columns [j0, j1)."""
        return self.dequantise_tile(values, j0, j1)

    def dequantise_tile(self, operands: Any, j0: int, j1: int) -> Tensor:
        """Codes, scale and offset cut to the columns [j0, j1) and combined."""
        codes, scale, offset = operands
        cut = [None if x is None else x if x.shape[2] == 1 else x[:, :, j0:j1] for x in (scale, offset)]
        return self.dequantise(self.decode(codes[:, :, j0:j1]), cut[0], cut[1])

    def decode(self, codes: Tensor) -> Tensor:
        """The numbers that codes stand for, float32."""
        return widen(codes, self.p.kv_dtype)

    def dequantise(self, x: Tensor, scale: Optional[Tensor], offset: Optional[Tensor]) -> Tensor:
        """(x + offset) * scale with the roundings of the format; the offset is added before the multiplication."""
        assert scale is not None
        dtype = self.p.kv_dtype
        if dtype == "INT4":
            if offset is not None:
                x = to_half(x + to_half(offset))
            return to_half(x * to_half(scale))
        if offset is not None:
            x = x + offset
        x = x * scale
        return x if dtype in ("INT8", "FLOAT4_E2M1") else to_half(x)
