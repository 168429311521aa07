"""Which layout goes with which scenario, and what transposed and packed layouts exclude."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from fiafuzz.model.scene import Scene

from ..changes import cast, head_size, held, together, where
from ..documents import V5_LINE
from ..facts import decode_mla, older_route, plain
from ..rule import DOC_A2A3_V3, Boundary, Break, Change, Level, Predicate, Words
from .heads import POWERS
from .recipes import PLAIN, SIZED, as_list, common_rule, one_scale, relayout

PREFILL_LAYOUTS = frozenset({"BNSD", "BSND", "BSH", "TND", "NTD", "BSH_BNSD", "BSND_BNSD", "NTD_TND", "BNSD_BSND"})
"""Layouts of calls without rope and of Prefill MLA."""

DECODE_LAYOUTS = frozenset({"BNSD", "BSND", "BSH", "TND", "BNSD_NBSD", "BSND_NBSD", "BSH_NBSD", "TND_NTD"})
"""Layouts of Decode MLA."""

NARROW = frozenset({"NTD", "NTD_TND", "BSH_BNSD", "BSND_BNSD"})
"""Layouts that take head sizes 64 and 128 only."""

TRANSPOSED = frozenset({"BSH_BNSD", "BSND_BNSD"})


def _kind(s: Scene) -> bool:
    return s.layout is not None and s.Q_D is not None


def _equal(s: Scene) -> bool:
    return plain(s) and s.Q_D is not None and s.Q_D == s.V_D and 0 < s.Q_D <= 512


_ALL_D = ("query", "key", "value", "attentionOut")
_NARROW_BASE: Words = {**SIZED, "layout": tuple(sorted(NARROW))}
_BNSD_BSND: Words = {**SIZED, "layout": "BNSD_BSND", "out_dtype": ("FLOAT16", "BFLOAT16")}
_INT8_OUT: Words = {**_BNSD_BSND, "post_quant": "none"}

def _is(d: int) -> Predicate:
    return lambda s: d == s.Q_D


def _int8_out(d: int) -> Change:
    """Head size ``d`` and an INT8 output with one scale."""
    def change(s: Scene) -> Optional[Mapping[str, object]]:
        sized = head_size(d, *_ALL_D)(s) or ({} if d == s.Q_D else None)
        if sized is None or s.out is None or s.inputs.quantScale2 is not None:
            return None
        wider = Scene(s.case.replace(**sized))
        output = together(cast("INT8", "attentionOut"), one_scale)(wider)
        return None if output is None else {**sized, **output}

    return change


RULES = (
    common_rule(
        21, "a call without rope takes none of the NBSD layouts and not TND_NTD", level=Level.SINGLE,
        profiles=V5_LINE,
        cites=("v5.common.single.layouts_gqa", "v5.common.cross.d512_needs_rope_for_nbsd"),
        enforced_by="CheckInputLayout", when=lambda s: _kind(s) and s.mla_kind is None and not older_route(s),
        requires=lambda s: s.layout_name in PREFILL_LAYOUTS, limit=", ".join(sorted(PREFILL_LAYOUTS)),
        breaks=tuple(Break("value", relayout(n), PLAIN) for n in ("BNSD_NBSD", "BSND_NBSD", "BSH_NBSD", "TND_NTD")),
    ),
    common_rule(
        22, "Prefill MLA takes none of the NBSD layouts and not TND_NTD", level=Level.SINGLE,
        profiles=V5_LINE, cites=("v5.common.single.layouts_prefill_mla", "v5.rope.cross.prefill_layout"),
        enforced_by="CheckInputLayout",
        when=lambda s: _kind(s) and s.mla_kind in ("prefill_split", "prefill_combined"),
        requires=lambda s: s.layout_name in PREFILL_LAYOUTS, limit=", ".join(sorted(PREFILL_LAYOUTS)),
        breaks=tuple(Break("value", relayout(n), {"scenario": ("mla_prefill_split", "mla_prefill_combined"),
                                                   "post_quant": "none"})
                     for n in ("BNSD_NBSD", "TND_NTD")),
    ),
    common_rule(
        23, "Decode MLA takes BNSD, BSND, BSH, TND, the NBSD layouts or TND_NTD", level=Level.SINGLE,
        profiles=V5_LINE | DOC_A2A3_V3,
        cites=("v5.common.single.layouts_decode_mla", "v5.rope.cross.decode_layout",
               "v5.common.single.layouts_full_quant_mla_fp8", "v5.quant.cross.mla_layout_fp8",
               "v3.common.cross.mla512_a2_layouts", "v3.common.cross.tnd512_layout"),
        enforced_by="CheckInputLayout", when=lambda s: _kind(s) and decode_mla(s),
        requires=lambda s: s.layout_name in DECODE_LAYOUTS, limit=", ".join(sorted(DECODE_LAYOUTS)),
        breaks=tuple(Break("value", relayout(n), {"scenario": "mla_decode", "q_s": ("2-16", "17+")},
                           entails=("FIA-IF-052",))
                     for n in ("BNSD_BSND", "BSND_BNSD", "BSH_BNSD")),
    ),
    common_rule(
        24, "packed layouts take no tensor list", level=Level.CROSS, profiles=V5_LINE | DOC_A2A3_V3,
        cites=("v5.common.cross.tnd_ntd_no_tensor_list", "v3.common.cross.tnd_no_tensorlist",
               "v3.common.cross.tnd512_no_tensorlist", "v3.common.cross.tensorlist_layouts"),
        enforced_by="CheckTensorList, CheckTNDLayoutCrossover, CheckNTDLayoutCrossover",
        when=lambda s: s.packed, requires=lambda s: s.storage != "tensor_list",
        breaks=(Break("pair", as_list, {"scenario": "gqa", "layout": ("TND", "NTD", "NTD_TND"),
                                        "storage": "contiguous"}),),
    ),
    common_rule(
        25, "BSH_BNSD and BSND_BNSD take no tensor list without quantisation", level=Level.CROSS, profiles=V5_LINE,
        cites=("v5.common.cross.transposed_no_tensor_list",), enforced_by="CheckTransposeLayoutCrossover",
        when=lambda s: s.quant_kind == "none" and s.layout_name in TRANSPOSED,
        requires=lambda s: s.storage != "tensor_list",
        breaks=(Break("pair", as_list, {**SIZED, "layout": tuple(sorted(TRANSPOSED)), "batch": ("2", "3+")}),),
    ),
    common_rule(
        26, "NTD, NTD_TND, BSH_BNSD and BSND_BNSD take head sizes 64 and 128", level=Level.CONSISTENCY,
        profiles=V5_LINE, cites=("v5.common.consistency.head_dim_64_128_layouts",),
        enforced_by="CheckNTDLayoutCrossover, CheckTransposeLayoutCrossover",
        when=lambda s: _equal(s) and s.layout_name in NARROW, requires=lambda s: s.Q_D in (64, 128), limit="64, 128",
        breaks=tuple(Break("value", head_size(d, *_ALL_D), _NARROW_BASE) for d in (32, 63, 96, 192)),
        boundaries=tuple(Boundary(held(_is(d), head_size(d, *_ALL_D)), head_size(d + 16, *_ALL_D), _NARROW_BASE,
                                  limit=str(d)) for d in (64, 128)),
    ),
    common_rule(
        27, "BNSD_BSND takes head sizes that are multiples of 16", level=Level.CONSISTENCY, profiles=V5_LINE,
        cites=("v5.common.consistency.head_dim_bnsd_bsnd_16",), enforced_by="CheckTransposeLayoutCrossover",
        when=lambda s: _equal(s) and s.layout_name == "BNSD_BSND",
        requires=lambda s: s.Q_D is not None and s.Q_D % 16 == 0, limit="D % 16 == 0",
        breaks=tuple(Break("value", head_size(d, *_ALL_D), _BNSD_BSND)
                     for d in (8, 63, 100)),
        boundaries=(Boundary(head_size(48, *_ALL_D), head_size(40, *_ALL_D), _BNSD_BSND, limit="16"),),
    ),
    common_rule(
        28, "BNSD_BSND with INT8 output takes head sizes that are multiples of 32", level=Level.CONSISTENCY,
        profiles=V5_LINE,
        cites=("v5.common.consistency.head_dim_bnsd_bsnd_int8_32", "v5.post_quant.cross.bnsd_bsnd_int8_alignment"),
        enforced_by="CheckTransposeLayoutCrossover",
        when=lambda s: (_equal(s) and s.layout_name == "BNSD_BSND" and s.out_dtype == "INT8"
                        and s.Q_D is not None and s.Q_D % 16 == 0),
        requires=lambda s: s.Q_D is not None and s.Q_D % 32 == 0, limit="D % 32 == 0",
        breaks=tuple(Break("value", _int8_out(d), _INT8_OUT) for d in (16, 48)),
        boundaries=(Boundary(_int8_out(96), _int8_out(80), _INT8_OUT, limit="32"),),
    ),
    common_rule(
        29, "Decode MLA in TND_NTD without quantisation has no post-quantisation", level=Level.CROSS, profiles=V5_LINE,
        cites=("v5.common.cross.decode_mla_tnd_ntd_no_post_quant", "v5.post_quant.cross.decode_mla_tnd_ntd"),
        enforced_by="CheckTNDLayoutCrossover",
        when=lambda s: s.quant_kind == "none" and s.layout_name == "TND_NTD" and decode_mla(s),
        requires=lambda s: not s.post_quant_on,
        breaks=(Break("pair", where(lambda s: s.Q_N in POWERS, together(cast("INT8", "attentionOut"), one_scale)), {
            "scenario": "mla_decode", "layout": "TND_NTD", "post_quant": "none", "sink": "off"},
            entails=("FIA-PQ-015",)),),
    ),
)
