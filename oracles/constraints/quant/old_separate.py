"""A2 and A3: separate key and value antiquant scales (V3 document lines 177-186, 309-319, 395-422)."""

from __future__ import annotations

from collections.abc import Callable

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import cast, drop, put, together
from ..common.recipes import axis_everywhere
from ..rule import DOC_A2A3_V3, Basis, Boundary, Break, Change, Effect, Level, Rule, never
from .antiquant_modes import as_mixed
from .antiquant_scales import BY_KIND, KEY, MIXABLE, VALUE, wanted
from .antiquant_shapes import forms_legal, spoil, spoil_one
from .facts import both_scales, q_s_over_1
from .full_features import with_rope
from .tables import ANTIQUANT_MODES

OFFSETS = ("keyAntiquantOffset", "valueAntiquantOffset")
SEPARATE = ("per_tensor", "per_channel", "per_token", "tensor_head", "token_head", "token_paged", "token_head_paged",
            "mixed")
PREFILL: dict[str, str | tuple[str, ...]] = {"antiquant": SEPARATE, "q_s": "2-16"}
DECODE: dict[str, str | tuple[str, ...]] = {"antiquant": SEPARATE, "q_s": "1"}


def prefill(s: Scene) -> bool:
    """Separate scales with several query tokens, no paged cache (paging is refused as a whole there)."""
    return s.quant_kind == "antiquant" and both_scales(s) and q_s_over_1(s) and not s.paged and not s.packed


def decode(s: Scene) -> bool:
    """Separate scales with one query token."""
    return s.quant_kind == "antiquant" and both_scales(s) and s.single_token and not s.packed


def _decode_channel(s: Scene, shape: tuple[int, ...] | None) -> bool:
    n, d = s.KV_N, s.Q_D
    return d is None or shape in ((1, n, 1, d), (1, n, d), (1, n * d), (1,))


def _prefill_channel(s: Scene, shape: tuple[int, ...] | None) -> bool:
    n, d = s.KV_N, s.Q_D
    return d is None or shape in ((n, d), (n, 1, d), (n * d,), (1,))


def _mode_rule(number: int, name: str, one_token: bool) -> Rule:
    applies, last = (decode, 5) if one_token else (prefill, 1)
    needs = {**(DECODE if one_token else PREFILL), "prefix": "none"}
    side, tail, listed = ("one query token", "qs1", "qs_eq1_a2_mode_list") if one_token else (
        "several query tokens", "qs_ge2", "qs_gt1_a2_sep_modes")
    return Rule(
        f"FIA-QU-{number}", f"with {side} {name} is 0 to {last}", "quant", Level.SINGLE, DOC_A2A3_V3,
        (f"v3.quant.single.{name[:-13]}_mode_a2_{tail}", f"v3.quant.single.{listed}"),
        applies, lambda s: 0 <= getattr(s.attrs, name) <= last, limit=f"0..{last}",
        enforced_by="CheckKVAntiQuantMode" if one_token else "RunBigKernelTilingWithParams",
        breaks=(Break("below", put(**{name: -1}), needs), Break("above", put(**{name: 7}), needs)),
        boundaries=(Boundary(put(**{name: 0}), put(**{name: -1}), {**needs, "antiquant": "per_channel"}, limit="0"),),
    )


MODE_RULES = (
    _mode_rule(441, "keyAntiquantMode", True), _mode_rule(442, "valueAntiquantMode", True),
    _mode_rule(443, "keyAntiquantMode", False), _mode_rule(444, "valueAntiquantMode", False),
    Rule(
        "FIA-QU-445", "with several query tokens key and value modes are equal, (0, 1) included", "quant",
        Level.CONSISTENCY, DOC_A2A3_V3,
        ("v3.quant.consistency.qs_gt1_a2_sep_modes_equal",), prefill, lambda s: s.antiquant_modes != (0, 1),
        enforced_by="RunBigKernelTilingWithParams",
        breaks=(Break("pair", as_mixed, {**PREFILL, "antiquant": "per_channel", "prefix": "none"}),),
    ),
)

