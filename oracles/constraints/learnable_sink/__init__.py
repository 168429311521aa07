"""Learnable sink: one more logit a head in the softmax denominator."""

from ..routes import NEWER_ROUTE, enforced_on
from . import rules

RULES = enforced_on(NEWER_ROUTE, rules.RULES)
