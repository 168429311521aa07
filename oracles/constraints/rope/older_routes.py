"""A2 and A3: what the fast TND route and the older prefill and decode routes check of rope."""

from __future__ import annotations

from ..routes import DECODE, PREFILL
from ..rule import Rule

ALSO = {
    PREFILL: "005 021",
    DECODE: "003 004 005 006 008 021 022 024",
}
"""Numbers of the rules of this room that hold on these routes too."""

ALSO_MLA = {DECODE: "023"}
"""Numbers of the rules of this room that hold for INT8 Decode MLA, which V5 alone runs on the decode route."""

RULES: tuple[Rule, ...] = ()
