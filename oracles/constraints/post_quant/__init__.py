"""Post-quantisation: an output in a smaller dtype, with quantScale2 and quantOffset2."""

from ..routes import NEWER_ROUTE, also_on, enforced_on
from . import older, older_routes, rules

RULES = (
    *enforced_on(NEWER_ROUTE, also_on(rules.RULES, older_routes.ALSO)),
    *enforced_on(NEWER_ROUTE, also_on(older.RULES, older_routes.ALSO)), *older_routes.RULES,
)
