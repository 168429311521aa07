"""Room common: query, key, value and attentionOut - heads, axes, head sizes, layouts, tensor lists, sizes."""

from __future__ import annotations

from ..routes import NEWER_ROUTE, enforced_on
from . import axes, head_size, heads, layouts, old_products, sizes, tensor_list

RULES = (
    *enforced_on(NEWER_ROUTE, (*heads.RULES, *layouts.RULES, *head_size.RULES, *axes.RULES, *sizes.RULES,
                               *tensor_list.RULES)),
    *old_products.RULES,
)
