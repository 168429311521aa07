"""Left padding: queryPaddingSize and kvPaddingSize, for data that stands at the right end of its row."""

from ..routes import NEWER_ROUTE, enforced_on
from . import older, rules

RULES = (*enforced_on(NEWER_ROUTE, rules.RULES), *older.RULES)
