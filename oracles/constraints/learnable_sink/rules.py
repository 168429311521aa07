"""The sink's own form and the calls that take none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Optional

from msgspec.structs import replace

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.dtypes import FLOAT_QUERY
from fiafuzz.model.scene import Scene

from ..changes import head_size, where
from ..pse.bias import bias_for
from ..pse.slopes import with_slopes
from ..rule import (
    ALL_950,
    DOC_950,
    DOC_A2A3_V5,
    SRC_A2A3_V5,
    Basis,
    Boundary,
    Break,
    Change,
    Level,
    Predicate,
    Rule,
    Words,
    never,
)
from ..shared_prefix.facts import add_prefix

GROUP = "learnable_sink"
V5 = ALL_950 | DOC_A2A3_V5 | SRC_A2A3_V5
QK_SIZES = (64, 128, 192)
VALUE_SIZES = (64, 128)
_ID = "v5.learnable_sink."
_HOST = "CheckFeatureSupport"

ON: Words = {"sink": "on"}
BASES: Words = {"sink": "off", "post_quant": "none", "pse": "none", "prefix": "none", "left_padding": "none",
                "scenario": ("gqa", "mla_prefill_split", "mla_prefill_combined"), "head_size": ("64", "128", "192"),
                "q_dtype": "BFLOAT16"}
"""Factor words of calls that take a sink as they are, innerPrecise apart."""
BATCH: Words = {**BASES, "scenario": "gqa", "head_size": ("64", "128"), "storage": "contiguous",
                "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND")}


def on(s: Scene) -> bool:
    """Whether a sink is given to an unquantised call outside Decode MLA: where the rules about its form apply."""
    return s.sink_on and s.quant_kind == "none" and s.mla_kind != "decode"


def sink(s: Scene, dtype: Optional[str] = None) -> TensorSpec:
    """A fitting sink."""
    return TensorSpec((s.Q_N,), dtype or (s.q_dtype if s.q_dtype in FLOAT_QUERY else "BFLOAT16") or "BFLOAT16")


def with_sink(*changes: Change, dtype: Optional[str] = None, shape: Optional[Callable[[int], tuple[int, ...]]] = None,
              precise: int = 0, any_size: bool = False) -> Change:
    """A call with a fitting sink and innerPrecise 0 (or another dtype, shape or precision), and further changes."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        if not any_size and (s.Q_D not in QK_SIZES or s.V_D not in VALUE_SIZES):
            return None
        spec = sink(s, dtype)
        values: dict[str, object] = {"innerPrecise": precise,
                                     "learnableSink": spec if shape is None else replace(spec, shape=shape(s.Q_N))}
        for other in changes:
            found = other(s)
            if found is None:
                return None
            values.update(found)
        return values

    return change


def _dtype_known(s: Scene) -> bool:
    return on(s) and s.dtype("learnableSink") in FLOAT_QUERY


def _other_float(s: Scene) -> Optional[dict[str, object]]:
    spec = s.tensor("learnableSink")
    return None if spec is None else {"learnableSink": replace(spec,
                                                               dtype="BFLOAT16" if spec.dtype == "FLOAT16"
                                                               else "FLOAT16")}


def _bias(s: Scene) -> Optional[dict[str, object]]:
    spec = bias_for(s)
    return None if spec is None else {"pseShift": spec}


def _padding(name: str) -> Change:
    lengths = {"queryPaddingSize": "actualSeqLengths", "kvPaddingSize": "actualSeqLengthsKv"}[name]

    def change(s: Scene) -> Optional[dict[str, object]]:
        full = s.Q_S if name == "queryPaddingSize" else s.KV_S
        if full is None or s.B is None or not 0 < s.B <= 4096:
            return None
        values: dict[str, object] = {name: TensorSpec((1,), "INT64")}
        return values if s.case.get(lengths) else {**values, lengths: (full,) * s.B}

    return change


def _quantised_out(s: Scene) -> Optional[dict[str, object]]:
    return None if s.out is None else {"attentionOut": replace(s.out, dtype="INT8"),
                                       "quantScale2": TensorSpec((1,), "FLOAT32")}


