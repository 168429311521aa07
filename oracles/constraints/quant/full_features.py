"""What Decode MLA and INT8 per-tensor go with: dtypes, head counts and sizes, layouts, paging, rope (V5, Ascend 950).

Sources: V5 document lines 341-357 for Decode MLA and INT8 per-tensor; MXFP8 and GQA FP8 are in full_fp8.py.
Masks, prefixes, block sizes and cache forms have their rules in the rooms of those groups.
"""

from __future__ import annotations

from collections.abc import Mapping

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.layouts import DECODE_MLA_D, ROPE_D
from fiafuzz.model.scene import Scene

from ..changes import cast, head_size, put, together, where
from ..common.recipes import axis_everywhere, query_heads, relayout
from ..documents import V5_LINE
from ..paged_attention.cache import cache_as
from ..rule import ALL_950, SRC_A2A3_V3, Boundary, Break, Change, Level, Rule
from .facts import full_intent
from .tables import MLA_INT8_LAYOUTS, MLA_LAYOUTS, PER_TENSOR_LAYOUTS

GQA_KINDS = frozenset({"per_tensor", "mxfp8", "gqa_fp8"})
DTYPES = "CheckInputDTypeFullquant"
D_SIZE = "CheckDSizeFullquant"
PER_TENSOR = {"scenario": "full_per_tensor"}
MLA = {"scenario": "full_decode_mla"}
BARE: Mapping[str, str | tuple[str, ...]] = {
    **PER_TENSOR, "mask_shape": ("none", "2048/2", "2048/3", "2048/4"), "pse": "none", "lse": "off",
    "left_padding": "none"}
"""Per-tensor calls without tensors that depend on the query length or the head count."""


def _query_rows(rows: int) -> Change:
    return together(axis_everywhere("S", rows, "query", "attentionOut"), put(actualSeqLengths=None))


def _heads(pick: str, limit: int) -> Change:
    """As many query heads as the groups allow next to a limit: the last inside or the first outside."""

    def change(s: Scene) -> dict[str, object] | None:
        if s.KV_N <= 0 or s.attrs.numKeyValueHeads <= 0:
            return None
        inside = limit // s.KV_N * s.KV_N
        heads = inside if pick == "inside" else inside + s.KV_N
        found = query_heads(heads)(s) if 0 < heads // s.KV_N <= 64 else None
        return dict(found) if found is not None else None

    return change


def _groups(groups: int) -> Change:
    def change(s: Scene) -> dict[str, object] | None:
        found = query_heads(groups * s.KV_N)(s) if s.KV_N > 0 and groups * s.KV_N <= 256 else None
        return dict(found) if found is not None else None

    return change


def _all_heads(heads: int) -> Change:
    """The same number of query and key/value heads."""
    return where(lambda s: s.layout_name in ("BNSD", "BSND", "BNSD_BSND"), together(
        put(numHeads=heads, numKeyValueHeads=heads), axis_everywhere("N", heads, "query", "key", "value",
                                                                     "attentionOut")))


