"""Shapes and strides of the scales of full quantisation (V5, Ascend 950).

Sources: V5 document lines 290, 295, 348; for MXFP8 and GQA FP8 the source of August 2026.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fiafuzz.model.scene import Scene

from ..changes import stretch, with_shape
from ..rule import Boundary, Break, Change, Level, Rule
from .facts import ceil_div, dense_from, full_intent, value_blocks
from .full_modes import profiles_of
from .no_quant import SCENARIO_WORDS
from .tables import FULL_TITLES

Shape = tuple[int, ...]
Forms = Callable[[Scene], "tuple[Shape, ...] | None"]
"""The shapes that a scale may have in a scene; None when an axis that they need could not be derived."""
Wrong = Callable[[Shape], Shape]


def _known(*sizes: int | None) -> bool:
    return all(n is not None for n in sizes)


def _one(_: Scene) -> tuple[Shape, ...] | None:
    return ((1,),)


def _mla_query(s: Scene) -> tuple[Shape, ...] | None:
    """The query shape without its D axis; [B, Q_S, Q_N] for the BSH layouts."""
    shape = s.shape("query")
    if shape is None or s.layout is None or s.q_axes is None or s.Q_N <= 0:
        return None
    return ((*shape[:2], s.Q_N),) if s.layout.inputs == "BSH" else (shape[:-1],)


def _mxfp8_query(s: Scene) -> tuple[Shape, ...] | None:
    t, d, g = s.T, s.Q_D, s.G
    if t is None or d is None or g is None:
        return None
    groups = ceil_div(d, 64)
    return ((t, s.Q_N, groups, 2), (s.KV_N, t, g, groups, 2))


def _mxfp8_key_packed(s: Scene) -> tuple[Shape, ...] | None:
    t, d = s.KV_T, s.Q_D
    return None if t is None or d is None else ((t, s.KV_N, ceil_div(d, 64), 2),)


def _mxfp8_value_packed(s: Scene) -> tuple[Shape, ...] | None:
    blocks, d = value_blocks(s), s.V_D
    return None if blocks is None or d is None else ((blocks, s.KV_N, d, 2),)


def _mxfp8_key_nd(s: Scene) -> tuple[Shape, ...] | None:
    bn, bs, d = s.cache_blocks, s.cache_block_size, s.Q_D
    return None if bn is None or bs is None or d is None else ((bn, s.KV_N, bs, ceil_div(d, 64), 2),)


def _mxfp8_value_nd(s: Scene) -> tuple[Shape, ...] | None:
    bn, bs, d = s.cache_blocks, s.cache_block_size, s.V_D
    return None if bn is None or bs is None or d is None else ((bn, s.KV_N, ceil_div(bs, 64), d, 2),)


def _mxfp8_key_nz(s: Scene) -> tuple[Shape, ...] | None:
    bn, bs, d = s.cache_blocks, s.cache_block_size, s.Q_D
    return None if bn is None or bs is None or d is None else ((bn, s.KV_N, ceil_div(bs, 16), ceil_div(d, 64), 16, 2),)


def _mxfp8_value_nz(s: Scene) -> tuple[Shape, ...] | None:
    bn, bs, d = s.cache_blocks, s.cache_block_size, s.V_D
    return None if bn is None or bs is None or d is None else ((bn, s.KV_N, ceil_div(d, 16), ceil_div(bs, 64), 16, 2),)


def _gqa_query(s: Scene) -> tuple[Shape, ...] | None:
    t = s.T
    return None if t is None or s.Q_N <= 0 else ((s.Q_N, t),)


def _gqa_key(s: Scene) -> tuple[Shape, ...] | None:
    bn, bs = s.cache_blocks, s.cache_block_size
    return None if bn is None or bs is None or s.KV_N <= 0 else ((bn, s.KV_N, bs),)


def _gqa_value(s: Scene) -> tuple[Shape, ...] | None:
    return ((s.KV_N,),) if s.KV_N > 0 else None


@dataclass(frozen=True)
class ScaleShape:
    """One scale of one kind: its shapes, in which storage the row holds ("" for any), and spec ids."""

    number: int
    kind: str
    name: str
    forms: Forms
    limit: str
    cite: str
    enforced_by: str
    storage: str = ""


_MXFP8_ND, _MXFP8_NZ = "CheckDequantScaleBnNBsDShapeMXFP8", "CheckDequantScaleNZShapeMXFP8"
_MXFP8, _PER_TENSOR = "CheckDequantScaleShapeMXFP8", "CheckDequantScaleShapePertensor"
_MLA_KV, _GQA = "CheckDequantScaleKVMLAFullquant", "CheckDequantScaleShapeFP8GQA"

SHAPES: tuple[ScaleShape, ...] = (
    ScaleShape(1, "per_tensor", "deqScale1", _one, "[1]", "single.per_tensor_deq_scale1_shape", _PER_TENSOR),
    ScaleShape(2, "per_tensor", "quantScale1", _one, "[1]", "single.per_tensor_quant_scale1_shape", _PER_TENSOR),
    ScaleShape(3, "per_tensor", "deqScale2", _one, "[1]", "single.per_tensor_deq_scale2_shape", _PER_TENSOR),
    ScaleShape(4, "mla", "keyAntiquantScale", _one, "[1]", "single.mla_key_scale_shape", _MLA_KV),
    ScaleShape(5, "mla", "valueAntiquantScale", _one, "[1]", "single.mla_value_scale_shape", _MLA_KV),
    ScaleShape(6, "mla", "dequantScaleQuery", _mla_query, "query without D; [B,Q_S,Q_N] for BSH",
               "cross.mla_query_scale_shape_other",
               "CheckDequantScaleQueryMLAFullquant"),
    ScaleShape(7, "mxfp8", "dequantScaleQuery", _mxfp8_query, "[T,Q_N,D/64,2] or [KV_N,T,G,D/64,2]",
               "cross.mxfp8_query_scale_shape", _MXFP8),
    ScaleShape(8, "mxfp8", "keyAntiquantScale", _mxfp8_key_packed, "[T,KV_N,D/64,2]",
               "cross.mxfp8_kv_scale_shape_contiguous", _MXFP8,
               "contiguous"),
    ScaleShape(9, "mxfp8", "valueAntiquantScale", _mxfp8_value_packed, "[sum of len/64,KV_N,D,2]",
               "cross.mxfp8_kv_scale_shape_contiguous",
               _MXFP8, "contiguous"),
    ScaleShape(10, "mxfp8", "keyAntiquantScale", _mxfp8_key_nd, "[blockNum,KV_N,blockSize,D/64,2]",
               "cross.mxfp8_kv_scale_shape_bnnbsd",
               _MXFP8_ND, "BnNBsD"),
    ScaleShape(11, "mxfp8", "valueAntiquantScale", _mxfp8_value_nd, "[blockNum,KV_N,blockSize/64,D,2]",
               "cross.mxfp8_kv_scale_shape_bnnbsd",
               _MXFP8_ND, "BnNBsD"),
    ScaleShape(12, "mxfp8", "keyAntiquantScale", _mxfp8_key_nz, "[blockNum,KV_N,blockSize/16,D/64,16,2]",
               "cross.mxfp8_kv_scale_shape_nz",
               _MXFP8_NZ, "NZ"),
    ScaleShape(13, "mxfp8", "valueAntiquantScale", _mxfp8_value_nz, "[blockNum,KV_N,D/16,blockSize/64,16,2]",
               "cross.mxfp8_kv_scale_shape_nz", _MXFP8_NZ, "NZ"),
    ScaleShape(14, "mxfp8", "quantScale1", _one, "[1]", "single.mxfp8_quant_scale1", "CheckQuantScale1ShapeMXFP8"),
    ScaleShape(15, "gqa_fp8", "dequantScaleQuery", _gqa_query, "[Q_N,T]", "cross.gqa_fp8_scale_shapes", _GQA),
    ScaleShape(16, "gqa_fp8", "keyAntiquantScale", _gqa_key, "[blockNum,KV_N,blockSize]", "cross.gqa_fp8_scale_shapes",
               _GQA, "BnNBsD"),
    ScaleShape(17, "gqa_fp8", "valueAntiquantScale", _gqa_value, "[KV_N]", "cross.gqa_fp8_scale_shapes", _GQA),
    ScaleShape(18, "gqa_fp8", "quantScale1", _one, "[1]", "existence.gqa_fp8_quant_scale1",
               "CheckQuantScale1ShapeFP8GQA"),
)


def _spoil(name: str, change: Wrong) -> Change:
    def make(s: Scene) -> dict[str, object] | None:
        spec = s.tensor(name)
        if spec is None:
            return None
        shape = change(spec.shape)
        return None if min(shape, default=0) < 0 else {name: with_shape(spec, shape)}

    return make


_WRONG: tuple[tuple[str, Wrong], ...] = (
    ("above", lambda shape: (*shape[:-1], shape[-1] + 1)), ("below", lambda shape: (*shape[:-1], shape[-1] - 1)),
    ("rank", lambda shape: (1, *shape) if len(shape) != 4 else (1, 1, *shape)),
    ("axis", lambda shape: (shape[0] + 1, *shape[1:])),
)


def _last_form(row: ScaleShape) -> Change:
    """The last of the shapes that a scale may have."""

    def make(s: Scene) -> dict[str, object] | None:
        spec, forms = s.tensor(row.name), row.forms(s)
        return None if spec is None or not forms else {row.name: with_shape(spec, forms[-1])}

    return make


def _shape_rule(row: ScaleShape) -> Rule:
    def applies(s: Scene) -> bool:
        return (s.quant_kind == "full" and full_intent(s) == row.kind and getattr(s.inputs, row.name) is not None
                and (not row.storage or row.storage == (s.cache_layout if s.paged else s.storage)))

    def fits(s: Scene) -> bool:
        forms = row.forms(s)
        return forms is None or s.shape(row.name) in forms

    needs: dict[str, str | tuple[str, ...]] = {"scenario": SCENARIO_WORDS[row.kind]}
    if row.storage:
        needs["storage"] = row.storage
    cites = (f"v5.quant.{row.cite}",) + (("v5.quant.cross.mla_query_scale_shape_bsh",) if row.number == 6 else ())
    where = f" with a {row.storage} cache" if row.storage in ("BnNBsD",
                                                              "NZ") else " without paging" if row.storage else ""
    return Rule(
        f"FIA-QU-{260 + row.number}", f"{FULL_TITLES[row.kind]}: {row.name} is {row.limit}{where}", "quant",
        Level.SINGLE if row.cite.startswith("single") else Level.CROSS, profiles_of(row.kind), cites, applies, fits,
        enforced_by=row.enforced_by, limit=row.limit, breaks=tuple(Break(side, _spoil(row.name, change),
                                                                         needs) for side, change in _WRONG),
        boundaries=(Boundary(_last_form(row), _spoil(row.name, _WRONG[0][1]), needs, limit=row.limit),),
    )


SHAPE_RULES = tuple(_shape_rule(row) for row in SHAPES)


# ---- strides -----------------------------------------------------------------------------------

KV = ("key", "value")
KV_SCALES = ("keyAntiquantScale", "valueAntiquantScale")


def _mxfp8_dense(s: Scene) -> bool:
    """Paged: key, value and both scales dense from axis 2 on; else both scales (key and value have a general rule)."""
    names, axis = ((*KV, *KV_SCALES), 2) if s.paged else (KV_SCALES, 0)
    return all(spec is None or dense_from(spec, axis) for spec in map(s.tensor, names))


def _gqa_dense(s: Scene) -> bool:
    """Rows of D stand back to back in key and value, and the scales of a block do in the key scale."""
    key, value, scale = s.tensor("key"), s.tensor("value"), s.inputs.keyAntiquantScale
    return all(spec is None or dense_from(spec, max(spec.rank - 2, 0)) for spec in (key, value)) and (
        scale is None or dense_from(scale, max(scale.rank - 1, 0)))


_PAGED = ("BnNBsD", "NZ")
STRIDE_RULES = (
    Rule(
        "FIA-QU-279", "MXFP8: only the two outer axes of paged caches and scales may be strided", "quant", Level.CROSS,
        profiles_of("mxfp8"),
        ("v5.quant.cross.mxfp8_strides",), lambda s: s.quant_kind == "full" and full_intent(s) == "mxfp8", _mxfp8_dense,
        enforced_by="CheckDequantScaleShapeMXFP8",
        breaks=(Break("strides", stretch("key", "value", axis=-1), {"scenario": "full_mxfp8", "storage": _PAGED}),
                Break("strides", stretch("keyAntiquantScale", axis=-1), {"scenario": "full_mxfp8", "storage": _PAGED}),
                Break("strides", stretch("valueAntiquantScale", axis=2), {"scenario": "full_mxfp8", "storage": _PAGED}),
                Break("strides", stretch("keyAntiquantScale", axis=0),
                      {"scenario": "full_mxfp8", "storage": "contiguous"})),
    ),
    Rule(
        "FIA-QU-280", "GQA FP8: rows of a block are dense in key, value and key scale", "quant", Level.CROSS,
        profiles_of("gqa_fp8"),
        ("v5.quant.cross.gqa_fp8_strides",), lambda s: s.quant_kind == "full" and full_intent(s) == "gqa_fp8"
        and s.paged, _gqa_dense,
        enforced_by="CheckStrideFP8GQAFullquant",
        breaks=(Break("strides", stretch("key", "value", axis=-1), {"scenario": "full_gqa_fp8"}),
                Break("strides", stretch("value", axis=-2), {"scenario": "full_gqa_fp8"}),
                Break("strides", stretch("keyAntiquantScale", axis=-1), {"scenario": "full_gqa_fp8"})),
    ),
)

RULES = (*SHAPE_RULES, *STRIDE_RULES)
