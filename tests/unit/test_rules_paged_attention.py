"""Paged attention: accepted behaviour, hand-written pairs of the trickiest rules, totality."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import broken_rules
from tests.unit.plain_calls import MASK, antiquant, call, full_mla, mla, old, per_tensor
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
    strided,
)

CACHES = ("BnBsH", "BnNBsD", "NZ")
FP8_LAYOUTS = ("BNSD", "TND", "BNSD_NBSD", "TND_NTD")
BASES: tuple[Case, ...] = (
    *(call(storage=c) for c in CACHES), *(mla(storage=c) for c in CACHES), antiquant(storage="BnNBsD", block=32),
    full_mla(dtype="INT8", layout="BSND"), per_tensor(), call("TND", storage="BnBsH"),
    old(call(storage="BnBsH", block=128)),
)


def _paged_fp8(layout: str, cache: str) -> Case:
    """FP8 Decode MLA with 128 keys a batch in one block each."""
    case = full_mla(layout, B=2)
    caches = {"BnBsH": (2, 128, 512), "BnNBsD": (2, 1, 128, 512), "NZ": (2, 1, 16, 128, 32)}
    ropes = {"BnBsH": (2, 128, 64), "BnNBsD": (2, 1, 128, 64), "NZ": (2, 1, 4, 128, 16)}
    one = (spec("FLOAT8_E4M3FN", *caches[cache]),)
    return case.replace(key=one, value=one, keyRope=spec("BFLOAT16", *ropes[cache]), blockTable=spec("INT32", 2, 1),
                        blockSize=128, actualSeqLengthsKv=(128, 128))


# ---- accepted behaviour -----------------------------------------------------------------------


def test_block_size_is_ignored_without_a_table() -> None:
    # v5.paged_attention.existence.block_size_ignored_without_table
    for size in (7, -1, 1 << 31):
        accepted(call(blockSize=size), *BOTH)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("layout", FP8_LAYOUTS)
def test_fp8_decode_mla_takes_all_caches_in_the_other_layouts(layout: str, cache: str) -> None:
    # v5.paged_attention.cross.fq_decode_mla_fp8_bnsd_family
    accepted(_paged_fp8(layout, cache), *BOTH)


def test_more_than_20971520_paged_keys_only_warn() -> None:
    # v5.paged_attention.cross.kv_length_20m_warning
    columns = 20971520 // 1024 + 1
    case = call(storage="BnBsH", block=1024, B=1, KV_S=1024)
    case = case.replace(blockTable=spec("INT32", 1, columns), actualSeqLengthsKv=(20971521,))
    case = reshaped(reshaped(case, "key", columns, 1024, 128), "value", columns, 1024, 128)
    accepted(case, SOURCE)


# ---- the block table ----------------------------------------------------------------------------


def test_table_columns_end_with_the_last_token_of_a_block() -> None:
    # v5.paged_attention.single.block_table_dim1: 2 columns of 16 hold 32 tokens
    case = call(storage="BnBsH").replace(blockTable=spec("INT32", 2, 2))
    accepted(case.replace(actualSeqLengthsKv=(32, 32)), *BOTH)
    refused(case.replace(actualSeqLengthsKv=(17, 33)), {"FIA-PA-006"}, SOURCE)
    refused(case.replace(actualSeqLengthsKv=(1, 33), blockTable=spec("INT32", 2, 2)), "FIA-PA-006", *BOTH)


def test_table_rows_are_sequences_of_packed_layouts() -> None:
    # v5.paged_attention.single.block_table_dim0
    case = call("TND", storage="BnBsH", B=3)
    accepted(case, *BOTH)
    refused(reshaped(case, "blockTable", 4, 2), "FIA-PA-004", *BOTH)
    # V3 states the same, but its fast packed route does not look
    packed = reshaped(old(call("TND", storage="BnBsH", B=3, S=1)), "blockTable", 4, 2)
    disputed(packed, "FIA-PA-005", "reject", "accept", OLD)


def test_only_reached_block_ids_count() -> None:
    # v5.paged_attention.single.block_table_values
    table = spec("INT32", 2, 3)
    case = call(storage="BnBsH").replace(actualSeqLengthsKv=(16, 17))
    used = case.replace(blockTable=_valued(table, (0, -1, -1, 3, 2, 99)))
    accepted(used, *BOTH)
    bad = case.replace(blockTable=_valued(table, (0, -1, -1, 3, 4, -1)))
    accepted(bad, SOURCE)
    disputed(bad, "FIA-PA-008", "unspecified", "accept", DOCUMENT)


def _valued(table: object, values: tuple[int, ...]) -> object:
    import msgspec

    return msgspec.structs.replace(table, values=values)  # type: ignore[type-var]


def test_mask_covers_whole_blocks_and_with_antiquant_the_whole_table() -> None:
    # v5.paged_attention.cross.mask_width, v5.attention_mask.consistency.antiquant_decode_kv_pa
    case = call(storage="BnBsH", actualSeqLengthsKv=(17, 3))
    accepted(case.replace(attenMask=spec("BOOL", 1, 16, 32)), *BOTH)
    refused(case.replace(attenMask=spec("BOOL", 1, 16, 31)), "FIA-PA-009", *BOTH)
    accepted(case.replace(attenMask=MASK, sparseMode=3), *BOTH)
    wide = reshaped(antiquant(storage="BnNBsD", block=32), "blockTable", 2, 2)
    accepted(wide.replace(attenMask=spec("BOOL", 2, 1, 64)), *BOTH)
    refused(wide.replace(attenMask=spec("BOOL", 2, 1, 63)), "FIA-PA-009", *BOTH)


# ---- block sizes and caches -----------------------------------------------------------------------


@pytest.mark.parametrize(("head_size", "rows", "block", "rule"), [
    (64, 16, 16, None), (64, 16, 1024, None), (64, 16, 1040, "FIA-PA-022"), (64, 16, 24, "FIA-PA-022"),
    (96, 16, 128, None), (96, 16, 64, "FIA-PA-023"), (96, 16, 1152, "FIA-PA-023"), (96, 1, 16, None),
    (96, 1, 512, None), (96, 1, 528, "FIA-PA-024"),
])
def test_block_size_depends_on_head_size_and_query_tokens(
        head_size: int, rows: int, block: int, rule: str | None) -> None:
    # v5.paged_attention.single.block_size_no_quant_gqa_64_128, _other_multi, _other_single
    case = call(storage="BnBsH", D=head_size, S=rows, block=block)
    if rule is None:
        accepted(case, *BOTH)
    else:
        refused(case, rule, *BOTH)


def test_block_size_is_cut_to_32_bits() -> None:
    # v5.interface: attributes are read as int32 (host_behaviour 4.1)
    accepted(call(storage="BnBsH", block=16).replace(blockSize=(1 << 32) + 16), *BOTH)
    refused(call(storage="BnBsH", block=16).replace(blockSize=1 << 32), "FIA-PA-020", *BOTH)


def test_nz_rows_hold_16_elements_of_any_key_dtype_and_32_of_full_quantisation() -> None:
    # v5.paged_attention.consistency.cache_nz_antiquant, v5.paged_attention.cross.fq_decode_mla_nz_d0
    case = antiquant(storage="BnNBsD", block=32)
    nz = [spec("INT8", 2, 2, 4, 32, 16)]
    accepted(case.replace(key=tuple(nz), value=tuple(nz)), *BOTH)
    wide = [spec("INT8", 2, 2, 2, 32, 32)]
    refused(case.replace(key=tuple(wide), value=tuple(wide)), "FIA-PA-048", *BOTH)
    accepted(_paged_fp8("BNSD", "NZ"), *BOTH)


def test_cache_axes_follow_blocksize_heads_and_head_size() -> None:
    case = call(storage="BnNBsD")
    refused(case.replace(blockSize=32), "FIA-PA-043", *BOTH)
    refused(reshaped(reshaped(case, "key", 4, 3, 16, 64), "value", 4, 3, 16, 64), "FIA-PA-044", *BOTH)
    refused(reshaped(case, "key", 4, 2, 16, 80), "FIA-PA-046", *BOTH)
    refused(reshaped(case, "value", 5, 2, 16, 64), "FIA-PA-042", *BOTH)


def test_bnbsh_cache_holds_at_most_65535_elements_a_token() -> None:
    # v5.paged_attention.cross.bnbsh_h_limit: 1023 heads of 64 pass, 1024 fail; other cache layouts know no limit
    accepted(call(storage="BnBsH", N=1023, KV_N=1023), *BOTH)
    refused(call(storage="BnBsH", N=1024, KV_N=1024), "FIA-PA-051", *BOTH)
    accepted(call(storage="BnNBsD", N=1024, KV_N=1024), *BOTH)


# ---- exclusions and strides -------------------------------------------------------------------------


def test_an_ignored_padding_tensor_still_excludes_paging() -> None:
    # v5.paged_attention.existence.no_left_padding tests the pointer
    case = call(storage="BnBsH", S=1)
    refused(case.replace(kvPaddingSize=spec("INT64", 1)), "FIA-PA-070", *BOTH)


def test_one_prefix_tensor_excludes_paging() -> None:
    refused(call(storage="BnNBsD", keySharedPrefix=spec("FLOAT16", 1, 2, 16, 64)), "FIA-PA-071", *BOTH)


def test_caches_may_be_strided_over_blocks_and_heads_alone() -> None:
    # v5.paged_attention.cross.non_contiguous_bnbsh, _bnnbsd_nz: the document knows no strided cache
    flat, heads = call(storage="BnBsH"), call(storage="BnNBsD")
    over_blocks = strided(strided(flat, "key", 4096, 128, 1), "value", 4096, 128, 1)
    accepted(over_blocks, SOURCE)
    disputed(over_blocks, "FIA-PA-083", "reject", "accept", DOCUMENT)
    refused(strided(flat, "key", 4096, 256, 1), "FIA-PA-080", *BOTH)
    accepted(strided(heads, "key", 4096, 2048, 64, 1), SOURCE)
    refused(strided(heads, "key", 4096, 2048, 128, 1), "FIA-PA-081", *BOTH)
    refused(strided(antiquant(storage="BnNBsD", block=32), "key", 8192, 2048, 64, 1), "FIA-PA-082", *BOTH)


def test_int8_queries_without_rope_take_no_paging() -> None:
    case = per_tensor(storage="BnNBsD", block=32)
    broken, _ = broken_rules(Scene(case), DOCUMENT)
    assert "FIA-PA-073" in {r.id for r in broken}


# ---- V3 -------------------------------------------------------------------------------------------


def test_v3_block_sizes_that_the_operator_takes_are_disputed() -> None:
    # v3.paged_attention.single.qs_gt1_block_size against the newer route
    accepted(old(call(storage="BnBsH", block=128)), OLD)
    disputed(old(call(storage="BnBsH", block=64)), "FIA-PA-111", "reject", "accept", OLD)
    refused(old(call(storage="BnBsH", block=2048)), "FIA-PA-110", OLD)


def test_v3_layouts_of_caches_are_disputed() -> None:
    # v3.paged_attention.cross.qs_gt1_layouts_bsh_bsnd
    disputed(old(call("BSH", storage="BnNBsD", block=128)), "FIA-PA-102", "reject", "accept", OLD)


def test_a2_block_size_knows_no_step_of_128() -> None:
    disputed(call(storage="BnBsH", D=96, block=64, product="a2"), "FIA-PA-026", "reject", "accept", OLD_V5)


# ---- totality ---------------------------------------------------------------------------------------


@given(case=mangled(BASES))
@settings(max_examples=200, deadline=None)
def test_no_rule_raises_on_malformed_calls(case: Case) -> None:
    none_raises("paged_attention", case)


def test_dtype_of_the_table_matters() -> None:
    refused(cast(call(storage="BnBsH"), "blockTable", "INT64"), "FIA-PA-001", *BOTH)
