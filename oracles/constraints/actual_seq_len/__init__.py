"""Room actual_seq_len: actualSeqLengths and actualSeqLengthsKv - whether given, how many, which values."""

from __future__ import annotations

from ..routes import NEWER_ROUTE, also_on, enforced_on
from . import lengths, older, older_routes

RULES = (
    *enforced_on(NEWER_ROUTE, also_on(lengths.RULES, older_routes.ALSO)),
    *also_on(older.RULES, older_routes.ALSO), *older_routes.RULES,
)
