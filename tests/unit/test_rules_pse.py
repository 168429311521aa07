"""Position bias: accepted behaviour, hand-written pairs of the trickiest rules, totality."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from fiafuzz.model.case import Case
from oracles.constraints.predict import predict
from tests.unit.plain_calls import antiquant, call, full_mla, mla, old, per_tensor
from tests.unit.rule_checks import (
    BOTH,
    DOCUMENT,
    OLD,
    OLD_V5,
    SOURCE,
    accepted,
    cast,
    disputed,
    mangled,
    none_raises,
    refused,
    reshaped,
    spec,
)


def bias(rows: int = 16, columns: int = 32, batches: int = 1, **more: Any) -> Case:
    """A BNSD call of 4 heads, 16 queries, 32 keys with a bias."""
    return call(pseShift=spec("FLOAT16", batches, 4, rows, columns), **more)


def slopes(**more: Any) -> Case:
    """A call of pseType 2 with as many queries as keys."""
    return call(S=32, KV_S=32, pseShift=spec("FLOAT32", 4), pseType=2, **more)


BASES: tuple[Case, ...] = (bias(), slopes(), mla(), full_mla(), per_tensor(), antiquant(), call("TND"), old(bias()),
                           call(storage="BnBsH", pseShift=spec("FLOAT16", 2, 4, 16, 32)))


# ---- accepted behaviour ------------------------------------------------------------------------


def test_no_bias_is_no_error() -> None:
    # v5.pse.existence.null_is_off
    accepted(call(), *BOTH)


def test_start_indices_are_optional_and_their_first_element_counts() -> None:
    # v5.pse.existence.start_idx_null_is_zero, v5.pse.consistency.start_idx_first_element
    accepted(slopes(), DOCUMENT)
    accepted(slopes(kvStartIdx=(1048576,)), DOCUMENT)
    accepted(slopes(qStartIdx=(5, 1 << 40), kvStartIdx=(7, -(1 << 40))), DOCUMENT)


def test_older_routes_of_a2_and_a3_do_not_read_pse_type() -> None:
    # v5.pse.cross.a2a3_ignored_outside_fia
    found = predict(antiquant(product="a2", pseType=2), OLD_V5)
    assert found.source is not None and found.source.verdict == "accept"
    assert found.verdict == "unspecified"


def test_v3_forces_precision_without_an_error() -> None:
    # v3.pse.cross.qs_gt1_fp16_high_precision
    for precise in (0, 1, 2, 3):
        accepted(old(bias(innerPrecise=precise)), OLD)


# ---- the bias -------------------------------------------------------------------------------------


def test_one_row_serves_all_queries() -> None:
    # v5.pse.single.s1_gt1_dim2, dim2_zero
    accepted(bias(rows=1), *BOTH)
    refused(bias(rows=15), "FIA-PS-007", *BOTH)
    refused(bias(rows=0), "FIA-PS-007", *BOTH)
    disputed(old(bias(rows=1)), "FIA-PS-044", "reject", "accept", OLD)


def test_width_counts_the_stated_prefix_also_without_a_prefix() -> None:
    # v5.pse.single.s1_gt1_dim3_no_prefix, note
    accepted(bias(columns=33, actualSharedPrefixLen=(1,)), *BOTH)
    refused(bias(columns=32, actualSharedPrefixLen=(1,)), "FIA-PS-010", SOURCE)
    disputed(bias(columns=32, actualSharedPrefixLen=(1,)), "FIA-PS-010", "accept", "reject", DOCUMENT)


def test_an_unstated_prefix_is_not_counted_by_the_operator() -> None:
    # v5.pse.single.s1_gt1_dim3_prefix, note
    prefix = spec("FLOAT16", 1, 2, 16, 64)
    pair: dict[str, Any] = {"keySharedPrefix": prefix, "valueSharedPrefix": prefix}
    accepted(bias(columns=48, **pair), *BOTH)
    accepted(bias(columns=47, **pair), SOURCE)
    disputed(bias(columns=47, **pair), "FIA-PS-009", "reject", "accept", DOCUMENT)
    refused(bias(columns=40, actualSharedPrefixLen=(9,), **pair), "FIA-PS-008", *BOTH)


def test_paged_bias_is_as_wide_as_the_blocks() -> None:
    # v5.pse.cross.paged_attention_width
    case = call(storage="BnBsH", actualSeqLengthsKv=(17, 1), pseShift=spec("FLOAT16", 1, 4, 16, 32))
    accepted(case, *BOTH)
    refused(reshaped(case, "pseShift", 1, 4, 16, 31), "FIA-PS-008", *BOTH)


def test_dtype_follows_query() -> None:
    refused(cast(bias(), "pseShift", "BFLOAT16"), "FIA-PS-002", *BOTH)
    accepted(per_tensor(pseShift=spec("FLOAT16", 1, 4, 16, 32)), SOURCE)


def test_mla_and_odd_layouts_take_no_bias() -> None:
    refused(mla(pseShift=spec("FLOAT16", 1, 8, 2, 32)), "FIA-PS-011", *BOTH)
    refused(call("TND", pseShift=spec("FLOAT16", 1, 4, 16, 32)), "FIA-PS-013", *BOTH)


def test_rows_of_a_quantised_single_token_are_left_open() -> None:
    # v5.pse.cross.antiquant_decode_row_one
    case = antiquant(pseShift=spec("FLOAT16", 1, 4, 2, 32))
    accepted(case, SOURCE)
    disputed(case, "FIA-PS-014", "unspecified", "accept", DOCUMENT)


# ---- pseType --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [1, 4, -1, 1 << 32])
def test_other_types_are_refused_by_both_releases(kind: int) -> None:
    refused(call(pseType=kind), "FIA-PS-001", SOURCE)
    refused(call(pseType=kind), "FIA-PS-020", DOCUMENT)


def test_slopes_went_away_with_the_august_source() -> None:
    # v5.pse.single.pse_type_values against pse_type_head_only_zero: a change between releases, no dispute
    accepted(slopes(), DOCUMENT)
    refused(slopes(), "FIA-PS-001", SOURCE)


def test_slopes_want_equal_lengths_and_close_indices() -> None:
    refused(call(pseShift=spec("FLOAT32", 4), pseType=2), "FIA-PS-027", DOCUMENT)
    refused(slopes(kvStartIdx=(1048577,)), "FIA-PS-026", DOCUMENT)
    refused(slopes(qStartIdx=(1 << 31,), kvStartIdx=((1 << 31) - 1,)), "FIA-PS-024", DOCUMENT)
    refused(slopes().replace(pseShift=None), "FIA-PS-023", DOCUMENT)
    refused(cast(slopes(), "pseShift", "FLOAT16"), "FIA-PS-021", DOCUMENT)


@given(case=mangled(BASES))
@settings(max_examples=200, deadline=None)
def test_no_rule_raises_on_malformed_calls(case: Case) -> None:
    none_raises("pse", case)
