"""Room interface: null pointers, the match of dtype columns, formats, strides, layout names."""

from __future__ import annotations

from ..routes import NEWER_ROUTE, PREFILL, also_on, enforced_on
from . import attributes, columns, formats, pointers

ALSO = {PREFILL: "051"}
"""Numbers of the rules of this room that the older prefill route of A2 and A3 knows too."""

RULES = (*pointers.RULES, *columns.RULES, *enforced_on(NEWER_ROUTE, also_on((*formats.RULES, *attributes.RULES), ALSO)))
