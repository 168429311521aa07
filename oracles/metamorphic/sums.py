"""Relations of the sum over keys: split keys, split queries, scale, rope, sink; and the call simply made again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fiafuzz.model.codecs import decode, encode
from fiafuzz.model.scene import Scene

from .call import Call, Change, Ran, Rows, batches, joined, one_or_list, sizes, to_rows
from .conditions import full_mask, mask_batches, padded, plain, shared_scales, unmasked
from .moving import relaid, repacked
from .relation import F64, Relation

PLAIN_LAYOUTS = ("BNSD", "BSND", "BSH")


def in_plain_layout(call: Call) -> Call:
    """The call in BNSD, unless its layout is one of those that every feature goes with."""
    if call.scene.layout_name in PLAIN_LAYOUTS:
        return call
    return repacked(call, "BNSD") if call.layout.packed else relaid(call, "BNSD")


class KeySplit(Relation):
    """Attention over two parts of the keys, merged by their lse, is attention over all of them."""

    name = "key-split"
    title = "the keys in two parts, merged by their lse"
    cites = ("numerics 2",)

    def applies(self, scene: Scene) -> bool:
        return (
            plain(scene)
            and unmasked(scene)
            and scene.storage == "contiguous"
            and not scene.prefix_on
            and not scene.post_quant_on
            and min(scene.kv_lens or (0,)) > 1
        )

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        call = in_plain_layout(call)
        scene = call.scene
        cut = min(call.kv_lens) // 2
        halves = []
        for begin, lens in ((0, (cut,) * len(call.kv_lens)), (cut, tuple(n - cut for n in call.kv_lens))):
            change = Change(call).set(actualSeqLengthsKv=lens)
            for name in ("key", "value", "keyRope"):
                if not scene.given(name):
                    continue
                parts = batches(call.layout.inputs, one_or_list(call.tensors[name])[0], scene.KV_N, ())
                array = joined(call.layout.inputs, [to_rows(p[:, begin:], max(lens)) for p in parts], max(lens))
                if name == "keyRope":
                    change.put(name, array)
                else:
                    change.put_list(name, [array])
            halves.append(change.outputs(sizes(call), lse=True).call())
        yield halves

    def restored(self, first: Ran, others: Sequence[Ran]) -> Rows:
        out, lse = [], []
        for a, b, m, n in zip(*(other.rows[name] for name in ("attentionOut", "softmaxLse") for other in others)):
            top = np.maximum(m, n)
            wa, wb = np.exp(m - top), np.exp(n - top)
            out.append((a * wa[..., None] + b * wb[..., None]) / (wa + wb)[..., None])
            lse.append(top + np.log(wa + wb))
        return {"attentionOut": out, "softmaxLse": lse}

    def tolerance(self, call: Call, name: str, one: F64, other: F64) -> F64:
        if name == "softmaxLse":
            return 2 * super().tolerance(call, name, one, other)
        # Each part is rounded to the output type where it may be as large as the largest value.
        from oracles.precision_standards import MIXED_2026_09

        rtol = MIXED_2026_09[call.scene.out_dtype or ""].rtol
        return np.asarray(super().tolerance(call, name, one, other) + 2 * rtol * call.expected.v_max)


class QuerySplit(Relation):
    """The later query rows alone give the rows that they give among others."""

    name = "query-split"
    title = "the query without its first rows"
    cites = ("numerics 2",)

    def applies(self, scene: Scene) -> bool:
        return (
            shared_scales(scene)
            and not scene.packed
            and not padded(scene)
            and not scene.alibi_on
            and (not scene.mask_on or full_mask(scene))
            and min(scene.q_lens or (0,)) > 1
        )

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        scene = call.scene
        cut = min(call.q_lens) // 2
        q_s = (scene.Q_S or 0) - cut
        change = Change(call)
        for name in ("query", "queryRope"):
            if scene.given(name):
                parts = batches(call.layout.inputs, call.one(name), scene.Q_N, ())
                change.put(name, joined(call.layout.inputs, [p[:, cut:] for p in parts], q_s))
        for name in ("attenMask", "pseShift"):
            spec = scene.tensor(name)
            if spec is None or spec.empty:
                continue
            array = call.one(name)
            one_row = array.shape[-2] < (scene.Q_S or 0)
            if name == "attenMask" and (array.ndim < 2 or one_row):
                return
            if not one_row:
                change.put(name, np.ascontiguousarray(array[..., cut:, :]))
        if full_mask(scene) and scene.sparse_mode == 0:
            tokens = scene.attrs.preTokens, scene.attrs.nextTokens
            if min(tokens) < 1 << 30:
                return  # the band of mode 0 begins at row 0
        if full_mask(scene) and q_s == 1 and mask_batches(scene) and call.one("attenMask").ndim < 4:
            return
        change.set(actualSeqLengths=tuple(n - cut for n in call.q_lens))
        yield (change.outputs({**sizes(call), "S": q_s}).call(),)

    def restored(self, first: Ran, others: Sequence[Ran]) -> Rows:
        cut = min(first.call.q_lens) // 2
        # The rows that were left out agree with themselves.
        return {
            name: [np.concatenate([mine[:, :cut], theirs], axis=1) for mine, theirs in zip(first.rows[name], rows)]
            for name, rows in others[0].rows.items()
        }


class PowerOfTwoScale(Relation):
    """Half the query with twice the scale gives the same scores, bit for bit."""

    name = "scaled-query"
    title = "half the query, twice the scale"
    cites = ("numerics 2", "traps 1")

    def applies(self, scene: Scene) -> bool:
        return shared_scales(scene) and 0 < abs(scene.scale) < 2.0**100

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        change = Change(call).set(scaleValue=2 * call.scene.scale)
        for name in ("query", "queryRope"):
            if not call.scene.given(name):
                continue
            array, dtype = call.one(name), call.scene.dtype(name) or ""
            numbers = np.asarray(decode(dtype, array), dtype=np.float64)
            half = np.asarray(encode(dtype, numbers / 2))
            if not np.array_equal(np.asarray(decode(dtype, half), dtype=np.float64) * 2, numbers):
                return  # too small to be halved
            change.put(name, half)
        yield (change.call(),)


class RopeInFront(Relation):
    """Split rope heads and heads with the rope columns appended have the same scores."""

    name = "rope-appended"
    title = "the rope columns appended to the heads"
    cites = ("numerics 4",)

    def applies(self, scene: Scene) -> bool:
        return plain(scene) and scene.mla_kind == "prefill_split" and not scene.paged

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        scene, axes = call.scene, call.layout.inputs
        change = Change(call).set(queryRope=None, keyRope=None)
        for name, rope, heads, lens in (("query", "queryRope", scene.Q_N, call.q_lens), ("key", "keyRope", scene.KV_N, call.kv_lens)):
            arrays = one_or_list(call.tensors[name])
            if len(arrays) > 1:
                return
            parts = zip(batches(axes, arrays[0], heads, lens), batches(axes, call.one(rope), heads, lens))
            whole = [np.concatenate([a, b], axis=2) for a, b in parts]
            array = joined(axes, whole, whole[0].shape[1])
            if name == "query":
                change.put(name, array)
            else:
                change.put_list(name, [array])
        yield (change.call(),)


class SinkAsKey(Relation):
    """A sink is a further key with that score for every row, and a value of zero."""

    name = "sink-as-key"
    title = "a further key whose bias is the sink and whose value is zero"
    cites = ("numerics 8",)

    def applies(self, scene: Scene) -> bool:
        return (
            plain(scene)
            and scene.sink_on
            and not scene.mask_on
            and scene.storage == "contiguous"
            and not scene.prefix_on
            and not padded(scene)
            and not scene.rope_on
            and 0 not in (scene.kv_lens or ())
        )

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        call = in_plain_layout(call)
        scene, axes = call.scene, call.layout.inputs
        S = (scene.KV_S or 0) + 1
        change = Change(call).set(learnableSink=None, pseType=0)
        for name in ("key", "value"):
            parts = batches(axes, one_or_list(call.tensors[name])[0], scene.KV_N, ())
            whole = [to_rows(p, S).copy() for p in parts]
            for part, n in zip(whole, call.kv_lens):
                part[:, n] = 0
            change.put_list(name, [joined(axes, whole, S)])
        sink = call.one("learnableSink")
        bias = np.zeros((len(call.kv_lens), scene.Q_N, scene.Q_S or 0, S), sink.dtype)
        for b, n in enumerate(call.kv_lens):
            bias[b, :, :, n] = sink[:, None]
        change.put("pseShift", bias, scene.dtype("learnableSink"))
        yield (change.set(actualSeqLengthsKv=tuple(n + 1 for n in call.kv_lens)).call(),)


class Rerun(Relation):
    """The same call gives the same bits again."""

    name = "rerun"
    title = "the same call once more"
    cites = ("numerics 25",)
    exact = True

    def applies(self, scene: Scene) -> bool:
        return not scene.empty_case and bool(scene.q_lens) and scene.out_axes is not None and scene.layout is not None

    def transform(self, call: Call) -> Iterator[Sequence[Call]]:
        yield (Call(call.case, call.tensors),)


RELATIONS: tuple[Relation, ...] = (KeySplit(), QuerySplit(), PowerOfTwoScale(), RopeInFront(), SinkAsKey(), Rerun())
