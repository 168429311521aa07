"""Rules of the fast TND route and of the older prefill and decode routes of A2 and A3: an accepted call and a refused one."""

from __future__ import annotations

from typing import Any, Union

import pytest

from fiafuzz.model.case import Case, TensorSpec
from oracles.constraints.predict import predict
from tests.unit.plain_calls import MASK, antiquant, call, full_mla, old
from tests.unit.rule_checks import accepted, disputed, refused, spec

V3, A3, V5 = "a2-v3-2026.08", "a3-v3-2026.08", "a2-v5-2026.08"
F16, B16, F32, I8 = "FLOAT16", "BFLOAT16", "FLOAT32", "INT8"
BIG = 1 << 31


def scales(dtype: str, *shape: int) -> dict[str, Any]:
    """Both separate scales."""
    return dict.fromkeys(("keyAntiquantScale", "valueAntiquantScale"), spec(dtype, *shape))


def quantised(layout: str = "BNSD", **more: Any) -> Case:
    """A call with quantised key and value, with whatever parameters replaced."""
    sizes = {k: more.pop(k) for k in ("B", "N", "KV_N", "S", "KV_S", "D", "dtype", "storage", "block", "lse")
             if k in more}
    return old(antiquant(layout, **sizes)).replace(**more)


def decode(layout: str = "BNSD", **more: Any) -> Case:
    """One query token with per-channel scales."""
    return quantised(layout, **{**scales(F16, 1, 2, 64), **more})


def decode_as(mode: int, *shape: int, **more: Any) -> Case:
    """One query token with FLOAT32 scales of another mode."""
    dtype = F16 if mode in (0, 2) else F32
    return decode(**{**scales(dtype, *shape), "keyAntiquantMode": mode, "valueAntiquantMode": mode, **more})


def merged(S: int = 1, scale: tuple[int, ...] = (2, 2, 1, 64), **more: Any) -> Case:
    """antiquantScale for key and value together."""
    return quantised(S=S, keyAntiquantScale=None, valueAntiquantScale=None, antiquantScale=spec(F16, *scale), **more)


def prefill(**more: Any) -> Case:
    """Several query tokens with BFLOAT16 and per-channel scales."""
    return quantised(**{"S": 4, "dtype": B16, **more})


def paged_prefill(layout: str = "BSND", **more: Any) -> Case:
    """The FLOAT16 way of a paged quantised cache."""
    shape = {"BSND": (1, 2, 64), "BSH": (1, 128)}.get(layout, (1, 2, 64))
    return quantised(layout, **{"S": 32, "storage": "BnBsH", "block": 128, "KV_S": 128, "attenMask": MASK,
                                "sparseMode": 3, "innerPrecise": 1, **scales(F16, *shape), **more})


def int8(**more: Any) -> Case:
    """INT8 query, key and value through the older prefill route."""
    scale = TensorSpec((1,), F32)
    return old(call(**{"dtype": I8, "out_dtype": F16, "deqScale1": scale, "quantScale1": scale, "deqScale2": scale,
                       **more}))


def int8_out(**more: Any) -> Case:
    """The same with INT8 output."""
    return int8(**{"out_dtype": I8, "quantScale2": spec(F32, 1), **more})


def mla8(layout: str = "TND", S: int = 4, **more: Any) -> Case:
    """INT8 Decode MLA through V5."""
    mask = {"attenMask": MASK, "sparseMode": 3} if S > 1 else {}
    return old(full_mla(layout, dtype=I8, S=S, **{**mask, **more}), api="v5")


def tnd(**more: Any) -> Case:
    """A call of the fast TND route."""
    return old(call("TND", **more))


def as_list(case: Case, extra: int) -> Case:
    """Key and value as lists of single batches, some more than the batch has."""
    items = [(TensorSpec((1, *t.shape[1:]), t.dtype),) * (t.shape[0] + extra)
             for t in (case.inputs.key[0], case.inputs.value[0])]  # type: ignore[index]
    return case.replace(key=items[0], value=items[1])


