"""For every planted numeric fault: a call that shows it and a call that does not."""

from __future__ import annotations

from collections.abc import Callable

from fiafuzz.model.case import Case, Constant, Patch, Patched, Uniform
from tests.unit.backend_cases import CAUSAL, call, mask, spec

Pair = tuple[Callable[[], Case], Callable[[], Case]]
F16, B16, I8, I4, FP8, HIF8, FP4, E8M0 = (
    "FLOAT16",
    "BFLOAT16",
    "INT8",
    "INT32",
    "FLOAT8_E4M3FN",
    "HIFLOAT8",
    "FLOAT4_E2M1",
    "FLOAT8_E8M0",
)


def masked(mode: int, layout: str = "BNSD", **more: object) -> Case:
    return call(layout, sparseMode=mode, attenMask=CAUSAL, **more)  # type: ignore[arg-type]


def channel(kind: str = I8, KN: int = 2, D: int = 64, **more: object) -> Case:
    scales = {f"{w}AntiquantScale": spec((KN, D), F16) for w in ("key", "value")}
    return call(kv=kind, KN=KN, D=D, Q=1, **{**scales, **more})  # type: ignore[arg-type]


def offsets(**more: object) -> Case:
    return channel(
        **{f"{w}AntiquantOffset": spec((2, 64), F16, fill=Uniform(-30, 30)) for w in ("key", "value")}, **more
    )


def per_token(mode: int, shape: tuple[int, ...], kind: str = I8, **more: object) -> Case:
    scales = {f"{w}AntiquantScale": spec(shape, "FLOAT32") for w in ("key", "value")}
    return call(kv=kind, Q=1, **{"keyAntiquantMode": mode, "valueAntiquantMode": mode, **scales, **more})  # type: ignore[arg-type]


def group(**more: object) -> Case:
    scales = {f"{w}AntiquantScale": spec((1, 2, 2, 24, 2), E8M0) for w in ("key", "value")}
    return call(kv=FP4, Q=1, keyAntiquantMode=6, valueAntiquantMode=6, **{**scales, **more})  # type: ignore[arg-type]


def int8_full(deq: str = "FLOAT32", **more: object) -> Case:
    return call(dtype=I8, out=F16, deqScale1=spec((1,), deq), quantScale1=spec((1,)), deqScale2=spec((1,), deq), **more)  # type: ignore[arg-type]


def mla_full(dtype: str = FP8, **more: object) -> Case:
    one = spec((1,), "FLOAT32", [0.125])
    return call(
        "BSND",
        dtype=dtype,
        out=B16,
        KN=1,
        D=512,
        Q=2,
        rope=64,
        rope_dtype=B16,
        scale=0.0417,
        queryQuantMode=3,
        dequantScaleQuery=spec((2, 2, 4)),
        keyAntiquantScale=one,
        valueAntiquantScale=one,
        **more,
    )  # type: ignore[arg-type]


def gqa_fp8(p_scale: float = 64, blocks: int = 3, **more: object) -> Case:
    return call(
        "NTD_TND",
        dtype=FP8,
        D=128,
        q_lens=(3, 2),
        kv_lens=(40, 20),
        cache="BnNBsD",
        block=128,
        blocks=blocks,
        queryQuantMode=3,
        keyAntiquantMode=3,
        valueAntiquantMode=2,
        dequantScaleQuery=spec((4, 5)),
        keyAntiquantScale=spec((blocks, 2, 128)),
        valueAntiquantScale=spec((2,)),
        quantScale1=spec((1,), "FLOAT32", [p_scale]),
        **more,
    )  # type: ignore[arg-type]


