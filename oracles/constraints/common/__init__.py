"""Room common: query, key, value and attentionOut - heads, axes, head sizes, layouts, tensor lists, sizes."""

from __future__ import annotations

from ..routes import A2A3_V5, NEWER_ROUTE, also_on, enforced_on
from . import axes, head_size, heads, layouts, old_products, older_routes, sizes, tensor_list

_NEWER = also_on((*heads.RULES, *layouts.RULES, *head_size.RULES, *axes.RULES, *sizes.RULES, *tensor_list.RULES),
                 older_routes.ALSO_MLA, A2A3_V5)

RULES = (
    *enforced_on(NEWER_ROUTE, also_on(_NEWER, older_routes.ALSO)), *also_on(old_products.RULES, older_routes.ALSO),
    *older_routes.RULES,
)
