"""Full quantisation: query, key and value in 8 bits, each kind with the operator's tile-wise roundings of P.

Per-tensor INT8, FP8 and HIFLOAT8 (spec/numerics.md 16.2, 16.3), Decode MLA (16.4) and FP8 GQA (16.5). MXFP8 is in
cpu_mxfp8.py. Integer dot products are exact in float32: a tile has at most 1024 columns, so sums stay below 2**24.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .cpu_kernel import Kernel
from .cpu_numbers import to_fp8, to_half, to_hif8, widen
from .cpu_operands import gather_blocks, heads_first, used_blocks
from .cpu_problem import Span, need

HALF_MAX = 65504.0
TINY = 1e-20
"""Keeps the operator's FP8 division finite."""


def without_low_bits(x: float) -> float:
    """A float32 without its low 13 mantissa bits, which the matrix unit's dequantisation register drops (16.1)."""
    bits = torch.tensor(x, dtype=torch.float32).view(torch.int32) & -0x2000
    return float(bits.view(torch.float32))


class FullKernel(Kernel):
    """What the kinds share: operands by value, scales elsewhere."""

    def queries(self, span: Span) -> Tensor:
        """Query codes as numbers."""
        return self.split_heads(widen(self.rows_of(self.x.query, span), self.p.q_dtype))

    def key_tile(self, keys: Any, span: Span, j0: int, j1: int) -> Tensor:
        """Key codes as numbers."""
        return widen(keys[0][:, :, j0:j1], self.p.kv_dtype)

    def value_tile(self, values: Any, span: Span, j0: int, j1: int) -> Tensor:
        """Value codes as numbers."""
        return widen(values[:, :, j0:j1], self.p.kv_dtype)


class PerTensorInt8(FullKernel):
    """Per-tensor INT8: scores and partial products pass through FLOAT16 (16.2, numerics_corrections.md 8)."""

    tile = 1024

    def load(self) -> None:
        """deqScale1, quantScale1 and deqScale2, one number each."""
        self.deq1 = without_low_bits(self.x.scalar("deqScale1"))
        self.quant1 = self.x.scalar("quantScale1")
        self.deq2 = self.x.scalar("deqScale2")

    def scale_scores(self, dots: Tensor, span: Span, i0: int, i1: int, j0: int, j1: int) -> Tensor:
        """Dequantised, clamped and rounded to FLOAT16, then times scaleValue in FLOAT16."""
        x = to_half(dots.mul_(self.deq1).clamp_(-HALF_MAX, HALF_MAX))
        return to_half(x * to_half(torch.tensor(self.p.scale)))

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        """Bias added in FLOAT16."""
        return to_half(scores + bias)

    def round_p(self, p: Tensor) -> Tensor:
        """P times quantScale1 in FLOAT16, as INT8 numbers."""
        return to_half(to_half(p) * to_half(torch.tensor(self.quant1))).round_().clamp_(-128, 127)

    def weigh(self, p: Tensor, v: Tensor, first: bool) -> Tensor:
        """Dequantised product of one tile; from the second tile on it passes through FLOAT16."""
        part = super().weigh(p, v, first).mul_(self.deq2)
        return part if first else to_half(part.clamp_(-HALF_MAX, HALF_MAX))

    def blank_codes(self, codes: Tensor, empty: Tensor) -> Tensor:
        """Fully masked rows are quantised like others: they hold the rounded offset (numerics_corrections.md 10)."""
        return codes

    def normalise(self, acc: Tensor, total: Tensor) -> Tensor:
        """The sum is rounded to FLOAT16 before the division, the accumulator is not."""
        return acc / to_half(total)


class PerTensorFloat8(FullKernel):
    """Per-tensor FP8 or HIFLOAT8: float32 throughout, P in the format of the data (16.3)."""

    def load(self) -> None:
        """deqScale1, quantScale1 and deqScale2, one number each; a tile of 128, 64 for wide heads."""
        self.deq1 = without_low_bits(self.x.scalar("deqScale1"))
        self.quant1 = self.x.scalar("quantScale1")
        self.deq2 = without_low_bits(self.x.scalar("deqScale2"))
        self.tile = 64 if self.p.D > 128 and self.p.D == self.p.V_D else 128

    def scale_scores(self, dots: Tensor, span: Span, i0: int, i1: int, j0: int, j1: int) -> Tensor:
        """Dequantised, times scaleValue."""
        return dots.mul_(self.deq1).mul_(self.p.scale)

    def round_p(self, p: Tensor) -> Tensor:
        """P times quantScale1 in the format of the data."""
        return to_hif8(p * self.quant1) if self.p.q_dtype == "HIFLOAT8" else to_fp8(p * self.quant1, self.p.q_dtype)

    def weigh(self, p: Tensor, v: Tensor, first: bool) -> Tensor:
        """Dequantised product of one tile."""
        return super().weigh(p, v, first).mul_(self.deq2)


