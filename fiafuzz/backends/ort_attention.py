"""ONNX Runtime's Attention operator as a candidate, one backend for each opset: 23 and 24 run its kernel, 25 the operator's
function body out of smaller nodes (the runtime has no kernel for it).

A call is said with the operator's own words where they fit: a causal flag or a window whose diagonal begins where the band of
the call does (moved by a past or by the count of valid keys), a past up to any column, one call of all batches with their key
lengths. What then remains is an explicit mask. Where several ways fit, the case's seed chooses. Sources: the operator's schema
in the onnx package; the kernel's own checks (masks of full size, a positive scale, at least one new key).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Optional

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fiafuzz.model.scene import Scene

from . import ort
from .cpu_operands import Arrays, split_axis
from .cpu_problem import Problem
from .dense import MASK_BUDGET, DenseBackend, PolicyBroken
from .ort_batch import JUNK, TAILS, BatchedCall, Block


@dataclass(frozen=True)
class Way:
    """How positions are said. ``past``: columns handed over as past; ``lengths``: valid keys of each batch; ``banded``: the
    operator itself hides what is more than ``left`` before or ``right`` behind its diagonal (None: no limit)."""

    past: Optional[int] = None
    lengths: Optional[tuple[int, ...]] = None
    banded: bool = False
    left: Optional[int] = None
    right: Optional[int] = None


class AttentionCall(BatchedCall):
    """One call translated for one opset."""

    at_end = True
    takes_empty = True

    def __init__(self, p: Problem, tensors: Arrays, opset: int) -> None:
        super().__init__(p, tensors)
        self.opset = opset
        self.takes_lengths = opset >= 24

    def attention(self, block: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Output and, where wanted, its logarithms, both float32. Negative scales go into the query, which is exact."""
        if self.p.scale < 0:
            q = -q
        way = self.way(block)
        seen, added = self.explicit(block, way.banded)
        wide = q.float(), k.float(), v.float()
        if self.lse is not None:
            return self.with_lse(*wide, seen, added, way)
        o = self.ask(*wide, seen, added, way)["Y"]
        if q.dtype == torch.float16 and self.choice("half", 2) and self.fits_half(o, k, added):
            self.check_half(block, (q, k, v), o, self.ask(q, k, v, seen, added, way)["Y"].float())
        return o, o.new_zeros(o.shape[:-1])

    def fits_half(self, o: Tensor, k: Tensor, added: Optional[Tensor]) -> bool:
        """Whether the bias is exact in FLOAT16, and the scores few enough to be looked at."""
        few = o.shape[:-1].numel() * k.shape[2] <= MASK_BUDGET
        return few and (added is None or torch.equal(added.half().float(), added))

    # ---- which words ----

    def way(self, block: Block) -> Way:
        """One of the ways that fit; those by which the operator hides a band itself are preferred."""
        found = self.ways(block)
        banded = [w for w in found if w.banded]
        found = banded if banded and self.choice("explicit", 4) else [Way(w.past, w.lengths) for w in found]
        return found[self.choice("way", len(found))]

    def ways(self, block: Block) -> list[Way]:
        """Without a cache (only one span), with a past, with lengths; each with the band where it can be said."""
        found = []
        if len(block.spans) == 1:
            found.append(self.with_band(block, Way(), 0))
            past = self.past(block)
            found.append(self.with_band(block, Way(past), past))
        if self.takes_lengths:
            found.append(self.with_band(block, Way(lengths=block.lengths), None))
        return found

    def past(self, block: Block) -> int:
        """Columns to hand over as past: where the band's diagonal then is, if there is one, else any. The kernel wants a new
        key, the function body takes none."""
        most = block.columns - (self.opset < 25)
        low, high = self.edges(block, block.spans[0])
        if self.opset < 25 and high is not None and low is None and 0 <= high <= most:
            return high
        if self.opset >= 25:
            least, most_banded = max(0, low or 0), min(most, most if high is None else high)
            if least <= most_banded:
                return least + self.choice("past", most_banded - least + 1)
        return self.choice("past", most + 1)

    def with_band(self, block: Block, way: Way, diagonal: Optional[int]) -> Way:
        """The way with the band that all spans share, counted from the diagonal (None: from the last query and key on); without
        it where the operator cannot say it."""
        lefts, rights = set(), set()
        centres = [self.p.columns(s) - block.rows if diagonal is None else diagonal for s in block.spans]
        edges = [self.edges(block, span) for span in block.spans]
        for (low, high), centre in zip(edges, centres):
            lefts |= set() if low is None else {centre - low}
            rights |= set() if high is None else {high - centre}
        if len(lefts) > 1 or len(rights) > 1 or min((*lefts, *rights), default=0) < 0 or not (lefts or rights):
            return way
        left, right = next(iter(lefts), None), next(iter(rights), None)
        if self.opset < 25 and (left is not None or right not in (None, 0)):
            return way
        for span, (low, high), centre in zip(block.spans, edges, centres):
            # A limit that one span has must hide nothing in another that has none.
            if left is not None and low is None and centre - left > 1 - block.rows:
                return way
            if right is not None and high is None and centre + right < self.p.columns(span) - 1 - block.gap(span):
                return way
        return Way(way.past, way.lengths, True, left, right)

    # ---- the runs ----

    def ask(
        self, q: Tensor, k: Tensor, v: Tensor, seen: Optional[Tensor], added: Optional[Tensor], way: Way, mode: Optional[int] = None
    ) -> dict[str, Tensor]:
        """One run of the node: Y (batches, Q_N, rows, V_D), and qk where a mode is given. PolicyBroken for wrong present keys or
        values."""
        tail = TAILS[self.choice("tail", len(TAILS))] if way.lengths is not None else 0
        mask = self.attn_mask(seen, added, q.dtype, k.shape[2], tail)
        k, v = pad(k, (0, 0, 0, tail), value=JUNK), pad(v, (0, 0, 0, tail), value=JUNK)
        past = None if way.past is None else (k[:, :, : way.past], v[:, :, : way.past])
        whole = k, v
        if way.past is not None:
            k, v = k[:, :, way.past :], v[:, :, way.past :]
        attributes: dict[str, ort.Attribute] = {"scale": abs(self.p.scale)}
        flat = bool(self.choice("flat", 2)) and k.shape[2] > 0
        if flat:
            q, k, v = (x.transpose(1, 2).flatten(2) for x in (q, k, v))
            attributes |= {"q_num_heads": self.p.Q_N, "kv_num_heads": self.p.KV_N}
        if way.banded:
            attributes |= self.band_words(way)
        if mode is not None:
            attributes["qk_matmul_output_mode"] = mode
        inputs = [
            *(("Q", ort.array(q)), ("K", ort.array(k)), ("V", ort.array(v)), ("attn_mask", None if mask is None else ort.array(mask))),
            ("past_key", None if past is None else ort.array(past[0])),
            ("past_value", None if past is None else ort.array(past[1])),
        ]
        if self.opset >= 24:
            lengths = None if way.lengths is None else np.array(way.lengths, np.int64)
            inputs.append(("nonpad_kv_seqlen", lengths))
        present = past is not None or (way.lengths is None and bool(self.choice("present", 2)))
        names = ["Y", *(("present_key", "present_value") if present else ("", "")), *(("qk",) if mode is not None else ())]
        while not names[-1]:
            names.pop()
        found = {n: ort.tensor(x) for n, x in ort.run_node("Attention", inputs, names, attributes, opset=self.opset).items()}
        for name, due in zip(("present_key", "present_value"), whole):
            if present and found[name].numpy().tobytes() != ort.array(due).tobytes():
                raise PolicyBroken(f"{name} does not hold the past and the new columns")
        if flat:
            found["Y"] = split_axis(found["Y"], -1, self.p.Q_N, -1).transpose(1, 2)
        return found

    def band_words(self, way: Way) -> dict[str, ort.Attribute]:
        """The attributes of a band. A window that ends on the diagonal can also be said by the causal flag."""
        if self.opset < 25:
            return {"is_causal": 1}
        found: dict[str, ort.Attribute] = {}
        if way.left is not None:
            found["left_window_size"] = way.left
        causal = self.choice("causal", 3) if way.right == 0 else 2
        if way.right is not None and causal:
            found["right_window_size"] = way.right
        return found | ({"is_causal": 1} if causal < 2 else {})

    def attn_mask(
        self, seen: Optional[Tensor], added: Optional[Tensor], dtype: torch.dtype, columns: int, tail: int
    ) -> Optional[Tensor]:
        """A bool or an additive mask, of one of the ranks that say the same; behind the last column it hides nothing."""
        mask = seen
        if added is not None or (seen is not None and self.choice("additive", 3) == 0):
            mask = torch.zeros((), dtype=dtype) if added is None else added.to(dtype)
            mask = mask if seen is None else torch.where(seen, mask, -torch.inf).to(dtype)
        if mask is None:
            return None
        # The function body fills up a short mask; one column would be broadcast instead.
        if tail and not (self.opset >= 25 and columns > 1 and self.choice("short", 2)):
            mask = pad(mask, (0, tail), value=mask.dtype == torch.bool)
        form = self.choice("form", 4)
        if form == 1:
            return mask.expand(-1, self.p.Q_N, -1, -1)
        for rank in (3, 2)[: max(0, form - 1)]:
            if mask.shape[0] == 1 and mask.dim() > rank:
                mask = mask[0]
        return mask

    def with_lse(
        self, q: Tensor, k: Tensor, v: Tensor, seen: Optional[Tensor], added: Optional[Tensor], way: Way
    ) -> tuple[Tensor, Tensor]:
        """Output and logarithms from two runs: a score less the logarithm of its probability is the logarithm of the sum, most
        precisely at the most probable column. Rows without any probability are marked +inf, as the operator does."""
        mode = self.choice("mode", 3)
        first, second = self.ask(q, k, v, seen, added, way, mode), self.ask(q, k, v, seen, added, way, 3)
        scores, chances = first["qk"], second["qk"]
        if mode < 2 and added is not None:
            scores = scores + pad(added, (0, scores.shape[-1] - added.shape[-1]))
        best, at = chances.max(-1, keepdim=True)
        lse = (scores.gather(-1, at) - best.log())[..., 0]
        return (first if self.choice("run", 2) else second)["Y"], torch.where(best[..., 0] == 0, torch.inf, lse)

    def check_half(self, block: Block, operands: tuple[Tensor, Tensor, Tensor], wide: Tensor, half: Tensor) -> None:
        """PolicyBroken when the run in FLOAT16 is further from the one in float32 than roundings to FLOAT16 explain."""
        seen, added = self.explicit(block, False)
        valid = block.valid(block.columns)[:, None, None]
        limit = ort.half_limit(*operands, abs(self.p.scale), valid if seen is None else valid & seen, added)
        if limit is None:
            return
        wrong = torch.isfinite(wide) & ~((half - wide).abs() <= limit)
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            raise PolicyBroken(
                f"in FLOAT16 the kernel gives {float(half[at]):g} at {at}, in float32 {float(wide[at]):g}: roundings explain "
                f"{float(limit[at]):.2g}"
            )


