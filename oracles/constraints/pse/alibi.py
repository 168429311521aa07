"""pseType 2 and 3 (slopes that the operator turns into a bias): in document and source of 9.1.0-beta.1, gone since."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..paged_attention.facts import newer_route
from ..rule import DOC_950, DOC_A2A3_V5, Basis, Boundary, Break, Change, Effect, Level, Rule, Words, never
from .bias import GROUP
from .slopes import equal_lengths, slopes, with_slopes

PROFILES = DOC_950 | DOC_A2A3_V5
INT32 = (-(1 << 31), (1 << 31) - 1)
REACH = 1 << 20
"""How far the two start indices may lie apart."""


def _unequal(s: Scene) -> Optional[dict[str, object]]:
    if equal_lengths(s) or s.Q_N <= 0:
        return None
    return {"pseType": 2, "pseShift": TensorSpec((s.Q_N,), "FLOAT32")}


def _missing(kind: int) -> Change:
    def change(s: Scene) -> Optional[dict[str, object]]:
        found = with_slopes(s)
        return None if found is None else {**found, "pseType": kind, "pseShift": None}

    return change


def alibi(s: Scene) -> bool:
    """Whether pseType is 2 or 3 where it is read at all."""
    return s.alibi_on and newer_route(s)


def _first(lens: Optional[tuple[int, ...]]) -> int:
    return lens[0] if lens else 0


def _gap(s: Scene) -> int:
    return _first(s.inputs.kvStartIdx) - _first(s.inputs.qStartIdx)


def _in_int32(value: int) -> bool:
    return INT32[0] <= value <= INT32[1]


_EQUAL: Words = {"pse": "none", "scenario": "gqa", "prefix": "none", "left_padding": "none", "sink": "off",
                 "storage": ("contiguous", "tensor_list")}


def _range_rule(number: str, name: str, cite: str) -> Rule:
    low, high = INT32
    other = "kvStartIdx" if name == "qStartIdx" else "qStartIdx"

    def at(value: int, partner: int) -> Change:
        return slopes(**{name: (value,), other: (partner,)})

    return Rule(
        number, f"{name} fits 32 bits", GROUP, Level.SINGLE if name == "qStartIdx" else Level.CONSISTENCY, PROFILES,
        (f"v5.pse.{cite}",), lambda s: alibi(s) and bool(s.case.get(name)),
        lambda s: _in_int32(_first(s.case.get(name))), enforced_by="CheckAlibiStartIdx",  # type: ignore[arg-type]
        limit=f"{low}..{high}",
        breaks=(Break("above", at(high + 1, high), _EQUAL), Break("below", at(low - 1, low), _EQUAL)),
        boundaries=(Boundary(at(high, high), at(high + 1, high), _EQUAL, limit=str(high)),
                    Boundary(at(low, low), at(low - 1, low), _EQUAL, limit=str(low))))


_GQA: Words = {"pse": "none", "scenario": "gqa", "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND", "NTD")}

RULES: tuple[Rule, ...] = (
    Rule("FIA-PS-020", "pseType is 0, 2 or 3", GROUP, Level.SINGLE, PROFILES,
         ("v5.pse.single.pse_type_values", "v5.pse.single.pse_type_1_training_only"),
         lambda s: s.attrs.pseType != 0 and newer_route(s), lambda s: s.attrs.pseType in (2, 3),
         enforced_by="CheckPseType",
         limit="0, 2, 3",
         note="1 is for training alone",
         breaks=(Break("value", lambda s: {"pseType": 1}, _GQA),
                 Break("above", lambda s: {"pseType": 4}, _GQA),
                 Break("below", lambda s: {"pseType": -1}, _GQA)),
         boundaries=(Boundary(slopes(pseType=3), lambda s: {"pseType": 4}, _EQUAL, limit="3"),
                     Boundary(lambda s: {"pseType": 0}, lambda s: {"pseType": -1}, _GQA, limit="0"))),
    Rule("FIA-PS-021", "slopes are FLOAT32", GROUP, Level.SINGLE, PROFILES, ("v5.pse.single.dtype_alibi",),
         lambda s: alibi(s) and s.given("pseShift"), lambda s: s.dtype("pseShift") == "FLOAT32",
         enforced_by="CheckPseShiftDataType", limit="FLOAT32",
         breaks=(Break("dtype", lambda s: with_slopes(s, pseShift=TensorSpec((s.Q_N,), "FLOAT16")), _EQUAL),
                 Break("dtype", lambda s: with_slopes(s, pseShift=TensorSpec((s.Q_N,), "BFLOAT16")), _EQUAL))),
    Rule("FIA-PS-022", "slopes have the shape (Q_N)", GROUP, Level.SINGLE, PROFILES, ("v5.pse.single.shape_alibi",),
         lambda s: alibi(s) and s.given("pseShift"), lambda s: s.shape("pseShift") == (s.Q_N,),
         enforced_by="CheckPseShiftShape", limit="rank 1, numHeads elements",
         breaks=(Break("rank", lambda s: with_slopes(s, pseShift=TensorSpec((1, s.Q_N), "FLOAT32")), _EQUAL),
                 Break("above", lambda s: with_slopes(s, pseShift=TensorSpec((s.Q_N + 1,), "FLOAT32")), _EQUAL),
                 Break("below", lambda s: with_slopes(s, pseShift=TensorSpec((s.Q_N - 1,), "FLOAT32")), _EQUAL)),
         boundaries=(Boundary(slopes(), lambda s: with_slopes(s, pseShift=TensorSpec((s.Q_N + 1,), "FLOAT32")), _EQUAL,
                              limit="numHeads"),)),
    Rule("FIA-PS-023", "pseType 2 and 3 need pseShift", GROUP, Level.EXISTENCE, PROFILES,
         ("v5.pse.existence.alibi_needs_pse",), lambda s: alibi(s), lambda s: s.given("pseShift"),
         enforced_by="CheckPseShiftExistence",
         breaks=(Break("absent", _missing(2), _EQUAL), Break("absent", _missing(3), _EQUAL))),
    _range_rule("FIA-PS-024", "qStartIdx", "single.q_start_idx_range"),
    _range_rule("FIA-PS-025", "kvStartIdx", "consistency.kv_start_idx_range"),
    Rule("FIA-PS-026", "the start indices lie at most 1048576 apart", GROUP, Level.CONSISTENCY, PROFILES,
         ("v5.pse.consistency.start_idx_difference",),
         lambda s: alibi(s) and _in_int32(_first(s.inputs.qStartIdx)) and _in_int32(_first(s.inputs.kvStartIdx)),
         lambda s: -REACH <= _gap(s) <= REACH, enforced_by="CheckAlibiStartIdx", limit="-1048576..1048576",
         breaks=(Break("above", slopes(kvStartIdx=(REACH + 1,)), _EQUAL),
                 Break("below", slopes(qStartIdx=(REACH + 1,)), _EQUAL)),
         boundaries=(Boundary(slopes(kvStartIdx=(REACH,)), slopes(kvStartIdx=(REACH + 1,)), _EQUAL, limit="1048576"),
                     Boundary(slopes(qStartIdx=(REACH,)), slopes(qStartIdx=(REACH + 1,)), _EQUAL, limit="-1048576"))),
    Rule("FIA-PS-027", "pseType 2 and 3 need equal query and key lengths", GROUP, Level.CROSS, PROFILES,
         ("v5.pse.cross.alibi_equal_lengths", "v5.actual_seq_len.cross.alibi_equal"), lambda s: alibi(s),
         equal_lengths,
         enforced_by="CheckFeatureAlibi", limit="Q_S == KV_S, batch by batch",
         breaks=(Break("pair", _unequal, _EQUAL),)),
    Rule("FIA-PS-028", "MLA takes no pseType 2 or 3", GROUP, Level.CROSS, PROFILES,
         ("v5.pse.cross.mla_no_alibi", "v5.rope.cross.no_alibi", "v5.quant.cross.mla_no_alibi"),
         lambda s: alibi(s) and s.mla_kind is not None, never, enforced_by="CheckerFeatureCrossover",
         breaks=(Break("value", slopes(), {**_EQUAL, "scenario": ("mla_prefill_split", "mla_prefill_combined",
                                                                  "mla_decode"),
                                           "storage": ("contiguous", "tensor_list", "BnBsH", "BnNBsD", "NZ")}),)),
    Rule("FIA-PS-029", "different head sizes of query and value take no pseType 2 or 3", GROUP, Level.CROSS, DOC_950,
         ("v5.pse.cross.d_unequal_no_pse",), lambda s: alibi(s) and s.unequal_d, never, basis=Basis.DOCUMENTED,
         note="the operator of 9.1.0-beta.1 logs an error and goes on",
         breaks=(Break("value", slopes(), {**_EQUAL, "scenario": "unequal_d"}),)),
    Rule("FIA-PS-030", "fully quantised GQA takes no pseType 2 or 3", GROUP, Level.CROSS, DOC_950,
         ("v5.quant.cross.per_tensor_no_alibi",),
         lambda s: alibi(s) and s.quant_kind == "full" and s.mla_kind is None, never,
         enforced_by="CheckFeaturePertensorFullquant",
         breaks=(Break("value", slopes(), {**_EQUAL, "scenario": "full_per_tensor"}),)),
    Rule("FIA-PS-031", "the older routes of A2 and A3 do not read pseType", GROUP, Level.SINGLE, DOC_A2A3_V5,
         ("v5.pse.single.pse_type_values", "v5.pse.single.pse_type_1_training_only"),
         lambda s: s.attrs.pseType != 0 and not newer_route(s), never, effect=Effect.UNSPECIFIED,
         basis=Basis.DOCUMENTED,
         note="V5 is not documented there; the operator ignores the attribute",
         breaks=(Break("above", lambda s: {"pseType": 1}, {"pse": "none", "scenario": "antiquant"}),)),
)