def mx(kv_lens: tuple[int, int] = (33, 20), p_scale: float = 64, **more: object) -> Case:
    pairs = sum(-(-n // 64) for n in kv_lens)
    return call(
        "TND",
        dtype=FP8,
        D=64,
        q_lens=(3, 2),
        kv_lens=kv_lens,
        queryQuantMode=6,
        keyAntiquantMode=6,
        valueAntiquantMode=8,
        dequantScaleQuery=spec((2, 5, 2, 1, 2), E8M0),
        keyAntiquantScale=spec((sum(kv_lens), 2, 1, 2), E8M0),
        valueAntiquantScale=spec((pairs, 2, 64, 2), E8M0),
        quantScale1=spec((1,), "FLOAT32", [p_scale]),
        **more,
    )  # type: ignore[arg-type]


def post(out: str = I8, shape: tuple[int, ...] = (1,), offset: bool = False, scale: float = 20, **more: object) -> Case:
    grid = Uniform(scale / 2, scale)
    parameters = {"quantScale2": spec(shape, fill=grid)} | (
        {"quantOffset2": spec(shape, fill=Uniform(5, 20))} if offset else {}
    )
    return call(out=out, **{**parameters, **more})  # type: ignore[arg-type]


def alibi(kind: int = 2, **more: object) -> Case:
    return call(Q=24, K=24, pseType=kind, pseShift=spec((4,)), **more)  # type: ignore[arg-type]


def bias(*shape: int, **more: object) -> Case:
    return call(pseShift=spec(shape or (1, 4, 5, 24), F16), **more)  # type: ignore[arg-type]


def sink(**more: object) -> Case:
    return call(learnableSink=spec((4,), F16), **more)  # type: ignore[arg-type]


def padded(q: int | None = None, kv: int | None = None, **more: object) -> Case:
    sizes = {"queryPaddingSize": spec((1,), "INT64", [q])} if q is not None else {}
    sizes |= {"kvPaddingSize": spec((1,), "INT64", [kv])} if kv is not None else {}
    return call(**{"q_lens": (3, 4), "kv_lens": (20, 11), **sizes, **more})  # type: ignore[arg-type]


def mla(layout: str = "BSND", **more: object) -> Case:
    return call(layout, **{"KN": 1, "D": 512, "Q": 2, "rope": 64, "dtype": B16, "scale": 0.04, **more})  # type: ignore[arg-type]


def split(**more: object) -> Case:
    return call(**{"D": 128, "rope": 64, "Q": 3, **more})  # type: ignore[arg-type]


def dead_rows(**more: object) -> Case:
    fill = Patched(Constant(0), (Patch(((0, 1), (0, 1), (1, 3), None), 1),))
    return call(attenMask=spec((2, 1, 5, 24), "BOOL", fill=fill), **more)  # type: ignore[arg-type]


WIDE = mask(5, 40)
COMBINED = {f"antiquant{w}": spec((2, 2, 1, 64), F16) for w in ("Scale", "Offset")}

CASES: dict[str, Pair] = {
    # common
    "gqa-tiled": (lambda: call(), lambda: call(KN=1)),
    "first-key-head": (lambda: call(), lambda: call(KN=1)),
    "scale-twice": (lambda: call(), lambda: call(scale=1.0)),
    "scale-default": (lambda: call(scale=1.0), lambda: call(scale=0.5)),
    "tail-tile-dropped": (lambda: call(K=100), lambda: call(K=128)),
    "no-rescale": (lambda: call(K=128, D=16, scale=1.0), lambda: call(K=64)),
    "last-sum-only": (lambda: call(K=100), lambda: call(K=60)),
    "whole-sixteens": (lambda: call(D=40, scale=0.3), lambda: call(D=48)),
    "p-eight-bits": (lambda: call(), lambda: call(dtype=B16)),
    "bsnd-out-as-bnsd": (lambda: call("BNSD_BSND"), lambda: call("BNSD")),
    "bnsd-out-as-bsnd": (lambda: call("BSH_BNSD"), lambda: call("BSND_BNSD", Q=1)),
    "nbsd-as-bnsd": (lambda: mla("BSH_NBSD"), lambda: mla("BSH_NBSD", B=1)),
    "ntd-as-tnd": (lambda: call("NTD"), lambda: call("TND")),
    "value-stride-of-key": (lambda: call(D=64, DV=48), lambda: call()),
    "value-of-batch-before": (lambda: call(B=3, kv_lens=(24, 24, 9)), lambda: call(B=1)),
    "value-of-first-item": (lambda: call("BSH", lists=(5, 9)), lambda: call("BSH", lists=(5,), B=1)),
    # attention_mask
    "causal-one-too-many": (lambda: masked(3), lambda: masked(3, Q=1)),
    "band-next-exclusive": (
        lambda: masked(4, nextTokens=1, preTokens=8),
        lambda: masked(4, Q=2, nextTokens=4, preTokens=8),
    ),
    "left-top-for-right-bottom": (lambda: masked(3), lambda: masked(3, Q=24)),
    "band-origin": (lambda: masked(4, nextTokens=1, preTokens=8), lambda: masked(4, nextTokens=1, preTokens=8, Q=24)),
    "band-without-pre": (lambda: masked(4, nextTokens=1, preTokens=8), lambda: masked(4, nextTokens=1, preTokens=40)),
    "negative-next-as-zero": (
        lambda: masked(4, nextTokens=-2, preTokens=9),
        lambda: masked(4, nextTokens=0, preTokens=9),
    ),
    "diagonal-of-axes": (lambda: masked(3, Q=12, q_lens=(12, 5), kv_lens=(20, 24)), lambda: masked(3)),
    "mask-row-stride": (lambda: call(attenMask=WIDE), lambda: call(attenMask=mask(5, 24))),
    "mask-of-batch-zero": (lambda: call(attenMask=mask(2, 1, 5, 24)), lambda: call(attenMask=mask(1, 1, 5, 24))),
    "uint8-mask-inverted": (
        lambda: call(attenMask=mask(5, 24, dtype="UINT8")),
        lambda: call(attenMask=mask(5, 24, dtype="INT8")),
    ),
    "mode-one-causal": (lambda: call(sparseMode=1, attenMask=mask(5, 24, p=0.2)), lambda: call(attenMask=mask(5, 24))),
    "single-row-unmasked": (lambda: call(Q=1, attenMask=mask(2, 1, 24)), lambda: call(Q=2, attenMask=mask(2, 2, 24))),
    "uniform-without-mask": (lambda: call(), lambda: call(attenMask=mask(5, 24))),
    "first-column-seen": (lambda: call(attenMask=mask(5, 24, p=0.7)), lambda: call(attenMask=mask(5, 24, p=0.0))),
    # actual_seq_len
    "one-key-more": (lambda: call(kv_lens=(11, 24)), lambda: call(kv_lens=(24, 24))),
    "last-packed-key": (lambda: call("TND"), lambda: call("TND", kv_lens=(1, 0))),
    "padding-rows-computed": (lambda: call(q_lens=(3, 5)), lambda: call(q_lens=(5, 5))),
    "stale-rows": (lambda: call(q_lens=(3, 5)), lambda: call(q_lens=(5, 5))),
    "nothing-behind-zero": (lambda: call(B=3, kv_lens=(9, 0, 20)), lambda: call(B=3, kv_lens=(9, 20, 0))),
    "paged-lengths-cumulative": (
        lambda: call("TND", cache="BnBsH", kv_lens=(9, 20)),
        lambda: call("BNSD", cache="BnBsH", kv_lens=(9, 20)),
    ),
    "one-length-for-the-first": (lambda: call(kv_lens=(9,)), lambda: call(kv_lens=(9, 9))),
    "query-offsets-for-keys": (
        lambda: call("TND", q_lens=(2, 3), kv_lens=(9, 12)),
        lambda: call("TND", q_lens=(5, 4), kv_lens=(5, 7)),
    ),
    "last-entries-of-longer-list": (lambda: call(kv_lens=(20, 9, 4)), lambda: call(kv_lens=(20, 9))),
    # pse
    "bias-before-scale": (lambda: bias(), lambda: bias(scale=1.0)),
    "bias-of-batch-zero": (lambda: bias(2, 4, 5, 24), lambda: bias()),
    "bias-of-row-zero": (lambda: bias(), lambda: bias(1, 4, 1, 24, Q=1)),
    "bias-by-key-head": (lambda: bias(), lambda: bias(KN=4)),
    "bias-without-prefix": (lambda: bias(1, 4, 5, 30, prefix=6), lambda: bias()),
    "bias-twice": (lambda: bias(), lambda: call()),
    "alibi-sign": (lambda: alibi(), lambda: bias()),
    "alibi-start-ignored": (
        lambda: alibi(qStartIdx=(3,), kvStartIdx=(40,)),
        lambda: alibi(qStartIdx=(3,), kvStartIdx=(3,)),
    ),
    "alibi-root-of-product": (lambda: alibi(3), lambda: alibi(2)),
    "alibi-one-sided": (lambda: alibi(), lambda: bias()),
    "slope-by-key-head": (lambda: alibi(), lambda: alibi(KN=4)),
    # paged_attention
    "table-of-other-batch": (lambda: call(cache="BnNBsD"), lambda: call(cache="BnNBsD", B=1)),
    "table-ignored": (lambda: call(cache="BnBsH"), lambda: call(cache="BnBsH", table=(0, 1, 2, 3))),
    "tail-block-dropped": (lambda: call(cache="NZ", kv_lens=(24, 20)), lambda: call(cache="NZ", kv_lens=(32, 9))),
    "whole-last-block": (lambda: call(cache="BnBsH", kv_lens=(24, 20)), lambda: call(cache="BnBsH", kv_lens=(32, 16))),
    "nz-swapped": (lambda: call(cache="NZ"), lambda: call(cache="BnNBsD")),
    "bnnbsd-as-bnbsnd": (lambda: call(cache="BnNBsD"), lambda: call(cache="BnNBsD", KN=1)),
    "first-row-of-block": (lambda: call(cache="BnBsH"), lambda: call(cache="BnBsH", kv_lens=(1, 1))),
    # left_padding
    "query-padding-ignored": (lambda: padded(q=1), lambda: padded(kv=2)),
    "key-padding-ignored": (lambda: padded(kv=2), lambda: padded(q=1)),
    "key-padding-gap": (lambda: padded(kv=2), lambda: padded(kv=0)),
    "padding-mask-relative": (lambda: padded(q=1, kv=2, attenMask=mask(5, 24)), lambda: padded(q=1, kv=2)),
    "padding-bias-relative": (lambda: padded(q=1, pseShift=spec((1, 4, 5, 24), F16)), lambda: padded(q=1)),
    "negative-padding": (lambda: padded(q=-1, kv=-3), lambda: padded(q=1, kv=3)),
    # shared_prefix
    "prefix-not-in-diagonal": (lambda: masked(3, prefix=6), lambda: call(prefix=6)),
    "prefix-whole": (lambda: call(prefix=8, actualSharedPrefixLen=(3,)), lambda: call(prefix=8)),
    "prefix-values-late": (lambda: call(prefix=8), lambda: call(prefix=1)),
    "prefix-behind-keys": (lambda: masked(2, prefix=8), lambda: call()),
    "prefix-values-of-first-key": (lambda: call(prefix=8), lambda: call()),
    # rope
    "rope-scaled-twice": (lambda: split(), lambda: split(scale=1.0)),
    "rope-left-out": (lambda: split(), lambda: call()),
    "mla-value-used": (lambda: mla(), lambda: split()),
    "rope-key-head-zero": (lambda: split(), lambda: split(KN=1)),
    "rope-nz-of-32": (lambda: mla(cache="NZ"), lambda: mla(cache="BnBsH")),
    "combined-first-columns": (lambda: call(D=192, DV=128), lambda: call(D=128)),
    "rope-scale-of-nope": (lambda: split(), lambda: call()),
    # learnable_sink
    "sink-ignored": (lambda: sink(), lambda: call()),
    "sink-scaled": (lambda: sink(), lambda: sink(scale=1.0)),
    "sink-by-key-head": (lambda: sink(), lambda: sink(KN=4)),
    "sink-not-in-lse": (lambda: sink(lse=True), lambda: sink()),
    "sink-per-tile": (lambda: sink(K=70), lambda: sink(K=64)),
    "sink-without-maximum": (lambda: sink(), lambda: call()),
    "sink-only-in-lse": (lambda: sink(), lambda: call()),
    # softmax_lse
    "lse-sign": (lambda: call(lse=True), lambda: call()),
    "lse-base-two": (lambda: call(lse=True), lambda: call()),
    "lse-without-maximum": (lambda: call(lse=True), lambda: call()),
    "lse-of-batch-zero": (lambda: call(lse=True, kv_lens=(24, 9)), lambda: call(lse=True, B=1)),
    "lse-minus-infinity": (lambda: call(lse=True, q_lens=(3, 5)), lambda: call(lse=True)),
    "lse-rows-before-heads": (lambda: call("BSND", lse=True), lambda: call("BNSD", lse=True)),
    "lse-heads-before-tokens": (lambda: call("NTD", lse=True), lambda: call("TND", lse=True)),
    # inner_precise
    "row-fix-missing": (lambda: dead_rows(innerPrecise=2), lambda: dead_rows(innerPrecise=0)),
    "high-performance-scores": (lambda: call(innerPrecise=1, scale=1.0), lambda: call(innerPrecise=1, dtype=B16)),
    # interface
    "empty-keys-unwritten": (lambda: call(K=0), lambda: call()),
    "empty-keys-lse-zero": (lambda: call(K=0, lse=True), lambda: call(lse=True)),
    # quant: antiquant
    "nibble-order": (lambda: channel(I4), lambda: channel("INT4")),
    "nibble-unsigned": (lambda: channel(I4), lambda: channel()),
    "offset-subtracted": (lambda: offsets(), lambda: channel()),
    "offset-behind-scale": (lambda: offsets(), lambda: channel()),
    "offset-ignored": (lambda: offsets(), lambda: channel()),
    "channel-of-head-zero": (lambda: channel(), lambda: channel(KN=1)),
    "head-scales-reversed": (
        lambda: per_token(
            2, (2,), keyAntiquantScale=spec((2,), F16, [0.01, 0.03]), valueAntiquantScale=spec((2,), F16, [0.01, 0.03])
        ),
        lambda: channel(),
    ),
    "key-scale-for-value": (
        lambda: channel(),
        lambda: per_token(1, (2, 24), keyAntiquantMode=0, keyAntiquantScale=spec((2, 64), F16)),
    ),
    "token-scale-unpadded": (
        lambda: per_token(1, (2, 24), kv_lens=(20, 11), kvPaddingSize=spec((1,), "INT64", [2])),
        lambda: per_token(1, (2, 24)),
    ),
    "token-scale-without-prefix": (lambda: per_token(1, (2, 30), prefix=6), lambda: per_token(1, (2, 24))),
    "token-scale-of-batch-zero": (lambda: per_token(3, (2, 2, 24)), lambda: channel()),
    "token-head-swapped": (lambda: per_token(3, (2, 2, 24)), lambda: per_token(3, (2, 1, 24), KN=1)),
    "paged-scales-in-order": (
        lambda: per_token(4, (5, 16), cache="BnBsH", kv_lens=(24, 20)),
        lambda: per_token(4, (5, 16), cache="BnBsH", kv_lens=(24, 20), table=(0, 1, 2, 3)),
    ),
    "group-bias": (lambda: group(), lambda: channel()),
    "groups-of-sixteen": (lambda: group(), lambda: channel()),
    "hif8-table": (lambda: channel(HIF8), lambda: channel(FP8)),
    "e4m3-as-e5m2": (lambda: channel(FP8), lambda: channel(HIF8)),
    "fp4-sign": (lambda: group(), lambda: channel()),
    "combined-halves-swapped": (lambda: call(kv=I8, Q=1, product="a2", **COMBINED), lambda: channel()),
    "mixed-value-of-first-token": (
        lambda: per_token(1, (2, 24), keyAntiquantMode=0, keyAntiquantScale=spec((2, 64), F16)),
        lambda: per_token(1, (2, 24)),
    ),
    # quant: full quantisation
    "deq-scale-as-double": (lambda: int8_full("UINT64"), lambda: int8_full()),
    "no-quant-scale": (lambda: int8_full(), lambda: call()),
    "quant-scale-kept": (lambda: int8_full(), lambda: call()),
    "quant-scale-in-sum": (lambda: int8_full(), lambda: call()),
    "mla-rope-in-real-units": (lambda: mla_full(), lambda: mla()),
    "query-scale-of-head-zero": (lambda: gqa_fp8(), lambda: mx()),
    "mla-no-value-scale": (lambda: mla_full(I8), lambda: mla()),
    "lse-with-p-scale": (lambda: gqa_fp8(lse=True), lambda: gqa_fp8(1, lse=True)),
    "mx-lse-of-unrounded-maximum": (lambda: mx(lse=True), lambda: gqa_fp8(lse=True)),
    "key-scales-in-order": (lambda: gqa_fp8(), lambda: gqa_fp8(table=(0, 1))),
    "value-scale-of-head-zero": (lambda: gqa_fp8(), lambda: mx()),
    "value-groups-run-on": (lambda: mx((33, 70)), lambda: mx((64, 20))),
    "mx-pairs-swapped": (lambda: mx(), lambda: gqa_fp8()),
    "mx-value-pairs-swapped": (lambda: mx(), lambda: gqa_fp8()),
    "mx-query-heads-reversed": (lambda: mx(), lambda: gqa_fp8()),
    # post_quant
    "int8-wraps": (lambda: post(scale=400), lambda: post(scale=20)),
    "int8-steps-of-eight": (lambda: post(scale=100), lambda: post(HIF8)),
    "scale-divided": (lambda: post(), lambda: call()),
    "offset-before-scale": (lambda: post(offset=True), lambda: post()),
    "post-offset-subtracted": (lambda: post(offset=True), lambda: post()),
    "channel-columns-first": (lambda: post(shape=(4, 64), scale=100), lambda: post()),
    "channel-by-key-head": (lambda: post(shape=(4, 64), scale=100), lambda: post(shape=(4, 64), KN=4)),
    "first-channel": (lambda: post(shape=(1, 4, 1, 64), scale=100), lambda: post()),
    "lowest-on-empty-rows": (lambda: masked(3, Q=24, K=9, out=I8, quantScale2=spec((1,))), lambda: post(offset=True)),
    "hif8-range": (lambda: post(HIF8, scale=40), lambda: post(HIF8, scale=2)),
    # process
    "nondeterministic-sum": (lambda: call(), lambda: call(K=6)),
    "nondeterministic-row": (lambda: call(N=3, KN=1), lambda: call()),
}
"""Fault name -> (call that shows it, call that does not)."""

PROCESS: dict[str, Pair] = {
    "crash": (lambda: call(K=23), lambda: call()),
    "abort": (lambda: call(lse=True), lambda: call()),
    "hang": (lambda: masked(3), lambda: masked(2)),
    "oom": (lambda: call(attenMask=mask(5, 24)), lambda: call()),
    "raises": (lambda: bias(), lambda: call()),
}
