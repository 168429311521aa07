"""Room attention_mask: attenMask, sparseMode, preTokens and nextTokens."""

from __future__ import annotations

from ..routes import NEWER_ROUTE, enforced_on
from . import mask, older, sparse

RULES = (*enforced_on(NEWER_ROUTE, (*mask.RULES, *sparse.RULES)), *older.RULES)
