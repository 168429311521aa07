"""Antiquant scales and offsets: which must be given, and their dtypes. Their shapes are in antiquant_shapes.py."""

from __future__ import annotations

from fiafuzz.model.scene import Scene

from ..changes import cast, drop, together
from ..rule import ALL_950, DOC_950, DOC_A2A3_V3, Basis, Break, Level, Rule
from .antiquant_modes import MIXED_KEY_DOCUMENTED, MIXED_KEY_FORM, as_mixed
from .facts import antiquant, both_scales, float_kv, old_paged_prefill
from .tables import ANTIQUANT_MODES, AntiquantMode

KEY, VALUE = "keyAntiquantScale", "valueAntiquantScale"
SCALE_DTYPES = "v5.interface.single.kv_antiquant_scale_dtypes"
OFFSET_DTYPES = "v5.interface.single.kv_antiquant_offset_dtypes"
BY_KIND = {row.kind: row for row in ANTIQUANT_MODES}
MIXABLE: dict[str, str | tuple[str, ...]] = {
    "antiquant": "per_channel", "kv_dtype": ("INT8", "INT4"), "q_dtype": "FLOAT16", "out_dtype": "FLOAT16", "q_s": "1",
    "prefix": "none",
}
"""Per-channel calls that stay legal when they are turned into mode pair (0, 1)."""


# ---- dtypes of scales --------------------------------------------------------------------------


def wanted(row: AntiquantMode, s: Scene) -> str | None:
    """The dtype of the scales of a mode in a scene; None where key and value scale differ."""
    return s.q_dtype if row.scale == "query" else row.scale


def scale_dtypes_legal(s: Scene) -> bool:
    """Whether both scales have a dtype that their mode takes; True for an unknown mode."""
    row = BY_KIND.get(s.antiquant_kind or "")
    if row is None:
        return True
    if row.kind == "mixed":
        return s.dtype(KEY) in (s.q_dtype, "FLOAT32") and s.dtype(VALUE) == "FLOAT32"
    return s.dtype(KEY) == wanted(row, s) == s.dtype(VALUE)


def _scale_dtype_rule(row: AntiquantMode) -> Rule:
    wrong = "FLOAT16" if row.scale == "FLOAT32" else "FLOAT32"
    words = "have the dtype of query" if row.scale == "query" else f"are {row.scale}"
    return Rule(
        f"FIA-QU-{110 + row.number}", f"{row.title}: both scales {words}", "quant", Level.SINGLE, ALL_950,
        (f"v5.quant.single.antiquant_kv_scale_dtype_{'per_channel' if row.pair == (0, 0) else row.cite}",
         SCALE_DTYPES),
        lambda s: s.antiquant_kind == row.kind and both_scales(s),
        lambda s: s.dtype(KEY) == wanted(row, s) == s.dtype(VALUE),
        basis=Basis.BOTH if row.documented else Basis.SOURCE, enforced_by="CheckScaleTypeForAntiquant",
        breaks=(Break("dtype", cast(wrong, KEY), {"antiquant": row.kind}),
                Break("dtype", cast(wrong, VALUE), {"antiquant": row.kind}),
                Break("dtype", cast("INT8", KEY, VALUE), {"antiquant": row.kind})),
    )


