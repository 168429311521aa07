"""A2 and A3: what the older prefill and decode routes check of the position bias."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.scene import Scene

from ..changes import resize
from ..routes import DECODE, PREFILL, PREFILL_ROUTE
from ..rule import SRC_A2A3, Basis, Break, Level, Rule, Words

ALSO = {
    PREFILL: "002 004 005 006 008",
    DECODE: "002 004 005 006 008 011 045",
}
"""Numbers of the rules of this room that hold on these routes too."""

_MANY: Words = {"scenario": ("antiquant", "full_per_tensor"), "pse": "bias", "q_s": ("2-16", "17+")}


def _bias(s: Scene) -> tuple[int, ...]:
    shape = s.shape("pseShift")
    return shape if s.pse_on and shape is not None and len(shape) == 4 else ()


def _fewer(s: Scene, _: int) -> Optional[int]:
    return s.Q_S - 1 if s.Q_S and s.Q_S > 1 else None


RULES: tuple[Rule, ...] = (
    Rule("FIA-PS-201", "A2/A3: third axis of the bias of a quantised call is at least Q_S", "pse", Level.CONSISTENCY,
         SRC_A2A3, ("v3.pse.consistency.qs_gt1_dims",), lambda s: bool(_bias(s)) and s.Q_S is not None,
         lambda s: _bias(s)[2] >= (s.Q_S or 0), basis=Basis.SOURCE, routes=PREFILL_ROUTE,
         note="the newer checks take one row for all too", enforced_by="CheckPseShiftTypeAndShape",
         breaks=(Break("below", resize("pseShift", 2, _fewer), _MANY, ("FIA-PS-007",)),)),
)
