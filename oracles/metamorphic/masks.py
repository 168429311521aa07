"""Relations of masks, left padding and prefix: the same columns said in another way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fiafuzz.model.layouts import MASK_COMPRESSED
from fiafuzz.model.parameters import INT_MAX
from fiafuzz.model.scene import Scene

from .call import Array, Call, Change, Ran, Rows, batches, joined, one_or_list, sizes, to_rows
from .conditions import COMPRESSED, full_mask, kept, legacy, mask_2d, padded, plain, shared_scales, unmasked
from .relation import Relation

OPEN = {"preTokens": INT_MAX, "nextTokens": INT_MAX}
MAX_MASK = 1 << 22
"""Elements of a full mask at most."""


def full_of(call: Call) -> Array:
    """The full mask (B, 1, Q_S, KV_S) that keeps what the call's own mask keeps; 1 where nothing stands."""
    s = call.scene
    q_s, columns = s.Q_S or 0, (s.paged_columns if s.paged else s.KV_S) or 0
    full = np.ones((len(call.q_lens), 1, q_s, columns + (s.prefix_s or 0)), np.bool_)
    for b in range(len(call.q_lens)):
        keep = kept(call, b)
        full[b, 0, : keep.shape[0], : keep.shape[1]] = ~keep
    return full


class CompressedMask(Relation):
    """The modes with the fixed triangle mask what their formulas say, written out element by element."""

    name = "compressed-mask"
    title = "the same columns masked by a full matrix"
    cites = ("numerics 5", "numerics 6")

    def applies(self, scene: Scene) -> bool:
        return (
            shared_scales(scene)
            and scene.sparse_mode in COMPRESSED
            and scene.mask_on
            and not scene.packed
            and not legacy(scene)
            and not padded(scene)
            and scene.storage != "tensor_list"
            and len(scene.q_lens or ()) * (scene.Q_S or 0) * ((scene.KV_S or 0) + (scene.prefix_s or 0)) <= MAX_MASK
        )

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        # Rows without any column are defined for a triangle, not for a matrix.
        if not all(kept(call, b).any(axis=1).all() for b in range(len(call.q_lens))):
            return
        full = full_of(call)
        for mode in (1, 0):
            change = Change(call).put("attenMask", full.astype(call.one("attenMask").dtype))
            yield (change.set(sparseMode=mode, **OPEN).call(),)


class CausalByHand(Relation):
    """Right-bottom causal attention by mode 3, and by a matrix in mode 0, on the operands of a call without a mask."""

    name = "causal-by-hand"
    title = "mode 3 with the compressed mask, against mode 0 with the causal matrix"
    cites = ("numerics 5", "numerics 6")

    def applies(self, scene: Scene) -> bool:
        return (
            shared_scales(scene)
            and unmasked(scene)
            and not scene.packed
            and not legacy(scene)
            and not scene.single_token
            and scene.storage != "tensor_list"
            and all(q <= k + scene.prefix_len for q, k in zip(scene.q_lens or (), scene.kv_lens or ()))
            and len(scene.q_lens or ()) * (scene.Q_S or 0) * ((scene.KV_S or 0) + (scene.prefix_s or 0)) <= MAX_MASK
        )

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        triangle = np.triu(np.ones((MASK_COMPRESSED, MASK_COMPRESSED), np.bool_), 1)
        by_mode = Change(call).put("attenMask", triangle, "BOOL").set(sparseMode=3, **OPEN).call()
        by_hand = Change(call).put("attenMask", full_of(by_mode), "BOOL").set(sparseMode=0, **OPEN).call()
        yield (by_mode, by_hand)

    def sides(self, first: Ran, others: Sequence[Ran]) -> tuple[Ran, Rows, Rows]:
        return others[0], others[0].rows, others[1].rows


