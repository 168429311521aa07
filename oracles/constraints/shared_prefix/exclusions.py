"""What a shared prefix does not go with."""

from __future__ import annotations

from typing import Optional

from msgspec.structs import replace

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..pse.slopes import with_slopes
from ..rule import ALL_950, DOC_950, DOC_A2A3_V5, Basis, Break, Change, Effect, Level, Rule, Words, never
from .facts import BANNED, GROUP, LAYOUTS, PLAIN, V5, add_prefix, prefix_pair, widened
from .shapes import HAS, on

_HOST = "CheckUnSupportFeature"
INT8 = frozenset({"INT8"})
INTS = frozenset({"INT8", "INT4"})
MANY_TOKENS: dict[tuple[int, int], frozenset[str]] = {(0, 0): INT8, (1, 1): INT8}
"""Key/value dtypes that take a prefix, by antiquant mode pair, with several query tokens."""
ONE_TOKEN: dict[tuple[int, int], frozenset[str]] = {
    (0, 0): INTS, (1, 1): INTS, (2, 2): INT8, (3, 3): INTS, (4, 4): INT8, (5, 5): INT8, (0, 1): INTS}
"""The same with one query token; (0, 0) with a scale of one axis is narrower (FIA-SP-034)."""


def _free(s: Scene) -> bool:
    """A prefix in a layout that could take one, without rope: where the rules about kinds of calls apply."""
    return on(s) and s.layout_name not in BANNED and not s.rope_on


def _scales_given(s: Scene) -> bool:
    return s.given("keyAntiquantScale") and s.given("valueAntiquantScale")


def _antiquant(s: Scene, single: bool) -> bool:
    return (s.quant_kind == "antiquant" and _free(s) and _scales_given(s) and s.Q_S is not None
            and (s.Q_S == 1) == single)


def _dtype(s: Scene, table: dict[tuple[int, int], frozenset[str]]) -> bool:
    allowed = table.get(s.antiquant_modes)
    return allowed is None or s.k_dtype in allowed


def _rank_1_scale(s: Scene) -> bool:
    return s.antiquant_modes == (0, 0) and len(s.shape("keyAntiquantScale") or ()) == 1


def padded(name: str) -> Change:
    lengths = {"queryPaddingSize": "actualSeqLengths", "kvPaddingSize": "actualSeqLengthsKv"}[name]

    def change(s: Scene) -> Optional[dict[str, object]]:
        full = s.Q_S if name == "queryPaddingSize" else s.KV_S
        if full is None or s.B is None or not 0 < s.B <= 4096:
            return None
        values: dict[str, object] = {name: TensorSpec((1,), "INT64")}
        return values if s.case.get(lengths) else {**values, lengths: (full,) * s.B}

    return change


def _alibi(s: Scene) -> Optional[dict[str, object]]:
    pair, found = prefix_pair(s), with_slopes(s)
    return None if pair is None or found is None else {**pair, **found, **widened(s, 16)}


