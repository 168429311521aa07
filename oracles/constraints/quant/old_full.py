"""A2 and A3: INT8 query, key and value, and scales where they do not belong (V3 document lines 33, 69-73, 82, 352)."""

from __future__ import annotations

from fiafuzz.model.dtypes import FLOAT_QUERY
from fiafuzz.model.scene import Scene

from ..changes import cast, drop, put, reshape, together
from ..common.recipes import axis_everywhere, relayout
from ..rule import DOC_A2A3_V3, DOC_A2A3_V5, Basis, Boundary, Break, Effect, Level, Rule, never
from .facts import Needs
from .full_features import with_rope
from .no_quant import given_anew
from .tables import PER_TENSOR_LAYOUTS

INT8 = {"scenario": "full_per_tensor"}
INT8_OUT = {**INT8, "out_dtype": "INT8"}
HALF_OUT = {**INT8, "out_dtype": "FLOAT16"}
SCALES = ("deqScale1", "quantScale1", "deqScale2")
ANTIQUANT_TENSORS = ("antiquantScale", "antiquantOffset", "keyAntiquantScale", "keyAntiquantOffset",
                     "valueAntiquantScale",
                     "valueAntiquantOffset")


def full(s: Scene) -> bool:
    """Whether query, key and value are quantised alike (INT8 on these products)."""
    return s.quant_kind == "full"


def _needed(number: int, name: str) -> Rule:
    return Rule(
        f"FIA-QU-{number}", f"INT8 query, key and value need {name}", "quant", Level.EXISTENCE, DOC_A2A3_V3,
        ("v3.quant.existence.int8_in_int8_out", "v3.quant.existence.int8_in_fp16_out"),
        lambda s: full(s) and s.out_dtype in ("INT8", "FLOAT16"), lambda s: s.given(name),
        enforced_by="CheckQkvQuantParams4FullQuant",
        breaks=(Break("absent", drop(name), INT8),),
    )


def _foreign(number: int, name: str) -> Rule:
    return Rule(
        f"FIA-QU-{number}", f"INT8 inputs with FLOAT16 output: {name} is null", "quant", Level.EXISTENCE, DOC_A2A3_V3,
        ("v3.quant.existence.int8_in_fp16_out_forbidden",), lambda s: full(s) and s.out_dtype == "FLOAT16",
        lambda s: not s.given(name),
        enforced_by="RunBigKernelTilingWithParams", breaks=(Break("present", given_anew(name), HALF_OUT,
                                                                  ("FIA-PQ-021",)),),
    )


def _scale_dtype(number: int, name: str, dtypes: tuple[str, ...], *cites: str) -> Rule:
    return Rule(
        f"FIA-QU-{number}", f"{name} is {' or '.join(dtypes)}", "quant", Level.SINGLE, DOC_A2A3_V3 | DOC_A2A3_V5, cites,
        lambda s: full(s) and s.given(name), lambda s: s.dtype(name) in dtypes, basis=Basis.DOCUMENTED,
        limit="/".join(dtypes),
        note="the older prefill route does not look", enforced_by="nothing",
        breaks=(Break("dtype", cast("FLOAT16", name), INT8),),
    )


_ONE_TOKEN: Needs = {**INT8, "mask": "none", "pse": "none", "lse": "off", "q_lengths": "absent", "left_padding": "none",
                    "layout": ("BSH", "BSND", "BNSD")}