HEAD_RULES = (
    Rule(
        "FIA-QU-281", "full quantisation without Decode MLA has 1 to 256 query heads", "quant", Level.CROSS, ALL_950,
        ("v5.quant.cross.per_tensor_q_n", "v5.quant.cross.mxfp8_heads", "v5.quant.cross.gqa_fp8_heads",
         "v5.common.single.num_heads_full_quant_gqa"),
        lambda s: s.quant_kind == "full" and full_intent(s) in GQA_KINDS and s.Q_N > 0, lambda s: s.Q_N <= 256,
        enforced_by="CheckN1SizeFullquant",
        limit="1..256", breaks=(Break("above", _heads("outside", 256), BARE),),
        boundaries=(Boundary(_heads("inside", 256), _heads("outside", 256), BARE, limit="256"),),
    ),
    Rule(
        "FIA-QU-282", "full quantisation without Decode MLA has 1 to 256 key/value heads", "quant", Level.CROSS,
        ALL_950,
        ("v5.quant.cross.per_tensor_kv_n", "v5.quant.cross.mxfp8_heads", "v5.quant.cross.gqa_fp8_heads",
         "v5.common.single.num_kv_heads_full_quant_gqa"),
        lambda s: s.quant_kind == "full" and full_intent(s) in GQA_KINDS and s.KV_N > 0, lambda s: s.KV_N <= 256,
        enforced_by="CheckN2SizeFullquant",
        limit="1..256", breaks=(Break("above", _all_heads(257), BARE, ("FIA-QU-281",)),),
        boundaries=(Boundary(_all_heads(256), _all_heads(257), BARE, ("FIA-QU-281",), limit="256"),),
        note="as many query heads at least, so their limit goes with it",
    ),
    Rule(
        "FIA-QU-283", "full quantisation without Decode MLA: at most 64 query heads to a key/value head", "quant",
        Level.CROSS,
        ALL_950,
        ("v5.quant.cross.per_tensor_g", "v5.quant.cross.mxfp8_heads", "v5.quant.cross.gqa_fp8_heads",
         "v5.common.consistency.group_full_quant_gqa"),
        lambda s: s.quant_kind == "full" and full_intent(s) in GQA_KINDS and s.G is not None,
        lambda s: s.G is not None and s.G <= 64,
        enforced_by="CheckGSizeFullquant", limit="1..64", breaks=(Break("above", _groups(65), BARE),),
        boundaries=(Boundary(_groups(64), _groups(65), BARE, limit="64"),),
    ),
)


def _value_size(size: int) -> Change:
    return together(head_size(size, "value"), head_size(size, "attentionOut"))


def with_rope(s: Scene) -> dict[str, object] | None:
    """Rope tensors of head size 64 beside a call without them."""
    query, key = s.tensor("query"), s.tensor("key")
    if s.rope_on or query is None or key is None or s.layout is None or s.Q_N <= 0 or s.KV_N <= 0:
        return None
    cached = s.paged and key.rank == 3
    return {"queryRope": TensorSpec(_with_d(query.shape, "H" in s.layout.inputs, s.Q_N), "BFLOAT16"),
            "keyRope": TensorSpec(_with_d(key.shape, "H" in s.layout.inputs or cached, s.KV_N), "BFLOAT16")}


def _with_d(shape: tuple[int, ...], packed: bool, heads: int) -> tuple[int, ...]:
    return (*shape[:-1], 64 * heads if packed else 64)