_ALONE: Words = {**BASES, "scenario": "gqa", "head_size": ("64", "128"), "storage": "contiguous", "lse": "off",
                 "group": ("gqa", "mqa", "mha"), "layout": ("BSH", "BSND", "BNSD", "TND")}
_IGNORED = "stated for Ascend 950; A2 enforces it in August 2026 on the routes that the room names"


def _pair(number: str, rule: Rule, other: str) -> tuple[Rule, ...]:
    """A rule of Ascend 950, and the same as a demand of the document alone for A2 and A3."""
    return (replace_rule(rule, number, ALL_950, Basis.BOTH, rule.note),
            replace_rule(rule, other, DOC_A2A3_V5, Basis.DOCUMENTED, _IGNORED))


def replace_rule(rule: Rule, number: str, profiles: frozenset[str], basis: Basis, note: str) -> Rule:
    """The same demand under another number, for other profiles."""
    breaks = rule.breaks if profiles & ALL_950 else tuple(b for b in rule.breaks
                                                          if b.needs.get("scenario") != "unequal_d")
    return dataclasses.replace(rule, id=number, profiles=profiles, basis=basis, note=note, breaks=breaks,
                   enforced_by="" if basis is Basis.DOCUMENTED else rule.enforced_by)


def _rule(title: str, level: Level, cites: tuple[str, ...], when: Predicate, requires: Predicate, *breaks: Break,
          enforced_by: str = _HOST, limit: str = "", note: str = "", boundaries: tuple[Boundary, ...] = ()) -> Rule:
    return Rule("", title, GROUP, level, frozenset(), tuple(c if c.startswith("v5") else _ID + c for c in cites),
                when, requires, enforced_by=enforced_by, breaks=breaks, boundaries=boundaries, limit=limit, note=note)


_BOTH_KINDS: tuple[tuple[str, str, Rule], ...] = (
    ("FIA-LS-005", "FIA-LS-025", _rule(
        "with a sink the head size of query is 64, 128 or 192", Level.CROSS, ("cross.qk_head_dim",),
        lambda s: on(s) and s.Q_D is not None, lambda s: s.Q_D in QK_SIZES,
        Break("value", with_sink(head_size(96, "query", "key"), any_size=True),
              {**_ALONE, "head_size": "64", "sparse_mode": ("0", "2", "3")}, entails=("FIA-CO-043",)),
        Break("value", with_sink(any_size=True), {**_ALONE, "head_size": ("16k", "odd", "512")},
              entails=("FIA-LS-006", "FIA-LS-026")),
        enforced_by="CheckAxisSupport", limit="64, 128, 192")),
    ("FIA-LS-006", "FIA-LS-026", _rule(
        "with a sink the head size of value is 64 or 128", Level.CROSS, ("cross.value_head_dim",),
        lambda s: on(s) and s.V_D is not None, lambda s: s.V_D in VALUE_SIZES,
        Break("value", with_sink(head_size(96, "value", "attentionOut"), any_size=True),
              {**_ALONE, "head_size": ("64", "128"),
                                                                           "sparse_mode": ("0", "2", "3")},
              entails=("FIA-CO-043",)),
        Break("value", where(lambda s: s.V_D not in VALUE_SIZES, with_sink(any_size=True)),
              {**BASES, "scenario": "unequal_d", "head_size": ("64", "128"), "lse": "off"}),
        enforced_by="CheckAxisSupport", limit="64, 128")),
    ("FIA-LS-007", "FIA-LS-027", _rule(
        "with a sink innerPrecise is 0", Level.CROSS, ("cross.inner_precise_zero",), on, lambda s: s.inner_precise == 0,
        Break("above", with_sink(precise=1), BASES), Break("above", with_sink(precise=2), BASES),
                                       Break("above", with_sink(precise=3), BASES),
        limit="0", note="the default of the attribute is 1",
        boundaries=(Boundary(with_sink(), with_sink(precise=1), BASES, limit="0"),))),
    ("FIA-LS-008", "FIA-LS-028", _rule(
        "no sink with left padding", Level.CROSS, ("cross.no_left_padding",),
        lambda s: on(s) and not s.paged and s.layout_name in ("BSH", "BSND", "BNSD", "BNSD_BSND"),
        lambda s: not s.left_padding_on,
        Break("present", with_sink(_padding("queryPaddingSize")), BATCH),
        Break("present", with_sink(_padding("kvPaddingSize")), {**BATCH, "q_s": ("2-16", "17+")}))),
    ("FIA-LS-009", "FIA-LS-029", _rule(
        "no sink with a shared prefix", Level.CROSS, ("cross.no_prefix",),
        lambda s: on(s) and not s.paged and s.layout_name in ("BSH", "BSND", "BNSD",
                                                              "BNSD_BSND") and s.mla_kind is None,
        lambda s: not s.prefix_on, Break("present", with_sink(add_prefix()), BATCH))),
    ("FIA-LS-010", "FIA-LS-030", _rule(
        "no sink with a bias", Level.CROSS, ("cross.no_pse",),
        lambda s: on(s) and s.mla_kind is None and s.layout_name in ("BSH", "BSND", "BNSD", "BNSD_BSND"),
        lambda s: not s.pse_on, Break("present", with_sink(_bias), BATCH), note="an empty bias counts as none")),
)

