"""The additive bias (pseType 0): pseShift of (B or 1, Q_N, Q_S or 1, KV_S)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import add_axis, cast, merge_axes, put, reshape, resize, widen
from ..rule import (
    ALL_950,
    DOC_950,
    DOC_A2A3_V5,
    SRC_950,
    SRC_A2A3,
    Basis,
    Boundary,
    Break,
    Change,
    Effect,
    Level,
    Rule,
    Words,
    never,
)
from ..shared_prefix.facts import PLAIN as PREFIX_PLAIN
from ..shared_prefix.facts import prefix_pair

GROUP = "pse"
V5 = ALL_950 | DOC_A2A3_V5 | SRC_A2A3
DTYPE_OF_QUERY = {"FLOAT16": "FLOAT16", "INT8": "FLOAT16", "BFLOAT16": "BFLOAT16"}
BANNED = ("BSH_BNSD", "BSND_BNSD", "TND", "NTD", "NTD_TND", "TND_NTD")
BIAS: Words = {"pse": "bias"}
PLAIN: Words = {"pse": "none", "scenario": "gqa", "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND"), "sink": "off"}


def typed_bias(s: Scene) -> bool:
    """Whether pseShift is given and read as an additive bias, empty or not."""
    return s.inputs.pseShift is not None and s.attrs.pseType == 0


def four_axes(s: Scene) -> bool:
    """Whether pseShift is an additive bias of rank 4."""
    return typed_bias(s) and len(s.shape("pseShift") or ()) == 4


def _axis(s: Scene, axis: int) -> int:
    return (s.shape("pseShift") or ())[axis]


def key_columns(s: Scene) -> Optional[int]:
    """KV_S as the host counts it: of blocks when paged, else the longest S axis of the keys."""
    return s.paged_columns if s.paged else s.KV_S


def stated_prefix(s: Scene) -> int:
    """actualSharedPrefixLen[0], 0 without it: what the host adds to KV_S, with or without prefix tensors."""
    lens = s.inputs.actualSharedPrefixLen
    return lens[0] if lens else 0


def _columns(s: Scene) -> Optional[int]:
    return None if key_columns(s) is None else (key_columns(s) or 0) + (stated_prefix(s) if s.prefix_on else 0)


def _host_columns(s: Scene) -> Optional[int]:
    return None if key_columns(s) is None else (key_columns(s) or 0) + stated_prefix(s)


def bias_for(s: Scene) -> Optional[TensorSpec]:
    """A legal bias for a call that has none: one batch, all query rows, all columns."""
    columns = _host_columns(s)
    rows = max(s.Q_S, 1) if s.Q_S is not None else None
    if columns is None or rows is None or s.q_dtype not in DTYPE_OF_QUERY or columns + s.prefix_len <= 0:
        return None
    return TensorSpec((1, s.Q_N, rows, columns + s.prefix_len), DTYPE_OF_QUERY[s.q_dtype])


def add_bias(s: Scene) -> Optional[dict[str, object]]:
    """Give a call without bias a legal one."""
    spec = None if s.given("pseShift") else bias_for(s)
    return None if spec is None else {"pseShift": spec}


def sized(axis: int, size: Callable[[Scene], Optional[int]]) -> Change:
    """Give one axis of the bias a size, also where it has it already."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        spec, new = s.inputs.pseShift, size(s)
        if spec is None or new is None or new < 0 or spec.rank != 4:
            return None
        return {"pseShift": TensorSpec((*spec.shape[:axis], new, *spec.shape[axis + 1:]), spec.dtype)}

    return change


def _to_columns(extra: int) -> Change:
    return sized(3, lambda s: None if (_columns(s) or 0) + extra <= 0 else (_columns(s) or 0) + extra)


def _to_rows(extra: int) -> Change:
    return sized(2, lambda s: s.Q_S + extra if s.Q_S is not None and s.Q_S + extra > 1 else None)


