"""Shared prefix: keys and values that stand before those of every batch."""

from __future__ import annotations

from fiafuzz.model.limits import INT4_PER_WORD

from .common import axes_shape
from .diagram import Words, choice
from .draft import Draft
from .ground import Ground


@choice
def prefix(ground: Ground, scenario: str, store: str, feature_layout: bool, empty: str) -> Words:
    if store != "contiguous" or not feature_layout or empty != "none" or scenario not in ("gqa", "antiquant"):
        return ("none",)
    return {"none": 3, "full": 1, "actual": 2}


# ---- building ---------------------------------------------------------------------------------


def tensors(d: Draft) -> None:
    """Put the prefix tensors and their length into the call."""
    word = d.words["prefix"]
    if word == "none":
        return
    last = INT4_PER_WORD if d.int4_carrier else 1
    head = d.D // last
    shape = axes_shape(d.layout.inputs, {"B": 1, "S": d.prefix_s, "N": d.KV_N, "D": head, "H": d.KV_N * head})
    stored = "INT32" if d.int4_carrier else d.words["kv_dtype"]
    d.tensor("keySharedPrefix", shape, stored)
    d.tensor("valueSharedPrefix", shape, stored)
    if word == "actual":
        d.inputs["actualSharedPrefixLen"] = (d.prefix_len,)
