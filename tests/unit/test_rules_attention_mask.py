"""Room attention_mask: the mask's dtype, rank and shape, sparseMode, preTokens and nextTokens."""

from __future__ import annotations

from fiafuzz.model.case import Constant, TensorSpec, Triu
from oracles.constraints.predict import predict
from tests.unit.plain_calls import MASK, antiquant, call, full_mla, mla, old
from tests.unit.room_checks import RoomTests

DOC, SRC, A2 = "950-v5", "950-v5-2026.08", "a2-v3"
ONE = {n: TensorSpec((1,), "INT64", values=(0,)) for n in ("queryPaddingSize", "kvPaddingSize")}


def masked(*shape, dtype="BOOL", **more):
    """A plain call (2 x 16 queries, 2 x 32 keys) with a mask."""
    return call(attenMask=TensorSpec(shape, dtype), **more)


def fixed(mode, **more):
    """A plain call with the fixed mask."""
    return call(attenMask=MASK, sparseMode=mode, **more)


class TestAttentionMask(RoomTests):
    group = "attention_mask"
    allowed = {
        "v5.attention_mask.single.align_32b_allowed": (DOC, masked(1, 32, 64)),
        "v5.attention_mask.consistency.tokens_ignored_modes123": (DOC, fixed(3, preTokens=-9, nextTokens=-9)),
        "v5.attention_mask.consistency.tokens_ignored_no_mask": (DOC, call(preTokens=-9, nextTokens=-9)),
        "v5.attention_mask.consistency.tokens_ignored_left_padding": (
            DOC,
            masked(1, 16, 32, preTokens=-9, nextTokens=-9, actualSeqLengths=(8, 8), actualSeqLengthsKv=(9, 9), **ONE),
        ),
        "v5.attention_mask.consistency.tokens_ignored_antiquant_decode": (
            DOC,
            antiquant(attenMask=TensorSpec((2, 1, 32), "BOOL"), preTokens=-9, nextTokens=-9),
        ),
        "v5.sparse_semantics.consistency.mode0_no_mask": (DOC, call()),
        "v5.sparse_semantics.consistency.mode0_mask": (DOC, masked(2, 1, 16, 32, preTokens=4, nextTokens=2)),
        "v5.sparse_semantics.consistency.mode1": (DOC, masked(2, 16, 32, sparseMode=1)),
        "v5.sparse_semantics.consistency.mode2": (DOC, fixed(2)),
        "v5.sparse_semantics.consistency.mode3": (DOC, fixed(3)),
        "v5.sparse_semantics.consistency.mode4": (DOC, fixed(4, preTokens=4, nextTokens=-2)),
        "v5.sparse_semantics.single.token_clamp": (DOC, fixed(4, preTokens=2**40, nextTokens=-(2**31) + 1)),
        "v5.sparse_semantics.single.token_defaults": (DOC, masked(1, 16, 32)),
        "v5.sparse_semantics.cross.mode0_left_padding": (
            DOC,
            call(preTokens=-9, nextTokens=-9, actualSeqLengths=(8, 8), actualSeqLengthsKv=(9, 9), **ONE),
        ),
        "v5.sparse_semantics.cross.antiquant_decode_tokens": (DOC, antiquant(preTokens=-9, nextTokens=-9)),
        "v5.sparse_semantics.consistency.compressed_mask_content": (
            SRC,
            call(sparseMode=3, attenMask=TensorSpec((2048, 2048), "BOOL", fill=Constant(0))),
        ),
        "v5.sparse_semantics.cross.invalid_rows": (DOC, fixed(3, S=32, KV_S=16)),
        "v5.sparse_semantics.cross.legacy_decode_ignores": ("a2-v5", old(call(S=1, sparseMode=7), api="v5")),
        "v3.attention_mask.single.pre_next_tokens_table": (A2, old(call(S=1, preTokens=-9, nextTokens=-9))),
        "v3.attention_mask.cross.tnd_gqa_sparse_4": (A2, old(call("TND", attenMask=MASK, sparseMode=4))),
        "v3.attention_mask.existence.sparse0_without_mask": (A2, old(call(preTokens=-9, nextTokens=-9))),
        "v3.attention_mask.single.sparse_void_qs1_no_rope": (A2, old(call(S=1, sparseMode=3))),
        "v3.attention_mask.cross.qs_gt1_sparse0_tokens_ignored": (A2, old(call(preTokens=-9, nextTokens=-9))),
        "v3.attention_mask.cross.qs_gt1_sparse123_tokens": (A2, old(fixed(2, preTokens=-9, nextTokens=-9))),
    }
    accepted = (
        (DOC, masked(1, 1, 16, 32)),
        (DOC, masked(2, 16, 32, dtype="UINT8")),
        (DOC, call(attenMask=TensorSpec((1, 1, 2048, 2048), "INT8", fill=Triu(1)), sparseMode=4)),
        (SRC, masked(1, 16, 20, actualSeqLengthsKv=(20, 5))),
        (DOC, mla(attenMask=MASK, sparseMode=4)),
        (DOC, call(V_D=96, attenMask=MASK, sparseMode=2)),
        (DOC, fixed(4, preTokens=5, nextTokens=-5)),
        (DOC, full_mla(attenMask=MASK, sparseMode=3)),
        (DOC, full_mla("BSND", dtype="INT8", S=2, attenMask=MASK, sparseMode=3)),
        (A2, old(masked(16, 32))),
        (A2, old(fixed(3))),
    )
    refused = (
        (DOC, masked(1, 16, 32, dtype="FLOAT16"), "FIA-AM-001"),
        (DOC, call(attenMask=TensorSpec((1, 16, 32), "BOOL", format="FRACTAL_NZ")), "FIA-AM-002"),
        (DOC, masked(16, 32), "FIA-AM-011"),
        (DOC, masked(3, 16, 32), "FIA-AM-012"),
        (DOC, masked(1, 15, 32), "FIA-AM-013"),
        (DOC, masked(1, 16, 31), "FIA-AM-014"),
        (SRC, masked(1, 16, 19, actualSeqLengthsKv=(20, 5)), "FIA-AM-014"),
        (DOC, masked(1, 2, 16, 32), "FIA-AM-016"),
        (DOC, masked(2048, 2047, sparseMode=3), "FIA-AM-021"),
        (DOC, masked(2, 2048, 2048, sparseMode=2), "FIA-AM-021"),
        (DOC, call(sparseMode=5), "FIA-AM-041"),
        (DOC, call(sparseMode=-1), "FIA-AM-041"),
        (DOC, call(sparseMode=3), "FIA-AM-043"),
        (DOC, masked(1, 2048, 0, sparseMode=1), "FIA-AM-043"),
        (DOC, fixed(4, preTokens=5, nextTokens=-6), "FIA-AM-044"),
        (SRC, antiquant(sparseMode=3), "FIA-AM-051"),
        (DOC, mla(attenMask=MASK, sparseMode=2), "FIA-AM-052"),
        (DOC, call(V_D=96, attenMask=MASK, sparseMode=4), "FIA-AM-053"),
        (DOC, full_mla(attenMask=MASK, sparseMode=4), "FIA-AM-054"),
        (DOC, full_mla(attenMask=TensorSpec((1, 1, 128), "BOOL")), "FIA-AM-055"),
        (DOC, full_mla("BSND", dtype="INT8", S=2), "FIA-AM-056"),
        (DOC, full_mla("BSND", dtype="INT8", attenMask=MASK, sparseMode=3), "FIA-AM-057"),
        (A2, old(masked(1, 15, 32)), "FIA-AM-071"),
    )

    def test_the_width_of_a_mask_is_disputed_between_lengths_and_axis(self):
        assert predict(masked(1, 16, 20, actualSeqLengthsKv=(20, 5)), DOC).verdict == "unspecified"

    def test_content_is_never_promised(self):
        assert predict(call(attenMask=TensorSpec((1, 16, 32), "INT8", fill=Constant(2))), DOC).verdict == "unspecified"
        assert (
            predict(call(sparseMode=3, attenMask=TensorSpec((2048, 2048), "BOOL", fill=Constant(1))), DOC).verdict
            == "unspecified"
        )

    def test_a_prefix_widens_the_mask(self):
        prefix = {n: TensorSpec((1, 2, 8, 64), "FLOAT16") for n in ("keySharedPrefix", "valueSharedPrefix")}
        assert predict(masked(1, 16, 40, **prefix), SRC).verdict == "accept"
        assert "FIA-AM-014" in predict(masked(1, 16, 39, **prefix), SRC).rule_ids

    def test_an_empty_mask_counts_as_none(self):
        assert predict(masked(1, 0, 32), SRC).verdict == "accept"
