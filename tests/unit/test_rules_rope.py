"""Rope: hand-written pairs of the trickiest rules, totality. The document has no accepted behaviour of this group."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from fiafuzz.model.case import Case, TensorSpec
from tests.unit.plain_calls import MASK, antiquant, call, full_mla, mla, old
from tests.unit.rule_checks import (
    BOTH,
    OLD,
    OLD_V5,
    accepted,
    cast,
    disputed,
    mangled,
    none_raises,
    refused,
    reshaped,
    spec,
    strided,
)


def prefill(layout: str = "BNSD", **more: Any) -> Case:
    """Prefill MLA with rope: head size 128, as many key heads as query heads, keyRope (2, 4, 32, 64)."""
    return call(layout, **{"KV_N": 4, "D": 128, "rope": True, **more})


def listed(case: Case) -> Case:
    """A BNSD call with key and value as lists of two batches."""
    return case.replace(**{name: tuple(TensorSpec((1, *t.shape[1:]), t.dtype) for _ in range(2) if t is not None)
                           for name in ("key", "value") for t in (getattr(case.inputs, name) or (None,))})


def old_mla(**more: Any) -> Case:
    """Paged Decode MLA with a causal mask, which V3 takes."""
    return old(mla(**{"storage": "BnNBsD", "block": 128, "KV_S": 128, "sparseMode": 3, "attenMask": MASK, **more}))


PADDED: dict[str, Any] = {"queryPaddingSize": TensorSpec((1,), "INT64"), "actualSeqLengths": (8, 16)}
BASES: tuple[Case, ...] = (prefill(), prefill("BSH"), prefill("TND"), listed(prefill()), mla(), mla("BSND"), full_mla(),
                           mla(storage="NZ", block=128), old_mla(), antiquant())


@pytest.mark.parametrize("number, name", [(1, "queryRope"), (2, "keyRope")])
def test_dtypes(number: int, name: str) -> None:
    # v5.rope.single.{query,key}_rope_dtype, v5.rope.cross.{query,key}_rope_dtype_equal
    accepted(prefill(), *BOTH)
    refused(cast(prefill(), name, "FLOAT32"), f"FIA-RO-00{number}", *BOTH)
    refused(cast(prefill(), name, "BFLOAT16"), f"FIA-RO-01{number + 1}", *BOTH)


@pytest.mark.parametrize("name", ["queryRope", "keyRope"])
def test_both_or_none(name: str) -> None:
    # v5.rope.existence.both_or_none
    refused(prefill().replace(**{name: None}), "FIA-RO-005", *BOTH)


def test_head_size_is_64_in_both() -> None:
    # v5.rope.single.rope_head_dim, key_rope_equal_dim
    refused(reshaped(prefill(), "keyRope", 2, 4, 32, 65), "FIA-RO-004", *BOTH)
    small = reshaped(reshaped(prefill(), "keyRope", 2, 4, 32, 32), "queryRope", 2, 4, 16, 32)
    refused(small, "FIA-RO-003", *BOTH)


def test_an_h_axis_is_divided_and_rounded_down() -> None:
    # v5.rope.consistency.bsh_head_count: 4 heads of 64, and 3 elements too many, which the division drops
    accepted(reshaped(prefill("BSH"), "keyRope", 2, 32, 259), *BOTH)
    refused(reshaped(prefill("BSH"), "keyRope", 2, 32, 320), {"FIA-RO-004", "FIA-RO-007"}, *BOTH)


def test_axes_are_those_of_query_and_key() -> None:
    # v5.rope.consistency.query_rope_shape, key_rope_shape
    refused(reshaped(prefill(), "queryRope", 2, 4, 17, 64), "FIA-RO-006", *BOTH)
    refused(reshaped(prefill(), "keyRope", 2, 4, 33, 64), "FIA-RO-007", *BOTH)


def test_a_rope_cache_has_the_axes_of_the_key_cache() -> None:
    # v5.rope.consistency.paged_key_rope
    case = mla(storage="BnNBsD", block=16)
    accepted(case, *BOTH)
    for shape in ((5, 1, 16, 64), (4, 1, 32, 64), (4, 16, 64)):
        refused(reshaped(case, "keyRope", *shape), "FIA-RO-008", *BOTH)


def test_a_tensor_list_has_one_rope_tensor_for_all_items() -> None:
    # v5.rope.consistency.tensorlist_{batch,s,n}
    accepted(listed(prefill()), *BOTH)
    refused(reshaped(listed(prefill()), "keyRope", 1, 4, 32, 64), "FIA-RO-009", *BOTH)
    refused(reshaped(listed(prefill()), "keyRope", 2, 4, 33, 64), "FIA-RO-010", *BOTH)
    refused(reshaped(listed(prefill()), "keyRope", 2, 5, 32, 64), "FIA-RO-011", *BOTH)


def test_key_rope_is_contiguous() -> None:
    # v5.rope.single.key_rope_contiguous
    accepted(strided(prefill(), "keyRope", 4 * 32 * 64, 32 * 64, 64, 1), *BOTH)
    refused(strided(prefill(), "keyRope", 4 * 32 * 64 + 64, 32 * 64, 64, 1), "FIA-RO-014", *BOTH)


def test_head_size_of_query_is_128_or_512() -> None:
    # v5.rope.cross.query_d
    refused(prefill(D=64), "FIA-RO-020", *BOTH)
    accepted(mla(), *BOTH)


def test_a_quantised_cache_takes_no_rope() -> None:
    # v5.rope.cross.no_antiquant
    case = antiquant(D=128, queryRope=spec("FLOAT16", 2, 4, 1, 64), keyRope=spec("FLOAT16", 2, 2, 32, 64))
    refused(case, "FIA-RO-021", *BOTH)


def test_decode_mla_wants_the_key_head_count_spelled_out() -> None:
    # v5.rope.cross.decode_kv_n
    accepted(mla(N=1), *BOTH)
    refused(mla(N=1, numKeyValueHeads=0), "FIA-RO-022", *BOTH)


def test_only_full_quantisation_limits_the_query_tokens() -> None:
    # v5.rope.cross.decode_q_s_full_quant, decode_q_s_no_quant
    accepted(full_mla(S=16), *BOTH)
    refused(full_mla(S=17), "FIA-RO-023", *BOTH)
    accepted(mla(S=17), *BOTH)


def test_tensor_lists_and_padding_depend_on_the_product() -> None:
    # v5.rope.cross.decode_no_tensorlist, old_products_no_tensorlist, old_products_no_left_padding
    refused(listed(mla()), "FIA-RO-024", *BOTH)
    refused(old(listed(prefill()), api="v5"), "FIA-RO-025", OLD_V5)
    accepted(prefill(**PADDED), *BOTH)
    refused(old(prefill(**PADDED), api="v5"), "FIA-RO-026", OLD_V5)


def test_v3_decode_mla() -> None:
    # v3.rope.cross.mla512_a2_q_s, mla512_a2_q_n, mla512_a2_key_d
    accepted(old_mla(S=16), OLD)
    refused(old_mla(S=17), "FIA-RO-043", OLD)
    refused(old_mla(N=3), "FIA-RO-044", OLD)
    refused(reshaped(old_mla(), "key", 2, 1, 128, 528), "FIA-RO-045", OLD)


def test_v3_packed_calls_of_head_size_512_need_rope() -> None:
    # v3.rope.existence.tnd512_required
    refused(old(call("TND", N=8, KV_N=1, D=512, S=2)), {"FIA-RO-040", "FIA-CO-018"}, OLD)


def test_v3_the_reserved_scale_is_refused_by_the_operator() -> None:
    # v3.rope.single.key_rope_antiquant_scale_reserved: without effect, says the document
    disputed(old(call(keyRopeAntiquantScale=spec("FLOAT16", 1))), "FIA-RO-041", "accept", "reject", OLD)


@given(case=mangled(BASES))
@settings(max_examples=200, deadline=None)
def test_no_rule_raises_on_malformed_calls(case: Case) -> None:
    none_raises("rope", case)
