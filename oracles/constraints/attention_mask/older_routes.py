"""A2 and A3: what the fast TND route and the older prefill and decode routes check of the mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.parameters import INT_MAX
from fiafuzz.model.scene import Scene

from ..changes import drop, put, reshape, where
from ..routes import DECODE, DECODE_ROUTE, FAST, FAST_ROUTE, NEWER, PREFILL, PREFILL_ROUTE
from ..rule import ALL_A2A3, DOC_A2A3_V5, SRC_A2A3, SRC_A2A3_V5, Basis, Boundary, Break, Level, Rule, Words
from .facts import FIXED_MODES, mask_rule
from .sparse import TREE

ALSO = {
    NEWER: "042",
    FAST: "005 021 043",
    PREFILL: "001 005 021 041 042 043 044",
    DECODE: "001 005 021 042",
}
"""Numbers of the rules of this room that hold on these routes too."""

ALSO_MLA = {DECODE: "056 057 058"}
"""Numbers of the rules of this room that hold for INT8 Decode MLA, which V5 alone runs on the decode route."""

_FIXED_SHAPES = ((2048, 2048), (1, 2048, 2048), (1, 1, 2048, 2048))
_V5 = DOC_A2A3_V5 | SRC_A2A3_V5
_MLA: Words = {"scenario": "full_decode_mla", "mask": ("BOOL", "INT8", "UINT8")}
_DECODE: Words = {"scenario": "antiquant", "q_s": "1", "mask": "BOOL"}
_PREFILL: Words = {"scenario": ("antiquant", "full_per_tensor"), "q_s": ("2-16", "17+"), "sparse_mode": "0",
                   "mask": ("BOOL", "INT8", "UINT8"), "left_padding": "none", "storage": "contiguous",
                   "post_quant": ("none", "tensor")}
_FAST: Words = {"layout": "TND", "scenario": "gqa", "storage": "contiguous", "sparse_mode": "4"}


def _mla(s: Scene) -> bool:
    return s.quant_kind == "full" and s.rope_on


def _narrow(s: Scene) -> bool:
    shape = s.shape("attenMask")
    width = s.table_span if s.paged else s.KV_S
    return shape is not None and len(shape) > 0 and width is not None and shape[-1] < width + s.prefix_len


def _next_reaches(s: Scene) -> bool:
    """Whether nextTokens leaves the first query token of each batch something to see."""
    after = max(-INT_MAX, min(INT_MAX, s.attrs.nextTokens))
    return after > -(s.Q_S or 1) and all(n <= 0 or after > -n for n in s.q_lens or ())


def _too_low(s: Scene) -> Optional[Mapping[str, object]]:
    lens = [n for n in s.q_lens or () if n > 0]
    return {"preTokens": INT_MAX, "nextTokens": -min(lens)} if lens else None


def _pre_reaches(s: Scene) -> bool:
    """Whether preTokens leaves the last query token of each batch something to see."""
    before = max(-INT_MAX, min(INT_MAX, s.attrs.preTokens))
    return (s.KV_S is None or before > -max(1, s.KV_S + s.prefix_len)) and all(
        n + s.prefix_len <= 0 or before > -(n + s.prefix_len) for n in s.kv_lens or ())


def _band_reaches(s: Scene) -> bool:
    """The same for sparseMode 4, which counts from the other ends: preTokens for the query, nextTokens for the key."""
    before, after = (max(-INT_MAX, min(INT_MAX, n)) for n in (s.attrs.preTokens, s.attrs.nextTokens))
    reach = [n + s.prefix_len for n in (*(s.kv_lens or ()), *((s.KV_S,) if s.KV_S is not None else ()))]
    rows = [*(s.q_lens or ()), *((s.Q_S,) if s.Q_S is not None else ())]
    return all(n <= 0 or before > -n for n in rows) and all(n <= 0 or after > -n for n in reach)


def _pre_too_low(s: Scene) -> Optional[Mapping[str, object]]:
    lens = [n + s.prefix_len for n in s.kv_lens or () if n + s.prefix_len > 0]
    return {"preTokens": -min(lens), "nextTokens": INT_MAX} if lens else None


def _band_too_low(s: Scene) -> Optional[Mapping[str, object]]:
    lens = [n for n in s.q_lens or () if n > 0]
    return {"sparseMode": 4, "preTokens": -min(lens), "nextTokens": INT_MAX} if lens else None


def _covers(s: Scene) -> bool:
    shape = s.shape("attenMask") or ()
    columns = s.paged_columns if s.paged else s.KV_S
    if len(shape) not in (2, 3, 4):
        return True
    if (len(shape) > 2 and shape[0] not in (1, s.B)) or (len(shape) == 4 and shape[1] != 1):
        return False
    return shape[-2] >= (s.Q_S or 0) and (columns is None or shape[-1] >= columns + s.prefix_len)


def _one_row_less(s: Scene) -> Optional[Mapping[str, object]]:
    shape = s.shape("attenMask")
    if shape is None or len(shape) < 2 or not s.Q_S or s.Q_S < 2:
        return None
    return reshape("attenMask", (*shape[:-2], s.Q_S - 1, shape[-1]))(s)


def _one_column_less(s: Scene) -> Optional[Mapping[str, object]]:
    shape = s.shape("attenMask")
    if shape is None or s.KV_S is None or s.KV_S + s.prefix_len < 2:
        return None
    return reshape("attenMask", (*shape[:-1], s.KV_S + s.prefix_len - 1))(s)


def _mask(s: Scene) -> Optional[Mapping[str, object]]:
    return {"attenMask": TensorSpec((2048, 2048), "BOOL"), "sparseMode": 0}


RULES: tuple[Rule, ...] = (
    mask_rule(
        201, "A2/A3: nextTokens of sparseMode 0 with a mask reaches back less than the query is long",
        level=Level.CROSS,
        profiles=ALL_A2A3, cites=("v3.attention_mask.consistency.sparse0_with_mask_sum",), basis=Basis.SOURCE,
        routes=PREFILL_ROUTE, enforced_by="RunBigKernelTilingWithParams",
        when=lambda s: s.sparse_mode == 0 and s.mask_on and not s.left_padding_on, requires=_next_reaches,
        breaks=(Break("below", _too_low, _PREFILL),),
    ),
    mask_rule(
        210, "A2/A3: preTokens of sparseMode 0 with a mask reaches back less than the key is long", level=Level.CROSS,
        profiles=ALL_A2A3, cites=("v3.attention_mask.cross.sparse0_with_mask_pre_tokens",), basis=Basis.SOURCE,
        routes=PREFILL_ROUTE, enforced_by="RunBigKernelTilingWithParams",
        when=lambda s: s.sparse_mode == 0 and s.mask_on and not s.left_padding_on, requires=_pre_reaches,
        breaks=(Break("below", _pre_too_low, _PREFILL, ("FIA-AM-075",)),),
    ),
    mask_rule(
        211, "A2/A3: the tokens of sparseMode 4 of a quantised call reach into query and key", level=Level.CROSS,
        profiles=ALL_A2A3, cites=("v3.attention_mask.cross.sparse4_pre_tokens",
                                  "v3.attention_mask.cross.sparse4_next_tokens"), basis=Basis.SOURCE,
        routes=PREFILL_ROUTE, enforced_by="RunBigKernelTilingWithParams",
        when=lambda s: s.sparse_mode == 4, requires=_band_reaches,
        breaks=(Break("below", _band_too_low, {**_PREFILL, "sparse_mode": ("2", "3", "4"), "post_quant": "none"},
                      ("FIA-AM-074",)),),
    ),
    mask_rule(
        212, "A2/A3: the mask of a quantised call with several query tokens covers query and key",
        level=Level.CONSISTENCY, profiles=SRC_A2A3,
        cites=("v3.attention_mask.consistency.shape_sparse_01_qs_gt_1",), basis=Basis.SOURCE, routes=PREFILL_ROUTE,
        enforced_by="CheckAttenMaskShape", when=lambda s: s.mask_on and s.sparse_mode in (0, 1), requires=_covers,
        limit="(Q_S, KV_S), (1 or B, Q_S, KV_S), (1 or B, 1, Q_S, KV_S)",
        breaks=(Break("below", _one_row_less, {**_PREFILL, "q_lengths": "absent"}),
                Break("below", _one_column_less, {**_PREFILL, "kv_lengths": "absent"}),
                Break("axis", lambda s: _other_batch(s), {**_PREFILL, "mask_shape": ("3d", "4d")})),
        boundaries=(Boundary(lambda s: _exact(s), _one_row_less, _PREFILL, limit="Q_S"),),
    ),
    mask_rule(
        202, "A2/A3: with quantised key and one query token a mask of sparseMode 2, 3 and 4 is 2048 x 2048",
        level=Level.CONSISTENCY, profiles=ALL_A2A3,
        cites=("v3.attention_mask.consistency.shape_sparse_234_table",), basis=Basis.SOURCE, routes=DECODE_ROUTE,
        note="the documents say that sparseMode is not looked at there", enforced_by="ProcessAttenMask",
        when=lambda s: s.quant_kind == "antiquant" and s.mask_on and s.sparse_mode in FIXED_MODES,
        requires=lambda s: s.shape("attenMask") in _FIXED_SHAPES, limit="2048 x 2048",
        breaks=(Break("value", put(sparseMode=3), {**_DECODE, "sparse_mode": "0"}),),
    ),
    mask_rule(
        203, "A2/A3: the mask of INT8 Decode MLA has two axes", level=Level.SINGLE, profiles=_V5,
        cites=("v5.attention_mask.cross.full_quant_int8_mla_other_multi_mask",), basis=Basis.SOURCE,
        routes=DECODE_ROUTE, enforced_by="CheckMaskShapeWithQSeq, CheckTndMaskShapeWithSparseMode",
        when=lambda s: _mla(s) and s.mask_on and s.sparse_mode == 3,
        requires=lambda s: s.shape("attenMask") == (2048, 2048), limit="[2048,2048]",
        breaks=(Break("rank", reshape("attenMask", (1, 2048, 2048)), _MLA),),
    ),
    mask_rule(
        204, "A2/A3: sparseMode 3 of INT8 Decode MLA needs a mask", level=Level.EXISTENCE, profiles=SRC_A2A3_V5,
        cites=("v5.attention_mask.cross.full_quant_int8_mla_other_multi_mask",), basis=Basis.SOURCE,
        routes=DECODE_ROUTE, enforced_by="CheckMaskShapeWithQSeq, CheckTndMaskShapeWithSparseMode",
        when=lambda s: _mla(s) and s.sparse_mode == 3, requires=lambda s: s.mask_on,
        breaks=(Break("absent", drop("attenMask"), _MLA),),
    ),
    mask_rule(
        213, "A2/A3: INT8 Decode MLA takes sparseMode 0 and 3", level=Level.SINGLE, profiles=_V5,
        cites=("v5.attention_mask.cross.full_quant_int8_mla_tnd_modes",), basis=Basis.SOURCE, routes=DECODE_ROUTE,
        enforced_by="CheckMaskShapeWithQSeq, CheckTndMaskShapeWithSparseMode", when=_mla,
        requires=lambda s: s.sparse_mode in (0, 3),
        breaks=(Break("value", put(sparseMode=4), {**_MLA, "layout": ("TND", "TND_NTD")}),),
    ),
    mask_rule(
        214, "A2/A3: INT8 Decode MLA with sparseMode 0 takes no mask", level=Level.CROSS, profiles=_V5,
        cites=("v5.attention_mask.cross.full_quant_int8_mla_tnd_mode0_no_mask",), basis=Basis.SOURCE,
        routes=DECODE_ROUTE, enforced_by="CheckMaskShapeWithQSeq, CheckTndMaskShapeWithSparseMode",
        when=lambda s: _mla(s) and s.sparse_mode == 0, requires=lambda s: not s.mask_on,
        breaks=(Break("value", put(sparseMode=0), {**_MLA, "layout": ("TND", "TND_NTD")}, ("FIA-AM-017",)),),
    ),
    mask_rule(
        205, "A2/A3: sparseMode 0 of a TND call takes no mask", level=Level.CROSS, profiles=SRC_A2A3,
        cites=("v3.attention_mask.cross.tnd_gqa_sparse_03",), basis=Basis.SOURCE, routes=FAST_ROUTE,
        note="the documents state it with the modes that TND takes", enforced_by="CheckFAIMask",
        when=lambda s: s.sparse_mode == 0, requires=lambda s: not s.given("attenMask"),
        breaks=(Break("present", _mask, {"layout": "TND", "scenario": "gqa", "group": ("gqa", "mqa"),
                                         "mask": "none"}),),
    ),
    mask_rule(
        206, "A2/A3: the tokens of sparseMode 4 of a TND call leave a band as they are, before they are clamped",
        level=Level.CONSISTENCY, profiles=ALL_A2A3,
        cites=("v3.attention_mask.consistency.tnd_gqa_band_tokens_sum",), basis=Basis.SOURCE, routes=FAST_ROUTE,
        enforced_by="CheckSparseModeParams", when=lambda s: s.sparse_mode == 4,
        requires=lambda s: s.attrs.preTokens + s.attrs.nextTokens >= 0,
        breaks=(Break("below", put(preTokens=-(1 << 40), nextTokens=INT_MAX), _FAST),),
    ),
    mask_rule(
        209, "A2/A3: quantised key and one query token take no sparseMode 9", level=Level.SINGLE, profiles=ALL_A2A3,
        cites=("v3.attention_mask.single.sparse_void_qs1_no_rope",), basis=Basis.SOURCE, routes=DECODE_ROUTE,
        note="the documents say that sparseMode is not looked at there", enforced_by="CheckTreeSparseMask",
        when=lambda s: s.quant_kind == "antiquant", requires=lambda s: s.sparse_mode != TREE,
        breaks=(Break("value", put(sparseMode=TREE), _DECODE),),
    ),
    mask_rule(
        207, "A2/A3: with quantised key and one query token the mask is as wide as key or block table",
        level=Level.CONSISTENCY, profiles=SRC_A2A3,
        cites=("v3.attention_mask.consistency.shape_sparse_01_qs_eq_1",), basis=Basis.SOURCE, routes=DECODE_ROUTE,
        enforced_by="ProcessAttenMask",
        when=lambda s: s.quant_kind == "antiquant" and s.mask_on and s.sparse_mode not in FIXED_MODES,
        requires=lambda s: not _narrow(s), limit="KV_S and the prefix",
        note="the lengths count for nothing, as the documents say",
        breaks=(Break("below", where(lambda s: s.paged, lambda s: _narrower(s)),
                      {**_DECODE, "storage": ("BnBsH", "BnNBsD")}, ("FIA-PA-009", "FIA-AM-072")),),
    ),
    mask_rule(
        208, "A2/A3: with quantised key and one query token the mask has one row for each batch",
        level=Level.CONSISTENCY, profiles=SRC_A2A3,
        cites=("v3.attention_mask.consistency.shape_sparse_01_qs_eq_1",), basis=Basis.SOURCE, routes=DECODE_ROUTE,
        enforced_by="ProcessAttenMask",
        when=lambda s: (s.quant_kind == "antiquant" and s.mask_on and s.sparse_mode not in FIXED_MODES
                        and s.B is not None),
        requires=lambda s: _rows(s), limit="[B, ..., 1, KV_S]",
        breaks=(Break("axis", lambda s: _other_batch(s), _DECODE, ("FIA-AM-072",)),),
    ),
)


def _exact(s: Scene) -> Optional[Mapping[str, object]]:
    shape = s.shape("attenMask")
    if shape is None or len(shape) < 2 or s.Q_S is None:
        return None
    return {} if shape[-2] == s.Q_S else reshape("attenMask", (*shape[:-2], s.Q_S, shape[-1]))(s)


def _rows(s: Scene) -> bool:
    shape = s.shape("attenMask") or ()
    return len(shape) in (2, 3, 4) and shape[0] == s.B and all(n == 1 for n in shape[1:-1])


def _narrower(s: Scene) -> Optional[Mapping[str, object]]:
    shape = s.shape("attenMask")
    if shape is None or s.table_span is None or s.table_span < 2:
        return None
    return reshape("attenMask", (*shape[:-1], s.table_span - 1))(s)


def _other_batch(s: Scene) -> Optional[Mapping[str, object]]:
    shape = s.shape("attenMask")
    return None if shape is None or s.B is None else reshape("attenMask", (s.B + 1, *shape[1:]))(s)
