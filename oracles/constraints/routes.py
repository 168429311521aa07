"""Which part of the A2/A3 host answers a call: newer checks, the fast TND route, or the older prefill or decode code.

On Ascend 950 there is one route. On A2 and A3 the host sends a call to the checks of Ascend 950 (with branches of their
own), or to code that is older and checks other things (spec/host_behaviour.md 3.5). ``route`` tells which.
A rule names in ``routes`` where the host enforces it; elsewhere it is a demand of the documents alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Optional

from fiafuzz.model.layouts import DECODE_MLA_D
from fiafuzz.model.scene import Scene

from .facts import scene_fact
from .rule import DOC_A2A3_V5, SRC_A2A3, SRC_A2A3_V5, Basis, Boundary, Change, Rule, Stage

NEWER, FAST, PREFILL, DECODE = "newer", "fast", "prefill", "decode"
NEWER_ROUTE = frozenset({NEWER})
FAST_ROUTE = frozenset({FAST})
PREFILL_ROUTE = frozenset({PREFILL})
DECODE_ROUTE = frozenset({DECODE})
OLDER_ROUTES = frozenset({PREFILL, DECODE})
A2A3_V5 = DOC_A2A3_V5 | SRC_A2A3_V5
LARGEST_FAST_D = 256
_BATCH_LAYOUTS = ("BSH", "BSND", "BNSD")


@scene_fact
def route(s: Scene) -> str:
    """newer, fast, prefill or decode; always newer on Ascend 950. Total."""
    if s.is_950:
        return NEWER
    if s.quant_kind == "none" and s.layout_name != "NSD" and not _older_heads(s):
        return FAST if _fast(s) else NEWER
    return DECODE if _decode(s) else PREFILL


def _older_heads(s: Scene) -> bool:
    """Unquantised single tokens with as many key heads that the older decode code has kernels for."""
    if not s.single_token or s.layout_name not in _BATCH_LAYOUTS or s.Q_N != s.KV_N or s.rope_on:
        return False
    return s.Q_D == 256 or (s.Q_D == 80 and s.prefix_on)


def _fast(s: Scene) -> bool:
    if s.layout_name != "TND" or s.given("queryRope") or s.given("keyRope") or s.given("quantScale2"):
        return False
    if s.Q_D is None or s.Q_D != s.V_D or s.Q_D > LARGEST_FAST_D or s.sparse_mode not in (0, 3, 4):
        return False
    if s.storage == "contiguous" and s.K_D != s.Q_D:
        return False
    if s.paged and not (s.cache_layout == "BnBsH" or (s.cache_layout == "NZ" and s.Q_D not in (64, 128))):
        return False
    if s.attrs.numKeyValueHeads == 0:
        return True  # the host divides by it while it looks for the route
    if s.Q_N != s.KV_N:
        return s.inner_precise == 0
    if s.q_dtype == "BFLOAT16" and s.inner_precise == 1:
        return False
    return not (s.sparse_mode == 0 and s.given("attenMask"))


def _decode(s: Scene) -> bool:
    return s.single_token or (s.given("queryRope") and s.Q_D == DECODE_MLA_D)


def enforced_on(routes: frozenset[str], rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Rules that A2 and A3 enforce on these routes, if they name none; what entry or dtype match answers holds on all.

    Their faults and boundary cases keep to calls of these routes.
    """
    return tuple(_kept_to(rule, rule.routes or routes) if _concerned(rule) else rule for rule in rules)


def also_on(rules: Iterable[Rule], numbers: Mapping[str, str],
            profiles: frozenset[str] = SRC_A2A3) -> tuple[Rule, ...]:
    """Rules of a room of which the older routes enforce some too: ``numbers`` names those, route by route.

    A demand of the documents that only these routes know becomes a demand of document and source; one that the newer
    checks know under another number holds there as before.
    """
    routes: dict[str, frozenset[str]] = {}
    for name, listed in numbers.items():
        for number in listed.split():
            routes[number] = routes.get(number, frozenset()) | {name}
    return tuple(_widened(rule, routes[rule.id[-3:]], profiles) if rule.id[-3:] in routes else rule for rule in rules)


def _widened(rule: Rule, routes: frozenset[str], profiles: frozenset[str]) -> Rule:
    if rule.profiles & SRC_A2A3:
        return _kept_to(rule, (rule.routes or NEWER_ROUTE) | routes)
    if rule.basis is Basis.DOCUMENTED:
        return _kept_to(replace(rule, profiles=rule.profiles | profiles, basis=Basis.BOTH), routes)
    return _kept_to(replace(rule, profiles=rule.profiles | profiles), routes | NEWER_ROUTE)


def _concerned(rule: Rule) -> bool:
    return bool(rule.profiles & SRC_A2A3) and Stage.DTYPES < rule.stage < Stage.OUTPUT


def _kept_to(rule: Rule, routes: frozenset[str]) -> Rule:
    breaks = tuple(replace(b, change=_on(routes, b.change)) for b in rule.breaks)
    edges = tuple(_edge(b, routes) for b in rule.boundaries)
    return replace(rule, routes=routes, breaks=breaks, boundaries=edges)


def _edge(edge: Boundary, routes: frozenset[str]) -> Boundary:
    outside = None if edge.outside is None else _on(routes, edge.outside)
    return replace(edge, inside=_on(routes, edge.inside), outside=outside)


def _on(routes: frozenset[str], change: Change) -> Change:
    """A change that has a place only where the changed call takes one of these routes."""

    def make(s: Scene) -> Optional[Mapping[str, object]]:
        values = change(s)
        if values is None or s.is_950 or route(Scene(s.case.replace(**values))) in routes:
            return values
        return None

    return make


