"""A2 and A3: what the older prefill and decode routes demand of quantised calls."""

from __future__ import annotations

from fiafuzz.model.case import TensorSpec

from ..changes import drop, put, together
from ..common.recipes import relayout
from ..routes import A2A3_V5, DECODE, DECODE_ROUTE, OLDER_ROUTES, PREFILL
from ..rule import ALL_A2A3, SRC_A2A3, SRC_A2A3_V3, Basis, Break, Level, Rule, never
from . import decode_scales, prefill_scales
from .antiquant_features import as_packed
from .facts import Needs, full_intent
from .full_features import with_rope
from .old_full import INT8, full
from .old_separate import OFFSETS

ALSO = {
    PREFILL: (
        "003 020 021 133 134 136 137 148 153 156 157 160 224 225 226 286 287 404 405 409 423 424 429 430 432 "
        "443 444 445 446 447 450 452 454 460 462 466 469"
    ),
    DECODE: (
        "003 122 133 134 136 137 142 143 144 145 146 148 153 154 155 156 157 162 421 424 425 426 427 428 "
        "429 430 431 441 442 446 447 450 451 455 456 457 459 460 461"
    ),
}
"""Numbers of the rules of this room that hold on these routes too."""

ALSO_MLA = {DECODE: "011 012 013 221 222 223 242 243 264 265 266 289 294 484"}
"""Numbers of the rules of this room that hold for INT8 Decode MLA, which V5 alone runs there."""

MLA_LAYOUTS = ("BSH", "BSND", "BSH_NBSD", "BSND_NBSD", "TND", "TND_NTD")
_MLA: Needs = {"scenario": "full_decode_mla"}

_FULL_RULES = (
    Rule(
        "FIA-QU-561", "V3: the older decode route takes no INT8 query, key and value", "quant", Level.CROSS,
        SRC_A2A3_V3,
        ("v3.quant.cross.mla512_a2_no_full_quant",),
        lambda s: full(s) and (s.given("queryRope") or full_intent(s) != "per_tensor"), never,
        basis=Basis.SOURCE, routes=DECODE_ROUTE, enforced_by="ProcessQuant, CheckMlaAttrs",
        breaks=(Break("present", together(with_rope, put(actualSeqLengths=None)), {
            **INT8, "head_size": "512", "pse": "none", "left_padding": "none", "post_quant": "none"}),),
    ),
    Rule(
        "FIA-QU-562", "INT8 query, key and value with one query token need rope", "quant", Level.CROSS,
        A2A3_V5, ("v3.quant.cross.qs_eq1_no_all_int8",),
        lambda s: full(s) and full_intent(s) != "per_tensor", lambda s: s.rope_on, basis=Basis.SOURCE,
        routes=DECODE_ROUTE, enforced_by="ProcessQuant, CheckInputQKVTypeMatch",
        breaks=(Break("absent", drop("queryRope", "keyRope"), {"scenario": "full_decode_mla", "q_s": "1"},
                      ("FIA-PA-073",)),),
    ),
    Rule(
        "FIA-QU-563", "INT8 query, key and value take no antiquantScale and antiquantOffset", "quant",
        Level.EXISTENCE, ALL_A2A3, ("v3.quant.cross.antiquant_with_unquantised_kv",), full,
        lambda s: not s.given("antiquantScale") and not s.given("antiquantOffset"), basis=Basis.SOURCE,
        routes=OLDER_ROUTES, enforced_by="RunBigKernelTilingWithParams, ProcessQuant",
        breaks=tuple(Break("present", put(**{name: TensorSpec((2,), "FLOAT16")}),
                           {"scenario": ("full_per_tensor", "full_decode_mla")}, ("FIA-QU-485",))
                     for name in ("antiquantScale", "antiquantOffset")),
    ),
    Rule(
        "FIA-QU-564", "in packed layouts only TND takes quantised key and value, from an NZ cache and with BFLOAT16",
        "quant", Level.CROSS, SRC_A2A3, ("v3.quant.cross.tnd_no_antiquant",),
        lambda s: s.quant_kind == "antiquant" and s.packed and not s.given("queryRope"),
        lambda s: (s.layout_name == "TND" and s.cache_layout == "NZ" and s.q_dtype == "BFLOAT16"
                   and not s.single_token),
        basis=Basis.SOURCE, routes=OLDER_ROUTES, enforced_by="CheckInputShapeWhenLayoutIsTND, CheckInputLayout",
        note="the V3 document refuses it whole",
        breaks=(Break("value", as_packed, {
            "scenario": "antiquant", "q_s": "1", "layout": "BSND", "storage": "contiguous",
            "mask": "none", "pse": "none", "lse": "off", "left_padding": "none", "prefix": "none",
            "post_quant": "none"}, ("FIA-QU-161",)),),
    ),
    Rule(
        "FIA-QU-565", "INT8 Decode MLA takes no keyAntiquantOffset and valueAntiquantOffset", "quant",
        Level.EXISTENCE, A2A3_V5, ("v5.quant.existence.mla_no_key_antiquant_offset",
                                        "v5.quant.existence.mla_no_value_antiquant_offset"),
        lambda s: full(s) and s.rope_on,
        lambda s: not s.given(OFFSETS[0]) and not s.given(OFFSETS[1]), basis=Basis.SOURCE, routes=DECODE_ROUTE,
        enforced_by="ProcessQuant",
        breaks=tuple(Break("present", put(**{name: TensorSpec((1,), "FLOAT32")}), _MLA) for name in OFFSETS),
    ),
    Rule(
        "FIA-QU-566", "INT8 Decode MLA takes BSH, BSND, their NBSD forms, TND and TND_NTD", "quant", Level.CROSS,
        A2A3_V5, ("v5.common.single.layouts_full_quant_mla_int8",), lambda s: full(s) and s.rope_on,
        lambda s: s.layout_name in MLA_LAYOUTS, basis=Basis.SOURCE, routes=DECODE_ROUTE,
        enforced_by="CheckInputLayoutMla, ProcessQuant",
        breaks=(Break("value", relayout("BSND_BNSD"), {**_MLA, "layout": "BSND"}, ("FIA-CO-023",)),),
    ),
)

RULES = (*_FULL_RULES, *prefill_scales.RULES, *decode_scales.RULES)