RULES: tuple[Rule, ...] = (
    Rule("FIA-LS-001", "sink is FLOAT16 or BFLOAT16", GROUP, Level.SINGLE, V5,
         (_ID + "single.dtype", "v5.interface.single.learnable_sink_dtype"), on,
         lambda s: s.dtype("learnableSink") in FLOAT_QUERY, enforced_by="CheckSinkDtypeSupport",
         limit="FLOAT16, BFLOAT16",
         breaks=(Break("dtype", with_sink(dtype="FLOAT32"), BASES), Break("dtype", with_sink(dtype="INT8"), BASES))),
    Rule("FIA-LS-002", "sink has one axis", GROUP, Level.SINGLE, V5,
         (_ID + "single.rank", "v5.interface.single.learnable_sink_dtype"), on,
         lambda s: len(s.shape("learnableSink") or ()) == 1, enforced_by="CheckSinkShapeSupport", limit="rank 1",
         breaks=(Break("rank", with_sink(shape=lambda n: (1, n)), BASES),
                 Break("rank", with_sink(shape=lambda n: ()), BASES))),
    Rule("FIA-LS-003", "sink has one number a query head", GROUP, Level.SINGLE, V5,
         (_ID + "single.length", "v5.interface.single.learnable_sink_dtype"),
         lambda s: on(s) and len(s.shape("learnableSink") or ()) == 1, lambda s: s.shape("learnableSink") == (s.Q_N,),
         enforced_by="CheckSinkShapeSupport", limit="numHeads",
         breaks=(Break("above", with_sink(shape=lambda n: (n + 1,)), BASES),
                 Break("below", with_sink(shape=lambda n: (n - 1,)), BASES))),
    Rule("FIA-LS-004", "sink has the dtype of query", GROUP, Level.CROSS, ALL_950, (_ID + "cross.dtype_equals_query",),
         lambda s: _dtype_known(s) and s.q_dtype in FLOAT_QUERY, lambda s: s.dtype("learnableSink") == s.q_dtype,
         enforced_by="CheckSinkDtypeSupport", breaks=(Break("dtype", _other_float, ON),)),
    Rule("FIA-LS-024", "sink has the dtype of query", GROUP, Level.CROSS, DOC_A2A3_V5,
         (_ID + "cross.dtype_equals_query",),
         lambda s: _dtype_known(s) and s.q_dtype in FLOAT_QUERY, lambda s: s.dtype("learnableSink") == s.q_dtype,
         basis=Basis.DOCUMENTED, note="most routes of A2 and A3 want BFLOAT16 and do not compare",
         breaks=(Break("dtype", with_sink(dtype="BFLOAT16"), {**BASES, "q_dtype": "FLOAT16",
                                                              "head_size": ("64", "128")}),)),
    *(rule for first, second, one in _BOTH_KINDS for rule in _pair(first, one, second)),
    Rule("FIA-LS-011", "a sink takes pseType 0", GROUP, Level.CROSS, DOC_950 | DOC_A2A3_V5, (_ID + "cross.no_alibi",),
         lambda s: on(s) and s.mla_kind is None, lambda s: not s.alibi_on, enforced_by="CheckFeatureSupport",
         breaks=(Break("value", with_sink(with_slopes), BATCH),)),
    Rule("FIA-LS-012", "no sink with full quantisation", GROUP, Level.CROSS, ALL_950, (_ID + "cross.no_full_quant",),
         lambda s: s.sink_on and s.quant_kind == "full", never, enforced_by=_HOST,
         breaks=(Break("present", with_sink(any_size=True), {"scenario": ("full_decode_mla", "full_per_tensor")}),)),
    Rule("FIA-LS-013", "no sink with a quantised cache", GROUP, Level.CROSS, ALL_950, (_ID + "cross.no_antiquant",),
         lambda s: s.sink_on and s.quant_kind == "antiquant", never, enforced_by=_HOST,
         breaks=(Break("present", with_sink(any_size=True), {"scenario": "antiquant"}),)),
    Rule("FIA-LS-014", "no sink with Decode MLA", GROUP, Level.CROSS, ALL_950, (_ID + "cross.no_decode_mla",),
         lambda s: s.sink_on and s.quant_kind == "none" and s.mla_kind == "decode", never, enforced_by=_HOST,
         breaks=(Break("present", with_sink(any_size=True), {"scenario": "mla_decode"}, entails=("FIA-CO-014",)),)),
    Rule("FIA-LS-015", "no sink with a post-quantised output", GROUP, Level.CROSS, ALL_950,
         ("v5.post_quant.cross.with_sink_forbidden",), on, lambda s: not s.post_quant_on, basis=Basis.SOURCE,
         enforced_by=_HOST, note="in the source of both releases; the document came later",
         breaks=(Break("dtype", with_sink(_quantised_out), BASES),)),
    Rule("FIA-LS-016", "sink is BFLOAT16", GROUP, Level.SINGLE, DOC_A2A3_V5 | SRC_A2A3_V5,
         (_ID + "single.dtype",), _dtype_known,
         lambda s: s.dtype("learnableSink") == "BFLOAT16", basis=Basis.SOURCE, enforced_by="CheckSinkDtypeSupport",
         limit="BFLOAT16", note="the fast TND route compares with query instead",
         breaks=(Break("dtype", with_sink(), {**BASES, "q_dtype": "FLOAT16", "head_size": ("64", "128")}),
                 Break("dtype", with_sink(dtype="FLOAT16"), {**BASES, "head_size": ("64", "128")},
                       entails=("FIA-LS-024",)))),
    Rule("FIA-LS-032", "no sink with full quantisation or a quantised cache", GROUP, Level.CROSS, DOC_A2A3_V5,
         (_ID + "cross.no_full_quant", _ID + "cross.no_antiquant"),
         lambda s: s.sink_on and s.quant_kind in ("full", "antiquant"), never, basis=Basis.DOCUMENTED, note=_IGNORED,
         breaks=(Break("present", with_sink(any_size=True), {"scenario": ("antiquant", "full_per_tensor",
                                                                          "full_decode_mla")}),)),
    Rule("FIA-LS-034", "no sink with Decode MLA", GROUP, Level.CROSS, DOC_A2A3_V5, (_ID + "cross.no_decode_mla",),
         lambda s: s.sink_on and s.quant_kind == "none" and s.mla_kind == "decode", never, basis=Basis.DOCUMENTED,
         note=_IGNORED,
         breaks=(Break("present", with_sink(any_size=True), {"scenario": "mla_decode"}, entails=("FIA-CO-014",)),)),
)
