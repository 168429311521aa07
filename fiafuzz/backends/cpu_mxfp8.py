"""MXFP8 full quantisation: E4M3 data with one E8M0 scale per 32 elements (spec/numerics.md 16.6).

Groups run along D for query and key, along the sequence for value, where they restart with every batch (or with
every cache block) and come in pairs.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .cpu_full import TINY, FullKernel
from .cpu_numbers import to_fp8, widen
from .cpu_operands import used_blocks
from .cpu_problem import Span, need

GROUP = 32
LOG2_E = 1.4426950
LN_2 = 0.6931472


class MxFp8(FullKernel):
    """One call of MXFP8 full quantisation."""

    tile = 256

    def load(self) -> None:
        """dequantScaleQuery, keyAntiquantScale, valueAntiquantScale (E8M0) and quantScale1 (pScale)."""
        p = self.p
        need(p.packed, "MXFP8 without a packed layout")
        self.p_scale = self.x.scalar("quantScale1", 1.0)
        need(self.p_scale > 0, "quantScale1 is not positive")
        pairs = -(-p.D // 64)
        query = self.scales("dequantScaleQuery")
        if query.dim() == 5:
            need(
                tuple(query.shape) == (p.KV_N, p.q_size, p.G, pairs, 2),
                f"dequantScaleQuery has shape {tuple(query.shape)}",
            )
            query = query.transpose(1, 2).flatten(0, 1)
        else:
            need(tuple(query.shape) == (p.q_size, p.Q_N, pairs, 2), f"dequantScaleQuery has shape {tuple(query.shape)}")
            query = query.transpose(0, 1)
        self.query_scale = self.spread_columns(query)
        self.key_scale = self.scales("keyAntiquantScale")
        self.value_scale = self.scales("valueAntiquantScale")
        self.check_scales(pairs)

    def check_scales(self, pairs: int) -> None:
        """CannotRun unless the scales of key and value have the shapes of their storage."""
        p = self.p
        key, value = tuple(self.key_scale.shape), tuple(self.value_scale.shape)
        if p.storage != "paged":
            groups = sum(self.value_pairs(s) for s in p.spans)
            need(key == (p.kv_size, p.KV_N, pairs, 2), f"keyAntiquantScale has shape {key}")
            need(
                len(value) == 4 and value[0] >= groups and value[1:] == (p.KV_N, p.V_D, 2),
                f"valueAntiquantScale has shape {value}",
            )
            return
        assert self.x.key.cache is not None
        blocks, size = self.x.key.cache.shape[0], p.block_size
        need(size % 64 == 0, f"blockSize {size} is no multiple of 64")
        if self.x.key.cache.dim() == 5:
            need(p.V_D % 16 == 0, f"V_D {p.V_D} is no multiple of 16")
            need(
                key[:1] >= (blocks,) and key[1:] == (p.KV_N, size // 16, pairs, 16, 2),
                f"keyAntiquantScale has shape {key}",
            )
            need(
                value[:1] >= (blocks,) and value[1:] == (p.KV_N, p.V_D // 16, size // 64, 16, 2),
                f"valueAntiquantScale has shape {value}",
            )
            self.key_scale = self.key_scale.transpose(3, 4).flatten(2, 3)
            self.value_scale = self.value_scale.transpose(2, 3).flatten(3, 4)
        else:
            need(key[:1] >= (blocks,) and key[1:] == (p.KV_N, size, pairs, 2), f"keyAntiquantScale has shape {key}")
            need(
                value[:1] >= (blocks,) and value[1:] == (p.KV_N, size // 64, p.V_D, 2),
                f"valueAntiquantScale has shape {value}",
            )

    def scales(self, name: str) -> Tensor:
        """An E8M0 tensor as float32 powers of two."""
        need(self.p.scene.dtype(name) == "FLOAT8_E8M0", f"{name} of dtype {self.p.scene.dtype(name)}")
        return self.scale_values(self.x.tensor(name))

    def scale_values(self, codes: Tensor) -> Tensor:
        """2**(code - 127)."""
        return widen(codes, "FLOAT8_E8M0")

    def value_pairs(self, span: Span) -> int:
        """Pairs of value groups that a batch takes up in the contiguous form."""
        groups = (span.kv_len + GROUP - 1) // GROUP
        return (groups + 1) // 2

    def spread_columns(self, x: Tensor) -> Tensor:
        """Scales (.., D/64, 2) once per column, (.., D)."""
        return x.flatten(-2).repeat_interleave(GROUP, dim=-1)[..., : self.p.D]

    def spread_rows(self, x: Tensor, length: int) -> Tensor:
        """Value scales (KV_N, pairs, V_D, 2) once per row, (KV_N, length, V_D)."""
        return x.transpose(2, 3).flatten(1, 2).repeat_interleave(GROUP, dim=1)[:, :length]

    def queries(self, span: Span) -> Tensor:
        """Query times its scales, rope columns behind."""
        q = widen(self.rows_of(self.x.query, span), self.p.q_dtype) * self.rows_of(self.query_scale, span)
        if self.x.query_rope is not None:
            q = self.with_rope(q, self.rows_of(self.x.query_rope, span).float())
        return self.split_heads(q)

    def keys(self, span: Span) -> Any:
        """Key codes, rope keys and scales (1, KV_N, columns, D) of the span."""
        rope = self.x.key_rope.fetch(span) if self.x.key_rope is not None else None
        return self.x.key.fetch(span), rope, self.key_scales(span)

    def key_scales(self, span: Span) -> Tensor:
        """(1, KV_N, columns, D)."""
        if self.p.storage == "paged":
            found = self.key_scale[self.block_list(span)].transpose(0, 1).flatten(1, 2)[:, : span.kv_len]
        else:
            found = self.key_scale[span.kv_at : span.kv_at + span.kv_len].transpose(0, 1)
        return self.spread_columns(found).unsqueeze(0)

    def values(self, span: Span) -> Any:
        """Value codes and scales (1, KV_N, columns, V_D) of the span."""
        return self.x.value.fetch(span), self.value_scales(span)

    def value_scales(self, span: Span) -> Tensor:
        """(1, KV_N, columns, V_D); in the contiguous form each batch starts a new pair of groups."""
        if self.p.storage == "paged":
            found = self.value_scale[self.block_list(span)].transpose(0, 1).flatten(1, 2)
        else:
            at = self.first_value_pair(span)
            found = self.value_scale[at : at + self.value_pairs(span)].transpose(0, 1)
        return self.spread_rows(found, span.kv_len).unsqueeze(0)

    def first_value_pair(self, span: Span) -> int:
        """Where the pairs of a batch begin."""
        return sum(self.value_pairs(s) for s in self.p.spans if s.first < span.first)

    def block_list(self, span: Span) -> Tensor:
        """Ids of the blocks that a span reads."""
        assert self.x.table is not None and self.x.key.cache is not None
        return used_blocks(self.x.table, span, self.p.block_size, self.x.key.cache.shape[0])[0].long()

    def key_tile(self, keys: Any, span: Span, j0: int, j1: int) -> Tensor:
        """Keys times their scales, rope columns behind."""
        nope, rope, scales = keys
        tile: Tensor = widen(nope[:, :, j0:j1], self.p.kv_dtype) * scales[:, :, j0:j1]
        return tile if rope is None else self.with_rope(tile, rope[:, :, j0:j1].float())

    def value_tile(self, values: Any, span: Span, j0: int, j1: int) -> Tensor:
        """Values times their scales."""
        codes, scales = values
        tile: Tensor = widen(codes[:, :, j0:j1], self.p.kv_dtype) * scales[:, :, j0:j1]
        return tile

    def reference_point(self, best: Tensor) -> Tensor:
        """The running maximum rounded up to a multiple of ln 2, less ln(pScale)."""
        return torch.ceil(best * LOG2_E) * LN_2 - math.log(self.p_scale)

    def round_p(self, p: Tensor) -> Tensor:
        """P in FP8."""
        return to_fp8(p, "FLOAT8_E4M3FN")

    def normalise(self, acc: Tensor, total: Tensor) -> Tensor:
        """The one division."""
        return acc / (total + TINY)

    def logsumexp(self, shift: Tensor, total: Tensor) -> Tensor:
        """ln(pScale) stays in: the rounded maximum is stored before it is subtracted."""
        return shift + math.log(self.p_scale) + total.log()
