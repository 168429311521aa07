"""The mask itself: dtype, format, rank, shape, content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

import msgspec

from fiafuzz.model.case import Constant, Fill, TensorSpec, Triu
from fiafuzz.model.layouts import MASK_COMPRESSED
from fiafuzz.model.scene import Scene

from ..changes import Size, cast, per_tensor, relabel, reshape, resize, stretch, where, widen
from ..documents import ALL_DOCUMENTS, ALL_PROFILES, V5_DOCUMENTS, V5_LINE
from ..facts import antiquant_decode, fast_tnd, legacy_decode, older_route
from ..interface.formats import RELABELLED
from ..rule import (
    ALL_950,
    DOC_A2A3_V3,
    DOC_A2A3_V5,
    SRC_A2A3,
    SRC_A2A3_V3,
    Basis,
    Boundary,
    Break,
    Change,
    Effect,
    Level,
    Words,
)
from .facts import (
    FIXED_MODES,
    FULL_MODES,
    columns_by_document,
    full_mask,
    mask_rank,
    mask_rule,
    needed_columns,
)

DTYPES = frozenset({"BOOL", "INT8", "UINT8"})
_DTYPE_WORDS = tuple(sorted(DTYPES))
_TWO = ("BSH", "BSND", "BNSD", "BNSD_BSND")
_GIVEN: Words = {"mask": _DTYPE_WORDS}
_FULL: Words = {"mask": _DTYPE_WORDS, "sparse_mode": ("0", "1"), "mask_shape": ("3d", "4d")}
_FIXED: Words = {"mask": _DTYPE_WORDS, "sparse_mode": ("2", "3", "4")}
_FLAT: Words = {**_FULL, "storage": ("contiguous", "tensor_list")}


def _fixed_shape(s: Scene) -> bool:
    shape = s.shape("attenMask")
    return shape in ((MASK_COMPRESSED,) * 2, (1, *(MASK_COMPRESSED,) * 2), (1, 1, *(MASK_COMPRESSED,) * 2))


def _counts(s: Scene) -> bool:
    return s.mask_on and not legacy_decode(s)


def _fill_kind(spec: Optional[TensorSpec]) -> tuple[Optional[Fill], Optional[tuple[object, ...]]]:
    return (None, None) if spec is None else (spec.fill, spec.values)


def _zero_one(s: Scene) -> bool:
    """Whether the literal or constant content of a mask is known to be 0 and 1 only (other fills are made so)."""
    fill, values = _fill_kind(s.inputs.attenMask)
    if values is not None:
        return all(v in (0, 1) for v in values)
    data = msgspec.to_builtins(fill) if fill is not None else {}
    found = [data.get(k) for k in ("value", "inside", "outside")]
    if data.get("kind") in ("grid", "uniform", "normal"):
        return False
    return all(v is None or v in (0, 1) for v in found)


def _triangle(s: Scene) -> bool:
    fill, values = _fill_kind(s.inputs.attenMask)
    if values is not None:
        return False
    return fill is None or fill == Triu(diagonal=1, inside=1, outside=0)


def _filled(value: int) -> Change:
    """A mask that is ``value`` everywhere."""
    return per_tensor(lambda _, t: msgspec.structs.replace(t, fill=Constant(value), values=None), "attenMask")


def _axis(axis: int, size: Size) -> Change:
    """Another size of an axis of a mask that sparseMode 0 or 1 reads; no place where nothing looks at it."""
    return where(lambda s: full_mask(s) is not None, resize("attenMask", axis, size))


def _looked_at(change: Change) -> Change:
    """A change of a mask on a route that looks at dtype and format."""
    return where(lambda s: not fast_tnd(s) and not older_route(s), change)


def _five_axes(s: Scene) -> Optional[Mapping[str, object]]:
    """A mask with axes of size 1 in front, five in all."""
    shape = s.shape("attenMask")
    return None if shape is None else reshape("attenMask", (1,) * (5 - len(shape)) + shape)(s)


def _two_axes(s: Scene) -> Optional[Mapping[str, object]]:
    """A full mask without its leading axes."""
    shape = full_mask(s)
    return None if shape is None else reshape("attenMask", shape[-2:])(s)


def _other_rank(s: Scene) -> Optional[tuple[int, ...]]:
    return (1, MASK_COMPRESSED, MASK_COMPRESSED) if mask_rank(s) != 3 else (MASK_COMPRESSED, MASK_COMPRESSED)


def _row_short(s: Scene, _: int) -> Optional[int]:
    return s.Q_S - 1 if s.Q_S is not None and s.Q_S > 1 else None


def _too_few(s: Scene, _: int) -> Optional[int]:
    needed = needed_columns(s)
    return needed - 1 if needed is not None and needed > 1 else None


def _just_enough(s: Scene, old: int) -> Optional[int]:
    needed = needed_columns(s)
    return None if needed is None or needed < 1 else needed if old != needed else needed + 1


def _between(s: Scene, _: int) -> Optional[int]:
    """Enough for the lengths, too little for KV_S."""
    needed, document = needed_columns(s), columns_by_document(s)
    return needed if needed is not None and document is not None and 0 < needed < document else None


RULES = (
    mask_rule(
        1, "the mask is BOOL, INT8 or UINT8", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.attention_mask.single.dtype", "v5.interface.consistency.mask_fp16_registered_but_rejected",
               "v3.attention_mask.single.table", "v3.interface.single.return_param_invalid"),
        enforced_by="CheckDtypeAndFormat", when=lambda s: s.mask_on and not fast_tnd(s),
        requires=lambda s: s.dtype("attenMask") in DTYPES, limit="BOOL, INT8, UINT8",
        breaks=(Break("dtype", where(lambda s: not fast_tnd(s), cast("FLOAT16", "attenMask")), _GIVEN),
                Break("dtype", where(lambda s: not fast_tnd(s), cast("INT32", "attenMask")), _GIVEN)),
    ),
    mask_rule(
        2, "the mask has a format that counts as ND", level=Level.SINGLE, profiles=V5_LINE - SRC_A2A3_V3,
        cites=("v5.attention_mask.single.format",), enforced_by="CheckFormatSupport",
        when=lambda s: s.mask_on and not fast_tnd(s) and not older_route(s),
        requires=lambda s: s.inputs.attenMask is not None and s.inputs.attenMask.format in RELABELLED,
        limit="ND, NCHW, NHWC, NCDHW, NCL, DHWCN",
        breaks=(Break("format", _looked_at(relabel("FRACTAL_NZ", "attenMask")), _GIVEN),),
    ),
    mask_rule(
        3, "the mask has format ND by the documents", level=Level.SINGLE, profiles=ALL_DOCUMENTS,
        cites=("v5.attention_mask.single.format", "v3.attention_mask.single.table",
               "v3.interface.single.return_param_invalid"),
        basis=Basis.DOCUMENTED, enforced_by="nothing (relabelled ND)",
        when=lambda s: (s.mask_on and s.inputs.attenMask is not None
                        and (s.api < 5 or fast_tnd(s) or older_route(s) or s.inputs.attenMask.format in RELABELLED)),
        requires=lambda s: s.inputs.attenMask is not None and s.inputs.attenMask.format == "ND", limit="ND",
        breaks=(Break("format", relabel("NCHW", "attenMask"), _GIVEN),),
    ),
    mask_rule(
        4, "the mask is contiguous by the V3 document", level=Level.SINGLE, profiles=DOC_A2A3_V3,
        cites=("v3.attention_mask.single.table",), basis=Basis.DOCUMENTED, enforced_by="nothing (made contiguous)",
        when=lambda s: s.mask_on, requires=lambda s: s.inputs.attenMask is None or s.inputs.attenMask.contiguous,
        breaks=(Break("strides", stretch("attenMask", axis=-2), _GIVEN),),
    ),
    mask_rule(
        5, "the mask has 2, 3 or 4 axes", level=Level.CONSISTENCY, profiles=V5_LINE,
        cites=("v5.attention_mask.consistency.rank",), enforced_by="GetAttenMaskInfo",
        when=lambda s: s.mask_on, requires=lambda s: mask_rank(s) in (2, 3, 4), limit="2, 3, 4",
        breaks=(Break("rank", _five_axes, _GIVEN), Break("rank", reshape("attenMask", (MASK_COMPRESSED,)), _GIVEN)),
    ),
    # ---- sparseMode 0 and 1 -----------------------------------------------------------------------
    mask_rule(
        11, "for sparseMode 0 and 1 the mask has 3 or 4 axes on Ascend 950", level=Level.CONSISTENCY, profiles=ALL_950,
        cites=("v5.attention_mask.consistency.rank2_not_mode01_950",
               "v5.attention_mask.consistency.antiquant_decode_rank", "v5.quant.cross.antiquant_qs1_mask_rank"),
        enforced_by="CheckAndProcess2DMask, CheckIFAMask2DShape",
        when=lambda s: s.mask_on and s.sparse_mode in FULL_MODES, requires=lambda s: mask_rank(s) != 2, limit="3, 4",
        breaks=(Break("rank", _two_axes, {**_FULL, "scenario": "gqa"}),
                Break("rank", _two_axes, {**_FULL, "scenario": "antiquant"})),
    ),
    mask_rule(
        12, "for sparseMode 0 and 1 the batch axis of the mask is 1 or B", level=Level.CONSISTENCY, profiles=V5_LINE,
        cites=("v5.attention_mask.consistency.mode01_batch", "v5.attention_mask.consistency.antiquant_decode_batch"),
        enforced_by="ValidateMaskDimAndShape, CheckIFAMask3DShape, CheckIFAMask4DShape",
        when=lambda s: full_mask(s) is not None and s.B is not None,
        requires=lambda s: (full_mask(s) or (0,))[0] in (1, s.B), limit="1, B",
        breaks=(Break("axis", _axis(0, lambda s, _: (s.B or 0) + 1), _FULL),),
        boundaries=(Boundary(_axis(0, lambda s, n: s.B if n == 1 else 1),
                             _axis(0, lambda s, _: (s.B or 0) + 1), {**_FULL, "batch": ("2", "3+")},
                             limit="1, B"),),
    ),
    mask_rule(
        13, "for sparseMode 0 and 1 the mask covers the longest query", level=Level.CONSISTENCY, profiles=V5_LINE,
        cites=("v5.attention_mask.consistency.mode01_q", "v5.attention_mask.consistency.antiquant_decode_q"),
        enforced_by="ValidateMaskDimAndShape, CheckIFAMask3DShape, CheckIFAMask4DShape",
        when=lambda s: full_mask(s) is not None and s.Q_S is not None,
        requires=lambda s: s.Q_S is not None and (full_mask(s) or (0, 0))[-2] >= s.Q_S, limit="Q_S",
        breaks=(Break("below", _axis(-2, _row_short), _FULL),),
        boundaries=(Boundary(_axis(-2, lambda s, n: s.Q_S if n != s.Q_S else n + 1),
                             _axis(-2, _row_short), _FULL,
                             limit="Q_S"),),
        note="More rows than needed are allowed; with one query token an axis below 1 means no mask.",
    ),
    mask_rule(
        14, "for sparseMode 0 and 1 the mask covers the longest key and the shared prefix", level=Level.CONSISTENCY,
        profiles=V5_LINE,
        cites=("v5.attention_mask.consistency.mode01_kv", "v5.shared_prefix.cross.mask_width",
               "v5.attention_mask.consistency.antiquant_decode_kv_no_pa"),
        enforced_by="ValidateMaskDimAndShape, CheckIFAMask3DShape, CheckIFAMask4DShape",
        when=lambda s: full_mask(s) is not None and needed_columns(s) is not None,
        requires=lambda s: (full_mask(s) or (0,))[-1] >= (needed_columns(s) or 0),
        limit="max(actualSeqLengthsKv), or KV_S without lengths, + prefix length",
        breaks=(Break("below", _axis(-1, _too_few), _FLAT),),
        boundaries=(Boundary(_axis(-1, _just_enough), _axis(-1, _too_few),
                             {**_FLAT, "kv_lengths": "absent"}, limit="KV_S + prefix"),),
        note="More columns are allowed. With a paged cache the blocks in use count: a rule of paged_attention.",
    ),
    mask_rule(
        15, "for sparseMode 0 and 1 the mask covers KV_S and the shared prefix, by the document",
        level=Level.CONSISTENCY, profiles=V5_DOCUMENTS, basis=Basis.DOCUMENTED,
        cites=("v5.attention_mask.consistency.mode01_kv",), enforced_by="nothing (the lengths count)",
        when=lambda s: (full_mask(s) is not None and columns_by_document(s) is not None
                        and (full_mask(s) or (0,))[-1] >= (needed_columns(s) or 0)),
        requires=lambda s: (full_mask(s) or (0,))[-1] >= (columns_by_document(s) or 0), limit="KV_S + prefix length",
        breaks=(Break("below", _axis(-1, _between), {**_FLAT, "kv_lengths": ("per_batch", "one")}),),
    ),
    mask_rule(
        16, "for sparseMode 0 and 1 the second of four mask axes is 1", level=Level.CONSISTENCY, profiles=V5_LINE,
        cites=("v5.attention_mask.consistency.mode01_rank4_dim1",
               "v5.attention_mask.consistency.antiquant_decode_rank4_dim1"),
        enforced_by="ValidateMaskDimAndShape, CheckIFAMask4DShape",
        when=lambda s: full_mask(s) is not None and mask_rank(s) == 4,
        requires=lambda s: (full_mask(s) or (0, 0))[1] == 1, limit="1",
        breaks=(Break("axis", _axis(1, 2), {**_FULL, "mask_shape": "4d"}),),
    ),
    mask_rule(
        17, "A2/A3: a mask of 2 axes goes without rope and with equal head sizes", level=Level.CONSISTENCY,
        profiles=DOC_A2A3_V5 | SRC_A2A3, cites=("v5.attention_mask.consistency.rank2_rope_a2a3",),
        enforced_by="CheckAndProcess2DMask",
        when=lambda s: s.mask_on and s.sparse_mode in FULL_MODES and not legacy_decode(s)
        and (s.rope_on or (s.Q_D is not None and s.V_D is not None and s.Q_D != s.V_D)),
        requires=lambda s: mask_rank(s) != 2, limit="3, 4",
        breaks=(Break("rank", _two_axes, {**_FULL, "scenario": ("mla_decode", "mla_prefill_split",
                                                                "mla_prefill_combined")}),),
    ),
    mask_rule(
        18, "A2/A3: a mask of 2 axes goes with BSH, BSND, BNSD and BNSD_BSND", level=Level.CONSISTENCY,
        profiles=DOC_A2A3_V5 | SRC_A2A3, cites=("v5.attention_mask.consistency.rank2_layout_a2a3",),
        enforced_by="CheckAndProcess2DMask",
        when=lambda s: (s.mask_on and s.sparse_mode in FULL_MODES and mask_rank(s) == 2 and not s.rope_on
                        and s.Q_D is not None and s.Q_D == s.V_D and not legacy_decode(s) and s.layout is not None),
        requires=lambda s: s.layout_name in _TWO, limit=", ".join(_TWO),
        breaks=(Break("rank", _two_axes, {**_FULL, "scenario": "gqa",
                                          "layout": ("NTD", "NTD_TND", "BSND_BNSD", "BSH_BNSD")}),),
    ),
    # ---- sparseMode 2, 3 and 4 --------------------------------------------------------------------
    mask_rule(
        21, "for sparseMode 2, 3 and 4 the mask is 2048 x 2048", level=Level.CONSISTENCY,
        profiles=ALL_PROFILES,
        cites=("v5.attention_mask.consistency.mode234_shape",
               "v3.attention_mask.consistency.shape_sparse_234_table",
               "v3.attention_mask.consistency.qs_gt1_sparse234_shape",
               "v3.attention_mask.existence.sparse2", "v3.attention_mask.existence.sparse3",
               "v3.attention_mask.existence.sparse4_mask"),
        enforced_by="ValidateMaskDimAndShape",
        when=lambda s: (_counts(s) and s.sparse_mode in FIXED_MODES and mask_rank(s) in (2, 3, 4)
                        and not antiquant_decode(s)),
        requires=_fixed_shape, limit="(2048, 2048), (1, 2048, 2048), (1, 1, 2048, 2048)",
        breaks=(Break("below", widen("attenMask", -1, -1), _FIXED), Break("above", widen("attenMask", -2, 1), _FIXED),
                Break("axis", reshape("attenMask", (2, MASK_COMPRESSED, MASK_COMPRESSED)), _FIXED),
                Break("value", reshape("attenMask", (1, 1024, 1024)), _FIXED)),
        boundaries=(Boundary(reshape("attenMask", _other_rank), widen("attenMask", -1, 1), _FIXED, limit="2048"),),
    ),
    # ---- content ------------------------------------------------------------------------------------
    mask_rule(
        31, "elements of an INT8 or UINT8 mask are 0 or 1", level=Level.SINGLE, profiles=ALL_DOCUMENTS,
        cites=("v5.attention_mask.single.mask_values_01", "v3.attention_mask.single.int_mask_values"),
        basis=Basis.DOCUMENTED, effect=Effect.UNSPECIFIED, enforced_by="nothing",
        when=lambda s: s.mask_on and s.dtype("attenMask") in ("INT8", "UINT8"), requires=_zero_one, limit="0, 1",
        breaks=(Break("value", _filled(2), {"mask": ("INT8", "UINT8"), "sparse_mode": ("0", "1")}),),
    ),
    mask_rule(
        32, "the mask of sparseMode 2, 3 and 4 is 1 above the diagonal and 0 elsewhere", level=Level.SINGLE,
        profiles=ALL_DOCUMENTS,
        cites=("v5.attention_mask.single.compressed_mask_content",
               "v3.attention_mask.single.qs_gt1_sparse234_lower_triangle"),
        basis=Basis.DOCUMENTED, effect=Effect.UNSPECIFIED, enforced_by="nothing",
        when=lambda s: _counts(s) and s.sparse_mode in FIXED_MODES and _fixed_shape(s), requires=_triangle,
        breaks=(Break("value", _filled(0), {**_FIXED, "mask": "BOOL"}),),
        note="A mask without a fill is made so.",
    ),
)
