"""What rope tensors make of a call: Decode and Prefill MLA, and what these do not go with."""

from __future__ import annotations

from typing import Optional

from msgspec.structs import replace

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import head_size, per_tensor, put
from ..rule import ALL_950, DOC_A2A3_V5, SRC_A2A3, Boundary, Break, Change, Level, Rule, Words, never
from .facts import GROUP, V5, decode

_LEGAL_D = (128, 512)


def _full_decode(s: Scene) -> bool:
    return decode(s) and s.quant_kind == "full"


def _list_of_two(s: Scene) -> Optional[dict[str, object]]:
    """A contiguous batch call as a tensor list, one item a batch."""
    if s.storage != "contiguous" or s.B is None or not 2 <= s.B <= 16 or s.k_axes is None or "B" not in s.k_axes:
        return None
    found = per_tensor(lambda _, t: replace(t, shape=(1, *t.shape[1:]), strides=None), "key", "value")(s)
    return None if found is None else {n: v * s.B for n, v in found.items() if isinstance(v, tuple)}


def _rope_pair(s: Scene) -> Optional[dict[str, object]]:
    """Fitting rope tensors for a contiguous call without them."""
    query, key, q, k = s.query, s.tensor("key"), s.q_axes, s.k_axes
    if query is None or key is None or q is None or k is None or s.rope_on or s.q_dtype is None or s.KV_N <= 0:
        return None
    rope = "BFLOAT16" if s.q_dtype not in ("FLOAT16", "BFLOAT16") else s.q_dtype
    q_last, k_last = (64, 64) if "D" in q else (s.Q_N * 64, s.KV_N * 64)
    return {"queryRope": TensorSpec((*query.shape[:-1], q_last), rope),
            "keyRope": TensorSpec((*key.shape[:-1], k_last), rope)}


