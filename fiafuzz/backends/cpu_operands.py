"""The tensors of a call in the one order that the kernel works in: batch, head, position, column.

Views wherever possible; paged caches, shared prefixes and packed INT4 are gathered batch by batch. Strided keys, values
and caches come as their dense logical arrays (fiafuzz.model.tensors), so strides themselves are not exercised here.
Sources: spec/numerics.md 1.1, 5, 7, 10-13, 15.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import torch
from torch import Tensor

from fiafuzz.model.scene import Scene

from .cpu_numbers import as_torch, unpack_int4
from .cpu_problem import CannotRun, Problem, Span, need

Arrays = Mapping[str, Union[np.ndarray[Any, Any], Sequence[Optional[np.ndarray[Any, Any]]], None]]


def padding_sizes(scene: Scene, tensors: Arrays) -> dict[str, int]:
    """The numbers in queryPaddingSize and kvPaddingSize, as far as given."""
    found: dict[str, int] = {}
    for name in ("queryPaddingSize", "kvPaddingSize"):
        if scene.given(name):
            array = tensors.get(name)
            if isinstance(array, np.ndarray) and array.size == 1 and array.dtype.kind in "iu":
                found[name] = int(array.reshape(-1)[0])
    return found


def split_axis(x: Tensor, axis: int, *sizes: int) -> Tensor:
    """A view with one axis split into several."""
    found: Tensor = x.unflatten(axis, sizes)  # type: ignore[no-untyped-call]
    return found


def heads_first(x: Tensor, axes: str, heads: int) -> Tensor:
    """A view of a tensor with these axes as (B, N, S, D), or (N, T, D) when packed."""
    if axes == "BSH":
        return split_axis(x, -1, heads, -1).transpose(1, 2)
    if axes in ("BSND", "TND"):
        return x.transpose(-3, -2)
    if axes == "NBSD":
        return x.transpose(0, 1)
    return x


class Columns:
    """Keys, values or key ropes of all batches, whatever their storage; ``fetch`` gives those of one span."""

    def __init__(
        self,
        p: Problem,
        arrays: Sequence[Tensor],
        heads: int,
        prefix: Optional[Tensor],
        table: Optional[Tensor],
        listed: bool,
    ) -> None:
        self.p = p
        self.listed = listed
        self.table = table
        self.cache: Optional[Tensor] = None
        self.items: list[Tensor] = []
        self.prefix: Optional[Tensor] = None
        if p.storage == "paged":
            cache = arrays[0]
            self.cache = split_axis(cache, -1, heads, -1).transpose(1, 2) if cache.dim() == 3 else cache
        else:
            self.items = [heads_first(x, p.q_axes, heads) for x in arrays]
        if prefix is not None:
            self.prefix = heads_first(prefix, p.q_axes, heads)

    def fetch(self, span: Span) -> Tensor:
        """(count, N, columns, D) of the span in storage form: shared prefix first, then its own valid columns."""
        p = self.p
        if self.cache is not None:
            return gather_blocks(self.cache, self.blocks(span), span.kv_len)
        if p.packed:
            return self.items[0][:, span.kv_at : span.kv_at + span.kv_len].unsqueeze(0)
        own = self.items[span.first] if self.listed else self.items[0][span.first : span.first + span.count]
        own = own[:, :, span.kv_at : span.kv_at + span.kv_len]
        if self.prefix is None:
            return own
        return self.join(self.prefix[:, :, : p.prefix].expand(span.count, -1, -1, -1), own)

    def join(self, prefix: Tensor, own: Tensor) -> Tensor:
        """Prefix columns before a batch's own."""
        return torch.cat((prefix, own), dim=2)

    def blocks(self, span: Span) -> Tensor:
        """Ids of the cache blocks that hold the span's columns, (count, blocks). CannotRun for an id out of range."""
        assert self.table is not None and self.cache is not None
        return used_blocks(self.table, span, self.p.block_size, self.cache.shape[0])


