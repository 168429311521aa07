"""The two rope tensors by themselves and beside query and key: existence, dtype, head size, axes, strides."""

from __future__ import annotations

from typing import Optional

from msgspec.structs import replace

from fiafuzz.model.layouts import ROPE_D, axis_sizes
from fiafuzz.model.scene import Scene

from ..changes import add_axis, cast, drop, head_size, merge_axes, put, stretch, where, widen
from ..paged_attention.features import dense_from
from ..rule import ALL_950, SRC_950, SRC_A2A3_V3, Basis, Boundary, Break, Change, Level, Rule, Words
from .facts import ALL, GROUP, PAGED, ROPE, SPLIT, V5, float_rope, key_rope_d, query_rope_d

QUERY, KEY = "queryRope", "keyRope"
_SAME = "CheckQKAndQKRopeShapeConsistency"
_PAGED_AXES = {3: (0, 1), 4: (0, 1, 2), 5: (0, 1, 3)}
"""Axes in which a rope cache has the sizes of the key cache: blocks, rows, heads."""


def _other_float(*names: str) -> Change:
    """The other of FLOAT16 and BFLOAT16."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        values: dict[str, object] = {}
        for name in names:
            spec = s.tensor(name)
            if spec is None:
                return None
            values[name] = replace(spec, dtype="BFLOAT16" if spec.dtype == "FLOAT16" else "FLOAT16")
        return values

    return change


def _rope_d(size: int) -> Change:
    return head_size(size, QUERY, KEY)


def _query_fits(s: Scene) -> bool:
    query, rope = s.shape("query") or (), s.shape(QUERY) or ()
    if len(query) != len(rope) or query[:-1] != rope[:-1]:
        return False
    return _heads_fit(s, rope, query, s.Q_D)


def _heads_fit(s: Scene, rope: tuple[int, ...], own: tuple[int, ...], d: Optional[int]) -> bool:
    """Whether an H axis of both holds as many heads (the host divides and rounds down)."""
    if s.layout is None or s.layout.inputs[-1] != "H" or not d or d <= 0:
        return True
    return own[-1] // d == rope[-1] // ROPE_D


def _contiguous(s: Scene) -> bool:
    return s.rope_on and s.storage == "contiguous" and s.k_axes is not None


def _key_fits(s: Scene) -> bool:
    key, rope = s.key_shape or (), s.shape(KEY) or ()
    if len(key) != len(rope) or key[:-1] != rope[:-1]:
        return False
    return _heads_fit(s, rope, key, s.K_D)


def _paged(s: Scene) -> bool:
    return s.rope_on and s.cache_layout is not None


def _cache_fits(s: Scene) -> bool:
    key, rope = s.key_shape or (), s.shape(KEY) or ()
    return len(key) == len(rope) and all(key[i] == rope[i] for i in _PAGED_AXES[len(key)])


def _list_axes(s: Scene) -> Optional[dict[str, int]]:
    shape = s.shape(KEY)
    if s.layout is None or shape is None or s.storage != "tensor_list" or not s.rope_on or "B" not in s.layout.inputs:
        return None
    return axis_sizes(s.layout.inputs, shape)


def _list_batch(s: Scene) -> bool:
    found = _list_axes(s)
    return found is None or found["B"] == len(s.keys)


def _list_axis(s: Scene, letter: str) -> bool:
    found = _list_axes(s)
    if found is None or s.layout is None or letter not in found:
        return True
    for key in s.keys:
        own = axis_sizes(s.layout.inputs, key.shape) if key is not None else None
        if own is not None and own[letter] != found[letter]:
            return False
    return True


_BATCH: Words = {"scenario": "mla_prefill_split", "storage": "tensor_list"}
_WHOLE: Words = {**SPLIT, "storage": "contiguous"}
_V3 = ("v3.rope.single.query_rope_table", "v3.rope.single.key_rope_table")
_V3_QUERY = ("v3.rope.consistency.mla512_a2_query_rope_shape", "v3.rope.consistency.mla128_a2_query_rope_shape", _V3[0])
_V3_KEY = ("v3.rope.consistency.mla512_a2_key_rope_shape", "v3.rope.consistency.mla128_a2_key_rope_shape", _V3[1])

RULES: tuple[Rule, ...] = (
    Rule("FIA-RO-001", "queryRope is FLOAT16 or BFLOAT16", GROUP, Level.SINGLE, ALL,
         ("v5.rope.single.query_rope_dtype", "v5.interface.single.rope_dtypes", _V3[0]), lambda s: s.rope_on,
         lambda s: float_rope(s, QUERY), enforced_by="CheckRopeDtype", limit="FLOAT16, BFLOAT16",
         breaks=(Break("dtype", cast("INT8", QUERY), SPLIT), Break("dtype", cast("FLOAT32", QUERY), SPLIT))),
    Rule("FIA-RO-002", "keyRope is FLOAT16 or BFLOAT16", GROUP, Level.SINGLE, ALL,
         ("v5.rope.single.key_rope_dtype", "v5.interface.single.rope_dtypes", _V3[1]), lambda s: s.rope_on,
         lambda s: float_rope(s, KEY), enforced_by="CheckRopeDtype", limit="FLOAT16, BFLOAT16",
         breaks=(Break("dtype", cast("INT8", KEY), SPLIT), Break("dtype", cast("FLOAT32", KEY), SPLIT))),
    Rule("FIA-RO-003", "head size of rope is 64", GROUP, Level.SINGLE, ALL,
         ("v5.rope.single.rope_head_dim", "v5.interface.single.rope_dtypes", "v3.rope.single.tnd512_rope_d",
          *_V3_QUERY, *_V3_KEY), lambda s: s.rope_on and query_rope_d(s) is not None,
         lambda s: query_rope_d(s) == ROPE_D,
         enforced_by="CheckRopeDSizeSupport", limit="64",
         breaks=tuple(Break(side, _rope_d(n), {**SPLIT, "layout": ("BSND", "BNSD", "TND", "NTD")})
                      for side, n in (("below", 32), ("above", 128))),
         boundaries=(Boundary(put(), _rope_d(65), {**SPLIT, "layout": ("BSND", "BNSD", "TND", "NTD"),
                                                    "storage": ("contiguous", "BnNBsD")}, limit="64"),)),
    Rule("FIA-RO-004", "keyRope has the head size of queryRope", GROUP, Level.SINGLE, ALL,
         ("v5.rope.single.key_rope_equal_dim", "v5.rope.consistency.bsh_head_count", "v3.rope.single.tnd512_rope_d",
          *_V3_KEY),
         lambda s: s.rope_on and query_rope_d(s) is not None and key_rope_d(s) is not None,
         lambda s: query_rope_d(s) == key_rope_d(s), enforced_by="GetRopeHeadDim",
         note="read by the parser, but after it has let an empty call go",
         breaks=(Break("axis", head_size(128, KEY), {**SPLIT, "layout": ("BSND", "BNSD", "TND", "NTD")}),
                 Break("axis", head_size(32, KEY), {**SPLIT, "layout": ("BSND", "BNSD", "TND", "NTD")}))),
    Rule("FIA-RO-005", "queryRope and keyRope come together", GROUP, Level.EXISTENCE, ALL,
         ("v5.rope.existence.both_or_none", "v3.rope.existence.both_or_none"),
         lambda s: s.given(QUERY) or s.given(KEY), lambda s: s.rope_on, enforced_by="CheckRopeConsistency",
         note="checked late: without one of them the call is not MLA, and other rules may answer first",
         breaks=(Break("absent", drop(KEY), {"scenario": "mla_prefill_split"}, entails=("FIA-CO-016", "FIA-CO-017")),
                 Break("absent", drop(QUERY), {"scenario": "mla_prefill_split"},
                       entails=("FIA-CO-016", "FIA-CO-017")))),
    Rule("FIA-RO-006", "queryRope has the axes of query except the last", GROUP, Level.CONSISTENCY, ALL,
         ("v5.rope.consistency.query_rope_shape", "v5.rope.consistency.bsh_head_count",
          "v5.interface.single.rope_dtypes",
          *_V3_QUERY),
         lambda s: s.rope_on and s.q_axes is not None, _query_fits, enforced_by=_SAME,
         breaks=(Break("axis", widen(QUERY, 0), ROPE), Break("axis", widen(QUERY, 1), ROPE),
                 Break("axis", widen(QUERY, 0, -1), ROPE),
                 Break("rank", add_axis(QUERY), ROPE), Break("rank", merge_axes(QUERY), ROPE))),
    Rule("FIA-RO-007", "keyRope has the axes of key except the last", GROUP, Level.CONSISTENCY, ALL,
         ("v5.rope.consistency.key_rope_shape", "v5.rope.consistency.bsh_head_count", "v5.interface.single.rope_dtypes",
          *_V3_KEY),
         _contiguous, _key_fits, enforced_by=_SAME,
         breaks=(Break("axis", widen(KEY, 0), _WHOLE), Break("axis", widen(KEY, 1), _WHOLE),
                 Break("axis", widen(KEY, 0, -1), _WHOLE),
                 Break("rank", add_axis(KEY), _WHOLE), Break("rank", merge_axes(KEY), _WHOLE))),
    Rule("FIA-RO-008", "keyRope's cache has the rank, blocks, rows and heads of the key cache", GROUP,
         Level.CONSISTENCY, V5,
         ("v5.rope.consistency.paged_key_rope", "v5.paged_attention.consistency.cache_block_size_axis"), _paged,
         _cache_fits,
         enforced_by="CheckPAKeyAndKeyRopeShapeConsistency",
         breaks=(Break("axis", widen(KEY, "Bn"), {**SPLIT, **PAGED}),
                 Break("axis", widen(KEY, "Bn", -1), {**SPLIT, **PAGED}),
                 Break("axis", widen(KEY, "Bs"), {**SPLIT, **PAGED}),
                 Break("axis", where(lambda s: s.cache_layout != "BnBsH", widen(KEY, "N")), {**SPLIT, **PAGED}),
                 Break("rank", merge_axes(KEY), {**SPLIT, "storage": ("BnNBsD",)}))),
    Rule("FIA-RO-009", "keyRope of a tensor list has a batch for each item", GROUP, Level.CONSISTENCY, ALL_950,
         ("v5.rope.consistency.tensorlist_batch",), lambda s: s.rope_on and s.storage == "tensor_list", _list_batch,
         enforced_by="CheckTensorlistKeyAndKeyRopeShapeConsistency", limit="B == length of the list",
         breaks=(Break("above", widen(KEY, "B"), _BATCH), Break("below", widen(KEY, "B", -1), _BATCH))),
    Rule("FIA-RO-010", "all items of a tensor list have the S of keyRope", GROUP, Level.CONSISTENCY, ALL_950,
         ("v5.rope.consistency.tensorlist_s",), lambda s: s.rope_on and s.storage == "tensor_list",
         lambda s: _list_axis(s, "S"), enforced_by="CheckTensorlistKeyAndKeyRopeShapeConsistency",
         note="so all items are equally long",
         breaks=(Break("axis", widen(KEY, "S"), _BATCH), Break("axis", widen(("key", "value"), "S", item=0),
                                                               {**_BATCH, "pse": "none", "mask": "none"}))),
    Rule("FIA-RO-011", "all items of a tensor list have the heads of keyRope", GROUP, Level.CONSISTENCY, ALL_950,
         ("v5.rope.consistency.tensorlist_n",), lambda s: s.rope_on and s.storage == "tensor_list",
         lambda s: _list_axis(s, "N"), enforced_by="CheckTensorlistKeyAndKeyRopeShapeConsistency",
         breaks=(Break("axis", widen(KEY, "N"), {**_BATCH, "layout": ("BNSD", "BSND", "BNSD_BSND")}),)),
    Rule("FIA-RO-012", "queryRope has the dtype of query", GROUP, Level.CROSS, ALL,
         ("v5.rope.cross.query_rope_dtype_equal", "v3.rope.consistency.query_rope_dtype_format"),
         lambda s: s.rope_on and s.quant_kind == "none" and float_rope(s, QUERY), lambda s: s.dtype(QUERY) == s.q_dtype,
         enforced_by="CheckRopeDtypeConsistency", breaks=(Break("dtype", _other_float(QUERY), SPLIT),)),
    Rule("FIA-RO-013", "keyRope has the dtype of key", GROUP, Level.CROSS, ALL,
         ("v5.rope.cross.key_rope_dtype_equal", "v3.rope.consistency.key_rope_dtype_format"),
         lambda s: s.rope_on and s.quant_kind == "none" and float_rope(s, KEY),
         lambda s: s.dtype(KEY) == s.dtype("key"),
         enforced_by="CheckRopeDtypeConsistency", breaks=(Break("dtype", _other_float(KEY), SPLIT),)),
    Rule("FIA-RO-014", "keyRope is contiguous", GROUP, Level.SINGLE, V5 - SRC_A2A3_V3,
         ("v5.rope.single.key_rope_contiguous", "v5.interface.single.non_contiguous_key_rope"),
         lambda s: s.rope_on and not s.paged and s.inputs.keyRope is not None and s.inputs.keyRope.strides is not None,
         lambda s: s.inputs.keyRope is None or s.inputs.keyRope.contiguous, enforced_by="CheckKRopeContiguous",
         note="paged caches have rules of their own",
         breaks=(Break("strides", stretch(KEY, axis=0), _WHOLE), Break("strides", stretch(KEY, axis=-1), _WHOLE))),
    Rule("FIA-RO-015", "keyRope's cache under MXFP8 is strided over blocks and heads alone", GROUP, Level.SINGLE,
         SRC_950,
         ("v5.rope.single.key_rope_contiguous", "v5.quant.cross.mxfp8_strides"),
         lambda s: s.rope_on and s.paged and s.full_kind == "mxfp8" and s.inputs.keyRope is not None
         and s.inputs.keyRope.strides is not None, lambda s: dense_from(s.inputs.keyRope, 2), basis=Basis.SOURCE,
         enforced_by="CheckKRopeContiguous", limit="axes 0 and 1", note="other paged calls: FIA-PA-080 and following",
         breaks=(Break("strides", stretch(KEY, axis=2), {"scenario": "full_mxfp8", "storage": ("BnNBsD", "NZ")}),
                 Break("strides", stretch(KEY, axis=-1), {"scenario": "full_mxfp8", "storage": ("BnNBsD", "NZ")}))),
)
