"""sparseMode and the tokens: which modes exist, which need a mask, which go with a scenario, how the tokens relate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.layouts import MASK_COMPRESSED
from fiafuzz.model.scene import Scene

from ..changes import drop, put, resize
from ..documents import ALL_PROFILES, V5_LINE
from ..facts import antiquant_decode, decode_mla, legacy_decode, unequal_d
from ..quant.facts import full_intent
from ..rule import ALL_950, DOC_A2A3, SRC_950, Basis, Boundary, Break, Change, Level, Words
from .facts import mask_rule

MODES = range(5)
UNSUPPORTED = {5: "prefix", 6: "global", 7: "dilated", 8: "block_local"}
TREE = 9
"""A mode of newer A2/A3 hosts, for MLA."""

_MASKS = ("BOOL", "INT8", "UINT8")
_NO_MASK: Words = {"mask": "none", "sparse_mode": "0"}
_TRIANGLE = TensorSpec((MASK_COMPRESSED, MASK_COMPRESSED), "BOOL")


def fixed(mode: int, **more: object) -> Change:
    """The fixed mask and a mode (and tokens)."""
    return put(sparseMode=mode, attenMask=_TRIANGLE, **more)


def full(mode: int, **more: object) -> Change:
    """A mask for every query and key token and a mode (and tokens); no place with empty axes."""

    def change(s: Scene) -> Optional[Mapping[str, object]]:
        columns = s.paged_columns if s.paged else s.KV_S
        if s.Q_S is None or columns is None or s.Q_S < 1 or columns < 1:
            return None
        return {"sparseMode": mode, "attenMask": TensorSpec((1, s.Q_S, columns + s.prefix_len), "BOOL"), **more}

    return change


def _mode_in(s: Scene, allowed: tuple[int, ...]) -> bool:
    """Whether the mode is one of these; a mode that does not exist at all is another rule's business."""
    return s.sparse_mode in allowed or s.sparse_mode not in MODES


def _mla_quantised(s: Scene) -> bool:
    return s.quant_kind == "full" and full_intent(s) == "mla"


def _int8_batched(s: Scene) -> bool:
    return _mla_quantised(s) and s.q_dtype == "INT8" and not s.packed and s.Q_S is not None


def _zero_or_three(s: Scene) -> bool:
    """Mode 0 without mask or mode 3 (which needs a mask by a rule of its own)."""
    return _mode_in(s, (0, 3)) and not (s.sparse_mode == 0 and s.mask_on)


_BAND: Words = {"mask": _MASKS, "post_quant": "none", "sparse_mode": ("0", "4"), "left_padding": "none",
                "q_s": ("2-16", "17+"), "scenario": ("gqa", "mla_decode", "mla_prefill_combined", "mla_prefill_split")}
_INT8_MLA: Words = {"scenario": "full_decode_mla", "q_dtype": "INT8"}
_BSH_LIKE = ("BSH", "BSND", "BSH_NBSD", "BSND_NBSD")
_PACKED = ("TND", "TND_NTD")

