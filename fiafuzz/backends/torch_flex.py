"""PyTorch's FlexAttention, run eagerly, as a candidate.

What the operator hides and adds is said in FlexAttention's own words (``torch_flex_mods``). A call is run span by span, or whole:
padded tensors with their lengths as a mask, packed ones as one batch with a document mask, strides as they are. Which
way, which precision and which block size follows from the case's seed, so that all of them are tested.

The plain flex_attention function traces its arguments by torch.compile on every call, 0.6 s for each new shape, and then runs
the same eager code. torch's own switch for debugging leaves the tracing out, and it is used here: nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

import numpy as np
import torch
import torch.nn.attention.flex_attention as flex
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask

from fiafuzz.model.scene import Scene

from .cpu_operands import Arrays, Columns
from .cpu_problem import Problem, Span, read_problem
from .dense import DenseBackend, DenseCall, PolicyBroken
from .torch_flex_mods import Batches, Frame, MaskMod, ScoreMod, mask_mod, packed_frame, padded_frame, score_mod, span_frame

MAX_SCORES = 1 << 21
"""Most scores of a call: the eager kernel holds them all, several times over (about 0.5 s)."""
MAX_SPREAD = 1 << 24
"""Most elements of keys and values of a call once they are repeated for each query head in float32, as the kernel does."""

BLOCK_SIZES = (128, 16, (16, 32), (7, 5))
PRECISIONS = ("own", "own", "own", "own", "float32", "float32", "float64", "low keys")
"""What the kernel is given: all in the query's dtype, all wider, or a float32 query beside keys in their own dtype."""


@contextmanager
def eager() -> Iterator[None]:
    """Let flex_attention call its eager code at once, without torch.compile; the switch is put back afterwards."""
    before = flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    try:
        yield
    finally:
        flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before


