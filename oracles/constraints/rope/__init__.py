"""Rope: queryRope and keyRope, the split form of MLA."""

from ..routes import NEWER_ROUTE, enforced_on
from . import mla, older, tensors

RULES = (*enforced_on(NEWER_ROUTE, (*tensors.RULES, *mla.RULES)), *older.RULES)