class AttentionBackend(DenseBackend):
    """What the opsets have in common."""

    lse = True
    policies: ClassVar[dict[str, str]] = {
        "masked_nan": "NaN or inf in a masked value leaks into the row, and so does a masked key where it is hidden by a mask",
        "float16": "scores and probabilities are rounded to FLOAT16; checked against the run in float32 within these roundings",
        "scale": "negative scales are handed over with a negated query",
    }
    opset: ClassVar[int]

    def versions(self) -> dict[str, str]:
        """onnxruntime, onnx and the CPU's instructions."""
        return ort.versions()

    def translate(self, problem: Problem, tensors: Arrays) -> AttentionCall:
        """The call of one problem."""
        return AttentionCall(problem, tensors, self.opset)

    def refuses(self, scene: Scene) -> Optional[str]:
        """The kernel wants a scale above 0 (attention.cc: "scale must be greater than 0 if specified")."""
        scale = ort.as_float32(scene.scale)
        if not math.isfinite(scale):
            return "a scale that is no float32"
        return "a scale of 0" if scale == 0 and self.opset < 25 else None

    def out_of_memory(self, error: Exception) -> bool:
        """The runtime's words for it."""
        return super().out_of_memory(error) or ort.out_of_memory(error)


class Attention23(AttentionBackend):
    """The kernel for opset 23."""

    name = "ort-attention:23"
    title = "ONNX Runtime's Attention kernel, opset 23"
    opset = 23


class Attention24(AttentionBackend):
    """The kernel for opset 24: key lengths."""

    name = "ort-attention:24"
    title = "ONNX Runtime's Attention kernel, opset 24"
    opset = 24


class Attention25(AttentionBackend):
    """The function body of opset 25: windows, broadcast and short masks."""

    name = "ort-attention:25"
    title = "ONNX Runtime on the function body of Attention, opset 25"
    opset = 25
