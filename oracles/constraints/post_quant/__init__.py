"""Post-quantisation: an output in a smaller dtype, with quantScale2 and quantOffset2."""

from ..routes import NEWER_ROUTE, enforced_on
from . import older, rules

RULES = (*enforced_on(NEWER_ROUTE, rules.RULES), *older.RULES)
