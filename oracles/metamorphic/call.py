"""Calls with their tensors: what a relation starts from and what it makes.

Tensors are explicit (storage form, spec/numerics.md 18), so a transformation moves the very bits of the first call. ``Change``
builds the other call; ``rows_of`` and ``lse_rows`` read outputs batch by batch, whatever the layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Optional, Union

import msgspec
import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.codecs import decode
from fiafuzz.model.layouts import LAYOUTS, Layout, lse_shape, tensor_shape
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import Tensors
from oracles.reference.expected import Expected

Array = NDArray[Any]
Outputs = Mapping[str, Array]
Rows = dict[str, "list[Array]"]
"""Output name -> one array a batch: attentionOut (Q_N, Lq, V_D), softmaxLse (Q_N, Lq)."""

LITERAL = frozenset({"blockTable", "queryPaddingSize", "kvPaddingSize"})
"""Tensors whose numbers stay in the case: lengths and places rather than data."""


class Call:
    """A case with its tensors. ``expected`` (bounds and the elements that may be compared) is worked out at first use, unless
    it is given; ReferenceError when it cannot be."""

    def __init__(self, case: Case, tensors: Tensors, expected: Optional[Expected] = None) -> None:
        self.case = case
        self.tensors = tensors
        self._expected = expected

    @cached_property
    def scene(self) -> Scene:
        """The facts of the case."""
        return Scene(self.case)

    @property
    def expected(self) -> Expected:
        """What may be compared, and how far results may be off; its numbers are not used by relations."""
        if self._expected is None:
            from oracles.reference import reference

            self._expected = reference(self.case, self.tensors, scene=self.scene)
        return self._expected

    @property
    def layout(self) -> Layout:
        """The layout record (it must be known)."""
        return LAYOUTS[self.scene.layout_name]

    @property
    def q_lens(self) -> tuple[int, ...]:
        """Query length of each batch."""
        return self.scene.q_lens or ()

    @property
    def kv_lens(self) -> tuple[int, ...]:
        """Key length of each batch, without prefix."""
        return self.scene.kv_lens or ()

    def one(self, name: str) -> Array:
        """A tensor that must be there."""
        found = self.tensors.one(name)
        if found is None:
            raise KeyError(name)
        return found

    def padding(self, name: str) -> int:
        """The number in queryPaddingSize or kvPaddingSize; negative counts as 0."""
        found = self.tensors.one(name)
        return max(0, int(found.reshape(-1)[0])) if found is not None and found.size else 0

    @property
    def q_begins(self) -> tuple[int, ...]:
        """Where the valid query rows of each batch begin on the Q_S axis."""
        s = self.scene
        if not s.q_padding_on:
            return (0,) * len(self.q_lens)
        return tuple((s.Q_S or 0) - n - self.padding("queryPaddingSize") for n in self.q_lens)

    @property
    def kv_begins(self) -> tuple[int, ...]:
        """Where the valid keys of each batch begin on the KV_S axis."""
        s = self.scene
        if not s.kv_padding_on:
            return (0,) * len(self.kv_lens)
        return tuple((s.KV_S or 0) - n - self.padding("kvPaddingSize") for n in self.kv_lens)


@dataclass(frozen=True)
class Ran:
    """A call and the outputs (storage arrays) that a backend gave."""

    call: Call
    outputs: Outputs

    @cached_property
    def rows(self) -> Rows:
        """Valid rows of all outputs as float64."""
        found: Rows = {}
        for name, array in self.outputs.items():
            spec = self.call.scene.tensor(name)
            if spec is not None:
                found[name] = rows_of(self.call, name, np.asarray(decode(spec.dtype, array), dtype=np.float64))
        return found


# ---- layouts ----------------------------------------------------------------------------------


def heads_first(axes: str, array: Array, heads: int) -> Array:
    """A tensor of any layout as (B, N, S, D), packed ones as (N, T, D)."""
    if axes == "BSH":
        b, s, h = array.shape
        array, axes = array.reshape(b, s, heads, h // heads if heads else 0), "BSND"
    wanted = "NTD" if "T" in axes else "BNSD"
    found: Array = array.transpose([axes.index(a) for a in wanted])
    return found


def from_heads(axes: str, array: Array) -> Array:
    """The inverse of ``heads_first``, dense."""
    if axes == "BSH":
        b, n, s, d = array.shape
        return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).reshape(b, s, n * d)
    have = "NTD" if "T" in axes else "BNSD"
    return np.ascontiguousarray(array.transpose([have.index(a) for a in axes]))


def batches(axes: str, array: Array, heads: int, lens: Sequence[int]) -> list[Array]:
    """A tensor cut into batches: (N, S, D) each for batch layouts (the whole S axis), (N, length, D) for packed ones."""
    whole = heads_first(axes, array, heads)
    if "T" not in axes:
        return list(whole)
    ends = list(accumulate(lens))
    return [whole[:, end - n : end] for n, end in zip(lens, ends)]


def joined(axes: str, parts: Sequence[Array], S: int) -> Array:
    """Batches put together again: padded with zeros to S rows for batch layouts, back to back for packed ones."""
    if "T" in axes:
        return from_heads(axes, np.concatenate(list(parts), axis=1))
    return from_heads(axes, np.stack([to_rows(p, S) for p in parts]))


def to_rows(part: Array, S: int) -> Array:
    """(N, rows, D) cut or padded with zeros to S rows."""
    part = part[:, :S]
    missing = S - part.shape[1]
    return np.concatenate([part, np.zeros_like(part, shape=(part.shape[0], missing, part.shape[2]))], axis=1) if missing else part


def cache_blocks(cache_layout: str, cache: Array, heads: int) -> Array:
    """A paged cache as (blocks, N, blockSize, D)."""
    if cache_layout == "BnBsH":
        nb, bs, h = cache.shape
        return np.asarray(cache.reshape(nb, bs, heads, h // heads).transpose(0, 2, 1, 3))
    if cache_layout == "NZ":
        nb, n, outer, bs, inner = cache.shape
        return np.asarray(cache.transpose(0, 1, 3, 2, 4).reshape(nb, n, bs, outer * inner))
    return cache


def to_cache(cache_layout: str, blocks: Array, D0: int) -> Array:
    """The inverse of ``cache_blocks``, dense; D0 is the inner axis of NZ."""
    nb, n, bs, d = blocks.shape
    if cache_layout == "BnBsH":
        return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3)).reshape(nb, bs, n * d)
    if cache_layout == "NZ":
        return np.ascontiguousarray(blocks.reshape(nb, n, bs, d // D0, D0).transpose(0, 1, 3, 2, 4))
    return np.ascontiguousarray(blocks)


def gathered(call: Call, name: str, index: int = 0) -> list[Array]:
    """Keys (name key, value or keyRope) of each batch through the block table: (KV_N, length, D)."""
    scene = call.scene
    found = call.tensors[name]
    cache = found[index] if isinstance(found, list) else found
    assert cache is not None and scene.cache_layout is not None
    blocks = cache_blocks(scene.cache_layout, cache, scene.KV_N)
    size = scene.block_size
    rows = []
    for entries, n in zip(call.one("blockTable"), call.kv_lens):
        picked = blocks[entries[: -(-n // size)]].transpose(1, 0, 2, 3)
        rows.append(picked.reshape(picked.shape[0], -1, picked.shape[3])[:, :n])
    return rows


def rows_of(call: Call, name: str, array: Array) -> list[Array]:
    """The valid rows of an output, batch by batch (see ``Rows``)."""
    layout, heads = call.layout, call.scene.Q_N
    if name == "softmaxLse":
        whole = array[..., 0].T if layout.packed else array[..., 0]
    else:
        whole = heads_first(layout.output, array, heads)
    ends = list(accumulate(call.q_lens))
    if layout.packed:
        return [whole[:, end - n : end] for n, end in zip(call.q_lens, ends)]
    return [whole[b, :, begin : begin + n] for b, (begin, n) in enumerate(zip(call.q_begins, call.q_lens))]


# ---- making the other call --------------------------------------------------------------------


class Change:
    """The other call in the making: a copy of the first whose parameters are replaced one by one."""

    def __init__(self, call: Call) -> None:
        self.first = call
        self._changes: dict[str, Any] = {}
        self._tensors = Tensors(call.tensors)

    def set(self, **parameters: Any) -> Change:
        """Attributes and integer lists by their C names; None drops an input."""
        self._changes.update(parameters)
        for name, value in parameters.items():
            if value is None:
                self._tensors.pop(name, None)
        return self

    def put(self, name: str, array: Array, dtype: Optional[str] = None) -> Change:
        """A tensor: its array, and a spec of its shape. ``dtype`` for one that the first call does not have."""
        self._tensors[name] = array
        self._changes[name] = self._spec(name, array, self.first.scene.tensor(name), dtype)
        return self

    def put_list(self, name: str, arrays: Sequence[Array]) -> Change:
        """The tensors of key or value."""
        self._tensors[name] = list(arrays)
        like = self.first.scene.tensor(name)
        self._changes[name] = tuple(self._spec(name, a, like, None) for a in arrays)
        return self

    def _spec(self, name: str, array: Array, like: Optional[TensorSpec], dtype: Optional[str]) -> TensorSpec:
        values = tuple(int(n) for n in array.reshape(-1)) if name in LITERAL else None
        if like is None:
            assert dtype is not None, name
            return TensorSpec(array.shape, dtype, values=values)
        return TensorSpec(array.shape, dtype or like.dtype, like.format, values=values)

    def outputs(self, sizes: Mapping[str, int], *, layout: Optional[str] = None, lse: Optional[bool] = None) -> Change:
        """Output tensors for sizes B, N, S, T and D (``lse``: whether softmaxLse is asked for; None: as it was)."""
        B, N, S, T, D = (sizes[letter] for letter in "BNSTD")
        scene = self.first.scene
        record = LAYOUTS[layout or scene.layout_name]
        on = scene.lse_on if lse is None else lse
        assert scene.out is not None
        out = msgspec.structs.replace(scene.out, shape=tensor_shape(record.output, B=B, S=S, N=N, D=D, T=T), strides=None, offset=0)
        self._changes["attentionOut"] = out
        self._changes["softmaxLseFlag"] = on
        if on or scene.lse is not None:
            self._changes["softmaxLse"] = TensorSpec(lse_shape(record, B=B, N=N, S=S, T=T), "FLOAT32") if on else scene.lse
        if layout is not None:
            self._changes["inputLayout"] = layout
        return self

    def call(self) -> Call:
        """The finished call."""
        return Call(self.first.case.replace(**self._changes), self._tensors)


def stored_zeros(like: Array, shape: tuple[int, ...]) -> Array:
    """Zeros of the storage type of a tensor."""
    return np.zeros(shape, like.dtype)


def sizes(call: Call) -> dict[str, int]:
    """B, N, S, T and D of the outputs of a call, as ``Change.outputs`` takes them."""
    scene = call.scene
    axes = scene.out_axes or {}
    d = axes["D"] if "D" in axes else axes.get("H", 0) // max(1, scene.Q_N)
    return {"B": scene.B or 0, "N": scene.Q_N, "S": scene.Q_S or 0, "T": scene.T or 0, "D": d}


def one_or_list(value: Union[Array, list[Optional[Array]]]) -> list[Array]:
    """A tensor or a tensor list as a list of arrays that are there."""
    return [a for a in value if a is not None] if isinstance(value, list) else [value]
