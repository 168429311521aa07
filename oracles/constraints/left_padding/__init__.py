"""Left padding: queryPaddingSize and kvPaddingSize, for data that stands at the right end of its row."""

from ..routes import NEWER_ROUTE, also_on, enforced_on
from . import older, older_routes, rules

RULES = (
    *enforced_on(NEWER_ROUTE, also_on(rules.RULES, older_routes.ALSO)),
    *also_on(older.RULES, older_routes.ALSO), *older_routes.RULES,
)
