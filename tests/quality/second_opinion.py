"""A second opinion on valid calls: the most important demands, told once more from the documents in plain Python.

It shares nothing with the rules of the project and reads a case as raw data, so that an error that rules and generator
have in common shows. Each demand names the spec entry or document section it was written from.
Run: python tests/quality/second_opinion.py < cases.ndjson     (one bare case or {"case": ...} a line)
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

DEMANDS: list[tuple[str, str, Callable[[Any], bool]]] = []
AXES = {"BSH": "BSH", "BSND": "BSND", "BNSD": "BNSD", "TND": "TND", "NTD": "NTD"}
ALL_LAYOUTS = {"BSH", "BSND", "BNSD", "BNSD_BSND", "BSND_BNSD", "BSH_BNSD", "BNSD_NBSD", "BSND_NBSD", "BSH_NBSD",
               "TND", "NTD", "NTD_TND", "TND_NTD"}
FLOATS = {"FLOAT16", "BFLOAT16"}
FEATURE = {"BSH", "BSND", "BNSD", "BNSD_BSND"}
BIG = 2147483647


def demand(source: str, product: str = "") -> Callable[[Callable[[Any], bool]], Callable[[Any], bool]]:
    """Register a demand: where it comes from, and for which product family alone ("950", "a", "" for all)."""
    def register(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
        DEMANDS.append((f"{test.__name__} ({source})", product, test))
        return test
    return register


def spec(case: dict[str, Any], name: str) -> Optional[dict[str, Any]]:
    """A tensor of a case by name (first of a list), None when absent."""
    found = case["inputs"].get(name) or (case.get("outputs") or {}).get(name)
    return found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else found


def look(case: dict[str, Any]) -> Any:
    """The facts that the demands ask for, worked out from the raw case."""
    v = SimpleNamespace(case=case, i=case["inputs"], a=case["attrs"], o=case.get("outputs") or {})
    v.product = case.get("product", "950")
    v.api = case.get("api", "v5")
    v.layout = v.a.get("inputLayout", "BSH")
    v.inner, _, out = v.layout.partition("_")
    v.outer = out or v.inner
    v.packed = "T" in v.inner
    v.q, v.k, v.v, v.out = (spec(case, n) for n in ("query", "key", "value", "attentionOut"))
    v.keys, v.values = v.i["key"], v.i["value"]
    v.N, v.KN = v.a["numHeads"], v.a.get("numKeyValueHeads") or v.a["numHeads"]
    v.listed = len(v.keys) > 1
    v.paged = not v.listed and v.i.get("blockTable") is not None
    v.cache = {3: "BnBsH", 4: "BnNBsD", 5: "NZ"}.get(len(v.k["shape"])) if v.paged else None
    size = dict(zip(AXES[v.inner], v.q["shape"]))
    v.D = size["D"] if "D" in size else size["H"] // v.N
    v.carrier = v.k["dtype"] == "INT32" and v.v["dtype"] == "INT32"
    v.kd, v.vd = ("INT4", "INT4") if v.carrier else (v.k["dtype"], v.v["dtype"])
    v.DV = head_size(v, v.v["shape"]) * (8 if v.carrier else 1)
    v.DK = head_size(v, v.k["shape"]) * (8 if v.carrier else 1)
    ql, kl = v.i.get("actualSeqLengths"), v.i.get("actualSeqLengthsKv")
    v.ql, v.kl = ql, kl
    v.B = len(ql or ()) if v.packed else size["B"]
    diff = [b - a for a, b in zip([0, *(ql or ())], ql or ())] if v.packed else None
    v.QS = max(diff, default=0) if v.packed else size["S"]
    v.q_each = diff if v.packed else spread(ql, v.B, v.QS)
    if v.paged:
        v.bs = v.a.get("blockSize", 0)
        v.KS = v.i["blockTable"]["shape"][1] * v.bs
        v.kv_each = list(kl or ()) if v.packed else spread(kl, v.B, v.KS)
    elif v.packed:
        v.kv_each = [b - a for a, b in zip([0, *(kl or ())], kl or ())]
        v.KS = max(v.kv_each, default=0)
    else:
        s = [dict(zip(AXES[v.inner], t["shape"]))["S"] for t in v.keys]
        v.KS = max(s)
        v.kv_each = s if v.listed and kl is None else spread(kl, v.B, v.KS)
    v.prefix = v.i.get("keySharedPrefix")
    actual = v.i.get("actualSharedPrefixLen")
    v.P = 0
    if v.prefix:
        v.PS = dict(zip(AXES[v.inner], v.prefix["shape"]))["S"]
        v.P = actual[0] if actual else v.PS
    v.rope = v.i.get("queryRope") is not None
    v.mask = v.i.get("attenMask")
    v.mode = v.a.get("sparseMode", 0)
    v.pse = v.i.get("pseShift")
    v.padded = v.i.get("queryPaddingSize") is not None or v.i.get("kvPaddingSize") is not None
    v.qd, v.od = v.q["dtype"], v.out["dtype"]
    v.quant = "antiquant" if v.qd != v.kd else "none" if v.qd in FLOATS else "full"
    v.modes = tuple(v.a.get(n, 0) for n in ("queryQuantMode", "keyAntiquantMode", "valueAntiquantMode"))
    v.decode = v.rope and v.D == 512
    v.combined = not v.rope and (v.D, v.DV) == (192, 128)
    v.mla = v.rope or v.combined
    v.unequal = v.D != v.DV and not v.combined
    v.gqa = not v.mla and not v.unequal
    v.post = v.od not in FLOATS
    v.empty = 0 in v.q["shape"] or all(0 in t["shape"] for t in (*v.keys, *v.values))
    v.old_merged = v.i.get("antiquantScale") is not None
    return v


def spread(lens: Optional[list[int]], batches: int, full: int) -> list[int]:
    """Length of each batch from a list of one entry, one a batch or more, or from the axis."""
    if lens is None:
        return [full] * batches
    return lens * batches if len(lens) == 1 else lens[:batches]


def head_size(v: Any, shape: list[int]) -> int:
    """Head size of a key or value tensor as stored."""
    if v.paged:
        return shape[2] // v.KN if len(shape) == 3 else shape[3] if len(shape) == 4 else shape[2] * shape[4]
    size = dict(zip(AXES[v.inner], shape))
    return size["D"] if "D" in size else size["H"] // v.KN


def given(v: Any, *names: str) -> bool:
    """Whether any of some inputs is not null."""
    return any(v.i.get(n) is not None for n in names)


# ---- heads, dtypes, layouts ---------------------------------------------------------------------


@demand("v5.common.single.num_heads_positive")
def heads_positive(v: Any) -> bool:
    return v.N > 0 and v.a.get("numKeyValueHeads", 0) >= 0


@demand("v5.common.consistency.num_heads_ratio")
def heads_divide(v: Any) -> bool:
    return v.N % v.KN == 0


@demand("v5.interface.consistency.num_heads_vs_query_n")
def query_heads(v: Any) -> bool:
    return "N" not in v.inner or v.q["shape"][v.inner.index("N")] == v.N


@demand("v5.interface.consistency.kv_heads_vs_key_n")
def key_heads(v: Any) -> bool:
    return v.paged or "N" not in v.inner or all(t["shape"][v.inner.index("N")] == v.KN for t in (*v.keys, *v.values))


@demand("v5.interface.single.input_layout_values")
def known_layout(v: Any) -> bool:
    return v.layout in ALL_LAYOUTS


@demand("v5.interface.single.sparse_mode_values")
def known_sparse_mode(v: Any) -> bool:
    return v.mode in range(5)


@demand("v5.interface.single.inner_precise_values")
def known_inner_precise(v: Any) -> bool:
    return v.a.get("innerPrecise", 1) in range(4)


@demand("v5.interface.consistency.dtype_column_*")
def dtype_columns(v: Any) -> bool:
    small = {"INT8", "HIFLOAT8", "FLOAT8_E4M3FN"}
    if v.kd != v.vd:
        return False
    if v.product != "950":
        table = {("FLOAT16", "FLOAT16"): {"FLOAT16", "INT8"}, ("BFLOAT16", "BFLOAT16"): {"BFLOAT16", "INT8"},
                 ("INT8", "INT8"): {"FLOAT16", "BFLOAT16", "INT8"}}
        for q in FLOATS:
            table |= {(q, "INT8"): {q, "INT8"}, (q, "INT4"): {q}}
        return v.od in table.get((v.qd, v.kd), set())
    if v.qd in FLOATS:
        return v.kd in {v.qd, "INT4", "FLOAT4_E2M1"} | small and v.od in {v.qd} | small
    return v.kd == v.qd and v.od in {"INT8": {"BFLOAT16"}, "FLOAT8_E4M3FN": FLOATS, "HIFLOAT8": FLOATS}[v.qd]


@demand("v5.interface.single.query_format_nd")
def dense_nd(v: Any) -> bool:
    return all(t.get("format", "ND") == "ND" and not t.get("strides") for t in (v.q, *v.keys, *v.values, v.out))


@demand("v5.common.single.layouts_gqa, layouts_prefill_mla, layouts_decode_mla")
def layout_of_scenario(v: Any) -> bool:
    if v.decode:
        return v.layout in {"BNSD", "BSND", "BSH", "TND", "BNSD_NBSD", "BSND_NBSD", "BSH_NBSD", "TND_NTD"}
    return v.layout in ALL_LAYOUTS - {"BNSD_NBSD", "BSND_NBSD", "BSH_NBSD", "TND_NTD"}


# ---- shapes -------------------------------------------------------------------------------------


@demand("v5.common.consistency.head_dim_limit_qk")
def head_size_limit(v: Any) -> bool:
    return 0 < v.D <= 512 and 0 < v.DV <= 512


@demand("v5.common.consistency.key_d_equals_query_d")
def key_head_size(v: Any) -> bool:
    return v.DK == v.D


@demand("v5.common.consistency.key_value_same_shape")
def key_and_value_agree(v: Any) -> bool:
    last = v.combined or v.unequal
    return len(v.keys) == len(v.values) and all(
        a["shape"] == b["shape"] or (last and (len(a["shape"]) in (3, 5) or a["shape"][:-1] == b["shape"][:-1]))
        for a, b in zip(v.keys, v.values))


@demand("v5.common.consistency.key_batch_equals_query")
def key_batch(v: Any) -> bool:
    return v.packed or v.paged or v.listed or v.k["shape"][0] == v.B


@demand("v5.common.consistency.out_axes_equal*")
def output_axes(v: Any) -> bool:
    size = dict(zip(AXES[v.inner], v.q["shape"]))
    size |= {"N": v.N, "D": v.DV, "H": v.N * v.DV}
    return v.out["shape"] == [size[a] for a in ("NBSD" if v.outer == "NBSD" else AXES[v.outer])]


@demand("v5.common.consistency.tensor_list_count_is_batch, tensor_list_item_batch_one")
def list_items(v: Any) -> bool:
    return not v.listed or (len(v.keys) == v.B and all(t["shape"][0] == 1 for t in (*v.keys, *v.values)))


@demand("v5.common.cross.tnd_ntd_no_tensor_list, transposed_no_tensor_list")
def list_layout(v: Any) -> bool:
    return not v.listed or v.layout in FEATURE


@demand("v5.common.consistency.head_dim_64_128_layouts")
def fixed_head_size(v: Any) -> bool:
    fixed = v.gqa and v.quant == "none" and v.layout in {"NTD", "NTD_TND", "BSH_BNSD", "BSND_BNSD"}
    return not fixed or v.D in (64, 128)


@demand("v5.common.consistency.head_dim_bnsd_bsnd_16, head_dim_bnsd_bsnd_int8_32")
def aligned_head_size(v: Any) -> bool:
    if v.layout != "BNSD_BSND" or not v.gqa or v.quant != "none":
        return True
    return v.D % (32 if v.od == "INT8" else 16) == 0


@demand("v5.common.consistency.prefill_mla_head_dims, decode_mla_head_dims, rope.cross.query_d")
def rope_head_sizes(v: Any) -> bool:
    if not v.rope:
        return True
    allowed = (64, 128) if v.modes == (6, 6, 8) and v.quant == "full" else (128, 512)
    return v.D in allowed and v.D == v.DV


@demand("v5.common.consistency.d_unequal_limit, cross.d_unequal_only_mask", "950")
def unequal_head_sizes(v: Any) -> bool:
    if not v.unequal:
        return True
    plain = not (v.paged or v.pse or v.padded or v.post or v.prefix or v.a.get("softmaxLseFlag"))
    return (max(v.D, v.DV) <= 128 and v.layout in {"BSH", "BSND", "BNSD", "TND"} and plain and v.quant == "none"
            and v.mode in (0, 2, 3))


@demand("v5.common.consistency.qd_not_below_vd_a2, rope.cross.prefill_combined_d", "a")
def no_unequal_on_older(v: Any) -> bool:
    return not v.unequal


@demand("v3.common.cross.qs_gt1_d_align_fp_a2, qs_gt1_d_align_int8_a2", "a")
def older_alignment(v: Any) -> bool:
    if v.QS <= 1 or v.packed or v.rope or v.empty:
        return True
    return v.D % (32 if "INT8" in (v.qd, v.kd, v.od) else 16) == 0


# ---- lengths ------------------------------------------------------------------------------------


@demand("v5.actual_seq_len.existence.q_tnd_required, kv_tnd_required, kv_pa_required")
def lengths_given(v: Any) -> bool:
    return not ((v.packed and (v.ql is None or v.kl is None)) or (v.paged and v.kl is None))


@demand("v5.actual_seq_len.single.q_len_other, kv_len_other")
def length_counts(v: Any) -> bool:
    if v.packed:
        return len(v.kl) == v.B
    return all(n is None or len(n) == 1 or len(n) >= v.B for n in (v.ql, v.kl))


@demand("v5.actual_seq_len.single.q_nonneg, kv_nonneg")
def lengths_not_negative(v: Any) -> bool:
    return all(n >= 0 for n in (*(v.ql or ()), *(v.kl or ())))


@demand("v5.actual_seq_len.single.q_tnd_nondecreasing, kv_tnd_nondecreasing")
def lengths_rise(v: Any) -> bool:
    return not v.packed or (min(v.q_each, default=0) >= 0 and (v.paged or min(v.kv_each, default=0) >= 0))


@demand("v5.actual_seq_len.single.q_tnd_last_is_t, kv_tnd_last_is_t")
def last_length_is_t(v: Any) -> bool:
    if not v.packed:
        return True
    t = v.inner.index("T")
    return v.ql[-1] == v.q["shape"][t] and (v.paged or v.kl[-1] == v.k["shape"][t])


@demand("v5.actual_seq_len.single.q_other_max, kv_other_max")
def lengths_fit(v: Any) -> bool:
    fits = max(v.q_each, default=0) <= v.QS and max(v.kv_each, default=0) <= v.KS
    if v.listed:
        s = [dict(zip(AXES[v.inner], t["shape"]))["S"] for t in v.keys]
        fits = fits and all(n <= most for n, most in zip(v.kv_each, s))
    return fits


@demand("v5.actual_seq_len.cross.decode_mla_full_quant_q")
def no_query_lengths(v: Any) -> bool:
    return not (v.decode and v.quant == "full" and not v.packed) or v.ql is None


@demand("v5 document line 227 with spec/v5_common_notes.md 6.2")
def one_key_length_a_batch(v: Any) -> bool:
    # Held against the V5 document profiles only, see accepted().
    return v.kl is None or len(v.kl) == v.B


# ---- mask, bias ---------------------------------------------------------------------------------


@demand("v5.attention_mask.single.sparse_mode_needs_mask")
def mode_has_mask(v: Any) -> bool:
    return v.mode == 0 or v.mask is not None


@demand("v5.attention_mask.single.dtype")
def mask_dtype(v: Any) -> bool:
    return v.mask is None or v.mask["dtype"] in {"BOOL", "INT8", "UINT8"}


@demand("v5.interface.consistency.mask_dtype_columns", "950")
def bool_masks(v: Any) -> bool:
    only = v.quant == "antiquant" and v.kd in {"INT4", "FLOAT4_E2M1", "HIFLOAT8"}
    return not only or v.mask is None or v.mask["dtype"] == "BOOL"


@demand("v5.attention_mask.consistency.mode234_shape")
def compressed_mask(v: Any) -> bool:
    if v.mode not in (2, 3, 4):
        return True
    shape = v.mask["shape"]
    return shape[-2:] == [2048, 2048] and all(n == 1 for n in shape[:-2]) and len(shape) <= 4


@demand("v5.attention_mask.consistency.mode01_*")
def full_mask(v: Any) -> bool:
    if v.mask is None or v.mode not in (0, 1):
        return True
    shape = v.mask["shape"]
    if len(shape) == 2:
        return v.product != "950" and shape[0] >= v.QS and shape[1] >= v.KS + v.P
    return (len(shape) in (3, 4) and shape[0] in (1, v.B) and (len(shape) == 3 or shape[1] == 1)
            and shape[-2] >= v.QS and shape[-1] >= v.KS + v.P)


@demand("v5.attention_mask.consistency.pre_next_tokens_order, interface.consistency.pre_plus_next_nonneg")
def tokens_order(v: Any) -> bool:
    if not (v.mode == 4 or (v.mode == 0 and v.mask)):
        return True
    return v.a.get("preTokens", BIG) + v.a.get("nextTokens", BIG) >= 0


@demand("spec/numerics.md 6, caution for mode 0")
def mask_closed_outside_band(v: Any) -> bool:
    pre, nxt = v.a.get("preTokens", BIG), v.a.get("nextTokens", BIG)
    if v.mode != 0 or v.mask is None or (pre >= BIG and nxt >= BIG):
        return True
    fill = v.mask.get("fill") or {}
    if fill.get("kind") == "band":
        return fill["pre"] <= pre and fill["next"] <= nxt
    if fill.get("kind") == "triu":
        return pre >= BIG and fill["diagonal"] <= nxt + 1
    return False


@demand("v5.attention_mask.cross.antiquant_decode_sparse_mode", "950")
def one_token_antiquant_mode(v: Any) -> bool:
    return not (v.quant == "antiquant" and v.QS == 1) or v.mode == 0


@demand("v5.attention_mask.cross.decode_mla_no_quant_modes")
def decode_mla_modes(v: Any) -> bool:
    return not (v.decode and v.quant == "none") or v.mode in (0, 3, 4)


@demand("v5.attention_mask.cross.full_quant_*, mxfp8_modes, fp8_gqa_modes")
def full_quant_modes(v: Any) -> bool:
    if v.quant != "full" or (not v.decode and v.modes == (0, 0, 0)):
        return True
    if v.decode and v.qd == "INT8" and not v.packed and (v.mode == 0) != (v.QS == 1):
        return False
    return (v.mode == 0 and v.mask is None) or (v.mode == 3 and v.mask is not None)


@demand("v5.pse.single.rank_4, s1_gt1_*, s1_eq1_*")
def bias_shape(v: Any) -> bool:
    if v.pse is None:
        return True
    shape = v.pse["shape"]
    return (len(shape) == 4 and shape[0] in (1, v.B) and shape[1] == v.N and (shape[2] == 1 or shape[2] >= v.QS)
            and shape[3] >= v.KS + v.P)


@demand("v5.pse.single.dtype_fp16_for_fp16_int8_query, dtype_bf16_for_bf16_query, pse_type_head_only_zero")
def bias_dtype(v: Any) -> bool:
    wanted = {"FLOAT16": "FLOAT16", "INT8": "FLOAT16", "BFLOAT16": "BFLOAT16"}
    return v.a.get("pseType", 0) == 0 and (v.pse is None or v.pse["dtype"] == wanted.get(v.qd))


@demand("v5.pse.cross.mla_no_pse, d_unequal_no_pse, layouts_no_pse, gqa_full_quant_no_pse")
def bias_allowed(v: Any) -> bool:
    return v.pse is None or (v.layout in FEATURE and v.gqa and v.quant != "full")


# ---- paging, padding, prefix --------------------------------------------------------------------


@demand("v5.paged_attention.single.block_table_*")
def table_shape(v: Any) -> bool:
    if not v.paged:
        return True
    shape = v.i["blockTable"]["shape"]
    needed = max((-(-n // v.bs) for n in v.kv_each), default=0)
    return len(shape) == 2 and min(shape) > 0 and shape[0] == v.B and shape[1] >= needed


@demand("v5.paged_attention.single.block_table_values")
def table_entries(v: Any) -> bool:
    if not v.paged or not v.i["blockTable"].get("values"):
        return True
    table, columns = v.i["blockTable"], v.i["blockTable"]["shape"][1]
    return all(0 <= table["values"][b * columns + c] < v.k["shape"][0]
               for b, n in enumerate(v.kv_each) for c in range(-(-n // v.bs)))


@demand("v5.paged_attention.consistency.cache_*")
def cache_shape(v: Any) -> bool:
    if not v.paged:
        return True
    shape = v.k["shape"]
    if v.cache == "BnBsH":
        return shape[1] == v.bs and shape[2] * (8 if v.carrier else 1) == v.KN * v.D <= 65535
    if v.cache == "BnNBsD":
        return shape[1:3] == [v.KN, v.bs]
    row = 32 if v.quant == "full" else 2 if v.carrier else 16
    return shape[1] == v.KN and shape[3:] == [v.bs, row]


@demand("v5.paged_attention.single.block_size_*", "950")
def block_sizes(v: Any) -> bool:
    if not v.paged:
        return True
    if v.quant == "full":
        return v.bs in ((64, 128, 256, 512, 1024) if v.modes == (6, 6, 8) else (128,))
    if v.quant == "antiquant":
        return v.bs % (64 if v.kd in {"INT4", "FLOAT4_E2M1"} else 32) == 0 and 0 < v.bs <= 512
    if v.mla or v.D in (64, 128):
        return v.bs % 16 == 0 and 16 <= v.bs <= 1024
    if v.QS == 1:
        return v.bs % 16 == 0 and 16 <= v.bs <= 512
    return v.bs % 128 == 0 and 128 <= v.bs <= 1024


@demand("v5.paged_attention.existence.no_*")
def paging_alone(v: Any) -> bool:
    return not v.paged or not (v.padded or given(v, "keySharedPrefix", "valueSharedPrefix") or v.unequal)


@demand("v5.paged_attention.cross.antiquant_4d_layout, fq_decode_mla_*, mxfp8_cache_not_3d, fp8_gqa_cache_4d", "950")
def cache_of_layout(v: Any) -> bool:
    if not v.paged or v.quant == "none":
        return True
    if v.quant == "antiquant":
        return v.cache != "BnNBsD" or v.layout in {"BNSD", "BNSD_BSND", "TND"}
    if v.decode:
        return v.cache == "NZ" if v.qd == "INT8" else v.cache != "BnNBsD" or v.inner not in {"BSH", "BSND"}
    return v.cache != "BnBsH" if v.modes == (6, 6, 8) else v.cache == "BnNBsD"


@demand("v5.left_padding.cross.no_*, q_needs_actual_seq_lengths, kv_needs_actual_seq_lengths_kv")
def padding_allowed(v: Any) -> bool:
    if not v.padded:
        return True
    return (v.layout in FEATURE and not v.prefix and not v.decode and not v.unequal and not v.listed
            and (not given(v, "queryPaddingSize") or v.ql is not None)
            and (not given(v, "kvPaddingSize") or v.kl is not None))


@demand("spec/numerics.md 11 and 24.6")
def padding_begins_inside(v: Any) -> bool:
    for name, axis, lens in (("queryPaddingSize", v.QS, v.q_each), ("kvPaddingSize", v.KS, v.kv_each)):
        if given(v, name) and v.i[name].get("values") and axis - max(lens) - max(0, v.i[name]["values"][0]) < 0:
            return False
    return True


@demand("v5.shared_prefix.single.*")
def prefix_shape(v: Any) -> bool:
    if not v.prefix:
        return v.i.get("valueSharedPrefix") is None
    s = v.inner.index("S")
    same = [a == b for n, (a, b) in enumerate(zip(v.prefix["shape"], v.k["shape"])) if n not in (0, s)]
    return (v.prefix["shape"][0] == 1 and all(same) and v.prefix["dtype"] == v.k["dtype"] and v.P <= v.PS
            and v.i["valueSharedPrefix"]["shape"] == v.prefix["shape"])


@demand("v5.shared_prefix.cross.*")
def prefix_allowed(v: Any) -> bool:
    if not v.prefix:
        return True
    if v.listed or v.padded or v.layout not in FEATURE or not v.gqa or v.quant == "full":
        return False
    if v.post and v.od != "INT8":
        return False
    if v.quant == "antiquant" and v.QS > 1:
        return v.kd == "INT8" and v.modes[1:] in ((0, 0), (1, 1))
    return v.quant == "none" or v.kd in {"INT8", "INT4"}


# ---- quantisation -------------------------------------------------------------------------------


@demand("v5.quant.existence.no_quant_forbids_*")
def no_stray_scales(v: Any) -> bool:
    return v.quant != "none" or not given(
        v, "deqScale1", "quantScale1", "deqScale2", "keyAntiquantScale", "keyAntiquantOffset", "valueAntiquantScale",
        "valueAntiquantOffset", "dequantScaleQuery", "antiquantScale", "antiquantOffset")


@demand("v5.quant.existence.antiquant_*_required, antiquant_merged_*", "950")
def antiquant_scales_given(v: Any) -> bool:
    return v.quant != "antiquant" or (given(v, "keyAntiquantScale") and given(v, "valueAntiquantScale")
                                      and not given(v, "antiquantScale", "antiquantOffset"))


@demand("v5.quant.existence.antiquant_no_*_offset_for_float_kv, antiquant_*_offset_needs_*")
def antiquant_offsets(v: Any) -> bool:
    both = given(v, "keyAntiquantOffset"), given(v, "valueAntiquantOffset")
    return both[0] == both[1] and (not both[0] or v.kd in {"INT8", "INT4"})


@demand("v5.quant.consistency.antiquant_modes_equal")
def antiquant_modes(v: Any) -> bool:
    return v.quant != "antiquant" or v.modes[1] == v.modes[2] in range(7) or v.modes[1:] == (0, 1)


def scale_form(v: Any) -> str:
    """The kind of antiquant parameters that modes and scale shape name."""
    key = spec(v.case, "keyAntiquantScale")
    if v.modes[1:] == (0, 0):
        return "per_tensor" if key["shape"] == [1] else "per_channel"
    return {(1, 1): "per_token", (2, 2): "tensor_head", (3, 3): "token_head", (4, 4): "token_paged",
            (5, 5): "token_head_paged", (6, 6): "group", (0, 1): "mixed"}[v.modes[1:]]


@demand("v5.quant.single.antiquant_kv_dtype_*")
def antiquant_kv_dtypes(v: Any) -> bool:
    if v.quant != "antiquant" or v.old_merged:
        return True
    table = {"per_tensor": {"INT8"}, "per_channel": {"INT8", "INT4", "HIFLOAT8", "FLOAT8_E4M3FN"},
             "per_token": {"INT8", "INT4", "FLOAT8_E4M3FN"}, "tensor_head": {"INT8"}, "token_head": {"INT8", "INT4"},
             "token_paged": {"INT8", "FLOAT8_E4M3FN"}, "token_head_paged": {"INT8"}, "mixed": {"INT8", "INT4"},
             "group": {"FLOAT4_E2M1"}}
    return v.kd in table[scale_form(v)]


@demand("v5.quant.single.antiquant_kv_scale_dtype_*")
def antiquant_scale_dtypes(v: Any) -> bool:
    if v.quant != "antiquant" or v.old_merged:
        return True
    form = scale_form(v)
    key = {"per_tensor": v.qd, "per_channel": v.qd, "tensor_head": v.qd, "mixed": v.qd,
           "group": "FLOAT8_E8M0"}.get(form, "FLOAT32")
    value = "FLOAT32" if form == "mixed" else key
    return spec(v.case, "keyAntiquantScale")["dtype"] == key and spec(v.case, "valueAntiquantScale")["dtype"] == value


@demand("v5.quant.single.antiquant_scale_shape_*")
def antiquant_scale_shapes(v: Any) -> bool:
    if v.quant != "antiquant" or v.old_merged:
        return True
    n, d, s = v.KN, v.D, v.KS + v.P
    channel = [[n * d], [1, n * d], [n, d], [1, n, d], [n, 1, d], [1, n, 1, d], [1, 1, n, d]]
    token = [[v.B, s], [1, v.B, s]]
    cache = v.k["shape"]
    bs = v.a.get("blockSize", 0)
    forms = {"per_tensor": [[1]], "per_channel": channel, "per_token": token, "tensor_head": [[n]],
             "token_head": [[v.B, n, s]], "token_paged": [[cache[0], bs]], "token_head_paged": [[cache[0], n, bs]],
             "mixed": channel, "group": [[1, v.B, n, s, d // 32]]}
    form = scale_form(v)
    key, value = (spec(v.case, f"{name}AntiquantScale")["shape"] for name in ("key", "value"))
    return key in forms[form] and (value in token if form == "mixed" else value == key)


@demand("v5.quant.cross.antiquant_int8_qs_gt1_*, antiquant_int8_qs_max_16", "950")
def antiquant_int8_tokens(v: Any) -> bool:
    if not (v.quant == "antiquant" and v.kd == "INT8" and v.QS > 1):
        return True
    return (v.modes[1] in (0, 1) and v.qd == v.od == "BFLOAT16" and v.QS <= 16
            and not (v.listed or v.padded or v.paged))


@demand("v5.quant.cross.antiquant_layout, antiquant_int8_no_tnd, antiquant_qs1_no_bnsd_bsnd, antiquant_int4_qs1_only")
def antiquant_layouts(v: Any) -> bool:
    if v.quant != "antiquant":
        return True
    return (v.layout in {"BSH", "BSND", "BNSD", "BNSD_BSND", "TND"} and not (v.kd == "INT8" and v.packed)
            and not (v.QS == 1 and v.layout == "BNSD_BSND") and not (v.kd == "INT4" and v.QS > 1))


@demand("v5.quant.cross.antiquant_no_split_rope, antiquant_no_combined_rope, antiquant_unequal_d_forbidden")
def antiquant_plain_heads(v: Any) -> bool:
    return v.quant != "antiquant" or v.gqa


@demand("v5.quant.cross.antiquant_k0v1_int8_needs_fp16")
def mixed_int8_dtypes(v: Any) -> bool:
    mixed = v.quant == "antiquant" and not v.old_merged and v.modes[1:] == (0, 1) and v.kd == "INT8"
    return not mixed or v.qd == v.od == "FLOAT16"


@demand("v5.quant.existence.per_tensor_*, quant.cross.per_tensor_*, v3.quant.existence.int8_in_*")
def per_tensor_int8(v: Any) -> bool:
    if v.quant != "full" or v.modes != (0, 0, 0):
        return True
    scales = [spec(v.case, n) for n in ("deqScale1", "quantScale1", "deqScale2")]
    return (v.qd == "INT8" and all(s is not None and s["shape"] == [1] for s in scales) and v.QS != 1 and not v.paged
            and v.layout in FEATURE and v.gqa and v.N // v.KN <= 64 and v.N <= 256)


@demand("v5.quant.cross.mla_*, quant.single.mla_*")
def decode_mla_full_quant(v: Any) -> bool:
    if not (v.quant == "full" and v.decode):
        return True
    shape = v.q["shape"][:-1] if v.inner != "BSH" else [*v.q["shape"][:2], v.N]
    int8 = v.qd != "INT8" or v.inner != "BNSD"
    return (v.modes == (3, 0, 0) and 1 <= v.QS <= 16 and v.od == "BFLOAT16" and int8
            and spec(v.case, "dequantScaleQuery")["shape"] == shape and v.i["queryRope"]["dtype"] == "BFLOAT16"
            and all(spec(v.case, n)["shape"] == [1] for n in ("keyAntiquantScale", "valueAntiquantScale")))


@demand("v5.quant.cross.mxfp8_*", "950")
def mxfp8(v: Any) -> bool:
    if v.quant != "full" or v.modes != (6, 6, 8):
        return True
    groups = math.ceil(v.D / 64)
    query = spec(v.case, "dequantScaleQuery")["shape"]
    t = v.q["shape"][0]
    return (v.layout == "TND" and v.D in (64, 128) and v.D == v.DV and v.N // v.KN <= 64
            and query in ([t, v.N, groups, 2], [v.KN, t, v.N // v.KN, groups, 2])
            and v.a.get("innerPrecise", 1) in (0, 1) and not v.pse and not v.padded and not v.post)


@demand("v5.quant.cross.gqa_fp8_*", "950")
def gqa_fp8(v: Any) -> bool:
    if v.quant != "full" or v.modes != (3, 3, 2):
        return True
    return (v.layout == "NTD_TND" and v.D == v.DV == 128 and v.paged and not v.rope
            and spec(v.case, "dequantScaleQuery")["shape"] == [v.N, v.q["shape"][1]]
            and spec(v.case, "keyAntiquantScale")["shape"] == [v.k["shape"][0], v.KN, v.bs]
            and spec(v.case, "valueAntiquantScale")["shape"] == [v.KN] and v.a.get("innerPrecise", 1) in (0, 1))


@demand("v5.post_quant.existence.scale2_required, cross.scale2_fp32_unless_bf16_query")
def post_quant_scale(v: Any) -> bool:
    scale = v.i.get("quantScale2")
    if not v.post:
        return scale is None and v.i.get("quantOffset2") is None
    return scale is not None and (scale["dtype"] == "FLOAT32" or (scale["dtype"], v.qd) == ("BFLOAT16", "BFLOAT16"))


@demand("v5.post_quant.consistency.*")
def post_quant_shape(v: Any) -> bool:
    if not v.post:
        return True
    scale, offset = v.i["quantScale2"], v.i.get("quantOffset2")
    if offset is not None and (offset["shape"], offset["dtype"]) != (scale["shape"], scale["dtype"]):
        return False
    if scale["shape"] == [1]:
        return True
    return math.prod(scale["shape"]) == v.N * v.DV if v.layout in FEATURE else scale["shape"] == [v.N, v.DV]


@demand("v5.post_quant.cross.antiquant_out_equals_kv, full_quant_none")
def post_quant_beside_quant(v: Any) -> bool:
    if not v.post or v.quant == "none":
        return True
    if v.quant == "full":
        return v.product != "950"
    fp8 = v.kd == "FLOAT8_E4M3FN" and v.modes[1:] in ((1, 1), (4, 4))
    return v.od == v.kd and not fp8


# ---- rope, sink, lse ----------------------------------------------------------------------------


@demand("v5.rope.existence.both_or_none, consistency.query_rope_shape, single.rope_head_dim")
def rope_shapes(v: Any) -> bool:
    if not v.rope:
        return v.i.get("keyRope") is None
    rope = v.i["queryRope"]["shape"]
    wanted = [*v.q["shape"][:-1], v.N * 64 if v.inner == "BSH" else 64]
    key, k = v.i["keyRope"]["shape"], v.k["shape"]
    if v.paged:
        tail = {"BnBsH": [v.KN * 64], "BnNBsD": [64], "NZ": [16]}[v.cache]
        return rope == wanted and len(key) == len(k) and key[:2] == k[:2] and key[-1:] == tail
    if v.listed:
        s = v.inner.index("S")
        return rope == wanted and key[0] == v.B and all(t["shape"][s] == key[s] for t in v.keys)
    return rope == wanted and key == [*k[:-1], v.KN * 64 if v.inner == "BSH" else 64]


@demand("v5.rope.cross.query_rope_dtype_equal, key_rope_dtype_equal")
def rope_dtypes(v: Any) -> bool:
    if not v.rope:
        return True
    wanted = v.qd if v.quant == "none" else "BFLOAT16"
    return v.i["queryRope"]["dtype"] == v.i["keyRope"]["dtype"] == wanted


@demand("v5.rope.cross.decode_*")
def decode_mla(v: Any) -> bool:
    if not v.decode:
        return True
    return (v.a.get("numKeyValueHeads", 0) == 1 and v.N in (1, 2, 4, 8, 16, 32, 64, 128) and not v.listed
            and not v.padded and not v.prefix and v.pse is None and v.quant != "antiquant")


@demand("v5.post_quant.cross.mla_old_products, common.cross.a2a3_prefill_mla_*", "a")
def older_mla(v: Any) -> bool:
    return not v.rope or not (v.post or v.listed or v.padded)


@demand("v5.learnable_sink.*")
def sink(v: Any) -> bool:
    s = v.i.get("learnableSink")
    if s is None:
        return True
    return (s["shape"] == [v.N] and s["dtype"] == v.qd and v.D in (64, 128, 192) and v.DV in (64, 128)
            and v.a.get("innerPrecise", 1) == 0 and not (v.padded or v.prefix or v.pse or v.post or v.decode)
            and v.quant == "none")


@demand("v5.softmax_lse.*")
def lse_shape(v: Any) -> bool:
    if not v.a.get("softmaxLseFlag"):
        return True
    lse = v.o.get("softmaxLse")
    wanted = [v.q["shape"][v.inner.index("T")], v.N, 1] if v.packed else [v.B, v.N, v.QS, 1]
    return lse is not None and lse["dtype"] == "FLOAT32" and lse["shape"] == wanted and not v.unequal


@demand("v5.inner_precise.cross, v3.inner_precise.single.values (decode route: 0 and 1 only)", "a")
def older_decode_precision(v: Any) -> bool:
    return not (v.quant == "antiquant" and v.QS == 1) or v.a.get("innerPrecise", 1) in (0, 1)


# ---- V3 document --------------------------------------------------------------------------------


def v3(v: Any) -> bool:
    return v.product != "950" and v.api == "v3"


def v3_document(v: Any) -> list[str]:
    """Demands that only the V3 document states (spec/v3.yaml); held against its profiles alone."""
    broken = []
    if v.packed and not v.decode:
        if (v.mode, v.mask is None) not in ((0, True), (3, False), (4, False)):
            broken.append("packed tokens: sparseMode 0 without mask, 3 or 4 (v3.attention_mask.cross.tnd_sparse_modes)")
        if v.mode == 3 and any(a >= b for a, b in zip(v.q_each, v.kv_each)):
            broken.append("sparseMode 3: fewer query tokens than keys (v3.actual_seq_len.cross.tnd_sparse3_q_lt_kv)")
        if v.layout == "TND" and v.N != v.KN and v.a.get("innerPrecise", 1) != 0:
            broken.append("TND with groups wants innerPrecise 0 (v3.inner_precise.cross.tnd_gqa)")
        if v.layout == "NTD_TND" and (v.qd != "BFLOAT16" or v.paged):
            broken.append("NTD_TND: BFLOAT16 without paging (v3.common.cross.ntd_tnd_dtype)")
        if v.post or v.pse or v.prefix or v.quant != "none":
            broken.append("packed tokens: no quantisation, bias or prefix (v3.*.cross.tnd_no_*)")
    if v.decode and not v.paged:
        broken.append("decode MLA is paged (v3.paged_attention.existence.mla512_a2_mandatory)")
    if v.decode and not 1 <= v.QS <= 16:
        broken.append("decode MLA: 1 to 16 tokens (v3.rope.cross.mla512_a2_q_s)")
    if v.decode and v.paged and v.bs not in ((128,) if v.cache == "NZ" else (16, 128)):
        broken.append("decode MLA: block size 16 or 128 (v3.paged_attention.cross.mla512_a2_block_size_*)")
    if v.paged and not v.decode and not v.packed:
        low, step = (16, 32 if v.kd == "INT8" else 16) if v.QS == 1 else (128, 128)
        if not low <= v.bs <= 512 or v.bs % step:
            broken.append("block size (v3.paged_attention.single.qs_*_block_size)")
        if v.cache != "BnBsH" and v.inner != "BNSD":
            broken.append("cache layout (v3.paged_attention.cross.qs_*_layouts_*)")
    if v.layout in {"NTD", "BSH_BNSD", "BSND_BNSD"}:
        broken.append("layout (v3.common.single.input_layout_values)")
    if v.layout == "BNSD_BSND" and v.QS < 2:
        broken.append("BNSD_BSND with one token (v3.common.cross.layout_bnsd_bsnd_qs)")
    return broken


def holds(test: Callable[[Any], bool], v: Any) -> bool:
    """Whether a demand holds; a call so odd that the question cannot be put does not meet it."""
    try:
        return test(v)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        return False


def objections(case: dict[str, Any], profile: str = "") -> list[str]:
    """What the second opinion has against a call, in words; [] when it agrees that the call is valid.

    ``profile`` adds what only a document demands: the V5 document one key length a batch, the V3 document its own part.
    """
    try:
        v = look(case)
    except Exception as error:
        return [f"cannot be read: {type(error).__name__} {error}"]
    family = "950" if v.product == "950" else "a"
    broken = []
    for name, product, test in DEMANDS:
        if test is one_key_length_a_batch and not (profile.endswith("v5") and not v.packed):
            continue
        skipped = v.empty and test not in (heads_positive, known_layout, dtype_columns)
        if product in ("", family) and not skipped and not holds(test, v):
            broken.append(name)
    if profile in ("a2-v3", "a3-v3") and not v.empty:
        broken += v3_document(v)
    return broken


def main() -> int:
    bad = 0
    for number, line in enumerate(sys.stdin, 1):
        record = json.loads(line)
        found = objections(record.get("case", record), record.get("profile", ""))
        bad += bool(found)
        for text in found:
            print(f"line {number}: {text}")
    print(f"{len(DEMANDS)} demands; {bad} calls objected to", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
