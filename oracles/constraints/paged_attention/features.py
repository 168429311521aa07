"""What paging does not go with, and which strides a paged cache may have."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import head_size, put, stretch
from ..rule import ALL_950, DOC_950, DOC_A2A3_V5, SRC_A2A3_V5, Basis, Break, Change, Level, Rule, Words, never
from .cache import same_rank
from .facts import ALL, GROUP, NO_WIDTHS, PAGED, UNSCALED, V5, to_paged

_PADDING = TensorSpec((1,), "INT64")
_PLAIN: Words = {**UNSCALED, **NO_WIDTHS, "sink": "off"}


def _padding_given(s: Scene) -> bool:
    return s.given("queryPaddingSize") or s.given("kvPaddingSize")


def _prefix_given(s: Scene) -> bool:
    return s.given("keySharedPrefix") or s.given("valueSharedPrefix")


def _prefix(s: Scene) -> Optional[TensorSpec]:
    """A prefix of 16 columns that would fit an unpaged call of this layout."""
    if s.layout is None or s.packed or s.Q_D is None or s.k_dtype is None or s.KV_N <= 0:
        return None
    sizes = {"B": 1, "S": 16, "N": s.KV_N, "D": s.Q_D, "H": s.KV_N * s.Q_D}
    return TensorSpec(tuple(sizes[a] for a in s.layout.inputs), s.k_dtype)


def _add_prefix(*names: str) -> Change:
    def change(s: Scene) -> Optional[dict[str, object]]:
        spec = _prefix(s)
        return None if spec is None else dict.fromkeys(names, spec)

    return change


def dense_from(spec: Optional[TensorSpec], axis: int) -> bool:
    """Whether a tensor is dense from an axis on: the strides of the axes before it are free."""
    if spec is None or spec.strides is None:
        return True
    if len(spec.strides) != len(spec.shape):
        return True
    step = 1
    for size, stride in zip(reversed(spec.shape[axis:]), reversed(spec.strides[axis:])):
        if stride != step:
            return False
        step *= size
    return True


def _caches_dense(s: Scene, axis: int) -> bool:
    if s.inputs.keyRope is not None and not dense_from(s.inputs.keyRope, axis):
        return False
    return dense_from(s.tensor("key"), axis) and dense_from(s.tensor("value"), axis)


def _strided(s: Scene) -> bool:
    """Whether some cache of a paged call has strides at all (the common case is none)."""
    if not s.paged:
        return False
    key, value, rope = s.tensor("key"), s.tensor("value"), s.inputs.keyRope
    return bool((key and key.strides) or (value and value.strides) or (rope and rope.strides))


def _free_axes(s: Scene) -> int:
    return 1 if s.cache_layout == "BnBsH" else 2


def _stretches(axis: int, needs: Words) -> tuple[Break, ...]:
    return tuple(Break("strides", stretch(name, axis=axis, by=8), needs) for name in ("key", "value"))


_INT8_PREFILL = ("v5.paged_attention.cross.antiquant_int8_prefill_modes",
                 "v5.quant.cross.antiquant_int8_qs_gt1_no_paged")

RULES: tuple[Rule, ...] = (
    Rule("FIA-PA-070", "no paging with left padding", GROUP, Level.EXISTENCE, V5,
         ("v5.paged_attention.existence.no_left_padding", "v5.left_padding.cross.no_paged_attention"),
         lambda s: s.paged and _padding_given(s), never, enforced_by="CheckFeatureSupport",
         note="the tensor itself counts, also where it would be ignored",
         breaks=(Break("present", put(queryPaddingSize=_PADDING), _PLAIN),
                 Break("present", put(kvPaddingSize=_PADDING), _PLAIN))),
    Rule("FIA-PA-071", "no paging with a shared prefix", GROUP, Level.EXISTENCE, V5,
         ("v5.paged_attention.existence.no_shared_prefix", "v5.shared_prefix.cross.no_paged_attention"),
         lambda s: s.paged and _prefix_given(s), never, enforced_by="CheckFeatureSupport",
         note="one of the two tensors is enough",
         breaks=(Break("present", _add_prefix("keySharedPrefix", "valueSharedPrefix"), {**_PLAIN, "scenario": "gqa"}),

                 Break("present", _add_prefix("keySharedPrefix"), {**_PLAIN, "scenario": "gqa"}))),

    Rule("FIA-PA-072", "no paging of Prefill MLA with rope and another value head size", GROUP, Level.EXISTENCE,
         ALL_950,
         ("v5.paged_attention.existence.no_d_unequal",),
         lambda s: s.mla_kind == "prefill_split" and s.V_D is not None and s.quant_kind == "none" and same_rank(s),
         lambda s: s.Q_D == s.V_D, enforced_by="CheckFeatureSupport",
         note="without rope: FIA-CO-035; without paging the operator takes such calls",
         breaks=(Break("pair", head_size(64, "value", "attentionOut"),
                       {**_PLAIN, "scenario": "mla_prefill_split", "lse": "off", "post_quant": "none",
                        "storage": ("BnBsH", "BnNBsD"), "sparse_mode": ("0", "2", "3"),
                        "layout": ("BNSD_BSND", "BSND_BNSD", "NTD_TND")},
                       entails=("FIA-CO-037",)),)),
    Rule("FIA-PA-073", "INT8 queries without rope take no paging", GROUP, Level.CROSS, ALL,
         ("v5.paged_attention.cross.int8_query_needs_rope", "v5.paged_attention.cross.gqa_full_quant_no_pa",
          "v5.paged_attention.single.block_size_full_quant_per_tensor_b1",
          "v5.quant.cross.full_quant_gqa_no_paged_seed",
          "v5.quant.cross.per_tensor_no_paged", "v3.paged_attention.cross.qs_gt1_fullquant_a2"),
         lambda s: s.paged and s.q_dtype == "INT8" and not s.given("queryRope") and not s.given("keyRope"), never,
         enforced_by="CheckQDtypeSupport",
         breaks=(Break("present", to_paged, {"scenario": "full_per_tensor", "storage": "contiguous", **NO_WIDTHS,
                                              "kv_lengths": "absent"}, entails=("FIA-PA-102",)),)),
    Rule("FIA-PA-074", "INT8 caches of mode 0 and 1 take no paging with several query tokens", GROUP, Level.CROSS,
         ALL_950,
         _INT8_PREFILL,
         lambda s: s.paged and s.quant_kind == "antiquant" and s.k_dtype == "INT8" and s.Q_S is not None and s.Q_S > 1
         and s.attrs.keyAntiquantMode in (0, 1), never, enforced_by="CheckFeatureQueryS",
         breaks=(Break("present", to_paged, {"scenario": "antiquant", "kv_dtype": "INT8", "q_s": "2-16",
                                              "storage": "contiguous",
                                             **NO_WIDTHS, "antiquant": ("per_channel", "per_tensor"), "prefix": "none",
                                             "layout": ("BNSD", "BNSD_BSND")}),)),
    Rule("FIA-PA-080", "a (blocks, blockSize, H) cache is strided over the blocks alone", GROUP, Level.CROSS, ALL_950,
         ("v5.paged_attention.cross.non_contiguous_bnbsh",),
         lambda s: _strided(s) and s.quant_kind == "none" and s.cache_layout == "BnBsH", lambda s: _caches_dense(s, 1),
         enforced_by="CheckNonContiguousSupport", limit="axis 0",
         breaks=(*_stretches(1, {**UNSCALED, "storage": "BnBsH"}), *_stretches(2, {**UNSCALED, "storage": "BnBsH"}))),
    Rule("FIA-PA-081", "a cache of rank 4 or 5 is strided over blocks and heads alone", GROUP, Level.CROSS, ALL_950,
         ("v5.paged_attention.cross.non_contiguous_bnnbsd_nz",),
         lambda s: _strided(s) and s.quant_kind == "none" and s.cache_layout in ("BnNBsD", "NZ"),
         lambda s: _caches_dense(s, 2),
         enforced_by="CheckNonContiguousSupport", limit="axes 0 and 1",
         breaks=(*_stretches(2, {**UNSCALED, "storage": ("BnNBsD", "NZ")}),
                 *_stretches(3, {**UNSCALED, "storage": ("BnNBsD", "NZ")}))),
    Rule("FIA-PA-082", "a quantised cache is contiguous", GROUP, Level.CROSS, ALL_950,
         ("v5.paged_attention.cross.non_contiguous_antiquant_mla_fq",),
         lambda s: _strided(s) and (s.quant_kind == "antiquant" or s.full_kind == "decode_mla"),
         lambda s: _caches_dense(s, 0),
         enforced_by="CheckNonContiguousSupport",
         breaks=(*_stretches(0, {**PAGED, "scenario": ("antiquant", "full_decode_mla")}),
                 *_stretches(1, {**PAGED, "scenario": ("antiquant", "full_decode_mla")}))),
    Rule("FIA-PA-083", "paged caches are contiguous", GROUP, Level.CROSS, DOC_950,
         ("v5.paged_attention.cross.non_contiguous_bnbsh", "v5.paged_attention.cross.non_contiguous_bnnbsd_nz"),
         lambda s: _strided(s) and s.quant_kind == "none" and _caches_dense(s, _free_axes(s)),
         lambda s: _caches_dense(s, 0),
         basis=Basis.DOCUMENTED,
         note="the parameter table knows no strided cache, the operator takes strides over blocks (and heads)",
         breaks=(*_stretches(0, {**UNSCALED}), *_stretches(1, {**UNSCALED, "storage": ("BnNBsD", "NZ")}))),
    Rule("FIA-PA-084", "a strided cache is one of unquantised Decode MLA, strided over the blocks", GROUP, Level.CROSS,
         DOC_A2A3_V5 | SRC_A2A3_V5,
         ("v5.paged_attention.cross.non_contiguous_a2",), _strided,
         lambda s: _caches_dense(s, 0) or (s.quant_kind == "none" and s.mla_kind == "decode" and _caches_dense(s, 1)),
         basis=Basis.SOURCE, enforced_by="CheckArch22Dim0Stride", limit="axis 0 of Decode MLA",
         breaks=(*_stretches(1, {**PAGED, "scenario": "mla_decode"}), *_stretches(0, {**PAGED, "scenario": "gqa"}))),
)

