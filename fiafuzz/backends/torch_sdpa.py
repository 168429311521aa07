"""PyTorch's scaled_dot_product_attention as a candidate: its MATH and its FLASH kernel are two backends.

What SDPA has no word for is not run. What it has another word for is translated: sparse modes into explicit masks,
bias into an additive mask, paged, listed, packed and prefixed keys into dense ones batch by batch, split rope into
wider heads. It shares those translations with the cpu backend, not the arithmetic.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Optional, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import Tensors

from .cpu_mask import Visibility
from .cpu_operands import Arrays, Operands, padding_sizes, split_axis
from .cpu_output import Output
from .cpu_problem import CannotRun, Problem, Span, need, read_problem
from .protocol import BackendInfo, Outcome

torch.set_num_threads(1)

MASK_BUDGET = 1 << 24
"""Most mask elements made at a time."""


class SdpaCall(Visibility, Output):
    """One call translated for SDPA."""

    def __init__(self, p: Problem, tensors: Arrays, flash: bool) -> None:
        self.p = p
        self.x = Operands(p, tensors)
        self.flash = flash

    def run(self, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
        """Compute the call into the output buffers."""
        self.open_outputs(outputs)
        self.blank()
        for span in self.p.spans:
            if span.q_len and self.p.columns(span):
                self.attend(span)
            elif span.q_len:
                self.write_empty(span)

    def attend(self, span: Span) -> None:
        """All rows of one span, in blocks of rows so that masks stay small."""
        p = self.p
        q = self.rows_of(self.x.query, span)
        k, v = self.x.key.fetch(span), self.x.value.fetch(span)
        if self.x.query_rope is not None and self.x.key_rope is not None:
            q = torch.cat((q, self.rows_of(self.x.query_rope, span)), dim=-1)
            k = torch.cat((k, self.x.key_rope.fetch(span)), dim=-1)
        if self.x.slopes is not None:
            # Penalties of a few thousand would lose their last digits in a 16-bit mask.
            q, k, v = q.float(), k.float(), v.float()
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        step = max(1, MASK_BUDGET // max(1, span.count * p.Q_N * p.columns(span)))
        for i0 in range(0, span.q_len, step):
            i1 = min(span.q_len, i0 + step)
            mask = self.mask(span, i0, i1, q.dtype)
            rows = q[:, :, i0:i1].contiguous()
            o, lse = self.with_lse(rows, k, v, mask) if self.lse is not None else (self.plain(rows, k, v, mask), None)
            if lse is None:
                lse = o.new_zeros(o.shape[:-1], dtype=torch.float32)
            elif mask is not None and mask.dtype == torch.bool:
                # The kernel reports 0 for a row without keys; the operator's mark is +inf.
                lse = lse.masked_fill(~mask.any(-1), torch.inf)
            self.write(span, i0, self.split_heads(o.float()), self.split_lse(lse.float()), None)

    def split_lse(self, lse: Tensor) -> Tensor:
        """(count, Q_N, rows) as (count, KV_N, G, rows)."""
        return split_axis(lse, 1, self.p.KV_N, self.p.G)

    def rows_of(self, x: Tensor, span: Span) -> Tensor:
        """(count, Q_N, q_len, ..) of a query-shaped tensor."""
        if self.p.packed:
            return x[:, span.q_at : span.q_at + span.q_len].unsqueeze(0)
        return x[span.first : span.first + span.count, :, span.q_at : span.q_at + span.q_len]

    def mask(self, span: Span, i0: int, i1: int, dtype: torch.dtype) -> Optional[Tensor]:
        """None, a bool mask (True: seen) or an additive one, (count, 1|Q_N, rows, columns)."""
        columns = self.p.columns(span)
        hidden = self.hidden(span, i0, i1, 0, columns)
        if hidden is not None:
            hidden = (hidden if hidden.dim() == 2 else hidden[:, 0]).expand(span.count, 1, i1 - i0, columns)
        bias = self.bias(span, i0, i1, 0, columns)
        size = (span.count, self.p.Q_N, i1 - i0, columns)
        if bias is None:
            if hidden is None:
                return None
            return ~hidden
        additive = self.join_heads(bias).expand(size).to(dtype)
        if hidden is not None:
            additive = additive.masked_fill(hidden, -torch.inf)
        return additive.contiguous()

    def plain(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor]) -> Tensor:
        """The public function with one kernel forced."""
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION if self.flash else SDPBackend.MATH):
            return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.p.scale, enable_gqa=self.p.G > 1)

    def with_lse(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor]) -> tuple[Tensor, Tensor]:
        """The flash kernel's own operator, which also gives the logarithm of the sum; it wants equal head counts and an
        additive mask."""
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
        if self.p.G > 1:
            k, v = k.repeat_interleave(self.p.G, dim=1), v.repeat_interleave(self.p.G, dim=1)
        o, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, False, attn_mask=mask, scale=self.p.scale
        )
        return o, lse


NO_ROOM = "the dense copies and scores that SDPA needs do not fit into the memory of the worker"


class SdpaBackend:
    """One of SDPA's kernels: "math" or "flash"."""

    def __init__(self, which: str, profile: Optional[str] = None) -> None:
        self.which = which
        self.flash = which == "flash"
        self.profile = profile

    @property
    def info(self) -> BackendInfo:
        """Name, versions and declared policies."""
        return BackendInfo(
            f"torch-sdpa-{self.which}",
            f"torch scaled_dot_product_attention, {self.which.upper()} kernel",
            "none",
            versions={"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()},
            policies={
                "masked_row": "zero",
                "packed_tail": "untouched",
                "strides": "dense",
                "masked_nan": "NaN or inf in a masked value leaks into the row",
            },
        )

    def cannot_express(self, scene: Scene) -> Optional[str]:
        """What SDPA has no word for; None when the call can be translated."""
        if scene.quant_kind != "none":
            return "quantised tensors"
        if scene.post_quant_on or scene.out_dtype != scene.q_dtype:
            return "an output of another dtype than the query"
        if scene.empty_case:
            return "an empty call"
        if scene.sink_on:
            return "learnableSink"
        if scene.lse_on and not self.flash:
            return "softmaxLse"
        if scene.lse_on and (scene.pse_on or scene.alibi_on):
            return "softmaxLse beside an additive bias"
        if scene.rope_on and not scene.q_dtype == scene.dtype("queryRope") == scene.dtype("keyRope"):
            return "rope of another dtype than the query"
        if self.flash and scene.rope_on:
            return "query and value heads of different size (rope)"
        if self.flash and scene.Q_D != scene.V_D:
            return "query and value heads of different size"
        try:
            read_problem(scene)
        except CannotRun as error:
            return str(error)
        return None

    def run(self, case: Case, scene: Scene, tensors: Tensors, outputs: dict[str, np.ndarray[Any, Any]]) -> Outcome:
        """Run one call, writing into ``outputs``. Never raises."""
        started = time.perf_counter()
        try:
            reason = self.cannot_express(scene)
            need(reason is None, reason or "")
            arrays = cast(Arrays, tensors)
            with torch.no_grad():
                SdpaCall(read_problem(scene, padding_sizes(scene, arrays)), arrays, self.flash).run(outputs)
            outcome = Outcome("ok", outputs)
        except CannotRun as error:
            outcome = Outcome("unsupported", message=str(error))
        except MemoryError:
            outcome = Outcome("unsupported", message=NO_ROOM)
        except RuntimeError as error:
            # SDPA wants dense copies and whole score matrices: what does not fit under the worker's limit is too large to be
            # translated, not a fault of the kernel.
            full = "can't allocate memory" in str(error)
            outcome = Outcome("unsupported" if full else "error", message=NO_ROOM if full else f"RuntimeError: {error}".splitlines()[0])
        except Exception as error:  # a candidate that trips is a finding, not the end of the campaign
            outcome = Outcome("error", message=f"{type(error).__name__}: {error}".splitlines()[0])
        return replace(outcome, seconds=time.perf_counter() - started)


def math(profile: Optional[str] = None) -> SdpaBackend:
    """SDPA with its MATH kernel."""
    return SdpaBackend("math", profile)


def flash(profile: Optional[str] = None) -> SdpaBackend:
    """SDPA with its FLASH kernel."""
    return SdpaBackend("flash", profile)
