"""Head sizes: the limit, equal and unequal D, and what A2/A3 demand of them."""

from __future__ import annotations

from fiafuzz.model.scene import Scene

from ..changes import cast, head_size, together
from ..documents import V5_DOCUMENTS, V5_LINE
from ..facts import decode_mla, fast_tnd, plain, unequal_d
from ..rule import ALL_950, DOC_A2A3_V3, DOC_A2A3_V5, SRC_A2A3, Basis, Boundary, Break, Effect, Level, Words
from .layouts import NARROW, PREFILL_LAYOUTS
from .recipes import PLAIN, common_rule, one_scale, relayout

LARGEST = 512
UNEQUAL_LARGEST = 128

_ALL_D = ("query", "key", "value", "attentionOut")
_UNEQUAL: Words = {"scenario": "unequal_d", "lse": "off", "mask": "none", "storage": "contiguous", "sink": "off"}
_MLA: Words = {"lse": "off", "left_padding": "none", "mask": "none", "storage": "contiguous", "sink": "off",
               "post_quant": "none", "layout": ("BSH", "BSND", "BNSD", "TND")}
_COMBINED: Words = {**_MLA, "scenario": "mla_prefill_combined"}
_SPLIT: Words = {**_MLA, "scenario": "mla_prefill_split"}
_CONTIGUOUS: Words = {**PLAIN, "storage": "contiguous"}


def _both(s: Scene) -> bool:
    return s.Q_D is not None and s.V_D is not None


def within(s: Scene) -> bool:
    """Whether the head sizes of query and value are known and inside 0 .. 512."""
    return s.Q_D is not None and s.V_D is not None and 0 <= s.Q_D <= LARGEST and 0 <= s.V_D <= LARGEST


def _small(s: Scene) -> bool:
    return s.Q_D is not None and s.V_D is not None and s.Q_D <= UNEQUAL_LARGEST and s.V_D <= UNEQUAL_LARGEST


def _unequal_plain(s: Scene) -> bool:
    return unequal_d(s) and not s.rope_on and s.quant_kind == "none" and _small(s)