class OpenMask(Relation):
    """No mask, and a mask that keeps everything, are the same."""

    name = "open-mask"
    title = "a mask of zeros"
    cites = ("numerics 5",)

    def applies(self, scene: Scene) -> bool:
        size = len(scene.q_lens or ()) * (scene.Q_S or 0) * ((scene.KV_S or 0) + (scene.prefix_s or 0))
        return (
            shared_scales(scene)
            and scene.inputs.attenMask is None
            and not scene.alibi_on
            and scene.storage != "tensor_list"
            and size <= MAX_MASK
        )

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        if not call.layout.packed:
            for mode in (0, 1):
                yield (Change(call).put("attenMask", np.zeros_like(full_of(call)), "BOOL").set(sparseMode=mode, **OPEN).call(),)
        if legacy(call.scene):
            return  # would be read element by element
        # A band that is wider than everything: what packed layouts take.
        triangle = np.triu(np.ones((MASK_COMPRESSED, MASK_COMPRESSED), np.bool_), 1)
        yield (Change(call).put("attenMask", triangle, "BOOL").set(sparseMode=4, **OPEN).call(),)


class PrefixInFront(Relation):
    """A shared prefix is the first part of the keys of every batch."""

    name = "prefix-in-front"
    title = "the prefix written in front of the keys of every batch"
    cites = ("numerics 12",)

    def applies(self, scene: Scene) -> bool:
        return (
            shared_scales(scene)
            and scene.prefix_on
            and not scene.packed
            and scene.storage == "contiguous"
            and scene.prefix_len > 0
            and 0 not in (scene.kv_lens or ())
            and not padded(scene)
        )

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        scene, axes = call.scene, call.layout.inputs
        change = Change(call).set(keySharedPrefix=None, valueSharedPrefix=None, actualSharedPrefixLen=None)
        P = scene.prefix_len
        S = (scene.KV_S or 0) + P
        for name, prefix in (("key", "keySharedPrefix"), ("value", "valueSharedPrefix")):
            front = batches(axes, call.one(prefix), scene.KV_N, (P,))[0][:, :P]
            parts = batches(axes, one_or_list(call.tensors[name])[0], scene.KV_N, call.kv_lens)
            change.put_list(name, [joined(axes, [np.concatenate([front, p], axis=1) for p in parts], S)])
        yield (change.set(actualSeqLengthsKv=tuple(n + P for n in call.kv_lens)).call(),)


class RightPadding(Relation):
    """Batches that end at the end of their axis hold the same rows as batches that begin at its beginning."""

    name = "right-padding"
    title = "the padding moved from the left to the right"
    cites = ("numerics 11",)

    def applies(self, scene: Scene) -> bool:
        return plain(scene) and scene.left_padding_on and not scene.packed and scene.storage == "contiguous" and not scene.prefix_on

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        scene, axes = call.scene, call.layout.inputs
        if min((*call.q_begins, *call.kv_begins)) < 0:
            return
        change = Change(call).set(queryPaddingSize=None, kvPaddingSize=None)
        q_s, kv_s = scene.Q_S or 0, scene.KV_S or 0
        for name, heads, begins, size in (
            ("query", scene.Q_N, call.q_begins, q_s),
            ("queryRope", scene.Q_N, call.q_begins, q_s),
            ("key", scene.KV_N, call.kv_begins, kv_s),
            ("value", scene.KV_N, call.kv_begins, kv_s),
            ("keyRope", scene.KV_N, call.kv_begins, kv_s),
        ):
            if not scene.given(name):
                continue
            parts = batches(axes, one_or_list(call.tensors[name])[0], heads, ())
            moved = joined(axes, [to_rows(p[:, b:], size) for p, b in zip(parts, begins)], size)
            if name in ("key", "value"):
                change.put_list(name, [moved])
            else:
                change.put(name, moved)
        if full_mask(scene):
            masks = [_shifted(mask_2d(call, b), call, b) for b in range(len(call.q_lens))]
            change.put("attenMask", np.stack(masks)[:, None].astype(call.one("attenMask").dtype)).set(**OPEN)
        elif scene.mask_on and legacy(scene):
            return
        if scene.pse_on:
            bias = call.one("pseShift")
            biases = [np.stack([_shifted(bias[b % bias.shape[0], n], call, b) for n in range(scene.Q_N)]) for b in range(len(call.q_lens))]
            change.put("pseShift", np.stack(biases))
        change.set(actualSeqLengths=call.q_lens, actualSeqLengthsKv=call.kv_lens)
        yield (change.outputs(sizes(call)).call(),)