def _post_quant(dtype: str) -> Change:
    """Make the output of that dtype, with one scale."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        return None if s.out is None else {"attentionOut": replace(s.out, dtype=dtype),
                                           "quantScale2": TensorSpec((1,), "FLOAT32")}

    return change


def _flat_scales(s: Scene) -> Optional[dict[str, object]]:
    """A prefix, and per-channel scales (and offsets) of one axis."""
    pair, d = prefix_pair(s), s.Q_D
    if pair is None or d is None:
        return None
    for name in ("keyAntiquantScale", "valueAntiquantScale", "keyAntiquantOffset", "valueAntiquantOffset"):
        spec = s.tensor(name)
        if spec is not None:
            pair[name] = replace(spec, shape=(s.KV_N * d,), strides=None)
    return {**pair, **widened(s, 16)}


_OUT: Words = {**HAS, "scenario": "gqa", "out_dtype": ("FLOAT16", "BFLOAT16"), "post_quant": "none"}
_SINGLE: Words = {**PLAIN, "scenario": "antiquant", "q_s": "1", "layout": LAYOUTS}
_MANY: Words = {**PLAIN, "scenario": "antiquant", "q_s": ("2-16", "17+"), "layout": LAYOUTS}
_ID = "v5.shared_prefix.cross."
_ONE = ("antiquant_decode_per_tensor_head", "antiquant_decode_per_channel", "antiquant_decode_per_token",
        "antiquant_decode_per_token_head", "antiquant_decode_k_channel_v_token")

RULES: tuple[Rule, ...] = (
    Rule("FIA-SP-020", "no shared prefix with a tensor list", GROUP, Level.CROSS, V5, (_ID + "no_tensor_list",),
         lambda s: _free(s) and s.mla_kind is None, lambda s: s.storage != "tensor_list",
         enforced_by=_HOST, breaks=(Break("present", add_prefix(),
                                          {**PLAIN, "scenario": "gqa", "storage": "tensor_list", "post_quant": "none",
                                           "layout": LAYOUTS}),)),
    Rule("FIA-SP-021", "no shared prefix with left padding", GROUP, Level.CROSS, V5, (_ID + "no_left_padding",),
         _free, lambda s: not s.left_padding_on, enforced_by=_HOST, note="a padding tensor that is ignored passes",
         breaks=(Break("present", padded("queryPaddingSize"), {**HAS, "scenario": "gqa"}),
                 Break("present", padded("kvPaddingSize"), {**HAS, "scenario": "gqa", "q_s": ("2-16", "17+")}))),
    Rule("FIA-SP-022", "a shared prefix takes pseType 0", GROUP, Level.CROSS, DOC_950 | DOC_A2A3_V5,
         (_ID + "no_alibi",),
         lambda s: on(s) and s.alibi_on, never, enforced_by=_HOST,
         breaks=(Break("value", _alibi, {**PLAIN, "scenario": "gqa", "pse": "none", "layout": LAYOUTS}),)),
    Rule("FIA-SP-023", "transposed and packed layouts take no shared prefix", GROUP, Level.CROSS, V5,
         (_ID + "no_tnd", _ID + "layout_set"), lambda s: on(s) and s.mla_kind is None,
         lambda s: s.layout_name not in BANNED, enforced_by=_HOST, limit=", ".join(LAYOUTS),
         breaks=tuple(Break("value", add_prefix(), {**PLAIN, "scenario": "gqa",
                                                    "layout": layout}) for layout in BANNED[:5])),
    Rule("FIA-SP-024", "MLA with rope tensors takes no shared prefix", GROUP, Level.CROSS, V5,
         (_ID + "no_prefill_mla_split", _ID + "no_decode_mla", "v5.rope.cross.no_prefix",
          "v5.common.cross.decode_mla_no_prefix", "v5.quant.cross.mla_no_prefix"),
         lambda s: on(s) and s.rope_on, never, enforced_by="CheckFeatureSupport",
         breaks=tuple(Break("present", add_prefix(), {**PLAIN, "scenario": kind})
                      for kind in ("mla_decode", "mla_prefill_split", ("full_decode_mla", "mla_decode")))),
    Rule("FIA-SP-025", "MLA with head sizes 192 and 128 takes no shared prefix", GROUP, Level.CROSS, V5,
         (_ID + "no_prefill_mla_combined",), lambda s: on(s) and s.mla_kind == "prefill_combined", never,
         enforced_by=_HOST,
         breaks=(Break("present", add_prefix(), {**PLAIN, "scenario": "mla_prefill_combined"}, entails=("FIA-SP-008",),
                       note="the two prefixes cannot have one head size"),)),
    Rule("FIA-SP-026", "full quantisation takes no shared prefix", GROUP, Level.CROSS, ALL_950,
         (_ID + "no_full_quant_int8", _ID + "no_full_quant_fp8", _ID + "no_full_quant_hif8",
          "v5.quant.cross.full_quant_no_prefix", "v5.quant.cross.per_tensor_no_prefix"),
         lambda s: _free(s) and s.quant_kind == "full", never, enforced_by=_HOST,
         note="FP8 and HIF8 calls fall under the rules about layouts and rope as well",
         breaks=(Break("present", add_prefix(), {**PLAIN, "scenario": "full_per_tensor"}),)),
    Rule("FIA-SP-027", "post-quantised output with a shared prefix is INT8", GROUP, Level.CROSS, ALL_950,
         (_ID + "post_quant_int8_only", "v5.post_quant.cross.prefix_int8_only"),
         lambda s: _free(s) and s.quant_kind == "none" and s.post_quant_on, lambda s: s.out_dtype == "INT8",
         enforced_by="CheckUnSupportFeature, CheckFeaturePrefix", limit="INT8",
         note="quantised caches: the output has their dtype, and only INT8 and INT4 ones take a prefix",
         breaks=(Break("dtype", _post_quant("FLOAT8_E4M3FN"), _OUT), Break("dtype", _post_quant("HIFLOAT8"), _OUT))),
    Rule("FIA-SP-028", "a call whose key and value head sizes differ takes no shared prefix", GROUP, Level.CROSS,
         DOC_950, (_ID + "no_d_unequal", "v5.common.cross.d_unequal_only_mask"),
         lambda s: _free(s) and s.unequal_d, never, effect=Effect.UNSPECIFIED, basis=Basis.DOCUMENTED,
         note="nothing checks it; the prefixes then differ in head size, which is refused",
         breaks=(Break("present", add_prefix(), {**PLAIN, "scenario": "unequal_d", "layout": ("BSH", "BSND", "BNSD")},
                       entails=("FIA-SP-008",)),)),
    Rule("FIA-SP-030", "with several query tokens a prefix goes with antiquant modes 0/0 and 1/1", GROUP, Level.CROSS,
         ALL_950,
         (_ID + "antiquant_prefill_other_modes", "v5.quant.cross.antiquant_prefix_qs_gt1"),
         lambda s: _antiquant(s, False), lambda s: s.antiquant_modes in MANY_TOKENS,
         enforced_by="CheckFeatureAntiquantS1Gt1",
         limit="0/0, 1/1",
         breaks=(Break("value", add_prefix(), {**_MANY, "antiquant": "group"}),)),
    Rule("FIA-SP-031", "with several query tokens a prefix goes with INT8 caches", GROUP, Level.CROSS, ALL_950,
         (_ID + "antiquant_prefill_per_channel", _ID + "antiquant_prefill_per_token", _ID + "antiquant_fp8_fp4_kv",
          "v5.quant.cross.antiquant_prefix_qs_gt1"),
         lambda s: _antiquant(s, False) and s.antiquant_modes in MANY_TOKENS, lambda s: _dtype(s, MANY_TOKENS),
         enforced_by="CheckFeatureAntiquantS1Gt1", limit="INT8",
         breaks=(Break("dtype", add_prefix(), {**_MANY, "antiquant": "per_channel",
                                               "kv_dtype": ("HIFLOAT8", "FLOAT8_E4M3FN")}),
                 Break("dtype", add_prefix(), {**_MANY, "antiquant": "per_token", "kv_dtype": "FLOAT8_E4M3FN"}))),
    Rule("FIA-SP-032", "with one query token a prefix goes with every antiquant mode pair but 6/6", GROUP, Level.CROSS,
         ALL_950,
         (_ID + "antiquant_decode_other_modes",), lambda s: _antiquant(s, True),
         lambda s: s.antiquant_modes in ONE_TOKEN, enforced_by="CheckFeatureAntiquantS1Eq1",
         limit="0/0, 1/1, 2/2, 3/3, 4/4, 5/5, 0/1", note="not reached when a scale is missing",
         breaks=(Break("value", add_prefix(), {**_SINGLE, "antiquant": "group"}),)),
    Rule("FIA-SP-033", "with one query token a prefix goes with INT8 or INT4 caches, by mode", GROUP, Level.CROSS,
         ALL_950,
         (*(_ID + name for name in _ONE), _ID + "antiquant_fp8_fp4_kv", "v5.quant.cross.antiquant_prefix_qs1_int8_only",
          "v5.quant.cross.antiquant_prefix_qs1_int8_int4"),
         lambda s: _antiquant(s, True), lambda s: _dtype(s, ONE_TOKEN), enforced_by="CheckFeatureAntiquantS1Eq1",
         limit="INT8; modes 0/0, 1/1, 3/3 and 0/1 also INT4",
         breaks=(Break("dtype", add_prefix(), {**_SINGLE, "antiquant": "per_channel",
                                               "kv_dtype": ("HIFLOAT8", "FLOAT8_E4M3FN")}),
                 Break("dtype", add_prefix(), {**_SINGLE, "antiquant": "per_token", "kv_dtype": "FLOAT8_E4M3FN"}))),
    Rule("FIA-SP-034", "with one query token and a scale of one axis a prefix goes with INT8 caches", GROUP,
         Level.CROSS, ALL_950,
         (_ID + "antiquant_decode_per_tensor", "v5.quant.cross.antiquant_prefix_qs1_int8_only"),
         lambda s: _antiquant(s, True) and _rank_1_scale(s) and _dtype(s, ONE_TOKEN), lambda s: s.k_dtype == "INT8",
         basis=Basis.SOURCE, enforced_by="CheckFeatureAntiquantS1Eq1", limit="INT8",
         note="meant for one scale per tensor, but a per-channel scale of the form (KV_N x D) counts as well",
         breaks=(Break("dtype", _flat_scales, {**_SINGLE, "antiquant": "per_channel", "kv_dtype": "INT4"}),)),
)
