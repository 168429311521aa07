"""Learnable sink: one more logit a query head."""

from __future__ import annotations

from fiafuzz.model.limits import PLAIN_LAYOUTS

from .diagram import Words, choice, derived
from .draft import Draft
from .ground import Ground


@derived
def sink_menu(ground: Ground, scenario: str, form: str, q_dtype: str, prefix: str, left_padding: str,
              empty: str) -> str:
    """Head sizes that go with a sink, as words in one string."""
    if ground.api < 4 or prefix != "none" or left_padding != "none" or empty != "none":
        return ""
    if not ground.is_950:
        # A2 and A3 take BFLOAT16 sinks, the V5 document those of query's dtype.
        fits = scenario == "gqa" and form in PLAIN_LAYOUTS and q_dtype == "BFLOAT16"
        return "64 128" if fits else ""
    if scenario == "gqa":
        return "64 128"
    return "128 192" if scenario.startswith("mla_prefill") else ""


@choice
def sink(sink_menu: str, post_quant: str, head_size: str) -> Words:
    if post_quant != "none" or head_size not in sink_menu.split():
        return ("off",)
    return {"off": 2, "on": 1}


def tensor(d: Draft) -> None:
    """Put the sink into the call."""
    if d.words["sink"] == "on":
        d.tensor("learnableSink", (d.Q_N,), d.words["q_dtype"])