def _longer_queries(rows: int) -> Change:
    """A TND call of fully quantised Decode MLA in which the first query has so many tokens."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        query, out, rope, scale, lens = s.query, s.out, s.inputs.queryRope, s.inputs.dequantScaleQuery, s.q_lens
        if s.layout_name != "TND" or None in (query, out, rope, scale) or not lens or s.lse_on or max(lens[1:],
                                                                                                      default=0) > rows:
            return None
        total = sum(lens) - lens[0] + rows
        sums, seen = [], 0
        for n in (rows, *lens[1:]):
            seen += n
            sums.append(seen)
        parts = {"query": query, "attentionOut": out, "queryRope": rope, "dequantScaleQuery": scale}
        return {"actualSeqLengths": tuple(sums),
                **{n: replace(t, shape=(total, *t.shape[1:])) for n, t in parts.items() if t is not None}}

    return change


_DECODE: Words = {"scenario": ("mla_decode", "full_decode_mla")}
_FULL: Words = {"scenario": "full_decode_mla", "layout": "TND", "lse": "off"}

RULES: tuple[Rule, ...] = (
    Rule("FIA-RO-020", "head size with rope is 128 or 512", GROUP, Level.CROSS, V5,
         ("v5.rope.cross.query_d", "v3.rope.cross.query_d"),
         lambda s: s.rope_on and s.quant_kind == "none" and s.Q_D is not None, lambda s: s.Q_D in _LEGAL_D,
         enforced_by="CheckQDsizeSupport", limit="128, 512", note="MXFP8 with rope takes 64 or 128",
         breaks=(Break("value", head_size(64, "query", "key", "value", "attentionOut"),
                       {"scenario": "mla_prefill_split", "storage": "contiguous", "post_quant": "none", "sink": "off"}),
                 Break("value", head_size(256, "query", "key", "value", "attentionOut"),
                       {"scenario": "mla_prefill_split", "storage": "contiguous", "post_quant": "none",
                        "sink": "off"}))),
    Rule("FIA-RO-021", "no rope with a quantised cache", GROUP, Level.CROSS, V5,
         ("v5.rope.cross.no_antiquant", "v5.common.cross.decode_mla_no_antiquant",
          "v5.common.cross.prefill_mla_no_antiquant",
          "v5.quant.cross.antiquant_no_split_rope"),
         lambda s: s.rope_on and s.quant_kind == "antiquant", never, enforced_by="CheckFeatureAntiQuant",
         breaks=(Break("present", _rope_pair, {"scenario": "antiquant", "storage": "contiguous", "prefix": "none",
                                               "pse": "none",
                                              "head_size": "128",
                                              "kv_dtype": ("INT8", "HIFLOAT8", "FLOAT8_E4M3FN", "FLOAT4_E2M1")},
                       entails=("FIA-PQ-015",)),)),
    Rule("FIA-RO-022", "Decode MLA has numKeyValueHeads 1", GROUP, Level.CROSS, V5,
         ("v5.rope.cross.decode_kv_n", "v5.common.single.num_kv_heads_decode_mla_one", "v5.quant.cross.mla_kv_n",
          "v3.rope.cross.mla512_a2_key_n"),
         lambda s: decode(s) and s.quant_kind != "antiquant", lambda s: s.attrs.numKeyValueHeads & 0xFFFFFFFF == 1,
         enforced_by="CheckNSize", limit="1",
         note="the attribute itself: 0 (same as numHeads) is refused also with one head",
         breaks=(Break("below", put(numKeyValueHeads=0), {**_DECODE, "group": "mha"}),),
         boundaries=(Boundary(put(), put(numKeyValueHeads=0), {**_DECODE, "group": "mha"}, limit="1"),)),
    Rule("FIA-RO-023", "fully quantised Decode MLA has 1 to 16 query tokens", GROUP, Level.CROSS, ALL_950,
         ("v5.rope.cross.decode_q_s_full_quant", "v5.quant.cross.mla_q_s"),
         lambda s: _full_decode(s) and s.Q_S is not None, lambda s: (s.Q_S or 0) <= 16, enforced_by="CheckQSSize",
         limit="1..16",
         note="without a query token the call is empty and not checked",
         breaks=(Break("above", _longer_queries(17), _FULL),),
         boundaries=(Boundary(_longer_queries(16), _longer_queries(17), _FULL, limit="16"),)),
    Rule("FIA-RO-024", "Decode MLA takes no tensor list", GROUP, Level.CROSS, V5,
         ("v5.rope.cross.decode_no_tensorlist", "v5.common.cross.decode_mla_no_tensor_list",
          "v5.quant.cross.mla_no_tensorlist",
          "v5.common.cross.full_quant_no_tensor_list"),
         lambda s: decode(s), lambda s: s.storage != "tensor_list", enforced_by="CheckFeatureDecodeMLA",
         breaks=(Break("present", _list_of_two, {**_DECODE, "kv_lengths": ("absent", "one", "per_batch")}),)),
    Rule("FIA-RO-025", "Prefill MLA with rope takes no tensor list", GROUP, Level.CROSS, DOC_A2A3_V5 | SRC_A2A3,
         ("v5.rope.cross.old_products_no_tensorlist", "v5.common.cross.a2a3_prefill_mla_no_tensor_list"),
         lambda s: s.mla_kind == "prefill_split", lambda s: s.storage != "tensor_list",
         enforced_by="CheckFeatureSupport",
         breaks=(Break("present", _list_of_two, {"scenario": "mla_prefill_split",
                                                 "kv_lengths": ("absent", "one", "per_batch")},
                       entails=("FIA-CO-025",)),)),
    Rule("FIA-RO-026", "Prefill MLA with rope takes no left padding", GROUP, Level.CROSS, DOC_A2A3_V5 | SRC_A2A3,
         ("v5.rope.cross.old_products_no_left_padding", "v5.common.cross.a2a3_prefill_mla_no_left_padding"),
         lambda s: s.mla_kind == "prefill_split" and not s.paged and not s.packed
         and s.layout_name not in ("BSH_BNSD", "BSND_BNSD"), lambda s: not s.left_padding_on,
         enforced_by="CheckFeatureSupport",
         breaks=(Break("present", put(queryPaddingSize=TensorSpec((1,), "INT64")),
                       {"scenario": "mla_prefill_split", "storage": "contiguous", "q_lengths": ("one", "per_batch"),
                        "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND")}),)),
)
