"""Room attention_mask: attenMask, sparseMode, preTokens and nextTokens."""

from __future__ import annotations

from ..routes import A2A3_V5, NEWER_ROUTE, also_on, enforced_on
from . import mask, older, older_routes, sparse

_NEWER = also_on((*mask.RULES, *sparse.RULES), older_routes.ALSO_MLA, A2A3_V5)

RULES = (
    *enforced_on(NEWER_ROUTE, also_on(_NEWER, older_routes.ALSO)),
    *also_on(older.RULES, older_routes.ALSO), *older_routes.RULES,
)
