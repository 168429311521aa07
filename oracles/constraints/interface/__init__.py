"""Room interface: null pointers, the match of dtype columns, formats, strides, layout names."""

from __future__ import annotations

from ..routes import NEWER_ROUTE, enforced_on
from . import attributes, columns, formats, pointers

RULES = (*pointers.RULES, *columns.RULES, *enforced_on(NEWER_ROUTE, (*formats.RULES, *attributes.RULES)))
