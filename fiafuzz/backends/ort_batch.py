"""All batches of a call in one call of a kernel that takes lengths, or span by span: what the ONNX Runtime adapters for Attention
and MultiHeadAttention have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Optional

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from .cpu_operands import split_axis
from .cpu_problem import Span
from .dense import MASK_BUDGET, ZERO, DenseCall

JUNK = 3.0
"""What stands behind the valid keys and values, and in rows without a query."""
TAILS = (0, 1, 17)
"""How many columns of junk follow the longest keys where lengths are said."""


@dataclass(frozen=True)
class Block:
    """Rows [i0, i0 + rows) of one span, or all rows of several in a common size: keys then stand at its beginning, queries at
    its end (``at_end``) or beginning."""

    spans: tuple[Span, ...]
    i0: int
    rows: int
    columns: int
    lengths: tuple[int, ...]
    """Valid keys of each batch."""
    at_end: bool = False

    def gap(self, span: Span) -> int:
        """Rows before the span's first query."""
        return self.rows - span.q_len if self.at_end else 0

    def own(self, span: Span) -> int:
        """Rows that hold queries of the span."""
        return min(self.rows, span.q_len - self.i0)

    @property
    def batches(self) -> int:
        """Batches in the block."""
        return len(self.lengths)

    def valid(self, columns: int) -> Tensor:
        """True where a batch has a key, bool (batches, columns)."""
        return torch.arange(columns) < torch.tensor(self.lengths)[:, None]


class BatchedCall(DenseCall):
    """A call for a kernel that takes lengths; a subclass says how a block is computed."""

    native_band = True
    takes_lengths: bool = True
    at_end: ClassVar[bool]
    """Where the queries of shorter spans stand."""
    takes_empty: ClassVar[bool]
    """Whether batches without keys may be among the others."""

    def attention(self, block: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Output (batches, Q_N, rows, V_D) and, where softmaxLse is wanted, logarithms (batches, Q_N, rows), float32."""
        raise NotImplementedError(type(self).__name__)

    def kernel(self, span: Span, i0: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """Rows of one span."""
        columns = self.p.columns(span)
        return self.attention(Block((span,), i0, q.shape[2], columns, (columns,) * span.count), q, k, v)

    def run(self, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
        """Compute the call into the output buffers: all batches at once, or span by span."""
        p = self.p
        spans = tuple(s for s in p.spans if s.q_len and (self.takes_empty or p.columns(s)))
        rows, columns = max((s.q_len for s in spans), default=0), max((p.columns(s) for s in spans), default=0)
        size = sum(s.count for s in spans) * p.Q_N * rows * columns
        if not self.takes_lengths or len(spans) < 2 or not 0 < size <= MASK_BUDGET or not self.choice("together", 2):
            super().run(outputs)
            return
        self.open_outputs(outputs)
        self.blank()
        for span in p.spans:
            if span.q_len and span not in spans:
                self.write_empty(span)
        lengths = tuple(p.columns(s) for s in spans for _ in range(s.count))
        self.attend_together(Block(spans, 0, rows, columns, lengths, self.at_end))

    def attend_together(self, block: Block) -> None:
        """All spans in one call."""
        q, k, v = self.gather(block)
        o, lse = self.attention(block, q, k, v)
        first = 0
        for span in block.spans:
            rows = slice(block.gap(span), block.gap(span) + span.q_len)
            here = (slice(first, first + span.count), slice(None), rows)
            mine, numbers = o[here], lse[here]
            if self.masked_row != ZERO:
                mine, numbers = self.operators_own(span, 0, mine, numbers, v[here[0], :, : self.p.columns(span)])
            self.write(span, 0, self.split_heads(mine), split_axis(numbers, 1, self.p.KV_N, self.p.G), None)
            first += span.count

    def gather(self, block: Block) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of several spans in their common size, junk around them."""
        qs, ks, vs = [], [], []
        for span in block.spans:
            q, k, v = self.operands(span)
            gap, short = block.gap(span), block.columns - k.shape[2]
            qs.append(pad(q, (0, 0, gap, block.rows - gap - q.shape[2]), value=JUNK))
            ks.append(pad(k, (0, 0, 0, short), value=JUNK))
            vs.append(pad(v, (0, 0, 0, short), value=JUNK))
        return torch.cat(qs), torch.cat(ks), torch.cat(vs)

    def edges(self, block: Block, span: Span) -> tuple[Optional[int], Optional[int]]:
        """Lowest and highest difference column - row that is seen, in the block's rows; None where nothing is hidden."""
        low, high = (x + block.i0 - block.gap(span) for x in self.band(span))
        last = block.gap(span) + block.own(span) - 1
        return (low if low > -last else None), (high if high < self.p.columns(span) - 1 - block.gap(span) else None)

    def explicit(self, block: Block, banded: bool) -> tuple[Optional[Tensor], Optional[Tensor]]:
        """What is left to masks when the kernel hides the band itself or not: seen (1 or batches, 1, rows, columns), True where
        seen, and added, float32 (1 or batches, Q_N, rows, columns); None when nothing is. All is open outside a span's own."""
        found = [self.parts(block, span, banded) for span in block.spans]
        if len(found) == 1:
            return found[0]
        sizes = block.rows, block.columns
        seen = torch.ones(block.batches, 1, *sizes, dtype=torch.bool) if any(s is not None for s, _ in found) else None
        added = torch.zeros(block.batches, self.p.Q_N, *sizes) if any(a is not None for _, a in found) else None
        first = 0
        for span, (mine, bias) in zip(block.spans, found):
            rows = slice(block.gap(span), block.gap(span) + span.q_len)
            here = (slice(first, first + span.count), slice(None), rows, slice(self.p.columns(span)))
            if seen is not None and mine is not None:
                seen[here] = mine
            if added is not None and bias is not None:
                added[here] = bias
            first += span.count
        return seen, added

    def parts(self, block: Block, span: Span, banded: bool) -> tuple[Optional[Tensor], Optional[Tensor]]:
        """The same for one span, in its own size."""
        columns = self.p.columns(span)
        if not columns:
            return None, None
        i1 = block.i0 + block.own(span)
        hidden = (self.masked if banded else self.hidden)(span, block.i0, i1, 0, columns)
        added = self.added(span, block.i0, i1)
        seen = None if hidden is None else ~hidden.reshape(-1, 1, *hidden.shape[-2:])
        return seen, added if added is None or added.dim() == 4 else added.unsqueeze(0)
