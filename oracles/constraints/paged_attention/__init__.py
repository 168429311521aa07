"""Paged attention: blockTable, blockSize, the three cache layouts and what paging goes with."""

from ..routes import A2A3_V5, NEWER_ROUTE, also_on, enforced_on
from . import block_size, cache, features, older, older_routes, table

_NEWER = also_on((*table.RULES, *block_size.RULES, *cache.RULES, *features.RULES),
                 older_routes.ALSO_MLA, A2A3_V5)

RULES = (
    *enforced_on(NEWER_ROUTE, also_on(_NEWER, older_routes.ALSO)), *also_on(older.RULES, older_routes.ALSO),
    *older_routes.RULES,
)
