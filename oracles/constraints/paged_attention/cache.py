"""The caches: their rank, axes and the cache layouts that a scenario takes."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.scene import Scene

from ..changes import head_size, merge_axes, reshape, resize, size_of, specs, together, where, widen, with_shape
from ..rule import ALL_950, DOC_A2A3_V5, SRC_950, SRC_A2A3, Basis, Boundary, Break, Change, Level, Rule, Stage, Words
from .facts import ALL, GROUP, NO_WIDTHS, PAGED, UNSCALED, V5

BLOCK_AXIS = {3: 1, 4: 2, 5: 3}
ROPE_D0 = 16
FLOAT_D0 = 16
BYTE_D0 = 32
_FLOATS: Words = {"scenario": ("gqa", "mla_decode", "mla_prefill_split", "mla_prefill_combined")}
_BSH_FAMILY = frozenset({"BSH", "BSND", "BSH_NBSD", "BSND_NBSD"})


def same_rank(s: Scene) -> bool:
    """Whether key and value are caches of the same legal rank."""
    return s.cache_layout is not None and s.value_shape is not None and len(s.value_shape) == len(s.key_shape or ())


def _axis_is(s: Scene, axis: int, size: int) -> bool:
    return (s.key_shape or ())[axis] == size and (s.value_shape or ())[axis] == size


def _block_axis(s: Scene) -> bool:
    return _axis_is(s, BLOCK_AXIS[len(s.key_shape or ())], s.block_size)


def _h_known(s: Scene) -> bool:
    return same_rank(s) and s.cache_layout == "BnBsH" and s.Q_D is not None and s.KV_N > 0


def _h_fits(s: Scene) -> bool:
    key, value = s.key_shape or (), s.value_shape or ()
    return s.Q_D is not None and key[2] == s.KV_N * s.Q_D and value[2] % s.KV_N == 0


def _nz(s: Scene) -> bool:
    return same_rank(s) and s.cache_layout == "NZ" and s.Q_D is not None


def _nz_fits(s: Scene, d0: int) -> bool:
    key, value = s.key_shape or (), s.value_shape or ()
    return key[4] == d0 and value[4] == d0 and key[2] * d0 == s.Q_D


def _rope_nz(s: Scene) -> bool:
    rope = s.shape("keyRope")
    return s.rope_on and s.cache_layout == "NZ" and rope is not None and len(rope) == 5


def other_rows(*names: str, times: int) -> Change:
    """NZ caches with rows ``times`` as long and as many fewer of them (or, below 1, the other way round: -2 halves)."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        values: dict[str, object] = {}
        for name in names:
            found = specs(s, name)
            if not found or found[0].rank != 5:
                return None
            n, heads, d1, rows, d0 = found[0].shape
            wide, narrow = (d0 * times, d1 // times) if times > 0 else (d0 // -times, d1 * -times)
            if wide * narrow != d0 * d1 or wide == 0 or narrow == 0:
                return None
            spec = with_shape(found[0], (n, heads, narrow, rows, wide))
            values[name] = spec if name == "keyRope" else (spec,)
        return values

    return change


def cache_as(cache: str, d0: int = FLOAT_D0) -> Change:
    """The same call with key, value (and keyRope) in another cache layout."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        if not same_rank(s) or s.cache_layout == cache or s.cache_blocks is None or s.int4_carrier:
            return None
        values: dict[str, object] = {}
        for name, d in (("key", s.K_D), ("value", s.V_D), ("keyRope", s.rope_d if s.rope_on else None)):
            found = specs(s, name)
            if not found or d is None:
                continue
            row = ROPE_D0 if name == "keyRope" else d0
            if cache == "NZ" and d % row:
                return None
            blocks, size, heads = s.cache_blocks, s.block_size, s.KV_N
            shape = {"BnBsH": (blocks, size, heads * d), "BnNBsD": (blocks, heads, size, d),
                     "NZ": (blocks, heads, d // row, size, row)}[cache]
            spec = with_shape(found[0], shape)
            values[name] = spec if name == "keyRope" else (spec,)
        return values

    return change


def _value_as(cache: str) -> Change:
    """The value alone in another cache layout, with the same head size."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        found = cache_as(cache)(s)
        return None if found is None else {"value": found["value"]}

    return change


def heads_to(extra: int = 0) -> Change:
    """A call with as many heads of query and key as 65535 elements hold, plus ``extra``; of A2/A3 one of wide heads."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        d = s.Q_D
        if d is None or d < (1 if s.is_950 else 256) or s.cache_layout != "BnBsH" or not d == s.K_D == s.V_D:
            return None
        count = 65535 // d + extra
        values: dict[str, object] = {"numHeads": count, "numKeyValueHeads": count}
        for name, axis, size in (("query", "N", count), ("query", "H", count * d), ("attentionOut", "N", count),
                                 ("attentionOut", "H", count * d), ("key", "H", count * d), ("value", "H", count * d)):
            if size_of(s, name, axis) not in (None, size):
                values.update(resize(name, axis, size)(s) or {})
        return values

    return change


_ONE_D: Words = {**UNSCALED, "scenario": "gqa"}
_ALONE: Words = {**_ONE_D, **NO_WIDTHS, "sink": "off", "lse": "off", "post_quant": "none", "storage": "BnBsH"}
_WIDE: Words = {**_ALONE, "head_size": ("16k", "512")}

RULES: tuple[Rule, ...] = (
    Rule("FIA-PA-040", "cache has rank 3, 4 or 5", GROUP, Level.SINGLE, ALL,
         ("v5.paged_attention.single.cache_rank", "v5.common.cross.pa_cache_layouts_no_quant",
          "v3.paged_attention.single.mla512_a2_nd_nz"),
         lambda s: s.paged and s.key_shape is not None, lambda s: s.cache_layout is not None, stage=Stage.PARSER,
         enforced_by="GetKvLayout", limit="3 = (blocks, blockSize, KV_N*D), 4 = (blocks, KV_N, blockSize, D), "
         "5 = (blocks, KV_N, D/D0, blockSize, D0)",
         breaks=(Break("rank", together(merge_axes("key"), merge_axes("value")), {**_ONE_D, "storage": "BnBsH"}),
                 Break("rank", together(*(reshape(n, lambda s: (*(s.key_shape or ()), 1)) for n in ("key", "value"))),
                       {**UNSCALED, "storage": "NZ", "scenario": ("gqa", "mla_decode")}))),
    Rule("FIA-PA-041", "key and value caches have the same rank", GROUP, Level.CONSISTENCY, V5,
         ("v5.paged_attention.consistency.cache_key_value_same", "v5.paged_attention.single.cache_rank"),
         lambda s: s.cache_layout is not None and s.value_shape is not None, same_rank, enforced_by="CheckPAKeyValue",
         breaks=(Break("rank", _value_as("BnBsH"), {**PAGED, "storage": "BnNBsD"}),
                 Break("rank", _value_as("BnNBsD"), {**PAGED, "storage": "BnBsH"}))),
    Rule("FIA-PA-042", "key and value caches have as many blocks", GROUP, Level.CONSISTENCY, ALL,
         ("v5.paged_attention.consistency.cache_key_value_same", "v3.paged_attention.consistency.qs_gt1_kv_same_shape",
          "v3.paged_attention.consistency.qs_eq1_kv_same_shape"),
         same_rank, lambda s: (s.key_shape or (0,))[0] == (s.value_shape or (0,))[0], enforced_by="CheckPAKeyValue",
         breaks=(Break("axis", widen("value", "Bn"), PAGED), Break("axis", widen("value", "Bn", -1), PAGED))),
    Rule("FIA-PA-043", "block axis of the caches is the block size", GROUP, Level.CONSISTENCY, V5,
         ("v5.paged_attention.consistency.cache_block_size_axis",),
         lambda s: same_rank(s) and s.block_size > 0, _block_axis,
         enforced_by="CheckPACacheShape3D, 4D, CheckPACacheShape",
         limit="axis 1 of 3, axis 2 of 4, axis 3 of 5",
         breaks=(Break("axis", resize("key", "Bs", lambda s, n: n + 1), {**UNSCALED, "scenario": "gqa"}),
                 Break("axis", resize("value", "Bs", lambda s, n: n + 1), UNSCALED),
                 Break("value", lambda s: _other_legal_size(s), {**UNSCALED, **NO_WIDTHS},
                       note="the attribute, not the caches"))),
    Rule("FIA-PA-044", "head axis of the caches is the number of key heads", GROUP, Level.CONSISTENCY, V5,
         ("v5.paged_attention.consistency.cache_n_axis",),
         lambda s: same_rank(s) and s.cache_layout in ("BnNBsD", "NZ"), lambda s: _axis_is(s, 1, s.KV_N),
         enforced_by="CheckPACacheShape4D, CheckPACacheShape",
         breaks=(Break("axis", widen("key", "N"), {**UNSCALED, "scenario": ("gqa", "mla_prefill_combined")}),
                 Break("axis", widen("value", "N"), UNSCALED),
                 Break("axis", widen(("key", "value"), "N"), {**UNSCALED, "scenario": "gqa"}))),
    Rule("FIA-PA-045", "H of a (blocks, blockSize, H) cache is KV_N x D", GROUP, Level.CONSISTENCY, V5,
         ("v5.paged_attention.consistency.cache_h_axis",), _h_known, _h_fits, enforced_by="CheckPACacheShape3D",
         breaks=(Break("axis", head_size(lambda s, d: d + 16, "key"), {**UNSCALED, "storage": "BnBsH"}),
                 Break("axis", where(lambda s: s.KV_N > 1, widen("value", "H")), {**UNSCALED, "storage": "BnBsH"}))),
    Rule("FIA-PA-046", "D of a (blocks, KV_N, blockSize, D) cache is the head size of query", GROUP, Level.CONSISTENCY,
         V5,
         ("v5.paged_attention.consistency.cache_d_axis",),
         lambda s: same_rank(s) and s.cache_layout == "BnNBsD" and s.Q_D is not None,
         lambda s: (s.key_shape or ())[3] == s.Q_D,
         enforced_by="CheckPACacheShape4D",
         breaks=(Break("axis", widen("key", "D"), {**UNSCALED, "storage": "BnNBsD"}),
                 Break("axis", widen("key", "D", -16), {**UNSCALED, "storage": "BnNBsD"}))),
    Rule("FIA-PA-047", "rows of an unquantised NZ cache hold 16 elements", GROUP, Level.CONSISTENCY, ALL,
         ("v5.paged_attention.consistency.cache_nz_no_quant", "v3.paged_attention.single.mla512_a2_nd_nz"),
         lambda s: s.quant_kind == "none" and _nz(s), lambda s: _nz_fits(s, FLOAT_D0),
         enforced_by="CheckPACacheShapeNZNonAntiquant", limit="D0 == 16, D1 == D/16",
         breaks=(Break("axis", other_rows("key", "value", times=2), {**PAGED, **_FLOATS, "storage": "NZ"}),
                 Break("axis", other_rows("key", "value", times=-2), {**PAGED, **_FLOATS, "storage": "NZ"}),
                 Break("axis", widen("key", "D1"), {**PAGED, **_FLOATS, "storage": "NZ"}))),
    Rule("FIA-PA-048", "rows of a quantised NZ cache hold 16 elements", GROUP, Level.CONSISTENCY, ALL_950,
         ("v5.paged_attention.consistency.cache_nz_antiquant",),
         lambda s: s.quant_kind == "antiquant" and _nz(s), lambda s: _nz_fits(s, FLOAT_D0),
         enforced_by="CheckPACacheShapeNZAntiquant", limit="D0 == 16 (INT32 carriers 2), D1 == D/16",
         note="16 elements also for one-byte and packed caches",
         breaks=(Break("axis", other_rows("key", "value", times=2), {"storage": "NZ", "scenario": "antiquant"}),
                 Break("axis", widen("key", "D1"), {"storage": "NZ", "scenario": "antiquant"}))),
    Rule("FIA-PA-049", "rows of a fully quantised NZ cache hold 32 elements", GROUP, Level.CROSS, ALL_950,
         ("v5.paged_attention.cross.fq_decode_mla_nz_d0", "v5.quant.cross.mla_nz_d0"),
         lambda s: s.quant_kind == "full" and _nz(s) and s.full_kind in ("decode_mla", "mxfp8"),
         lambda s: _nz_fits(s, BYTE_D0), enforced_by="CheckPACacheShapeNZNonAntiquant", limit="D0 == 32, D1 == D/32",
         breaks=(Break("axis", other_rows("key", "value", times=-2), {"storage": "NZ", "scenario": "full_decode_mla"}),
                 Break("axis", other_rows("key", "value", times=2), {"storage": "NZ", "scenario": "full_decode_mla"}),
                 Break("axis", widen("key", "D1"), {"storage": "NZ", "scenario": "full_decode_mla"}))),
    Rule("FIA-PA-050", "rows of keyRope's NZ cache hold 16 elements", GROUP, Level.CROSS, V5,
         ("v5.paged_attention.cross.fq_decode_mla_nz_rope_d0", "v5.quant.cross.mla_nz_d0",
          "v5.paged_attention.consistency.cache_nz_no_quant"),
         _rope_nz, lambda s: (s.shape("keyRope") or ())[4] == ROPE_D0, enforced_by="CheckPACacheShapeNZNonAntiquant",
         limit="D0 == 16",
         breaks=(Break("axis", other_rows("keyRope", times=-2), {"storage": "NZ"}),
                 Break("axis", other_rows("keyRope", times=2), {"storage": "NZ"}))),
    Rule("FIA-PA-051", "KV_N x D of a (blocks, blockSize, H) cache is at most 65535", GROUP, Level.CROSS, ALL,
         ("v5.paged_attention.cross.bnbsh_h_limit", "v3.paged_attention.cross.qs_gt1_bnbsh_h_limit",
          "v3.paged_attention.cross.qs_eq1_bnbsh_h_limit", "v3.paged_attention.cross.tnd_gqa_layout_h_max",
          "v3.paged_attention.cross.tnd_mha_layout_h_max"),
         lambda s: same_rank(s) and s.cache_layout == "BnBsH",
         lambda s: max((s.key_shape or ())[2], (s.value_shape or ())[2]) <= 65535, enforced_by="CheckPACacheShape3D",
         limit="<= 65535", note="a (blocks, KV_N, blockSize, D) cache knows no such limit",
         breaks=(Break("above", heads_to(extra=1), _WIDE),),
         boundaries=(Boundary(heads_to(), heads_to(extra=1), _WIDE, limit="65535 elements"),)),
    Rule("FIA-PA-052", "an NZ cache without rope has head size 64 or 128", GROUP, Level.CONSISTENCY,
         DOC_A2A3_V5 | SRC_A2A3,
         ("v5.paged_attention.consistency.cache_nz_d_a2",),
         lambda s: s.quant_kind == "none" and _nz(s) and not s.rope_on and s.mla_kind is None,
         lambda s: s.Q_D in (64, 128),
         basis=Basis.SOURCE, enforced_by="CheckPAKeyValue", limit="64, 128",
         breaks=(Break("value", cache_as("NZ"), {**_ONE_D, "storage": ("BnBsH", "BnNBsD"),
                                                 "head_size": ("16k", "512")}),)),
    Rule("FIA-PA-060", "a quantised (blocks, KV_N, blockSize, D) cache takes BNSD, BNSD_BSND or TND", GROUP,
         Level.CROSS, V5,
         ("v5.paged_attention.cross.antiquant_4d_layout", "v5.quant.cross.antiquant_paged_4d_layout"),
         lambda s: s.quant_kind == "antiquant" and s.cache_layout == "BnNBsD" and s.layout_name in ("BSH", "BSND"),
         lambda s: False, enforced_by="CheckFeatureInputLayoutForAntiquant", limit="BNSD, BNSD_BSND, TND",
         note="the other layouts take no quantised cache at all",
         breaks=(Break("value", cache_as("BnNBsD"), {"storage": "BnBsH", "scenario": "antiquant",
                                                     "layout": ("BSH", "BSND")}),)),
    Rule("FIA-PA-061", "FP8 Decode MLA takes no (blocks, KV_N, blockSize, D) cache in the BSH family", GROUP,
         Level.CROSS,
         ALL_950, ("v5.paged_attention.cross.fq_decode_mla_fp8_bsh_family",
                   "v5.quant.cross.mla_fp8_cache_no_bnnbsd_for_bsh_bsnd",
                   "v5.quant.cross.mla_fp8_cache_all_forms"),
         lambda s: s.full_kind == "decode_mla" and s.q_dtype != "INT8" and s.layout_name in _BSH_FAMILY
         and s.cache_layout is not None,
         lambda s: s.cache_layout != "BnNBsD", enforced_by="CheckKVLayout", limit="BnBsH or NZ",
         breaks=(Break("value", cache_as("BnNBsD"), {"storage": ("BnBsH", "NZ"), "scenario": "full_decode_mla",
                                                    "layout": tuple(sorted(_BSH_FAMILY)),
                                                     "q_dtype": ("FLOAT8_E4M3FN", "HIFLOAT8")}),)),
    Rule("FIA-PA-062", "MXFP8 takes no (blocks, blockSize, H) cache", GROUP, Level.CROSS, SRC_950,
         ("v5.paged_attention.cross.mxfp8_cache_not_3d", "v5.quant.cross.mxfp8_cache_form"),
         lambda s: s.full_kind == "mxfp8" and s.cache_layout is not None, lambda s: s.cache_layout != "BnBsH",
         enforced_by="CheckKVLayout", limit="BnNBsD or NZ",
         breaks=(Break("value", cache_as("BnBsH"), {"storage": "BnNBsD", "scenario": "full_mxfp8"}),)),
)


def _other_legal_size(s: Scene) -> Optional[dict[str, object]]:
    """Another block size that is legal by itself and still reaches all lengths."""
    for size in (128, 256, 512, 384):
        if size != s.block_size and s.kv_lens and s.table_span is not None and size > s.block_size:
            return {"blockSize": size}
    return None
