"""Shared prefix: key and value columns that stand before those of every batch."""

from ..routes import NEWER_ROUTE, enforced_on
from . import exclusions, older, shapes

RULES = (*enforced_on(NEWER_ROUTE, (*shapes.RULES, *exclusions.RULES)), *older.RULES)
