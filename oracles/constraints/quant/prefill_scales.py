"""A2 and A3, several query tokens: what the older prefill route demands of the scales of quantised key and value.

A paged cache takes a way of its own there, which knows FLOAT16 queries, per-channel scales and sparseMode 3 alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import cast, drop, put, reshape, together, with_shape
from ..common.recipes import axis_everywhere
from ..routes import PREFILL_ROUTE
from ..rule import ALL_A2A3, DOC_A2A3, DOC_A2A3_V3, SRC_A2A3, Basis, Boundary, Break, Change, Effect, Level, Rule, never
from .antiquant_scales import KEY, VALUE
from .antiquant_shapes import spoil
from .facts import Needs, both_scales
from .old_full import SCALES
from .old_merged import merged
from .old_separate import OFFSETS

LARGEST_Q_S = 16
"""Query tokens that separate scales of a contiguous key and value go with at most."""

_FORM: dict[str, Callable[[int, int], tuple[int, ...]]] = {
    "BSH": lambda n, d: (2, n * d), "BSND": lambda n, d: (2, n, d), "BNSD": lambda n, d: (2, n, 1, d),
    "BNSD_BSND": lambda n, d: (2, n, 1, d),
}
_PAGED_FORM: dict[str, Callable[[int, int], tuple[int, ...]]] = {
    "BSH": lambda n, d: (1, n * d), "BSND": lambda n, d: (1, n, d),
}
_MERGED: Needs = {"antiquant": "merged", "q_s": ("2-16", "17+"), "antiquant_offset": "symmetric"}
_SEPARATE: Needs = {"antiquant": ("per_channel", "per_token"), "q_s": "2-16", "storage": "contiguous",
                    "prefix": "none", "pse": "none", "post_quant": "none"}
_PAGED: Needs = {"scenario": "antiquant", "storage": ("BnBsH", "BnNBsD"), "q_s": "17+", "q_dtype": "FLOAT16"}


def _form(s: Scene, forms: dict[str, Callable[[int, int], tuple[int, ...]]]) -> Optional[tuple[int, ...]]:
    made = forms.get(s.layout_name)
    return None if made is None or s.Q_D is None or s.KV_N <= 0 else made(s.KV_N, s.Q_D)


def _quantised(s: Scene) -> bool:
    return s.quant_kind == "antiquant" and not s.packed and s.Q_S is not None and s.Q_S != 1


def _merged(s: Scene) -> bool:
    return _quantised(s) and merged(s)


def _separate(s: Scene) -> bool:
    return _quantised(s) and both_scales(s) and not _paged(s)


def _paged(s: Scene) -> bool:
    return _quantised(s) and s.paged and s.q_dtype == "FLOAT16"


def _longer(s: Scene, shape: Optional[tuple[int, ...]]) -> bool:
    return shape is not None and len(shape) == 2 and s.KV_S is not None and shape[-1] > s.KV_S


def _other_form(s: Scene) -> Optional[dict[str, object]]:
    spec, form = s.inputs.antiquantScale, _form(s, _FORM)
    if spec is None or form is None or spec.shape != form:
        return None
    return {"antiquantScale": with_shape(spec, (*form[:1], 1, 1, *form[1:])[-4:] if len(form) == 2 else (
        form[0], form[1] * form[-1]))}


def _rule(number: int, title: str, level: Level, cites: tuple[str, ...], when: Callable[[Scene], bool],
          requires: Callable[[Scene], bool] = never, *, profiles: frozenset[str] = SRC_A2A3,
          breaks: tuple[Break, ...] = (), **more: object) -> Rule:
    return Rule(f"FIA-QU-{number}", title, "quant", level, profiles, cites, when, requires,
                basis=Basis.SOURCE, routes=PREFILL_ROUTE, breaks=breaks, **more)  # type: ignore[arg-type]


def _both(change: Callable[[Scene, TensorSpec], Optional[TensorSpec]], *names: str) -> Change:
    def make(s: Scene) -> Optional[dict[str, object]]:
        values: dict[str, object] = {}
        for name in names:
            spec = s.tensor(name)
            if spec is not None:
                new = change(s, spec)
                if new is None:
                    return None
                values[name] = new
        return values or None

    return make


def _row_longer(s: Scene, spec: TensorSpec) -> TensorSpec:
    return with_shape(spec, (*spec.shape[:-1], spec.shape[-1] + 1))


MERGED_RULES = (
    _rule(501, "several query tokens: the merged antiquantScale has the form of the layout", Level.CONSISTENCY,
          ("v3.quant.consistency.antiquant_per_channel_shape",),
          lambda s: _merged(s) and _form(s, _FORM) is not None and s.shape("antiquantScale") != (2,),
          lambda s: s.shape("antiquantScale") == _form(s, _FORM), limit="[2,H], [2,N,D], [2,N,1,D]",
          profiles=SRC_A2A3 | DOC_A2A3_V3, note="the documents allow each form with each layout",
          enforced_by="CheckPerchannelAntiquantParamsShape, CheckPerchannelBSNDParamsShape",
          breaks=(Break("rank", _other_form, {**_MERGED, "antiquant_offset": "symmetric"}),)),
    _rule(502, "several query tokens: a paged quantised cache takes no merged antiquantScale", Level.CROSS,
          ("v3.quant.cross.qs_gt1_a2_sep_no_paged_attention", "v3.paged_attention.cross.qs_gt1_antiquant_a2_query"),
          lambda s: _paged(s) and merged(s), enforced_by="CheckPAAntiquantSupportScenarios",
          breaks=(Break("present", lambda s: _as_merged(s), _PAGED),)),
)


def _as_merged(s: Scene) -> Optional[dict[str, object]]:
    form = _form(s, _FORM)
    if form is None:
        return None
    return {"antiquantScale": TensorSpec(form, "FLOAT16"), **dict.fromkeys((KEY, VALUE, *OFFSETS))}


SEPARATE_RULES = (
    _rule(504, "separate per-channel scales with several query tokens: query is BFLOAT16", Level.CROSS,
          ("v3.quant.cross.qs_gt1_a2_sep_dtypes_query",), lambda s: _separate(s) and s.antiquant_modes == (0, 0),
          lambda s: s.q_dtype == "BFLOAT16", enforced_by="RunBigKernelTilingWithParams",
          breaks=(Break("dtype", cast("FLOAT16", "query", "attentionOut", KEY, VALUE),
                        {**_SEPARATE, "antiquant": "per_channel", "antiquant_offset": "symmetric"}, ("FIA-QU-460",)),)),
    _rule(505, "separate scales with several query tokens: per-token scales are no longer than key", Level.CONSISTENCY,
          ("v3.quant.consistency.qs_gt1_a2_sep_per_token_shape",),
          lambda s: _separate(s) and s.antiquant_modes == (1, 1), lambda s: not _longer(s, s.shape(KEY)),
          note="the documents say [B,L]; with one query token more rows pass",
          profiles=ALL_A2A3, enforced_by="RunBigKernelTilingWithParams",
          breaks=(Break("above", spoil(lambda shape: (*shape[:-1], shape[-1] + 1)),
                        {**_SEPARATE, "antiquant": "per_token"}),)),
    _rule(508, "separate scales with several query tokens: not one number for all", Level.CONSISTENCY,
          ("v3.quant.consistency.qs_gt1_a2_sep_per_channel_shape",), _separate, lambda s: s.shape(KEY) != (1,),
          profiles=ALL_A2A3, enforced_by="RunBigKernelTilingWithParams",
          breaks=(Break("axis", spoil(lambda shape: (1,)), {**_SEPARATE, "antiquant": "per_channel"}),)),
    _rule(510, "separate scales with several query tokens: the value scale has the shape of the key scale",
          Level.CONSISTENCY, ("v3.quant.consistency.qs_gt1_a2_sep_shapes_scales",),
          lambda s: _separate(s) and s.antiquant_modes != (0, 1),
          lambda s: s.shape(KEY) == s.shape(VALUE), profiles=ALL_A2A3, enforced_by="RunBigKernelTilingWithParams",
          breaks=(Break("axis", reshape(VALUE, lambda s: (0, *(s.shape(VALUE) or ())[1:])),
                        {**_SEPARATE, "antiquant": "per_token", "antiquant_offset": "symmetric"}),)),
    _rule(507, "a FLOAT16 query with quantised key takes no deqScale1, quantScale1 and deqScale2", Level.EXISTENCE,
          ("v3.quant.existence.fp_in_fp_out_stray_scales",),
          lambda s: _quantised(s) and s.q_dtype == "FLOAT16",
          lambda s: not any(s.given(n) for n in SCALES), profiles=SRC_A2A3 | DOC_A2A3_V3,
          enforced_by="RunBigKernelTilingWithParams",
          breaks=tuple(Break("present", put(**{n: TensorSpec((1,), "FLOAT32")}), {**_MERGED, "q_dtype": "FLOAT16"})
                       for n in SCALES)),
)


_CITE_PAGED = ("v3.quant.cross.qs_gt1_a2_sep_no_paged_attention",)

def _transposed(s: Scene) -> Optional[dict[str, object]]:
    """A call in BNSD that was one in BSND: the cache stays."""
    if s.layout_name != "BSND" or s.query is None or s.out is None or s.pse_on:
        return None
    b, q, n, d = s.query.shape
    return {"inputLayout": "BNSD", "query": with_shape(s.query, (b, n, q, d)),
            "attentionOut": with_shape(s.out, (b, n, q, d))}


PAGED_RULES = (
    _rule(511, "several query tokens, paged quantised cache: inputLayout is BSH or BSND", Level.CROSS, _CITE_PAGED,
          lambda s: _paged(s) and s.layout is not None, lambda s: s.layout_name in _PAGED_FORM,
          enforced_by="CheckPAAntiquantSupportScenarios",
          breaks=(Break("value", _transposed, _PAGED),)),
    _rule(512, "several query tokens, paged quantised cache: innerPrecise is 1", Level.CROSS, _CITE_PAGED, _paged,
          lambda s: s.inner_precise == 1, enforced_by="CheckPAAntiquantSupportScenarios",
          breaks=(Break("value", put(innerPrecise=0), _PAGED),)),
    _rule(513, "several query tokens, paged quantised cache: sparseMode is 3 with a mask", Level.CROSS, _CITE_PAGED,
          _paged, lambda s: s.sparse_mode == 3 and s.mask_on, enforced_by="CheckPAAntiquantSupportScenarios",
          breaks=(Break("value", put(sparseMode=2), _PAGED),)),
    _rule(514, "several query tokens, paged quantised cache: no bias", Level.CROSS, _CITE_PAGED, _paged,
          lambda s: not s.given("pseShift"), enforced_by="CheckPAAntiquantSupportScenarios",
          breaks=(Break("present", lambda s: _bias(s), _PAGED),)),
    _rule(515, "several query tokens, paged quantised cache: separate scales go without the merged ones", Level.CROSS,
          _CITE_PAGED, lambda s: _paged(s) and both_scales(s),
          lambda s: not s.given("antiquantScale") and not s.given("antiquantOffset"),
          enforced_by="CheckPAAntiquantSupportScenarios",
          breaks=(Break("present", put(antiquantScale=TensorSpec((2,), "FLOAT16")), _PAGED, ("FIA-QU-485",)),)),
    _rule(516, "several query tokens, paged quantised cache: at least 17", Level.CROSS, _CITE_PAGED, _paged,
          lambda s: s.Q_S is None or s.Q_S > LARGEST_Q_S, limit="17",
          enforced_by="RunBigKernelTilingWithParams",
          breaks=(Break("below", axis_everywhere("S", 16, "query", "attentionOut"),
                        {**_PAGED, "q_lengths": "absent", "lse": "off"}),),
          boundaries=(Boundary(axis_everywhere("S", 17, "query", "attentionOut"),
                               axis_everywhere("S", 16, "query", "attentionOut"),
                               {**_PAGED, "q_lengths": "absent", "lse": "off"}, limit="17"),)),
    _rule(517, "several query tokens, paged quantised cache: both modes are 0", Level.CROSS, _CITE_PAGED,
          lambda s: _paged(s) and both_scales(s), lambda s: s.antiquant_modes == (0, 0),
          enforced_by="CheckPAAntiquantSupportScenarios",
          breaks=(Break("value", put(keyAntiquantMode=1, valueAntiquantMode=1), _PAGED),)),
    _rule(518, "several query tokens, paged quantised cache: scales are [1,H], or [1,N,D] with BSND", Level.CROSS,
          _CITE_PAGED, lambda s: _paged(s) and both_scales(s) and _form(s, _PAGED_FORM) is not None,
          lambda s: s.shape(KEY) == s.shape(VALUE) == _form(s, _PAGED_FORM),
          enforced_by="CheckPAAntiquantSupportScenarios",
          breaks=(Break("above", spoil(lambda shape: (*shape[:-1], shape[-1] + 1)),
                        {**_PAGED, "antiquant_offset": "symmetric"}),
                  Break("rank", spoil(lambda shape: shape[1:]), {**_PAGED, "antiquant_offset": "symmetric"}))),
    _rule(519, "several query tokens, paged quantised cache: offsets have the shape of their scales", Level.CROSS,
          _CITE_PAGED, lambda s: _paged(s) and both_scales(s) and _form(s, _PAGED_FORM) is not None,
          lambda s: all(s.shape(n) in (None, _form(s, _PAGED_FORM)) for n in OFFSETS),
          enforced_by="CheckPAAntiquantSupportScenarios",
          breaks=(Break("axis", _both(_row_longer, *OFFSETS), {**_PAGED, "antiquant_offset": "offset"},
                        ("FIA-QU-483",)),)),
    _rule(520, "several query tokens, paged quantised cache: the separate scales are given", Level.EXISTENCE,
          _CITE_PAGED, lambda s: _paged(s) and not s.given("antiquantScale"), both_scales,
          enforced_by="CheckPAAntiquantSupportScenarios",
          breaks=(Break("absent", drop(VALUE), _PAGED, ("FIA-QU-446",)),)),
)


def _bias(s: Scene) -> Optional[dict[str, object]]:
    if s.Q_S is None or s.paged_columns is None:
        return None
    return {"pseShift": TensorSpec((1, s.Q_N, s.Q_S, s.paged_columns), "FLOAT16")}


def _four_axes(s: Scene, spec: TensorSpec) -> Optional[TensorSpec]:
    n, d = s.KV_N, s.Q_D
    return None if d is None else with_shape(spec, (1, n, 1, d))


CRASHES = (
    Rule("FIA-QU-521", "per-channel scales of INT8 key and value with 2 to 16 query tokens have 1, 2 or 3 axes each",
         "quant", Level.SINGLE, ALL_A2A3, (),
         lambda s: (_separate(s) and s.antiquant_modes == (0, 0) and s.k_dtype == "INT8" and s.Q_S is not None
                    and s.storage == "contiguous"
                    and 2 <= s.Q_S <= LARGEST_Q_S and not any(s.given(n) for n in OFFSETS)),
         lambda s: len(s.shape(KEY) or ()) == len(s.shape(VALUE) or ()) in (1, 2, 3), basis=Basis.SOURCE,
         effect=Effect.CRASH, order=40, routes=PREFILL_ROUTE,
         breaks=(Break("rank", _both(_four_axes, KEY, VALUE), {**_SEPARATE, "antiquant": "per_channel",
                                                               "antiquant_offset": "symmetric", "kv_dtype": "INT8"},
                       ("FIA-QU-452",)),)),
)

_two_tokens = together(axis_everywhere("S", 2, "query", "attentionOut"), put(actualSeqLengths=None))
_CHECKS = tuple(rule for rule in PAGED_RULES if rule.id != "FIA-QU-520")

DOCUMENT_RULES = (
    _rule(522, "several query tokens, paged quantised cache: what the older prefill route takes of it", Level.CROSS,
          ("v5.quant.cross.antiquant_paged_block_size",), _paged,
          lambda s: not any(rule.broken(s) for rule in _CHECKS), profiles=DOC_A2A3,
          note="the sum of FIA-QU-511 to 519: the V3 document refuses it whole, the V5 document says nothing",
          enforced_by="CheckPAAntiquantSupportScenarios",
          breaks=(Break("above", _two_tokens, {
              "scenario": "antiquant", "q_s": "1", "q_dtype": "FLOAT16", "storage": "BnBsH", "mask": "none",
              "pse": "none", "lse": "off", "post_quant": "none", "layout": ("BSH", "BSND"),
              "block_size": ("128", "256", "512")}, ("FIA-QU-463",)),)),
)

RULES = (*CRASHES, *DOCUMENT_RULES, *MERGED_RULES, *SEPARATE_RULES, *PAGED_RULES)
