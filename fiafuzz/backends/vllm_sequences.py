"""What vLLM's two kernels have in common: a call as requests over caches of blocks, and their outputs put back in place.

A paged call whose blocks the kernel can take keeps its block table and its block numbers; its cache is written, whole, in the
form that the kernel wants. All other keys (dense, packed, listed, behind a shared prefix) are written into blocks of a size and
an order that the case's seed decides. Blocks that no request may read hold NaN; the rest of a block behind the last key holds
finite numbers, since NaN in a value shows through a probability of 0 (declared as ``masked_nan``).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from . import vllm_library
from .cpu_mask import OPEN
from .cpu_operands import Arrays, used_blocks
from .cpu_problem import Problem, Span
from .dense import MASK_BUDGET, DenseCall
from .vllm_requests import Cutting, Request, Seen, cut

STALE = 1e4
"""What the rest of a used block holds: finite in every dtype, and plain to see in an output."""
PICKED_BUDGET = 1 << 22
"""Most elements of picked keys in one run of the kernel, unless a single row needs more."""
GUARD = 2
"""Rows before and behind an output that the kernel must leave alone."""
UNUSED_ENTRIES = (0, -1, 1 << 30)
"""What entries of a block table behind the last block of a request may hold: nothing reads them."""


class Sequences(DenseCall):
    """One call translated into requests."""

    width: int
    """Head size of the kernel."""
    block: int
    """Rows of a cache block."""

    def __init__(self, p: Problem, tensors: Arrays) -> None:
        super().__init__(p, tensors)
        self.ops = vllm_library.load()
        single = self.choice("float32", 4) == 0
        self.dtype = torch.float32 if single else self.x.query.dtype
        self.query = self.heads(self.x.query, self.x.query_rope)
        self.results: dict[int, Tensor] = {}
        self.tables: list[Tensor] = []

    @abstractmethod
    def make_cache(self, blocks: int, used: Tensor) -> Any:
        """A cache of that many blocks, NaN but for the ``used`` ones."""

    @abstractmethod
    def put(self, cache: Any, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys (tokens, KV_N, width) and values into the slots (tokens,), block number * block + row."""

    @abstractmethod
    def attend_all(self, requests: Sequence[Request], cache: Any, tables: Sequence[Tensor]) -> None:
        """Run requests over one cache; ``tables`` holds the block numbers of each."""

    def run(self, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
        """Compute the call into the output buffers."""
        self.open_outputs(outputs)
        self.blank()
        p = self.p
        plain: list[Request] = []
        picked: list[Request] = []
        for span in p.spans:
            if span.q_len:
                found = torch.zeros(span.count, p.Q_N, span.q_len, p.V_D, dtype=self.dtype)
                self.results.update({span.first + n: found[n] for n in range(span.count)})
            for n in range(span.count):
                for request in self.requests(replace(span, first=span.first + n, count=1)):
                    (plain if request.picked is None else picked).append(request)
        if plain:
            cache = self.lend() if self.can_lend() else self.fill()
            self.attend_all(plain, cache, [self.tables[r.batch] for r in plain])
        for part in self.portions(picked):
            self.attend_all(part, *self.pick(part))
        for span in p.spans:
            if span.q_len:
                rows = torch.stack([self.results[span.first + n] for n in range(span.count)])
                self.store(span, slice(span.q_at, span.q_at + span.q_len), rows.float(), rows.new_zeros(()))

    # ---- rows as requests ---------------------------------------------------------------------------

    def requests(self, span: Span) -> Iterator[Request]:
        """The rows of one batch entry; rows without keys are in none."""
        if not span.q_len or not self.p.columns(span):
            return
        how = self.cutting()
        for i0, seen in self.seen_rows(span):
            for first, rows, causal, window in cut(seen, how):
                last = first + rows - 1
                whole = Request(span.first, i0 + first, rows, seen.hi[last], causal, window)
                if window == 0:
                    found = self.seen(span, i0 + first, i0 + first + 1)
                    assert found is not None
                    yield self.only(whole, found[0, 0, 0].nonzero().flatten())
                else:
                    yield whole

    def only(self, request: Request, columns: Tensor) -> Request:
        """The request with picked keys."""
        return replace(request, keys=columns.numel(), causal=False, window=-1, picked=columns)

    def cutting(self) -> Cutting:
        """How this call is cut: mostly into the largest requests, else in chunks as a server prefills long prompts."""
        chunk = (1, 3, 16, 40)[self.choice("chunk size", 4)]
        whole = self.choice("chunks", 3) > 0
        return Cutting(1 << 30 if whole else chunk, self.choice("wide", 2) == 0, self.choice("single row", 2) == 0)

    def seen_rows(self, span: Span) -> Iterator[tuple[int, Seen]]:
        """What the rows of one batch entry see, in blocks of rows so that masks stay small."""
        columns = self.p.columns(span)
        if self.x.mask is None:
            low, high = self.band(span)
            yield 0, Seen.of_band(span.q_len, columns, None if low <= OPEN[0] else low, None if high >= OPEN[1] else high)
            return
        step = max(1, MASK_BUDGET // columns)
        for i0 in range(0, span.q_len, step):
            i1 = min(span.q_len, i0 + step)
            found = self.seen(span, i0, i1)
            assert found is not None
            yield i0, Seen.of_mask(found[0, 0])

    def portions(self, picked: Sequence[Request]) -> Iterator[list[Request]]:
        """Requests with picked keys in groups whose keys fit into a small cache."""
        group: list[Request] = []
        size = 0
        for request in picked:
            own = request.keys * self.p.KV_N * self.width
            if group and size + own > PICKED_BUDGET:
                yield group
                group, size = [], 0
            group.append(request)
            size += own
        if group:
            yield group

    # ---- query and output ---------------------------------------------------------------------------

    def heads(self, x: Tensor, rope: Optional[Tensor] = None) -> Tensor:
        """Heads (.., D) in the kernel's dtype and size, rope behind the other columns, then zeros. A view where nothing changes."""
        x = x if rope is None else torch.cat((x, rope), dim=-1)
        x = x if x.shape[-1] == self.width else pad(x, (0, self.width - x.shape[-1]))
        return x.to(self.dtype)

    def rows_at(self, request: Request) -> tuple[Tensor, int]:
        """Where a request's rows are: the query of its batch entry, (Q_N, positions, width), and the first position."""
        p = self.p
        span = next(s for s in p.spans if s.first <= request.batch < s.first + s.count)
        return (self.query if p.packed else self.query[request.batch]), span.q_at + request.first

    def tokens(self, requests: Sequence[Request]) -> Tensor:
        """The rows of all requests, (tokens, Q_N, width): the query as it lies in memory where they follow each other there."""
        where = [(*self.rows_at(r), r.rows) for r in requests]
        step, heads, column = self.query.stride()[-2], self.query.stride()[-3], self.query.stride()[-1]
        starts = [x.storage_offset() + at * step for x, at, _ in where]
        if len(where) > 1 and starts[1] > starts[0] and all(rows == 1 for _, _, rows in where):
            step = starts[1] - starts[0]
        if column == 1 and all(a + rows * step == b for a, b, (_, _, rows) in zip(starts, starts[1:], where)):
            return self.query.as_strided((sum(r.rows for r in requests), self.p.Q_N, self.width), (step, heads, 1), starts[0])
        return torch.cat([x[:, at : at + rows].transpose(0, 1) for x, at, rows in where])

    def output(self, tokens: int, columns: int) -> tuple[Tensor, Tensor]:
        """A buffer of NaN for the outputs (tokens, Q_N, columns), and with the rows around it that nobody may write."""
        whole = torch.full((tokens + 2 * GUARD, self.p.Q_N, columns), math.nan, dtype=self.dtype)
        return whole[GUARD : GUARD + tokens], whole

    def keep(self, requests: Sequence[Request], found: Tensor, whole: Tensor) -> None:
        """Outputs of requests into the results. RuntimeError when the kernel wrote beside them."""
        if not (whole[:GUARD].isnan().all() and whole[-GUARD:].isnan().all()):
            raise RuntimeError("the kernel wrote before the first or behind the last row of its output")
        at = 0
        for r in requests:
            if r.rows:
                self.results[r.batch][:, r.first : r.first + r.rows] = found[at : at + r.rows, :, : self.p.V_D].transpose(0, 1)
            at += r.rows

    # ---- keys in blocks -----------------------------------------------------------------------------

    def can_lend(self) -> bool:
        """Whether the call's own blocks can be the kernel's."""
        values = self.x.value.cache
        return values is not None and self.takes_blocks_of(self.p.block_size) and bool(torch.isfinite(values).all())

    @abstractmethod
    def takes_blocks_of(self, size: int) -> bool:
        """Whether the kernel takes a cache of blocks of that size."""

    def lend(self) -> Any:
        """The call's cache, all of it, in the form of the kernel; ``tables`` are the call's own."""
        p, table, key = self.p, self.x.table, self.x.key.cache
        assert table is not None and key is not None
        for span in p.spans:
            used_blocks(table, span, p.block_size, key.shape[0])
        self.use_block(p.block_size)
        cache = self.make_cache(key.shape[0] * (p.block_size // self.block), torch.arange(0))
        self.put(cache, torch.arange(key.shape[0] * p.block_size), *self.tokens_of_cache())
        # A block of the call is one or several of the kernel's.
        each = p.block_size // self.block
        self.tables = [row if each == 1 else (row[:, None] * each + torch.arange(each)).flatten() for row in table]
        return cache

    def tokens_of_cache(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the call's cache, all slots, (tokens, KV_N, width)."""
        key, value, rope = self.x.key.cache, self.x.value.cache, self.x.key_rope
        assert key is not None and value is not None
        keys = self.heads(in_slots(key), None if rope is None or rope.cache is None else in_slots(rope.cache))
        return keys, self.heads(in_slots(value))

    @abstractmethod
    def use_block(self, size: int) -> None:
        """Decide on ``block`` for a call whose own blocks have that size."""

    @abstractmethod
    def choose_block(self) -> None:
        """Decide on ``block`` for keys that are not in blocks yet."""

    def fill(self) -> Any:
        """The keys of all batch entries in blocks of their own; whole blocks of a shared prefix are shared."""
        p = self.p
        self.choose_block()
        lengths = [0] * p.B
        for span in p.spans:
            lengths[span.first : span.first + span.count] = [p.columns(span)] * span.count
        shared = p.prefix // self.block
        need = [max(0, blocks_of(n, self.block) - shared) for n in lengths]
        order = self.order(shared + sum(need))
        common, order = order[0][:shared], (order[0][shared:], order[1])
        self.tables = [torch.cat((common, own)) for own in order[0][: sum(need)].split(need)]
        cache = self.make_cache(order[1], torch.cat((common, order[0])))
        for span in p.spans:
            if not p.columns(span):
                continue
            keys, values = self.keys_of(span)
            for n in range(span.count):
                # The common blocks are written once.
                skip = shared * self.block if span.first + n else 0
                slots = self.slots(self.tables[span.first + n], skip, keys.shape[2])
                self.put_in_parts(cache, slots, keys[n, :, skip:].transpose(0, 1), values[n, :, skip:].transpose(0, 1))
        return cache

    def pick(self, requests: Sequence[Request]) -> tuple[Any, list[Tensor]]:
        """A cache of the picked keys of requests, and the blocks of each."""
        self.choose_block()
        need = [blocks_of(r.keys, self.block) for r in requests]
        order, blocks = self.order(sum(need))
        tables = list(order.split(need))
        cache = self.make_cache(blocks, order)
        held: tuple[int, Tensor, Tensor] = (-1, order, order)
        for request, table in zip(requests, tables):
            if held[0] != request.batch:
                span = next(s for s in self.p.spans if s.first <= request.batch < s.first + s.count)
                held = (request.batch, *self.keys_of(replace(span, first=request.batch, count=1)))
            keys, values = (x[0].index_select(1, request.picked).transpose(0, 1) for x in held[1:])
            self.put(cache, self.slots(table, 0, request.keys), keys, values)
        return cache, tables

    def keys_of(self, span: Span) -> tuple[Tensor, Tensor]:
        """Keys and values of a span as the kernel wants them, (count, KV_N, columns, width), views where nothing changes."""
        rope = self.x.key_rope
        key = self.heads(self.x.key.fetch(span), None if rope is None else rope.fetch(span))
        return key, self.heads(self.x.value.fetch(span))

    def order(self, need: int) -> tuple[Tensor, int]:
        """Numbers for that many blocks in no order, and how many blocks the cache has: some stay unused."""
        total = max(1, need) + self.choice("spare blocks", 4)
        generator = torch.Generator().manual_seed(self.choice("block order", 1 << 30))
        return torch.randperm(total, generator=generator)[:need], total

    def slots(self, table: Tensor, start: int, end: int) -> Tensor:
        """Slots of the columns [start, end) of a request with these blocks."""
        at = torch.arange(start, end)
        return table.long()[at // self.block] * self.block + at % self.block

    def put_in_parts(self, cache: Any, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys at once, or all but the last few first, as a server does with a prompt and what follows it."""
        last = min(slots.numel(), (0, 1, 5)[self.choice("written in", 3)])
        for part in (slice(0, slots.numel() - last), slice(slots.numel() - last, None)):
            if slots[part].numel():
                self.put(cache, slots[part], keys[part], values[part])

    def block_table(self, tables: Sequence[Tensor], keys: Sequence[int]) -> Tensor:
        """The blocks of requests as the int32 table of the kernel, with entries behind the last block that nothing may read."""
        need = [blocks_of(n, self.block) for n in keys]
        unused = UNUSED_ENTRIES[self.choice("unused entries", len(UNUSED_ENTRIES))]
        found = torch.full((len(tables), max(need) + self.choice("table width", 3)), unused, dtype=torch.int32)
        for row, table, n in zip(found, tables, need):
            row[:n] = table[:n]
        return found


def blocks_of(tokens: int, size: int) -> int:
    """How many blocks tokens need."""
    return -(-tokens // size)


def in_slots(cache: Tensor) -> Tensor:
    """A cache (blocks, KV_N, rows, D), or NZ, as (blocks * rows, KV_N, D)."""
    if cache.dim() == 5:
        cache = cache.transpose(2, 3).flatten(3)
    return cache.transpose(1, 2).flatten(0, 1)
