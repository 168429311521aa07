"""Paging in the V3 document (A2 and A3): sections for packed calls, for MLA, for one and for several query tokens."""

from __future__ import annotations

from typing import Optional

from msgspec.structs import replace

from fiafuzz.model.layouts import DECODE_MLA_D, PREFILL_MLA_D
from fiafuzz.model.scene import Scene

from ..changes import cast, resize, widen
from ..rule import DOC_A2A3_V3, Basis, Boundary, Break, Effect, Level, Rule, Words, never
from .block_size import at_size
from .cache import cache_as
from .facts import GROUP, NO_WIDTHS, block_size_to, to_paged, unpaged

_V3 = "v3.paged_attention."
CACHES_OF = {"BNSD": ("BnBsH", "BnNBsD"), "TND": ("BnBsH", "BnNBsD"), "BSH": ("BnBsH",), "BSND": ("BnBsH",)}
"""Cache layouts that the document gives to an inputLayout outside MLA."""


def many(s: Scene) -> bool:
    """Whether some batch has more than one query token."""
    return s.Q_S is not None and s.Q_S > 1


def decode(s: Scene) -> bool:
    """Whether the call is unquantised MLA of head size 512."""
    return s.rope_on and s.Q_D == DECODE_MLA_D and s.quant_kind == "none"


def plain(s: Scene) -> bool:
    """A paged call outside MLA with a block size of at least 1."""
    return s.paged and s.block_size > 0 and not s.rope_on and not (s.packed and s.Q_D == DECODE_MLA_D)


def _float(s: Scene) -> bool:
    return s.quant_kind == "none"


def _common(s: Scene) -> bool:
    """What document and operator both ask of an unquantised block size: multiples of 16 up to 1024."""
    return s.block_size % 16 == 0 and s.block_size <= 1024


def _quantised(s: Scene) -> bool:
    """The same of a quantised cache: 128 to 1024 in steps of 128, or with one query token up to 512 in steps of 32."""
    if many(s):
        return s.block_size % 128 == 0 and s.block_size <= 1024
    return s.block_size % 32 == 0 and s.block_size <= 512


def _legal(s: Scene) -> bool:
    return _common(s) if _float(s) else _quantised(s)


def _nz_of_mla(s: Scene) -> Optional[dict[str, object]]:
    """The caches of a call with blocks of 128 as NZ."""
    found = cache_as("NZ")(s)
    return dict(found) if found is not None and s.block_size == 128 else None


def _paged_int4(s: Scene) -> Optional[dict[str, object]]:
    """A contiguous call with an INT8 cache, paged and with an INT4 one."""
    found = to_paged(s)
    if found is None or s.packed or s.k_dtype != "INT8":
        return None
    caches = {n: tuple(replace(t, dtype="INT4") for t in v) for n,
              v in found.items() if isinstance(v, tuple) and n != "actualSeqLengthsKv"}
    return {**found, **caches}


def _shorter(s: Scene, *names: str) -> Optional[dict[str, object]]:
    """Scales (and offsets where they are given) of one token less than the table reaches."""
    values: dict[str, object] = {}
    for name in names:
        if s.given(name):
            found = resize(name, -1, (s.table_span or 0) - 1)(s) if s.table_span else None
            if found is None:
                return None
            values.update(found)
    return values or None


_INT4 = ("FIA-CO-112", "FIA-PA-102", "FIA-QU-421", "FIA-QU-459", "FIA-QU-452", "FIA-QU-463")
_SIZES: Words = {"scenario": "gqa", "storage": ("BnBsH", "BnNBsD"), **NO_WIDTHS,
                 "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND")}
_MANY: Words = {**_SIZES, "q_s": ("2-16", "17+")}
_ONE: Words = {**_SIZES, "q_s": "1"}
_PACKED: Words = {**_SIZES, "layout": "TND"}
_MLA: Words = {"scenario": "mla_decode", "storage": ("BnBsH", "BnNBsD"), **NO_WIDTHS}
_AQ: Words = {"scenario": "antiquant", "storage": ("BnBsH", "BnNBsD"), **NO_WIDTHS, "kv_dtype": "INT8",
              "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND")}

