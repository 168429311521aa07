"""Post-quantisation in the V5 document and the operator's source of Ascend 950."""

from __future__ import annotations

from typing import Optional

from msgspec.structs import replace

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import cast, drop, put, reshape, where
from ..rule import (
    ALL_950,
    DOC_950,
    DOC_A2A3_V3,
    DOC_A2A3_V5,
    SRC_A2A3,
    Basis,
    Boundary,
    Break,
    Change,
    Level,
    Rule,
    Words,
)

GROUP = "post_quant"
V5 = ALL_950 | DOC_A2A3_V5 | SRC_A2A3
ALL = V5 | DOC_A2A3_V3
SCALE, OFFSET = "quantScale2", "quantOffset2"
SCALE_DTYPES = frozenset({"FLOAT32", "BFLOAT16"})
OUT_DTYPES = frozenset({"INT8", "FLOAT8_E4M3FN", "HIFLOAT8"})
COUNTED = ("BSH", "BSND", "BNSD", "BNSD_BSND")
"""Layouts in which a per-channel scale is judged by its number of elements alone."""

_ROUTES: Words = {"scenario": ("gqa", "antiquant", "mla_decode", "mla_prefill_split", "mla_prefill_combined")}
ON: Words = {**_ROUTES, "post_quant": ("tensor", "channel", "tensor+offset", "channel+offset")}
OFFSETS: Words = {**_ROUTES, "post_quant": ("tensor+offset", "channel+offset")}
CHANNELS: Words = {**_ROUTES, "post_quant": ("channel", "channel+offset")}
_ALONE: Words = {**_ROUTES, "post_quant": ("tensor", "channel")}
_TENSOR: Words = {**_ROUTES, "post_quant": ("tensor", "tensor+offset")}


def active(s: Scene) -> bool:
    """Whether the output is post-quantised to a dtype that exists, by the unquantised or the quantised-cache route."""
    return s.out_dtype in OUT_DTYPES and s.quant_kind in ("none", "antiquant")


def scaled(s: Scene) -> bool:
    """Post-quantisation with a scale that has elements."""
    return active(s) and s.inputs.quantScale2 is not None and not s.inputs.quantScale2.empty


def _channels(s: Scene) -> Optional[int]:
    return None if s.V_D is None or s.Q_N <= 0 else s.Q_N * s.V_D


def _shape(s: Scene) -> tuple[int, ...]:
    return s.shape(SCALE) or ()


def _counted(s: Scene) -> bool:
    return s.layout_name in COUNTED


def _offset_on(s: Scene) -> bool:
    return scaled(s) and s.inputs.quantOffset2 is not None


def _same_form(s: Scene) -> bool:
    scale, offset = s.inputs.quantScale2, s.inputs.quantOffset2
    return scale is None or offset is None or (scale.rank == offset.rank and scale.numel == offset.numel)


def _scale(shape: tuple[int, ...]) -> Change:
    """Give the scale (and an offset, where there is one) another shape."""
    return lambda s: _reshaped(s, shape)


def _reshaped(s: Scene, shape: tuple[int, ...]) -> Optional[dict[str, object]]:
    scale, offset = s.inputs.quantScale2, s.inputs.quantOffset2
    if scale is None:
        return None
    values: dict[str, object] = {SCALE: TensorSpec(shape, scale.dtype)}
    if offset is not None:
        values[OFFSET] = TensorSpec(shape, offset.dtype)
    return values


def channel_form(form: str, extra: int = 0) -> Change:
    """A per-channel scale: flat (Q_N*V_D), pair (Q_N, V_D), swapped (V_D, Q_N) or long (1, Q_N, V_D)."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        if s.V_D is None or s.Q_N <= 0 or s.Q_N * s.V_D <= 2:
            return None
        shape = {"flat": (s.Q_N * s.V_D + extra,), "pair": (s.Q_N, s.V_D + extra), "swapped": (s.V_D, s.Q_N),
                 "long": (1, s.Q_N, s.V_D + extra)}[form]
        if form == "swapped" and s.V_D == s.Q_N:
            return None
        return _reshaped(s, shape)

    return change


def _offset_shape(s: Scene) -> Optional[dict[str, object]]:
    """The offset of a two-axis scale with its axes swapped: same rank and count, another shape."""
    scale, offset = s.inputs.quantScale2, s.inputs.quantOffset2
    if scale is None or offset is None or s.V_D is None or s.Q_N == s.V_D or s.Q_N * s.V_D <= 2:
        return None
    return {SCALE: TensorSpec((s.Q_N, s.V_D), scale.dtype), OFFSET: TensorSpec((s.V_D, s.Q_N), offset.dtype)}


def out_as(dtype: str) -> Change:
    """Make the output of that dtype, with one FLOAT32 scale."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        if s.out is None or s.out.dtype == dtype:
            return None
        return {"attentionOut": replace(s.out, dtype=dtype), SCALE: TensorSpec((1,), "FLOAT32"), OFFSET: None}

    return change


