"""ONNX Runtime's own MultiHeadAttention (com.microsoft) as a candidate. It computes in float32 and knows no groups of heads.

Lengths go into a key padding mask of any of its forms, all batches at once or one span at a time; a triangle that begins with
the first row and the first column behind the past is said by the flag ``unidirectional``; what else is hidden by a padding mask
of full size or by -inf in the bias. What a mask hides gets ``mask_filter_value`` added, -10000 when nothing is said: a row
without keys is then a softmax over hidden columns, and NaN with -inf. Where several ways fit, the case's seed chooses. Source:
the operator's schema in the onnxruntime package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Optional

import torch
from torch import Tensor
from torch.nn.functional import pad

from fiafuzz.model.scene import Scene

from . import ort
from .cpu_operands import Arrays, split_axis
from .cpu_problem import Problem
from .dense import ANY, DenseBackend, PolicyBroken
from .ort_batch import JUNK, TAILS, BatchedCall, Block

CAPACITIES = (0, 1, 9)
"""How many columns a shared cache has beside those in use."""
WEAK = 2000.0
"""Scores of this size cannot undo a mask of -10000."""
NAMES = ("query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value", "past_sequence_length")
"""The inputs in the order of the schema."""


@dataclass
class Masks:
    """How hiding is said. ``triangle``: by the flag; ``strict``: what a mask hides gets -inf; ``padding`` and ``bias`` as the
    operator takes them."""

    triangle: bool
    strict: bool
    padding: Optional[Tensor] = None
    bias: Optional[Tensor] = None
    attributes: dict[str, ort.Attribute] = field(default_factory=dict)


class MhaCall(BatchedCall):
    """One call translated."""

    masked_row = ANY
    at_end = False
    takes_empty = False

    def attention(self, block: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Output and, from the kernel's scores, logarithms."""
        q, k, v = q.float(), k.float(), v.float()
        if self.p.G > 1:
            k, v = k.repeat_interleave(self.p.G, 1), v.repeat_interleave(self.p.G, 1)
        bounded = len(block.spans) > 1 or bool(self.choice("bounded", 2))
        tail = TAILS[self.choice("tail", len(TAILS))] if bounded else 0
        k, v = (pad(x, (0, 0, 0, tail), value=JUNK) for x in (k, v))
        past = self.past(block, k.shape[-1] == v.shape[-1])
        masks = self.masks(block, q, k, past, bounded)
        o, scores = self.ask(q, k, v, past, masks)
        self.check_rows(block, o, masks)
        return o, o.new_zeros(o.shape[:-1]) if scores is None else torch.logsumexp(scores.double(), -1).float()

    # ---- which words ----

    def past(self, block: Block, equal: bool) -> int:
        """Columns to hand over as past, 0 for none: where a triangle begins if there is one, else any. Beside a past the kernel
        wants heads of one size."""
        corners = {high for span in block.spans for high in [self.edges(block, span)[1]] if high is not None}
        corner = corners.pop() if len(corners) == 1 else -1
        if not equal:
            return 0
        if 0 <= corner < block.columns - 1 and self.choice("corner", 4):
            return corner
        return self.choice("columns", block.columns) if self.choice("past", 2) else 0

    def triangle(self, block: Block, past: int) -> bool:
        """Whether the flag hides what the band hides of each span, which is what lies behind row + past."""
        edges = [(self.edges(block, span), self.p.columns(span)) for span in block.spans]
        ends = [(columns - 1 <= past if high is None else high == past) for (_, high), columns in edges]
        return all(ends) and all(low is None for (low, _), _ in edges) and any(high is not None for (_, high), _ in edges)

    def masks(self, block: Block, q: Tensor, k: Tensor, past: int, bounded: bool) -> Masks:
        """One of the ways to hide what is to be hidden."""
        triangle = self.triangle(block, past) and bool(self.choice("triangle", 4))
        seen, added = self.explicit(block, triangle)
        reach = float(q.norm(dim=-1).max() * k.norm(dim=-1).max()) * abs(self.p.scale)
        if added is not None:
            reach += float(torch.where(torch.isfinite(added), added.abs(), 0.0).max())
        strict = not reach < WEAK or bool(self.choice("strict", 2))
        found = Masks(triangle, strict)
        if strict:
            found.attributes["mask_filter_value"] = -math.inf
        elif self.choice("default", 2):
            found.attributes["mask_filter_value"] = -10000.0
        if triangle:
            found.attributes["unidirectional"] = 1
        tail = k.shape[2] - block.columns
        if seen is not None and self.choice("as bias", 2):
            found.bias, seen = torch.where(seen, 0.0 if added is None else added, -torch.inf), None
        else:
            found.bias = added
        if found.bias is not None:
            found.bias = pad(found.bias, (0, tail))
        if seen is not None:
            shown = pad(seen[:, 0], (0, tail), value=True).expand(block.batches, -1, -1)
            found.padding = (shown & block.valid(k.shape[2])[:, None]).int()
        elif bounded:
            found.padding = self.padding_mask(block, k.shape[2])
        return found

    def padding_mask(self, block: Block, columns: int) -> Tensor:
        """A key padding mask for the lengths alone, in one of its forms."""
        form, lengths = self.choice("padding", 4), torch.tensor(block.lengths, dtype=torch.int32)
        if form == 0:
            return lengths
        if form == 1:
            # Lengths, then where queries and keys of each batch begin.
            begins = torch.arange(block.batches + 1, dtype=torch.int32)
            return torch.cat((lengths, begins * block.rows, begins * columns))
        valid = block.valid(columns).int()
        return valid if form == 2 else valid[:, None].expand(-1, block.rows, -1)

    # ---- the run ----

    def ask(self, q: Tensor, k: Tensor, v: Tensor, past: int, masks: Masks) -> tuple[Tensor, Optional[Tensor]]:
        """One run of the node: its output (batches, heads, rows, V_D), and scores (batches, heads, rows, columns) when
        softmaxLse is wanted. PolicyBroken for wrong present keys or values."""
        equal, size = k.shape[-1] == v.shape[-1], self.p.Q_N * (2 * k.shape[-1] + v.shape[-1])
        feeds: dict[str, Optional[Tensor]] = {"key_padding_mask": masks.padding, "attention_bias": masks.bias, "query": flat(q)}
        capacity = k.shape[2]
        whole = past == 0 and equal and bool(self.choice("whole", 2))
        if whole:
            # Keys and values of a cross attention, as they stand in its cache.
            feeds |= {"key": k, "value": v}
        else:
            feeds |= {"key": flat(k[:, :, past:]), "value": flat(v[:, :, past:])}
        if past:
            shared = bool(self.choice("shared", 2))
            capacity += CAPACITIES[self.choice("capacity", len(CAPACITIES))] if shared else 0
            room = capacity - past if shared else 0
            feeds |= {f"past_{n}": pad(x[:, :, :past], (0, 0, 0, room), value=JUNK) for n, x in (("key", k), ("value", v))}
            feeds["past_sequence_length"] = torch.tensor([past], dtype=torch.int32) if shared else None
        if self.choice("projection", 3) == 0:
            feeds["bias"] = torch.zeros(size)
        # With a past and without present outputs the kernel reads beyond the new keys, so they are always asked for then.
        present = past > 0 or bool(self.choice("present", 2))
        names = ["output", *(("present_key", "present_value") if present else ("", "")), "qk" if self.lse is not None else ""]
        while not names[-1]:
            names.pop()
        attributes = {"num_heads": self.p.Q_N, "scale": self.p.scale, **masks.attributes}
        inputs = [(n, None if (x := feeds.get(n)) is None else ort.array(x)) for n in NAMES]
        answer = ort.run_node(
            "MultiHeadAttention", inputs, names, attributes, domain=ort.MICROSOFT, types={"qk": "float32"} if "qk" in names else {}
        )
        found = {n: ort.tensor(x) for n, x in answer.items()}
        for name, due in (("present_key", k), ("present_value", v)):
            if present and not torch.equal(found[name][:, :, : k.shape[2]].view(torch.int32), due.contiguous().view(torch.int32)):
                raise PolicyBroken(f"{name} does not hold the past and the new columns")
        return split_axis(found["output"], -1, self.p.Q_N, -1).transpose(1, 2), found.get("qk")

    def check_rows(self, block: Block, o: Tensor, masks: Masks) -> None:
        """PolicyBroken unless rows without keys are NaN where masks are -inf, and finite where they are not."""
        seen, _ = self.explicit(block, False)
        if seen is None:
            return
        dead = ~(seen & block.valid(block.columns)[:, None, None]).any(-1)
        rows = torch.arange(block.rows) < torch.tensor([block.own(s) for s in block.spans for _ in range(s.count)])[:, None]
        found = o[(dead.expand(o.shape[0], -1, -1) & rows[:, None]).expand(o.shape[:-1])]
        if masks.strict and not found.isnan().all():
            raise PolicyBroken("a row without keys is a number though its columns are hidden by -inf")
        if not masks.strict and masks.bias is None and not found.isfinite().all():
            raise PolicyBroken("a row without keys is no number though its columns are hidden by a finite mask")