PER_TENSOR_RULES = (
    Rule(
        "FIA-QU-284", "INT8 per-tensor: query, key and value are INT8", "quant", Level.CROSS, ALL_950,
        ("v5.quant.cross.per_tensor_qkv_int8", "v5.quant.cross.full_quant_hif8_only_mla"),
        lambda s: s.quant_kind == "full" and full_intent(s) == "per_tensor", lambda s: s.q_dtype == "INT8",
        enforced_by=DTYPES,
        note="FP8 and HIFLOAT8 without the modes of another kind fall to per-tensor",
        breaks=(Break("dtype", cast("FLOAT8_E4M3FN", "query", "key", "value"), {**PER_TENSOR, "pse": "none"}),
                Break("dtype", cast("HIFLOAT8", "query", "key", "value"), {**PER_TENSOR, "pse": "none"})),
    ),
    Rule(
        "FIA-QU-285", "INT8 per-tensor needs more than one query token", "quant", Level.CROSS, V5_LINE,
        ("v5.quant.cross.per_tensor_qs_not_1", "v5.common.cross.int8_qkv_decode_unsupported"),
        lambda s: s.quant_kind == "full" and full_intent(s) == "per_tensor", lambda s: not s.single_token,
        enforced_by="CheckFeaturePertensorFullquant",
        limit="Q_S >= 2", breaks=(Break("below", _query_rows(1), BARE),),
        boundaries=(Boundary(_query_rows(2), _query_rows(1), BARE, limit="2"),),
    ),
    Rule(
        "FIA-QU-286", "INT8 per-tensor: query, key and value have one head size", "quant", Level.CROSS, ALL_950,
        ("v5.quant.cross.per_tensor_equal_d", "v5.quant.cross.per_tensor_no_rope"),
        lambda s: s.quant_kind == "full" and full_intent(s) == "per_tensor" and s.Q_D is not None and s.V_D is not None,
        lambda s: s.Q_D == s.V_D,
        enforced_by=D_SIZE, note="192 with 128, a form of Prefill MLA, is refused with it",
        breaks=(Break("pair", _value_size(64), {**PER_TENSOR, "head_size": "128",
                                                "storage": ("contiguous", "tensor_list")}),
                Break("pair", _value_size(128), {**PER_TENSOR, "head_size": ("64", "192")})),
    ),
    Rule(
        "FIA-QU-287", "INT8 per-tensor works in BSH, BNSD, BSND and BNSD_BSND", "quant", Level.CROSS, ALL_950,
        ("v5.quant.cross.per_tensor_layout", "v5.common.single.layouts_full_quant_per_tensor"),
        lambda s: s.quant_kind == "full" and full_intent(s) == "per_tensor" and s.layout is not None,
        lambda s: s.layout_name in PER_TENSOR_LAYOUTS,
        enforced_by="CheckInputLayoutPertensor", limit="BSH, BNSD, BSND, BNSD_BSND",
        breaks=(Break("value", relayout("BSND_BNSD"), {**PER_TENSOR, "layout": "BSND", "pse": "none",
                                                       "left_padding": "none",
                                                       "storage": "contiguous", "head_size": ("64", "128")}),),
    ),
    Rule(
        "FIA-QU-288", "INT8 per-tensor does not work with rope tensors", "quant", Level.CROSS, V5_LINE,
        ("v5.quant.cross.per_tensor_no_rope", "v5.rope.cross.prefill_no_full_quant",
         "v5.common.cross.prefill_mla_no_full_quant"),
        lambda s: s.quant_kind == "full" and full_intent(s) == "per_tensor", lambda s: not s.rope_on,
        enforced_by="CheckFeaturePertensorFullquant",
        breaks=(Break("present", with_rope, {**PER_TENSOR, "head_size": "128", "storage": "contiguous", "pse": "none",
                                         "left_padding": "none"}),),
    ),
)

_ANY_LAYOUT: Mapping[str, str | tuple[str, ...]] = {**MLA, "storage": ("contiguous", "BnBsH"),
                                                    "layout": ("BSH", "BSND", "BNSD", "TND")}
"""Layouts that are not refused for Prefill MLA."""

def _all_sizes(size: int) -> Change:
    return head_size(size, "query", "key", "value", "attentionOut")


def _unpaged(s: Scene) -> dict[str, object] | None:
    """A paged Decode MLA call of a batch layout with contiguous key, value and keyRope."""
    lens, b = s.kv_lens, s.B
    if not lens or b is None or max(lens) <= 0 or s.layout is None or s.layout.inputs not in ("BSH", "BSND"):
        return None
    values: dict[str, object] = {"blockTable": None, "blockSize": 0}
    for name, d in (("key", DECODE_MLA_D), ("value", DECODE_MLA_D), ("keyRope", ROPE_D)):
        spec = s.tensor(name)
        if spec is None:
            return None
        shape = (b, max(lens), d) if s.layout.inputs == "BSH" else (b, max(lens), 1, d)
        flat = TensorSpec(shape, spec.dtype)
        values[name] = flat if name == "keyRope" else (flat,)
    return values


