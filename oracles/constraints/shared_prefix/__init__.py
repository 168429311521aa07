"""Shared prefix: key and value columns that stand before those of every batch."""

from ..routes import NEWER_ROUTE, also_on, enforced_on
from . import exclusions, older, older_routes, shapes

RULES = (
    *enforced_on(NEWER_ROUTE, also_on((*shapes.RULES, *exclusions.RULES), older_routes.ALSO)),
    *also_on(older.RULES, older_routes.ALSO), *older_routes.RULES,
)