def _with_prefix(extra: int, stated: bool) -> Change:
    """A call without bias and prefix, given a prefix of 16 columns (its length stated as 9, or not at all) and a bias
    of KV_S plus ``extra`` columns."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        pair, columns = prefix_pair(s), key_columns(s)
        spec = bias_for(s)
        if pair is None or columns is None or spec is None or s.given("pseShift") or s.prefix_on:
            return None
        wide = TensorSpec((*spec.shape[:3], columns + extra), spec.dtype)
        return {**pair, "pseShift": wide, "actualSharedPrefixLen": (9,) if stated else None}

    return change


def _in_batches(s: Scene) -> bool:
    return _axis(s, 0) in (1, s.B)


def _wide(s: Scene) -> bool:
    columns = _columns(s)
    return columns is None or _axis(s, 3) >= columns


def _unstated_prefix(s: Scene) -> bool:
    return four_axes(s) and s.prefix_on and not s.inputs.actualSharedPrefixLen and _columns(s) is not None


_SHAPE = "CheckPseShiftShape"
_BOTH = ("s1_gt1", "s1_eq1")


def _cites(name: str) -> tuple[str, ...]:
    return tuple(f"v5.pse.single.{branch}_{name}" for branch in _BOTH)


_NO_PREFIX: Words = {**BIAS, "prefix": "none"}
_ADD: Words = {**PLAIN, **PREFIX_PLAIN, "mask_shape": ("none", "2048/2", "2048/3", "2048/4")}
_MLA: Words = {"pse": "none", "scenario": ("mla_decode", "mla_prefill_split", "mla_prefill_combined"),
               "sink": "off", "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND")}

RULES: tuple[Rule, ...] = (
    Rule("FIA-PS-001", "pseType is 0", GROUP, Level.SINGLE, SRC_950, ("v5.pse.single.pse_type_head_only_zero",
         "v5.pse.single.pse_type_1_training_only", "v5.pse.single.pse_type_values"),
         lambda s: s.attrs.pseType != 0, never, enforced_by="GetPseShiftFlag", limit="0", basis=Basis.SOURCE,
         note="compared as 64 bits; read by the parser, but after it has let an empty call go",
         breaks=(Break("above", put(pseType=2), {"pse": "none"}), Break("above", put(pseType=1), {"pse": "none"}),
                 Break("below", put(pseType=-1), {"pse": "none"}),
                 Break("above", put(pseType=1 << 32), {"pse": "none"})),
         boundaries=(Boundary(put(pseType=0), put(pseType=1), {"pse": "none"}, limit="0"),
                     Boundary(put(pseType=0), put(pseType=-1), {"pse": "none"}, limit="0"))),
    Rule("FIA-PS-002", "bias is FLOAT16 for FLOAT16 and INT8 queries, BFLOAT16 for BFLOAT16 ones", GROUP, Level.SINGLE,
         V5,
         ("v5.pse.single.dtype_fp16_for_fp16_int8_query", "v5.pse.single.dtype_bf16_for_bf16_query"),
         lambda s: typed_bias(s) and s.q_dtype in DTYPE_OF_QUERY,
         lambda s: s.dtype("pseShift") == DTYPE_OF_QUERY[s.q_dtype or ""], enforced_by="CheckPseShiftDataType",
         breaks=(Break("dtype", cast("BFLOAT16", "pseShift"), {**BIAS, "q_dtype": ("FLOAT16", "INT8")}),
                 Break("dtype", cast("FLOAT16", "pseShift"), {**BIAS, "q_dtype": "BFLOAT16"}),
                 Break("dtype", cast("FLOAT32", "pseShift"), BIAS))),
    Rule("FIA-PS-003", "8-bit float queries have no rule for the bias dtype", GROUP, Level.SINGLE, DOC_950,
         ("v5.pse.single.dtype_other_query",),
         lambda s: typed_bias(s) and s.quant_kind == "full" and s.q_dtype in ("FLOAT8_E4M3FN", "HIFLOAT8"), never,
         effect=Effect.UNSPECIFIED, basis=Basis.DOCUMENTED,
         note="full quantisation of these kinds takes no bias at all",
         breaks=(Break("present", lambda s: {"pseShift": TensorSpec((1, s.Q_N, 1, 4096), "FLOAT16")},
                       {"scenario": "full_decode_mla", "q_dtype": ("FLOAT8_E4M3FN", "HIFLOAT8")},
                       entails=("FIA-PS-011",)),)),
    Rule("FIA-PS-004", "bias has four axes", GROUP, Level.SINGLE, V5, ("v5.pse.single.rank_4",),
         typed_bias, four_axes, enforced_by=_SHAPE, limit="rank 4",
         breaks=(Break("rank", add_axis("pseShift"), BIAS), Break("rank", merge_axes("pseShift"), BIAS),
                 Break("rank", reshape("pseShift", lambda s: (s.Q_N,)), BIAS, note="the form of slopes"))),
    Rule("FIA-PS-005", "first axis of the bias is 1 or B", GROUP, Level.SINGLE, V5,
         (*_cites("dim0"), "v5.interface.single.empty_pse"), lambda s: four_axes(s) and s.B is not None, _in_batches,
         enforced_by=_SHAPE, limit="1 or B",
         breaks=(Break("above", resize("pseShift", 0, lambda s, _: (s.B or 0) + 1),
                       {**BIAS, "batch": ("1", "2", "3+")}),
                 Break("below", resize("pseShift", 0, 0), BIAS)),
         boundaries=(Boundary(sized(0, lambda s: s.B), resize("pseShift", 0, lambda s, _: (s.B or 0) + 1),
                              {**BIAS, "batch": ("1", "2", "3+")}, limit="B"),)),
    Rule("FIA-PS-006", "second axis of the bias is the number of query heads", GROUP, Level.SINGLE, V5, _cites("dim1"),
         four_axes, lambda s: _axis(s, 1) == s.Q_N, enforced_by=_SHAPE, limit="numHeads",
         breaks=(Break("above", widen("pseShift", 1), BIAS), Break("below", widen("pseShift", 1, -1), BIAS))),
    Rule("FIA-PS-007", "third axis of the bias is 1 or at least Q_S", GROUP, Level.SINGLE, V5,
         ("v5.pse.single.s1_gt1_dim2", "v5.pse.single.dim2_zero"), lambda s: four_axes(s) and s.Q_S is not None,
         lambda s: _axis(s, 2) == 1 or (_axis(s, 2) > 1 and _axis(s, 2) >= (s.Q_S or 0)), enforced_by=_SHAPE,
         limit="1, or >= Q_S", note="1 serves all rows",
         breaks=(Break("below", _to_rows(-1), {**BIAS, "q_s": ("2-16", "17+")}),
                 Break("below", resize("pseShift", 2, 0), BIAS)),
         boundaries=(Boundary(_to_rows(0), _to_rows(-1), {**BIAS, "q_s": ("2-16", "17+")}, limit="Q_S"),
                     Boundary(sized(2, lambda s: 1), resize("pseShift", 2, 0), BIAS, limit="1"))),
    Rule("FIA-PS-008", "last axis of the bias is at least KV_S plus the stated prefix length", GROUP, Level.SINGLE, V5,
         (*_cites("dim3_no_prefix"), *_cites("dim3_prefix"), "v5.pse.cross.paged_attention_width",
          "v5.shared_prefix.cross.pse_width"), four_axes, _wide, enforced_by=_SHAPE,
         limit=">= KV_S + actualSharedPrefixLen",
         note="paged: whole blocks of the longest sequence, with antiquant the whole table; tensor list: the longest S",
         breaks=(Break("below", _to_columns(-1), _NO_PREFIX), Break("below", _with_prefix(8, True), _ADD)),
         boundaries=(Boundary(_to_columns(0), _to_columns(-1), _NO_PREFIX, limit="KV_S"),
                     Boundary(_with_prefix(9, True), _with_prefix(8, True), _ADD,
                              limit="KV_S + actualSharedPrefixLen"))),
    Rule("FIA-PS-009", "last axis of the bias holds the whole prefix when its length is not stated", GROUP,
         Level.SINGLE,
         DOC_950 | DOC_A2A3_V5, (*_cites("dim3_prefix"), "v5.shared_prefix.cross.pse_width"),
         lambda s: _unstated_prefix(s) and _wide(s), lambda s: _axis(s, 3) >= (_columns(s) or 0) + s.prefix_len,
         basis=Basis.DOCUMENTED, limit=">= KV_S + S of the prefix", note="the operator adds 0 then",
         breaks=(Break("below", _with_prefix(0, False), _ADD), Break("below", _with_prefix(15, False), _ADD)),
         boundaries=(Boundary(_with_prefix(16, False), _with_prefix(15, False), _ADD,
                              limit="KV_S + S of the prefix"),)),
    Rule("FIA-PS-010", "last axis of the bias counts actualSharedPrefixLen also without a prefix", GROUP, Level.SINGLE,
         V5,
         ("v5.pse.single.s1_gt1_dim3_no_prefix", "v5.pse.single.s1_eq1_dim3_no_prefix"),
         lambda s: four_axes(s) and not s.prefix_on and bool(s.inputs.actualSharedPrefixLen) and _wide(s),
         lambda s: _host_columns(s) is None or _axis(s, 3) >= (_host_columns(s) or 0), basis=Basis.SOURCE,
         enforced_by=_SHAPE, limit=">= KV_S + actualSharedPrefixLen",
         breaks=(Break("below", lambda s: {**(_to_columns(0)(s) or {}), "actualSharedPrefixLen": (1,)}, _NO_PREFIX),),
         boundaries=(Boundary(lambda s: {**(_to_columns(1)(s) or {}), "actualSharedPrefixLen": (1,)},
                              lambda s: {**(_to_columns(0)(s) or {}), "actualSharedPrefixLen": (1,)}, _NO_PREFIX,
                              limit="KV_S + 1"),)),
    Rule("FIA-PS-011", "MLA takes no bias", GROUP, Level.CROSS, V5,
         ("v5.pse.cross.mla_no_pse", "v5.rope.cross.no_pse", "v5.quant.cross.mla_no_pse"),
         lambda s: s.pse_on and s.mla_kind is not None, never, enforced_by="CheckerFeatureCrossover",
         note="an empty bias counts as none here, and fails by its shape",
         breaks=(Break("present", add_bias, _MLA),)),
    Rule("FIA-PS-012", "different head sizes of query and value take no bias", GROUP, Level.CROSS, ALL_950,
         ("v5.pse.cross.d_unequal_no_pse", "v5.common.cross.d_unequal_only_mask"),
         lambda s: s.pse_on and s.unequal_d and s.layout_name not in BANNED, never,
         enforced_by="CheckFeatureDConsistency",
         breaks=(Break("present", add_bias, {"pse": "none", "scenario": "unequal_d", "layout": ("BSH", "BSND", "BNSD"),
                                             "sink": "off"}),)),
    Rule("FIA-PS-013", "transposed and packed layouts take no bias", GROUP, Level.CROSS, V5,
         ("v5.pse.cross.layouts_no_pse", "v5.common.cross.tnd_ntd_no_pse", "v5.common.cross.transposed_no_pse"),
         lambda s: s.pse_on and s.mla_kind is None and s.quant_kind != "full", lambda s: s.layout_name not in BANNED,
         enforced_by="CheckerFeatureCrossover", limit="not " + ", ".join(BANNED),
         breaks=tuple(Break("value", add_bias, {"pse": "none", "scenario": "gqa", "layout": layout, "sink": "off"})
                      for layout in BANNED[:5])),
    Rule("FIA-PS-014", "bias of a quantised single-token call has one row", GROUP, Level.CROSS, DOC_950 | DOC_A2A3_V5,
         ("v5.pse.cross.antiquant_decode_row_one", "v5.quant.cross.antiquant_pse_qs1_dim3"),
         lambda s: four_axes(s) and s.quant_kind == "antiquant" and s.Q_S == 1, lambda s: _axis(s, 2) <= 1,
         effect=Effect.UNSPECIFIED, basis=Basis.DOCUMENTED, limit="1",
         note="more rows pass; what the kernel reads is unknown",
         breaks=(Break("above", resize("pseShift", 2, 2), {**BIAS, "scenario": "antiquant", "q_s": "1"}),),
         boundaries=(Boundary(sized(2, lambda s: 1), resize("pseShift", 2, 2),
                              {**BIAS, "scenario": "antiquant", "q_s": "1"},
                              limit="1"),)),
)

