"""Room interface: null pointers, dtype columns, formats, strides, layout names."""

from __future__ import annotations

from msgspec.structs import replace

from fiafuzz.model.case import TensorSpec
from oracles.constraints.predict import predict
from tests.unit.plain_calls import MASK, antiquant, call, full_mla, mla, old, per_tensor
from tests.unit.room_checks import RoomTests

DOC, SRC = "950-v5", "950-v5-2026.08"

PREFIX = {n: TensorSpec((1, 2, 8, 64), "FLOAT16") for n in ("keySharedPrefix", "valueSharedPrefix")}


def strided(case, name):
    """The call with a tensor whose rows stand further apart than they are long."""
    spec = case.get(name)
    steps, step = [], 1
    for size in reversed(spec.shape):
        steps.append(step)
        step = step * size + 1
    return case.replace(**{name: replace(spec, strides=tuple(reversed(steps)))})


def int4():
    """Key and value as INT32 words of eight INT4 numbers."""
    case = antiquant(D=128, kv_dtype="INT4")
    return case.replace(
        key=(TensorSpec((2, 2, 32, 16), "INT32"),),
        value=(TensorSpec((2, 2, 32, 16), "INT32"),),
        keyAntiquantOffset=TensorSpec((2, 128), "FLOAT16"),
        valueAntiquantOffset=TensorSpec((2, 128), "FLOAT16"),
    )


def cast(case, name, dtype):
    """The call with a tensor of another dtype."""
    spec = case.get(name)
    return case.replace(
        **{name: (replace(spec[0], dtype=dtype),) if isinstance(spec, tuple) else replace(spec, dtype=dtype)}
    )


def fmt(case, name, label):
    """The call with a tensor of another format."""
    spec = case.get(name)
    return case.replace(
        **{name: (replace(spec[0], format=label),) if isinstance(spec, tuple) else replace(spec, format=label)}
    )


class TestInterface(RoomTests):
    group = "interface"
    allowed = {
        "v5.interface.single.int32_means_packed_int4": (DOC, int4()),
        "v5.interface.single.non_contiguous_query": (DOC, strided(call(), "query")),
        "v5.interface.single.non_contiguous_pse": (
            DOC,
            strided(call(pseShift=TensorSpec((1, 4, 16, 32), "FLOAT16")), "pseShift"),
        ),
        "v5.interface.single.non_contiguous_atten_mask": (
            DOC,
            strided(call(attenMask=TensorSpec((1, 16, 32), "BOOL")), "attenMask"),
        ),
        "v5.interface.single.non_contiguous_query_rope": (DOC, strided(mla(), "queryRope")),
        "v5.interface.single.non_contiguous_learnable_sink": (
            DOC,
            call(learnableSink=TensorSpec((4,), "FLOAT16", strides=(2,))),
        ),
        "v5.interface.single.non_contiguous_key_prefix": (DOC, strided(call(**PREFIX), "keySharedPrefix")),
        "v5.interface.single.non_contiguous_value_prefix": (DOC, strided(call(**PREFIX), "valueSharedPrefix")),
        "v5.interface.single.empty_atten_mask": (DOC, call(attenMask=TensorSpec((1, 0, 32), "BOOL"))),
        "v5.interface.single.block_size_default": (DOC, call(blockSize=-7)),
        "v5.interface.single.start_idx_type": (SRC, call(qStartIdx=(3,), kvStartIdx=(2**40,))),
        "v5.interface.single.pre_next_tokens_type": (
            DOC,
            call(attenMask=MASK, sparseMode=4, preTokens=2**62, nextTokens=2**40),
        ),
        "v5.interface.single.int64_attrs_truncated_to_int32": (
            DOC,
            call(numHeads=2**32 + 4, numKeyValueHeads=2**32 + 2, sparseMode=2**32 + 3, attenMask=MASK),
        ),
        "v5.interface.existence.optional_null_means_off": (DOC, call()),
        "v5.interface.existence.input_layout_null_default": (DOC, call("BSH", inputLayout=None)),
        "v5.interface.consistency.num_kv_heads_zero_means_equal": (DOC, call(KV_N=4, numKeyValueHeads=0)),
    }
    accepted = (
        (SRC, fmt(call(), "query", "NCHW")),
        (SRC, fmt(call(), "key", "DHWCN")),
        (SRC, fmt(call(lse=True), "softmaxLse", "HWCN")),
        (DOC, per_tensor()),
        (SRC, per_tensor()),
        (DOC, full_mla()),
        (DOC, full_mla("BSND", dtype="INT8")),
        (SRC, cast(call(quantScale2=TensorSpec((1,), "FLOAT32")), "attentionOut", "HIFLOAT8")),
        ("a2-v3", old(call())),
        ("a2-v5", old(call(), api="v5")),
    )
    refused = (
        (DOC, call(query=None), "FIA-IF-001"),
        (DOC, call(key=None), "FIA-IF-002"),
        (DOC, call(value=None), "FIA-IF-003"),
        (SRC, call(attentionOut=None), "FIA-IF-004"),
        # dtype columns: host_behaviour 3.1
        (SRC, cast(call(), "attentionOut", "FLOAT32"), "FIA-IF-014"),
        (SRC, cast(call(), "attentionOut", "BFLOAT16"), "FIA-IF-021"),
        (SRC, cast(call(dtype="BFLOAT16"), "attentionOut", "FLOAT16"), "FIA-IF-022"),
        (SRC, cast(antiquant(), "attentionOut", "BFLOAT16"), "FIA-IF-023"),
        (SRC, cast(full_mla(), "attentionOut", "FLOAT8_E4M3FN"), "FIA-IF-025"),
        (SRC, cast(per_tensor(), "attentionOut", "FLOAT16"), "FIA-IF-027"),
        (DOC, cast(per_tensor(), "attentionOut", "HIFLOAT8"), "FIA-IF-028"),
        ("a2-v5", cast(old(call(), api="v5"), "attentionOut", "FLOAT8_E4M3FN"), "FIA-IF-014"),
        (SRC, fmt(call(), "query", "FRACTAL_NZ"), "FIA-IF-041"),
        (SRC, call(key=(TensorSpec((2, 2, 32, 64), "FLOAT16", strides=(8192, 4096, 128, 1)),)), "FIA-IF-043"),
        (DOC, call(inputLayout="bnsd"), "FIA-IF-051"),
    )

    def test_documents_and_source_disagree_on_formats_and_strided_scales(self):
        assert predict(fmt(call(), "value", "NCHW"), DOC).verdict == "unspecified"
        scales = {
            n: TensorSpec((2, 64), "FLOAT16", strides=(128, 1)) for n in ("keyAntiquantScale", "valueAntiquantScale")
        }
        assert predict(antiquant().replace(**scales), DOC).verdict == "unspecified"
        assert predict(antiquant().replace(**scales), SRC).verdict == "accept"

    def test_only_the_pair_of_int32_carriers_counts_as_int4(self):
        case = int4().replace(value=(TensorSpec((2, 2, 32, 128), "INT4"),))
        assert "FIA-IF-012" in predict(case, SRC).rule_ids

    def test_codes(self):
        assert predict(call(query=None), SRC).codes == {161001}
        assert predict(cast(call(), "query", "DOUBLE"), SRC).codes == {161002}
        assert predict(call(inputLayout="XX"), SRC).codes == {561002}