EXISTENCE_RULES = (
    Rule(
        "FIA-QU-446", "keyAntiquantScale and valueAntiquantScale come together", "quant", Level.EXISTENCE, DOC_A2A3_V3,
        ("v3.quant.existence.qs_gt1_a2_sep_scales", "v3.quant.existence.qs_eq1_sep_scales"),
        lambda s: s.quant_kind == "antiquant",
        lambda s: s.given(KEY) == s.given(VALUE),
        enforced_by="CheckKeyAndValueAntiquantScaleOffset",
        breaks=(Break("absent", drop(KEY), {"antiquant": SEPARATE, "antiquant_offset": "symmetric"}),
                Break("absent", drop(VALUE), {"antiquant": SEPARATE, "antiquant_offset": "symmetric"})),
    ),
    Rule(
        "FIA-QU-447", "quantised key and value need a scale", "quant", Level.EXISTENCE, DOC_A2A3_V3,
        ("v3.quant.existence.antiquant_asymmetric", "v3.quant.existence.qs_eq1_sep_scales"),
        lambda s: s.quant_kind == "antiquant" and s.inputs.antiquantOffset is None,
        lambda s: s.given(KEY) or s.given(VALUE) or s.inputs.antiquantScale is not None,
        basis=Basis.SOURCE,
        enforced_by="CheckAntiQuantParam",
        breaks=(Break("absent", drop(KEY, VALUE), {"antiquant": SEPARATE, "antiquant_offset": "symmetric"}),),
    ),
    Rule(
        "FIA-QU-450", "separate offsets come with separate scales", "quant", Level.EXISTENCE, DOC_A2A3_V3,
        ("v3.quant.existence.qs_eq1_sep_offset_needs_scale",),
        lambda s: (s.quant_kind == "antiquant" and s.single_token and s.given(OFFSETS[0]) and s.given(OFFSETS[1])
                   and s.inputs.antiquantScale is not None),
        both_scales, basis=Basis.SOURCE,
        enforced_by="CheckKeyAndValueAntiquantScaleOffset",
        breaks=(Break("absent", lambda s: _offsets(s), {"antiquant": "merged", "q_s": "1"}),),
    ),
)


def _offsets(s: Scene) -> dict[str, object] | None:
    spec = s.inputs.antiquantScale
    return None if spec is None else dict.fromkeys(OFFSETS, spec)


