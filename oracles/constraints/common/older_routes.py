"""A2 and A3: heads, axes, sizes, layouts and tensor lists on the fast TND route and the older routes."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from fiafuzz.model.scene import Scene

from ..changes import put, resize, where, with_shape
from ..facts import key_items
from ..routes import (
    DECODE,
    DECODE_ROUTE,
    FAST,
    FAST_ROUTE,
    NEWER_ROUTE,
    OLDER_ROUTES,
    PREFILL,
    PREFILL_ROUTE,
)
from ..rule import (
    ALL_A2A3,
    DOC_A2A3_V3,
    SRC_A2A3,
    SRC_A2A3_V3,
    SRC_A2A3_V5,
    Basis,
    Break,
    Effect,
    Level,
    Rule,
    Stage,
    Words,
    always,
    never,
)
from .recipes import PLAIN, query_heads, relayout

ALSO = {
    FAST: "024",
    PREFILL: "001 002 003 004 005 006 007 015 031 051 052 053 054 055 056 059 060 061 071 081 083 084",
    DECODE: "001 002 003 004 006 007 015 024 031 052 053 054 055 056 059 060 061 071 081 083 084 112",
}
"""Numbers of the rules of this room that hold on these routes too."""

ALSO_MLA = {DECODE: "013"}
"""Numbers of the rules of this room that hold for INT8 Decode MLA, which V5 alone runs on the decode route."""

LIST_LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_BSND")
LARGEST_HEADS = 256
FLAT_AXES = 2
LARGEST_GROUP = 64
INT32_RANGE = 1 << 31

_QUANTISED: Words = {"scenario": ("antiquant", "full_per_tensor")}


def _empty_key(s: Scene) -> bool:
    """Whether key holds no token, or in a tensor list some item has no element."""
    if s.storage == "tensor_list":
        return any(t is not None and t.empty for t in (*s.keys, *s.values))
    return not s.paged and not s.packed and any(a is not None and a.get("S") == 0 for a in key_items(s))


def _rule(number: int, title: str, level: Level, cites: tuple[str, ...], when: Callable[[Scene], bool],
          requires: Callable[[Scene], bool], *breaks: Break, routes: frozenset[str],
          profiles: frozenset[str] = ALL_A2A3, enforced_by: str = "", note: str = "") -> Rule:
    return Rule(f"FIA-CO-{number}", title, "common", level, profiles, cites, when, requires, basis=Basis.SOURCE,
                routes=routes, breaks=breaks, enforced_by=enforced_by, note=note)


def _list_of_two(s: Scene) -> dict[str, object] | None:
    if len(s.keys) < 2 or s.keys[1] is None:
        return None
    return {"key": (s.keys[0], replace(s.keys[1], dtype="UINT8"), *s.keys[2:])}


def _empty_item(s: Scene) -> dict[str, object] | None:
    if s.storage != "tensor_list" or s.layout is None or s.inputs.actualSeqLengthsKv is not None:
        return None
    at = s.layout.inputs.index("S")
    first = [with_shape(t, (*t.shape[:at], 0, *t.shape[at + 1:])) for t in (s.keys[0], s.values[0]) if t is not None]
    return {"key": (first[0], *s.keys[1:]), "value": (first[1], *s.values[1:])} if len(first) == 2 else None


def _too_many_heads(s: Scene) -> dict[str, object] | None:
    if s.KV_N <= 0:
        return None
    found = query_heads((LARGEST_HEADS // s.KV_N + 1) * s.KV_N)(s)
    return None if found is None else dict(found)


def _crash(number: int, title: str, when: Callable[[Scene], bool], *breaks: Break, routes: frozenset[str],
           profiles: frozenset[str] = ALL_A2A3, note: str = "") -> Rule:
    return Rule(f"FIA-CO-{number}", title, "common", Level.CROSS, profiles, (), when, never, basis=Basis.SOURCE,
                effect=Effect.CRASH, stage=Stage.PARSER, order=5, routes=routes, breaks=breaks, note=note)


def _too_long_list(s: Scene) -> dict[str, object] | None:
    """A list of single batches, two more than the batch has."""
    key, value = s.keys[0], s.values[0]
    if s.B is None or s.B > 64 or s.inputs.actualSeqLengthsKv is not None or key is None or value is None:
        return None
    items = [(with_shape(t, (1, *t.shape[1:])),) * (s.B + 2) for t in (key, value)]
    return {"key": items[0], "value": items[1]}


CRASHES = (
    _crash(221, "A2/A3: numKeyValueHeads 0 of a TND call is divided by",
           lambda s: s.attrs.numKeyValueHeads == 0,
           Break("value", put(numKeyValueHeads=0), {"layout": "TND", "scenario": "gqa", "group": "mha",
                                                    "storage": ("contiguous", "BnBsH")}), routes=FAST_ROUTE),
    _crash(222, "V3: H 0 of a quantised key with one query token", lambda s: (
        s.quant_kind == "antiquant" and s.layout_name == "BSH" and not s.paged
        and any(a is not None and a.get("H") == 0 for a in key_items(s))),
           Break("below", resize("key", "H", 0), {"scenario": "antiquant", "q_s": "1", "layout": "BSH",
                                                  "storage": "contiguous"}, ("FIA-CO-060", "FIA-CO-061")),
           routes=DECODE_ROUTE, profiles=SRC_A2A3_V3, note="V5 refuses it"),
    _crash(223, "V5: numHeads 0 where heads are packed in H", lambda s: (
        s.num_heads == 0 and s.layout is not None and "H" in s.layout.inputs),
           Break("below", put(numHeads=0), {"scenario": "gqa", "layout": ("BSH", "BSH_BNSD")}, ("FIA-CO-001",)),
           routes=NEWER_ROUTE, profiles=SRC_A2A3_V5, note="V3 refuses it while it infers the output shape"),
    _crash(224, "A2/A3: a list of INT8 tensors is at least two tensors longer than the batch", lambda s: (
        s.quant_kind == "full" and s.storage == "tensor_list" and s.B is not None and len(s.keys) > s.B + 1),
           Break("above", _too_long_list, {"scenario": "full_per_tensor", "storage": "contiguous"}, ("FIA-CO-083",)),
           routes=PREFILL_ROUTE, note="one more is refused"),
)

V3_RULES = (
    Rule("FIA-CO-211", "V3: numHeads is not 0", "common", Level.SINGLE, SRC_A2A3_V3,
         ("v3.common.single.num_heads_table",), always, lambda s: s.attrs.numHeads != 0,
         basis=Basis.SOURCE, stage=Stage.SHAPE_INFERENCE, enforced_by="shape inference", limit="not 0",
         breaks=(Break("value", put(numHeads=0), {"layout": ("BSND", "BNSD", "BSH")}, ("FIA-CO-001",)),)),
    Rule("FIA-CO-212", "V3: numHeads fits 32 bits where heads are packed in H", "common", Level.CROSS,
         SRC_A2A3_V3 | DOC_A2A3_V3,
         ("v3.common.single.num_heads_table",), lambda s: s.layout is not None and "H" in s.layout.inputs,
         lambda s: -INT32_RANGE <= s.attrs.numHeads < INT32_RANGE, basis=Basis.SOURCE,
         enforced_by="CheckQueryOutConsistency", note="the inferred shape of attentionOut has another head size",
         breaks=(Break("above", lambda s: {"numHeads": s.attrs.numHeads + (1 << 32)}, {"layout": "BSH",
                                                                                     "scenario": "gqa"}),)),
)

def _nsd(s: Scene) -> bool:
    table, mask, scale = s.shape("blockTable"), s.shape("attenMask") or (), s.shape("keyAntiquantScale") or ()
    if len(s.keys) > 1 or (table is not None and table[:1] != (1,)) or (s.G is not None and s.G > LARGEST_GROUP):
        return False
    if len(mask) > FLAT_AXES and mask[0] != 1:
        return False
    return not (s.antiquant_modes == (1, 1) and len(scale) == FLAT_AXES and scale[0] != 1)


def _two_nsd_items(s: Scene) -> dict[str, object] | None:
    """A call in BNSD as one in NSD with two key tensors."""
    key, value = s.keys[0], s.values[0]
    if s.query is None or s.out is None or key is None or value is None or s.sparse_mode != 0:
        return None
    query, out = with_shape(s.query, s.query.shape[1:]), with_shape(s.out, s.out.shape[1:])
    return {"inputLayout": "NSD", "query": query, "attentionOut": out, "key": (with_shape(key, key.shape[1:]),) * 2,
            "value": (with_shape(value, value.shape[1:]),) * 2, "actualSeqLengths": None, "actualSeqLengthsKv": None}


RULES: tuple[Rule, ...] = (
    _rule(206, "A2/A3: NSD holds one batch, with at most 64 query heads to a key head", Level.CONSISTENCY,
          ("v3.common.single.input_layout_values",),
          lambda s: s.layout_name == "NSD", _nsd, Break("value", _two_nsd_items, {
              **PLAIN, "layout": "BNSD", "storage": "contiguous"}),
          routes=PREFILL_ROUTE, profiles=SRC_A2A3, enforced_by="CheckInputDimAndHeadNum, CheckPATypeAndShape",
          note="NSD is in no document"),
    *CRASHES, *V3_RULES,
    _rule(201, "A2/A3: a quantised list goes with BSH, BSND, BNSD or BNSD_BSND", Level.CROSS,
          ("v3.common.cross.tensorlist_layouts",),
          lambda s: s.storage == "tensor_list" and s.quant_kind == "antiquant" and s.layout is not None,
          lambda s: s.layout_name in LIST_LAYOUTS,
          Break("value", relayout("BSND_NBSD"), {"scenario": "antiquant", "q_s": "1", "layout": "BSND",
                                                 "storage": "tensor_list"}, ("FIA-CO-108",)),
          routes=DECODE_ROUTE, profiles=SRC_A2A3, enforced_by="CheckKVHeadNum"),
    _rule(202, "A2/A3: a call of the older prefill route has at most 256 query heads", Level.SINGLE,
          ("v3.common.single.qs_gt1_n_a2",), always, lambda s: s.num_heads <= LARGEST_HEADS,
          Break("above", _too_many_heads, {
              **_QUANTISED, "q_s": ("2-16", "17+"), "lse": "off", "mask_shape": ("none", "2048/2", "2048/3", "2048/4"),
              "group": ("gqa", "mha"), "post_quant": ("none", "tensor"), "pse": "none"}, ("FIA-CO-015", "FIA-CO-017")),
          routes=PREFILL_ROUTE, profiles=SRC_A2A3, enforced_by="CheckInputDimAndHeadNum"),
    _rule(203, "A2/A3: numHeads of a quantised call with several query tokens fits 32 bits", Level.SINGLE,
          ("v3.common.single.num_heads_table",), always,
          lambda s: -INT32_RANGE <= s.attrs.numHeads < INT32_RANGE,
          Break("above", lambda s: {"numHeads": s.attrs.numHeads + (1 << 32)},
                {**_QUANTISED, "q_s": ("2-16", "17+"), "layout": ("BSND", "BNSD", "BNSD_BSND")}),
          routes=PREFILL_ROUTE, enforced_by="SetTilingHeadNumRatio", note="the other routes cut it to 32 bits"),
    _rule(204, "A2/A3: key and value of a quantised call hold tokens, each item of a list too", Level.SINGLE,
          ("v3.common.existence.kv_empty_zero_output",), lambda s: s.quant_kind in ("antiquant", "full"),
          lambda s: not _empty_key(s),
          Break("below", where(lambda s: s.inputs.actualSeqLengthsKv is None and s.storage == "contiguous",
                               resize(("key", "value"), "S", 0)),
                {"scenario": "antiquant", "antiquant": ("per_channel", "per_tensor", "merged")}),
          Break("below", _empty_item, {"scenario": "antiquant", "storage": "tensor_list"}),
          routes=OLDER_ROUTES, enforced_by="ParseActualSeqLens, KvShapePostProcess, CheckCumulativeKeyValue"),
    _rule(205, "A2/A3: with one query token all keys of a quantised list have one dtype", Level.CONSISTENCY,
          ("v3.common.consistency.kv_shapes_identical",),
          lambda s: s.storage == "tensor_list" and s.quant_kind == "antiquant",
          lambda s: len({t.dtype for t in s.keys if t is not None}) == 1,
          Break("dtype", _list_of_two, {"scenario": "antiquant", "q_s": "1", "storage": "tensor_list"},
                ("FIA-CO-089",)),
          routes=DECODE_ROUTE, enforced_by="QKVPreProcess"),
)
