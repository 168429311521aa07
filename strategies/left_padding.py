"""Left padding: data that stands at the right end of its axis."""

from __future__ import annotations

from fiafuzz.model.case import TensorSpec

from .diagram import Words, choice
from .draft import Draft
from .ground import Ground

_SCENARIOS_950 = frozenset({"gqa", "mla_prefill_split", "mla_prefill_combined", "antiquant"})


@choice
def left_padding(ground: Ground, scenario: str, store: str, feature_layout: bool, single: bool, q_given: bool,
                 kv_given: bool, prefix: str, empty: str) -> Words:
    allowed = _SCENARIOS_950 if ground.is_950 else ("gqa",)
    if store != "contiguous" or not feature_layout or prefix != "none" or empty != "none" or scenario not in allowed:
        return ("none",)
    words = {"none": 10}
    # Query padding of one token: ignored by the parameter table, in force in the source (spec/v5_common_notes.md 6.17).
    if q_given and not single:
        words["query"] = 2
    if kv_given:
        words["kv"] = 2
    if q_given and kv_given and not single:
        words["both"] = 2
    return words


# ---- building ---------------------------------------------------------------------------------


def sizes(d: Draft) -> None:
    """Put the padding sizes into the call: never so large that a batch would begin before its axis."""
    word = d.words["left_padding"]
    if word in ("query", "both"):
        d.inputs["queryPaddingSize"] = _size(d, d.Q_S - max(d.q_lens))
    if word in ("kv", "both"):
        d.inputs["kvPaddingSize"] = _size(d, d.KV_S - max(d.kv_lens))


def _size(d: Draft, room: int) -> TensorSpec:
    # A negative size counts as 0 (spec/numerics.md 11).
    size = d.source.integer(0, room) if not d.source.chance(8) else -d.source.integer(1, 3)
    return TensorSpec((1,), "INT64", values=(size,))