CALLS: tuple[tuple[str, Case], ...] = (
    ("decode", decode()), ("decode, BSH", decode("BSH", **scales(F16, 1, 128))),
    ("decode, NBSD", decode("BSND_NBSD")), ("decode per token", decode_as(1, 2, 32)),
    ("decode per token, three axes", decode_as(1, 1, 2, 48)), ("decode per head", decode_as(2, 2)),
    ("decode per token and head", decode_as(3, 2, 2, 32)), ("decode merged", merged()),
    ("decode merged per tensor", merged(scale=(2,))), ("decode, mode 100", decode(sparseMode=100)),
    ("decode paged", decode(storage="BnNBsD", block=32)), ("decode paged, other table dtype", decode(
        storage="BnNBsD", block=32).replace(blockTable=spec("UINT8", 2, 1))),
    ("prefill", prefill()), ("prefill merged", merged(4)), ("prefill paged", paged_prefill()),
    ("prefill paged BSH", paged_prefill("BSH")), ("INT8", int8()), ("INT8 out", int8_out()),
    ("TND", tnd()), ("TND, head counts not looked at", tnd(numHeads=7, innerPrecise=0)),
    ("TND, lengths not increasing", tnd(actualSeqLengths=(32, 16), actualSeqLengthsKv=(64, 3))),
)


@pytest.mark.parametrize(("name", "case"), CALLS)
def test_what_the_older_routes_take(name: str, case: Case) -> None:
    accepted(case, V3)
    accepted(old(case, "a3"), A3)


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BSND_NBSD", "TND", "TND_NTD"])
@pytest.mark.parametrize("tokens", [1, 2])
def test_int8_decode_mla_is_a_matter_of_v5(layout: str, tokens: int) -> None:
    case = mla8(layout, tokens)
    accepted(case, V5)
    assert predict(old(case), V3).verdict == "reject" and "FIA-QU-561" in predict(old(case), V3).rule_ids


def bias(rows: int, columns: int, dtype: str = F16) -> TensorSpec:
    return spec(dtype, 1, 4, rows, columns)


def named(rule: Union[str, set[str]]) -> str:
    """A rule or several as the name of a test, the same in every process."""
    return rule if isinstance(rule, str) else "+".join(sorted(rule))


