"""FlexAttention on the pages of torch's PagedAttention helper.

The helper keeps a page table, turns logical positions into physical ones inside the mask and the score function, and writes
keys and values into its pages. A paged call hands over its cache as it is, block table included (``PagedCall.lend``); any other
call, and now and then a paged one, has its keys written into pages that the helper chooses (``PagedCall.fill``).

Each call has a helper of its own: in torch 2.13 ``erase`` leaves the erased sequence able to see its old pages, and
``batch_idx`` of ``convert_logical_block_mask`` is not obeyed by the mask; corpus/regressions/scripts shows both.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask

from .cpu_operands import Arrays, used_blocks
from .cpu_problem import Problem, Span
from .torch_flex import MAX_SCORES, MAX_SPREAD, FlexBackend, FlexCall
from .torch_flex_mods import MaskMod, ScoreMod, padded_frame

ODD_PAGE = 13
"""A page size that no caller of the operator could choose, used half the time when pages are filled."""
UNWRITTEN = 3.0
"""What rows hold that no key was written to: finite, and plain to see in an output."""


class PagedCall(FlexCall):
    """One call whose keys and values lie in the helper's pages."""

    def run(self, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
        """Compute the call into the output buffers, all batches at once."""
        self.open_outputs(outputs)
        self.blank()
        p, t = self.p, self.batches
        rows = int(t.q_len.max())
        if rows == 0:
            return
        # The length of the keys is left to the mask or to the helper.
        self.helped = bool(self.choice("lengths", 2))
        self.filled = self.choice("fill", 4) == 0 or not self.can_lend(rows)
        self.make_pages()
        if p.packed:
            q_at, q = torch.zeros_like(t.q_at), self.unpacked(rows)
        else:
            q_at, q = t.q_at, self.whole_query()
        frame = padded_frame(t, q_at, torch.zeros_like(t.kv_at), lengths=not self.helped)
        o, lse = self.attention(q, self.k_cache, self.v_cache, frame, self.dead_of(q_at, q.shape[2]))
        self.put_batches(q_at, o.float(), lse.float())

    # ---- query and output --------------------------------------------------------------------------

    def unpacked(self, rows: int) -> Tensor:
        """Packed queries as (B, Q_N, rows, D), zeros behind the last row of a batch: the helper thinks in batches."""
        q = self.whole_query()
        wide = q.new_zeros(self.p.B, q.shape[1], rows, q.shape[3])
        for span in self.p.spans:
            wide[span.first, :, : span.q_len] = q[0, :, span.q_at : span.q_at + span.q_len]
        return wide

    def dead_of(self, q_at: Tensor, rows: int) -> Tensor:
        """Rows of the query that see no key, padding included: (B, 1, rows)."""
        dead = torch.ones(self.p.B, 1, rows, dtype=torch.bool)
        for span in self.p.spans:
            if span.q_len and self.p.columns(span):
                found = self.dead(span, 0, span.q_len)
                at = int(q_at[span.first])
                dead[span.first : span.first + span.count, :, at : at + span.q_len] = False if found is None else found
        return dead

    def put_batches(self, q_at: Tensor, o: Tensor, lse: Tensor) -> None:
        """Store an output (B, Q_N, rows, V_D)."""
        if not self.p.packed:
            self.put(o, lse)
            return
        for span in self.p.spans:
            rows = slice(span.q_at, span.q_at + span.q_len)
            self.store(span, rows, o[span.first, :, : span.q_len].unsqueeze(0), lse[span.first, :, : span.q_len].unsqueeze(0))

    # ---- pages -------------------------------------------------------------------------------------

    def can_lend(self, rows: int) -> bool:
        """Whether the cache of the call can be the helper's: every block once in a batch, since the helper knows one logical
        page for a physical one, not too many scores, and nothing in the cache that would show through a probability of 0."""
        p, cache = self.p, self.x.value.cache
        if cache is None or self.x.key.cache is None or not torch.isfinite(cache).all():
            return False
        if too_many(p, rows, self.x.key.cache.shape[0] * p.block_size):
            return False
        return all(len(set(blocks)) == len(blocks) for span in p.spans for blocks in self.table_of(span))

    def table_of(self, span: Span) -> list[list[int]]:
        """The blocks of each batch of a span, in their order."""
        assert self.x.table is not None and self.x.key.cache is not None
        found: list[list[int]] = used_blocks(self.x.table, span, self.p.block_size, self.x.key.cache.shape[0]).tolist()
        return found

    def make_pages(self) -> None:
        """The helper with the keys and values of the call in its pages."""
        if self.filled:
            self.fill()
        else:
            self.lend()

    def lend(self) -> None:
        """The call's cache as the helper's, pages reserved in the order of the block table."""
        p, key, value = self.p, self.x.key.cache, self.x.value.cache
        assert key is not None and value is not None
        self.pages = PagedAttention(key.shape[0], p.block_size, p.B, device="cpu")
        self.k_cache, self.v_cache = in_one_row(key), in_one_row(value)
        if self.x.key_rope is not None and self.x.key_rope.cache is not None:
            self.k_cache = torch.cat((self.k_cache, in_one_row(self.x.key_rope.cache)), dim=-1)
        for span in p.spans:
            for n, blocks in enumerate(self.table_of(span)):
                # reserve() takes pages from the end of the list of empty ones, which may name a page for several batches.
                self.reserve(span.first + n, span.kv_len, blocks)

    def reserve(self, batch: int, length: int, blocks: list[int]) -> None:
        """Room for a sequence in these pages, asked for at once or in two steps."""
        first = length // 2 if self.choice("reserve", 2) else length
        for end in (first, length):
            self.pages.empty_pages = blocks[: -(-end // self.p.block_size)]
            self.pages.reserve(torch.tensor([batch]), torch.tensor([end]))

    def fill(self) -> None:
        """Keys and values written into pages of the helper's choice, a sequence at once or in two pieces."""
        p, t = self.p, self.batches
        size = ODD_PAGE if self.choice("page size", 2) else p.block_size if p.storage == "paged" else 16
        lengths = t.columns.tolist()
        need = sum(-(-n // size) for n in lengths)
        self.pages = PagedAttention(max(1, need) + self.choice("spare pages", 3), size, p.B, device="cpu")
        if self.choice("page order", 2):
            self.pages.empty_pages = [n for part in (1, 0) for n in range(part, self.pages.n_pages, 2)]
        width, kind = p.D + p.rope_d, self.x.query.dtype
        self.k_cache = torch.full((1, p.KV_N, self.pages.n_pages * size, width), UNWRITTEN, dtype=kind)
        self.v_cache = torch.full((1, p.KV_N, self.pages.n_pages * size, p.V_D), UNWRITTEN, dtype=kind)
        halves = self.choice("halves", 2)
        for part in range(1 + halves):
            for span in p.spans:
                end = p.columns(span)
                middle = end // 2 if halves else end
                self.assign(span, middle * part, end if part else middle)

    def assign(self, span: Span, start: int, end: int) -> None:
        """Columns [start, end) of all batches of a span."""
        if end == start:
            return
        batch = torch.arange(span.first, span.first + span.count)
        for n in batch:
            self.pages.reserve(n.unsqueeze(0), torch.tensor([end]))
        at = torch.arange(start, end).expand(span.count, -1)
        k, v = self.x.key.fetch(span), self.x.value.fetch(span)
        if self.x.key_rope is not None:
            k = torch.cat((k, self.x.key_rope.fetch(span)), dim=-1)
        self.pages.assign(batch, at, k[:, :, start:end], v[:, :, start:end], self.k_cache, self.v_cache)

    # ---- the kernel --------------------------------------------------------------------------------

    def flex(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[MaskMod], score: Optional[ScoreMod]
    ) -> tuple[Tensor, Optional[Tensor]]:
        """One call of flex_attention on the pages."""
        assert mask is not None
        lengths = self.batches.columns if self.helped else None
        rows = self.block_size if isinstance(self.block_size, int) else self.block_size[0]
        logical = create_block_mask(
            mask, q.shape[0], None, q.shape[2], max(1, int(self.batches.columns.max())), "cpu", (rows, self.pages.page_size)
        )
        return self.called(
            q,
            k,
            v,
            self.pages.convert_logical_block_mask(logical, kv_len=lengths),
            None if score is None else self.pages.get_score_mod(score, lengths),
        )


def in_one_row(cache: Tensor) -> Tensor:
    """A cache (nb, N, bs, D), or NZ (nb, N, D/D0, bs, D0), as (1, N, nb * bs, D)."""
    if cache.dim() == 5:
        cache = cache.transpose(2, 3).flatten(3)
    return cache.transpose(0, 1).flatten(1, 2).unsqueeze(0)


def too_many(p: Problem, rows: int, columns: int) -> bool:
    """Whether every row of every batch with every row of the pages is too much for the eager kernel."""
    heads = p.B * p.Q_N * columns
    return heads * rows > MAX_SCORES or heads * (p.D + p.rope_d + p.V_D) > MAX_SPREAD


class PagedBackend(FlexBackend):
    """flex_attention on the helper's pages."""

    name = "torch-flex:paged"
    title = "torch flex_attention, eager, keys in the pages of PagedAttention"
    policies = {
        **FlexBackend.policies,
        "masked_nan": "NaN or inf in a value of any page leaks into all rows, in a masked key it does not",
        "strides": "dense",
    }

    def translate(self, problem: Problem, tensors: Arrays) -> PagedCall:
        """The call of one problem."""
        return PagedCall(problem, tensors)

    def too_large(self, p: Problem) -> Optional[str]:
        """Why the eager kernel would take too long; None when it does not."""
        rows = max((s.q_len for s in p.spans), default=0) if p.packed else p.q_size
        size = max(ODD_PAGE, p.block_size if p.storage == "paged" else 16)
        columns = sum(s.count * -(-p.columns(s) // size) * size for s in p.spans)
        if too_many(p, rows, columns):
            return "too many scores of rows with all pages, which the eager kernel holds all at once"
        return None
