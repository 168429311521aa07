"""Room actual_seq_len: actualSeqLengths and actualSeqLengthsKv - whether given, how many, which values."""

from __future__ import annotations

from ..routes import NEWER_ROUTE, enforced_on
from . import lengths, older

RULES = (*enforced_on(NEWER_ROUTE, lengths.RULES), *older.RULES)
