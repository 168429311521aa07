"""A2 and A3: what the fast TND route and the older prefill and decode routes check of the shared prefix."""

from __future__ import annotations

from collections.abc import Callable

from fiafuzz.model.layouts import axis_sizes
from fiafuzz.model.parameters import as_int32
from fiafuzz.model.scene import Scene

from ..changes import put, resize
from ..routes import DECODE, DECODE_ROUTE, OLDER_ROUTES, PREFILL
from ..rule import ALL_A2A3, Basis, Break, Level, Rule, Words

ALSO = {
    PREFILL: "001 002 003 005 006 008 009 012 015 020 021 023 024 045",
    DECODE: "001 002 003 005 006 008 009 012 014 020 021 024",
}
"""Numbers of the rules of this room that hold on these routes too."""

_ON: Words = {"scenario": "antiquant", "prefix": ("full", "actual")}
_DECODE: Words = {**_ON, "q_s": "1"}
NAMES = ("keySharedPrefix", "valueSharedPrefix")


def _axes(s: Scene, name: str) -> dict[str, int] | None:
    shape = s.shape(name)
    return None if shape is None or s.layout is None else axis_sizes(s.layout.inputs, shape)


def _heads(s: Scene) -> bool:
    return all((a := _axes(s, name)) is None or a.get("N", s.KV_N) == s.KV_N for name in NAMES)


def _shorter(s: Scene) -> bool:
    lens, size = s.inputs.actualSharedPrefixLen, s.prefix_s
    return not lens or size is None or as_int32(lens[0]) < size


def _rule(number: int, title: str, level: Level, cite: str, when: Callable[[Scene], bool],
          requires: Callable[[Scene], bool], *breaks: Break, routes: frozenset[str], enforced_by: str,
          note: str = "") -> Rule:
    return Rule(f"FIA-SP-{number}", title, "shared_prefix", level, ALL_A2A3, (cite,), when, requires,
                basis=Basis.SOURCE, routes=routes, enforced_by=enforced_by, breaks=breaks, note=note)


def _quantised(s: Scene) -> bool:
    return s.prefix_on and s.quant_kind == "antiquant"


RULES: tuple[Rule, ...] = (
    _rule(201, "A2/A3: prefixes of a quantised call hold tokens", Level.SINGLE,
          "v3.shared_prefix.consistency.qs_eq1_nd", _quantised,
          lambda s: all((a := _axes(s, name)) is None or 0 not in a.values() for name in NAMES),
          Break("below", resize(NAMES, "S", 0), {**_ON, "prefix": "full"}), routes=OLDER_ROUTES,
          enforced_by="RunBigKernelTilingWithParams, SharedPrefixCheckShapes"),
    _rule(202, "A2/A3: with one query token actualSharedPrefixLen is less than the prefix is long", Level.CONSISTENCY,
          "v3.shared_prefix.single.actual_len_table", _quantised, _shorter,
          Break("above", lambda s: {"actualSharedPrefixLen": (s.prefix_s or 0,)}, _DECODE), routes=DECODE_ROUTE,
          enforced_by="ProcessSharedPrefixLen", note="the documents allow the full length"),
    _rule(203, "A2/A3: with one query token prefixes have numKeyValueHeads heads", Level.CONSISTENCY,
          "v3.shared_prefix.consistency.qs_eq1_nd", _quantised, _heads,
          Break("value", put(numKeyValueHeads=1), {**_DECODE, "layout": ("BNSD", "BSND"), "group": ("mha", "gqa"),
                                                   "antiquant": ("per_tensor", "per_token")}),
          routes=DECODE_ROUTE, enforced_by="SharedPrefixCheckShapes"),
)