SHAPE_RULES = (
    Rule(
        "FIA-QU-448", "the two scales have one shape unless key is per-channel and value per-token", "quant",
        Level.CONSISTENCY,
        DOC_A2A3_V3, ("v3.quant.consistency.qs_gt1_a2_sep_shapes_scales",
                      "v3.quant.consistency.qs_eq1_sep_scale_shapes"),
        lambda s: s.quant_kind == "antiquant" and both_scales(s) and forms_legal(s),
        lambda s: s.shape(KEY) == s.shape(VALUE),
        enforced_by="CheckKeyAndValueAntiquantOffset, RunBigKernelTilingWithParams",
        breaks=(Break("axis", lambda s: spoil_one(s, VALUE, lambda shape: (*shape[:-1], shape[-1] + 1)),
                      {"antiquant": ("per_token", "token_head")}),),
    ),
    Rule(
        "FIA-QU-451", "one query token, mode 0: scales are [1], [1,H], [1,N,D] or [1,N,1,D]", "quant",
        Level.CONSISTENCY, DOC_A2A3_V3,
        ("v3.quant.consistency.qs_eq1_a2_per_channel_shape", "v3.quant.consistency.qs_eq1_a2_per_tensor_shape"),
        lambda s: decode(s) and s.antiquant_kind in ("per_channel", "per_tensor"),
        lambda s: _decode_channel(s, s.shape(KEY)) and _decode_channel(s, s.shape(VALUE)),
        limit="[1], [1,H], [1,N,D], [1,N,1,D]",
        enforced_by="CheckKVAntiQuantParaShapeLegal, CheckGqaAntiQuantPerChannel",
        breaks=(Break("above", spoil(lambda shape: (*shape[:-1], shape[-1] + 1)),
                      {**DECODE, "antiquant": "per_channel"}),
                Break("rank", spoil(lambda shape: (1, 1, 1, *shape)), {**DECODE, "antiquant": "per_channel"})),
        boundaries=(Boundary(spoil(lambda shape: (1,)), spoil(lambda shape: (2,)),
                             {**DECODE, "antiquant": "per_tensor"},
                             limit="[1]"),),
    ),
    Rule(
        "FIA-QU-452", "several query tokens, mode 0: scales are [H], [N,D] or [N,1,D]", "quant", Level.CONSISTENCY,
        DOC_A2A3_V3,
        ("v3.quant.consistency.qs_gt1_a2_sep_per_channel_shape",), lambda s: prefill(s)
        and s.antiquant_kind in ("per_channel", "per_tensor"),
        lambda s: _prefill_channel(s, s.shape(KEY)) and _prefill_channel(s, s.shape(VALUE)),
        limit="[H], [N,D], [N,1,D]",
        note="the prefill route ties the form to the layout",
        enforced_by="RunBigKernelTilingWithParams",
        breaks=(Break("above", spoil(lambda shape: (*shape[:-1], shape[-1] + 1)),
                      {**PREFILL, "antiquant": "per_channel"}),
                Break("rank", spoil(lambda shape: (1, 1, 1, 1, *shape)), {**PREFILL, "antiquant": "per_channel"})),
        boundaries=(Boundary(spoil(lambda shape: shape), spoil(lambda shape: (*shape[:-1], shape[-1] + 1)),
                             {**PREFILL, "antiquant": "per_channel"}, limit="[N,D]"),),
    ),
    Rule(
        "FIA-QU-453", "one query token, mode 1: scales are [1,B,L]", "quant", Level.CONSISTENCY, DOC_A2A3_V3,
        ("v3.quant.consistency.qs_eq1_a2_per_token_shape",), lambda s: decode(s) and s.antiquant_kind == "per_token",
        lambda s: len(s.shape(KEY) or ()) == 3, basis=Basis.DOCUMENTED, note="the source takes [B,L] too",
        limit="[1,B,L]",
        enforced_by="nothing",
        breaks=(Break("rank", spoil(lambda shape: shape[1:]), {**DECODE, "antiquant": "per_token"}),),
    ),
    Rule(
        "FIA-QU-454", "several query tokens, mode 1: scales are [B,L]", "quant", Level.CONSISTENCY, DOC_A2A3_V3,
        ("v3.quant.consistency.qs_gt1_a2_sep_per_token_shape",), lambda s: prefill(s)
        and s.antiquant_kind == "per_token",
        lambda s: len(s.shape(KEY) or ()) == 2, limit="[B,L]",
        enforced_by="RunBigKernelTilingWithParams",
        breaks=(Break("rank", spoil(lambda shape: (1, *shape)), {**PREFILL, "antiquant": "per_token"}),),
    ),
    Rule(
        "FIA-QU-455", "key per-channel with value per-token: the key scale is [1,H], [1,N,D] or [1,N,1,D]", "quant",
        Level.CONSISTENCY,
        DOC_A2A3_V3, ("v3.quant.consistency.qs_eq1_a2_k_channel_v_token_key_shape",),
        lambda s: decode(s) and s.antiquant_kind == "mixed", lambda s: _decode_channel(s, s.shape(KEY))
        and s.shape(KEY) != (1,),
        limit="[1,H], [1,N,D], [1,N,1,D]",
        enforced_by="CheckAntiQuantParamKeyType",
        breaks=(Break("above", together(as_mixed, lambda s: spoil_one(s, KEY,
                                                                      lambda shape: (*shape[:-1], shape[-1] + 1))),
                                                                      MIXABLE),),
        boundaries=(Boundary(as_mixed, together(as_mixed, lambda s: spoil_one(
            s, KEY, lambda shape: (*shape[:-1], shape[-1] + 1))), MIXABLE, limit="[1,H]"),),
    ),
    Rule(
        "FIA-QU-456", "key per-channel with value per-token: the key scale has the dtype of query", "quant",
        Level.CROSS, DOC_A2A3_V3,
        ("v3.quant.cross.qs_eq1_a2_k_channel_v_token_key_scale_dtype",),
        lambda s: decode(s) and s.antiquant_kind == "mixed",
        lambda s: s.dtype(KEY) == s.q_dtype, enforced_by="CheckAntiQuantParamKeyType",
        breaks=(Break("dtype", together(as_mixed, cast("FLOAT32", KEY)),
                                                           {**MIXABLE, "antiquant_offset": "symmetric"}),),
    ),
    Rule(
        "FIA-QU-457", "key per-channel with value per-token: the value scale is [1,B,L]", "quant", Level.CONSISTENCY,
        DOC_A2A3_V3,
        ("v3.quant.consistency.qs_eq1_a2_k_channel_v_token_value_shape",),
        lambda s: decode(s) and s.antiquant_kind == "mixed",
        lambda s: len(s.shape(VALUE) or ()) == 3 and (s.shape(VALUE) or ())[:2] == (1, s.B), limit="[1,B,L]",
        enforced_by="CheckAntiQuantParamValueType",
        breaks=(Break("rank", lambda s: _mixed_value(s, lambda shape: shape[1:]), MIXABLE),
                Break("axis", lambda s: _mixed_value(s, lambda shape: (1, shape[1] + 1, shape[2])), MIXABLE)),
    ),
)