RULES = (
    mask_rule(
        41, "sparseMode is 0, 1, 2, 3 or 4", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.attention_mask.single.sparse_mode_range", "v5.interface.single.sparse_mode_values",
               "v5.sparse_semantics.single.allowed_values", "v3.attention_mask.single.sparse_5_8",
               "v3.attention_mask.single.qs_gt1_sparse_values"),
        enforced_by="CheckSparseMode, GetAttenMaskInfo", when=lambda s: not legacy_decode(s),
        requires=lambda s: s.sparse_mode in MODES or (s.sparse_mode == TREE and not s.is_950), limit="0 .. 4",
        breaks=(Break("above", put(sparseMode=5), {"q_s": ("2-16", "17+"), "scenario": ("gqa", "mla_decode")}),
                Break("below", put(sparseMode=-1), {"q_s": ("2-16", "17+"), "scenario": "gqa"})),
        boundaries=(Boundary(fixed(4), put(sparseMode=5), {"q_s": ("2-16", "17+"), "scenario": "gqa",
                                                          "left_padding": "none"}, limit="4"),
                    Boundary(put(sparseMode=0, attenMask=None), put(sparseMode=-1, attenMask=None),
                             {"q_s": ("2-16", "17+"), "scenario": "gqa", "mask": "BOOL"}, limit="0")),
        note="Read as a 32-bit integer. 5 prefix, 6 global, 7 dilated and 8 block_local are not supported; 9 (tree) "
             "passes the list of the host, but on Ascend 950 never the checks behind it.",
    ),
    mask_rule(
        42, "sparseMode 9 is not in the documents", level=Level.SINGLE, profiles=DOC_A2A3, basis=Basis.DOCUMENTED,
        cites=("v5.attention_mask.single.sparse_mode_range", "v3.attention_mask.single.qs_gt1_sparse_values"),
        enforced_by="nothing (newer hosts, rope only)", when=lambda s: not legacy_decode(s),
        requires=lambda s: s.sparse_mode != TREE, limit="0 .. 4",
        breaks=(Break("value", put(sparseMode=TREE), {"q_s": ("2-16", "17+"), "scenario": ("gqa", "mla_decode")}),),
    ),
    mask_rule(
        43, "sparseMode 1, 2, 3 and 4 need a mask", level=Level.EXISTENCE, profiles=ALL_PROFILES,
        cites=("v5.attention_mask.single.sparse_mode_needs_mask", "v5.sparse_semantics.existence.nonzero_needs_mask",
               "v5.attention_mask.cross.full_quant_int8_mla_other_multi_mask", "v5.quant.cross.mla_int8_qs_gt1_mask",
               "v3.attention_mask.existence.sparse1", "v3.attention_mask.existence.sparse2",
               "v3.attention_mask.existence.sparse3", "v3.attention_mask.existence.sparse4_mask",
               "v3.attention_mask.existence.qs_gt1_sparse234_mask"),
        enforced_by="CheckDimAndShape",
        when=lambda s: s.sparse_mode in (1, 2, 3, 4) and not legacy_decode(s) and not antiquant_decode(s),
        requires=lambda s: s.mask_on,
        breaks=(Break("absent", drop("attenMask"), {"sparse_mode": ("1", "2", "3", "4")}),
                Break("absent", resize("attenMask", -1, 0), {"sparse_mode": ("1", "2", "3", "4")}),
                Break("absent", put(sparseMode=3), {**_NO_MASK, "scenario": "gqa", "q_s": ("2-16", "17+"),
                                                    "post_quant": "none", "layout": ("BSH", "BSND", "BNSD")})),
        note="A mask without elements counts as none.",
    ),
    mask_rule(
        44, "preTokens and nextTokens leave a band: their sum is not negative", level=Level.CONSISTENCY,
        profiles=ALL_PROFILES,
        cites=("v5.attention_mask.consistency.pre_next_tokens_order",
               "v5.interface.consistency.pre_plus_next_nonneg", "v5.sparse_semantics.consistency.token_order",
               "v3.attention_mask.consistency.tnd_gqa_band_tokens_sum",
               "v3.attention_mask.consistency.sparse0_with_mask_sum", "v3.attention_mask.consistency.sparse4_sum"),
        enforced_by="CheckPretokenAndNexttoken",
        when=lambda s: s.sparse_mode in (0, 4) and s.mask_on and not legacy_decode(s),
        requires=lambda s: s.tokens[0] + s.tokens[1] >= 0, limit="-nextTokens <= preTokens",
        breaks=(Break("pair", put(preTokens=0, nextTokens=-1), _BAND),
                Break("pair", put(preTokens=-1, nextTokens=0), _BAND),
                Break("below", fixed(4, preTokens=0, nextTokens=-1), {
                    "scenario": "gqa", "q_s": ("2-16", "17+"), "post_quant": "none", "left_padding": "none"})),
        boundaries=(Boundary(put(preTokens=0, nextTokens=0), put(preTokens=0, nextTokens=-1), _BAND, limit="0"),),
        note="Only mode 0 with a mask and mode 4 read the tokens; left padding opens mode 0, antiquant with one query "
             "token ignores them. The tokens are first cut to +-2147483647.",
    ),
    # ---- modes by scenario --------------------------------------------------------------------------
    mask_rule(
        51, "antiquant with one query token takes sparseMode 0", level=Level.CROSS, profiles=ALL_950,
        cites=("v5.attention_mask.cross.antiquant_decode_sparse_mode", "v5.quant.cross.antiquant_qs1_sparse0"),
        basis=Basis.SOURCE, enforced_by="CheckAntiquantSparseMode", when=antiquant_decode,
        requires=lambda s: _mode_in(s, (0,)), limit="0",
        breaks=(Break("value", fixed(3), {"scenario": "antiquant", "q_s": "1", "mask": "none"}),
                Break("value", put(sparseMode=4), {"scenario": "antiquant", "q_s": "1", "mask": "none"})),
    ),
    mask_rule(
        52, "Decode MLA without quantisation takes sparseMode 0, 3 and 4", level=Level.CROSS, profiles=V5_LINE,
        cites=("v5.attention_mask.cross.decode_mla_no_quant_modes", "v5.rope.cross.decode_sparse_modes"),
        enforced_by="CheckNoQuantIFAMLA", when=lambda s: s.quant_kind == "none" and decode_mla(s),
        requires=lambda s: _mode_in(s, (0, 3, 4)), limit="0, 3, 4",
        breaks=(Break("value", fixed(2), {"scenario": "mla_decode", "mask": "none"}),
                Break("value", full(1), {"scenario": "mla_decode", "mask": "none"})),
    ),
    mask_rule(
        53, "unequal head sizes take sparseMode 0, 2 and 3", level=Level.CROSS, profiles=ALL_950,
        cites=("v5.attention_mask.cross.d_unequal_modes", "v5.sparse_semantics.cross.unequal_d"),
        enforced_by="CheckQKVDDifferent",
        when=lambda s: s.quant_kind == "none" and unequal_d(s) and not decode_mla(s),
        requires=lambda s: _mode_in(s, (0, 2, 3)), limit="0, 2, 3",
        breaks=(Break("value", fixed(4), {"scenario": "unequal_d", "mask": "none"}),
                Break("value", full(1), {"scenario": "unequal_d", "mask": "none"})),
    ),
    mask_rule(
        54, "Decode MLA with full quantisation takes sparseMode 0 and 3", level=Level.CROSS, profiles=ALL_950,
        cites=("v5.attention_mask.cross.full_quant_int8_mla_tnd_modes",
               "v5.attention_mask.cross.full_quant_fp8_mla_modes", "v5.quant.cross.mla_mask_sparse3_only"),
        enforced_by="CheckFullQuantIFAMLA", when=lambda s: _mla_quantised(s) and not _int8_batched(s),
        requires=lambda s: _mode_in(s, (0, 3)), limit="0, 3",
        breaks=(Break("value", fixed(4), {"scenario": "full_decode_mla", "mask": "none", "layout": _PACKED}),
                Break("value", fixed(2), {"scenario": "full_decode_mla", "mask": "none", "layout": _PACKED}),
                Break("value", fixed(4), {"scenario": "full_decode_mla", "mask": "none",
                                          "q_dtype": ("FLOAT8_E4M3FN", "HIFLOAT8")})),
    ),
    mask_rule(
        55, "Decode MLA with full quantisation and sparseMode 0 takes no mask", level=Level.CROSS, profiles=ALL_950,
        cites=("v5.attention_mask.cross.full_quant_int8_mla_tnd_mode0_no_mask",
               "v5.attention_mask.cross.full_quant_fp8_mla_mode0_no_mask",
               "v5.quant.cross.mla_no_mask_sparse0_only"),
        enforced_by="CheckFullQuantIFAMLA",
        when=lambda s: _mla_quantised(s) and not _int8_batched(s) and s.sparse_mode == 0,
        requires=lambda s: not s.mask_on,
        breaks=(Break("present", full(0), {"scenario": "full_decode_mla", **_NO_MASK, "layout": _PACKED}),
                Break("present", full(0), {"scenario": "full_decode_mla", **_NO_MASK,
                                           "q_dtype": ("FLOAT8_E4M3FN", "HIFLOAT8")})),
    ),
    mask_rule(
        56, "INT8 Decode MLA in a batch layout with several query tokens takes sparseMode 3", level=Level.CROSS,
        profiles=ALL_950,
        cites=("v5.attention_mask.cross.full_quant_int8_mla_other_multi", "v5.quant.cross.mla_int8_qs_gt1_mask"),
        enforced_by="CheckFullQuantIFAMLA", when=lambda s: _int8_batched(s) and not s.single_token,
        requires=lambda s: _mode_in(s, (3,)), limit="3",
        breaks=(Break("value", put(sparseMode=0, attenMask=None),
                      {**_INT8_MLA, "layout": _BSH_LIKE, "q_s": ("2-16", "17+")}),
                Break("value", put(sparseMode=4), {**_INT8_MLA, "layout": _BSH_LIKE, "q_s": ("2-16", "17+")},
                      ("FIA-AM-213",))),
    ),
    mask_rule(
        57, "INT8 Decode MLA in a batch layout with one query token takes sparseMode 0", level=Level.CROSS,
        profiles=ALL_950,
        cites=("v5.attention_mask.cross.full_quant_int8_mla_other_single", "v5.quant.cross.mla_int8_qs1_no_mask"),
        enforced_by="CheckFullQuantIFAMLA", when=lambda s: _int8_batched(s) and s.single_token,
        requires=lambda s: _mode_in(s, (0,)), limit="0",
        breaks=(Break("value", fixed(3), {**_INT8_MLA, "layout": _BSH_LIKE, "q_s": "1"}),),
    ),
    mask_rule(
        58, "INT8 Decode MLA in a batch layout with one query token takes no mask", level=Level.CROSS,
        profiles=ALL_950,
        cites=("v5.attention_mask.cross.full_quant_int8_mla_other_single_no_mask",
               "v5.quant.cross.mla_int8_qs1_no_mask"),
        enforced_by="CheckFullQuantIFAMLA",
        when=lambda s: _int8_batched(s) and s.single_token and s.sparse_mode == 0,
        requires=lambda s: not s.mask_on,
        breaks=(Break("present", full(0), {**_INT8_MLA, "layout": _BSH_LIKE, "q_s": "1"}, ("FIA-AM-214",)),),
    ),
    mask_rule(
        59, "MXFP8 takes sparseMode 0 without mask or sparseMode 3", level=Level.CROSS, profiles=SRC_950,
        cites=("v5.attention_mask.cross.mxfp8_modes", "v5.quant.cross.mxfp8_mask"),
        basis=Basis.SOURCE, enforced_by="CheckMXFP8FullQuant",
        when=lambda s: s.quant_kind == "full" and full_intent(s) == "mxfp8", requires=_zero_or_three, limit="0, 3",
        breaks=(Break("value", fixed(4), {"scenario": "full_mxfp8", "mask": "none"}),
                Break("present", full(0), {"scenario": "full_mxfp8", "mask": "none"})),
    ),
    mask_rule(
        60, "GQA FP8 takes sparseMode 0 without mask or sparseMode 3", level=Level.CROSS, profiles=SRC_950,
        cites=("v5.attention_mask.cross.fp8_gqa_modes", "v5.quant.cross.gqa_fp8_mask"),
        basis=Basis.SOURCE, enforced_by="CheckFP8GQAFullQuant",
        when=lambda s: s.quant_kind == "full" and full_intent(s) == "gqa_fp8", requires=_zero_or_three, limit="0, 3",
        breaks=(Break("value", fixed(4), {"scenario": "full_gqa_fp8", "mask": "none"}),
                Break("present", full(0), {"scenario": "full_gqa_fp8", "mask": "none"})),
    ),
)
