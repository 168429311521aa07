"""What MXFP8 and GQA FP8 go with (Ascend 950, source of August 2026; no user document of 9.1.0-beta.1 knows them).

Left padding, prefixes, tensor lists and post-quantisation are refused with both by the rules of their layouts, of the
FP8 prefix and of the dtype columns, so they need no rule here.
"""

from __future__ import annotations

from itertools import accumulate

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import cast, head_size, put, together, where, with_shape
from ..common.recipes import relayout
from ..paged_attention.cache import cache_as
from ..rule import SRC_950, Boundary, Break, Level, Rule
from .facts import full_intent
from .full_features import D_SIZE, DTYPES, with_rope

MXFP8 = {"scenario": "full_mxfp8"}
GQA_FP8 = {"scenario": "full_gqa_fp8"}


def _head_sizes(s: Scene, q_d: int, v_d: int) -> dict[str, object] | None:
    """A contiguous MXFP8 call with other head sizes, its scales included."""
    sizes = [head_size(q_d, "query", "key")] if q_d != s.Q_D else []
    sizes += [head_size(v_d, "value", "attentionOut")] if v_d != s.V_D else []
    values = together(*sizes)(s)
    query, key, value = s.inputs.dequantScaleQuery, s.inputs.keyAntiquantScale, s.inputs.valueAntiquantScale
    if values is None or query is None or key is None or value is None or min(query.rank, key.rank, value.rank) < 4:
        return None
    groups = -(-q_d // 64)
    changed = {
        **values, "dequantScaleQuery": with_shape(query, (*query.shape[:-2], groups, 2)),
        "keyAntiquantScale": with_shape(key, (*key.shape[:-2], groups, 2)),
        "valueAntiquantScale": with_shape(value, (*value.shape[:2], v_d, 2)),
    }
    return changed


def _heads_first(s: Scene) -> dict[str, object] | None:
    """A contiguous TND call as NTD_TND."""
    values: dict[str, object] = {"inputLayout": "NTD_TND"}
    for name in ("query", "key", "value", "queryRope", "keyRope"):
        spec = s.tensor(name)
        if spec is not None:
            if spec.rank != 3:
                return None
            turned = with_shape(spec, (spec.shape[1], spec.shape[0], spec.shape[2]))
            values[name] = (turned,) if name in ("key", "value") else turned
    return values if s.layout_name == "TND" and not s.paged else None


MXFP8_RULES = (
    Rule(
        "FIA-QU-295", "MXFP8: query, key and value are FLOAT8_E4M3FN", "quant", Level.CROSS, SRC_950,
        ("v5.quant.cross.mxfp8_dtypes",), lambda s: s.quant_kind == "full" and full_intent(s) == "mxfp8",
        lambda s: s.q_dtype == "FLOAT8_E4M3FN",
        enforced_by=DTYPES, breaks=(Break("dtype", cast("HIFLOAT8", "query", "key", "value"), MXFP8),),
    ),
    Rule(
        "FIA-QU-296", "MXFP8 with rope: queryRope and keyRope are BFLOAT16", "quant", Level.CROSS, SRC_950,
        ("v5.quant.cross.mxfp8_rope_bf16",), lambda s: s.quant_kind == "full" and full_intent(s) == "mxfp8"
        and s.rope_on,
        lambda s: s.dtype("queryRope") == "BFLOAT16" == s.dtype("keyRope"), enforced_by=DTYPES,
        breaks=(Break("dtype", cast("FLOAT16", "queryRope", "keyRope"), MXFP8),),
    ),
    Rule(
        "FIA-QU-297", "MXFP8 with rope: attentionOut is BFLOAT16", "quant", Level.CROSS, SRC_950,
        ("v5.quant.cross.mxfp8_rope_bf16",), lambda s: s.quant_kind == "full" and full_intent(s) == "mxfp8"
        and s.rope_on,
        lambda s: s.out_dtype == "BFLOAT16", enforced_by=DTYPES,
        breaks=(Break("dtype", where(lambda s: s.rope_on, cast("FLOAT16", "attentionOut")), MXFP8),),
    ),
    Rule(
        "FIA-QU-298", "MXFP8 works in TND", "quant", Level.CROSS, SRC_950,
        ("v5.quant.cross.mxfp8_layout", "v5.common.single.layouts_mxfp8"),
        lambda s: s.quant_kind == "full" and full_intent(s) == "mxfp8" and s.layout is not None,
        lambda s: s.layout_name == "TND",
        enforced_by="CheckInputLayoutMXFP8Fullquant", limit="TND", breaks=(Break("value", _heads_first,
            {**MXFP8, "storage": "contiguous"}),),
    ),
    Rule(
        "FIA-QU-299", "MXFP8: query and value have head size 64 or 128, the same", "quant", Level.CROSS, SRC_950,
        ("v5.quant.cross.mxfp8_d", "v5.common.consistency.mxfp8_head_dim"),
        lambda s: s.quant_kind == "full" and full_intent(s) == "mxfp8" and s.Q_D is not None and s.V_D is not None,
        lambda s: s.Q_D == s.V_D and s.Q_D in (64, 128), enforced_by=D_SIZE, limit="64, 128",
        breaks=(Break("pair", lambda s: _head_sizes(s, s.Q_D or 0, 192 - (s.Q_D or 0)),
                      {**MXFP8, "storage": "contiguous"}),
                Break("value", lambda s: _head_sizes(s, 96, 96), {**MXFP8, "storage": "contiguous"})),
    ),
)


def _contiguous(s: Scene) -> dict[str, object] | None:
    """A paged GQA FP8 call with key and value packed in NTD instead of in blocks."""
    key, value, lens = s.tensor("key"), s.tensor("value"), s.kv_lens
    if key is None or value is None or not lens or not s.paged or s.K_D is None or s.V_D is None:
        return None
    rows = sum(lens)
    return {
        "key": (with_shape(key, (s.KV_N, rows, s.K_D)),), "value": (with_shape(value, (s.KV_N, rows, s.V_D)),),
        "actualSeqLengthsKv": tuple(accumulate(lens)), "blockTable": None, "blockSize": 0,
    } if rows > 0 else None


def _rows_of_heads(s: Scene) -> dict[str, object] | None:
    """A BnNBsD cache as BnBsH."""
    key, value = s.tensor("key"), s.tensor("value")
    if key is None or value is None or s.cache_layout != "BnNBsD":
        return None
    return {name: (with_shape(t, (t.shape[0], t.shape[2], t.shape[1] * t.shape[3])),)
            for name, t in (("key", key), ("value", value))}


GQA_FP8_RULES = (
    Rule(
        "FIA-QU-300", "GQA FP8: query, key and value are FLOAT8_E4M3FN", "quant", Level.CROSS, SRC_950,
        ("v5.quant.cross.gqa_fp8_dtypes",), lambda s: s.quant_kind == "full" and full_intent(s) == "gqa_fp8",
        lambda s: s.q_dtype == "FLOAT8_E4M3FN",
        enforced_by=DTYPES, breaks=(Break("dtype", cast("HIFLOAT8", "query", "key", "value"), GQA_FP8),),
    ),
    Rule(
        "FIA-QU-301", "GQA FP8 works in NTD_TND", "quant", Level.CROSS, SRC_950,
        ("v5.quant.cross.gqa_fp8_layout", "v5.common.single.layouts_fp8_gqa"),
        lambda s: s.quant_kind == "full" and full_intent(s) == "gqa_fp8" and s.layout is not None,
        lambda s: s.layout_name == "NTD_TND",
        enforced_by="CheckInputLayoutFP8GQAFullquant", limit="NTD_TND",
        breaks=(Break("value", relayout("NTD"), GQA_FP8),),
    ),
    Rule(
        "FIA-QU-302", "GQA FP8 needs a block table", "quant", Level.EXISTENCE, SRC_950,
        ("v5.quant.existence.gqa_fp8_block_table_required", "v5.paged_attention.existence.fp8_gqa_requires_pa"),
        lambda s: s.quant_kind == "full" and full_intent(s) == "gqa_fp8", lambda s: s.inputs.blockTable is not None,
        enforced_by="CheckTensorExistFullquant", breaks=(Break("absent", _contiguous, GQA_FP8),),
    ),
    Rule(
        "FIA-QU-303", "GQA FP8: the paged cache is [blockNum,KV_N,blockSize,D]", "quant", Level.CROSS, SRC_950,
        ("v5.quant.cross.gqa_fp8_layout", "v5.paged_attention.cross.fp8_gqa_cache_4d"),
        lambda s: s.quant_kind == "full" and full_intent(s) == "gqa_fp8" and s.cache_layout is not None,
        lambda s: s.cache_layout == "BnNBsD", enforced_by="CheckKVLayout", limit="BnNBsD",
        breaks=(Break("rank", _rows_of_heads, GQA_FP8), Break("rank", cache_as("NZ", 32), GQA_FP8)),
    ),
    Rule(
        "FIA-QU-304", "GQA FP8: query and value have head size 128", "quant", Level.CROSS, SRC_950,
        ("v5.quant.cross.gqa_fp8_d128", "v5.common.consistency.fp8_gqa_head_dim"),
        lambda s: s.quant_kind == "full" and full_intent(s) == "gqa_fp8" and s.Q_D is not None and s.V_D is not None,
        lambda s: s.Q_D == 128 == s.V_D, enforced_by=D_SIZE, limit="128",
        boundaries=(Boundary(put(queryQuantMode=3), head_size(144, "query", "key", "value", "attentionOut"), GQA_FP8,
                             limit="128"),),
        breaks=(Break("below", head_size(64, "query", "key", "value", "attentionOut"), GQA_FP8),
                Break("above", head_size(256, "query", "key", "value", "attentionOut"), GQA_FP8)),
    ),
    Rule(
        "FIA-QU-305", "GQA FP8 does not work with rope", "quant", Level.CROSS, SRC_950,
        ("v5.rope.cross.gqa_fp8_no_rope", "v5.quant.cross.gqa_fp8_features", "v5.rope.cross.prefill_no_full_quant"),
        lambda s: s.quant_kind == "full" and full_intent(s) == "gqa_fp8", lambda s: not s.rope_on,
        enforced_by="CheckFeatureFP8GQAFullquant",
        breaks=(Break("present", with_rope, GQA_FP8),),
    ),
)

INNER_PRECISE = Rule(
    "FIA-QU-306", "MXFP8 and GQA FP8: innerPrecise is 0 or 1", "quant", Level.CROSS, SRC_950,
    ("v5.inner_precise.cross.mxfp8", "v5.inner_precise.cross.gqa_fp8", "v5.quant.cross.mxfp8_features",
     "v5.quant.cross.gqa_fp8_features"),
    lambda s: s.quant_kind == "full" and full_intent(s) in ("mxfp8", "gqa_fp8") and 0 <= s.inner_precise <= 4,
    lambda s: s.inner_precise in (0, 1),
    enforced_by="CheckFeatureMXFP8Fullquant, CheckFeatureFP8GQAFullquant", limit="0, 1",
    breaks=(Break("above", put(innerPrecise=2), MXFP8), Break("above", put(innerPrecise=3), GQA_FP8)),
    boundaries=(Boundary(put(innerPrecise=1), put(innerPrecise=2), MXFP8, limit="1"),),
)


def _bias(s: Scene) -> dict[str, object] | None:
    """An additive bias for all heads and rows."""
    if s.Q_S is None or s.KV_S is None or s.Q_N <= 0 or s.rope_on:
        return None
    return {"pseShift": TensorSpec((1, s.Q_N, s.Q_S, s.KV_S), "FLOAT16")}


NO_BIAS = Rule(
    "FIA-QU-307", "MXFP8 and GQA FP8 take no pseShift", "quant", Level.CROSS, SRC_950,
    ("v5.pse.cross.gqa_full_quant_no_pse", "v5.quant.cross.mxfp8_features", "v5.quant.cross.gqa_fp8_features"),
    lambda s: s.inputs.pseShift is not None and full_intent(s) in ("mxfp8", "gqa_fp8") and not s.rope_on,
    lambda s: not s.pse_on, enforced_by="CheckFeatureMXFP8Fullquant, CheckFeatureFP8GQAFullquant",
    note="INT8 per-tensor takes one; with rope the rule for MLA stands in the room pse",
    breaks=(Break("present", _bias, {**MXFP8, "pse": "none"}), Break("present", _bias, {**GQA_FP8, "pse": "none"})),
)

RULES = (*MXFP8_RULES, *GQA_FP8_RULES, INNER_PRECISE, NO_BIAS)