def _shifted(matrix: Array, call: Call, batch: int) -> Array:
    """(rows, columns) of mask or bias so that the first valid row and column come first; (Q_S, KV_S), padded with zeros."""
    s = call.scene
    found = np.zeros((s.Q_S or 0, s.KV_S or 0), matrix.dtype)
    q, kv = call.q_begins[batch], call.kv_begins[batch]
    rows = matrix if matrix.shape[0] > 1 or (s.Q_S or 0) == 1 else np.repeat(matrix, s.Q_S or 0, axis=0)
    part = rows[q : q + call.q_lens[batch], kv : kv + call.kv_lens[batch]]
    found[: part.shape[0], : part.shape[1]] = part
    return found


class MaskProbe(Relation):
    """With all scores zero a row is the mean of the values it sees; with powers of two as values it tells which."""

    name = "mask-probe"
    title = "zero scores and powers of two as values: which columns each row sees"
    cites = ("numerics 5", "numerics 6")

    BITS = 4
    """Columns that one element of a value tells: their sum stays exact in both 16-bit formats."""

    def applies(self, scene: Scene) -> bool:
        longest = max((*(scene.kv_lens or ()), 0))
        return (
            plain(scene)
            and scene.mla_kind != "decode"
            and scene.storage == "contiguous"
            and not scene.prefix_on
            and not scene.pse_on
            and not scene.alibi_on
            and not scene.sink_on
            and not padded(scene)
            and not scene.post_quant_on
            and not (legacy(scene) and scene.sparse_mode in COMPRESSED)
            and longest <= (scene.V_D or 0) * self.BITS
        )

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        scene, axes = call.scene, call.layout.inputs
        change = Change(call)
        for name in ("query", "queryRope"):
            if scene.given(name):
                change.put(name, np.zeros_like(call.one(name)))
        parts = batches(axes, one_or_list(call.tensors["value"])[0], scene.KV_N, call.kv_lens)
        dtype = scene.v_dtype or ""
        values = [np.repeat(self._codes(dtype, p.shape[1], p.shape[2])[None], scene.KV_N, axis=0) for p in parts]
        yield (change.put_list("value", [joined(axes, values, parts[0].shape[1])]).call(),)

    def _powers(self, columns: int, width: int) -> Array:
        found = np.zeros((columns, width))
        at = np.arange(min(columns, width * self.BITS))
        found[at, at // self.BITS] = 2.0 ** (at % self.BITS)
        return found

    def _codes(self, dtype: str, columns: int, width: int) -> Array:
        from fiafuzz.model.codecs import encode

        return np.asarray(encode(dtype, self._powers(columns, width)))

    def sides(self, first: Ran, others: Sequence[Ran]) -> tuple[Ran, Rows, Rows]:
        call = others[0].call
        wanted = []
        for b, got in enumerate(others[0].rows["attentionOut"]):
            keep = kept(call, b).astype(np.float64)
            count = np.maximum(keep.sum(axis=1, keepdims=True), 1.0)
            mean = keep @ self._powers(keep.shape[1], got.shape[2]) / count
            wanted.append(np.broadcast_to(mean, got.shape))
        return others[0], {"attentionOut": wanted}, {"attentionOut": others[0].rows["attentionOut"]}


RELATIONS: tuple[Relation, ...] = (CompressedMask(), CausalByHand(), OpenMask(), PrefixInFront(), RightPadding(), MaskProbe())
