"""A2 and A3: what the fast TND route and the older prefill and decode routes check of sequence lengths."""

from __future__ import annotations

from collections.abc import Callable

from fiafuzz.model.scene import Scene

from ..changes import entry, put, together
from ..paged_attention.cache import cache_as
from ..routes import DECODE, FAST, FAST_ROUTE, PREFILL
from ..rule import ALL_A2A3, SRC_A2A3, Basis, Boundary, Break, Effect, Level, Rule, Stage, Words

ALSO = {
    FAST: "001 002",
    PREFILL: "003 004 013 017 018",
    DECODE: "001 002 004 006 011 012 017 018",
}
"""Numbers of the rules of this room that hold on these routes too."""

_TND: Words = {"layout": "TND", "scenario": "gqa", "storage": "contiguous"}


def _last(lens: tuple[int, ...] | None) -> int:
    return lens[-1] if lens else 0


def _tokens(s: Scene, name: str) -> int | None:
    shape = s.shape(name)
    return shape[0] if shape else None


def _rule(number: int, title: str, cite: str, when: Callable[[Scene], bool], requires: Callable[[Scene], bool],
          *breaks: Break, limit: str = "", boundaries: tuple[Boundary, ...] = ()) -> Rule:
    return Rule(f"FIA-AS-{number}", title, "actual_seq_len", Level.CONSISTENCY, SRC_A2A3, (cite,), when, requires,
                basis=Basis.SOURCE, routes=FAST_ROUTE, enforced_by="CheckFAISeqlenDataInTND, CheckFAIIsTND",
                breaks=breaks, limit=limit, boundaries=boundaries,
                note="the documents ask for equality and for increasing lengths")


RULES: tuple[Rule, ...] = (
    _rule(201, "A2/A3: the last query length of a TND call is at most T of query",
          "v3.actual_seq_len.consistency.tnd_last_equals_t", lambda s: bool(s.inputs.actualSeqLengths)
          and _tokens(s, "query") is not None,
          lambda s: _last(s.inputs.actualSeqLengths) <= (_tokens(s, "query") or 0),
          Break("above", entry("actualSeqLengths", -1, lambda s, _: (s.T or 0) + 1), _TND),
          limit="T", boundaries=(Boundary(put(), entry("actualSeqLengths", -1, lambda s, _: (s.T or 0) + 1), _TND,
                                          limit="T"),)),
    _rule(202, "A2/A3: the last key length of a TND call is at most T of key and value",
          "v3.actual_seq_len.consistency.tnd_last_equals_t",
          lambda s: bool(s.inputs.actualSeqLengthsKv) and s.storage == "contiguous",
          lambda s: all((n := _tokens(s, name)) is None or _last(s.inputs.actualSeqLengthsKv) <= n
                        for name in ("key", "value")),
          Break("above", entry("actualSeqLengthsKv", -1, lambda s, _: (s.KV_T or 0) + 1), _TND),
          limit="T", boundaries=(Boundary(put(), entry("actualSeqLengthsKv", -1, lambda s, _: (s.KV_T or 0) + 1), _TND,
                                          limit="T"),)),
    _rule(203, "A2/A3: the lengths of a TND call hold numbers", "v3.actual_seq_len.existence.tnd_both_required",
          lambda s: s.inputs.actualSeqLengths is not None and s.inputs.actualSeqLengthsKv is not None,
          lambda s: bool(s.inputs.actualSeqLengths) and bool(s.inputs.actualSeqLengthsKv),
          Break("below", put(actualSeqLengthsKv=()), _TND)),
    Rule("FIA-AS-221", "A2/A3: a TND call with an NZ cache has actualSeqLengths", "actual_seq_len", Level.EXISTENCE,
         ALL_A2A3, (), lambda s: s.cache_layout == "NZ", lambda s: s.inputs.actualSeqLengths is not None,
         basis=Basis.SOURCE, effect=Effect.CRASH, stage=Stage.PARSER, order=5, routes=FAST_ROUTE,
         breaks=(Break("absent", together(cache_as("NZ"), put(actualSeqLengths=None)),
                       {"layout": "TND", "scenario": "gqa", "storage": "BnBsH", "head_size": ("192", "16k")},
                       ("FIA-AS-001", "FIA-PA-101")),)),
)