RULES = (
    common_rule(
        31, "head sizes are at most 512", level=Level.CONSISTENCY, profiles=V5_LINE | DOC_A2A3_V3,
        cites=("v5.common.consistency.head_dim_limit_qk", "v5.common.consistency.head_dim_limit_v",
               "v5.quant.cross.per_tensor_d", "v3.common.single.qs_gt1_d_max", "v3.common.single.qs_eq1_d_max"),
        enforced_by="CheckAxis", when=_both, requires=within, limit="0 .. 512",
        breaks=(
            Break("above", head_size(528, *_ALL_D), {**_CONTIGUOUS, "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND")}),
            Break("above", head_size(513, *_ALL_D), {**_CONTIGUOUS, "layout": ("BSH", "BSND", "BNSD", "TND")}),
        ),
        boundaries=(Boundary(head_size(512, *_ALL_D), head_size(528, *_ALL_D),
                             {**_CONTIGUOUS, "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND")}, limit="512"),),
    ),
    common_rule(
        32, "unequal head sizes are at most 128 each", level=Level.CONSISTENCY, profiles=ALL_950,
        cites=("v5.common.consistency.d_unequal_limit", "v5.rope.cross.prefill_combined_d"), enforced_by="CheckAxis",
        when=lambda s: unequal_d(s) and s.quant_kind == "none" and not decode_mla(s) and within(s), requires=_small,
        limit="128",
        breaks=(
            Break("above", head_size(129, "query", "key"), _UNEQUAL),
            Break("above", head_size(144, "value", "attentionOut"), _UNEQUAL),
            Break("pair", head_size(129, "value", "attentionOut"), _COMBINED),
        ),
        boundaries=(
            Boundary(head_size(128, "value", "attentionOut"), head_size(129, "value", "attentionOut"),
                     {**_UNEQUAL, "head_size": ("64", "16k", "odd")}, limit="128"),
            Boundary(head_size(lambda s, _: 128 if s.V_D != 128 else None, "query", "key"),
                     head_size(129, "query", "key"), _UNEQUAL, limit="128"),
        ),
        note="192/128 is Prefill MLA, not this case.",
    ),
    common_rule(
        33, "unequal head sizes go with BSH, BSND, BNSD and TND", level=Level.CONSISTENCY, profiles=ALL_950,
        cites=("v5.common.consistency.d_unequal_layout",),
        enforced_by="CheckNTDLayoutCrossover, CheckTransposeLayoutCrossover",
        when=lambda s: _unequal_plain(s) and s.layout_name in PREFILL_LAYOUTS,
        requires=lambda s: s.layout_name not in NARROW and s.layout_name != "BNSD_BSND", limit="BSH, BSND, BNSD, TND",
        breaks=tuple(Break("value", relayout(n), _UNEQUAL) for n in ("BNSD_BSND", "BSND_BNSD", "BSH_BNSD")),
    ),
    common_rule(
        34, "unequal head sizes go with FLOAT16 and BFLOAT16 tensors only", level=Level.CONSISTENCY, profiles=ALL_950,
        cites=("v5.common.consistency.d_unequal_dtypes", "v5.quant.cross.antiquant_unequal_d_forbidden",
               "v5.post_quant.cross.unequal_d"),
        enforced_by="CheckMultiDtype",
        when=lambda s: unequal_d(s) and not decode_mla(s) and s.quant_kind in ("none", "antiquant") and within(s),
        requires=lambda s: s.quant_kind == "none" and not s.post_quant_on,
        breaks=(
            Break("pair", together(cast("INT8", "attentionOut"), one_scale), {**_UNEQUAL, "post_quant": "none"}),
            Break("pair", head_size(lambda _, d: d - 1 if d > 16 else None, "value", "attentionOut"), {
                "scenario": "antiquant", "antiquant": ("per_token", "token_head"), "storage": "contiguous",
                "prefix": "none", "lse": "off", "post_quant": "none", "layout": ("BNSD", "BSND", "BSH"),
                "pse": "none", "left_padding": "none", "kv_dtype": ("INT8", "FLOAT8_E4M3FN")}),
        ),
    ),
    common_rule(
        35, "unequal head sizes go without a paged cache", level=Level.CROSS, profiles=ALL_950,
        cites=("v5.common.cross.d_unequal_only_mask", "v5.paged_attention.existence.no_d_unequal"),
        enforced_by="CheckMultiAttr", when=_unequal_plain, requires=lambda s: not s.paged,
        breaks=(Break("pair", head_size(lambda _, d: d // 2 if d in (64, 128) else None, "value"), {
            **PLAIN, "storage": ("BnNBsD", "BnBsH"), "layout": ("BNSD", "BSND", "TND")}),),
    ),
    common_rule(
        36, "Decode MLA has head size 512 in value too", level=Level.CONSISTENCY, profiles=V5_LINE,
        cites=("v5.common.consistency.decode_mla_head_dims", "v5.rope.cross.decode_equal_d"), enforced_by="CheckAxis",
        when=lambda s: decode_mla(s) and s.V_D is not None and within(s), requires=lambda s: s.V_D == LARGEST,
        limit="512",
        breaks=(Break("value", head_size(128, "value", "attentionOut"), {
            "scenario": "mla_decode", "storage": "contiguous", "lse": "off", "post_quant": "none",
            "layout": ("BSH", "BSND", "BNSD", "TND")}),),
    ),
    common_rule(
        37, "Prefill MLA with rope has head size 128 in value too, by the document", level=Level.CONSISTENCY,
        profiles=V5_DOCUMENTS, basis=Basis.DOCUMENTED,
        cites=("v5.common.consistency.prefill_mla_head_dims", "v5.rope.cross.prefill_split_value_d"),
        enforced_by="nothing", when=lambda s: s.rope_on and s.Q_D == 128 and s.quant_kind == "none" and _small(s),
        requires=lambda s: s.V_D == 128, limit="128",
        breaks=(Break("value", head_size(64, "value", "attentionOut"), _SPLIT),),
    ),
    common_rule(
        38, "head sizes of INT4 and FLOAT4_E2M1 key and value are multiples of 64", level=Level.CONSISTENCY,
        profiles=V5_DOCUMENTS, effect=Effect.UNSPECIFIED, basis=Basis.DOCUMENTED,
        cites=("v5.common.consistency.int4_head_dim_64",), enforced_by="nothing (older documents only)",
        when=lambda s: s.quant_kind == "antiquant" and s.k_dtype in ("INT4", "FLOAT4_E2M1") and s.Q_D is not None,
        requires=lambda s: s.Q_D is not None and s.Q_D % 64 == 0, limit="D % 64 == 0",
        breaks=(Break("value", head_size(80, *_ALL_D), {
            "scenario": "antiquant", "kv_dtype": "INT4", "antiquant": ("per_token", "token_head"),
            "storage": "contiguous", "prefix": "none", "post_quant": "none", "layout": ("BNSD", "BSND", "BSH")}),),
    ),
    # ---- A2/A3 ----------------------------------------------------------------------------------
    common_rule(
        41, "A2/A3: with more than one query token the head size is a multiple of 16", level=Level.CONSISTENCY,
        profiles=DOC_A2A3_V5 | SRC_A2A3, basis=Basis.SOURCE, cites=("v5.common.consistency.head_dim_align16_a2",),
        enforced_by="ValidateNoRopeLayoutDim",
        when=lambda s: (plain(s) and not s.single_token and s.layout_name in ("BSH", "BSND", "BNSD")
                        and within(s) and s.Q_D == s.V_D),
        requires=lambda s: s.V_D is not None and s.V_D % 16 == 0, limit="D % 16 == 0",
        breaks=(Break("value", head_size(72, *_ALL_D), {**_CONTIGUOUS, "layout": ("BSH", "BSND", "BNSD"),
                                                        "q_s": ("2-16", "17+")}),),
        boundaries=(Boundary(head_size(80, *_ALL_D), head_size(72, *_ALL_D), {
            **_CONTIGUOUS, "layout": ("BSH", "BSND", "BNSD"), "q_s": ("2-16", "17+")}, limit="16"),),
    ),
    common_rule(
        42, "A2/A3: TND without rope has head size 64, 128 or 192", level=Level.CONSISTENCY,
        profiles=DOC_A2A3_V5 | SRC_A2A3, basis=Basis.SOURCE, cites=("v5.common.consistency.head_dim_tnd_a2",),
        enforced_by="ValidateNoRopeLayoutDim",
        when=lambda s: plain(s) and s.layout_name == "TND" and within(s) and s.Q_D == s.V_D and not fast_tnd(s),
        requires=lambda s: s.V_D in (64, 128, 192), limit="64, 128, 192",
        breaks=(Break("value", head_size(96, *_ALL_D), {"scenario": "gqa", "layout": "TND", "storage": "contiguous",
                                                        "group": ("gqa", "mqa"), "inner_precise": ("1", "2", "3"),
                                                        "post_quant": "none"}),),
        note="A faster route for TND takes every size up to 256 in part of the calls.",
    ),
    common_rule(
        43, "A2/A3: the head sizes of query and value are equal or 192/128", level=Level.CONSISTENCY,
        profiles=DOC_A2A3_V5 | SRC_A2A3, basis=Basis.SOURCE, cites=("v5.common.consistency.qd_not_below_vd_a2",),
        enforced_by="GetRopeMode", when=lambda s: s.quant_kind == "none" and not s.rope_on and within(s),
        requires=lambda s: not unequal_d(s), limit="equal, or 192/128",
        breaks=(Break("pair", head_size(96, "value", "attentionOut"), {
            **_CONTIGUOUS, "layout": ("BSH", "BSND", "BNSD"), "head_size": ("64", "128")}),),
        note="A smaller query head size is refused at once, a larger one as a Prefill MLA with wrong sizes.",
    ),
    common_rule(
        44, "V3: key and value have the same head size, but for 192/128", level=Level.CONSISTENCY,
        profiles=DOC_A2A3_V3, cites=("v3.common.consistency.kv_shapes_identical", "v3.common.cross.tnd_d_with_rope"),
        enforced_by="older routes, GetRopeMode", when=lambda s: within(s) and s.K_D == s.Q_D,
        requires=lambda s: not unequal_d(s), limit="equal, or 192/128",
        breaks=(Break("pair", head_size(96, "value", "attentionOut"), {
            **_CONTIGUOUS, "layout": ("BSH", "BSND", "BNSD"), "head_size": ("64", "128")}),),
    ),
)