def _mixed_value(s: Scene, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> dict[str, object] | None:
    found = as_mixed(s)
    if found is None:
        return None
    changed = spoil_one(Scene(s.case.replace(**found)), VALUE, change)
    return None if changed is None else {**found, **changed}


def _documented_dtype(s: Scene, name: str) -> bool:
    row = BY_KIND.get(s.antiquant_kind or "")
    return row is None or row.scale is None or s.dtype(name) == wanted(row, s)


_SCALE_CITES = tuple(dict.fromkeys((*(c for row in ANTIQUANT_MODES for c in row.v3_scale),
                                    "v3.quant.consistency.qs_eq1_a2_token_head_pa_scale_dtype")))
_LONE: dict[str, str | tuple[str, ...]] = {"antiquant": SEPARATE[:-1], "antiquant_offset": "symmetric"}


def _other_dtype(name: str) -> Change:
    return lambda s: cast("FLOAT32" if s.dtype(name) != "FLOAT32" else "FLOAT16", name)(s)


def _int8_out(s: Scene) -> dict[str, object] | None:
    changed = cast("INT8", "attentionOut")(s)
    return None if changed is None else {**changed, "quantScale2": TensorSpec((1,), "FLOAT32")}


def _mixed_int8(s: Scene) -> bool:
    return decode(s) and s.antiquant_kind == "mixed" and s.k_dtype == "INT8"


DTYPE_RULES = (
    Rule(
        "FIA-QU-458", "INT4 with one scale for all or one per head", "quant", Level.CROSS, DOC_A2A3_V3,
        ("v3.quant.cross.qs_eq1_a2_per_tensor_kv_dtype", "v3.quant.cross.qs_eq1_a2_per_tensor_head_kv_dtype",
         "v3.quant.cross.qs_eq1_int4_modes_list"),
        lambda s: decode(s) and s.antiquant_kind in ("per_tensor", "tensor_head") and s.k_dtype == "INT4", never,
        effect=Effect.UNSPECIFIED,
        note="the document lists INT8 alone in one place and INT4 as well in another",
        enforced_by="nothing",
        breaks=(Break("dtype", cast("INT4", "key", "value"), {
            **DECODE, "antiquant": ("per_tensor", "tensor_head"), "storage": "contiguous", "prefix": "none",
            "post_quant": "none", "head_size": ("64", "128", "192", "512")}),),
    ),
    Rule(
        "FIA-QU-459", "modes 4 and 5: key and value are INT8", "quant", Level.CROSS, DOC_A2A3_V3,
        ("v3.quant.cross.qs_eq1_a2_token_pa_kv_dtype", "v3.quant.cross.qs_eq1_a2_token_head_pa_kv_dtype",
         "v3.quant.cross.qs_eq1_int4_modes_list"),
        lambda s: decode(s) and s.antiquant_kind in ("token_paged", "token_head_paged"), lambda s: s.k_dtype == "INT8",
        limit="INT8",
        enforced_by="CheckKVAntiQuantMode",
        breaks=(Break("dtype", cast("INT4", "key", "value"), {**DECODE,
                                                              "antiquant": ("token_paged", "token_head_paged"),
                                                              "post_quant": "none",
                                                                       "prefix": "none",
                                                                       "head_size": ("64", "128", "192", "512")},
                                                                       ("FIA-PA-114",)),),
    ),
    Rule(
        "FIA-QU-460", "the key scale has the dtype of its mode: FLOAT32 with a token axis, else as query", "quant",
        Level.CROSS, DOC_A2A3_V3,
        _SCALE_CITES, lambda s: decode(s) or prefill(s), lambda s: _documented_dtype(s, KEY),
        enforced_by="CheckAntiQuantParam",
        breaks=(Break("dtype", _other_dtype(KEY), _LONE), Break("dtype", cast("INT8", KEY), _LONE)),
    ),
    Rule(
        "FIA-QU-466", "several query tokens: the value scale has the dtype of its mode", "quant", Level.CROSS,
        DOC_A2A3_V3, _SCALE_CITES,
        prefill, lambda s: _documented_dtype(s, VALUE), enforced_by="RunBigKernelTilingWithParams",
        breaks=(Break("dtype", _other_dtype(VALUE),
                                                                      {**_LONE, "q_s": "2-16"}),),
    ),
    Rule(
        "FIA-QU-467", "one query token: the value scale has the dtype of its mode", "quant", Level.CROSS, DOC_A2A3_V3,
        _SCALE_CITES,
        decode, lambda s: _documented_dtype(s, VALUE), basis=Basis.DOCUMENTED,
        note="the decode route looks at the key scale alone",
        enforced_by="nothing",
        breaks=(Break("dtype", _other_dtype(VALUE), {**_LONE, "q_s": "1"}),),
    ),
    Rule(
        "FIA-QU-461", "key per-channel with value per-token: INT8 key needs FLOAT16 query", "quant", Level.CROSS,
        DOC_A2A3_V3, ("v3.quant.cross.qs_eq1_a2_k_channel_v_token_int8",), _mixed_int8,
        lambda s: s.q_dtype == "FLOAT16",
        enforced_by="CheckAntiQuantParam",
        breaks=(Break("dtype", as_mixed, {**DECODE, "antiquant": "per_channel", "kv_dtype": "INT8",
                                          "q_dtype": "BFLOAT16", "post_quant": "none"}),),
    ),
    Rule(
        "FIA-QU-473", "key per-channel with value per-token: INT8 key needs FLOAT16 output", "quant", Level.CROSS,
        DOC_A2A3_V3, ("v3.quant.cross.qs_eq1_a2_k_channel_v_token_int8",),
        lambda s: _mixed_int8(s) and s.q_dtype == "FLOAT16", lambda s: s.out_dtype == "FLOAT16",
        basis=Basis.DOCUMENTED, note="the source lets INT8 through",
        enforced_by="nothing",
        breaks=(Break("dtype", together(as_mixed, _int8_out), {
            **DECODE, "antiquant": "per_channel", "kv_dtype": "INT8", "q_dtype": "FLOAT16", "post_quant": "none"}),),
    ),
)

def _offset_shape(s: Scene) -> dict[str, object] | None:
    spec = s.inputs.valueAntiquantOffset
    return None if spec is None else {OFFSETS[1]: TensorSpec((*spec.shape[:-1], spec.shape[-1] + 1), spec.dtype)}


FEATURE_RULES = (
    Rule(
        "FIA-QU-462", "separate scales with several query tokens: no left padding", "quant", Level.CROSS, DOC_A2A3_V3,
        ("v3.quant.cross.qs_gt1_a2_sep_no_left_padding",), prefill,
        lambda s: s.inputs.queryPaddingSize is None and s.inputs.kvPaddingSize is None,
        enforced_by="CheckParamsPFA",
        breaks=(Break("present", put(queryPaddingSize=TensorSpec((1,), "INT64", values=(0,))),
                      {**PREFILL, "q_lengths": ("per_batch", "longer", "one"), "prefix": "none"}),),
    ),
    Rule(
        "FIA-QU-463", "separate scales with several query tokens: no paged cache", "quant", Level.CROSS, DOC_A2A3_V3,
        ("v3.quant.cross.qs_gt1_a2_sep_no_paged_attention",),
        lambda s: s.quant_kind == "antiquant" and both_scales(s) and q_s_over_1(s), lambda s: not s.paged,
        basis=Basis.DOCUMENTED,
        note="the source takes some calls with FLOAT16 and per-channel scales",
        enforced_by="CheckPAAntiquantSupportScenarios, in part",
        breaks=(Break("above", together(axis_everywhere("S", 2, "query", "attentionOut"), put(actualSeqLengths=None)),
                      {**DECODE, "storage": ("BnBsH", "BnNBsD"), "mask": "none", "pse": "none", "lse": "off",
                       "post_quant": "none",
                       "antiquant": ("per_channel", "per_token"), "block_size": ("128", "256", "512")}, ("FIA-QU-522",)),),
    ),
    Rule(
        "FIA-QU-469", "separate scales with several query tokens: key and value are INT8", "quant", Level.CROSS,
        DOC_A2A3_V3,
        ("v3.quant.cross.qs_gt1_a2_sep_dtypes_kv",), prefill, lambda s: s.k_dtype == "INT8",
        enforced_by="RunBigKernelTilingWithParams",
        breaks=(Break("dtype", cast("INT4", "key", "value"), {**PREFILL, "prefix": "none", "post_quant": "none"}),),
    ),
    Rule(
        "FIA-QU-470", "separate scales with several query tokens: query is BFLOAT16", "quant", Level.CROSS, DOC_A2A3_V3,
        ("v3.quant.cross.qs_gt1_a2_sep_dtypes_query",), prefill, lambda s: s.q_dtype == "BFLOAT16",
        enforced_by="RunBigKernelTilingWithParams",
        breaks=(Break("dtype", cast("FLOAT16", "query", "attentionOut"),
                      {**PREFILL, "antiquant": "per_token", "pse": "none", "post_quant": "none"}),),
    ),
    Rule(
        "FIA-QU-471", "separate scales with several query tokens: attentionOut is BFLOAT16", "quant", Level.CROSS,
        DOC_A2A3_V3,
        ("v3.quant.cross.qs_gt1_a2_sep_dtypes_out",), lambda s: prefill(s) and s.q_dtype == "BFLOAT16",
        lambda s: s.out_dtype == "BFLOAT16",
        basis=Basis.DOCUMENTED, note="the source lets INT8 through",
        enforced_by="nothing",
        breaks=(Break("dtype", lambda s: _int8_out(s), {**PREFILL, "post_quant": "none"}),),
    ),
    Rule(
        "FIA-QU-472", "key per-channel with value per-token: offsets have the shapes of their scales", "quant",
        Level.CONSISTENCY,
        DOC_A2A3_V3, ("v3.quant.single.key_antiquant_offset_table", "v3.quant.single.value_antiquant_offset_table"),
        lambda s: s.antiquant_kind == "mixed" and both_scales(s) and (s.given(OFFSETS[0]) or s.given(OFFSETS[1])),
        lambda s: all(s.shape(o) in (None, s.shape(n)) for o, n in zip(OFFSETS, (KEY, VALUE))), basis=Basis.DOCUMENTED,
        enforced_by="nothing",
        breaks=(Break("above", lambda s: _offset_shape(s), {"antiquant": "mixed", "antiquant_offset": "offset"}),),
    ),
    Rule(
        "FIA-QU-465", "with rope tensors key and value are not quantised", "quant", Level.CROSS, DOC_A2A3_V3,
        ("v3.rope.cross.dtype", "v3.quant.cross.mla512_a2_no_antiquant", "v3.quant.cross.mla128_a2_no_antiquant",
         "v3.quant.cross.tnd512_no_antiquant"),
        lambda s: s.quant_kind == "antiquant" and s.rope_on, never, enforced_by="CheckMlaAttrs, CheckAntiQuantParam",
        breaks=(Break("present", together(with_rope, put(actualSeqLengths=None)), {
            "scenario": "antiquant", "storage": "contiguous", "head_size": "128", "prefix": "none", "pse": "none",
            "left_padding": "none", "kv_dtype": "INT8", "post_quant": "none"}, ("FIA-CO-109",)),),
    ),
)

RULES = (*MODE_RULES, *EXISTENCE_RULES, *SHAPE_RULES, *DTYPE_RULES, *FEATURE_RULES)