REFUSED: tuple[tuple[Union[str, set[str]], Case], ...] = (
    # ---- several query tokens
    ("FIA-QU-501", merged(4, (2, 128))),
    ({"FIA-QU-424", "FIA-QU-501"}, merged(4, (2, 2, 1, 63))),
    ("FIA-QU-504", prefill(dtype=F16)),
    ("FIA-QU-505", prefill(**scales(F32, 2, 33), keyAntiquantMode=1, valueAntiquantMode=1)),
    ("FIA-QU-508", prefill(**scales(B16, 1))),
    ("FIA-QU-507", merged(4).replace(deqScale1=spec(F32, 1))),
    ("FIA-QU-511", paged_prefill("BNSD")),
    ("FIA-QU-512", paged_prefill(innerPrecise=0)),
    ("FIA-QU-513", paged_prefill(sparseMode=2)),
    ("FIA-QU-514", paged_prefill(pseShift=bias(32, 128))),
    ("FIA-QU-515", paged_prefill(antiquantScale=spec(F16, 2))),
    ("FIA-QU-516", paged_prefill(S=16)),
    ("FIA-QU-518", paged_prefill(**scales(F16, 2, 64))),
    ("FIA-QU-519", paged_prefill(**dict.fromkeys(("keyAntiquantOffset", "valueAntiquantOffset"), spec(F16, 1, 128)))),
    ("FIA-QU-563", int8(antiquantScale=spec(F16, 2))),
    ("FIA-CO-203", prefill(numHeads=(1 << 32) + 4)),
    ("FIA-IP-002", prefill(innerPrecise=4)),
    ("FIA-LP-201", int8(kvPaddingSize=spec("INT64", 1, 1), actualSeqLengthsKv=(8, 8))),
    ("FIA-PA-202", paged_prefill().replace(blockTable=spec("INT64", 2, 1))),
    ("FIA-PS-201", int8(pseShift=bias(8, 32))),
    ("FIA-AM-201", int8(attenMask=spec("BOOL", 1, 16, 32), nextTokens=-16, preTokens=1 << 20)),
    ("FIA-AM-210", int8(attenMask=spec("BOOL", 1, 16, 32), preTokens=-32, nextTokens=1 << 20)),
    ("FIA-AM-211", int8(attenMask=MASK, sparseMode=4, preTokens=-16, nextTokens=1 << 20)),
    ("FIA-AM-212", int8(attenMask=spec("BOOL", 1, 15, 32))),
    ("FIA-AM-212", int8(attenMask=spec("BOOL", 1, 16, 31))),
    ("FIA-PQ-201", int8_out(quantScale2=None)),
    ("FIA-PQ-202", int8_out(quantScale2=spec(B16, 1))),
    ("FIA-PQ-203", int8_out(quantScale2=spec(F32, 2))),
    ("FIA-PQ-204", int8_out(quantOffset2=spec(F32, 2))),
    ("FIA-PQ-205", int8_out(quantScale2=spec(F32, 4, 64), lse=True)),
    ("FIA-PQ-206", int8_out(quantScale2=spec(F32, 4, 64), queryPaddingSize=spec("INT64", 1), actualSeqLengths=(8, 8))),
    ("FIA-PQ-207", int8_out(attenMask=MASK, sparseMode=4, preTokens=-1, nextTokens=1 << 20)),
    ("FIA-PQ-208", int8_out(quantOffset2=spec(F32, 1), attenMask=MASK, sparseMode=3, S=40)),
    ("FIA-CO-204", merged(4, KV_S=0)),
    # ---- one query token
    ("FIA-QU-541", merged().replace(antiquantMode=-1)),
    ("FIA-QU-543", merged(scale=(2, 2, 1, 63)).replace(antiquantMode=2)),
    ("FIA-QU-545", decode(deqScale1=spec(F32, 1))),
    ("FIA-IP-201", decode(innerPrecise=2)),
    ("FIA-CO-205", decode().replace(key=(spec(I8, 1, 2, 32, 64), spec("UINT8", 1, 2, 32, 64)),
                                    value=(spec(I8, 1, 2, 32, 64),) * 2)),
    ("FIA-CO-201", decode("BSND_NBSD", storage="tensor_list")),
    ("FIA-SP-201", decode(**dict.fromkeys(("keySharedPrefix", "valueSharedPrefix"), spec(I8, 1, 2, 0, 64)))),
    ("FIA-SP-202", decode(**dict.fromkeys(("keySharedPrefix", "valueSharedPrefix"), spec(I8, 1, 2, 16, 64)),
                          actualSharedPrefixLen=(16,))),
    ("FIA-AM-202", decode(attenMask=spec("BOOL", 2, 1, 32), sparseMode=3)),
    ("FIA-AM-207", decode(storage="BnNBsD", block=32, attenMask=spec("BOOL", 2, 1, 31))),
    ("FIA-AM-208", decode(attenMask=spec("BOOL", 3, 1, 32))),
    ("FIA-AM-209", decode(sparseMode=9)),
    ("FIA-PS-008", decode(storage="BnNBsD", block=32, actualSeqLengthsKv=(4, 4), pseShift=bias(1, 31))),
    ("FIA-QU-546", decode_as(3, 2, 64)),
    # ---- TND
    ("FIA-AS-201", tnd(actualSeqLengths=(16, 33))),
    ("FIA-AS-202", tnd(actualSeqLengthsKv=(32, 65))),
    ("FIA-AS-203", tnd(actualSeqLengthsKv=())),
    ("FIA-AM-205", tnd(attenMask=MASK)),
    ("FIA-AM-206", tnd(attenMask=MASK, sparseMode=4, preTokens=-(1 << 40), nextTokens=BIG - 1)),
    # ---- V3
    ("FIA-CO-212", old(call("BSH", numHeads=(1 << 32) + 4))),
)


@pytest.mark.parametrize(("rule", "case"), REFUSED, ids=[f"{named(n)} {i}" for i, (n, _) in enumerate(REFUSED)])
def test_refusals(rule: Union[str, set[str]], case: Case) -> None:
    refused(case, rule, V3, code=561103)
    refused(old(case, "a3"), rule, A3, code=561103)


def test_paged_scales_of_one_token_cover_the_table() -> None:
    accepted(decode_as(1, 1, 2, 64, storage="BnNBsD", block=32, KV_S=64), V3)
    refused(decode_as(1, 1, 2, 63, storage="BnNBsD", block=32, KV_S=64), "FIA-QU-154", V3, code=561103)


