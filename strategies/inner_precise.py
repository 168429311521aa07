"""innerPrecise: precision and row correction."""

from __future__ import annotations

from .diagram import Words, choice, derived
from .draft import Draft
from .ground import Ground


@derived
def precise_menu(ground: Ground, scenario: str, form: str, paged: bool, q_dtype: str, single: bool) -> str:
    """Allowed values as words in one string; a value behind a slash is for as many query heads as key heads only."""
    if scenario in ("full_gqa_fp8", "full_mxfp8"):
        return "0 1"
    if not ground.is_950:
        if scenario == "full_decode_mla" or (scenario == "antiquant" and single):
            return "0 1"
        if scenario == "antiquant" and paged:
            return "1"
        if form == "TND" and ground.v3_document and scenario != "mla_decode":
            return "0 /1" if q_dtype == "FLOAT16" else "0"
    return "0 1 2 3"


@choice
def inner_precise(precise_menu: str, group: str, sink: str) -> Words:
    if sink == "on":
        return ("0",)
    weights = {"0": 3, "1": 3, "2": 2, "3": 2}
    return {word[-1]: weights[word[-1]] for word in precise_menu.split() if word[0] != "/" or group == "mha"}


def attribute(d: Draft) -> None:
    """Put innerPrecise into the call."""
    d.attrs["innerPrecise"] = int(d.words["inner_precise"])
