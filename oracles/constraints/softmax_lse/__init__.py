"""Room softmax_lse: softmaxLseFlag and the output that it asks for."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.layouts import lse_shape
from fiafuzz.model.scene import Scene

from ..changes import add_axis, cast, drop, held, merge_axes, put, resize, where
from ..documents import ALL_PROFILES, V5_CHECKED
from ..facts import fast_tnd, scene_fact, unequal_d
from ..routes import DECODE, FAST_ROUTE, NEWER_ROUTE, PREFILL, also_on, enforced_on
from ..rule import (
    ALL_950,
    DOC_A2A3_V3,
    DOC_A2A3_V5,
    SRC_A2A3_V3,
    SRC_A2A3_V5,
    Basis,
    Boundary,
    Break,
    Change,
    Level,
    Rule,
    Stage,
    Words,
    always,
)


def _rule(number: int, title: str, **more: object) -> Rule:
    return Rule(id=f"FIA-SL-{number:03d}", title=title, group="softmax_lse", **more)  # type: ignore[arg-type]


@scene_fact
def expected_shape(s: Scene) -> Optional[tuple[int, ...]]:
    """The shape of softmaxLse: [T, Q_N, 1] for packed layouts, else [B, Q_N, Q_S, 1]; None when unknown."""
    if s.layout is None or s.q_axes is None or s.Q_N <= 0:
        return None
    if s.packed:
        return None if s.T is None else lse_shape(s.layout, B=0, N=s.Q_N, S=0, T=s.T)
    if s.B is None or s.Q_S is None:
        return None
    return lse_shape(s.layout, B=s.B, N=s.Q_N, S=s.Q_S, T=0)


def _wanted(s: Scene) -> bool:
    return s.lse_on and s.lse is not None and not s.lse.empty and expected_shape(s) is not None


_ON: Words = {"lse": "on"}
_PACKED: Words = {"lse": "on", "layout": ("TND", "NTD", "NTD_TND", "TND_NTD")}
_BATCHED: Words = {"lse": "on", "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "BNSD_NBSD",
                                           "BSND_NBSD", "BSH_NBSD")}


def _with_lse() -> Change:
    def change(s: Scene) -> Optional[dict[str, object]]:
        shape = expected_shape(s)
        return None if shape is None or s.lse_on else {
            "softmaxLseFlag": True, "softmaxLse": TensorSpec(shape, "FLOAT32")}

    return change


def _shape_breaks(words: Words) -> tuple[Break, ...]:
    ranks = (merge_axes("softmaxLse", at=0), add_axis("softmaxLse", at=0))
    axes = (resize("softmaxLse", axis, lambda _, n: n + 1) for axis in (0, 1, -1))
    return (*(Break("rank", where(_slow, c), words) for c in ranks),
            *(Break("axis", where(_slow, c), words) for c in axes))


def _fast_shape(s: Scene) -> Optional[tuple[int, ...]]:
    axes = s.q_axes
    return None if axes is None or "T" not in axes or "N" not in axes else (axes["T"], axes["N"], 1)


def _slow(s: Scene) -> bool:
    return not fast_tnd(s)


ALSO = {PREFILL: "005", DECODE: "004 005"}
"""Numbers of the rules of this room that the older routes of A2 and A3 know too."""

RULES: tuple[Rule, ...] = enforced_on(NEWER_ROUTE, also_on((
    _rule(
        1, "softmaxLse is given when softmaxLseFlag asks for it", level=Level.EXISTENCE,
        profiles=ALL_PROFILES,
        cites=("v5.softmax_lse.existence.tensor_required", "v3.softmax_lse.existence.flag_true_null"),
        stage=Stage.ENTRY, enforced_by="null assert of the entry", when=lambda s: s.lse_on,
        requires=lambda s: s.lse is not None,
        breaks=(Break("absent", drop("softmaxLse"), _ON),
                Break("absent", put(softmaxLseFlag=True, softmaxLse=None), {"lse": "off", "scenario": "gqa"})),
        note="Without the flag the tensor is not looked at.",
    ),
    _rule(
        2, "softmaxLse is FLOAT32", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.softmax_lse.single.dtype", "v3.softmax_lse.single.output_table"), stage=Stage.DTYPES,
        enforced_by="match of dtype columns (CheckSocVersionAndParam)", when=lambda s: s.lse_on and s.lse is not None,
        requires=lambda s: s.lse is not None and s.lse.dtype == "FLOAT32", limit="FLOAT32",
        breaks=(Break("dtype", cast("FLOAT16", "softmaxLse"), _ON), Break("dtype", cast("INT32", "softmaxLse"), _ON)),
    ),
    _rule(
        3, "softmaxLse has elements", level=Level.EXISTENCE, profiles=V5_CHECKED,
        cites=("v5.softmax_lse.existence.not_empty", "v5.common.existence.lse_not_empty_when_flag"),
        stage=Stage.PARSER, enforced_by="GetEmptyTensorFlag",
        when=lambda s: s.lse_on and s.lse is not None and not (s.empty_query and s.empty_out),
        requires=lambda s: s.lse is not None and not s.lse.empty, limit="at least 1 element",
        breaks=(Break("below", resize("softmaxLse", 0, 0), _ON), Break("below", resize("softmaxLse", -1, 0), _ON)),
        boundaries=(Boundary(held(always, put()), resize("softmaxLse", 0, 0), _ON, limit="1"),),
        note="Also when every key and value is empty; not when query and attentionOut are.",
    ),
    _rule(
        4, "softmaxLse of packed layouts has the shape [T, Q_N, 1]", level=Level.CROSS, profiles=V5_CHECKED,
        cites=("v5.softmax_lse.cross.shape_tnd",), enforced_by="CheckFeatureDimAndShape",
        when=lambda s: _wanted(s) and s.packed, requires=lambda s: s.shape("softmaxLse") == expected_shape(s),
        limit="[T, Q_N, 1]", breaks=_shape_breaks(_PACKED),
        note="T before N whatever the layout.",
    ),
    _rule(
        5, "softmaxLse of other layouts has the shape [B, Q_N, Q_S, 1]", level=Level.CROSS, profiles=V5_CHECKED,
        cites=("v5.softmax_lse.cross.shape_other",), enforced_by="CheckFeatureDimAndShape",
        when=lambda s: _wanted(s) and not s.packed, requires=lambda s: s.shape("softmaxLse") == expected_shape(s),
        limit="[B, Q_N, Q_S, 1]",
        breaks=(*_shape_breaks(_BATCHED),
                Break("axis", resize("softmaxLse", 2, lambda _, n: n + 1), _BATCHED)),
        note="B, N, S whatever the layout; left padding and a shared prefix change nothing.",
    ),
    _rule(
        6, "unequal head sizes go without softmaxLse", level=Level.CROSS, profiles=ALL_950,
        cites=("v5.softmax_lse.cross.unequal_d_forbidden",), basis=Basis.SOURCE, enforced_by="CheckCrossFeature",
        when=lambda s: unequal_d(s) and s.quant_kind == "none" and not s.rope_on, requires=lambda s: not s.lse_on,
        breaks=(Break("present", _with_lse(), {"scenario": "unequal_d", "lse": "off"}),),
    ),
    # ---- V3: compared when the result is copied -----------------------------------------------------
    _rule(
        11, "softmaxLse has the shape [B, Q_N, Q_S, 1], for TND and NTD_TND [T, Q_N, 1]", level=Level.CONSISTENCY,
        profiles=DOC_A2A3_V3 | SRC_A2A3_V3,
        cites=("v3.softmax_lse.single.output_table", "v3.softmax_lse.consistency.shape_default",
               "v3.softmax_lse.consistency.shape_tnd"),
        stage=Stage.OUTPUT, enforced_by="copy of the result",
        when=lambda s: (s.lse_on and s.lse is not None and expected_shape(s) is not None
                        and s.layout_name != "TND_NTD" and not fast_tnd(s)),
        requires=lambda s: s.shape("softmaxLse") == expected_shape(s), limit="[B, Q_N, Q_S, 1] or [T, Q_N, 1]",
        breaks=(*_shape_breaks({**_BATCHED}), *_shape_breaks({**_PACKED, "layout": ("TND", "NTD_TND")})),
        note="For TND_NTD the letter of the document gives a shape without sense.",
    ),
    _rule(
        201, "A2/A3: softmaxLse of a TND call has the shape of query without its head size, and 1", level=Level.CROSS,
        profiles=DOC_A2A3_V5 | SRC_A2A3_V5, cites=("v5.softmax_lse.cross.shape_tnd",), basis=Basis.SOURCE,
        routes=FAST_ROUTE, enforced_by="CheckFAILseOutput",
        when=lambda s: s.lse_on and s.lse is not None and s.q_axes is not None,
        requires=lambda s: s.shape("softmaxLse") == _fast_shape(s), limit="[T, N of query, 1]",
        breaks=(Break("axis", resize("softmaxLse", 0, lambda _, n: n + 1), {**_PACKED, "layout": "TND",
                                                                           "scenario": "gqa"}, ("FIA-SL-004",)),),
    ),
), ALSO))
