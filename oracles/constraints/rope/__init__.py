"""Rope: queryRope and keyRope, the split form of MLA."""

from ..routes import A2A3_V5, NEWER_ROUTE, also_on, enforced_on
from . import mla, older, older_routes, tensors

_NEWER = also_on((*tensors.RULES, *mla.RULES), older_routes.ALSO_MLA, A2A3_V5)

RULES = (
    *enforced_on(NEWER_ROUTE, also_on(_NEWER, older_routes.ALSO)),
    *also_on(older.RULES, older_routes.ALSO), *older_routes.RULES,
)