def used_blocks(table: Tensor, span: Span, block_size: int, cache_blocks: int) -> Tensor:
    """The entries of the block table that a span reads, (count, blocks). The operator does not check them; what lies
    outside the cache has no result (spec/numerics.md 10, 20), hence CannotRun."""
    used = table[span.first : span.first + span.count, : -(-span.kv_len // block_size)]
    if used.numel() and (int(used.min()) < 0 or int(used.max()) >= cache_blocks):
        raise CannotRun(f"the block table names a block outside the cache of {cache_blocks}")
    return used


def gather_blocks(cache: Tensor, blocks: Tensor, length: int) -> Tensor:
    """Rows of cache blocks one after the other: cache (nb, N, bs, ...) or NZ (nb, N, D/D0, bs, D0), blocks
    (count, n) -> (count, N, length, ...)."""
    found = cache[blocks.long()]
    if found.dim() == 6:
        found = found.permute(0, 2, 1, 4, 3, 5).flatten(-2)
    else:
        found = found.transpose(1, 2)
    return found.flatten(2, 3)[:, :, :length]


class Operands:
    """The tensors of one call, named as in the C interface, ordered heads first. Floats keep their storage type."""

    def __init__(self, p: Problem, tensors: Arrays) -> None:
        self.p = p
        self.tensors = tensors
        scene = p.scene
        self.query = heads_first(self.tensor("query"), p.q_axes, p.Q_N)
        self.table = self.tensor("blockTable") if p.storage == "paged" else None
        self.key = self.columns("key", "keySharedPrefix")
        self.value = self.key if scene.mla_kind == "decode" else self.columns("value", "valueSharedPrefix")
        self.query_rope: Optional[Tensor] = None
        self.key_rope: Optional[Columns] = None
        if p.rope_d:
            self.query_rope = heads_first(self.tensor("queryRope"), p.q_axes, p.Q_N)
            self.key_rope = Columns(p, [self.tensor("keyRope")], p.KV_N, None, self.table, False)
        self.mask = self._mask() if p.mask_on and p.sparse_mode in (0, 1) else None
        self.pse = self._pse() if scene.pse_on else None
        self.slopes = self._slopes() if scene.alibi_on else None
        self.sink = self._sink() if scene.sink_on else None

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """A single tensor in storage form; CannotRun when it is missing or not of the case's shape."""
        found = self.tensors.get(name)
        spec = self.p.scene.tensor(name)
        if spec is None or not isinstance(found, np.ndarray):
            raise CannotRun(f"{name} is missing")
        need(found.shape == spec.shape, f"{name} has shape {found.shape}, the case says {spec.shape}")
        return found

    def tensor(self, name: str) -> Tensor:
        """A single tensor as torch has it."""
        return as_torch(self.array(name), self.p.scene.dtype(name) or "")

    def columns(self, name: str, prefix_name: str) -> Columns:
        """The key or value columns with their shared prefix."""
        p = self.p
        found = self.tensors.get(name)
        specs = p.scene.keys if name == "key" else p.scene.values
        need(found is not None and len(found) == len(specs), f"{name} tensors are missing")
        carrier = p.scene.int4_carrier
        items = []
        for spec, array in zip(specs, found or ()):
            if spec is None or not isinstance(array, np.ndarray) or array.shape != spec.shape:
                raise CannotRun(f"a {name} tensor is not of the case's shape")
            item = as_torch(array, spec.dtype)
            items.append(self.unpack(item) if carrier else item)
        prefix = None
        if p.scene.prefix_on:
            prefix = self.tensor(prefix_name)
            prefix = self.unpack(prefix) if carrier else prefix
        return Columns(p, items, p.KV_N, prefix, self.table, p.storage == "tensor_list")

    def unpack(self, words: Tensor) -> Tensor:
        """INT4 words to one value each."""
        return unpack_int4(words)

    def _mask(self) -> Tensor:
        """Full mask as (1|B, rows, columns), True where masked (spec/numerics.md 5)."""
        p = self.p
        x = self.tensor("attenMask")
        need(
            p.scene.dtype("attenMask") in ("BOOL", "INT8", "UINT8"), f"attenMask of dtype {p.scene.dtype('attenMask')}"
        )
        if x.dim() == 2:
            per_batch = p.scene.single_token and x.shape[0] == p.B and p.B > 1
            x = x.unsqueeze(1 if per_batch else 0)
        elif x.dim() == 4:
            need(x.shape[1] == 1, "attenMask has a head axis")
            x = x[:, 0]
        need(x.dim() == 3 and x.shape[0] in (1, p.B), f"attenMask of shape {self.p.scene.shape('attenMask')}")
        rows = max((s.q_row + s.q_len for s in p.spans if s.q_len), default=0)
        columns = max((s.kv_col + p.columns(s) for s in p.spans if s.q_len), default=0)
        need(
            x.shape[1] >= rows and x.shape[2] >= columns,
            f"attenMask of shape {p.scene.shape('attenMask')} does not cover {rows} x {columns}",
        )
        return x if x.dtype == torch.bool else x != 0

    def _pse(self) -> Tensor:
        """Bias (1|B, Q_N, rows, columns), spec/numerics.md 7; one row serves all (v5.pse.single.s1_gt1_dim2)."""
        p = self.p
        x = self.tensor("pseShift")
        need(
            x.dim() == 4 and x.shape[0] in (1, p.B) and x.shape[1] == p.Q_N and x.is_floating_point(),
            f"pseShift of shape {tuple(x.shape)}",
        )
        rows = max((s.q_row + s.q_len for s in p.spans if s.q_len), default=0)
        columns = max((s.kv_col + p.columns(s) for s in p.spans if s.q_len), default=0)
        if x.shape[2] == 1:
            x = x.expand(-1, -1, rows, -1)
        need(
            x.shape[2] >= rows and x.shape[3] >= columns,
            f"pseShift of shape {tuple(x.shape)} does not cover {rows} x {columns}",
        )
        return x

    def _slopes(self) -> Tensor:
        x = self.tensor("pseShift")
        need(x.numel() == self.p.Q_N and x.dtype == torch.float32, "slopes are not FLOAT32 (Q_N)")
        return x.reshape(-1)

    def _sink(self) -> Tensor:
        x = self.tensor("learnableSink")
        need(x.numel() == self.p.Q_N and x.is_floating_point(), "learnableSink is not a float of shape (Q_N)")
        return x.reshape(-1).float()

    def scalar(self, name: str, default: Optional[float] = None) -> float:
        """The number in a FLOAT32 tensor of one element; UINT64 holds its float32 pattern in the low 32 bits."""
        if not self.p.scene.given(name) and default is not None:
            return default
        x = self.array(name)
        need(x.size == 1, f"{name} does not hold one number")
        if x.dtype == np.uint64:
            return float(x.reshape(-1).astype(np.uint32).view(np.float32)[0])
        need(x.dtype in (np.float32, np.float16), f"{name} of dtype {x.dtype}")
        return float(x.reshape(-1)[0])
