"""Sets of profiles that the rooms share beyond rule.py: which documents and sources state a demand of the V5 line."""

from __future__ import annotations

from .rule import ALL_950, DOC_950, DOC_A2A3, DOC_A2A3_V5, EVERYWHERE, SRC_A2A3

V5_DOCUMENTS = DOC_950 | DOC_A2A3_V5
"""The V5 document, for Ascend 950 and for its A2/A3 lines."""

V5_LINE = ALL_950 | DOC_A2A3_V5 | SRC_A2A3
"""The V5 document and the host of August 2026."""

ALL_DOCUMENTS = DOC_950 | DOC_A2A3
"""Every document profile."""

EVERY_BUT_A2A3_SOURCE = EVERYWHERE
"""Every document profile and the host of August 2026 on Ascend 950."""
