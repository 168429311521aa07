"""Post-quantisation: accepted behaviour, hand-written pairs of the trickiest rules, totality."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from hypothesis import given, settings

from fiafuzz.model.case import Case
from tests.unit.plain_calls import MASK, antiquant, call, mla, old
from tests.unit.rule_checks import (
    BOTH,
    DOCUMENT,
    OLD,
    SOURCE,
    accepted,
    disputed,
    mangled,
    none_raises,
    refused,
    spec,
)

B16, F32 = "BFLOAT16", "FLOAT32"
SINGLE: dict[str, Any] = {"quantScale2": spec(F32, 1)}
CAUSAL: dict[str, Any] = {"attenMask": MASK, "S": 40}
"""A causal mask over 40 query and 32 key tokens: the first 8 rows of mode 3 see nothing."""


def post(layout: str = "BNSD", scale: tuple[int, ...] = (1,), offset: Optional[tuple[int, ...]] = None,
         dtype: str = F32, **more: Any) -> Case:
    """A BFLOAT16 call of 4 heads of 64 with INT8 output."""
    case = call(layout, **{"dtype": B16, "out_dtype": "INT8", "quantScale2": spec(dtype, *scale), **more})
    return case if offset is None else case.replace(quantOffset2=spec(dtype, *offset))


def old_post(**more: Any) -> Case:
    """The same through V3 on A2."""
    return old(post(**more))


BASES: tuple[Case, ...] = (post(), post("BSH", (4, 64), (4, 64)), post("TND", (4, 64)), old_post(offset=(1,), **CAUSAL),
                           antiquant(dtype=B16, out_dtype="INT8", **SINGLE), mla())


# ---- accepted behaviour ------------------------------------------------------------------------


def test_lse_goes_with_it() -> None:
    # v5.post_quant.cross.with_lse_order
    accepted(post(lse=True), *BOTH)
    accepted(post(scale=(4, 64), lse=True), *BOTH)


@pytest.mark.parametrize("mode", [1, 2])
def test_v3_modes_1_and_2_overwrite_the_tokens(mode: int) -> None:
    # v3.post_quant.cross.qs_gt1_intercept_sparse12
    mask = spec("BOOL", 1, 1, 40, 32) if mode == 1 else MASK
    accepted(old_post(offset=(1,), S=40, attenMask=mask, sparseMode=mode, preTokens=-9, nextTokens=-9), OLD)


# ---- form of scale and offset ------------------------------------------------------------------


@pytest.mark.parametrize("layout, shape, rule", [
    ("BNSD", (1,), None), ("BNSD", (2,), "FIA-PQ-005"), ("BNSD", (256,), None), ("BNSD", (257,), "FIA-PQ-005"),
    ("BNSD", (8, 32), None), ("BNSD", (1, 4, 64), None), ("BNSD", (1, 1), "FIA-PQ-006"), ("BNSD", (), "FIA-PQ-006"),
    ("TND", (1,), None), ("TND", (256,), "FIA-PQ-005"), ("TND", (4, 64), None), ("TND", (64, 4), "FIA-PQ-007"),
    ("TND", (1, 4, 64), "FIA-PQ-007")])
def test_batch_layouts_count_the_numbers_and_others_want_two_axes(
        layout: str, shape: tuple[int, ...], rule: Optional[str]) -> None:
    # v5.post_quant.consistency.scale2_per_channel_1d, scale2_per_channel_nd_bsh_family, scale2_per_channel_nd_other
    if rule is None:
        accepted(post(layout, shape), *BOTH)
    else:
        refused(post(layout, shape), rule, *BOTH)


def test_a_scale_is_needed() -> None:
    # v5.post_quant.existence.scale2_required, scale2_not_empty
    refused(post(quantScale2=None), "FIA-PQ-003", *BOTH)
    refused(post(scale=(0,)), "FIA-PQ-004", *BOTH)


def test_the_dtype_of_an_unused_scale_counts_but_not_its_shape() -> None:
    # v5.post_quant.single.scale2_dtype
    accepted(call(quantScale2=spec(F32, 7)), *BOTH)
    refused(call(quantScale2=spec("FLOAT16", 1)), "FIA-PQ-001", *BOTH)


def test_a_bfloat16_scale_wants_a_bfloat16_query() -> None:
    # v5.post_quant.cross.scale2_fp32_unless_bf16_query
    accepted(post(dtype=B16), *BOTH)
    refused(call(out_dtype="INT8", quantScale2=spec(B16, 1)), "FIA-PQ-011", *BOTH)




def test_an_offset_is_like_the_scale() -> None:
    # v5.post_quant.consistency.offset2_dtype_equals_scale2, offset2_shape_equals_scale2
    accepted(post(offset=(1,)), *BOTH)
    refused(post(quantOffset2=spec(B16, 1)), "FIA-PQ-008", *BOTH)
    refused(post(scale=(4, 64), offset=(256,)), "FIA-PQ-009", *BOTH)


def test_the_operator_compares_rank_and_count_of_an_offset() -> None:
    case = post(scale=(4, 64), offset=(64, 4))
    disputed(case, "FIA-PQ-010", "reject", "accept", DOCUMENT)
    accepted(case, SOURCE)


def test_a_quantised_cache_gives_its_dtype_to_the_output() -> None:
    # v5.post_quant.cross.antiquant_out_equals_kv
    accepted(antiquant(dtype=B16, out_dtype="INT8", **SINGLE), *BOTH)
    refused(antiquant(dtype=B16, out_dtype="HIFLOAT8", **SINGLE), "FIA-PQ-012", *BOTH)
    refused(antiquant(dtype=B16, kv_dtype="HIFLOAT8", out_dtype="INT8", **SINGLE), "FIA-PQ-012", *BOTH)


def test_an_fp8_cache_with_a_scale_per_token_takes_none() -> None:
    # v5.post_quant.cross.antiquant_fp8_per_token_none
    fp8 = "FLOAT8_E4M3FN"
    tokens: dict[str, Any] = {"keyAntiquantScale": spec(F32, 2, 32), "valueAntiquantScale": spec(F32, 2, 32)}
    case = antiquant(dtype=B16, kv_dtype=fp8).replace(keyAntiquantMode=1, valueAntiquantMode=1, **tokens)
    accepted(case, *BOTH)
    refused(case.replace(attentionOut=spec(fp8, 2, 4, 1, 64), **SINGLE), "FIA-PQ-013", *BOTH)


# ---- V3 -----------------------------------------------------------------------------------------


def test_v3_several_tokens_and_a_scale_per_channel() -> None:
    # v3.post_quant.cross.qs_gt1_per_channel_no_lse, consistency.per_channel_other
    accepted(old_post(scale=(4, 64)), OLD)
    refused(old_post(scale=(4, 63)), "FIA-PQ-020", OLD)
    accepted(old_post(scale=(4, 64), lse=True, S=1), OLD)
    disputed(old_post(scale=(4, 64), lse=True), "FIA-PQ-025", "reject", "accept", OLD)


def test_v3_an_offset_refuses_rows_that_see_nothing() -> None:
    # v3.post_quant.cross.qs_gt1_intercept_sparse3, sparse4, sparse0
    accepted(old_post(sparseMode=3, **CAUSAL), OLD)
    accepted(old_post(offset=(1,), sparseMode=3, attenMask=MASK, S=32), OLD)
    refused(old_post(offset=(1,), sparseMode=3, **CAUSAL), "FIA-PQ-029", OLD)
    band: dict[str, Any] = {"offset": (1,), "sparseMode": 4, "attenMask": MASK}
    accepted(old_post(preTokens=0, nextTokens=0, **band), OLD)
    refused(old_post(preTokens=-1, nextTokens=5, **band), "FIA-PQ-030", OLD)
    full: dict[str, Any] = {"offset": (1,), "attenMask": spec("BOOL", 1, 1, 16, 32), "preTokens": 5}
    accepted(old_post(nextTokens=0, **full), OLD)
    refused(old_post(nextTokens=-1, **full), "FIA-PQ-028", OLD)


def test_v3_other_outputs_and_packed_layouts_are_disputed() -> None:
    # v3.post_quant.existence.fp_in_fp_out_scale2, cross.tnd_no_post_quant
    accepted(old(call(**SINGLE)), OLD)  # the newer checks do not look
    scale = spec("FLOAT16", 1, 2, 64)
    quantised = old(antiquant(**SINGLE)).replace(keyAntiquantScale=scale, valueAntiquantScale=scale)
    disputed(quantised, "FIA-PQ-021", "accept", "reject", OLD)
    disputed(old_post(layout="TND", D=128), "FIA-PQ-023", "reject", "accept", OLD)


@given(case=mangled(BASES))
@settings(max_examples=200, deadline=None)
def test_no_rule_raises_on_malformed_calls(case: Case) -> None:
    none_raises("post_quant", case)
