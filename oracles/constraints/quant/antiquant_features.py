"""What antiquant goes together with: layouts, query lengths, tensor lists, rope (V5 document lines 323-334, 502)."""

from __future__ import annotations

from collections.abc import Mapping

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import cast, head_size, together, with_shape
from ..common.recipes import as_list, axis_everywhere, relayout
from ..documents import V5_LINE
from ..rule import ALL_950, DOC_950, DOC_A2A3_V3, SRC_950, Basis, Boundary, Break, Change, Level, Rule
from .facts import antiquant, int8_prefill, q_s_over_1
from .tables import ANTIQUANT_LAYOUTS

V5_AND_V3 = V5_LINE | DOC_A2A3_V3
QUERY_S = "CheckFeatureQuerySForAntiquant"
LAYOUT = "CheckFeatureLayoutForAntiquant"
PREFILL_INT8: dict[str, str | tuple[str, ...]] = {
    "scenario": "antiquant", "kv_dtype": "INT8", "q_s": "2-16", "q_dtype": "BFLOAT16", "storage": "contiguous",
    "left_padding": "none", "post_quant": "none",
}


def _rows(q_s: int) -> Change:
    """Another query length, for calls without tensors that depend on it."""
    return axis_everywhere("S", q_s, "query", "attentionOut")


def as_tensor_head(s: Scene) -> dict[str, object] | None:
    """Per-channel scales exchanged for the one-per-head scales of mode 2."""
    if s.antiquant_kind not in ("per_tensor", "per_channel"):
        return None
    values: dict[str, object] = {"keyAntiquantMode": 2, "valueAntiquantMode": 2}
    for name in ("keyAntiquantScale", "valueAntiquantScale", "keyAntiquantOffset", "valueAntiquantOffset"):
        spec = s.tensor(name)
        if spec is not None:
            values[name] = TensorSpec((s.KV_N,), spec.dtype)
    return values


def as_packed(s: Scene) -> dict[str, object] | None:
    """A BSND call as TND, all batches of full length."""
    query, key, value, out, b, rows, kv_s = (
        s.query, s.tensor("key"), s.tensor("value"), s.out, s.B, s.Q_S, s.KV_S)
    if query is None or key is None or value is None or out is None or s.layout_name != "BSND":
        return None
    if b is None or kv_s is None or rows is None or b > 256:
        return None
    values: dict[str, object] = {
        "inputLayout": "TND", "actualSeqLengths": tuple(rows * i for i in range(1, b + 1)),
        "actualSeqLengthsKv": tuple(kv_s * i for i in range(1, b + 1)),
    }
    for name, spec in (("query", query), ("key", key), ("value", value), ("attentionOut", out)):
        packed = with_shape(spec, (spec.shape[0] * spec.shape[1], *spec.shape[2:]))
        values[name] = (packed,) if name in ("key", "value") else packed
    return values


_SMALL: dict[str, str | tuple[str, ...]] = {"mask_shape": ("none", "2048/2", "2048/3", "2048/4"), "pse": "none",
                                            "lse": "off", "left_padding": "none", "prefix": "none",
                                            "post_quant": "none"}

LAYOUT_RULES = (
    Rule(
        "FIA-QU-160", "antiquant works in BSH, BNSD, BSND, BNSD_BSND and TND", "quant", Level.CROSS, V5_LINE,
        ("v5.quant.cross.antiquant_layout", "v5.common.single.layouts_antiquant",
         "v5.common.cross.transposed_no_antiquant"),
        lambda s: s.quant_kind == "antiquant" and s.layout is not None, lambda s: s.layout_name in ANTIQUANT_LAYOUTS,
        enforced_by=LAYOUT, limit="BSH, BNSD, BSND, BNSD_BSND, TND",
        breaks=(Break("value", relayout("BSND_BNSD"), {"scenario": "antiquant", "layout": "BSND", "q_s": "2-16",
                                                       "head_size": ("64", "128"), **_SMALL}),
                Break("value", relayout("BSH_BNSD"), {"scenario": "antiquant", "layout": "BSH",
                                                      "head_size": ("64", "128"), **_SMALL})),
    ),
    Rule(
        "FIA-QU-161", "INT8 key and value do not work in TND", "quant", Level.CROSS, V5_LINE,
        ("v5.quant.cross.antiquant_int8_no_tnd", "v5.common.single.layouts_antiquant"),
        lambda s: s.quant_kind == "antiquant" and s.k_dtype == "INT8", lambda s: s.layout_name != "TND",
        enforced_by=LAYOUT,
        breaks=(Break("value", as_packed, {"scenario": "antiquant", "kv_dtype": "INT8", "q_s": "1", "layout": "BSND",
                                           "storage": "contiguous", **_SMALL}, ("FIA-QU-564",)),),
    ),
    Rule(
        "FIA-QU-162", "BNSD_BSND needs more than one query token", "quant", Level.CROSS, V5_LINE,
        ("v5.quant.cross.antiquant_qs1_no_bnsd_bsnd", "v5.common.single.layouts_antiquant"),
        lambda s: s.quant_kind == "antiquant" and s.single_token, lambda s: s.layout_name != "BNSD_BSND",
        enforced_by=LAYOUT,
        breaks=(Break("value", relayout("BNSD_BSND"),
                      {"scenario": "antiquant", "layout": "BNSD", "q_s": "1", "head_size": ("64", "128"), **_SMALL}),),
    ),
)