MIXED = "key per-channel with value per-token"
MIXED_RULES = (
    Rule(
        "FIA-QU-118", f"{MIXED}: the key scale is FLOAT32 or has the dtype of query", "quant", Level.SINGLE, ALL_950,
        ("v5.quant.single.antiquant_key_scale_dtype_key_channel_value_token", SCALE_DTYPES),
        lambda s: s.antiquant_kind == "mixed" and both_scales(s), lambda s: s.dtype(KEY) in (s.q_dtype, "FLOAT32"),
        enforced_by="CheckScaleTypeForAntiquant", note="what document and source agree on",
        breaks=(Break("dtype", together(as_mixed, cast("BFLOAT16", KEY)), MIXABLE,
                      (MIXED_KEY_DOCUMENTED, MIXED_KEY_FORM)),
                Break("dtype", together(as_mixed, cast("INT8", KEY)), MIXABLE, (MIXED_KEY_DOCUMENTED, MIXED_KEY_FORM))),
    ),
    Rule(
        "FIA-QU-120", f"{MIXED}: the key scale has the dtype of query", "quant", Level.SINGLE, ALL_950,
        ("v5.quant.single.antiquant_key_scale_dtype_key_channel_value_token",),
        lambda s: s.antiquant_kind == "mixed" and both_scales(s) and s.dtype(KEY) == "FLOAT32",
        lambda s: s.q_dtype == "FLOAT32",
        basis=Basis.SOURCE, enforced_by="CheckScaleTypeForAntiquant", note="all documents say FLOAT32",
        breaks=(Break("dtype", together(as_mixed, cast("FLOAT32", KEY)), {**MIXABLE, "antiquant_offset": "symmetric"},
                      (MIXED_KEY_FORM,)),
                ),
    ),
    Rule(
        MIXED_KEY_DOCUMENTED, f"{MIXED}: the key scale is FLOAT32", "quant", Level.SINGLE, DOC_950,
        ("v5.quant.single.antiquant_key_scale_dtype_key_channel_value_token",),
        lambda s: s.antiquant_kind == "mixed" and both_scales(s), lambda s: s.dtype(KEY) == "FLOAT32",
        basis=Basis.DOCUMENTED, note="the source wants the dtype of query",
        enforced_by="nothing", breaks=(Break("dtype", as_mixed, MIXABLE, (MIXED_KEY_FORM,)),),
    ),
    Rule(
        "FIA-QU-122", f"{MIXED}: the value scale is FLOAT32", "quant", Level.SINGLE, ALL_950 | DOC_A2A3_V3,
        ("v5.quant.single.antiquant_value_scale_dtype_key_channel_value_token", SCALE_DTYPES,
         "v3.quant.consistency.qs_eq1_a2_k_channel_v_token_value_scale_dtype"),
        lambda s: s.antiquant_kind == "mixed" and both_scales(s), lambda s: s.dtype(VALUE) == "FLOAT32",
        enforced_by="CheckScaleTypeForAntiquant",
        breaks=(Break("dtype", lambda s: _mixed_value_cast(s, "FLOAT16"), MIXABLE,
                      (MIXED_KEY_DOCUMENTED, MIXED_KEY_FORM)),),
    ),
)


def _mixed_value_cast(s: Scene, dtype: str) -> dict[str, object] | None:
    found = as_mixed(s)
    if found is None:
        return None
    changed = cast(dtype, VALUE)(Scene(s.case.replace(**found)))
    return None if changed is None else {**found, **changed}


SCALE_DTYPE_RULES = (*(_scale_dtype_rule(row) for row in ANTIQUANT_MODES if row.scale is not None), *MIXED_RULES)


# ---- what is given -----------------------------------------------------------------------------


V3_OFFSETS = ("v3.quant.existence.qs_gt1_a2_sep_offsets", "v3.quant.existence.qs_eq1_sep_offsets")


def _takes_offsets(s: Scene) -> bool:
    return s.quant_kind == "antiquant" and not float_kv(s.k_dtype) and not old_paged_prefill(s)