MLA_RULES = (
    Rule(
        "FIA-QU-289", "Decode MLA: queryRope and keyRope are BFLOAT16", "quant", Level.CROSS, ALL_950,
        ("v5.quant.cross.mla_rope_bf16",), lambda s: s.quant_kind == "full" and full_intent(s) == "mla" and s.rope_on,
        lambda s: s.dtype("queryRope") == "BFLOAT16" == s.dtype("keyRope"), enforced_by=DTYPES,
        breaks=(Break("dtype", cast("FLOAT16", "queryRope", "keyRope"), MLA),),
    ),
    Rule(
        "FIA-QU-290", "Decode MLA: attentionOut is BFLOAT16", "quant", Level.CROSS, ALL_950,
        ("v5.quant.cross.mla_out_bf16",),
        lambda s: s.quant_kind == "full" and full_intent(s) == "mla", lambda s: s.out_dtype == "BFLOAT16",
        enforced_by=DTYPES,
        note="with INT8 no registered column has another output",
        breaks=(Break("dtype", cast("FLOAT16", "attentionOut"), {**MLA, "q_dtype": ("FLOAT8_E4M3FN", "HIFLOAT8")}),),
    ),
    Rule(
        "FIA-QU-292", "Decode MLA in INT8 works in BSH, BSND, TND and their NBSD and NTD forms", "quant", Level.CROSS,
        ALL_950,
        ("v5.quant.cross.mla_layout_int8", "v5.common.single.layouts_full_quant_mla_int8"),
        lambda s: s.quant_kind == "full" and full_intent(s) == "mla" and s.q_dtype == "INT8"
        and s.layout_name in MLA_LAYOUTS,
        lambda s: s.layout_name in MLA_INT8_LAYOUTS, enforced_by="CheckInputLayoutMLAFullquant",
        limit=", ".join(sorted(MLA_INT8_LAYOUTS)),
        note="BNSD and BNSD_NBSD are left out; the list for all Decode MLA is a rule of the room common",
        breaks=(Break("dtype", cast("INT8", "query", "key", "value"),
                      {**MLA, "layout": ("BNSD", "BNSD_NBSD"), "storage": "NZ", "q_s": "1", "sparse_mode": "0"}),),
    ),
    Rule(
        "FIA-QU-293", "Decode MLA has head size 512", "quant", Level.CROSS, ALL_950,
        ("v5.quant.cross.mla_d512", "v5.rope.cross.prefill_no_full_quant", "v5.common.cross.prefill_mla_no_full_quant"),
        lambda s: s.quant_kind == "full" and full_intent(s) == "mla" and s.Q_D is not None,
        lambda s: s.Q_D == DECODE_MLA_D, enforced_by=D_SIZE, limit="512",
        note="Prefill MLA (head size 128) has no full quantisation",
        boundaries=(Boundary(put(queryQuantMode=3), _all_sizes(496), _ANY_LAYOUT, limit="512"),),
        breaks=(Break("below", _all_sizes(128), _ANY_LAYOUT),
                Break("below", _all_sizes(256), _ANY_LAYOUT)),
    ),
    Rule(
        "FIA-QU-294", "Decode MLA in INT8 needs a paged cache in NZ", "quant", Level.CROSS,
        V5_LINE - SRC_A2A3_V3,
        ("v5.quant.cross.mla_int8_paged_nz", "v5.paged_attention.existence.int8_mla_requires_pa",
         "v5.paged_attention.cross.fq_decode_mla_int8_nz_only"),
        lambda s: s.quant_kind == "full" and full_intent(s) == "mla" and s.q_dtype == "INT8",
        lambda s: s.cache_layout == "NZ",
        enforced_by="CheckFeatureMLAFullquant",
        breaks=(Break("value", cache_as("BnBsH"), {**MLA, "q_dtype": "INT8"}),
                Break("value", cache_as("BnNBsD"), {**MLA, "q_dtype": "INT8"}),
                Break("absent", _unpaged, {**MLA, "q_dtype": "INT8",
                                           "layout": ("BSH", "BSND", "BSH_NBSD", "BSND_NBSD")})),
    ),
)

RULES = (*HEAD_RULES, *PER_TENSOR_RULES, *MLA_RULES)