MLA_REFUSED: tuple[tuple[Union[str, set[str]], dict[str, Any]], ...] = (
    ("FIA-AM-203", {"attenMask": spec("BOOL", 1, 2048, 2048)}),
    ("FIA-AM-204", {"attenMask": None}),
    ("FIA-AM-213", {"sparseMode": 4}),
    ("FIA-AM-214", {"sparseMode": 0}),
    ("FIA-QU-563", {"antiquantScale": spec(F16, 2)}),
    ("FIA-QU-565", {"keyAntiquantOffset": spec(F32, 1)}),
)


@pytest.mark.parametrize(("rule", "change"), MLA_REFUSED, ids=[named(n) for n, _ in MLA_REFUSED])
def test_refusals_of_int8_decode_mla(rule: Union[str, set[str]], change: dict[str, Any]) -> None:
    refused(mla8().replace(**change), rule, V5)


def test_v5_looks_at_formats_and_outputs() -> None:
    # v5 alone: V1 to V4 relabel every tensor and infer the outputs
    odd = decode(attenMask=TensorSpec((2, 1, 32), "BOOL", format="NDHWC"))
    accepted(odd, V3)
    refused(old(odd, api="v5"), "FIA-QU-548", V5)
    offset = dict.fromkeys(("keyAntiquantOffset", "valueAntiquantOffset"), TensorSpec((1, 2, 64), F16, format="NDHWC"))
    accepted(decode(**offset), V3)
    refused(old(decode(**offset), api="v5"), "FIA-QU-547", V5)
    wide = tnd(lse=True).replace(softmaxLse=spec(F32, 33, 4, 1))
    accepted(wide, V3)
    refused(old(wide, api="v5"), "FIA-SL-201", V5)


CRASHES: tuple[tuple[str, Case, tuple[str, ...]], ...] = (
    ("FIA-CO-221", tnd(numKeyValueHeads=0), (V3, V5)),
    ("FIA-CO-222", decode("BSH", **scales(F16, 1, 128)).replace(key=(spec(I8, 2, 32, 0),)), (V3,)),
    ("FIA-CO-223", old(call("BSH", numHeads=0)), (V5,)),
    ("FIA-CO-224", as_list(int8(), 2), (V3, V5)),
    ("FIA-AS-221", tnd(storage="NZ", D=96).replace(actualSeqLengths=None), (V3, V5)),
    ("FIA-IP-221", decode("BSH", storage="BnBsH", block=32, innerPrecise=2, actualSeqLengths=(1, 1),
                          **scales(F16, 1, 128)), (V3, V5)),
    ("FIA-QU-521", prefill(**scales(B16, 1, 2, 1, 64)), (V3, V5)),
)


@pytest.mark.parametrize(("rule", "case", "profiles"), CRASHES, ids=[n for n, _, _ in CRASHES])
def test_calls_that_bring_the_host_down(rule: str, case: Case, profiles: tuple[str, ...]) -> None:
    for name in profiles:
        found = predict(case.replace(api=name[3:5]), name)
        assert (found.verdict, found.rule_ids) == ("crash", (rule,)), (name, found)


def test_near_misses_of_crashes_are_refused_or_taken() -> None:
    accepted(old(call(numKeyValueHeads=0, KV_N=4)), V3)
    assert predict(old(call("BSH", numHeads=0)), V3).verdict == "reject"
    assert predict(as_list(int8(), 1), V3).verdict == "reject"
    offsets = dict.fromkeys(("keyAntiquantOffset", "valueAntiquantOffset"), spec(B16, 1, 2, 1, 64))
    assert predict(prefill(**scales(B16, 1, 2, 1, 64), **offsets), V3).verdict == "reject"


def test_an_empty_output_is_taken_at_once_by_v3() -> None:
    case = prefill(dtype=F16)
    assert case.outputs.attentionOut is not None
    accepted(case.replace(attentionOut=spec(F16, 0, 4, 4, 64)), V3)


def test_undocumented_demands_are_disputed_ground_for_the_documents() -> None:
    disputed(merged(4, (2, 128)), "FIA-QU-501", "accept", "reject", "a2-v3", "a3-v3")
    disputed(decode(sparseMode=9), "FIA-AM-209", "accept", "reject", "a2-v3")
