"""Paged attention: blockTable, blockSize, the three cache layouts and what paging goes with."""

from ..routes import NEWER_ROUTE, enforced_on
from . import block_size, cache, features, older, table

RULES = (
    *enforced_on(NEWER_ROUTE, (*table.RULES, *block_size.RULES, *cache.RULES, *features.RULES)),
    *older.RULES,
)
