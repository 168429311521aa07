"""The kernel: attention block by block with an online softmax, in the working precision.

FLOAT16/BFLOAT16 inputs are widened, products and sums are float32, the unnormalised probabilities are rounded to the
query dtype before they meet the values, and there is one division at the end (spec/numerics.md 2). Rows without any
visible key give 0 and +inf. Every step is a small method, so that a quantised variant overrides what differs
and a planted fault wraps the one step it spoils; the plain kernel pays nothing for that.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor

from .cpu_mask import OPEN, Visibility
from .cpu_numbers import to_float_type
from .cpu_operands import Arrays, Operands
from .cpu_output import Output
from .cpu_problem import Problem, Span

SCORE_BUDGET = 1 << 18
"""Most scores held at a time: 1 MiB of float32, so that they stay in the cache and causal rows skip hidden tiles."""


class Kernel(Visibility, Output):
    """One call of a kind without quantisation; the base of the quantised kernels."""

    tile = 64
    """Columns per step of the online softmax."""

    def __init__(self, p: Problem, tensors: Arrays) -> None:
        self.p = p
        self.x = Operands(p, tensors)
        self.to_query_type = to_float_type("BFLOAT16" if p.q_dtype == "BFLOAT16" else "FLOAT16")

    def load(self) -> None:
        """Read further parameters, first thing of a run; the quantised kernels have some."""

    def prepare(self) -> None:
        """Called once everything is read and nothing computed; sizes, lengths and tensors may still be altered."""

    def run(self, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
        """Compute the call into the output buffers."""
        self.load()
        self.prepare()
        self.open_outputs(outputs)
        self.blank()
        for span in self.p.spans:
            if span.q_len == 0:
                continue
            if self.p.columns(span) == 0:
                self.write_empty(span)
            else:
                self.attend(span)

    def attend(self, span: Span) -> None:
        """All rows of one span."""
        p = self.p
        k, v = self.keys(span), self.values(span)
        q = self.queries(span)
        step = max(1, SCORE_BUDGET // max(1, span.count * p.Q_N * self.tile))
        for i0 in range(0, span.q_len, step):
            self.attend_rows(span, q, k, v, i0, min(span.q_len, i0 + step))

    # ---- operands ----------------------------------------------------------------------------------

    def rows_of(self, x: Tensor, span: Span) -> Tensor:
        """(count, Q_N, q_len, ..) of a tensor (B, Q_N, S, ..), or (Q_N, T, ..) when packed."""
        if self.p.packed:
            return x[:, span.q_at : span.q_at + span.q_len].unsqueeze(0)
        return x[span.first : span.first + span.count, :, span.q_at : span.q_at + span.q_len]

    def queries(self, span: Span) -> Tensor:
        """Query rows of the span as float32 (count, KV_N, G, rows, D), the rope columns behind the others."""
        q = self.rows_of(self.x.query, span)
        if self.x.query_rope is not None:
            return self.split_heads(self.with_rope(q.float(), self.rows_of(self.x.query_rope, span).float()))
        return self.split_heads(q.float())

    def with_rope(self, x: Tensor, rope: Tensor) -> Tensor:
        """Rope columns put behind the other columns: one dot product adds both (spec/numerics.md 4)."""
        return torch.cat((x, rope), dim=-1)

    def keys(self, span: Span) -> Any:
        """Whatever ``key_tile`` needs of the span's keys."""
        return self.x.key.fetch(span), self.x.key_rope.fetch(span) if self.x.key_rope is not None else None

    def values(self, span: Span) -> Any:
        """Whatever ``value_tile`` needs of the span's values."""
        return self.x.value.fetch(span)

    def key_tile(self, keys: Any, span: Span, j0: int, j1: int) -> Tensor:
        """float32 (count, KV_N, columns, D) of the columns [j0, j1), rope columns included."""
        nope, rope = keys
        tile = nope[:, :, j0:j1].float()
        return tile if rope is None else self.with_rope(tile, rope[:, :, j0:j1].float())

    def value_tile(self, values: Any, span: Span, j0: int, j1: int) -> Tensor:
        """float32 (count, KV_N, columns, V_D) of the columns [j0, j1)."""
        tile: Tensor = values[:, :, j0:j1]
        return tile.float()

    # ---- online softmax ----------------------------------------------------------------------------

    def tiles(self, span: Span, i0: int, i1: int) -> list[tuple[int, int]]:
        """Column ranges to visit for the rows [i0, i1): all that the band leaves visible."""
        total = self.p.columns(span)
        low, high = self.band(span)
        first = 0 if low <= OPEN[0] else max(0, i0 + low) // self.tile * self.tile
        last = total if high >= OPEN[1] else min(total, i1 + high)
        return [(j, min(j + self.tile, last)) for j in range(first, last, self.tile)]

    def attend_rows(self, span: Span, q: Tensor, keys: Any, values: Any, i0: int, i1: int) -> None:
        """The rows [i0, i1) of a span: one pass over the column tiles, then the division."""
        rows = q[..., i0:i1, :]
        flat = rows.flatten(2, 3)
        shape = rows.shape[:-1]
        best: Optional[Tensor] = None
        total: Optional[Tensor] = None
        acc: Optional[Tensor] = None
        point: Optional[Tensor] = None
        shift: Optional[Tensor] = None
        guarded = False
        for j0, j1 in self.tiles(span, i0, i1):
            dots = torch.matmul(flat, self.key_tile(keys, span, j0, j1).transpose(-1, -2)).view(*shape, j1 - j0)
            scores = self.scale_scores(dots, span, i0, i1, j0, j1)
            bias = self.bias(span, i0, i1, j0, j1)
            if bias is not None:
                scores = self.add_bias(scores, bias)
                guarded = True
            hidden = self.hidden(span, i0, i1, j0, j1)
            if hidden is not None:
                scores = scores.masked_fill_(hidden, -torch.inf)
                guarded = True
            top = scores.amax(-1, keepdim=True)
            first = best is None
            best = top if best is None else torch.maximum(best, top)
            before, point = point, self.reference_point(best)
            # A row that has seen nothing yet has no reference point; any finite number serves until it has.
            shift = point.masked_fill(best == -torch.inf, 0.0) if guarded else point
            p = scores.sub_(shift).exp_()
            part_sum = p.sum(-1, keepdim=True)
            part = self.weigh(self.round_p(p), self.value_tile(values, span, j0, j1), first)
            if acc is None or total is None or before is None:
                total, acc = part_sum, part
            else:
                total, acc = self.merge(total, acc, torch.exp(before - shift), part_sum, part)
        if acc is None or total is None or best is None or shift is None:
            self.write(
                span, i0, torch.zeros(*shape, self.p.V_D), torch.zeros(shape), torch.ones(*shape, 1, dtype=torch.bool)
            )
            return
        empty = self.empty_rows(best) if guarded else None
        if self.x.sink is not None:
            shift, total, acc = self.add_sink(self.x.sink, shift, total, acc)
        self.write(span, i0, self.normalise(acc, total), self.logsumexp(shift, total).squeeze(-1), empty)

    def scale_scores(self, dots: Tensor, span: Span, i0: int, i1: int, j0: int, j1: int) -> Tensor:
        """Dot products times scaleValue, (count, KV_N, G, rows, columns); after the sum, before bias and mask."""
        return dots.mul_(self.p.scale)

    def add_bias(self, scores: Tensor, bias: Tensor) -> Tensor:
        """Scaled scores plus position bias."""
        return scores.add_(bias)

    def reference_point(self, best: Tensor) -> Tensor:
        """What is subtracted before exp(): the running maximum."""
        return best

    def round_p(self, p: Tensor) -> Tensor:
        """Unnormalised probabilities in the type in which they meet the values."""
        return self.to_query_type(p)

    def weigh(self, p: Tensor, v: Tensor, first: bool) -> Tensor:
        """P times V of one tile, (count, KV_N, G, rows, V_D)."""
        return torch.matmul(p.flatten(2, 3), v).view(*p.shape[:-1], v.shape[-1])

    def merge(
        self, total: Tensor, acc: Tensor, factor: Tensor, part_sum: Tensor, part: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sum and accumulator after one more tile; ``factor`` moves the old ones to the new reference point."""
        return total.mul_(factor).add_(part_sum), acc.mul_(factor).add_(part)

    def empty_rows(self, best: Tensor) -> Optional[Tensor]:
        """Rows that have seen no key, (count, KV_N, G, rows, 1); None when there is none."""
        found = best == -torch.inf
        return found if bool(found.any()) else None

    def add_sink(self, sink: Tensor, shift: Tensor, total: Tensor, acc: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The sink joins the sum only; the reference point is raised to it against overflow (spec/numerics.md 8)."""
        logit = self.split_heads(sink[:, None, None])
        raised = torch.maximum(shift, logit)
        factor = torch.exp(shift - raised)
        return raised, total * factor + torch.exp(logit - raised), acc * factor

    def normalise(self, acc: Tensor, total: Tensor) -> Tensor:
        """The one division."""
        return acc / total

    def logsumexp(self, shift: Tensor, total: Tensor) -> Tensor:
        """Natural logarithm of the sum of exp(score), the sink included."""
        return shift + total.log()
