"""Relations of the storage of keys and values: caches and their tables, tensor lists, strides, what is not in use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.scene import Scene

from .call import Array, Call, Change, Ran, Rows, batches, gathered, joined, one_or_list, sizes, to_cache
from .conditions import computed, full_mask, padded, plain
from .moving import KEY_LIKE
from .relation import Relation

BLOCK_AXIS_SCALES = ("token_paged", "token_head_paged")
"""Antiquant kinds whose parameters are indexed by block (axis 0)."""


class PagedContiguous(Relation):
    """Keys read through a block table are the keys that lie there."""

    name = "paged-contiguous"
    title = "the cache gathered into contiguous keys"
    cites = ("numerics 10",)

    def applies(self, scene: Scene) -> bool:
        return plain(scene) and scene.paged and scene.cache_layout is not None and not padded(scene)

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        scene = call.scene
        change = Change(call).set(blockTable=None, blockSize=0)
        # A mask or a bias stays as it is: it may be wider than the keys, but then the keys must reach as far.
        wide = [s[-1] for name in ("attenMask", "pseShift") if (s := scene.shape(name)) and not scene.mask_compressed]
        S = max((*call.kv_lens, 1)) if not wide or call.layout.packed else scene.KV_S or 1
        for name in KEY_LIKE:
            if not scene.given(name):
                continue
            array = joined(call.layout.inputs, gathered(call, name), S)
            if name == "keyRope":
                change.put(name, array)
            else:
                change.put_list(name, [array])
        kv = call.kv_lens
        change.set(actualSeqLengthsKv=tuple(np.cumsum(kv).tolist()) if call.layout.packed else tuple(kv))
        yield (change.call(),)


class ContiguousPaged(Relation):
    """Contiguous keys may as well lie in blocks, in any order."""

    name = "contiguous-paged"
    title = "the keys cut into the blocks of a cache, last block first"
    cites = ("numerics 10",)

    def applies(self, scene: Scene) -> bool:
        return (
            plain(scene)
            and scene.storage == "contiguous"
            and not padded(scene)
            and not scene.prefix_on
            and not scene.pse_on
            and not scene.alibi_on
            and not full_mask(scene)
        )

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        for cache in ("BnBsH", "BnNBsD", "NZ"):
            for size in (16, 128):
                yield (paged(call, cache, size),)


def paged(call: Call, cache: str, size: int) -> Call:
    """The call with its keys in a cache of that layout and block size."""
    scene = call.scene
    columns = max(1, -(-max(call.kv_lens) // size))
    count = columns * len(call.kv_lens)
    table = np.arange(count, dtype=np.int32)[::-1].reshape(-1, columns)
    change = Change(call).put("blockTable", np.ascontiguousarray(table), "INT32").set(blockSize=size)
    for name in KEY_LIKE:
        if not scene.given(name):
            continue
        parts = batches(call.layout.inputs, one_or_list(call.tensors[name])[0], scene.KV_N, call.kv_lens)
        whole = np.stack([_rows(p[:, :n], columns * size) for p, n in zip(parts, call.kv_lens)])
        b, heads, _, d = whole.shape
        blocks = whole.reshape(b, heads, columns, size, d).transpose(0, 2, 1, 3, 4).reshape(count, heads, size, d)[::-1]
        if cache == "NZ" and d % 16:
            array = to_cache("BnNBsD", blocks, 1)
        else:
            array = to_cache(cache, blocks, 16)
        if name == "keyRope":
            change.put(name, array)
        else:
            change.put_list(name, [array])
    return change.set(actualSeqLengthsKv=tuple(call.kv_lens)).call()


def _rows(part: Array, rows: int) -> Array:
    filled = np.zeros((part.shape[0], rows, part.shape[2]), part.dtype)
    filled[:, : part.shape[1]] = part
    return filled


class BlockOrder(Relation):
    """Where a block lies in the cache does not matter, as long as the table says so."""

    name = "block-order"
    title = "the blocks of the cache in the opposite order, and the table with them"
    cites = ("numerics 10",)

    def applies(self, scene: Scene) -> bool:
        scales = scene.antiquant_kind in (None, "per_tensor", "per_channel", "tensor_head", *BLOCK_AXIS_SCALES)
        quant = scene.quant_kind in ("none", "antiquant") or scene.full_kind == "decode_mla"
        return computed(scene) and scene.paged and scales and quant and not scene.merged_antiquant

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        scene = call.scene
        count = scene.cache_blocks or 0
        if count < 2:
            return
        table = call.one("blockTable")
        known = (table >= 0) & (table < count)
        change = Change(call).put("blockTable", np.where(known, count - 1 - table, table).astype(table.dtype))
        moved = [*KEY_LIKE]
        if scene.antiquant_kind in BLOCK_AXIS_SCALES:
            moved += [f"{side}Antiquant{part}" for side in ("key", "value") for part in ("Scale", "Offset")]
        for name in moved:
            if not scene.given(name):
                continue
            arrays = [np.ascontiguousarray(a[::-1]) for a in one_or_list(call.tensors[name])]
            if arrays[0].shape[0] != count:
                return
            if name in ("key", "value"):
                change.put_list(name, arrays)
            else:
                change.put(name, arrays[0])
        yield (change.call(),)


class SharedBlocks(Relation):
    """Two batches with the same keys may share their blocks."""

    name = "shared-blocks"
    title = "blocks of the second batch copied from the first, against a table that points to the first"
    cites = ("numerics 10",)

    def applies(self, scene: Scene) -> bool:
        return plain(scene) and scene.paged and scene.cache_layout is not None and (scene.B or 0) > 1

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        scene = call.scene
        table, size, kv = call.one("blockTable"), scene.block_size, call.kv_lens
        needed = [-(-n // size) for n in kv]
        from_, to = table[0][: needed[1]], table[1][: needed[1]]
        used = np.concatenate([row[:n] for i, (row, n) in enumerate(zip(table, needed)) if i != 1])
        if needed[1] < 1 or needed[0] < needed[1] or np.intersect1d(to, used).size or len(set(to.tolist())) < len(to):
            return  # the second batch has more keys, or shares blocks already
        copied, shared = Change(call), Change(call)
        for name in KEY_LIKE:
            if not scene.given(name):
                continue
            arrays = [a.copy() for a in one_or_list(call.tensors[name])]
            for a in arrays:
                a[to] = a[from_]
            if name in ("key", "value"):
                copied.put_list(name, arrays)
            else:
                copied.put(name, arrays[0])
        pointing = table.copy()
        pointing[1][: needed[1]] = from_
        shared.put("blockTable", pointing)
        yield (copied.call(), shared.call())

    def sides(self, first: Ran, others: Sequence[Ran]) -> tuple[Ran, Rows, Rows]:
        return others[0], others[0].rows, others[1].rows


class StridedCache(Relation):
    """A cache whose blocks lie farther apart gives the same bits as a dense one."""

    name = "strided-cache"
    title = "the cache with a gap behind each block"
    cites = ("numerics 10",)
    exact = True

    def applies(self, scene: Scene) -> bool:
        tensors = [t for t in (*scene.keys, *scene.values) if t is not None]
        return computed(scene) and scene.paged and all(t.strides is None and not t.offset for t in tensors)

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        changes = {}
        for name in ("key", "value"):
            spec = call.scene.tensor(name)
            assert spec is not None
            steps = [1]
            for size in reversed(spec.shape[1:]):
                steps.append(steps[-1] * size)
            block = steps[-1]
            strides = (2 * block, *reversed(steps[:-1]))
            changes[name] = (msgspec.structs.replace(spec, strides=strides),)
        yield (Change(call).set(**changes).call(),)


class Poison(Relation):
    """What no length reaches does not count: finite garbage there changes nothing."""

    name = "poison"
    title = "finite garbage in rows, columns and blocks that are not in use"
    cites = ("numerics 3", "numerics 4", "numerics 10", "traps 13", "traps 25")

    def applies(self, scene: Scene) -> bool:
        return computed(scene) and scene.q_dtype in ("FLOAT16", "BFLOAT16")

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        scene = call.scene
        change, touched = Change(call), False
        for name, array, used in _in_use(call):
            if used.all():
                continue
            touched = True
            garbage = _garbage(scene.dtype(name) or "", array)
            filled = np.where(used.reshape(*used.shape, *([1] * (array.ndim - used.ndim))), array, garbage)
            if name in ("key", "value"):
                change.put_list(name, [filled])
            else:
                change.put(name, filled)
        if touched:
            yield (change.call(),)


def _garbage(dtype: str, array: Array) -> Array:
    """Codes of finite numbers of unlike sizes, other than what stands there."""
    if DTYPES[dtype].storage == "float16":
        return np.asarray(3.5, dtype=np.float16)
    if dtype == "BFLOAT16":
        return np.asarray(0x4060, dtype=np.uint16)  # 3.5
    return np.asarray(np.array(0x35).astype(array.dtype))


def _in_use(call: Call) -> Iterator[tuple[str, Array, Array]]:
    """Parameters, arrays, and which of their leading axes are in use (a mask over some leading axes)."""
    scene, axes = call.scene, call.layout.inputs
    if not call.layout.packed:
        rows = _spans(call.q_begins, call.q_lens, scene.Q_S or 0)
        for name in ("query", "queryRope"):
            if scene.given(name):
                array = call.one(name)
                yield name, array, rows if axes != "BNSD" else np.repeat(rows[:, None], array.shape[1], axis=1)
    if scene.storage == "contiguous" and not call.layout.packed:
        columns = _spans(call.kv_begins, call.kv_lens, scene.KV_S or 0)
        for name in ("key", "value", "keyRope"):
            if scene.given(name):
                array = one_or_list(call.tensors[name])[0]
                used = columns if axes != "BNSD" else np.repeat(columns[:, None], array.shape[1], axis=1)
                yield name, array, used & (name != "value" or scene.mla_kind != "decode")
    if scene.paged and scene.cache_layout is not None:
        used = _used_rows(call)
        for name in ("key", "value", "keyRope"):
            if scene.given(name):
                array = one_or_list(call.tensors[name])[0]
                yield name, array, _in_cache(scene.cache_layout, array, used) & (name != "value" or scene.mla_kind != "decode")
    if scene.prefix_on and scene.prefix_s:
        used = np.arange(scene.prefix_s) < scene.prefix_len
        for name in ("keySharedPrefix", "valueSharedPrefix"):
            array = call.one(name)
            yield name, array, used[None] if axes != "BNSD" else np.repeat(used[None, None], array.shape[1], axis=1)


def _spans(begins: Sequence[int], lens: Sequence[int], size: int) -> Array:
    at = np.arange(size)
    return np.stack([(at >= b) & (at < b + n) for b, n in zip(begins, lens)])


def _used_rows(call: Call) -> Array:
    """(blocks, blockSize): rows of the cache that some length reaches."""
    scene = call.scene
    used = np.zeros((scene.cache_blocks or 0, scene.cache_block_size or 0), np.bool_)
    for entries, n in zip(call.one("blockTable"), call.kv_lens):
        for column in range(-(-n // scene.block_size)):
            used[entries[column], : n - column * scene.block_size] = True
    return used


def _in_cache(cache_layout: str, array: Array, used: Array) -> Array:
    if cache_layout == "BnBsH":
        return used
    heads = np.repeat(used[:, None], array.shape[1], axis=1)
    return heads if cache_layout == "BnNBsD" else np.repeat(heads[:, :, None], array.shape[2], axis=2)


class TensorList(Relation):
    """A list of one tensor a batch and one tensor of all batches are the same keys."""

    name = "tensor-list"
    title = "the tensors of the list padded into one"
    cites = ("numerics 13",)

    def applies(self, scene: Scene) -> bool:
        return plain(scene) and scene.storage == "tensor_list" and not scene.packed and not full_mask(scene) and not scene.pse_on

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        scene, axes = call.scene, call.layout.inputs
        change = Change(call)
        if scene.given("keyRope"):
            return
        for name in ("key", "value"):
            parts = [batches(axes, a, scene.KV_N, (n,))[0] for a, n in zip(one_or_list(call.tensors[name]), call.kv_lens)]
            change.put_list(name, [joined(axes, parts, max(p.shape[1] for p in parts))])
        yield (change.set(actualSeqLengthsKv=call.kv_lens).outputs(sizes(call)).call(),)


RELATIONS: tuple[Relation, ...] = (
    PagedContiguous(),
    ContiguousPaged(),
    BlockOrder(),
    SharedBlocks(),
    StridedCache(),
    Poison(),
    TensorList(),
)