class DecodeMla(FullKernel):
    """Decode MLA: V is the nope part of K, rope halves come divided by the scales of the nope halves (16.4)."""

    TOP = {"INT8": 127.0, "FLOAT8_E4M3FN": 448.0, "FLOAT8_E5M2": 57344.0, "HIFLOAT8": 32768.0}
    """P of 1 in the data's format."""

    def load(self) -> None:
        """dequantScaleQuery (per token and head) and keyAntiquantScale (one number, which serves V too)."""
        p = self.p
        self.key_scale = self.x.scalar("keyAntiquantScale")
        x = self.x.tensor("dequantScaleQuery").float()
        axes = {"BSH": "BSND", "BSND": "BSND", "BNSD": "BNSD", "TND": "TND", "NTD": "NTD"}[p.q_axes]
        sizes = {"B": p.B, "S": p.q_size, "T": p.q_size, "N": p.Q_N}
        want = tuple(sizes[a] for a in axes[:-1])
        need(tuple(x.shape) == want, f"dequantScaleQuery has shape {tuple(x.shape)}, not {want}")
        self.query_scale = heads_first(x.unsqueeze(-1), axes, p.Q_N)

    def queries(self, span: Span) -> Tensor:
        """Nope codes as numbers, rope columns behind them."""
        assert self.x.query_rope is not None
        nope = widen(self.rows_of(self.x.query, span), self.p.q_dtype)
        return self.split_heads(self.with_rope(nope, self.rows_of(self.x.query_rope, span).float()))

    def key_tile(self, keys: Any, span: Span, j0: int, j1: int) -> Tensor:
        """Nope codes as numbers, rope columns behind them."""
        return self.with_rope(widen(keys[0][:, :, j0:j1], self.p.kv_dtype), keys[1][:, :, j0:j1].float())

    def scale_scores(self, dots: Tensor, span: Span, i0: int, i1: int, j0: int, j1: int) -> Tensor:
        """Nope and rope together times scale of the query row, of the keys and scaleValue."""
        rows = self.split_heads(self.rows_of(self.query_scale, span))[..., i0:i1, :]
        return dots.mul_(rows * (self.p.scale * self.key_scale))

    def round_p(self, p: Tensor) -> Tensor:
        """P stretched over the range of the data's format."""
        dtype = self.p.q_dtype
        p = p * self.TOP[dtype]
        if dtype == "INT8":
            return to_half(p).round_()
        return to_hif8(p) if dtype == "HIFLOAT8" else to_fp8(p, dtype)

    def normalise(self, acc: Tensor, total: Tensor) -> Tensor:
        """Division, then the range of P and the scale of V taken back."""
        return acc / total * (self.key_scale / self.TOP[self.p.q_dtype])


class GqaFp8(FullKernel):
    """FP8 GQA: scales per query token and head, per cached key row, per value head; pScale widens P (16.5)."""

    tile = 256

    def load(self) -> None:
        """dequantScaleQuery (Q_N, T), keyAntiquantScale (nb, KV_N, bs), valueAntiquantScale (KV_N), quantScale1."""
        p = self.p
        need(p.packed and p.storage == "paged", "FP8 GQA without a packed layout and a paged cache")
        self.p_scale = self.x.scalar("quantScale1", 1.0)
        need(self.p_scale > 0, "quantScale1 is not positive")
        query = self.x.tensor("dequantScaleQuery").float()
        need(tuple(query.shape) == (p.Q_N, p.q_size), f"dequantScaleQuery has shape {tuple(query.shape)}")
        self.query_scale = query.unsqueeze(-1)
        key = self.x.tensor("keyAntiquantScale").float()
        assert self.x.key.cache is not None
        need(
            key.dim() == 3
            and key.shape[0] >= self.x.key.cache.shape[0]
            and tuple(key.shape[1:]) == (p.KV_N, p.block_size),
            f"keyAntiquantScale has shape {tuple(key.shape)}",
        )
        self.key_scale = key.unsqueeze(-1)
        value = self.x.tensor("valueAntiquantScale").float()
        need(value.numel() == p.KV_N, f"valueAntiquantScale has shape {tuple(value.shape)}")
        self.value_scale = value.reshape(1, p.KV_N, 1, 1, 1)

    def keys(self, span: Span) -> Any:
        """Key codes and the scale of each key row."""
        return self.x.key.fetch(span), self.key_scales(span)

    def key_scales(self, span: Span) -> Tensor:
        """(count, KV_N, columns, 1), read through the block table."""
        assert self.x.table is not None
        blocks = used_blocks(self.x.table, span, self.p.block_size, self.key_scale.shape[0])
        return gather_blocks(self.key_scale, blocks, span.kv_len)

    def scale_scores(self, dots: Tensor, span: Span, i0: int, i1: int, j0: int, j1: int) -> Tensor:
        """Dot products times (query scale * scaleValue), times the scale of the key row."""
        rows = self.split_heads(self.rows_of(self.query_scale, span))[..., i0:i1, :]
        columns = self.key_scales(span)[:, :, j0:j1].transpose(-1, -2).unsqueeze(2)
        return dots.mul_(rows * self.p.scale).mul_(columns)

    def reference_point(self, best: Tensor) -> Tensor:
        """The running maximum less ln(pScale), so that P reaches up to pScale."""
        return best - math.log(self.p_scale)

    def round_p(self, p: Tensor) -> Tensor:
        """P in FP8."""
        return to_fp8(p, "FLOAT8_E4M3FN")

    def normalise(self, acc: Tensor, total: Tensor) -> Tensor:
        """Value scale, then the division."""
        return acc * self.value_scale / (total + TINY)

    def logsumexp(self, shift: Tensor, total: Tensor) -> Tensor:
        """pScale cancels: it is in the sum and, reversed, in the reference point."""
        return shift + (total + TINY).log()