EXISTENCE_RULES = (
    Rule(
        "FIA-QU-131", "antiquant needs keyAntiquantScale", "quant", Level.EXISTENCE, ALL_950,
        ("v5.quant.existence.antiquant_key_scale_required",), antiquant,
        lambda s: s.inputs.keyAntiquantScale is not None,
        enforced_by="CheckScaleExistenceForAntiquant", breaks=(Break("absent", drop(KEY), {"scenario": "antiquant"}),),
    ),
    Rule(
        "FIA-QU-132", "antiquant needs valueAntiquantScale", "quant", Level.EXISTENCE, ALL_950,
        ("v5.quant.existence.antiquant_value_scale_required",), antiquant,
        lambda s: s.inputs.valueAntiquantScale is not None,
        enforced_by="CheckScaleExistenceForAntiquant", breaks=(Break("absent", drop(VALUE), {"scenario": "antiquant"}),
                                                               ),
    ),
    Rule(
        "FIA-QU-133", "a key offset comes with a value offset", "quant", Level.EXISTENCE, ALL_950 | DOC_A2A3_V3,
        ("v5.quant.existence.antiquant_key_offset_needs_value_offset", *V3_OFFSETS),
        lambda s: _takes_offsets(s) and s.inputs.keyAntiquantOffset is not None,
        lambda s: s.inputs.valueAntiquantOffset is not None,
        enforced_by="CheckOffsetExistenceForAntiquant",
        breaks=(Break("absent", drop("valueAntiquantOffset"), {"antiquant_offset": "offset"}),
                Break("present", lambda s: like(s, "keyAntiquantOffset", KEY),
                      {"antiquant_offset": "symmetric", "kv_dtype": ("INT8", "INT4")})),
    ),
    Rule(
        "FIA-QU-134", "a value offset comes with a key offset", "quant", Level.EXISTENCE, ALL_950 | DOC_A2A3_V3,
        ("v5.quant.existence.antiquant_value_offset_needs_key_offset", *V3_OFFSETS),
        lambda s: _takes_offsets(s) and s.inputs.valueAntiquantOffset is not None,
        lambda s: s.inputs.keyAntiquantOffset is not None,
        enforced_by="CheckOffsetExistenceForAntiquant",
        breaks=(Break("absent", drop("keyAntiquantOffset"), {"antiquant_offset": "offset"}),
                Break("present", lambda s: like(s, "valueAntiquantOffset", VALUE),
                      {"antiquant_offset": "symmetric", "kv_dtype": ("INT8", "INT4")})),
    ),
    Rule(
        "FIA-QU-135", "FP8, HIFLOAT8 and FP4 key and value take no offsets", "quant", Level.EXISTENCE, ALL_950,
        ("v5.quant.existence.antiquant_no_key_offset_for_float_kv",
         "v5.quant.existence.antiquant_no_value_offset_for_float_kv"),
        lambda s: s.quant_kind == "antiquant" and float_kv(s.k_dtype),
        lambda s: s.inputs.keyAntiquantOffset is None and s.inputs.valueAntiquantOffset is None,
        enforced_by="CheckOffsetExistenceForAntiquant",
        breaks=(Break("present", lambda s: like(s, "keyAntiquantOffset", KEY),
                      {"kv_dtype": ("FLOAT8_E4M3FN", "HIFLOAT8", "FLOAT4_E2M1")}),
                Break("present", lambda s: like(s, "valueAntiquantOffset", VALUE),
                      {"kv_dtype": ("FLOAT8_E4M3FN", "HIFLOAT8", "FLOAT4_E2M1")})),
    ),
)


def like(s: Scene, name: str, model: str) -> dict[str, object] | None:
    """A tensor with the shape and dtype of another; no place outside antiquant."""
    spec = s.tensor(model)
    if spec is None or s.quant_kind != "antiquant":
        return None
    return {name: type(spec)(spec.shape, spec.dtype)}


# ---- dtypes of offsets -------------------------------------------------------------------------


def _offset_dtype_rule(number: int, offset: str, scale: str, cite: str) -> Rule:
    return Rule(
        f"FIA-QU-{number}", f"{offset} has the dtype of {scale}", "quant", Level.CONSISTENCY, ALL_950 | DOC_A2A3_V3,
        (cite, "v5.quant.single.antiquant_offset_dtypes", OFFSET_DTYPES,
         f"v3.quant.single.{offset[:-15]}_antiquant_offset_table"),
        lambda s: _takes_offsets(s) and s.given(offset) and both_scales(s) and scale_dtypes_legal(s),
        lambda s: s.dtype(offset) == s.dtype(scale), enforced_by="CheckOffsetTypeForAntiquant",
        breaks=(Break("dtype", cast("INT8", offset), {"antiquant_offset": "offset"}),
                Break("dtype", lambda s: cast("FLOAT32" if s.dtype(scale) != "FLOAT32" else "FLOAT16", offset)(s),
                      {"antiquant_offset": "offset"})),
    )


OFFSET_DTYPE_RULES = (
    _offset_dtype_rule(136, "keyAntiquantOffset", KEY, "v5.quant.consistency.antiquant_key_offset_dtype"),
    _offset_dtype_rule(137, "valueAntiquantOffset", VALUE, "v5.quant.consistency.antiquant_value_offset_dtype"),
)

RULES = (*SCALE_DTYPE_RULES, *EXISTENCE_RULES, *OFFSET_DTYPE_RULES)
