"""The bias in the V3 document (A2 and A3). V3 knows no pseType: pseShift is always additive."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import cast, merge_axes, resize, widen
from ..rule import DOC_A2A3_V3, Basis, Boundary, Break, Level, Rule, Words, never
from .bias import BIAS, DTYPE_OF_QUERY, GROUP, add_bias, four_axes, key_columns, sized, stated_prefix

_V3 = "v3.pse."
PACKED = ("TND", "TND_NTD", "NTD_TND")


def _given(s: Scene) -> bool:
    return s.inputs.pseShift is not None and not s.inputs.pseShift.empty


def _plain(s: Scene) -> bool:
    """A bias of four axes outside the MLA and packed sections, which exclude it as such."""
    return four_axes(s) and _given(s) and not s.rope_on and s.layout_name not in PACKED


def _axis(s: Scene, axis: int) -> int:
    return (s.shape("pseShift") or ())[axis]


def _columns(s: Scene) -> Optional[int]:
    columns = key_columns(s)
    return None if columns is None else columns + (stated_prefix(s) if s.prefix_on else 0)


def _columns_less(s: Scene) -> Optional[int]:
    columns = _columns(s)
    return columns - 1 if columns is not None and columns > 1 else None


def _wide(s: Scene) -> bool:
    columns = _columns(s)
    return columns is None or _axis(s, 3) >= columns


def _many(s: Scene) -> bool:
    return s.Q_S is not None and s.Q_S > 1


def _rows(s: Scene) -> Optional[int]:
    return s.Q_S if _many(s) else None


def _rows_less(s: Scene) -> Optional[int]:
    return s.Q_S - 1 if s.Q_S is not None and s.Q_S > 2 else None


_ONE: Words = {**BIAS, "q_s": "1"}
_MANY: Words = {**BIAS, "q_s": ("2-16", "17+")}
_NONE: Words = {"pse": "none"}

RULES: tuple[Rule, ...] = (
    Rule("FIA-PS-040", "bias is FLOAT16 for FLOAT16 and INT8 queries, BFLOAT16 for BFLOAT16 ones", GROUP, Level.SINGLE,
         DOC_A2A3_V3, (_V3 + "single.table", _V3 + "cross.qs_gt1_query_dtype", _V3 + "consistency.qs_gt1_pse_dtype",
                       _V3 + "consistency.qs_eq1_dtype"),
         lambda s: _given(s) and not s.rope_on and s.layout_name not in PACKED and s.q_dtype in DTYPE_OF_QUERY,
         lambda s: s.dtype("pseShift") == DTYPE_OF_QUERY[s.q_dtype or ""], enforced_by="CheckPseShiftTypeAndShape",
         codes=frozenset({161002, 561002, 561103}),
         breaks=(Break("dtype", cast("BFLOAT16", "pseShift"), {**BIAS, "q_dtype": ("FLOAT16", "INT8")}),
                 Break("dtype", cast("FLOAT16", "pseShift"), {**BIAS, "q_dtype": "BFLOAT16"}),
                 Break("dtype", cast("FLOAT32", "pseShift"), BIAS))),
    Rule("FIA-PS-041", "bias has four axes", GROUP, Level.SINGLE, DOC_A2A3_V3,
         (_V3 + "single.table", _V3 + "consistency.qs_eq1_shape"),
         lambda s: _given(s) and not s.rope_on and s.layout_name not in PACKED, four_axes, basis=Basis.SOURCE,
         enforced_by="CheckPseShiftTypeAndShape", limit="rank 4", note="the document only suggests shapes",
         breaks=(Break("rank", merge_axes("pseShift"), BIAS),)),
    Rule("FIA-PS-042", "first axes of the bias are 1 or B, and the number of query heads", GROUP, Level.SINGLE,
         DOC_A2A3_V3,
         (_V3 + "single.table", _V3 + "consistency.qs_eq1_shape"), lambda s: _plain(s) and s.B is not None,
         lambda s: _axis(s, 0) in (1, s.B) and _axis(s, 1) == s.Q_N, basis=Basis.SOURCE,
         enforced_by="CheckPseShiftTypeAndShape", limit="1 or B; numHeads", note="the document only suggests shapes",
         breaks=(Break("above", resize("pseShift", 0, lambda s, _: (s.B or 0) + 1), BIAS),
                 Break("above", widen("pseShift", 1), BIAS),
                 Break("below", widen("pseShift", 1, -1), {**BIAS, "group": ("gqa", "mqa")})),
         boundaries=(Boundary(sized(0, lambda s: s.B), resize("pseShift", 0, lambda s, _: (s.B or 0) + 1), BIAS,
                              limit="B"),)),
    Rule("FIA-PS-043", "third axis of the bias is at least Q_S", GROUP, Level.CONSISTENCY, DOC_A2A3_V3,
         (_V3 + "consistency.qs_gt1_dims", _V3 + "single.table"), lambda s: _plain(s) and _many(s) and _axis(s, 2) != 1,
         lambda s: _axis(s, 2) >= (s.Q_S or 0), enforced_by="CheckPseShiftTypeAndShape", limit=">= Q_S",
         breaks=(Break("below", sized(2, _rows_less), _MANY),),
         boundaries=(Boundary(sized(2, _rows), sized(2, _rows_less), {**_MANY}, limit="Q_S"),)),
    Rule("FIA-PS-044", "one row of bias does not serve several query tokens", GROUP, Level.CONSISTENCY, DOC_A2A3_V3,
         (_V3 + "consistency.qs_gt1_dims",), lambda s: _plain(s) and _many(s), lambda s: _axis(s, 2) != 1,
         basis=Basis.DOCUMENTED, note="V5 and the newer route take it",
         breaks=(Break("below", sized(2, lambda s: 1), _MANY),)),
    Rule("FIA-PS-045", "bias of a single query token has one row", GROUP, Level.CONSISTENCY, DOC_A2A3_V3,
         (_V3 + "consistency.qs_eq1_shape",), lambda s: _plain(s) and s.Q_S == 1, lambda s: _axis(s, 2) == 1,
         basis=Basis.SOURCE, limit="1", note="not written in the document",
         breaks=(Break("above", sized(2, lambda s: 2), _ONE),),
         boundaries=(Boundary(sized(2, lambda s: 1), sized(2, lambda s: 2), _ONE, limit="1"),)),
    Rule("FIA-PS-046", "last axis of the bias is at least KV_S plus the stated prefix length", GROUP, Level.CONSISTENCY,
         DOC_A2A3_V3, (_V3 + "consistency.qs_gt1_dims", _V3 + "cross.qs_gt1_prefix_dim",
                       _V3 + "consistency.qs_eq1_shape",
                       "v3.paged_attention.cross.qs_gt1_pse_kv_s", _V3 + "single.table"),
         _plain, _wide, enforced_by="CheckPseShiftTypeAndShape", limit=">= KV_S + actualSharedPrefixLen",
         note="paged: whole blocks of the longest sequence",
         breaks=(Break("below", sized(3, _columns_less), BIAS),),
         boundaries=(Boundary(sized(3, _columns), sized(3, _columns_less),
                              {**BIAS, "storage": ("contiguous", "tensor_list")},
                              limit="KV_S + actualSharedPrefixLen"),)),
    Rule("FIA-PS-047", "bias of a paged single-token call is as wide as the table", GROUP, Level.CROSS, DOC_A2A3_V3,
         ("v3.paged_attention.cross.qs_eq1_pse_s",),
         lambda s: _plain(s) and s.paged and s.Q_S == 1 and s.table_span is not None and _wide(s),
         lambda s: _axis(s, 3) >= (s.table_span or 0), basis=Basis.DOCUMENTED,
         limit=">= columns of the table x blockSize",
         note="unquantised calls only need the blocks of the longest sequence",
         breaks=(Break("below", widen("blockTable", 1), {**_ONE, "storage": ("BnBsH", "BnNBsD"), "scenario": "gqa"},
                       entails=("FIA-PA-115",)),)),
    Rule("FIA-PS-048", "MLA with rope takes no bias", GROUP, Level.CROSS, DOC_A2A3_V3,
         tuple(_V3 + f"cross.{n}_no_pse" for n in ("tnd512", "mla512_a2", "mla128_a2")),
         lambda s: _given(s) and s.rope_on, never, enforced_by="CheckFeatureSupport",
         breaks=tuple(Break("present", add_bias, {**_NONE, "scenario": kind}) for kind in ("mla_decode",
                                                                                           "mla_prefill_split"))),
    Rule("FIA-PS-049", "TND and NTD_TND take no bias", GROUP, Level.CROSS, DOC_A2A3_V3, (_V3 + "cross.tnd_no_pse",),
         lambda s: _given(s) and not s.rope_on, lambda s: s.layout_name not in PACKED, basis=Basis.DOCUMENTED,
         note="the fast TND route ignores it, NTD_TND refuses it",
         breaks=(Break("present", lambda s: {"pseShift": TensorSpec((1, s.Q_N, 16, 16), s.q_dtype or "FLOAT16")},
                       {**_NONE, "scenario": "gqa", "layout": "TND"}),)),
)
