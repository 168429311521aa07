"""Room quant on A2 and A3: hand-written pairs after the V3 document, and the A2/A3 lines of the V5 document.

Cites stand beside the calls; spec ids without their leading ``v3.quant.``.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from fiafuzz.model.case import Case, TensorSpec
from oracles.constraints.predict import predict
from tests.unit.plain_calls import antiquant, call, old
from tests.unit.rule_checks import OLD_V5, accepted, cast, disputed, mangled, none_raises, refused, reshaped, spec

A2, A3 = "a2-v3", "a3-v3"
BOTH = (A2, A3)
ONE = spec("FLOAT32", 1)


def scaled(case: Case, scale: TensorSpec, mode: int = 0, value_scale: TensorSpec | None = None,
           value_mode: int | None = None, **more: Any) -> Case:
    """A call with these separate scales and modes; value as key when not told."""
    return case.replace(keyAntiquantScale=scale, valueAntiquantScale=value_scale or scale, keyAntiquantMode=mode,
                        valueAntiquantMode=mode if value_mode is None else value_mode, **more)


def decode(**more: Any) -> Case:
    """One query token, INT8 key and value, per-channel scales with a leading 1."""
    dtype = more.get("dtype", "FLOAT16")
    return old(scaled(antiquant(**more), spec(dtype, 1, 2, 64)))


def prefill(**more: Any) -> Case:
    """Eight query tokens, BFLOAT16 query and output, per-channel scales [N, D]."""
    return old(antiquant(**{"S": 8, "dtype": "BFLOAT16", **more}))


def merged(S: int = 1, mode: int = 0, scale: TensorSpec | None = None, **more: Any) -> Case:
    """The merged scale of key and value."""
    return old(call(S=S, kv_dtype=more.pop("kv_dtype", "INT8"), antiquantScale=scale or spec("FLOAT16", 2, 2, 1, 64),
                    antiquantMode=mode, **more))


def int8(out: str = "INT8", **more: Any) -> Case:
    """INT8 query, key and value with one scale each."""
    scales = {"deqScale1": ONE, "quantScale1": ONE, "deqScale2": ONE}
    if out == "INT8":
        scales["quantScale2"] = ONE
    return old(call(dtype="INT8", out_dtype=out, **{**scales, **more}))


def paged(scale: TensorSpec, mode: int, **more: Any) -> Case:
    """One query token and a BnBsH cache of two blocks of 32 rows."""
    return old(scaled(antiquant(storage="BnBsH", block=32, **more), scale, mode))


MIXED = old(scaled(antiquant(), spec("FLOAT16", 1, 2, 64), 0, spec("FLOAT32", 1, 2, 32), 1))
BASES = (decode(), prefill(), merged(), merged(S=8), merged(mode=1, scale=spec("FLOAT32", 2, 2, 32)), int8(),
         int8("FLOAT16"), MIXED, paged(spec("FLOAT32", 2, 32), 4))


@pytest.mark.parametrize("case", [
    *BASES, old(scaled(antiquant(), spec("FLOAT16", 1))), old(scaled(antiquant(), spec("FLOAT16", 1, 128))),
    old(scaled(antiquant(), spec("FLOAT32", 1, 2, 40), 1)), old(scaled(antiquant(), spec("FLOAT16", 2), 2)),
    old(scaled(antiquant(), spec("FLOAT32", 2, 2, 32), 3)), paged(spec("FLOAT32", 2, 2, 32), 5),
    old(scaled(antiquant(S=8, dtype="BFLOAT16"), spec("FLOAT32", 2, 32), 1)), prefill(S=16),
    merged(scale=spec("FLOAT16", 2)), merged(scale=spec("FLOAT16", 2, 128)),
])
def test_what_the_document_allows(case: Case) -> None:
    # single.qs_eq1_a2_mode_list, consistency.qs_eq1_a2_*_shape, qs_gt1_a2_sep_*_shape, antiquant_*_shape
    accepted(case, *BOTH)


@pytest.mark.parametrize(("case", "rule"), [
    # separate modes: single.key_mode_a2_qs1, single.value_mode_a2_qs_ge2, consistency.qs_gt1_a2_sep_modes_equal
    (decode().replace(keyAntiquantMode=7), "FIA-QU-441"), (prefill().replace(valueAntiquantMode=7), "FIA-QU-444"),
    (old(scaled(antiquant(S=8, dtype="BFLOAT16"), spec("BFLOAT16", 2, 64), 0, spec("FLOAT32", 2, 32), 1)),
     "FIA-QU-445"),
    (decode().replace(valueAntiquantMode=2), "FIA-QU-003"),
    # existence.qs_eq1_sep_scales, existence.qs_gt1_a2_sep_offsets
    (decode().replace(valueAntiquantScale=None), "FIA-QU-446"),
    (decode().replace(keyAntiquantOffset=spec("FLOAT16", 1, 2, 64)), "FIA-QU-133"),
    # shapes: the leading 1 belongs to one query token, its absence to several
    (old(antiquant()), "FIA-QU-451"), (old(scaled(antiquant(S=8, dtype="BFLOAT16"), spec("BFLOAT16", 1, 2, 64))),
                                       "FIA-QU-452"),
    (old(scaled(antiquant(S=8, dtype="BFLOAT16"), spec("FLOAT32", 1, 2, 32), 1)), "FIA-QU-454"),
    (old(scaled(antiquant(), spec("FLOAT32", 1, 2, 31), 1)), "FIA-QU-153"),
    (reshaped(MIXED, "valueAntiquantScale", 2, 32), "FIA-QU-457"),
    (paged(spec("FLOAT32", 2, 31), 4), "FIA-QU-145"), (old(scaled(antiquant(), spec("FLOAT32", 2, 32), 4)),
                                                       "FIA-QU-148"),
    # dtypes: cross.qs_eq1_a2_per_channel_scale_dtype, cross.qs_gt1_a2_sep_dtypes_*
    (cast(decode(), "keyAntiquantScale", "FLOAT32"), "FIA-QU-460"),
    (cast(prefill(), "valueAntiquantScale", "FLOAT32"), "FIA-QU-466"),
    (prefill(kv_dtype="INT4"), "FIA-QU-469"),
    (old(scaled(antiquant(S=8), spec("FLOAT32", 2, 32), 1)), "FIA-QU-470"), (prefill(S=17), "FIA-QU-165"),
    (prefill(storage="tensor_list"), "FIA-QU-166"),
    # merged: consistency.antiquant_per_channel_shape, consistency.antiquant_per_token_shape, cross.antiquant_kv_int8
    (merged(scale=spec("FLOAT16", 1, 2, 1, 64)), "FIA-QU-424"), (merged(mode=1, scale=spec("FLOAT32", 2, 3, 32)),
                                                                 "FIA-QU-425"),
    (merged(mode=1, scale=spec("FLOAT16", 2, 2, 32)), "FIA-QU-428"), (merged(kv_dtype="INT4"), "FIA-QU-421"),
    (merged(scale=spec("FLOAT32", 2)), "FIA-QU-427"),
    (merged(S=8, scale=spec("BFLOAT16", 2), dtype="BFLOAT16", out_dtype="BFLOAT16"), "FIA-QU-432"),
    # INT8 x 3: existence.int8_in_int8_out, single.deq_scales_per_tensor_shape, cross.qs_eq1_no_all_int8
    (int8(deqScale1=None), "FIA-QU-401"), (int8("FLOAT16", quantScale1=None), "FIA-QU-402"),
    (reshaped(int8(), "deqScale2", 2), "FIA-QU-409"), (int8(S=1), "FIA-QU-412"),
])
def test_what_the_document_refuses(case: Case, rule: str) -> None:
    refused(case, rule, *BOTH)


def test_tables_of_the_document_that_the_operator_does_not_enforce() -> None:
    # single.deq_scale1_table, cross.qs_gt1_a2_sep_no_paged_attention, consistency.qs_eq1_a2_per_token_shape
    disputed(cast(int8(), "deqScale1", "FLOAT16"), "FIA-QU-406", "reject", "accept", *BOTH)
    disputed(old(scaled(antiquant(), spec("FLOAT32", 2, 32), 1)), "FIA-QU-453", "reject", "accept", *BOTH)
    disputed(cast(decode(), "valueAntiquantScale", "FLOAT32"), "FIA-QU-467", "reject", "accept", *BOTH)
    disputed(merged(mode=2), "FIA-QU-422", "reject", "accept", *BOTH)
    disputed(merged(S=8, scale=spec("FLOAT32", 2)), "FIA-QU-433", "reject", "accept", *BOTH)
    disputed(call(product="a2", api="v3", keyAntiquantScale=ONE, S=1), "FIA-QU-415", "accept", "reject", A2)


def test_int4_with_one_scale_is_left_open() -> None:
    # single.qs_eq1_int4_modes_list against cross.qs_eq1_a2_per_tensor_kv_dtype
    found = predict(old(scaled(antiquant(kv_dtype="INT4"), spec("FLOAT16", 1))), A2)
    assert (found.verdict, found.rule_ids) == ("unspecified", ("FIA-QU-458",))


def test_the_v5_parameter_table_on_old_products() -> None:
    # v5.interface.single.kv_antiquant_scale_dtypes and its neighbours: stated for all products, disputed on these
    base = old(scaled(antiquant(), spec("FLOAT16", 1, 2, 64)), api="v5")
    accepted(base, OLD_V5)
    disputed(cast(base, "valueAntiquantScale", "INT8"), "FIA-QU-481", "reject", "accept", OLD_V5)
    disputed(call(product="a2", antiquantScale=ONE), "FIA-QU-485", "unspecified", "accept", OLD_V5)
    refused(old(antiquant("TND"), api="v5"), "FIA-QU-161", OLD_V5)


@settings(max_examples=200, deadline=None)
@given(mangled(BASES))
def test_no_rule_trips_over_a_malformed_call(case: Case) -> None:
    none_raises("quant", case)