class FlexCall(DenseCall):
    """One call translated for flex_attention."""

    def __init__(self, p: Problem, tensors: Arrays) -> None:
        super().__init__(p, tensors)
        self.batches = Batches(p, self.band)
        self.precision = PRECISIONS[self.choice("precision", len(PRECISIONS))]
        self.block_size = BLOCK_SIZES[self.choice("block size", len(BLOCK_SIZES))]

    # ---- two ways to run a call --------------------------------------------------------------------

    def run(self, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
        """Compute the call into the output buffers, whole or span by span."""
        if not self.choice("whole", 2) or not self.can_be_whole():
            super().run(outputs)
            return
        self.open_outputs(outputs)
        self.blank()
        self.attend_whole()

    def can_be_whole(self) -> bool:
        """Whether padding and other batches can take part, hidden: contiguous tensors, not too many scores, and nothing in
        the values that would show through a probability of 0."""
        p = self.p
        if p.storage != "contiguous" or not any(s.q_len and p.columns(s) for s in p.spans):
            return False
        scores = p.Q_N * p.q_size * (p.kv_size if p.packed else p.B * (p.prefix + p.kv_size))
        return scores <= MAX_SCORES and bool(torch.isfinite(self.x.value.items[0]).all())

    def attend_whole(self) -> None:
        """All batches in one call."""
        p, t = self.p, self.batches
        q, k, v = self.whole_query(), self.whole(self.x.key), self.whole(self.x.value)
        if self.x.key_rope is not None:
            k = torch.cat((k, self.whole(self.x.key_rope)), dim=-1)
        frame = packed_frame(t, p.q_size, p.kv_size) if p.packed else padded_frame(t, t.q_at, t.kv_at)
        o, lse = self.attention(q, k, v, frame, self.dead_rows())
        self.put(o.float(), lse.float())

    def whole_query(self) -> Tensor:
        """The query as (B, Q_N, Q_S, D), or (1, Q_N, T, D) when packed: a view, unless there is rope to go with it."""
        q = self.x.query if self.x.query_rope is None else torch.cat((self.x.query, self.x.query_rope), dim=-1)
        return q.unsqueeze(0) if self.p.packed else q

    def whole(self, columns: Columns) -> Tensor:
        """Keys or values with their padding, the shared prefix before each batch's own."""
        own = columns.items[0]
        if self.p.packed:
            return own.unsqueeze(0)
        if columns.prefix is None:
            return own
        return torch.cat((columns.prefix[:, :, : self.p.prefix].expand(self.p.B, -1, -1, -1), own), dim=2)

    def dead_rows(self) -> Tensor:
        """Rows of the whole query that see no key, padding included: (B, 1, Q_S) or (1, 1, T)."""
        p = self.p
        dead = torch.ones(1 if p.packed else p.B, 1, p.q_size, dtype=torch.bool)
        for span in p.spans:
            if span.q_len and p.columns(span):
                batches = slice(0, 1) if p.packed else slice(span.first, span.first + span.count)
                found = self.dead(span, 0, span.q_len)
                dead[batches, :, span.q_at : span.q_at + span.q_len] = False if found is None else found
        return dead

    def put(self, o: Tensor, lse: Tensor) -> None:
        """Store a whole output; packed rows behind the last length stay as they are."""
        end = int((self.batches.q_at + self.batches.q_len).max())
        if self.p.packed:
            o, lse = o[0, :, :end], lse[0, :, :end]
        rows = slice(0, end if self.p.packed else None)
        self.out[..., rows, :] = o
        if self.lse is not None:
            self.lse[..., rows] = lse

    def operands(self, span: Span) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of a span (count, N, positions, D) with the strides that they have."""
        q = self.rows_of(self.x.query, span)
        k, v = self.x.key.fetch(span), self.x.value.fetch(span)
        if self.x.query_rope is not None and self.x.key_rope is not None:
            q = torch.cat((q, self.rows_of(self.x.query_rope, span)), dim=-1)
            k = torch.cat((k, self.x.key_rope.fetch(span)), dim=-1)
        return q, k, v

    def kernel(self, span: Span, i0: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """The rows from i0 on of a span."""
        return self.attention(q, k, v, span_frame(span, i0), self.dead(span, i0, i0 + q.shape[2]))

    # ---- the kernel --------------------------------------------------------------------------------

    def attention(self, q: Tensor, k: Tensor, v: Tensor, frame: Frame, dead: Optional[Tensor]) -> tuple[Tensor, Tensor]:
        """Output and softmaxLse of one kernel call with the operator's answer in ``dead`` rows."""
        mask = mask_mod(self.batches, self.x, frame)
        o, lse = self.flex(q, k, v, mask, score_mod(self.batches, self.p, self.x, frame))
        return self.finish(o, lse, dead)

    def flex(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[MaskMod], score: Optional[ScoreMod]
    ) -> tuple[Tensor, Optional[Tensor]]:
        """One call of flex_attention on dense keys; the logarithms when they are of use."""
        block_mask = None
        if mask is not None:
            block_mask = create_block_mask(mask, q.shape[0], None, q.shape[2], k.shape[2], device="cpu", BLOCK_SIZE=self.block_size)
        return self.called(q, k, v, block_mask, score)

    def called(
        self, q: Tensor, k: Tensor, v: Tensor, block_mask: Optional[BlockMask], score: Optional[ScoreMod]
    ) -> tuple[Tensor, Optional[Tensor]]:
        """flex_attention itself, in the precision of this call."""
        wider = {"float32": torch.float32, "float64": torch.float64, "low keys": torch.float32}.get(self.precision)
        if wider is not None:
            q = q.to(wider)
            k, v = (k, v) if self.precision == "low keys" else (k.to(wider), v.to(wider))
        with_lse = self.lse is not None or self.x.sink is not None
        with eager():
            found = flex.flex_attention(
                q, k, v, score, block_mask, self.p.scale, self.p.G > 1, return_aux=AuxRequest(lse=True) if with_lse else None
            )
        return (found[0], found[1].lse) if with_lse else (found, None)

    def finish(self, o: Tensor, lse: Optional[Tensor], dead: Optional[Tensor]) -> tuple[Tensor, Tensor]:
        """The sink, which the kernel has no word for, joined by way of the logarithms; +inf for rows without keys.
        PolicyBroken when such a row does not hold 0 and -inf."""
        where = None if dead is None else dead.expand(o.shape[:-1])
        if where is not None and o[where].count_nonzero():
            raise PolicyBroken("a row without keys does not hold the 0 that is declared")
        if lse is None:
            return o, o.new_zeros(o.shape[:-1])
        if where is not None and not (lse[where] == -torch.inf).all():
            raise PolicyBroken("the logarithm of a row without keys is not the -inf that is declared")
        empty = lse == -torch.inf
        if self.x.sink is not None:
            # exp(sink) joins the sum of the exponentials (spec/numerics.md 8).
            sink = self.x.sink[:, None].to(lse.dtype)
            o = o.to(lse.dtype) * torch.sigmoid(lse - sink).unsqueeze(-1)
            lse = torch.logaddexp(lse, sink)
        return o, lse.masked_fill(empty, torch.inf)


class FlexBackend(DenseBackend):
    """flex_attention on dense batches."""

    name = "torch-flex"
    title = "torch flex_attention, eager"
    lse = True
    sink = True
    policies = {
        "masked_row_lse": "-inf, given as the operator's +inf",
        "masked_nan": "NaN or inf in a masked value leaks into the row, in a masked key it does not",
        "strides": "as in the layout, for calls that are run whole",
    }

    def versions(self) -> dict[str, str]:
        """torch and the instructions that its kernels use."""
        return {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}

    def translate(self, problem: Problem, tensors: Arrays) -> FlexCall:
        """The call of one problem."""
        return FlexCall(problem, tensors)

    def cannot_express(self, scene: Scene) -> Optional[str]:
        """What the kernel has no word for, or what is too much for its eager form; None when the call can be run."""
        return super().cannot_express(scene) or self.too_large(read_problem(scene))

    def too_large(self, p: Problem) -> Optional[str]:
        """Why the eager kernel would take too long; None when it does not."""
        scores = sum(s.count * p.Q_N * s.q_len * p.columns(s) for s in p.spans)
        spread = sum(s.count * p.Q_N * p.columns(s) * (p.D + p.rope_d + p.V_D) for s in p.spans if s.q_len)
        if scores > MAX_SCORES:
            return f"more than {MAX_SCORES} scores, which the eager kernel holds all at once"
        if spread > MAX_SPREAD:
            return f"more than {MAX_SPREAD} elements of keys and values once they are repeated for each query head"
        return None
