"""Relations that move operands: another layout, padded against packed, other orders of batches and heads, repeated heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.layouts import LAYOUTS
from fiafuzz.model.scene import Scene

from .call import Array, Call, Change, Ran, Rows, batches, cache_blocks, from_heads, heads_first, joined, one_or_list, sizes, to_cache
from .conditions import computed, full_mask, legacy, mask_batches, padded, plain, shared_scales
from .relation import Relation

Index = NDArray[np.int64]

QUERY_LIKE = ("query", "queryRope")
KEY_LIKE = ("key", "value", "keyRope")
PREFIX = ("keySharedPrefix", "valueSharedPrefix")
PER_BATCH_AXIS = {"per_token": -2, "token_head": 0, "group": 1}
"""The batch axis of antiquant parameters (spec/numerics.md 15.1)."""


class LayoutEquivalence(Relation):
    """The same operands in another layout of the same family give the same rows."""

    name = "layout"
    title = "the same operands in another layout"
    cites = ("numerics 1.1",)

    TARGETS = ("BNSD", "BSND", "BSH", "NTD", "TND", "BNSD_BSND", "NTD_TND", "BSH_NBSD")

    def applies(self, scene: Scene) -> bool:
        return shared_scales(scene)

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        own = call.layout
        for name in self.TARGETS:
            target = LAYOUTS[name]
            if target.packed == own.packed and (target.inputs, target.output) != (own.inputs, own.output):
                other = relaid(call, name)
                if same_path(call, other):
                    yield (other,)


def same_path(call: Call, other: Call) -> bool:
    """Whether both calls read their mask in the same way: single tokens in some layouts do not look at sparseMode."""
    return not call.scene.mask_on or legacy(call.scene) == legacy(other.scene)


def relaid(call: Call, layout: str) -> Call:
    """The call in another layout of its family. A cache stays as it is."""
    scene, own, target = call.scene, call.layout, LAYOUTS[layout]
    change = Change(call)

    def moved(array: Array, heads: int) -> Array:
        return from_heads(target.inputs, heads_first(own.inputs, array, heads))

    for name in QUERY_LIKE:
        if scene.given(name):
            change.put(name, moved(call.one(name), scene.Q_N))
    for name in (*PREFIX, *(() if scene.paged else KEY_LIKE)):
        if not scene.given(name):
            continue
        if name in ("key", "value"):
            change.put_list(name, [moved(a, scene.KV_N) for a in one_or_list(call.tensors[name])])
        else:
            change.put(name, moved(call.one(name), scene.KV_N))
    return change.outputs(sizes(call), layout=layout).call()


class PaddedPacked(Relation):
    """Batches padded to one length and batches back to back are the same batches."""

    name = "padded-packed"
    title = "padded batches put back to back, or packed ones padded"
    cites = ("numerics 1.1", "numerics 3")

    def applies(self, scene: Scene) -> bool:
        return (
            plain(scene)
            and scene.storage in ("contiguous", "paged")
            and not scene.prefix_on
            and not padded(scene)
            and not scene.pse_on
            and not scene.alibi_on
            and not full_mask(scene)
        )

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        for name in ("BNSD", "BSND", "BSH", "BNSD_BSND") if call.layout.packed else ("TND", "NTD", "NTD_TND", "TND_NTD"):
            other = repacked(call, name)
            if same_path(call, other):
                yield (other,)


def repacked(call: Call, layout: str) -> Call:
    """The call in a layout of the other family, every batch cut to its length or padded to the longest."""
    scene, own, target = call.scene, call.layout, LAYOUTS[layout]
    change = Change(call)
    q, kv = call.q_lens, call.kv_lens
    q_s, kv_s = max(q), max((*kv, 1))

    def moved(array: Array, heads: int, lens: Sequence[int], S: int) -> Array:
        parts = [p[:, :n] for p, n in zip(batches(own.inputs, array, heads, lens), lens)]
        return joined(target.inputs, parts, S)

    for name in QUERY_LIKE:
        if scene.given(name):
            change.put(name, moved(call.one(name), scene.Q_N, q, q_s))
    if not scene.paged:
        for name in KEY_LIKE:
            if not scene.given(name):
                continue
            array = moved(one_or_list(call.tensors[name])[0], scene.KV_N, kv, kv_s)
            if name == "keyRope":
                change.put(name, array)
            else:
                change.put_list(name, [array])
    packed = target.packed
    change.set(
        actualSeqLengths=tuple(accumulate(q)) if packed else tuple(q),
        actualSeqLengthsKv=tuple(accumulate(kv)) if packed and not scene.paged else tuple(kv),
    )
    return change.outputs({**sizes(call), "S": q_s, "T": sum(q)}, layout=layout).call()


# ---- batches ----------------------------------------------------------------------------------


def _batches_movable(s: Scene) -> bool:
    if not computed(s) or s.merged_antiquant or s.full_kind not in (None, "per_tensor"):
        return False
    return not (s.packed and s.antiquant_kind in ("per_token", "token_head", "group", "mixed"))


def picked_batches(call: Call, picks: Sequence[int]) -> Optional[Call]:
    """The call with these batches in this order; None when a parameter has a form that is not known here."""
    scene, own = call.scene, call.layout
    change = Change(call)
    order = list(picks)

    def moved(array: Array, heads: int, lens: Sequence[int]) -> Array:
        parts = batches(own.inputs, array, heads, lens)
        return joined(own.inputs, [parts[i] for i in order], parts[0].shape[1])

    for name in QUERY_LIKE:
        if scene.given(name):
            change.put(name, moved(call.one(name), scene.Q_N, call.q_lens))
    if scene.paged:
        change.put("blockTable", call.one("blockTable")[order])
    for name in () if scene.paged else KEY_LIKE:
        if not scene.given(name):
            continue
        arrays = one_or_list(call.tensors[name])
        if name == "keyRope":
            change.put(name, moved(arrays[0], scene.KV_N, call.kv_lens))
        elif scene.storage == "tensor_list":
            change.put_list(name, [arrays[i] for i in order])
        else:
            change.put_list(name, [moved(arrays[0], scene.KV_N, call.kv_lens)])
    if mask_batches(scene):
        change.put("attenMask", call.one("attenMask")[order])
    if scene.pse_on and call.one("pseShift").shape[0] == scene.B:
        change.put("pseShift", call.one("pseShift")[order])
    if not _scales_picked(call, change, order):
        return None
    q, kv = [call.q_lens[i] for i in order], [call.kv_lens[i] for i in order]
    if scene.given("actualSeqLengths"):
        change.set(actualSeqLengths=tuple(accumulate(q)) if own.packed else tuple(q))
    if scene.given("actualSeqLengthsKv"):
        change.set(actualSeqLengthsKv=tuple(accumulate(kv)) if own.packed and not scene.paged else tuple(kv))
    return change.outputs({**sizes(call), "B": len(order), "T": sum(q)}).call()


def _scales_picked(call: Call, change: Change, order: list[int]) -> bool:
    kind = call.scene.antiquant_kind
    for side in ("key", "value"):
        axis = PER_BATCH_AXIS.get("per_token" if kind == "mixed" and side == "value" else kind or "")
        for name in (f"{side}AntiquantScale", f"{side}AntiquantOffset"):
            if axis is None or not call.scene.given(name):
                continue
            array = call.one(name)
            if array.ndim < 2 or array.shape[axis] != call.scene.B:
                return False
            change.put(name, np.ascontiguousarray(np.take(array, order, axis)))
    return True


class BatchOrder(Relation):
    """Batches in the opposite order give their rows in the opposite order."""

    name = "batch-order"
    title = "the batches in the opposite order"
    cites = ("numerics 2", "numerics 3")

    def applies(self, scene: Scene) -> bool:
        return _batches_movable(scene) and (scene.B or 0) > 1

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        other = picked_batches(call, range(len(call.q_lens))[::-1])
        if other is not None:
            yield (other,)

    def restored(self, first: Ran, others: Sequence[Ran]) -> Rows:
        return {name: rows[::-1] for name, rows in others[0].rows.items()}


class BatchSlice(Relation):
    """A batch alone gives the rows that it gives among others."""

    name = "batch-slice"
    title = "the last batch alone"
    cites = ("numerics 2", "numerics 3")

    def applies(self, scene: Scene) -> bool:
        return _batches_movable(scene) and (scene.B or 0) > 1

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        if call.q_lens[-1] and (other := picked_batches(call, [len(call.q_lens) - 1])) is not None:
            yield (other,)

    def restored(self, first: Ran, others: Sequence[Ran]) -> Rows:
        # The batches that were left out agree with themselves.
        return {name: [*first.rows[name][:-1], *rows] for name, rows in others[0].rows.items()}


# ---- heads ------------------------------------------------------------------------------------


def _heads_movable(s: Scene) -> bool:
    if not computed(s) or not (s.quant_kind == "none" or s.antiquant_kind in ("per_tensor", "per_token", "token_paged")):
        return False
    if s.merged_antiquant:
        return False
    scale = s.tensor("quantScale2")
    return scale is None or scale.numel == 1


def picked_heads(call: Call, q_index: Index, k_index: Index) -> Call:
    """The call whose query head n is q_index[n] of the first, and whose key head h is k_index[h]."""
    scene, own = call.scene, call.layout
    change = Change(call)

    def moved(array: Array, heads: int, index: Index) -> Array:
        found = heads_first(own.inputs, array, heads)
        return from_heads(own.inputs, np.take(found, index, axis=0 if own.packed else 1))

    def cache(array: Array) -> Array:
        assert scene.cache_layout is not None
        return to_cache(scene.cache_layout, cache_blocks(scene.cache_layout, array, scene.KV_N)[:, k_index], array.shape[-1])

    for name in QUERY_LIKE:
        if scene.given(name):
            change.put(name, moved(call.one(name), scene.Q_N, q_index))
    for name in (*KEY_LIKE, *PREFIX):
        if not scene.given(name):
            continue
        arrays = one_or_list(call.tensors[name])
        new = [cache(a) if scene.paged else moved(a, scene.KV_N, k_index) for a in arrays]
        if name in ("key", "value"):
            change.put_list(name, new)
        else:
            change.put(name, new[0])
    if scene.alibi_on:
        change.put("pseShift", call.one("pseShift")[q_index])
    elif scene.pse_on:
        change.put("pseShift", np.ascontiguousarray(call.one("pseShift")[:, q_index]))
    if scene.sink_on:
        change.put("learnableSink", call.one("learnableSink")[q_index])
    change.set(numHeads=len(q_index), numKeyValueHeads=len(k_index))
    return change.outputs({**sizes(call), "N": len(q_index)}).call()


class HeadOrder(Relation):
    """Heads in the opposite order give their rows in the opposite order."""

    name = "head-order"
    title = "the heads in the opposite order"
    cites = ("numerics 2.1",)

    def applies(self, scene: Scene) -> bool:
        return _heads_movable(scene) and scene.Q_N > 1

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        # Reversing both keeps every query head with its key head: (Q_N - 1 - n) // G = KV_N - 1 - n // G.
        yield (picked_heads(call, np.arange(call.scene.Q_N)[::-1], np.arange(call.scene.KV_N)[::-1]),)

    def restored(self, first: Ran, others: Sequence[Ran]) -> Rows:
        return {name: [r[::-1] for r in rows] for name, rows in others[0].rows.items()}


class RepeatedHeads(Relation):
    """Grouped heads are key heads that serve several query heads."""

    name = "repeated-heads"
    title = "every key head written once for each of its query heads"
    cites = ("numerics 2.1",)

    def applies(self, scene: Scene) -> bool:
        return _heads_movable(scene) and (scene.G or 1) > 1 and scene.mla_kind != "decode"

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        heads = np.arange(call.scene.Q_N)
        yield (picked_heads(call, heads, heads // (call.scene.G or 1)),)


RELATIONS: tuple[Relation, ...] = (
    LayoutEquivalence(),
    PaddedPacked(),
    BatchOrder(),
    BatchSlice(),
    HeadOrder(),
    RepeatedHeads(),
)
