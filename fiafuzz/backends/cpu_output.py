"""Writing results: output layouts, casts, post-quantisation, padding rows (spec/numerics.md 1.1, 3.1, 17)."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor

from fiafuzz.model.codecs import encode

from .cpu_numbers import as_torch, to_fp8, to_half
from .cpu_operands import Operands, heads_first
from .cpu_problem import CannotRun, Problem, Span, need


class Output:
    """The output buffers of a call and what is written into them."""

    p: Problem
    x: Operands

    def open_outputs(self, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
        """Take the buffers; CannotRun when one is missing or not of the case's shape."""
        p = self.p
        buffer = outputs.get("attentionOut")
        out = p.scene.out
        need(
            buffer is not None and out is not None and buffer.shape == out.shape and buffer.flags.writeable,
            "no buffer for attentionOut",
        )
        assert buffer is not None
        self.out_buffer = as_torch(buffer, p.out_dtype)
        self.out = heads_first(self.out_buffer, p.out_axes, p.Q_N)
        self.lse: Optional[Tensor] = None
        if p.lse_on:
            found = outputs.get("softmaxLse")
            need(found is not None and found.flags.writeable and found.dtype == np.float32, "no buffer for softmaxLse")
            assert found is not None
            self.lse_buffer = lse = torch.from_numpy(found).squeeze(-1)
            self.lse = lse.transpose(0, 1) if p.packed else lse
        self.quant_scale: Optional[Tensor] = None
        self.quant_offset: Optional[Tensor] = None
        if p.scene.post_quant_on:
            self.quant_scale, self.quant_offset = self.post_quant_parameters()

    def post_quant_parameters(self) -> tuple[Tensor, Optional[Tensor]]:
        """quantScale2 and quantOffset2 as float32, one number or (Q_N, 1, V_D)."""
        scale = self.per_head_column("quantScale2")
        offset = self.per_head_column("quantOffset2") if self.p.scene.given("quantOffset2") else None
        return scale, offset

    def per_head_column(self, name: str) -> Tensor:
        """A post-quantisation parameter as float32: one number, or (Q_N, 1, V_D) indexed by head and column."""
        p = self.p
        x = self.x.tensor(name)
        need(x.is_floating_point(), f"{name} of dtype {p.scene.dtype(name)}")
        x = x.float()
        if x.numel() == 1:
            return x.reshape(())
        need(x.numel() == p.Q_N * p.V_D, f"{name} has {x.numel()} elements, not 1 or {p.Q_N * p.V_D}")
        return x.reshape(p.Q_N, 1, p.V_D)

    def blank(self) -> None:
        """Rows that nothing is computed for: 0 and +inf. Packed rows behind the last length stay as they are."""
        p = self.p
        if not p.packed:
            self.out.zero_()
            if self.lse is not None:
                self.lse.fill_(torch.inf)

    def write(self, span: Span, i0: int, o: Tensor, lse: Tensor, empty: Optional[Tensor]) -> None:
        """Store rows from i0 on: o (count, KV_N, G, rows, V_D), lse (count, KV_N, G, rows), both float32.
        ``empty`` marks rows without any key, (count, KV_N, G, rows, 1): they are 0 and +inf."""
        o, lse = self.join_heads(o), self.join_heads(lse.unsqueeze(-1)).squeeze(-1)
        if empty is not None:
            gone = self.join_heads(empty)
            o = o.masked_fill(gone, 0.0)
            lse = lse.masked_fill(gone.squeeze(-1), torch.inf)
        else:
            gone = None
        if self.quant_scale is not None:
            o = self.post_quantise(o, self.quant_scale, self.quant_offset)
            if gone is not None:
                o = self.blank_codes(o, gone)
        rows = slice(span.q_at + i0, span.q_at + i0 + o.shape[2])
        self.store(span, rows, o, lse)

    def store(self, span: Span, rows: slice, o: Tensor, lse: Tensor) -> None:
        """Put finished rows in their place: o (count, Q_N, rows, V_D) numbers or codes, lse (count, Q_N, rows)."""
        if self.p.packed:
            self.out[:, rows] = o[0]
            if self.lse is not None:
                self.lse[:, rows] = lse[0]
            return
        batches = slice(span.first, span.first + span.count)
        self.out[batches, :, rows] = o
        if self.lse is not None:
            self.lse[batches, :, rows] = lse

    def write_empty(self, span: Span) -> None:
        """Rows of a span without keys: 0 and +inf. The old single-token route quantises the zeros when its output is
        INT8 (spec/numerics.md 3.1)."""
        if self.p.packed:
            rows = slice(span.q_at, span.q_at + span.q_len)
            self.out[:, rows] = 0
            if self.lse is not None:
                self.lse[:, rows] = torch.inf
        elif self.quant_scale is not None and self.p.legacy and self.p.out_dtype == "INT8":
            zeros = torch.zeros(span.count, self.p.Q_N, span.q_len, self.p.V_D)
            codes = self.post_quantise(zeros, self.quant_scale, self.quant_offset)
            self.store(span, slice(span.q_at, span.q_at + span.q_len), codes, torch.full(zeros.shape[:-1], torch.inf))

    def blank_codes(self, codes: Tensor, empty: Tensor) -> Tensor:
        """Rows without any key hold 0, not the offset (spec/numerics.md 17)."""
        return codes.masked_fill(empty, 0)

    def post_quantise(self, o: Tensor, scale: Tensor, offset: Optional[Tensor]) -> Tensor:
        """o * scale + offset in float32, as codes of the output dtype."""
        y = o * scale
        return self.to_codes(y if offset is None else y + offset)

    def to_codes(self, y: Tensor) -> Tensor:
        """float32 as codes, saturating: INT8 by way of FLOAT16 and FP8 with ties to even, HIFLOAT8 HYBRID."""
        dtype = self.p.out_dtype
        if dtype == "INT8":
            return to_half(y).round().clamp(-128, 127).to(torch.int8)
        if dtype == "FLOAT8_E4M3FN":
            return to_fp8(y, dtype).to(torch.float8_e4m3fn).view(torch.uint8)
        if dtype == "HIFLOAT8":
            return torch.from_numpy(encode("HIFLOAT8", y.numpy(), rounding="hybrid", overflow="saturate"))
        raise CannotRun(f"post-quantisation to {dtype}")

    def join_heads(self, x: Tensor) -> Tensor:  # given by Visibility
        raise NotImplementedError


def empty_result(outputs: dict[str, np.ndarray[Any, Any]], with_lse: bool) -> None:
    """The answer to a call whose keys and values are all empty: zeros, and +inf for a wanted lse (section 3.2)."""
    outputs["attentionOut"].fill(0)
    if with_lse and "softmaxLse" in outputs:
        outputs["softmaxLse"].fill(np.inf)
