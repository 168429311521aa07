"""Room quant on Ascend 950: allowances, hand-written pairs of the trickiest demands, disputed ground, malformed calls.

Cites stand beside the calls; spec ids without their leading ``v5.quant.``.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.scene import Scene
from oracles.constraints.quant import RULES
from oracles.constraints.quant.facts import full_intent, scenario
from oracles.constraints.quant.tables import ANTIQUANT_MODES
from tests.unit.plain_calls import antiquant, call, full_mla, old, per_tensor
from tests.unit.room_checks import RoomTests
from tests.unit.rule_checks import cast, disputed, mangled, none_raises, reshaped, spec, strided

DOC, SRC, A2 = "950-v5", "950-v5-2026.08", "a2-v3"
FP8 = "FLOAT8_E4M3FN"
ONE = spec("FLOAT32", 1)


def scaled(case: Case, scale: TensorSpec, mode: int = 0, value_scale: TensorSpec | None = None,
           value_mode: int | None = None, **more: Any) -> Case:
    """An antiquant call with these scales and modes; value as key when not told."""
    return case.replace(keyAntiquantScale=scale, valueAntiquantScale=value_scale or scale, keyAntiquantMode=mode,
                        valueAntiquantMode=mode if value_mode is None else value_mode, **more)


def per_token(**more: Any) -> Case:
    """Per-token scales of 2 batches and 32 keys."""
    return scaled(antiquant(**more), spec("FLOAT32", 2, 32), 1)


def mixed(**more: Any) -> Case:
    """Key per-channel, value per-token."""
    return scaled(antiquant(**more), spec("FLOAT16", 2, 64), 0, spec("FLOAT32", 1, 2, 32), 1)


def mxfp8(storage: str = "contiguous", **more: Any) -> Case:
    """MXFP8: 2 batches of 4 queries and 128 keys, head size 128."""
    case = call("TND", N=4, KV_N=2, S=4, KV_S=128, D=128, dtype=FP8, out_dtype="BFLOAT16", storage=storage, block=128)
    key, value = {"contiguous": ((256, 2, 2, 2), (4, 2, 128, 2)), "BnNBsD": ((2, 2, 128, 2, 2), (2, 2, 2, 128, 2)),
                  "NZ": ((2, 2, 8, 2, 16, 2), (2, 2, 8, 2, 16, 2))}[storage]
    return case.replace(dequantScaleQuery=spec("FLOAT8_E8M0", 8, 4, 2, 2), keyAntiquantScale=spec("FLOAT8_E8M0", *key),
                        valueAntiquantScale=spec("FLOAT8_E8M0", *value), queryQuantMode=6, keyAntiquantMode=6,
                        valueAntiquantMode=8, **more)


def gqa_fp8(S: int = 4, KV_S: int = 128, **more: Any) -> Case:
    """GQA FP8: 2 batches, blocks of 128 keys."""
    case = call("NTD_TND", N=4, KV_N=2, S=S, KV_S=KV_S, D=128, dtype=FP8, out_dtype="BFLOAT16", storage="BnNBsD",
                block=128)
    blocks = case.get("key")[0].shape[0]  # type: ignore[index]
    return case.replace(dequantScaleQuery=spec("FLOAT32", 4, 2 * S), keyAntiquantScale=spec("FLOAT32", blocks, 2, 128),
                        valueAntiquantScale=spec("FLOAT32", 2), queryQuantMode=3, keyAntiquantMode=3,
                        valueAntiquantMode=2, **more)


def prefill(**more: Any) -> Case:
    """INT8 key and value with several query tokens, per-channel."""
    return antiquant(**{"S": 8, "dtype": "BFLOAT16", **more})


def merged(S: int = 1, **more: Any) -> Case:
    """A2: the merged scale of key and value, per-channel."""
    return old(call(S=S, D=64, kv_dtype="INT8", antiquantScale=spec("FLOAT16", 2, 2, 1, 64), **more))


A2_DECODE = old(scaled(antiquant(), spec("FLOAT16", 1, 2, 64)))
A2_PREFILL = old(prefill())
CHANNEL_FORMS = ((1, 2, 1, 64), (1, 1, 2, 64), (1, 2, 64), (2, 1, 64), (1, 128), (2, 64), (128,), (1,))
BASES = (antiquant(), per_token(), mixed(kv_dtype="INT4"), prefill(), full_mla("BSND"), full_mla("TND", dtype="INT8"),
         per_tensor(), mxfp8(), mxfp8("NZ"), gqa_fp8(), A2_DECODE, A2_PREFILL, merged())


class TestQuant(RoomTests):
    group = "quant"
    allowed = {
        "v5.quant.single.no_quant_modes_ignored": (
            SRC, call(keyAntiquantMode=7, valueAntiquantMode=99, queryQuantMode=-1, antiquantMode=3)),
        "v5.quant.cross.empty_tensor_skips_checks": (SRC, call(KV_S=0, deqScale1=ONE, dequantScaleQuery=ONE)),
        "v5.quant.single.quant_scale1_value_range": (
            SRC, per_tensor().replace(quantScale1=TensorSpec((1,), "FLOAT32", values=(1000.0,)))),
        "v5.quant.existence.gqa_fp8_quant_scale1": (SRC, gqa_fp8()),
        "v5.quant.cross.gqa_fp8_seq_limits": (SRC, gqa_fp8(S=65537, KV_S=262272)),
        "v3.quant.existence.antiquant_symmetric": (A2, merged()),
        "v3.quant.existence.antiquant_offset_selects_asymmetric": (
            A2, merged(antiquantOffset=spec("FLOAT16", 2, 2, 1, 64))),
        "v3.quant.cross.qs_gt1_a2_sep_wins": (A2, A2_PREFILL.replace(antiquantScale=spec("FLOAT16", 2, 2, 1, 64))),
        "v3.quant.single.qs_eq1_int4_forms": (
            A2, old(scaled(antiquant(kv_dtype="INT32"), spec("FLOAT16", 1, 2, 64),
                           key=(spec("INT32", 2, 2, 32, 8),), value=(spec("INT32", 2, 2, 32, 8),)))),
        "v3.quant.cross.qs_eq1_sep_wins": (A2, A2_DECODE.replace(antiquantScale=spec("FLOAT32", 7))),
    }
    accepted = (
        *((SRC, scaled(antiquant(), spec("FLOAT16", *shape))) for shape in CHANNEL_FORMS),
        *((DOC, scaled(antiquant(), spec("FLOAT16", *shape))) for shape in CHANNEL_FORMS),
        (SRC, scaled(antiquant(), spec("FLOAT32", 1, 2, 40), 1)), (SRC, per_token(kv_dtype="INT4")),
        (SRC, scaled(antiquant(), spec("FLOAT16", 2), 2)), (SRC, scaled(antiquant(), spec("FLOAT32", 2, 2, 32), 3)),
        (SRC, scaled(antiquant(storage="BnBsH", block=32), spec("FLOAT32", 2, 32), 4)),
        (SRC, scaled(antiquant(storage="BnNBsD", block=32), spec("FLOAT32", 2, 2, 32), 5)),
        (SRC, scaled(antiquant(kv_dtype="FLOAT4_E2M1"), spec("FLOAT8_E8M0", 1, 2, 2, 32, 2), 6)),
        (SRC, mixed()), (SRC, mixed(kv_dtype="INT4")), (SRC, antiquant(dequantScaleQuery=ONE)),
        (SRC, prefill(S=16)), (SRC, antiquant(S=64, kv_dtype=FP8)), (SRC, prefill(layout="BNSD_BSND")),
        (SRC, full_mla("BSND")), (SRC, full_mla("BSH", dtype="INT8")), (DOC, full_mla("TND", dtype="HIFLOAT8")),
        (SRC, mxfp8()), (SRC, mxfp8("BnNBsD")), (SRC, mxfp8("NZ")), (SRC, mxfp8(quantScale1=ONE)),
        (SRC, mxfp8().replace(dequantScaleQuery=spec("FLOAT8_E8M0", 2, 8, 2, 2, 2))),
        (SRC, gqa_fp8(quantScale1=ONE)), (SRC, strided(gqa_fp8(), "key", 1 << 17, 1 << 14, 128, 1)),
        (SRC, per_tensor()), (DOC, per_tensor().replace(deqScale1=spec("UINT64", 1))),
    )
    refused = (
        # modes: single.antiquant_key_mode_range, consistency.antiquant_modes_equal, single.antiquant_mode_attr_zero
        (SRC, antiquant().replace(keyAntiquantMode=7), "FIA-QU-001"),
        (DOC, antiquant().replace(valueAntiquantMode=-1), "FIA-QU-002"),
        (SRC, per_token().replace(valueAntiquantMode=0), "FIA-QU-003"),
        (SRC, antiquant().replace(antiquantMode=1), "FIA-QU-004"),
        # existence.no_quant_forbids_*, antiquant_merged_scale_forbidden, mla_no_*, mxfp8_forbidden
        (SRC, call(dequantScaleQuery=ONE), "FIA-QU-037"), (SRC, call(keyAntiquantOffset=ONE), "FIA-QU-034"),
        (DOC, call(antiquantScale=ONE), "FIA-QU-038"), (SRC, antiquant(antiquantScale=ONE), "FIA-QU-014"),
        (SRC, full_mla(quantScale1=ONE), "FIA-QU-012"), (SRC, mxfp8(quantScale2=ONE), "FIA-QU-062"),
        (SRC, per_tensor().replace(dequantScaleQuery=ONE), "FIA-QU-019"),
        # key and value dtypes by mode: per-tensor is told from per-channel by the scale's shape alone
        (SRC, scaled(antiquant(kv_dtype=FP8), spec("FLOAT16", 1)), "FIA-QU-101"),
        (SRC, per_token(kv_dtype="HIFLOAT8"), "FIA-QU-103"),
        (SRC, mixed(dtype="BFLOAT16").replace(keyAntiquantScale=spec("BFLOAT16", 2, 64)), "FIA-QU-110"),
        # dtypes of scales: per_token FLOAT32, per_channel as query, mixed key as query
        (SRC, scaled(antiquant(), spec("FLOAT16", 2, 32), 1), "FIA-QU-113"),
        (DOC, cast(antiquant(), "valueAntiquantScale", "FLOAT32"), "FIA-QU-112"),
        (SRC, cast(mixed(), "keyAntiquantScale", "FLOAT32"), "FIA-QU-120"),
        (SRC, cast(mixed(), "valueAntiquantScale", "FLOAT16"), "FIA-QU-122"),
        # offsets: both or none, none for the float formats, dtype and shape of the scale
        (SRC, antiquant(keyAntiquantOffset=spec("FLOAT16", 2, 64)), "FIA-QU-133"),
        (SRC, antiquant(kv_dtype=FP8, keyAntiquantOffset=spec("FLOAT16", 2, 64)), "FIA-QU-135"),
        (SRC, antiquant(keyAntiquantOffset=spec("FLOAT32", 2, 64), valueAntiquantOffset=spec("FLOAT16", 2, 64)),
         "FIA-QU-136"),
        (SRC, antiquant(keyAntiquantOffset=spec("FLOAT16", 2, 64), valueAntiquantOffset=spec("FLOAT16", 128)),
         "FIA-QU-157"),
        # shapes: the parser reads the rank, the checker the sizes; paged scales reach over the whole table
        (SRC, scaled(antiquant(), spec("FLOAT32", 1, 1, 2, 32), 1), "FIA-QU-140"),
        (SRC, scaled(antiquant(), spec("FLOAT16", 2, 63)), "FIA-QU-141"),
        (SRC, scaled(antiquant(), spec("FLOAT32", 3, 32), 1), "FIA-QU-142"),
        (SRC, scaled(antiquant(), spec("FLOAT32", 2, 31), 1), "FIA-QU-153"),
        (SRC, scaled(antiquant(storage="BnBsH", block=32, KV_S=33), spec("FLOAT32", 2, 63), 1), "FIA-QU-154"),
        (SRC, scaled(antiquant(storage="BnBsH", block=32), spec("FLOAT32", 2, 31), 4), "FIA-QU-145"),
        (SRC, scaled(antiquant(), spec("FLOAT32", 2, 32), 4), "FIA-QU-148"),
        (SRC, scaled(antiquant(), spec("FLOAT16", 2, 64), value_scale=spec("FLOAT16", 1, 2, 64)), "FIA-QU-155"),
        # INT8 with several query tokens: modes 0 and 1, BFLOAT16, 16 tokens, no list; INT4 one token
        (SRC, scaled(prefill(), spec("BFLOAT16", 2), 2), "FIA-QU-163"), (DOC, antiquant(S=8), "FIA-QU-164"),
        (SRC, prefill(S=17), "FIA-QU-165"), (SRC, prefill(storage="tensor_list"), "FIA-QU-166"),
        (SRC, antiquant(S=2, kv_dtype="INT4"), "FIA-QU-167"), (SRC, antiquant("TND"), "FIA-QU-161"),
        (SRC, antiquant("BNSD_BSND"), "FIA-QU-162"), (SRC, antiquant("NTD", kv_dtype=FP8), "FIA-QU-160"),
        # full quantisation: triples, and what each kind takes
        (SRC, full_mla(valueAntiquantMode=1).replace(queryQuantMode=3), "FIA-QU-204"),
        (SRC, mxfp8().replace(valueAntiquantMode=6), "FIA-QU-210"),
        (SRC, gqa_fp8().replace(queryQuantMode=0), "FIA-QU-211"), (SRC, per_tensor().replace(queryQuantMode=7),
                                                                   "FIA-QU-205"),
        (SRC, per_tensor().replace(queryQuantMode=7, keyAntiquantMode=7, valueAntiquantMode=7), "FIA-QU-214"),
        (SRC, reshaped(full_mla("BSND"), "dequantScaleQuery", 2, 8, 1), "FIA-QU-266"),
        (SRC, full_mla("BNSD").replace(queryRope=spec("FLOAT16", 2, 8, 1, 64), keyRope=spec("FLOAT16", 2, 1, 128, 64)),
         "FIA-QU-289"),
        (SRC, cast(full_mla(), "attentionOut", "FLOAT16"), "FIA-QU-290"),
        (SRC, full_mla("BNSD", dtype="INT8"), "FIA-QU-292"),
        (SRC, reshaped(mxfp8(), "valueAntiquantScale", 3, 2, 128, 2), "FIA-QU-269"),
        (SRC, reshaped(mxfp8("NZ"), "keyAntiquantScale", 2, 2, 8, 1, 16, 2), "FIA-QU-272"),
        (SRC, mxfp8(pseShift=spec("FLOAT16", 1, 4, 4, 128)), "FIA-QU-307"),
        (SRC, mxfp8(innerPrecise=2), "FIA-QU-306"), (SRC, gqa_fp8(innerPrecise=3), "FIA-QU-306"),
        (SRC, strided(gqa_fp8(), "keyAntiquantScale", 512, 256, 2), "FIA-QU-280"),
        (SRC, strided(mxfp8("BnNBsD"), "valueAntiquantScale", 2048, 1024, 256, 1, 128), "FIA-QU-279"),
        (SRC, cast(gqa_fp8(quantScale1=ONE), "quantScale1", "FLOAT16"), "FIA-QU-254"),
        (DOC, mxfp8(), "FIA-QU-201"), (DOC, per_tensor(S=1), "FIA-QU-285"),
    )


def test_a_packed_value_scale_rounds_up_batch_by_batch() -> None:
    # cross.mxfp8_kv_scale_shape_contiguous: 65 and 191 keys are 2 and 3 blocks of 64, though 256 keys are 4
    case = mxfp8(actualSeqLengthsKv=(65, 256))
    assert "FIA-QU-269" in {r.id for r in RULES if r.group == "quant" and r.broken(Scene(case))}
    assert not any(r.broken(Scene(reshaped(case, "valueAntiquantScale", 5, 2, 128,
                                           2))) for r in RULES if SRC in r.profiles)


@pytest.mark.parametrize("row", ANTIQUANT_MODES, ids=lambda row: row.kind)
def test_each_mode_names_its_dtypes_once(row: Any) -> None:
    rules = [r for r in RULES if r.id == f"FIA-QU-{100 + row.number}"]
    assert len(rules) == 1 and row.wrong_kv not in row.kv and all(kv in rules[0].limit for kv in row.kv)


@pytest.mark.parametrize(("change", "intent"), [
    ({}, "mxfp8"), ({"queryQuantMode": 5}, "mxfp8"), ({"dequantScaleQuery": ONE, "queryQuantMode": 5}, "gqa_fp8"),
    ({"dequantScaleQuery": None, "queryQuantMode": 5}, "per_tensor"), ({"valueAntiquantMode": 6}, "mxfp8"),
    ({"queryQuantMode": 7, "keyAntiquantMode": 7, "valueAntiquantMode": 7}, "per_block"),
])
def test_one_wrong_mode_does_not_change_the_kind(change: dict[str, Any], intent: str) -> None:
    case = mxfp8(**{}).replace(**change)
    assert full_intent(Scene(case)) == intent == scenario(Scene(case))


def test_what_documents_and_source_say_differently() -> None:
    # single.antiquant_key_scale_dtype_key_channel_value_token; modes and reserved parameters that nothing reads
    disputed(mixed(kv_dtype="INT4"), "FIA-QU-121", "reject", "accept", DOC)
    disputed(cast(mixed(kv_dtype="INT4"), "keyAntiquantScale", "FLOAT32"), "FIA-QU-120", "accept", "reject", DOC)
    disputed(call(queryQuantMode=9), "FIA-QU-006", "reject", "accept", DOC)
    disputed(call(antiquantMode=1), "FIA-QU-005", "unspecified", "accept", DOC)
    disputed(call(keyRopeAntiquantScale=ONE), "FIA-QU-040", "unspecified", "accept", DOC)
    disputed(call(deqScale2=ONE), "FIA-QU-032", "accept", "reject", DOC)
    disputed(A2_PREFILL.replace(antiquantMode=1), "FIA-QU-423", "accept", "reject", A2)


@settings(max_examples=300, deadline=None)
@given(mangled(BASES))
def test_no_rule_trips_over_a_malformed_call(case: Case) -> None:
    none_raises("quant", case)