QUERY_LENGTH_RULES = (
    Rule(
        "FIA-QU-163", "INT8 key and value with several query tokens: no modes 2 to 5", "quant", Level.CROSS, ALL_950,
        ("v5.quant.cross.antiquant_int8_qs_gt1_modes",),
        lambda s: s.quant_kind == "antiquant" and s.k_dtype == "INT8" and q_s_over_1(s),
        lambda s: s.attrs.keyAntiquantMode not in (2, 3, 4, 5), enforced_by=QUERY_S, limit="0, 1",
        breaks=(Break("value", as_tensor_head, {**PREFILL_INT8, "prefix": "none"}),),
    ),
    Rule(
        "FIA-QU-164", "INT8 key and value with several query tokens: query and output are BFLOAT16", "quant",
        Level.CROSS, ALL_950,
        ("v5.quant.cross.antiquant_int8_qs_gt1_bf16",), int8_prefill,
        lambda s: s.q_dtype == "BFLOAT16" and s.out_dtype == "BFLOAT16", enforced_by=QUERY_S,
        breaks=(Break("dtype", cast("FLOAT16", "query", "attentionOut"),
                      {**PREFILL_INT8, "antiquant": "per_token", "pse": "none", "prefix": "none"}),),
    ),
    Rule(
        "FIA-QU-165", "INT8 key and value: at most 16 query tokens", "quant", Level.CROSS, V5_AND_V3,
        ("v5.quant.cross.antiquant_int8_qs_max_16", "v3.quant.cross.qs_gt1_a2_sep_q_s",
         "v5.common.consistency.antiquant_int8_prefill_q_s"), int8_prefill,
        lambda s: s.Q_S is not None and s.Q_S <= 16, enforced_by=QUERY_S, limit="Q_S <= 16",
        breaks=(Break("above", _rows(17), {**PREFILL_INT8, **_SMALL}),
                Break("above", _rows(64), {**PREFILL_INT8, **_SMALL})),
        boundaries=(Boundary(_rows(16), _rows(17), {**PREFILL_INT8, **_SMALL}, limit="16"),),
    ),
    Rule(
        "FIA-QU-166", "INT8 key and value with several query tokens: no tensor list", "quant", Level.CROSS, V5_AND_V3,
        ("v5.quant.cross.antiquant_int8_qs_gt1_no_tensorlist", "v3.quant.cross.qs_gt1_a2_sep_no_tensorlist",
         "v5.common.cross.antiquant_int8_prefill_no_tensor_list"), int8_prefill,
        lambda s: s.storage != "tensor_list", enforced_by=QUERY_S,
        breaks=(Break("present", as_list, {**PREFILL_INT8, "prefix": "none", "layout": ("BSH", "BSND", "BNSD")}),),
    ),
    Rule(
        "FIA-QU-167", "INT4 key and value take one query token", "quant", Level.CROSS, ALL_950,
        ("v5.quant.cross.antiquant_int4_qs1_only",),
        lambda s: s.quant_kind == "antiquant" and s.k_dtype == "INT4", lambda s: not q_s_over_1(s), enforced_by=QUERY_S,
        limit="Q_S <= 1",
        breaks=(Break("above", _rows(2), {"scenario": "antiquant", "kv_dtype": "INT4", "q_s": "1", **_SMALL}),
                Break("dtype", cast("INT4", "key", "value"), {
                    **PREFILL_INT8, "prefix": "none", "antiquant": ("per_channel", "per_token"),
                    "mask": ("none", "BOOL"),
                    "head_size": ("64", "128", "192", "512")})),
        boundaries=(Boundary(_rows(1), _rows(2),
                             {"scenario": "antiquant", "kv_dtype": "INT4", "q_s": "1", **_SMALL}, limit="1"),),
    ),
)


def _combined(s: Scene) -> Mapping[str, object] | None:
    """Value and output with a head size of 128 beside a query and key of 192."""
    return together(head_size(128, "value"), head_size(128, "attentionOut"))(s) if s.Q_D == 192 else None


_COMBINED_NEEDS: dict[str, str | tuple[str, ...]] = {"scenario": "antiquant", "head_size": "192", "prefix": "none",
                                                     "post_quant": "none", "pse": "none"}


def _not_combined(s: Scene) -> bool:
    return (s.Q_D, s.V_D) != (192, 128)


ROPE_RULES = (
    Rule(
        "FIA-QU-168", "antiquant does not work with head sizes 192 and 128", "quant", Level.CROSS, SRC_950,
        ("v5.quant.cross.antiquant_no_combined_rope", "v5.common.cross.prefill_mla_no_antiquant"), antiquant,
        _not_combined,
        enforced_by="CheckFeatureRopeForAntiquant", note="the form of Prefill MLA without rope tensors",
        breaks=(Break("pair", _combined, _COMBINED_NEEDS),),
    ),
    Rule(
        "FIA-QU-169", "Prefill MLA with head sizes 192 and 128 has no antiquant", "quant", Level.CROSS, DOC_950,
        ("v5.common.cross.prefill_mla_no_antiquant", "v5.quant.cross.antiquant_no_combined_rope"), antiquant,
        _not_combined,
        basis=Basis.DOCUMENTED, note="the source of that release had no check",
        enforced_by="nothing", breaks=(Break("pair", _combined, _COMBINED_NEEDS),),
    ),
)

RULES = (*LAYOUT_RULES, *QUERY_LENGTH_RULES, *ROPE_RULES)
