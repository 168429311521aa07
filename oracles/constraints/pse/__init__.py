"""Position bias: pseShift, pseType, qStartIdx and kvStartIdx."""

from ..routes import NEWER_ROUTE, enforced_on
from . import alibi, bias, older

RULES = (*enforced_on(NEWER_ROUTE, bias.RULES), *alibi.RULES, *older.RULES)
