"""PyTorch's scaled_dot_product_attention as a candidate: its MATH and its FLASH kernel are two backends."""

from __future__ import annotations

from typing import ClassVar, Optional

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from fiafuzz.model.scene import Scene

from .cpu_operands import Arrays
from .cpu_problem import Problem, Span
from .dense import DenseBackend, DenseCall


class SdpaCall(DenseCall):
    """One call translated for SDPA."""

    def __init__(self, p: Problem, tensors: Arrays, flash: bool) -> None:
        super().__init__(p, tensors)
        self.flash = flash

    def kernel(self, span: Span, i0: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """The public function with one kernel forced, or, for softmaxLse, the flash kernel's own operator."""
        mask = self.mask(span, i0, i0 + q.shape[2], q.dtype)
        if self.lse is not None:
            return self.with_lse(q, k, v, mask)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION if self.flash else SDPBackend.MATH):
            return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.p.scale, enable_gqa=self.p.G > 1), None

    def with_lse(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor]) -> tuple[Tensor, Tensor]:
        """The flash kernel's own operator, which also gives the logarithm of the sum; it wants equal head counts and an
        additive mask."""
        seen = None
        if mask is not None and mask.dtype == torch.bool:
            seen, mask = mask, torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
        if self.p.G > 1:
            k, v = k.repeat_interleave(self.p.G, dim=1), v.repeat_interleave(self.p.G, dim=1)
        o, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask, scale=self.p.scale)
        if seen is not None:
            # The kernel reports 0 for a row without keys; the operator's mark is +inf.
            lse = lse.masked_fill(~seen.any(-1), torch.inf)
        return o, lse


class SdpaBackend(DenseBackend):
    """What SDPA's two kernels have in common."""

    policies = {"masked_nan": "NaN or inf in a masked value leaks into the row"}
    flash: ClassVar[bool]

    def versions(self) -> dict[str, str]:
        """torch and the instructions that its kernels use."""
        return {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}

    def translate(self, problem: Problem, tensors: Arrays) -> SdpaCall:
        """The call of one problem."""
        return SdpaCall(problem, tensors, self.flash)

    def refuses(self, scene: Scene) -> Optional[str]:
        """The flash operator that gives softmaxLse is not given a bias."""
        return "softmaxLse beside an additive bias" if scene.lse_on and (scene.pse_on or scene.alibi_on) else None


class MathBackend(SdpaBackend):
    """SDPA with its MATH kernel."""

    name = "torch-sdpa-math"
    title = "torch scaled_dot_product_attention, MATH kernel"
    flash = False


class FlashBackend(SdpaBackend):
    """SDPA with its FLASH kernel."""

    name = "torch-sdpa-flash"
    title = "torch scaled_dot_product_attention, FLASH kernel"
    flash = True
    lse = True
    rope = False
    unequal = False