RULES: tuple[Rule, ...] = (
    Rule("FIA-PA-100", "head size 512 needs paging", GROUP, Level.EXISTENCE, DOC_A2A3_V3,
         (_V3 + "existence.tnd512_mandatory", _V3 + "existence.mla512_a2_mandatory"), decode, lambda s: s.paged,
         basis=Basis.DOCUMENTED, note="the English text reads as a condition; the newer route takes contiguous caches",
         breaks=(Break("absent", unpaged, {**_MLA, "layout": ("BSH", "BSND", "BNSD")}),)),
    Rule("FIA-PA-101", "a paged TND call has a (blocks, blockSize, H) cache", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.tnd_gqa_layout_form", _V3 + "cross.tnd_mha_layout_form", _V3 + "cross.qs_gt1_layouts_bnsd_tnd",
          _V3 + "cross.qs_eq1_layouts_bnsd_tnd"),
         lambda s: plain(s) and s.layout_name == "TND" and s.cache_layout is not None,
         lambda s: s.cache_layout == "BnBsH",
         effect=Effect.UNSPECIFIED, basis=Basis.DOCUMENTED, note="another line allows (blocks, KV_N, blockSize, D) too",
         breaks=(Break("value", cache_as("BnNBsD"), {**_PACKED, "storage": "BnBsH"}),)),
    Rule("FIA-PA-102", "caches fit the inputLayout", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.qs_gt1_layouts_bnsd_tnd", _V3 + "cross.qs_gt1_layouts_bsh_bsnd",
          _V3 + "cross.qs_eq1_layouts_bnsd_tnd",
          _V3 + "cross.qs_eq1_layouts_bsh_bsnd"),
         lambda s: plain(s) and s.layout_name in CACHES_OF and s.layout_name != "TND" and s.cache_layout is not None,
         lambda s: s.cache_layout in CACHES_OF[s.layout_name], basis=Basis.DOCUMENTED,
         limit="BNSD: BnBsH, BnNBsD; BSH and BSND: BnBsH", note="the newer route takes every cache layout",
         breaks=(Break("value", cache_as("BnNBsD"), {**_SIZES, "storage": "BnBsH", "layout": ("BSH", "BSND")}),
                 Break("value", cache_as("NZ"), {**_SIZES, "layout": "BNSD", "head_size": ("64", "128")}))),
    Rule("FIA-PA-103", "block size of a paged TND call is a multiple of 16 up to 512", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.tnd_gqa_block_size", _V3 + "cross.tnd_mha_block_size"),
         lambda s: plain(s) and _float(s) and s.layout_name == "TND",
         lambda s: s.block_size % 16 == 0 and s.block_size <= 512,
         limit="multiple of 16, 16..512", enforced_by="CheckFAIQKV",
         note="what all lines and the operator refuse",
         breaks=(Break("above", block_size_to(1024), _PACKED), Break("value", block_size_to(24), _PACKED)),
         boundaries=(Boundary(at_size(16), block_size_to(8), _PACKED, limit="16"),)),
    Rule("FIA-PA-104", "block size of a paged TND call is at most 128", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.tnd_gqa_block_size", _V3 + "cross.tnd_mha_block_size"),
         lambda s: plain(s) and _float(s) and s.layout_name == "TND" and s.block_size % 16 == 0 and s.block_size <= 512,
         lambda s: s.block_size <= 128, effect=Effect.UNSPECIFIED, basis=Basis.DOCUMENTED, limit="<= 128",
         note="another line gives 128 to 512 in steps of 128, the operator takes up to 512",
         breaks=(Break("above", block_size_to(256), _PACKED),),
         boundaries=(Boundary(at_size(128), block_size_to(144), _PACKED, limit="128"),)),
    Rule("FIA-PA-105", "NTD_TND takes no paging", GROUP, Level.CROSS, DOC_A2A3_V3, (_V3 + "cross.ntd_tnd_none",),
         lambda s: s.paged and s.layout_name == "NTD_TND" and s.Q_D != DECODE_MLA_D and not s.rope_on, never,
         basis=Basis.DOCUMENTED, note="the newer route takes it",
         breaks=(Break("present", to_paged, {"scenario": ("gqa", "mla_prefill_combined"), "layout": "NTD_TND",
                                             "storage": "contiguous",
                                            **NO_WIDTHS}),)),
    Rule("FIA-PA-106", "MLA with head size 128 takes no paging", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.mla128_a2_no_paged_attention",), lambda s: s.paged and s.rope_on and s.Q_D == PREFILL_MLA_D,
         never,
         basis=Basis.DOCUMENTED, note="the newer route takes it",
         breaks=(Break("present", to_paged, {"scenario": "mla_prefill_split", "storage": "contiguous", **NO_WIDTHS}),)),
    Rule("FIA-PA-107", "an NZ cache of MLA goes without BNSD and BNSD_NBSD", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.mla512_a2_nz_layouts",), lambda s: decode(s) and s.cache_layout == "NZ",
         lambda s: s.layout_name not in ("BNSD", "BNSD_NBSD"), basis=Basis.DOCUMENTED, limit="not BNSD, BNSD_NBSD",
         breaks=(Break("value", _nz_of_mla, {**_MLA, "layout": ("BNSD", "BNSD_NBSD")}),)),
    Rule("FIA-PA-108", "block size of MLA is a multiple of 16 up to 1024", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.mla512_a2_block_size_nd", _V3 + "cross.mla512_a2_block_size_nz"),
         lambda s: decode(s) and s.paged and s.block_size > 0, _common, limit="multiple of 16, 16..1024",
         enforced_by="CheckBlockSizeNonQuant910B", note="what document and operator both refuse",
         breaks=(Break("above", block_size_to(1040), _MLA), Break("value", block_size_to(24), _MLA)),
         boundaries=(Boundary(at_size(128), block_size_to(1040), _MLA, limit="1024"),)),
    Rule("FIA-PA-109", "block size of MLA is 16 or 128, of an NZ cache 128", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.mla512_a2_block_size_nd", _V3 + "cross.mla512_a2_block_size_nz"),
         lambda s: decode(s) and s.paged and s.block_size > 0 and _common(s),
         lambda s: s.block_size in ((128,) if s.cache_layout == "NZ" else (16, 128)), basis=Basis.DOCUMENTED,
         limit="16, 128; NZ: 128", note="the newer route takes every multiple of 16",
         breaks=(Break("value", block_size_to(64), _MLA), Break("above", block_size_to(256), _MLA),
                 Break("below", block_size_to(16), {**_MLA, "storage": "NZ"})),
         boundaries=(Boundary(at_size(128), block_size_to(144), _MLA, limit="128"),
                     Boundary(at_size(16), block_size_to(32), _MLA, limit="16"))),
    Rule("FIA-PA-110", "block size is one that document and operator take", GROUP, Level.SINGLE, DOC_A2A3_V3,
         (_V3 + "single.qs_gt1_block_size", _V3 + "single.qs_eq1_block_size", _V3 + "cross.qs_eq1_block_size_fp_a2",
          _V3 + "cross.qs_eq1_block_size_int8_a2"),
         lambda s: plain(s) and s.layout_name != "TND" and s.Q_S is not None, _legal,
         limit="multiple of 16 up to 1024; quantised: 128 up to 1024, single token 32 up to 512",
         enforced_by="CheckBlockSizeNonQuant910B, CheckPABlockSize",
         breaks=(Break("above", block_size_to(2048), _MANY), Break("value", block_size_to(136), _MANY),
                 Break("value", block_size_to(24), _ONE), Break("value", block_size_to(48),
                                                                {**_AQ, "q_s": "1",
                                                                 "antiquant": ("per_channel", "tensor_head")})),
         boundaries=(Boundary(at_size(16), block_size_to(8), _ONE, limit="16"),)),
    Rule("FIA-PA-111", "with several query tokens block size is 128, 256, 384 or 512", GROUP, Level.SINGLE, DOC_A2A3_V3,
         (_V3 + "single.qs_gt1_block_size",), lambda s: plain(s) and s.layout_name != "TND" and many(s) and _legal(s),
         lambda s: s.block_size % 128 == 0 and s.block_size <= 512, basis=Basis.DOCUMENTED,
         limit="multiple of 128, 128..512",
         breaks=(Break("above", block_size_to(640), _MANY), Break("below", block_size_to(64), _MANY),
                 Break("value", block_size_to(192), _MANY)),
         boundaries=(Boundary(at_size(512), block_size_to(640), _MANY, limit="512"),
                     Boundary(at_size(128), block_size_to(112), _MANY, limit="128"))),
    Rule("FIA-PA-112", "with one query token block size is at most 512", GROUP, Level.SINGLE, DOC_A2A3_V3,
         (_V3 + "single.qs_eq1_block_size",), lambda s: plain(s) and s.layout_name != "TND" and s.Q_S == 1
         and _legal(s),
         lambda s: s.block_size <= 512, basis=Basis.DOCUMENTED, limit="<= 512",
         breaks=(Break("above", block_size_to(528), _ONE),),
         boundaries=(Boundary(at_size(512), block_size_to(528), _ONE, limit="512"),)),
    Rule("FIA-PA-113", "with several query tokens paged quantised caches are INT8", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.qs_gt1_antiquant_a2_kv", _V3 + "cross.qs_gt1_antiquant_a2_query"),
         lambda s: s.paged and s.quant_kind == "antiquant" and many(s) and not s.packed, lambda s: s.k_dtype == "INT8",
         limit="INT8",
         enforced_by="CheckIOType", note="query is FLOAT16 or BFLOAT16 by the dtype match",
         breaks=(Break("dtype", _paged_int4, {"scenario": "antiquant", "antiquant": "merged", "q_s": ("2-16", "17+"),
                                              "storage": "contiguous", **NO_WIDTHS}, entails=(*_INT4, "FIA-QU-522")),)),
    Rule("FIA-PA-114", "with one query token paged caches are FLOAT16, BFLOAT16 or INT8", GROUP, Level.CROSS,
         DOC_A2A3_V3,
         (_V3 + "cross.qs_eq1_kv_dtype_a2", _V3 + "cross.qs_eq1_int4_a2"),
         lambda s: s.paged and s.quant_kind == "antiquant" and s.Q_S == 1, lambda s: s.k_dtype in ("INT8",),
         basis=Basis.DOCUMENTED, limit="FLOAT16, BFLOAT16, INT8", note="the operator takes INT4 in BSH and BSND",
         breaks=(Break("dtype", cast("INT4", "key", "value"),
                       {**_AQ, "q_s": "1", "post_quant": "none",
                        "antiquant": ("per_channel", "per_token", "token_head")},
                       entails=_INT4),)),
    Rule("FIA-PA-115", "mask of a paged single-token call is as wide as the table", GROUP, Level.CROSS, DOC_A2A3_V3,
         (_V3 + "cross.qs_eq1_mask_s",),
         lambda s: s.paged and s.Q_S == 1 and s.mask_on and s.sparse_mode in (0, 1) and s.table_span is not None
         and s.paged_columns is not None and (s.shape("attenMask") or (0,))[-1] >= s.paged_columns,
         lambda s: (s.shape("attenMask") or (0,))[-1] >= (s.table_span or 0), basis=Basis.DOCUMENTED,
         limit=">= columns of the table x blockSize",
         breaks=(Break("below", widen("blockTable", 1), {"layout": ("BSH", "BSND", "BNSD", "BNSD_BSND"),
                                                         "scenario": "gqa", "q_s": "1", "storage": ("BnBsH", "BnNBsD"),
                                                        "mask_shape": ("2d", "3d", "4d"), "sparse_mode": ("0", "1"),
                                                         "pse": "none"}),)),
    Rule("FIA-PA-117", "scales per token and head of a paged single-token call are as long as the table", GROUP,
         Level.CROSS,
         DOC_A2A3_V3, (_V3 + "cross.qs_eq1_token_head_s",),
         lambda s: s.paged and s.Q_S == 1 and s.table_span is not None and s.antiquant_modes == (3, 3)
         and len(s.shape("keyAntiquantScale") or ()) == 3 and len(s.shape("valueAntiquantScale") or ()) == 3,
         lambda s: min((s.shape("keyAntiquantScale") or (0,))[-1], (s.shape("valueAntiquantScale") or (0,))[-1])
         >= (s.table_span or 0),
         limit="(B, KV_N, >= columns of the table x blockSize)", enforced_by="CheckKVAntiQuantPerHead",
         breaks=(Break("below", lambda s: _shorter(s, "keyAntiquantScale", "valueAntiquantScale", "keyAntiquantOffset",
                                                   "valueAntiquantOffset"), {"antiquant": "token_head", "q_s": "1"}),)),
)
