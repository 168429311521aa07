"""The layout name, the scale and the dtype of an attention mask as the registered columns have it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Optional

from fiafuzz.model.layouts import LAYOUTS
from fiafuzz.model.scene import Scene

from ..changes import cast, put, with_shape
from ..documents import ALL_DOCUMENTS, ALL_PROFILES
from ..rule import DOC_950, DOC_A2A3_V3, Basis, Break, Effect, Level, Rule, Stage, always

V3_NAMES = frozenset({"BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "TND", "TND_NTD",
                      "NTD_TND"})
"""The ten layouts of the V3 document."""

OLD_NAMES = frozenset({"NSD"})
"""A layout of older interfaces that the A2/A3 host still takes in V1 to V4."""


def _rule(number: int, title: str, **more: Any) -> Rule:
    return Rule(id=f"FIA-IF-{number:03d}", title=title, group="interface", **more)


def known_layout(s: Scene) -> bool:
    """Whether the host knows the layout name."""
    return s.layout_name in LAYOUTS or (s.api < 5 and not s.is_950 and s.layout_name in OLD_NAMES)


def _ntd(s: Scene) -> Optional[Mapping[str, object]]:
    """An NTD_TND call as NTD: attentionOut with N in front."""
    if s.out is None or s.out.rank != 3:
        return None
    t, n, d = s.out.shape
    return {"inputLayout": "NTD", "attentionOut": with_shape(s.out, (n, t, d))}


RULES: tuple[Rule, ...] = (
    _rule(
        51, "inputLayout is a known layout name", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.interface.single.input_layout_values", "v3.common.single.input_layout_values"),
        stage=Stage.PARSER, enforced_by="GetQueryAndOutLayout", when=always, requires=known_layout,
        limit=", ".join(LAYOUTS),
        breaks=tuple(Break("value", put(inputLayout=n), {"post_quant": "none", "storage": "contiguous"})
                     for n in ("SBH", "bsh", "")),
        note="Case matters. Left of the underscore stands the layout of query, key and value, right of it that of "
             "attentionOut.",
    ),
    _rule(
        52, "inputLayout is one of the ten of the V3 document", level=Level.SINGLE, profiles=DOC_A2A3_V3,
        cites=("v3.common.single.input_layout_values",), stage=Stage.PARSER, basis=Basis.DOCUMENTED,
        enforced_by="nothing", when=known_layout, requires=lambda s: s.layout_name in V3_NAMES,
        limit=", ".join(sorted(V3_NAMES)), breaks=(Break("value", _ntd, {"layout": "NTD_TND"}),),
        note="The host of A2/A3 also takes NTD, BSH_BNSD and BSND_BNSD.",
    ),
    _rule(
        53, "scaleValue is a finite number", level=Level.SINGLE, profiles=ALL_DOCUMENTS, effect=Effect.UNSPECIFIED,
        basis=Basis.DOCUMENTED,
        cites=("v5.interface.single.scale_factor_free", "v3.common.single.scale_value_table"),
        enforced_by="nothing (any number is taken)", when=always, requires=lambda s: math.isfinite(s.scale),
        breaks=(Break("value", put(scaleValue="nan")), Break("above", put(scaleValue="inf"))),
    ),
    _rule(
        54, "with INT4, FLOAT4_E2M1 or HIFLOAT8 key and value the attention mask is BOOL", level=Level.CONSISTENCY,
        profiles=DOC_950, cites=("v5.interface.consistency.mask_dtype_columns",), effect=Effect.UNSPECIFIED,
        basis=Basis.SOURCE, enforced_by="nothing on the host; no registered column has another mask",
        when=lambda s: (s.k_dtype in ("INT4", "FLOAT4_E2M1", "HIFLOAT8") and s.quant_kind == "antiquant"
                        and s.mask_on and s.dtype("attenMask") in ("INT8", "UINT8")),
        requires=lambda s: False, limit="BOOL",
        breaks=(Break("dtype", cast("INT8", "attenMask"),
                      {"scenario": "antiquant", "kv_dtype": ("INT4", "FLOAT4_E2M1", "HIFLOAT8"), "mask": "BOOL"}),),
        note="The host lets INT8 and UINT8 masks pass, a device may then find no kernel.",
    ),
)
