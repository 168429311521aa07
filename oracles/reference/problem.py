"""A case made ready for computing: sizes, lengths, masking, bias, and the runs that are computed at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Optional

import numpy as np

from fiafuzz.model.codecs import decode
from fiafuzz.model.layouts import Layout
from fiafuzz.model.scene import Scene

from .actual_seq_len import key_lengths, legacy_decode, query_lengths
from .attention_mask import Masking, RowMask, masking, row_mask
from .expected import F64, MAX_ELEMENTS, MAX_WORK, ReferenceError, Stored, Tensors
from .left_padding import key_begins, query_begins
from .pse import Bias, RowBias, bias_of

RUN_ELEMENTS = 1 << 24
"""Decoded key and value elements that one run may hold at once (128 MiB of float64)."""


@dataclass(frozen=True)
class Run:
    """Consecutive batches of equal lengths, and a range of key/value heads, computed together.

    ``rows`` query rows from ``q_begin`` (padded) or token ``q_offset`` (packed); ``prefix`` shared columns, then
    ``cols`` own columns from ``k_begin`` or token ``k_offset``. ``heads`` are key/value heads.
    """

    first: int
    count: int
    rows: int
    cols: int
    prefix: int
    q_begin: int
    k_begin: int
    q_offset: int
    k_offset: int
    heads: slice

    @property
    def total(self) -> int:
        """Columns of a score row: prefix and own."""
        return self.prefix + self.cols


@dataclass
class Problem:
    """The sizes and facts of a case that every part of the reference asks for."""

    scene: Scene
    tensors: Tensors
    layout: Layout
    B: int
    Q_N: int
    KV_N: int
    G: int
    D: int
    V_D: int
    rows: int
    """Rows of the output: Q_S of padded layouts, T of packed ones."""
    scale: float
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    q_begins: tuple[int, ...]
    k_begins: tuple[int, ...]
    prefix: int
    masking: Masking
    bias: Optional[Bias]
    sink: Optional[F64]
    legacy: bool

    def stored(self, name: str, index: int = 0) -> Stored:
        """A tensor in storage form. ReferenceError when it is missing."""
        found = self.tensors.get(name)
        if isinstance(found, list):
            found = found[index] if index < len(found) else None
        if found is None:
            raise ReferenceError(f"{name} has no tensor")
        return found

    def numbers(self, name: str) -> F64:
        """A small parameter tensor, decoded."""
        return np.asarray(decode(self.dtype(name), self.stored(name)), dtype=np.float64)

    def dtype(self, name: str) -> str:
        """The dtype of a tensor by the case."""
        found = self.scene.dtype(name)
        if found is None:
            raise ReferenceError(f"{name} is missing")
        return found

    @cached_property
    def q_offsets(self) -> tuple[int, ...]:
        """First token of every batch in a packed layout."""
        return _offsets(self.q_lens)

    def overflown(self, batch: int) -> bool:
        """Whether left padding leaves no room for the batch (spec/numerics.md 11)."""
        return self.q_begins[batch] < 0 or self.k_begins[batch] < 0

    def mask(self, run: Run) -> Optional[RowMask]:
        """The masking of a run."""
        return row_mask(
            self.masking,
            first=run.first,
            count=run.count,
            rows=run.rows,
            total=run.total,
            q_begin=run.q_begin,
            k_begin=run.k_begin,
        )

    def run_bias(self, run: Run) -> Optional[RowBias]:
        """The bias of a run."""
        if self.bias is None:
            return None
        heads = slice(run.heads.start * self.G, run.heads.stop * self.G)
        return RowBias(self.bias, run.first, run.count, run.q_begin, run.k_begin, heads)

    def runs(self) -> Iterator[Run]:
        """All runs, in order. Batches without query rows, without columns or without room are left out."""
        width = max(1, self.D + self.V_D)
        single = self.scene.storage == "tensor_list"
        packed_k = self.scene.packed and not self.scene.paged
        q_offsets = self.q_offsets if self.scene.packed else (0,) * self.B
        k_offsets = _offsets(self.kv_lens) if packed_k else (0,) * self.B
        b = 0
        while b < self.B:
            rows, cols = self.q_lens[b], self.kv_lens[b]
            end = b + 1
            while not single and end < self.B and self._alike(b, end):
                end += 1
            if rows > 0 and self.prefix + cols > 0 and not self.overflown(b):
                columns = self.prefix + cols
                heads = max(1, min(self.KV_N, RUN_ELEMENTS // max(1, columns * width)))
                batches = max(1, RUN_ELEMENTS // max(1, columns * width * self.KV_N)) if heads == self.KV_N else 1
                for first in range(b, end, batches):
                    for h in range(0, self.KV_N, heads):
                        yield Run(
                            first,
                            min(batches, end - first),
                            rows,
                            cols,
                            self.prefix,
                            self.q_begins[b],
                            self.k_begins[b],
                            q_offsets[first],
                            k_offsets[first],
                            slice(h, min(h + heads, self.KV_N)),
                        )
            b = end

    def _alike(self, b: int, other: int) -> bool:
        return (
            self.q_lens[b] == self.q_lens[other]
            and self.kv_lens[b] == self.kv_lens[other]
            and self.q_begins[b] == self.q_begins[other]
            and self.k_begins[b] == self.k_begins[other]
        )


def _offsets(lens: tuple[int, ...]) -> tuple[int, ...]:
    found, at = [], 0
    for n in lens:
        found.append(at)
        at += n
    return tuple(found)


def problem_of(scene: Scene, tensors: Tensors) -> Problem:
    """Sizes and facts of a case with a non-empty query and key. ReferenceError when something does not fit."""
    layout = scene.layout
    if layout is None or scene.q_axes is None:
        raise ReferenceError(scene.why.get("q_axes", f"unknown inputLayout {scene.layout_name!r}"))
    if not scene.keys or not scene.values or None in scene.keys or None in scene.values:
        raise ReferenceError("key or value is missing")
    G, KV_N, D, V_D = scene.G, scene.KV_N, scene.Q_D, scene.V_D
    if G is None or D is None or V_D is None or scene.quant_kind is None:
        raise ReferenceError(next((scene.why[k] for k in ("G", "Q_D", "V_D", "quant_kind") if k in scene.why), "sizes"))
    if scene.K_D != D:
        raise ReferenceError(f"query has head size {D}, key {scene.K_D}")
    legacy = legacy_decode(scene)
    q_lens, kv_lens = query_lengths(scene, legacy), key_lengths(scene)
    if scene.storage == "tensor_list" and len(scene.keys) < len(q_lens):
        raise ReferenceError(f"{len(scene.keys)} key tensors for {len(q_lens)} batches")
    prefix = scene.prefix_len
    if prefix and not 0 <= prefix <= (scene.prefix_s or 0):
        raise ReferenceError(f"shared prefix of {prefix} tokens in a tensor of {scene.prefix_s}")
    rows = scene.T if scene.packed else scene.Q_S
    work = scene.Q_N * (D + V_D) * sum(q * (k + prefix) for q, k in zip(q_lens, kv_lens))
    size = scene.Q_N * (rows or 0) * max(1, V_D) * (1 if scene.packed else len(q_lens))
    if work > MAX_WORK or size > MAX_ELEMENTS:
        raise ReferenceError(f"{work} multiply-adds and {size} output elements are over the limits {MAX_WORK} and {MAX_ELEMENTS}")
    sink = None
    if scene.sink_on:
        found = tensors.get("learnableSink")
        if not isinstance(found, np.ndarray) or found.shape != (scene.Q_N,):
            raise ReferenceError(f"learnableSink has not the shape ({scene.Q_N})")
        sink = np.asarray(decode(scene.dtype("learnableSink") or "", found), dtype=np.float64)
    return Problem(
        scene=scene,
        tensors=tensors,
        layout=layout,
        B=len(q_lens),
        Q_N=scene.Q_N,
        KV_N=KV_N,
        G=G,
        D=D,
        V_D=V_D,
        rows=rows or 0,
        scale=float(np.float32(scene.scale)),
        q_lens=q_lens,
        kv_lens=kv_lens,
        q_begins=query_begins(scene, tensors, q_lens, legacy),
        k_begins=key_begins(scene, tensors, kv_lens),
        prefix=prefix,
        masking=masking(scene, tensors, legacy),
        bias=bias_of(scene, tensors, legacy),
        sink=sink,
        legacy=legacy,
    )
