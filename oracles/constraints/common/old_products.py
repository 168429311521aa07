"""What the V3 document demands of query, key, value and attentionOut on A2 and A3 beyond the common demands.

The document describes the older routes. A call without quantisation mostly takes a newer one that is wider: such a
demand is only documented.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.dtypes import FLOAT_QUERY
from fiafuzz.model.scene import Scene

from ..changes import cast, head_size, put, specs, together, where, with_shape
from ..facts import decode_mla, fast_tnd
from ..rule import DOC_A2A3, DOC_A2A3_V3, Basis, Boundary, Break, Change, Level, Words
from .head_size import within
from .recipes import SIZED, axis_everywhere, common_rule, relayout

ALIGNED_LAYOUTS = frozenset({"BSH", "BSND", "BNSD", "BNSD_BSND"})
LIST_LAYOUTS = frozenset({"BSH", "BSND", "BNSD", "BNSD_BSND"})
NBSD = frozenset({"BSH_NBSD", "BSND_NBSD", "BNSD_NBSD"})
LARGEST_TND = 256

_ALL_D = ("query", "key", "value", "attentionOut")


def _several(s: Scene) -> bool:
    return s.Q_S is not None and s.Q_S > 1


def _equal(s: Scene) -> bool:
    return within(s) and s.Q_D == s.V_D


def _floats(s: Scene) -> bool:
    return s.quant_kind == "none" and s.out_dtype in FLOAT_QUERY


def _int8(s: Scene) -> bool:
    return "INT8" in (s.q_dtype, s.k_dtype, s.out_dtype) and s.quant_kind is not None


def _heads_agree(s: Scene) -> bool:
    if s.KV_N < 0:
        return True  # a rule of its own
    if s.num_heads <= 0 or s.KV_N == 0 or s.G is None:
        return False
    query = s.q_axes is None or s.q_axes.get("N", s.Q_N) == s.Q_N
    return query and (s.k_axes is None or s.k_axes.get("N", s.KV_N) == s.KV_N)


def _long_queries(s: Scene) -> Optional[Mapping[str, object]]:
    """All queries of a packed call in its first batch, where that is more than 16 tokens."""
    if not s.packed or s.T is None or s.T <= 16 or s.B is None or s.B < 2:
        return None
    return {"actualSeqLengths": (s.T,) * s.B}


def _first_query(tokens: int) -> Change:
    """Two packed queries cut anew: the first takes that many tokens, the second the rest (1 to 16)."""
    def change(s: Scene) -> Optional[Mapping[str, object]]:
        if not s.packed or s.B != 2 or s.T is None or not 1 <= s.T - tokens <= 16:
            return None
        return {"actualSeqLengths": (tokens, s.T)}
    return change


def _idle_batch(s: Scene) -> Optional[Mapping[str, object]]:
    """The query of the second batch of a packed call moved into the first, where 16 tokens stay the most."""
    lens = s.inputs.actualSeqLengths
    if not s.packed or lens is None or len(lens) < 2 or not 0 < lens[1] <= 16:
        return None
    return {"actualSeqLengths": (lens[1], *lens[1:])}


def _as_tnd(s: Scene) -> Optional[Mapping[str, object]]:
    """A BSND call as TND: all batches behind each other."""
    if s.B is None or s.Q_S is None or s.KV_S is None or not 1 <= s.B <= 64:
        return None
    values: dict[str, object] = {
        "inputLayout": "TND", "actualSeqLengths": tuple(s.Q_S * (i + 1) for i in range(s.B)),
        "actualSeqLengthsKv": tuple(s.KV_S * (i + 1) for i in range(s.B))}
    for name in ("query", "key", "value", "attentionOut"):
        found = specs(s, name)
        if len(found) != 1 or found[0].rank != 4:
            return None
        b, rows, n, d = found[0].shape
        packed = with_shape(found[0], (b * rows, n, d))
        values[name] = (packed,) if name in ("key", "value") else packed
    return values


def _rope(s: Scene) -> Optional[Mapping[str, object]]:
    """Rope tensors for a tensor list of B equal items."""
    if s.query is None or not s.keys or s.keys[0] is None or s.layout is None or len(s.keys) != s.B or s.KV_N <= 0:
        return None
    if len({t.shape for t in s.keys if t is not None}) != 1:
        return None
    last = {"D": (64, 64), "H": (64 * s.Q_N, 64 * s.KV_N)}[s.layout.inputs[-1]]
    key = s.keys[0].shape
    return {"queryRope": TensorSpec((*s.query.shape[:-1], last[0]), s.query.dtype),
            "keyRope": TensorSpec((s.B, *key[1:-1], last[1]), s.query.dtype)}


_to_float16 = cast("FLOAT16", "query", "key", "value", "attentionOut")

_TND: Words = {"layout": "TND", "scenario": "gqa", "mask": "none"}
_SEVERAL: Words = {**SIZED, "layout": ("BSH", "BSND", "BNSD"), "q_s": ("2-16", "17+")}

RULES = (
    common_rule(
        101, "A2/A3: BNSD_BSND has more than one query token", level=Level.CROSS, profiles=DOC_A2A3_V3,
        cites=("v3.common.cross.layout_bnsd_bsnd_qs",), basis=Basis.DOCUMENTED,
        enforced_by="older routes only", when=lambda s: s.layout_name == "BNSD_BSND" and s.Q_S is not None,
        requires=lambda s: s.Q_S != 1, limit="Q_S > 1",
        breaks=(Break("value", relayout("BNSD_BSND"), {**SIZED, "layout": "BNSD", "q_s": "1",
                                                       "head_size": ("64", "128")}),),
    ),
    common_rule(
        102, "A2/A3: the NBSD layouts have 2 to 16 query tokens", level=Level.CROSS, profiles=DOC_A2A3_V3,
        cites=("v3.common.cross.layout_nbsd_qs",), basis=Basis.DOCUMENTED, enforced_by="nothing",
        when=lambda s: s.layout_name in NBSD and s.Q_S is not None and s.Q_S > 0,
        requires=lambda s: s.Q_S is not None and 2 <= s.Q_S <= 16, limit="2 .. 16",
        breaks=(Break("value", relayout("BNSD_NBSD"), {"scenario": "mla_decode", "q_s": "1"}),
                Break("value", relayout("BSND_NBSD"), {"scenario": "mla_decode", "q_s": "1"})),
        note="Another place of the same document allows one token.",
    ),
    common_rule(
        103, "A2/A3: packed Decode MLA has at most 16 query tokens in a batch", level=Level.CROSS,
        profiles=DOC_A2A3_V3, cites=("v3.common.cross.tnd512_q_s", "v3.rope.cross.mla512_a2_q_s"),
        when=lambda s: s.packed and decode_mla(s) and bool(s.q_lens),
        requires=lambda s: s.q_lens is not None and all(n <= 16 for n in s.q_lens), limit="16",
        breaks=(Break("above", _long_queries, {"scenario": "mla_decode", "layout": ("TND", "TND_NTD")}, ("FIA-CO-117",)),),
        boundaries=(Boundary(_first_query(16), _first_query(17), {"scenario": "mla_decode", "layout": ("TND", "TND_NTD"), "batch": "2",
                                                                  "q_s": "2-16"}, limit="16"),),
        note="No measured call with more tokens in a batch was accepted.",
    ),
    common_rule(
        117, "A2/A3: packed Decode MLA has a query token in each batch", level=Level.CROSS,
        profiles=DOC_A2A3_V3, cites=("v3.common.cross.tnd512_q_s",), basis=Basis.DOCUMENTED, enforced_by="nothing",
        when=lambda s: s.packed and decode_mla(s) and bool(s.q_lens),
        requires=lambda s: s.q_lens is not None and all(n != 0 for n in s.q_lens),
        breaks=(Break("below", _idle_batch, {"scenario": "mla_decode", "layout": ("TND", "TND_NTD")}),),
        note="The operator takes batches without query tokens.",
    ),
    common_rule(
        104, "A2/A3: TND without rope has head sizes up to 256", level=Level.CROSS, profiles=DOC_A2A3_V3,
        cites=("v3.common.cross.tnd_d_no_rope",), enforced_by="ValidateNoRopeLayoutDim",
        when=lambda s: s.layout_name == "TND" and s.quant_kind == "none" and not s.rope_on and _equal(s)
        and not s.given("queryRope") and s.Q_D != 512,
        requires=lambda s: s.Q_D is not None and s.Q_D <= LARGEST_TND, limit="256",
        breaks=(Break("above", head_size(272, *_ALL_D), {**SIZED, "layout": "TND"}),),
        boundaries=(Boundary(head_size(256, *_ALL_D), head_size(272, *_ALL_D), {**SIZED, "layout": "TND"},
                             limit="256"),),
    ),
    common_rule(
        105, "A2/A3: NTD_TND without rope has head size 128, or 192 with 128", level=Level.CROSS,
        profiles=DOC_A2A3_V3, cites=("v3.common.cross.ntd_tnd_d_no_rope",), basis=Basis.DOCUMENTED,
        enforced_by="nothing (64 passes)", when=lambda s: s.layout_name == "NTD_TND" and not s.rope_on and _equal(s),
        requires=lambda s: s.Q_D != 64, limit="128, 192/128",
        breaks=(Break("value", head_size(64, *_ALL_D), {**SIZED, "layout": "NTD_TND"}),),
    ),
    common_rule(
        106, "A2/A3: packed layouts take no quantised query", level=Level.CROSS, profiles=DOC_A2A3_V3,
        cites=("v3.common.cross.tnd_dtype", "v3.quant.cross.tnd_no_full_quant"), enforced_by="older routes",
        when=lambda s: s.packed and s.Q_D is not None and s.Q_D != 512 and s.quant_kind is not None,
        requires=lambda s: s.quant_kind != "full",
        breaks=(Break("pair", _as_tnd, {"scenario": "full_per_tensor", "layout": "BSND", "storage": "contiguous",
                                        "mask": "none", "pse": "none", "lse": "off", "left_padding": "none",
                                        "post_quant": "none"}),),
    ),
    common_rule(
        116, "A2/A3: TND and NTD_TND take no quantised key and value", level=Level.CROSS, profiles=DOC_A2A3_V3,
        cites=("v3.common.cross.tnd_dtype", "v3.quant.cross.tnd_no_antiquant"), basis=Basis.DOCUMENTED,
        enforced_by="older routes (not all of them)",
        when=lambda s: s.layout_name in ("TND", "NTD_TND") and s.Q_D is not None and s.Q_D != 512,
        requires=lambda s: s.quant_kind != "antiquant",
        breaks=(Break("pair", _as_tnd, {"scenario": "antiquant", "layout": "BSND",
                                        "storage": "contiguous", "mask": "none", "pse": "none", "lse": "off",
                                        "left_padding": "none", "post_quant": "none", "prefix": "none"}),),
    ),
    common_rule(
        107, "A2/A3: NTD_TND takes BFLOAT16", level=Level.CROSS, profiles=DOC_A2A3_V3,
        cites=("v3.common.cross.ntd_tnd_dtype",), basis=Basis.DOCUMENTED, enforced_by="nothing",
        when=lambda s: s.layout_name == "NTD_TND" and s.quant_kind == "none",
        requires=lambda s: s.q_dtype == "BFLOAT16", limit="BFLOAT16",
        breaks=(Break("dtype", _to_float16, {"layout": "NTD_TND", "out_dtype": "BFLOAT16", "scenario": "gqa",
                                             "sink": "off"}),),
    ),
    common_rule(
        108, "A2/A3: a tensor list goes with BSH, BSND, BNSD or BNSD_BSND and without rope", level=Level.CROSS,
        profiles=DOC_A2A3_V3,
        cites=("v3.common.cross.tensorlist_layouts", "v3.common.cross.mla512_a2_no_tensorlist",
               "v3.common.cross.mla128_a2_no_tensorlist"),
        enforced_by="CheckFeatureSupport, CheckTransposeLayoutCrossover",
        when=lambda s: s.storage == "tensor_list" and s.layout is not None and not s.packed,
        requires=lambda s: s.layout_name in LIST_LAYOUTS and not s.rope_on, limit=", ".join(sorted(LIST_LAYOUTS)),
        breaks=(Break("pair", _rope, {
            "scenario": "gqa", "storage": "tensor_list", "head_size": "128", "layout": ("BSH", "BSND", "BNSD"),
            "pse": "none", "prefix": "none", "left_padding": "none", "post_quant": "none", "q_lengths": "absent"},
            entails=("FIA-CO-109",)),),
    ),
    common_rule(
        109, "A2/A3: Prefill MLA with rope takes TND and NTD_TND", level=Level.CROSS, profiles=DOC_A2A3_V3,
        cites=("v3.common.cross.mla128_a2_layouts",), basis=Basis.DOCUMENTED, enforced_by="nothing (nine layouts)",
        when=lambda s: s.rope_on and s.Q_D == 128 and s.layout is not None,
        requires=lambda s: s.layout_name in ("TND", "NTD_TND"), limit="TND, NTD_TND",
        breaks=(Break("value", relayout("NTD"), {"scenario": "mla_prefill_split", "layout": "NTD_TND"},
                      entails=("FIA-IF-052",)),),
    ),
    common_rule(
        110, "A2/A3: with more than one query token the head size is a multiple of 16", level=Level.CROSS,
        profiles=DOC_A2A3_V3, cites=("v3.common.cross.qs_gt1_d_align_fp_a2",), enforced_by="ValidateNoRopeLayoutDim",
        when=lambda s: _floats(s) and _several(s) and s.layout_name in ALIGNED_LAYOUTS and _equal(s),
        requires=lambda s: s.Q_D is not None and s.Q_D % 16 == 0, limit="D % 16 == 0",
        breaks=(Break("value", head_size(72, *_ALL_D), {**_SEVERAL, "post_quant": "none"}),),
        boundaries=(Boundary(head_size(80, *_ALL_D), head_size(72, *_ALL_D), {**_SEVERAL, "post_quant": "none"},
                             limit="16"),),
    ),
    common_rule(
        111, "A2/A3: with INT8 and more than one query token the head size is a multiple of 32", level=Level.CROSS,
        profiles=DOC_A2A3_V3, cites=("v3.common.cross.qs_gt1_d_align_int8_a2",), enforced_by="older routes",
        when=lambda s: _int8(s) and _several(s) and s.layout_name in ALIGNED_LAYOUTS and _equal(s),
        requires=lambda s: s.Q_D is not None and s.Q_D % 32 == 0, limit="D % 32 == 0",
        breaks=(Break("value", head_size(80, *_ALL_D), {
            "scenario": "full_per_tensor", "storage": "contiguous", "post_quant": ("none", "tensor"),
            "prefix": "none", "layout": ("BSH", "BSND", "BNSD")}),),
        boundaries=(Boundary(head_size(96, *_ALL_D), head_size(80, *_ALL_D), {
            "scenario": "full_per_tensor", "storage": "contiguous", "post_quant": ("none", "tensor"),
            "prefix": "none", "layout": ("BSH", "BSND", "BNSD")}, limit="32"),),
    ),
    common_rule(
        112, "A2/A3: with INT4 and one query token the head size is a multiple of 64", level=Level.CROSS,
        profiles=DOC_A2A3_V3, cites=("v3.common.cross.qs_eq1_d_align_int4_a2",), enforced_by="older routes",
        when=lambda s: s.quant_kind == "antiquant" and s.k_dtype == "INT4" and s.single_token and _equal(s),
        requires=lambda s: s.Q_D is not None and s.Q_D % 64 == 0, limit="D % 64 == 0, of INT32 D % 8 == 0",
        breaks=(Break("value", head_size(96, *_ALL_D), {
            "scenario": "antiquant", "kv_dtype": "INT4", "antiquant": ("per_token", "token_head"),
            "storage": "contiguous", "prefix": "none", "layout": ("BSH", "BSND", "BNSD")}),),
        boundaries=(Boundary(head_size(192, *_ALL_D), head_size(96, *_ALL_D), {
            "scenario": "antiquant", "kv_dtype": "INT4", "antiquant": ("per_token", "token_head"),
            "storage": "contiguous", "prefix": "none", "layout": ("BSH", "BSND", "BNSD")}, limit="64"),),
    ),
    common_rule(
        113, "A2/A3: head counts of a TND call agree with its tensors", level=Level.CONSISTENCY, profiles=DOC_A2A3,
        cites=("v5.interface.consistency.num_heads_vs_query_n", "v5.common.single.num_heads_positive",
               "v3.common.single.num_heads_table", "v3.common.consistency.heads_divisible",
               "v3.common.consistency.kv_heads_match_shape"),
        basis=Basis.DOCUMENTED, enforced_by="nothing (fast TND route)", when=fast_tnd, requires=_heads_agree,
        breaks=(Break("value", where(fast_tnd, lambda s: {"numHeads": s.num_heads + 1}), {
            **_TND, "group": ("gqa", "mqa"), "inner_precise": "0", "lse": "off", "post_quant": "none"}),),
    ),
    common_rule(
        114, "A2/A3: NTD_TND without rope has equal head sizes of 64 or 128, or 192 with 128", level=Level.CROSS,
        profiles=DOC_A2A3_V3, cites=("v3.common.cross.ntd_tnd_d_no_rope",), enforced_by="CheckNTDLayoutCrossover",
        when=lambda s: s.layout_name == "NTD_TND" and not s.rope_on and s.quant_kind == "none" and _equal(s),
        requires=lambda s: s.Q_D in (64, 128), limit="64, 128",
        breaks=tuple(Break("value", head_size(d, *_ALL_D), {**SIZED, "layout": "NTD_TND"}) for d in (32, 96, 192)),
    ),
    common_rule(
        115, "A2/A3: packed layouts with a head size other than 512 are TND and NTD_TND", level=Level.CROSS,
        profiles=DOC_A2A3_V3, cites=("v3.common.cross.tnd_layouts",), enforced_by="CheckInputLayout",
        when=lambda s: s.packed and s.Q_D is not None and s.Q_D != 512, requires=lambda s: s.layout_name != "TND_NTD",
        limit="TND, NTD_TND",
        breaks=(Break("value", relayout("TND_NTD"), {"layout": "TND", "scenario": "gqa", "storage": "contiguous"}),),
    ),
    common_rule(
        119, "A2/A3: packed Decode MLA has one key head", level=Level.CROSS, profiles=DOC_A2A3_V3,
        cites=("v3.common.cross.tnd512_kv_n",), enforced_by="CheckHeadNum",
        when=lambda s: s.packed and decode_mla(s) and s.KV_N > 0, requires=lambda s: s.KV_N == 1, limit="1",
        breaks=(Break("value", together(put(numKeyValueHeads=2), axis_everywhere("N", 2, "key", "value", "keyRope")), {
            "scenario": "mla_decode", "layout": ("TND", "TND_NTD"), "storage": ("BnNBsD", "contiguous"),
            "group": ("mqa", "gqa")}, entails=("FIA-RO-022",)),),
        note="With other layouts the same is demanded of numKeyValueHeads.",
    ),
)