def flat(x: Tensor) -> Tensor:
    """(batches, heads, positions, D) as (batches, positions, heads * D)."""
    return x.transpose(1, 2).flatten(2)


class MhaBackend(DenseBackend):
    """MultiHeadAttention."""

    name = "ort-mha"
    title = "ONNX Runtime's MultiHeadAttention kernel"
    lse = True
    masked_row = ANY
    policies: ClassVar[dict[str, str]] = {
        "masked_row": "NaN where what is hidden gets -inf, else a softmax over hidden columns; checked, then 0 is written",
        "masked_nan": "NaN or inf in a masked key or value leaks into the row",
    }

    def versions(self) -> dict[str, str]:
        """onnxruntime, onnx and the CPU's instructions."""
        return ort.versions()

    def translate(self, problem: Problem, tensors: Arrays) -> MhaCall:
        """The call of one problem."""
        return MhaCall(problem, tensors)

    def refuses(self, scene: Scene) -> Optional[str]:
        """A scale of 0 means the default to this kernel."""
        scale = ort.as_float32(scene.scale)
        if not math.isfinite(scale):
            return "a scale that is no float32"
        return "a scale of 0" if scale == 0 else None

    def out_of_memory(self, error: Exception) -> bool:
        """The runtime's words for it."""
        return super().out_of_memory(error) or ort.out_of_memory(error)
