"""Position bias: pseShift, pseType, qStartIdx and kvStartIdx."""

from ..routes import NEWER_ROUTE, also_on, enforced_on
from . import alibi, bias, older, older_routes

RULES = (
    *enforced_on(NEWER_ROUTE, also_on(bias.RULES, older_routes.ALSO)), *alibi.RULES,
    *also_on(older.RULES, older_routes.ALSO), *older_routes.RULES,
)