FULL_RULES = (
    _needed(401, "deqScale1"), _needed(402, "quantScale1"), _needed(403, "deqScale2"),
    _foreign(404, "quantScale2"), _foreign(405, "quantOffset2"),
    _scale_dtype(406, "deqScale1", ("UINT64", "FLOAT32"), "v3.quant.single.deq_scale1_table",
                 "v5.interface.single.deq_scale_dtypes"),
    _scale_dtype(407, "quantScale1", ("FLOAT32",), "v3.quant.single.quant_scale1_table",
                 "v5.interface.single.quant_scale1_dtype"),
    _scale_dtype(408, "deqScale2", ("UINT64", "FLOAT32"), "v3.quant.single.deq_scale2_table",
                 "v5.interface.single.deq_scale_dtypes"),
    Rule(
        "FIA-QU-409", "deqScale1, quantScale1 and deqScale2 have one element", "quant", Level.SINGLE, DOC_A2A3_V3,
        ("v3.quant.single.deq_scales_per_tensor_shape", "v3.quant.single.deq_scale1_table",
         "v3.quant.single.quant_scale1_table",
         "v3.quant.single.deq_scale2_table"),
        full, lambda s: all(t is None or t.numel == 1 for t in map(s.tensor, SCALES)), limit="1 element",
        enforced_by="RunBigKernelTilingWithParams",
        breaks=tuple(Break("above", reshape(name, (2,)), INT8) for name in SCALES),
        boundaries=(Boundary(reshape("deqScale1", (1, 1)), reshape("deqScale1", (2,)), INT8, limit="1 element"),),
    ),
    Rule(
        "FIA-QU-411", "INT8 query, key and value work in BSH, BNSD, BSND and BNSD_BSND", "quant", Level.CROSS,
        DOC_A2A3_V3,
        ("v3.quant.cross.int8_layouts",),
        lambda s: full(s) and s.layout is not None and not s.packed, lambda s: s.layout_name in PER_TENSOR_LAYOUTS,
        limit="BSH, BNSD, BSND, BNSD_BSND", note="for the packed layouts see the room common",
        enforced_by="ProcessQuant",
        breaks=(Break("value", relayout("BSND_BNSD"), {**INT8, "layout": "BSND", "head_size": ("64", "128"),
                                                       "pse": "none", "left_padding": "none"},
                      ("FIA-IF-052",)),),
    ),
    Rule(
        "FIA-QU-412", "INT8 query, key and value need more than one query token", "quant", Level.CROSS, DOC_A2A3_V3,
        ("v3.quant.cross.qs_eq1_no_all_int8",), full, lambda s: not s.single_token, limit="Q_S >= 2",
        enforced_by="ProcessQuant, CheckInputQKVTypeMatch",
        breaks=(Break("below", axis_everywhere("S", 1, "query", "attentionOut"),
                      _ONE_TOKEN),),
        boundaries=(Boundary(axis_everywhere("S", 2, "query", "attentionOut"),
                             axis_everywhere("S", 1, "query", "attentionOut"),
                             _ONE_TOKEN,
                             limit="2"),),
    ),
    Rule(
        "FIA-QU-413", "with rope tensors query, key and value are not quantised", "quant", Level.CROSS, DOC_A2A3_V3,
        ("v3.rope.cross.dtype", "v3.quant.cross.mla512_a2_no_full_quant", "v3.quant.cross.mla128_a2_no_full_quant",
         "v3.quant.cross.tnd512_no_full_quant"),
        lambda s: full(s) and s.rope_on, never, enforced_by="CheckFeatureAntiQuant",
        breaks=(Break("present", together(with_rope, put(actualSeqLengths=None)), {
            **INT8, "head_size": "128", "pse": "none", "left_padding": "none", "post_quant": "none"},
                      ("FIA-CO-109",)),),
    ),
)

STRAY_RULES = (
    Rule(
        "FIA-QU-414", "deqScale1, quantScale1 and deqScale2 are null when nothing is quantised", "quant",
        Level.EXISTENCE, DOC_A2A3_V3,
        ("v3.quant.existence.fp_in_fp_out_stray_scales",),
        lambda s: s.quant_kind == "none" and s.out_dtype in FLOAT_QUERY and any(s.given(n) for n in SCALES), never,
        effect=Effect.UNSPECIFIED,
        basis=Basis.SOURCE,
        enforced_by="the decode route alone",
        breaks=tuple(Break("present", given_anew(n), {"scenario": "gqa", "post_quant": "none"}) for n in SCALES),
    ),
    Rule(
        "FIA-QU-416", "with a floating query and INT8 output deqScale1, quantScale1 and deqScale2 are null", "quant",
        Level.EXISTENCE, DOC_A2A3_V3, ("v3.post_quant.existence.fp_in_int8_out_forbidden",),
        lambda s: s.q_dtype in FLOAT_QUERY and s.out_dtype == "INT8" and any(s.given(n) for n in SCALES), never,
        basis=Basis.DOCUMENTED, note="the newer route does not look", enforced_by="the prefill route, FLOAT16 alone",
        breaks=tuple(Break("present", given_anew(n), {"scenario": "gqa", "out_dtype": "INT8"}) for n in SCALES),
    ),
    Rule(
        "FIA-QU-415", "antiquant tensors are null with one query token and unquantised key", "quant", Level.EXISTENCE,
        DOC_A2A3_V3,
        ("v3.quant.cross.antiquant_with_unquantised_kv",),
        lambda s: s.quant_kind == "none" and s.single_token and any(s.given(n) for n in ANTIQUANT_TENSORS), never,
        basis=Basis.SOURCE,
        enforced_by="CheckAntiQuantParam",
        breaks=tuple(Break("present", given_anew(n), {"scenario": "gqa", "q_s": "1"}) for n in ANTIQUANT_TENSORS),
    ),
)
RULES = (*FULL_RULES, *STRAY_RULES)
