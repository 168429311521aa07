"""Left padding: accepted behaviour, hand-written pairs of the trickiest rules, totality."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import predict
from tests.unit.plain_calls import antiquant, call, mla, old
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

ONE = TensorSpec((1,), "INT64")
Q_LENS: dict[str, Any] = {"actualSeqLengths": (8, 16)}
KV_LENS: dict[str, Any] = {"actualSeqLengthsKv": (20, 32)}
BASES: tuple[Case, ...] = (
    call(queryPaddingSize=ONE, **Q_LENS), call(kvPaddingSize=ONE, **KV_LENS), call(S=1, kvPaddingSize=ONE, **KV_LENS),
    mla(), antiquant(kvPaddingSize=ONE, **KV_LENS), call("TND"), old(call(kvPaddingSize=ONE, **KV_LENS)))


def sized(value: int) -> TensorSpec:
    """A padding size with its value."""
    return msgspec.structs.replace(ONE, values=(value,))


# ---- accepted behaviour ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-5, 0, 3, 1000])
def test_values_are_not_checked(value: int) -> None:
    # v5.left_padding.single.value_semantics
    accepted(call(queryPaddingSize=sized(value), **Q_LENS), *BOTH)


def test_a_single_token_ignores_key_padding_that_it_cannot_use() -> None:
    # v5.left_padding.existence.kv_ignored_decode
    accepted(call(S=1, kvPaddingSize=ONE), *BOTH)
    accepted(call(S=1, kvPaddingSize=spec("INT64", 2)), *BOTH)
    accepted(call(S=1, storage="tensor_list", kvPaddingSize=ONE), *BOTH)
    # but with lengths it is in force
    refused(call(S=1, kvPaddingSize=spec("INT64", 2), **KV_LENS), "FIA-LP-002", *BOTH)
    refused(call(S=2, kvPaddingSize=ONE), "FIA-LP-006", *BOTH)


def test_tensor_lists_go_with_left_padding() -> None:
    # v5.left_padding.cross.tensor_list_not_rejected
    accepted(call(storage="tensor_list", kvPaddingSize=ONE, **KV_LENS), *BOTH)


def test_padding_opens_the_band_of_mode_0() -> None:
    # v5.left_padding.cross.tokens_forced
    case = call(queryPaddingSize=ONE, attenMask=spec("BOOL", 1, 16, 32), preTokens=-5, nextTokens=-5, **Q_LENS)
    assert Scene(case).tokens == ((1 << 31) - 1, (1 << 31) - 1)
    accepted(case, *BOTH)


def test_v3_query_padding_of_one_token_is_void() -> None:
    # v3.left_padding.single.query_padding_table, qs_eq1_query_padding_void
    accepted(old(call(S=1, queryPaddingSize=spec("INT32", 7))), OLD)


def test_v3_negative_sizes_count_as_zero() -> None:
    # v3.left_padding.single.qs_gt1_q_negative, qs_gt1_kv_negative, qs_eq1_negative
    accepted(old(call(queryPaddingSize=sized(-3), **Q_LENS)), OLD)
    accepted(old(call(kvPaddingSize=sized(-3), **KV_LENS)), OLD)
    accepted(old(call(S=1, kvPaddingSize=sized(-3), **KV_LENS)), OLD)


def test_v3_padding_without_lengths_pads_on_the_right() -> None:
    # v3.left_padding.existence.qs_gt1_q_needs_lengths, qs_gt1_kv_needs_lengths, qs_eq1_needs_lengths
    accepted(old(call(S=1, kvPaddingSize=ONE)), OLD)
    disputed(old(call(queryPaddingSize=ONE)), "FIA-LP-027", "accept", "reject", OLD)
    disputed(old(call(kvPaddingSize=ONE)), "FIA-LP-027", "accept", "reject", OLD)


def test_v3_a_single_token_may_start_or_end_before_the_row() -> None:
    # v3.left_padding.consistency.qs_eq1_start, qs_eq1_end
    accepted(old(call(S=1, kvPaddingSize=sized(1), actualSeqLengthsKv=(32, 32))), OLD)
    accepted(old(call(S=1, kvPaddingSize=sized(99), actualSeqLengthsKv=(32, 32))), OLD)


def test_v3_a_single_token_falls_back_for_lists_and_paging() -> None:
    # v3.left_padding.cross.qs_eq1_pa_tensorlist_fallback; another line says that paging is not supported
    accepted(old(call(S=1, storage="tensor_list", kvPaddingSize=ONE)), OLD)
    found = predict(old(call(S=1, storage="BnBsH", block=128, kvPaddingSize=ONE)), OLD)
    assert (found.verdict, found.rule_ids) == ("unspecified", ("FIA-LP-024",))


# ---- rules ----------------------------------------------------------------------------------------


def test_dtype_of_the_sizes_is_documented_alone() -> None:
    # v5.left_padding.single.dtype
    case = call(queryPaddingSize=spec("INT32", 1), **Q_LENS)
    accepted(case, SOURCE)
    disputed(case, "FIA-LP-003", "reject", "accept", DOCUMENT)


def test_shape_is_looked_at_without_quantisation_alone() -> None:
    # v5.left_padding.single.query_padding_size_shape
    refused(call(queryPaddingSize=spec("INT64", 1, 1), **Q_LENS), "FIA-LP-001", *BOTH)
    refused(call(queryPaddingSize=spec("INT64", 0), **Q_LENS), "FIA-LP-001", *BOTH)
    accepted(antiquant(kv_dtype="HIFLOAT8", S=16, queryPaddingSize=spec("INT64", 2), **Q_LENS), *BOTH)


def test_each_side_needs_its_own_lengths() -> None:
    # v5.left_padding.cross.q_needs_actual_seq_lengths, kv_needs_actual_seq_lengths_kv
    accepted(call(queryPaddingSize=ONE, **Q_LENS), *BOTH)
    refused(call(queryPaddingSize=ONE, **KV_LENS), "FIA-LP-005", *BOTH)
    refused(call(kvPaddingSize=ONE, **Q_LENS), "FIA-LP-006", *BOTH)


def test_layouts_and_kinds_that_take_none() -> None:
    refused(call("BSND_BNSD", kvPaddingSize=ONE, **KV_LENS), "FIA-LP-004", *BOTH)
    refused(call("TND", queryPaddingSize=ONE), "FIA-LP-004", *BOTH)
    refused(mla(kvPaddingSize=ONE), "FIA-LP-007", *BOTH)
    refused(antiquant(S=16, dtype="BFLOAT16", kvPaddingSize=ONE, **KV_LENS), "FIA-LP-008", *BOTH)


def test_v3_packed_padding_is_ignored_by_the_operator() -> None:
    disputed(old(call("TND", N=2, queryPaddingSize=ONE)), "FIA-LP-022", "reject", "accept", OLD)


@given(case=mangled(BASES))
@settings(max_examples=200, deadline=None)
def test_no_rule_raises_on_malformed_calls(case: Case) -> None:
    none_raises("left_padding", case)
