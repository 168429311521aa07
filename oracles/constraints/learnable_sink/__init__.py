"""Learnable sink: one more logit a head in the softmax denominator."""

from ..routes import DECODE, FAST, NEWER, NEWER_ROUTE, PREFILL, also_on, enforced_on
from ..rule import SRC_A2A3_V5
from . import rules

ALSO = {NEWER: "025 026 027 028 029 030 034", FAST: "024 027", PREFILL: "032", DECODE: "032"}
"""Numbers of the demands of the V5 document that A2 enforces in August 2026, by route."""

RULES = enforced_on(NEWER_ROUTE, also_on(rules.RULES, ALSO, SRC_A2A3_V5))
