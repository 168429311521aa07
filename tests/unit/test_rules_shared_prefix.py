"""Shared prefix: accepted behaviour, hand-written pairs of the trickiest rules, totality."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from tests.unit.plain_calls import antiquant, call, mla, old, per_tensor
from tests.unit.rule_checks import (
    BOTH,
    DOCUMENT,
    OLD,
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


def prefixed(case: Case, *shape: int, dtype: str = "FLOAT16", **more: Any) -> Case:
    """The call with a key and a value prefix of that shape."""
    one = spec(dtype, *shape)
    return case.replace(keySharedPrefix=one, valueSharedPrefix=one, **more)


def plain(**more: Any) -> Case:
    """A BNSD call of 2 key heads and 64 elements with a prefix of 16."""
    return prefixed(call(**more), 1, 2, 16, 64)


BASES: tuple[Case, ...] = (plain(), prefixed(call("BSH"), 1, 16, 128), prefixed(call("BSND"), 1, 16, 2, 64), mla(),
                           per_tensor(), prefixed(antiquant(), 1, 2, 16, 64, dtype="INT8"), old(plain()), call("TND"))


# ---- accepted behaviour ------------------------------------------------------------------------


def test_an_unstated_length_is_the_whole_prefix() -> None:
    # v5.shared_prefix.single.actual_len_null
    assert Scene(plain()).prefix_len == 16
    accepted(plain(), *BOTH)


def test_a_length_without_prefix_is_ignored() -> None:
    # v5.shared_prefix.single.actual_len_without_prefix
    accepted(call(actualSharedPrefixLen=(99, -5)), *BOTH)


def test_a_prefix_may_be_of_length_zero() -> None:
    # v5.interface.single.empty_shared_prefix: S = 0 passes, zero heads, head size or batch do not
    accepted(prefixed(call(), 1, 2, 0, 64), *BOTH)
    refused(prefixed(call(), 1, 0, 16, 64), "FIA-SP-006", *BOTH)
    refused(prefixed(call(), 1, 2, 16, 0), "FIA-SP-007", *BOTH)
    refused(prefixed(call(), 0, 2, 16, 64), "FIA-SP-005", *BOTH)


# ---- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "shape"), [
    ("BSH", (1, 16, 128)), ("BSND", (1, 16, 2, 64)), ("BNSD", (1, 2, 16, 64)), ("BNSD_BSND", (1, 2, 16, 64))])
def test_shapes_by_layout(layout: str, shape: tuple[int, ...]) -> None:
    case = prefixed(call(layout), *shape)
    accepted(case, *BOTH)
    accepted(old(case), OLD)
    refused(prefixed(case, 2, *shape[1:]), "FIA-SP-005", *BOTH, OLD)
    refused(prefixed(case, *shape[:-1], shape[-1] + 16), "FIA-SP-007", *BOTH, OLD)


def test_one_prefix_alone_and_pairs_that_differ() -> None:
    refused(plain().replace(valueSharedPrefix=None), "FIA-SP-001", *BOTH)
    refused(plain().replace(keySharedPrefix=None), "FIA-SP-002", *BOTH)
    refused(reshaped(plain(), "valueSharedPrefix", 1, 2, 15, 64), "FIA-SP-009", *BOTH)
    refused(reshaped(plain(), "valueSharedPrefix", 1, 2, 16, 32), "FIA-SP-008", *BOTH)
    refused(reshaped(plain(), "keySharedPrefix", 2, 16, 64), "FIA-SP-003", *BOTH)
    refused(cast(plain(), "valueSharedPrefix", "BFLOAT16"), "FIA-SP-004", *BOTH)


def test_stated_length_is_one_number_up_to_the_prefix() -> None:
    accepted(plain(actualSharedPrefixLen=(16,)), *BOTH)
    accepted(plain(actualSharedPrefixLen=(0,)), *BOTH)
    refused(plain(actualSharedPrefixLen=(17,)), "FIA-SP-011", *BOTH)
    refused(plain(actualSharedPrefixLen=(1, 1)), "FIA-SP-010", *BOTH)
    refused(plain(actualSharedPrefixLen=(-1,)), "FIA-SP-012", SOURCE)
    disputed(plain(actualSharedPrefixLen=(-1,)), "FIA-SP-012", "accept", "reject", DOCUMENT)


def test_a_packed_int4_pair_counts_eight_to_a_word() -> None:
    scale = {"keyAntiquantScale": spec("FLOAT16", 1, 2, 64), "valueAntiquantScale": spec("FLOAT16", 1, 2, 64)}
    words = (spec("INT32", 2, 2, 32, 8),)
    case = antiquant().replace(key=words, value=words, **scale)
    accepted(prefixed(case, 1, 2, 16, 8, dtype="INT32"), *BOTH)
    refused(prefixed(case, 1, 2, 16, 64, dtype="INT32"), "FIA-SP-007", *BOTH)


# ---- exclusions -----------------------------------------------------------------------------------


def test_calls_that_take_no_prefix() -> None:
    refused(prefixed(call(storage="tensor_list"), 1, 2, 16, 64), "FIA-SP-020", *BOTH)
    refused(prefixed(call("TND"), 1, 2, 64), "FIA-SP-023", *BOTH)
    refused(prefixed(mla(), 1, 1, 16, 512), "FIA-SP-024", *BOTH)
    refused(prefixed(per_tensor(), 1, 2, 16, 64, dtype="INT8"), "FIA-SP-026", SOURCE)


def test_ignored_padding_passes() -> None:
    # v5.shared_prefix.cross.no_left_padding uses the effective flags
    accepted(plain(S=1, kvPaddingSize=spec("INT64", 1)), *BOTH)
    refused(plain(S=2, kvPaddingSize=spec("INT64", 1), actualSeqLengthsKv=(9, 9)), "FIA-SP-021", *BOTH)


def test_post_quantised_output_is_int8() -> None:
    scale = spec("FLOAT32", 1)
    accepted(plain(out_dtype="INT8", quantScale2=scale), *BOTH)
    refused(plain(out_dtype="HIFLOAT8", quantScale2=scale), "FIA-SP-027", *BOTH)


@pytest.mark.parametrize(("kv_dtype", "rule"), [("INT8", None), ("INT4", None), ("HIFLOAT8", "FIA-SP-033"),
                                                ("FLOAT8_E4M3FN", "FIA-SP-033")])
def test_single_token_caches_by_dtype(kv_dtype: str, rule: str | None) -> None:
    case = prefixed(antiquant(kv_dtype=kv_dtype), 1, 2, 16, 64, dtype=kv_dtype)
    if rule is None:
        accepted(case, *BOTH)
    else:
        refused(case, rule, *BOTH)


def test_int4_with_a_flat_channel_scale_is_taken_for_one_scale_per_tensor() -> None:
    # v5.shared_prefix.cross.antiquant_decode_per_tensor looks at the rank of the scale
    flat = spec("FLOAT16", 128)
    case = prefixed(antiquant(kv_dtype="INT4"), 1, 2, 16, 64, dtype="INT4", keyAntiquantScale=flat,
                    valueAntiquantScale=flat)
    refused(case, "FIA-SP-034", SOURCE)
    disputed(case, "FIA-SP-034", "accept", "reject", DOCUMENT)


def test_several_tokens_take_int8_alone() -> None:
    accepted(prefixed(antiquant(S=16, dtype="BFLOAT16"), 1, 2, 16, 64, dtype="INT8"), *BOTH)
    fp8 = "FLOAT8_E4M3FN"
    refused(prefixed(antiquant(S=16, kv_dtype=fp8), 1, 2, 16, 64, dtype=fp8), "FIA-SP-031", *BOTH)
    token = {"keyAntiquantMode": 1, "valueAntiquantMode": 1, "keyAntiquantScale": spec("FLOAT32", 2, 32),
             "valueAntiquantScale": spec("FLOAT32", 2, 32)}
    for rows, rule in ((16, "FIA-SP-031"), (1, "FIA-SP-033")):
        case = antiquant(S=rows, kv_dtype="FLOAT8_E4M3FN").replace(**token)
        accepted(case, *BOTH)
        refused(prefixed(case, 1, 2, 16, 64, dtype="FLOAT8_E4M3FN"), rule, *BOTH)


def test_group_scales_take_none() -> None:
    group = {"keyAntiquantMode": 6, "valueAntiquantMode": 6, "keyAntiquantScale": spec("FLOAT8_E8M0", 1, 2, 2, 32, 2),
             "valueAntiquantScale": spec("FLOAT8_E8M0", 1, 2, 2, 32, 2)}
    for rows, rule in ((1, "FIA-SP-032"), (16, "FIA-SP-030")):
        case = antiquant(S=rows, kv_dtype="FLOAT4_E2M1").replace(**group)
        accepted(case, *BOTH)
        refused(prefixed(case, 1, 2, 16, 64, dtype="FLOAT4_E2M1"), rule, *BOTH)


def test_v3_packed_prefix_is_disputed() -> None:
    disputed(old(prefixed(call("TND", N=2), 1, 2, 64)), "FIA-SP-041", "reject", "accept", OLD)


@given(case=mangled(BASES))
@settings(max_examples=200, deadline=None)
def test_no_rule_raises_on_malformed_calls(case: Case) -> None:
    none_raises("shared_prefix", case)
