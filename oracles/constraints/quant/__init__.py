"""Room quant: antiquant, full quantisation, and quantisation tensors where they do not belong.

Rules stand where the operator's dequant checker and its quantisation parser enforce them. What the mask, paging,
prefix, rope, padding and post-quantisation checkers refuse for a quantised call is in the rooms of those groups.
"""

from __future__ import annotations

from ..routes import A2A3_V5, OLDER_ROUTES, also_on, enforced_on
from . import (
    antiquant_features,
    antiquant_modes,
    antiquant_scales,
    antiquant_shapes,
    full_features,
    full_fp8,
    full_modes,
    full_shapes,
    no_quant,
    old_full,
    old_merged,
    old_separate,
    old_v5,
    older_routes,
)

_RULES = (
    *no_quant.RULES, *antiquant_modes.RULES, *antiquant_scales.RULES, *antiquant_shapes.RULES,
    *antiquant_features.RULES, *full_modes.RULES, *full_shapes.RULES, *full_features.RULES, *full_fp8.RULES,
    *old_full.RULES, *old_merged.RULES, *old_separate.RULES, *old_v5.RULES,
)

RULES = (
    *also_on(also_on(_RULES, older_routes.ALSO), older_routes.ALSO_MLA, A2A3_V5),
    *enforced_on(OLDER_ROUTES, older_routes.RULES),
)