def _fp8_cache(s: Scene, pair: tuple[int, int]) -> bool:
    return active(s) and s.quant_kind == "antiquant" and s.k_dtype == "FLOAT8_E4M3FN" and s.antiquant_modes == pair


def _add_offset(shape: tuple[int, ...]) -> Change:
    """Give the scale an offset of that shape."""
    def change(s: Scene) -> Optional[dict[str, object]]:
        scale = s.inputs.quantScale2
        return None if scale is None else {OFFSET: TensorSpec(shape, scale.dtype)}

    return change


_AQ: Words = {"scenario": "antiquant", "sink": "off", "prefix": "none"}
_PLAIN_AQ: Words = {**_AQ, "post_quant": "none", "out_dtype": ("FLOAT16", "BFLOAT16")}
_FLAT: Words = {**ON, "layout": COUNTED}
_OTHER: Words = {**ON, "layout": ("TND", "NTD", "NTD_TND", "BSH_BNSD", "BSND_BNSD", "BSH_NBSD", "BSND_NBSD",
                                  "BNSD_NBSD")}
_ID = "v5.post_quant."
_V3 = "v3.post_quant."
_LAYOUT = "CheckFeatureLayout"

RULES: tuple[Rule, ...] = (
    Rule("FIA-PQ-001", "quantScale2 is FLOAT32 or BFLOAT16", GROUP, Level.SINGLE, ALL,
         (_ID + "single.scale2_dtype", "v5.interface.single.quant_scale2_dtypes", _V3 + "single.quant_scale2_table",
          _V3 + "single.scale2_modes"),
         lambda s: s.inputs.quantScale2 is not None and s.full_kind not in ("mxfp8", "gqa_fp8"),
         lambda s: s.dtype(SCALE) in SCALE_DTYPES, enforced_by="CheckSingleDtype", limit="FLOAT32, BFLOAT16",
         note="looked at also where it is not used",
         breaks=(Break("dtype", cast("FLOAT16", SCALE), _ALONE),
                 Break("dtype", cast("INT8", SCALE), _ALONE))),
    Rule("FIA-PQ-002", "quantOffset2 is FLOAT32 or BFLOAT16", GROUP, Level.SINGLE, ALL,
         (_ID + "single.offset2_dtype", "v5.interface.single.quant_scale2_dtypes", _V3 + "single.quant_offset2_table",
          _V3 + "single.scale2_modes"),
         lambda s: s.inputs.quantOffset2 is not None and s.full_kind not in ("mxfp8", "gqa_fp8"),
         lambda s: s.dtype(OFFSET) in SCALE_DTYPES, enforced_by="CheckSingleDtype", limit="FLOAT32, BFLOAT16",
         breaks=(Break("dtype", cast("FLOAT16", OFFSET), OFFSETS), Break("dtype", cast("INT8", OFFSET), OFFSETS))),
    Rule("FIA-PQ-003", "post-quantisation needs quantScale2", GROUP, Level.EXISTENCE, ALL,
         (_ID + "existence.scale2_required", _V3 + "existence.fp_in_int8_out"),
         lambda s: active(s) and (s.is_950 or s.rope_on or not s.packed),
         lambda s: s.inputs.quantScale2 is not None, enforced_by="CheckExistenceQuantScale2",
         note="the fast TND route of A2 and A3 does not look; V3 excludes TND from post-quantisation",
         breaks=(Break("absent", drop(SCALE), {**_ALONE, "layout": COUNTED}),
                 Break("absent", put(quantScale2=None, quantOffset2=None), {**OFFSETS, "layout": COUNTED}))),
    Rule("FIA-PQ-004", "quantScale2 is not empty", GROUP, Level.EXISTENCE, V5, (_ID + "existence.scale2_not_empty",),
         lambda s: active(s) and s.inputs.quantScale2 is not None, scaled, enforced_by="CheckExistenceQuantScale2",
         limit=">= 1 element", breaks=(Break("below", reshape(SCALE, (0,)), _ALONE),),
         boundaries=(Boundary(put(), reshape(SCALE, (0,)), {**_ALONE, "post_quant": "tensor"}, limit="1 element"),)),
    Rule("FIA-PQ-005", "a one-axis quantScale2 holds 1 number, or Q_N x V_D in the batch layouts", GROUP,
         Level.CONSISTENCY, V5,
         (_ID + "consistency.scale2_per_channel_1d", _ID + "consistency.scale2_per_tensor_shape"),
         lambda s: scaled(s) and len(_shape(s)) == 1 and _channels(s) is not None,
         lambda s: _shape(s) == (1,) or (_counted(s) and _shape(s) == (_channels(s),)), enforced_by=_LAYOUT,
         limit="1; Q_N x V_D in " + ", ".join(COUNTED),
         breaks=(Break("above", _scale((2,)), {**ON}), Break("above", channel_form("flat", 1), _FLAT),
                 Break("below", channel_form("flat", -1), _FLAT), Break("value", channel_form("flat"), _OTHER)),
         boundaries=(Boundary(_scale((1,)), _scale((2,)), ON, limit="1"),
                     Boundary(channel_form("flat"), channel_form("flat", 1), _FLAT, limit="Q_N x V_D"))),
    Rule("FIA-PQ-006", "a quantScale2 of several axes holds Q_N x V_D numbers in the batch layouts", GROUP,
         Level.CONSISTENCY, V5,
         (_ID + "consistency.scale2_per_channel_nd_bsh_family",),
         lambda s: scaled(s) and _counted(s) and len(_shape(s)) != 1 and _channels(s) is not None,
         lambda s: (s.inputs.quantScale2 is None or s.inputs.quantScale2.numel == _channels(s)) and len(_shape(s)) > 1,
         enforced_by=_LAYOUT, limit="Q_N x V_D",
         note="how the axes split them does not matter; a single number must have one axis",
         breaks=(Break("above", channel_form("pair", 1), _FLAT), Break("below", channel_form("pair", -1), _FLAT),
                 Break("rank", _scale((1, 1)), _FLAT), Break("rank", _scale(()), _FLAT)),
         boundaries=(Boundary(channel_form("long"), channel_form("long", 1), _FLAT, limit="Q_N x V_D"),)),
    Rule("FIA-PQ-007", "a quantScale2 of several axes is (Q_N, V_D) in the other layouts", GROUP, Level.CONSISTENCY, V5,
         (_ID + "consistency.scale2_per_channel_nd_other",),
         lambda s: scaled(s) and not _counted(s) and len(_shape(s)) != 1 and _channels(s) is not None,
         lambda s: _shape(s) == (s.Q_N, s.V_D), enforced_by=_LAYOUT, limit="(numHeads, V_D)",
         breaks=(Break("axis", channel_form("swapped"), _OTHER), Break("rank", channel_form("long"), _OTHER),
                 Break("axis", channel_form("pair", 1), _OTHER), Break("rank", _scale((1, 1)), _OTHER))),
    Rule("FIA-PQ-008", "quantOffset2 has the dtype of quantScale2", GROUP, Level.CONSISTENCY, ALL,
         (_ID + "consistency.offset2_dtype_equals_scale2", "v5.interface.single.quant_scale2_dtypes",
          _V3 + "consistency.offset2_matches_scale2_dtype"),
         lambda s: _offset_on(s) and s.dtype(OFFSET) in SCALE_DTYPES and s.dtype(SCALE) in SCALE_DTYPES,
         lambda s: s.dtype(OFFSET) == s.dtype(SCALE), enforced_by="CheckMultiParaQuantOffset2",
         breaks=(Break("dtype", where(lambda s: s.dtype(SCALE) == "FLOAT32", cast("BFLOAT16", OFFSET)), OFFSETS),)),
    Rule("FIA-PQ-009", "quantOffset2 has the rank and count of quantScale2", GROUP, Level.CONSISTENCY, ALL,
         (_ID + "consistency.offset2_shape_equals_scale2", "v5.interface.single.quant_scale2_dtypes",
          _V3 + "consistency.offset2_matches_scale2_shape", _V3 + "single.quant_offset2_table"),
         _offset_on, _same_form, enforced_by="CheckMultiParaQuantOffset2",
         breaks=(Break("rank", _add_offset((1, 1)), _TENSOR, entails=("FIA-PQ-031",)),
                 Break("above", _add_offset((2,)), _TENSOR, entails=("FIA-PQ-031",)),
                 Break("below", _add_offset((0,)), _TENSOR))),
    Rule("FIA-PQ-010", "quantOffset2 has the shape of quantScale2", GROUP, Level.CONSISTENCY,
         DOC_950 | DOC_A2A3_V5 | DOC_A2A3_V3,
         (_ID + "consistency.offset2_shape_equals_scale2", _V3 + "consistency.offset2_matches_scale2_shape"),
         lambda s: _offset_on(s) and _same_form(s), lambda s: s.shape(OFFSET) == s.shape(SCALE), basis=Basis.DOCUMENTED,
         note="the operator compares rank and count",
         breaks=(Break("axis", _offset_shape, {**OFFSETS, "layout": COUNTED, "lse": "off", "left_padding": "none"}),)),
    Rule("FIA-PQ-011", "quantScale2 is FLOAT32 unless query is BFLOAT16", GROUP, Level.CROSS, ALL,
         (_ID + "cross.scale2_fp32_unless_bf16_query", _V3 + "cross.scale2_dtype_by_query"),
         lambda s: scaled(s) and s.q_dtype != "BFLOAT16" and s.dtype(SCALE) in SCALE_DTYPES,
         lambda s: s.dtype(SCALE) == "FLOAT32", enforced_by="CheckFeatureQueryDType", limit="FLOAT32",
         breaks=(Break("dtype", cast("BFLOAT16", SCALE), {"post_quant": ("tensor", "channel"),
                                                          "q_dtype": "FLOAT16"}),)),
    Rule("FIA-PQ-012", "post-quantised output of a quantised cache has the cache's dtype", GROUP, Level.CROSS, ALL_950,
         (_ID + "cross.antiquant_out_equals_kv",),
         lambda s: active(s) and s.quant_kind == "antiquant" and s.k_dtype is not None,
         lambda s: s.out_dtype == s.k_dtype, enforced_by="CheckFeatureOutputEqual",
         note="so INT4 and FLOAT4_E2M1 caches take none",
         breaks=(Break("dtype", out_as("INT8"), {**_PLAIN_AQ, "kv_dtype": ("HIFLOAT8", "INT4", "FLOAT4_E2M1")}),
                 Break("dtype", out_as("HIFLOAT8"), {**_PLAIN_AQ, "kv_dtype": "INT8", "q_s": "1",
                                                  "antiquant": ("per_channel", "per_token", "token_head")}))),
    Rule("FIA-PQ-013", "an FP8 cache with a scale per token takes no post-quantisation", GROUP, Level.CROSS, ALL_950,
         (_ID + "cross.antiquant_fp8_per_token_none",), lambda s: s.out_dtype == s.k_dtype and _fp8_cache(s, (1, 1)),
         lambda s: False, enforced_by="CheckAntiquantNotSupport",
         breaks=(Break("dtype", out_as("FLOAT8_E4M3FN"), {**_PLAIN_AQ, "antiquant": "per_token",
                                                        "kv_dtype": "FLOAT8_E4M3FN"}),)),
    Rule("FIA-PQ-014", "an FP8 cache with paged scales takes no post-quantisation", GROUP, Level.CROSS, ALL_950,
         (_ID + "cross.antiquant_fp8_paged_none",), lambda s: s.out_dtype == s.k_dtype and _fp8_cache(s, (4, 4)),
         lambda s: False, enforced_by="CheckAntiquantNotSupport",
         breaks=(Break("dtype", out_as("FLOAT8_E4M3FN"), {**_PLAIN_AQ, "antiquant": "token_paged",
                                                        "kv_dtype": "FLOAT8_E4M3FN"}),)),
    Rule("FIA-PQ-015", "MLA with rope takes no post-quantisation", GROUP, Level.CROSS, DOC_A2A3_V5 | SRC_A2A3,
         (_ID + "cross.mla_old_products", "v5.common.cross.a2a3_mla_no_post_quant"),
         lambda s: active(s) and s.rope_on, lambda s: False, enforced_by="CheckFeatureSupport",
         breaks=(Break("dtype", out_as("INT8"), {"scenario": ("mla_decode", "mla_prefill_split"), "post_quant": "none",
                                              "sink": "off"}, entails=("FIA-CO-029",)),)),
)

