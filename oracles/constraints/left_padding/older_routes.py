"""A2 and A3: what the fast TND route and the older prefill and decode routes check of left padding."""

from __future__ import annotations

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import put
from ..routes import DECODE, PREFILL, PREFILL_ROUTE
from ..rule import SRC_A2A3, Basis, Break, Level, Rule, Words, always

ALSO = {
    PREFILL: "004 005 006 026",
    DECODE: "025",
}
"""Numbers of the rules of this room that hold on these routes too."""

_ON: Words = {"scenario": ("antiquant", "full_per_tensor"), "q_s": ("2-16", "17+"), "post_quant": "none"}
NAMES = ("queryPaddingSize", "kvPaddingSize")


def _one(s: Scene) -> bool:
    return all((t := s.tensor(name)) is None or t.empty or t.shape == (1,) for name in NAMES)


RULES: tuple[Rule, ...] = (
    Rule("FIA-LP-201", "A2/A3: padding sizes of a call of the older prefill route have the shape [1]", "left_padding",
         Level.SINGLE, SRC_A2A3, ("v3.left_padding.single.kv_padding_table",), always, _one, basis=Basis.SOURCE,
         routes=PREFILL_ROUTE, enforced_by="CheckParamsPFA", limit="[1]",
         breaks=(Break("rank", put(kvPaddingSize=TensorSpec((1, 1), "INT64", values=(0,))),
                       {**_ON, "kv_lengths": ("per_batch", "one", "longer"), "left_padding": ("none", "kv"),
                        "antiquant": ("merged", "none"), "storage": "contiguous", "prefix": "none"}),)),
)
