"""softmaxLse: whether it is asked for, and its tensor."""

from __future__ import annotations

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.layouts import lse_shape

from .diagram import Words, choice, derived
from .draft import Draft
from .ground import Ground


@derived
def lse_menu(ground: Ground, scenario: str, form: str, packed: bool, paged: bool, single: bool, hollow: bool, empty: str) -> str:
    """Whether every softmaxLse that the call can give is defined: "no", "yes" or "not per channel"
    (spec/numerics.md 24, spec/v3_notes.md 3)."""
    if scenario == "unequal_d" or empty == "query":
        return "no"
    if ground.is_950:
        return "yes"
    if form == "TND_NTD" or scenario == "full_per_tensor" or empty == "kv":
        return "no"
    if scenario == "antiquant" and paged and not single:
        return "no"
    # -inf, -3.4e38 or +inf for batches without keys: packed tokens, and one query token.
    return "no" if hollow and (packed or single) else "not per channel"


@choice
def lse(lse_menu: str, post_quant: str) -> Words:
    if lse_menu == "no" or (lse_menu != "yes" and post_quant.startswith("channel")):
        return ("off",)
    return {"off": 3, "on": 1}


# ---- building ---------------------------------------------------------------------------------


def tensor(d: Draft) -> None:
    """Put flag and tensor of softmaxLse into the call."""
    if d.words["lse"] == "on":
        d.attrs["softmaxLseFlag"] = True
        d.outputs["softmaxLse"] = TensorSpec(lse_shape(d.layout, B=d.B, N=d.Q_N, S=d.Q_S, T=d.T), "FLOAT32")
