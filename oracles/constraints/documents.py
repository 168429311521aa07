"""Sets of profiles that the rooms share beyond rule.py: which documents and sources state a demand of the V5 line."""

from __future__ import annotations

from .rule import ALL_950, DOC_950, DOC_A2A3, DOC_A2A3_V5, EVERYWHERE, SRC_A2A3, SRC_A2A3_V3

V5_DOCUMENTS = DOC_950 | DOC_A2A3_V5
"""The V5 document, for Ascend 950 and for its A2/A3 lines."""

V5_LINE = ALL_950 | DOC_A2A3_V5 | SRC_A2A3
"""The V5 document and the host of August 2026."""

V5_CHECKED = V5_LINE - SRC_A2A3_V3
"""The V5 line without V1 to V4, which infer the outputs' shapes themselves and compare them when they copy the result."""

ALL_DOCUMENTS = DOC_950 | DOC_A2A3
"""Every document profile."""

ALL_PROFILES = EVERYWHERE
"""Every document profile and every host of August 2026."""
