"""What the V3 document demands of mask, sparseMode and tokens on A2 and A3.

Most of it is wider in the code: the newer route that unquantised calls take checks as on Ascend 950.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..changes import put, resize
from ..facts import decode_mla, legacy_decode
from ..rule import DOC_A2A3_V3, Basis, Boundary, Break, Change, Level, Words, never
from .facts import FULL_MODES, mask_rule, needed_columns
from .sparse import MODES, fixed, full

_FULL: Words = {"mask": ("BOOL", "INT8", "UINT8"), "sparse_mode": ("0", "1"), "mask_shape": ("2d", "3d", "4d"),
                "storage": "contiguous", "q_s": ("2-16", "17+"), "scenario": ("gqa", "mla_prefill_combined"),
                "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND")}
_FULL_DECODE: Words = {"mask": ("BOOL", "INT8", "UINT8"), "storage": "contiguous", "q_s": "1", "scenario": "antiquant",
                       "mask_shape": ("2d", "3d", "4d"), "layout": ("BSH", "BSND", "BNSD")}
_TND: Words = {"layout": ("TND", "NTD_TND"), "scenario": ("gqa", "mla_prefill_split", "mla_prefill_combined")}


def _full_shape(s: Scene) -> Optional[tuple[int, ...]]:
    """Shape of a mask that is read for every token, None otherwise; what has neither 2, 3 nor 4 axes counts too."""
    shape = s.shape("attenMask")
    return shape if s.mask_on and s.sparse_mode in FULL_MODES and not s.packed and not s.paged else None


def _prefill_mask(s: Scene) -> bool:
    shape = _full_shape(s)
    assert shape is not None and s.Q_S is not None and s.B is not None
    if len(shape) not in (2, 3, 4) or shape[-2] < s.Q_S or shape[-1] < (needed_columns(s) or 0):
        return False
    return (len(shape) == 2 or shape[0] in (1, s.B)) and (len(shape) != 4 or shape[1] == 1)


def _decode_mask(s: Scene) -> bool:
    shape = _full_shape(s)
    assert shape is not None and s.B is not None
    return len(shape) in (2, 3, 4) and shape[-1] >= (needed_columns(s) or 0) and shape[0] in (1, s.B)


def _too_few(s: Scene, _: int) -> Optional[int]:
    needed = needed_columns(s)
    return needed - 1 if needed is not None and needed > 1 else None


def _packed_pairs(s: Scene, modes: tuple[int, ...]) -> bool:
    """Whether mode and mask are one of the pairs: 0 without mask, the others with it (by another rule)."""
    return s.sparse_mode not in MODES or (s.sparse_mode in modes and not (s.sparse_mode == 0 and s.mask_on))


def _band(s: Scene) -> bool:
    return s.sparse_mode == 4 and s.mask_on and not legacy_decode(s) and _tokens_fit(s)


def _tokens_fit(s: Scene) -> bool:
    return s.attrs.preTokens + s.attrs.nextTokens >= 0


def _lens(s: Scene, lens: Optional[tuple[int, ...]]) -> tuple[int, ...]:
    return lens or (0,)


def _key_totals(s: Scene) -> int:
    return min(_lens(s, s.kv_lens)) + s.prefix_len


def _group(s: Scene) -> bool:
    return (s.layout_name == "TND" and s.Q_D is not None and s.Q_D != 512 and s.quant_kind == "none"
            and s.G is not None and s.G > 1)


_BAND: Words = {"mask": ("BOOL", "INT8", "UINT8"), "sparse_mode": "4", "q_s": ("2-16", "17+"),
                "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND"), "scenario": ("gqa", "mla_prefill_combined"),
                "q_lengths": ("absent", "per_batch", "one"), "left_padding": "none", "post_quant": "none"}


_TND_BAND: Words = {"mask": ("BOOL", "INT8", "UINT8"), "sparse_mode": "4", "layout": "TND", "scenario": "gqa",
                    "group": ("gqa", "mqa"), "q_lengths": "per_batch", "kv_lengths": "per_batch"}


def _pre_tokens(offset: int) -> Change:
    """preTokens at its bound in sparseMode 0."""
    return lambda s: {"preTokens": -_key_totals(s) + offset, "nextTokens": 1 << 20} if _key_totals(s) > 1 else None


def _tokens(pre: bool, offset: int) -> Change:
    """Tokens at the bound: one of them minus a length plus ``offset``, the other large enough."""

    def change(s: Scene) -> Optional[Mapping[str, object]]:
        if not s.q_lens or not s.kv_lens:
            return None
        bound = -min(s.q_lens) if pre else -_key_totals(s)
        if bound >= 0:
            return None
        found = {"preTokens": bound + offset, "nextTokens": 1 << 20}
        return found if pre else {"preTokens": 1 << 20, "nextTokens": bound + offset}

    return change


RULES = (
    mask_rule(
        71, "A2/A3: for sparseMode 0 and 1 the mask covers query and key", level=Level.CONSISTENCY,
        profiles=DOC_A2A3_V3,
        cites=("v3.attention_mask.consistency.shape_sparse_01_qs_gt_1",
               "v3.attention_mask.consistency.sparse0_with_mask_shape", "v3.attention_mask.existence.sparse1",
               "v3.shared_prefix.cross.qs_gt1_mask_s2"),
        enforced_by="ValidateMaskDimAndShape, older prefill route",
        when=lambda s: (_full_shape(s) is not None and s.Q_S is not None and s.Q_S > 1 and s.B is not None
                        and needed_columns(s) is not None),
        requires=_prefill_mask, limit="(Q_S, KV_S), (1 or B, Q_S, KV_S), (1 or B, 1, Q_S, KV_S)",
        breaks=(Break("below", resize("attenMask", -1, _too_few), _FULL),
                Break("below", resize("attenMask", -2, lambda s, _: s.Q_S - 1 if s.Q_S else None), _FULL),
                Break("axis", resize("attenMask", 0, lambda s, _: (s.B or 0) + 1),
                      {**_FULL, "mask_shape": ("3d", "4d")}),
                Break("axis", resize("attenMask", 1, 2), {**_FULL, "mask_shape": "4d"})),
        boundaries=(Boundary(resize("attenMask", -2, lambda s, n: s.Q_S if n != s.Q_S else n + 1),
                             resize("attenMask", -2, lambda s, _: s.Q_S - 1 if s.Q_S else None), _FULL, limit="Q_S"),),
    ),
    mask_rule(
        72, "A2/A3: with one query token the mask covers the key", level=Level.CONSISTENCY, profiles=DOC_A2A3_V3,
        cites=("v3.attention_mask.consistency.shape_sparse_01_qs_eq_1",
               "v3.attention_mask.consistency.sparse0_with_mask_shape"),
        enforced_by="CheckMaskShape, older decode route",
        when=lambda s: (_full_shape(s) is not None and s.single_token and s.B is not None
                        and needed_columns(s) is not None),
        requires=_decode_mask, limit="(B, KV_S), (B, 1, KV_S), (B, 1, 1, KV_S)",
        breaks=(Break("below", resize("attenMask", -1, _too_few), _FULL_DECODE),
                Break("axis", resize("attenMask", 0, lambda s, _: (s.B or 0) + 1), _FULL_DECODE)),
        boundaries=(Boundary(resize("attenMask", -1, lambda _, n: n + 1), resize("attenMask", -1, _too_few),
                             {**_FULL_DECODE, "kv_lengths": "absent"}, limit="KV_S"),),
    ),
    mask_rule(
        73, "A2/A3: packed layouts take sparseMode 0 without mask, 3 and 4", level=Level.CROSS, profiles=DOC_A2A3_V3,
        cites=("v3.attention_mask.cross.tnd_sparse_modes", "v3.attention_mask.cross.tnd_gqa_sparse_03",
               "v3.attention_mask.cross.tnd_mha_sparse"),
        basis=Basis.DOCUMENTED, enforced_by="fast TND route only", when=lambda s: s.packed,
        requires=lambda s: _packed_pairs(s, (0, 3, 4)), limit="0, 3, 4",
        breaks=(Break("value", fixed(2), {**_TND, "mask": "none"}), Break("value", full(1), {**_TND, "mask": "none"}),
                Break("present", full(0), {**_TND, "mask": "none"})),
        note="In one place sparseMode 4 is left out for TND with fewer key heads, the next line allows it.",
    ),
    mask_rule(
        74, "A2/A3: the tokens of sparseMode 4 reach into the lengths", level=Level.CROSS, profiles=DOC_A2A3_V3,
        cites=("v3.attention_mask.cross.sparse4_pre_tokens", "v3.attention_mask.cross.sparse4_next_tokens"),
        basis=Basis.DOCUMENTED, enforced_by="older prefill route only",
        when=lambda s: _band(s) and not s.packed and bool(s.q_lens) and bool(s.kv_lens),
        requires=lambda s: (s.attrs.preTokens > -min(_lens(s, s.q_lens)) or min(_lens(s, s.q_lens)) == 0)
        and (s.attrs.nextTokens > -_key_totals(s) or _key_totals(s) == 0),
        limit="preTokens > -Q, nextTokens > -(KV + prefix)",
        breaks=(Break("below", _tokens(True, 0), _BAND), Break("below", _tokens(False, 0), _BAND)),
        boundaries=(Boundary(_tokens(True, 1), _tokens(True, 0), _BAND, limit="-Q + 1"),
                    Boundary(_tokens(False, 1), _tokens(False, 0), _BAND, limit="-KV + 1")),
    ),
    mask_rule(
        75, "A2/A3: preTokens of sparseMode 0 with a mask reaches into the key", level=Level.CROSS,
        profiles=DOC_A2A3_V3, cites=("v3.attention_mask.cross.sparse0_with_mask_pre_tokens",),
        basis=Basis.DOCUMENTED, enforced_by="older prefill route only",
        when=lambda s: (s.sparse_mode == 0 and s.mask_on and not legacy_decode(s) and not s.packed
                        and s.tokens[0] + s.tokens[1] >= 0 and bool(s.kv_lens)),
        requires=lambda s: s.tokens[0] > -_key_totals(s) or _key_totals(s) == 0,
        limit="preTokens > -(KV + prefix)",
        breaks=(Break("below", _pre_tokens(0), {**_BAND, "sparse_mode": "0"}),),
        boundaries=(Boundary(_pre_tokens(1), _pre_tokens(0), {**_BAND, "sparse_mode": "0"}, limit="-KV + 1"),),
    ),
    mask_rule(
        76, "A2/A3: the tokens of sparseMode 4 in TND with fewer key heads reach to the lengths", level=Level.CROSS,
        profiles=DOC_A2A3_V3,
        cites=("v3.attention_mask.cross.tnd_gqa_band_tokens_pre", "v3.attention_mask.cross.tnd_gqa_band_tokens_next"),
        basis=Basis.DOCUMENTED, enforced_by="nothing (only that the sum is not negative)",
        when=lambda s: _group(s) and _band(s) and bool(s.q_lens) and bool(s.kv_lens),
        requires=lambda s: s.attrs.preTokens >= -min(_lens(s, s.q_lens)) and s.attrs.nextTokens >= -_key_totals(s),
        limit="preTokens >= -Q, nextTokens >= -KV",
        breaks=(Break("below", _tokens(True, -1), _TND_BAND), Break("below", _tokens(False, -1), _TND_BAND)),
        boundaries=(Boundary(_tokens(True, 0), _tokens(True, -1), _TND_BAND, limit="-Q"),
                    Boundary(_tokens(False, 0), _tokens(False, -1), _TND_BAND, limit="-KV")),
    ),
    mask_rule(
        77, "A2/A3: Decode MLA with one query token takes sparseMode 0 without mask", level=Level.CROSS,
        profiles=DOC_A2A3_V3, cites=("v3.attention_mask.cross.mla512_a2_qs1",), basis=Basis.DOCUMENTED,
        enforced_by="nothing (0, 3 and 4)", when=lambda s: decode_mla(s) and s.single_token and not s.packed,
        requires=lambda s: _packed_pairs(s, (0,)), limit="0",
        breaks=(Break("value", fixed(3), {"scenario": "mla_decode", "q_s": "1", "mask": "none",
                                          "layout": ("BSH", "BSND", "BNSD")}),),
    ),
    mask_rule(
        78, "A2/A3: Decode MLA with several query tokens takes sparseMode 3", level=Level.CROSS,
        profiles=DOC_A2A3_V3, cites=("v3.attention_mask.cross.mla512_a2_qs_gt1",), basis=Basis.DOCUMENTED,
        enforced_by="nothing (0, 3 and 4)",
        when=lambda s: decode_mla(s) and s.Q_S is not None and s.Q_S > 1 and not s.packed,
        requires=lambda s: s.sparse_mode == 3 or s.sparse_mode not in MODES, limit="3",
        breaks=(Break("value", put(sparseMode=0, attenMask=None), {
            "scenario": "mla_decode", "q_s": "2-16", "sparse_mode": "3", "layout": ("BSH", "BSND", "BNSD")}),),
    ),
    mask_rule(
        79, "A2/A3: with one query token and no rope a mask is as for sparseMode 0, whatever sparseMode says",
        level=Level.CONSISTENCY, profiles=DOC_A2A3_V3, basis=Basis.DOCUMENTED, enforced_by="nothing",
        cites=("v3.attention_mask.consistency.shape_sparse_01_qs_eq_1",),
        when=lambda s: (s.mask_compressed and s.sparse_mode in (2, 3, 4) and s.single_token and not s.packed
                        and not s.given("queryRope") and s.Q_D == s.V_D and not s.layout_name.partition("_")[2]),
        requires=never, limit="(B, KV_S), (B, 1, KV_S), (B, 1, 1, KV_S)",
        breaks=(Break("axis", put(sparseMode=3, attenMask=TensorSpec((2048, 2048), "BOOL")), {
            "scenario": "gqa", "q_s": "1", "mask": "none", "sparse_mode": "0", "layout": ("BSH", "BSND", "BNSD")}),),
        note="sparseMode has no effect there, so the fixed mask of modes 2 to 4 has the wrong shape; the operator takes it.",
    ),
)
