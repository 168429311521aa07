"""pseShift: the additive bias, and (disputed ground) the slopes of alibi."""

from __future__ import annotations

from .diagram import Words, choice, derived
from .draft import Draft
from .ground import Ground


@derived
def pse_menu(ground: Ground, scenario: str, paged: bool, single: bool, feature_layout: bool, aligned: bool, left_padding: str, prefix: str,
             empty: str) -> str:
    """Allowed words beside "none", in one string."""
    if scenario not in ("gqa", "antiquant") or empty != "none":
        return ""
    if scenario == "antiquant" and paged and not single and not ground.is_950:
        return ""
    words = "bias" if feature_layout else ""
    alibi = (ground.is_950 and ground.wide and ground.document and scenario == "gqa" and aligned
             and left_padding == "none" and prefix == "none")
    # The V5 document has pseType 2 and 3, the source refuses them (spec/v5_common_notes.md 6.1).
    return words + (" alibi2 alibi3" if alibi else "")


@choice
def pse(pse_menu: str, sink: str) -> Words:
    words = () if sink == "on" else pse_menu.split()
    return {"none": 6, **dict.fromkeys(words, 2)}


# ---- building ---------------------------------------------------------------------------------


def tensors(d: Draft) -> None:
    """Put pseShift and what belongs to it into the call."""
    word = d.words["pse"]
    if word == "none":
        return
    if word == "bias":
        d.tensor("pseShift", _bias_shape(d), d.words["q_dtype"])
        return
    d.tensor("pseShift", (d.Q_N,), "FLOAT32")
    d.attrs["pseType"] = int(word[-1])
    if d.source.chance(50):
        d.inputs["qStartIdx"] = (d.source.integer(0, 300),)
    if d.source.chance(50):
        d.inputs["kvStartIdx"] = (d.source.integer(0, 300),)


def _bias_shape(d: Draft) -> tuple[int, ...]:
    source = d.source
    batches = d.B if source.chance(50) else 1
    rows, columns = d.Q_S, d.width
    if d.ground.is_950 and source.chance(30):
        columns += source.integer(1, 17)
        if not d.single:
            # One row serves all (v5 seed line 135), or more rows than tokens.
            rows = source.choice((rows, 1, rows + 3))
    return (batches, d.Q_N, rows, columns)
