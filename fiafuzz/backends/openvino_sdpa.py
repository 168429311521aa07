"""OpenVINO's scaled_dot_product_attention on its CPU plugin as a candidate: what a plain model becomes, and what a model with a
key-value cache becomes, are two kernels and two backends.

Which of several ways to say the same call is taken (axes, mask as bool or numbers, element type, strides, where key heads are
repeated, how a cache is filled) follows from the case's seed.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Optional

import numpy as np
import torch
from torch import Tensor

from .cpu_operands import Arrays
from .cpu_problem import Problem, Span
from .dense import MEAN, NAN, ZERO, DenseBackend, DenseCall, PolicyBroken
from .openvino_models import Form, session, versions

MANY = 96
"""Cached columns from which a cache is written from outside instead of by inferences on earlier queries."""


class OpenvinoCall(DenseCall):
    """One call translated for a stateless model."""

    def kernel(self, span: Span, i0: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """One inference."""
        kind = self.element_type(q)
        q, k, v = (x.to(kind) for x in (q, k, v))
        causal = self.is_causal(span, i0, q.shape[2], k.shape[2], 0)
        mask = None if causal else self.mask_in_words(span, i0, q.shape[2], kind)
        group = self.p.G if self.p.KV_N > 1 and self.choice("repeat", 2) else 1
        if group == 1 and self.p.KV_N > 1 and self.p.G > 1:
            # Heads are multiplied like matrices' batches: as many as query heads, or one.
            k, v = k.repeat_interleave(self.p.G, dim=1), v.repeat_interleave(self.p.G, dim=1)
        form = Form(
            dtype=str(kind).removeprefix("torch.").replace("bfloat", "bf").replace("float", "f"),
            axes=("BNSD", "BSND")[self.choice("axes", 2)],
            causal=causal,
            scaled=self.scale_given(q.shape[3]),
            sink=self.x.sink is not None,
            strided=self.choice("strides", 4) == 0,
            group=group,
            **self.form_of_mask(mask),
        )
        self.masked_row = self.policy(form)  # type: ignore[misc]
        due = (q.shape[0], self.p.Q_N, q.shape[2], v.shape[3])
        return session(form).run(self.feeds(form, q, k, v, mask), due), None

    def policy(self, form: Form) -> str:
        """What this form of the model is seen to answer in a row without keys."""
        if form.sink:
            return ZERO
        # -inf, which hides a column of a bool mask, becomes the lowest number in BFLOAT16.
        return MEAN if form.mask == "bool" and form.dtype == "bf16" else NAN

    def element_type(self, q: Tensor) -> torch.dtype:
        """float32, or the operator's own type where it holds scale, bias and sink without another rounding."""
        pse, sink = self.x.pse, self.p.scene.dtype("learnableSink")
        exact = float(torch.tensor(self.p.scale, dtype=torch.float32)) == float(torch.tensor(self.p.scale, dtype=q.dtype))
        fits = exact and (pse is None or pse.dtype == q.dtype) and (self.x.sink is None or sink == self.p.q_dtype)
        return q.dtype if fits and self.choice("type", 2) else torch.float32

    def scale_given(self, width: int) -> bool:
        """Whether the scale is given. It is not where it is the operator's own, 1 / sqrt(D); beside a sink it must be."""
        own = np.float32(self.p.scale) == np.float32(1 / math.sqrt(width))
        return not own or self.x.sink is not None or self.choice("scale", 2) == 0

    def is_causal(self, span: Span, i0: int, rows: int, columns: int, corner: int) -> bool:
        """Whether a causal flag hides what the call hides: all columns behind row + ``corner``."""
        band = self.plain_band(span)
        if band is None or i0 or rows != span.q_len:
            return False
        return band == (None, corner) and corner < columns - 1 and self.choice("causal", 4) > 0

    def mask_in_words(self, span: Span, i0: int, rows: int, kind: torch.dtype) -> Optional[Tensor]:
        """The mask as bool (True: seen) or as numbers to be added, of rank 2 where all batches and heads share it."""
        mask = self.mask(span, i0, i0 + rows, kind)
        if mask is None:
            return None
        if mask.dtype == torch.bool and self.choice("mask", 2):
            mask = torch.zeros(mask.shape, dtype=kind).masked_fill_(~mask, -torch.inf)
        own = any(x is not None and x.shape[0] > 1 for x in (self.x.mask, self.x.pse))
        return mask[0, 0] if mask.shape[1] == 1 and not own and self.choice("rank", 2) else mask

    @staticmethod
    def form_of_mask(mask: Optional[Tensor]) -> dict[str, Any]:
        """How a form names a mask."""
        if mask is None:
            return {}
        return {"mask": "bool" if mask.dtype == torch.bool else "float", "rank": mask.dim()}

    def feeds(self, form: Form, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor]) -> dict[str, Tensor]:
        """Inputs by their names in a model."""
        found = {"q": q, "k": k, "v": v}
        if form.axes == "BSND":
            found = {name: x.transpose(1, 2) for name, x in found.items()}
        if mask is not None:
            found["m"] = mask
        if form.scaled:
            found["s"] = torch.tensor(self.p.scale, dtype=q.dtype)
        if self.x.sink is not None:
            found["t"] = self.x.sink.reshape(1, -1, 1, 1).to(q.dtype)
        return found

    def operators_own(self, span: Span, i0: int, o: Tensor, lse: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As declared, and where the mean of the values is declared it must be that mean."""
        dead = self.dead(span, i0, i0 + o.shape[2])
        if self.masked_row == MEAN and dead is not None:
            mean = v.float().mean(dim=2, keepdim=True).repeat_interleave(self.p.G, dim=1).expand(o.shape)
            size = v.float().abs().mean(dim=2, keepdim=True).repeat_interleave(self.p.G, dim=1).expand(o.shape)
            far = ((o - mean).abs() > 2.0**-7 * size) & dead.unsqueeze(-1)
            if far.any():
                raise PolicyBroken(f"a row without keys holds {float(o[far][0]):g} where the mean {float(mean[far][0]):g} is declared")
        return super().operators_own(span, i0, o, lse, v)


class CacheCall(OpenvinoCall):
    """One call translated for a model that keeps keys and values: the last keys come with the queries, as many as these, the
    others before."""

    def kernel(self, span: Span, i0: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """The cache is filled in one of several ways, then one inference gives the output."""
        rows, precision = q.shape[2], self.cache_precision(k)
        q, k, v = q.float(), k.float(), v.float()
        # Fewer keys than queries: hidden columns in front, like a left-padded prompt.
        front = max(0, rows - k.shape[2])
        causal = not front and self.is_causal(span, i0, rows, k.shape[2], k.shape[2] - rows)
        mask = None if causal else self.mask_in_words(span, i0, rows, torch.float32)
        if front:
            k, v = (torch.cat((x[:, :, :1].expand(-1, -1, front, -1), x), dim=2) for x in (k, v))
            if mask is None:
                mask = torch.zeros(1, 1, rows, k.shape[2] - front)
            elif mask.dtype == torch.bool:
                # In numbers: a bool mask would let rows without keys see the columns in front.
                mask = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)
            mask = torch.nn.functional.pad(mask, (front, 0), value=-torch.inf)
        scaled = self.scale_given(q.shape[3])
        if mask is None and not causal and scaled:
            # A mask that is the number 0, the documented way to give a scale without a mask, is refused beside a cache (2026.4.1).
            mask = torch.zeros(1, 1, rows, k.shape[2])
        p = self.p
        form = Form(
            dtype="f32",
            axes=("BNSD", "BSND")[self.choice("axes", 2)],
            causal=causal,
            scaled=scaled,
            sink=self.x.sink is not None,
            strided=self.choice("strides", 4) == 0,
            group=p.G,
            cache=precision,
            heads=(p.KV_N, q.shape[3], v.shape[3]),
            **self.form_of_mask(mask),
        )
        self.masked_row = self.policy(form)  # type: ignore[misc]
        due = (q.shape[0], p.Q_N, rows, v.shape[3])
        before = k.shape[2] - rows
        order = self.fill(form, q, k[:, :, :before], v[:, :, :before])
        feeds = self.feeds(form, q, k[:, :, before:], v[:, :, before:], mask)
        return session(form).run({**feeds, "b": order}, due), None

    def policy(self, form: Form) -> str:
        """A bool mask hides with the lowest number, so that a row without keys sees all columns alike."""
        return MEAN if form.mask == "bool" and not form.sink else ZERO

    def cache_precision(self, k: Tensor) -> str:
        """A precision that holds the keys and values exactly: float32 or their own."""
        own = {torch.float16: "f16", torch.bfloat16: "bf16"}.get(k.dtype, "f32")
        return own if self.choice("cache", 2) else "f32"

    def fill(self, form: Form, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Bring keys and values into the cache of a session, batches in some order; gives where each batch is found."""
        running, count, length = session(form), k.shape[0], k.shape[2]
        running.request.reset_state()
        shift = self.choice("order", max(1, count)) if length else 0
        order = torch.arange(count).roll(shift)
        k, v = k[order], v[order]
        if length and (length >= MANY or self.choice("fill", 3) == 0):
            running.put({"key": k, "value": v})
        elif length:
            self.infer_earlier(form, q, k, v)
        return torch.argsort(order).int()

    def infer_earlier(self, form: Form, q: Tensor, k: Tensor, v: Tensor) -> None:
        """One or two inferences on earlier queries, whose output does not matter."""
        length, running = k.shape[2], session(form)
        cut = self.choice("cut", length)
        for begin, end in ((0, cut), (cut, length)):
            if begin < end:
                earlier = q[:, :, :1].expand(-1, -1, end - begin, -1)
                sizes = (end - begin, end) if form.rank == 2 else (1, 1, end - begin, end)
                mask = None if not form.mask else torch.ones(sizes, dtype=torch.bool) if form.mask == "bool" else torch.zeros(sizes)
                feeds = self.feeds(form, earlier, k[:, :, begin:end], v[:, :, begin:end], mask)
                due = (k.shape[0], self.p.Q_N, end - begin, v.shape[3])
                running.run({**feeds, "b": torch.arange(k.shape[0]).int()}, due)


class OpenvinoBackend(DenseBackend):
    """scaled_dot_product_attention in a model without state."""

    name = "openvino"
    title = "OpenVINO scaled_dot_product_attention on the CPU"
    sink = True
    masked_row = NAN
    policies: ClassVar[dict[str, str]] = {
        "masked_row": "nan; mean for a bool mask in a BFLOAT16 model; zero beside a sink",
        "masked_nan": "NaN or inf in a masked value leaks into the row",
        "strides": "dense, or regions of larger tensors",
        "causal": "flag used where it means top left",
        "precision": "INFERENCE_PRECISION_HINT f32",
    }

    def versions(self) -> dict[str, str]:
        """OpenVINO and what it makes of the processor."""
        return versions()

    def translate(self, problem: Problem, tensors: Arrays) -> DenseCall:
        """The call of one problem."""
        return OpenvinoCall(problem, tensors)

    def out_of_memory(self, error: Exception) -> bool:
        """The C++ library's words, too."""
        return super().out_of_memory(error) or "bad_alloc" in str(error) or "could not allocate" in str(error).lower()


class CacheBackend(OpenvinoBackend):
    """The same operator behind a key-value cache, which OpenVINO fuses into one kernel with state."""

    name = "openvino:stateful"
    title = "OpenVINO scaled_dot_product_attention with a key-value cache on the CPU"
    masked_row = ZERO
    policies: ClassVar[dict[str, str]] = {
        **OpenvinoBackend.policies,
        "masked_row": "zero; mean for a bool mask without a sink",
        "causal": "flag used where it means bottom right (the same flag without a cache means top left)",
        "precision": "INFERENCE_PRECISION_HINT f32, KV_CACHE_PRECISION f32 or the keys' own type",
    }

    def translate(self, problem: Problem, tensors: Arrays) -> DenseCall:
        """The call of one problem."""
        return CacheCall(problem, tensors)
