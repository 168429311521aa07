"""Head counts: numHeads, numKeyValueHeads and their ratio."""

from __future__ import annotations

from fiafuzz.model.scene import Scene

from ..changes import put, where, widen
from ..documents import ALL_PROFILES, V5_DOCUMENTS, V5_LINE
from ..facts import decode_mla, fast_tnd, older_route
from ..rule import ALL_950, DOC_A2A3_V3, SRC_950, SRC_A2A3, Basis, Boundary, Break, Change, Level, Stage, Words, always
from .recipes import PLAIN, SIZED, common_rule, query_heads

POWERS = frozenset({1, 2, 4, 8, 16, 32, 64, 128})
"""Head counts of Decode MLA."""


def _heads_axis(s: Scene) -> bool:
    return s.Q_N > 0 and not fast_tnd(s) and s.q_axes is not None and "N" in s.q_axes


def _key_heads_axis(s: Scene) -> bool:
    if fast_tnd(s) or (older_route(s) and s.single_token):  # routes that do not look
        return False
    return s.KV_N > 0 and s.storage == "contiguous" and s.k_axes is not None and "N" in s.k_axes


def _hidden(s: Scene) -> bool:
    return s.q_axes is not None and "H" in s.q_axes and s.Q_N > 0


def _key_hidden(s: Scene) -> bool:
    return s.KV_N > 0 and s.k_axes is not None and s.v_axes is not None and "H" in s.k_axes


def _unquantised_decode(s: Scene) -> bool:
    return s.quant_kind == "none" and decode_mla(s) and s.Q_N > 0


def _quantised_decode(s: Scene) -> bool:
    return s.quant_kind == "full" and decode_mla(s) and s.Q_N > 0


V3_TWINS = ("FIA-CO-211", "FIA-CO-212")
"""What V1 to V4 demand of numHeads before the host looks at it."""

_ONE: Words = {**PLAIN, "storage": "contiguous", "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND")}
_DECODE: Words = {"scenario": "mla_decode", "lse": "off", "sink": "off", "post_quant": "none", "mask": "none"}
_QUANTISED: Words = {"scenario": ("antiquant", "full_per_tensor"), "group": ("mqa", "mha"), "post_quant": "none",
                     "lse": "off", "pse": "none"}


def _group(size: int) -> Change:
    """``size`` query heads on one key head."""
    return where(lambda s: s.KV_N == 1, query_heads(size))


def _slow(s: Scene) -> bool:
    """Whether the call is not on the fast TND route of A2/A3, which looks at no head counts."""
    return not fast_tnd(s)


def _several_keys(s: Scene) -> bool:
    return s.KV_N > 1 and not fast_tnd(s)


def _named(s: Scene) -> bool:
    """Whether query has an N axis and numKeyValueHeads is given, so that numHeads alone can be wrong."""
    return _heads_axis(s) and s.attrs.numKeyValueHeads > 0


_EXPLICIT = where(_named, lambda s: {"numHeads": 2 * s.num_heads})

RULES = (
    common_rule(
        1, "numHeads is positive", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.common.single.num_heads_positive", "v5.common.single.num_heads_upper",
               "v3.common.single.num_heads_table"),
        stage=Stage.PARSER, enforced_by="GetN1Size", when=lambda s: not fast_tnd(s), requires=lambda s: s.num_heads > 0,
        limit="1 .. 2147483647",
        breaks=(Break("below", put(numHeads=0), _ONE, V3_TWINS), Break("below", put(numHeads=-1), _ONE),
                Break("above", put(numHeads=1 << 31), _ONE, V3_TWINS)),
        boundaries=(Boundary(where(lambda s: s.KV_N == 1, query_heads(1)), put(numHeads=0), _ONE, V3_TWINS,
                             limit="1"),),
        note="Read as a 32-bit integer: 2**31 is negative, 2**32 + 8 is 8. There is no default.",
    ),
    common_rule(
        2, "numKeyValueHeads is not negative", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.common.single.num_kv_heads_nonneg", "v3.common.consistency.heads_divisible"),
        stage=Stage.PARSER, enforced_by="GetN2Size", when=always, requires=lambda s: s.KV_N >= 0 or s.num_heads < 0,
        limit="0 .. 2147483647; 0 is numHeads",
        breaks=(Break("below", put(numKeyValueHeads=-1), _ONE), Break("above", put(numKeyValueHeads=1 << 31), _ONE)),
        boundaries=(Boundary(put(numKeyValueHeads=0), put(numKeyValueHeads=-1), {**_ONE, "group": "mha"}, limit="0"),),
    ),
    common_rule(
        3, "numHeads is a multiple of numKeyValueHeads", level=Level.CONSISTENCY, profiles=ALL_PROFILES,
        cites=("v5.interface.consistency.num_heads_divisible", "v5.common.consistency.num_heads_ratio",
               "v5.quant.cross.full_quant_head_multiple", "v3.common.consistency.heads_divisible"),
        enforced_by="GetGSize", when=lambda s: s.Q_N > 0 and s.KV_N > 0 and not fast_tnd(s),
        requires=lambda s: s.G is not None, limit="numHeads % numKeyValueHeads == 0",
        breaks=(
            Break("pair", where(_several_keys, lambda s: query_heads(s.Q_N + 1)(s)), PLAIN),
            Break("pair", where(_several_keys, query_heads(1)), PLAIN, note="fewer than numKeyValueHeads"),
        ),
        note="The ratio itself has no limit without quantisation.",
    ),
    common_rule(
        4, "the N axis of query is numHeads", level=Level.CONSISTENCY, profiles=ALL_PROFILES,
        cites=("v5.interface.consistency.num_heads_vs_query_n", "v5.common.consistency.num_heads_equals_n",
               "v3.common.single.num_heads_table"),
        enforced_by="CheckQueryShape", when=_heads_axis,
        requires=lambda s: s.q_axes is not None and s.q_axes["N"] == s.Q_N,
        breaks=(
            Break("above", _EXPLICIT, PLAIN),
            Break("below", where(lambda s: _named(s) and s.Q_N % (2 * s.KV_N) == 0,
                                 lambda s: {"numHeads": s.num_heads // 2}), PLAIN),
            Break("axis", where(_slow, widen(("query", "attentionOut"), "N")), PLAIN),
        ),
    ),
    common_rule(
        5, "the N axis of key is numKeyValueHeads", level=Level.CONSISTENCY, profiles=ALL_PROFILES,
        cites=("v5.interface.consistency.kv_heads_vs_key_n", "v5.common.consistency.num_heads_equals_n",
               "v3.common.consistency.kv_heads_match_shape"),
        enforced_by="CheckKeyNHVaild", when=_key_heads_axis,
        requires=lambda s: s.k_axes is not None and s.k_axes["N"] == s.KV_N,
        breaks=(
            Break("axis", where(_slow, widen(("key", "value"), "N")), SIZED),
            Break("value", where(lambda s: _several_keys(s) and s.k_axes is not None and "N" in s.k_axes,
                                 put(numKeyValueHeads=1)), SIZED),
        ),
        note="value is compared with key; tensor lists and paged caches have rules of their own.",
    ),
    common_rule(
        6, "H of query is a multiple of numHeads", level=Level.CONSISTENCY, profiles=V5_LINE,
        cites=("v5.common.consistency.bsh_query_h_divisible", "v5.interface.consistency.layout_bsh"),
        stage=Stage.PARSER, enforced_by="CheckHasAxis", when=_hidden,
        requires=lambda s: s.q_axes is not None and s.q_axes["H"] % s.Q_N == 0,
        breaks=(Break("axis", where(lambda s: s.Q_N > 1, widen("query", "H")), {**PLAIN, "layout": "BSH"}),),
        note="H = numHeads x D.",
    ),
    common_rule(
        7, "H of key and value is a multiple of numKeyValueHeads", level=Level.CONSISTENCY, profiles=V5_LINE,
        cites=("v5.common.consistency.bsh_key_h_divisible", "v5.interface.consistency.layout_bsh"),
        enforced_by="CheckKeyNHVaild, CheckHasAxis", when=_key_hidden,
        requires=lambda s: (s.k_axes is not None and s.v_axes is not None
                            and s.k_axes["H"] % s.KV_N == 0 and s.v_axes["H"] % s.KV_N == 0),
        breaks=tuple(Break("axis", where(lambda s: s.KV_N > 1, widen(n, "H")),
                           {**SIZED, "layout": ("BSH", "BSH_BNSD")}) for n in ("key", "value")),
    ),
    # ---- Decode MLA ---------------------------------------------------------------------------
    common_rule(
        11, "Decode MLA without quantisation has 1, 2, 4, ... or 128 query heads", level=Level.SINGLE,
        profiles=V5_DOCUMENTS | SRC_A2A3,
        cites=("v5.common.single.num_heads_decode_mla_set", "v5.common.consistency.decode_mla_ratio",
               "v5.rope.cross.decode_q_n_no_quant", "v5.rope.cross.decode_g"),
        enforced_by="CheckHeadNum", when=_unquantised_decode, requires=lambda s: s.Q_N in POWERS,
        limit="1, 2, 4, 8, 16, 32, 64, 128",
        breaks=(Break("value", query_heads(3), _DECODE), Break("above", query_heads(256), _DECODE)),
        boundaries=(Boundary(query_heads(128), query_heads(129), _DECODE, limit="128"),
                    Boundary(query_heads(1), None, _DECODE, limit="1")),
        note="Later releases on Ascend 950 take every count up to 128.",
    ),
    common_rule(
        12, "Decode MLA without quantisation has 1 to 128 query heads", level=Level.SINGLE, profiles=SRC_950,
        cites=("v5.common.single.num_heads_decode_mla_range_head", "v5.rope.cross.decode_q_n_no_quant",
               "v5.rope.cross.decode_g"),
        basis=Basis.SOURCE, enforced_by="CheckHeadNum", when=_unquantised_decode,
        requires=lambda s: s.Q_N <= 128, limit="1 .. 128",
        breaks=(Break("above", query_heads(256), _DECODE),),
        boundaries=(Boundary(query_heads(128), query_heads(129), _DECODE, limit="128"),),
    ),
    common_rule(
        13, "Decode MLA with full quantisation has 1, 2, 4, ... or 128 query heads", level=Level.SINGLE,
        profiles=ALL_950,
        cites=("v5.common.single.num_heads_decode_mla_set", "v5.common.consistency.decode_mla_ratio",
               "v5.rope.cross.decode_q_n_full_quant", "v5.quant.cross.mla_q_n", "v5.quant.cross.mla_g"),
        enforced_by="CheckHeadNum", when=_quantised_decode, requires=lambda s: s.Q_N in POWERS,
        limit="1, 2, 4, 8, 16, 32, 64, 128",
        breaks=(Break("value", query_heads(3), {"scenario": "full_decode_mla", "lse": "off"}),
                Break("above", query_heads(256), {"scenario": "full_decode_mla", "lse": "off"})),
        boundaries=(Boundary(query_heads(128), query_heads(129), {"scenario": "full_decode_mla", "lse": "off"},
                             limit="128"),),
    ),
    common_rule(
        14, "Decode MLA with a head count that is no power of two goes without sink, post-quantisation and full mask",
        level=Level.CROSS, profiles=SRC_950,
        cites=("v5.common.consistency.decode_mla_non_pow2", "v5.rope.cross.decode_sparse0_mask_heads",
               "v5.post_quant.cross.decode_mla_non_power_of_two_heads"),
        basis=Basis.SOURCE, enforced_by="CheckAxis",
        when=lambda s: _unquantised_decode(s) and s.Q_N <= 128 and s.Q_N not in POWERS,
        requires=lambda s: not (s.sink_on or s.post_quant_on or (s.sparse_mode == 0 and s.mask_on)),
        breaks=(
            Break("pair", query_heads(3), {"scenario": "mla_decode", "lse": "off", "sink": "off", "post_quant": "none",
                                           "sparse_mode": "0", "mask": ("BOOL", "INT8", "UINT8")}),
            Break("pair", query_heads(3), {"scenario": "mla_decode", "lse": "off", "sink": "off", "mask": "none",
                                           "post_quant": ("tensor", "tensor+offset"),
                                           "layout": ("BSH", "BSND", "BNSD", "TND")}),
        ),
    ),
    # ---- A2/A3, V3 ----------------------------------------------------------------------------
    common_rule(
        15, "quantised calls on A2/A3 have at most 64 query heads to a key head", level=Level.CONSISTENCY,
        profiles=DOC_A2A3_V3, cites=("v3.common.cross.group_ratio_a2",), enforced_by="older routes",
        when=lambda s: not s.rope_on and s.quant_kind in ("antiquant", "full") and s.G is not None,
        requires=lambda s: s.G is not None and s.G <= 64, limit="64",
        breaks=(Break("above", _group(65), _QUANTISED),),
        boundaries=(Boundary(_group(64), _group(65), _QUANTISED, limit="64"),),
    ),
    common_rule(
        16, "unquantised calls on A2/A3 have at most 64 query heads to a key head, by the V3 document",
        level=Level.CONSISTENCY, profiles=DOC_A2A3_V3, cites=("v3.common.cross.group_ratio_a2",),
        basis=Basis.DOCUMENTED, enforced_by="nothing",
        when=lambda s: not s.rope_on and s.quant_kind == "none" and s.G is not None,
        requires=lambda s: s.G is not None and s.G <= 64, limit="64",
        breaks=(Break("above", _group(65), PLAIN),),
        boundaries=(Boundary(_group(64), _group(65), PLAIN, limit="64"),),
    ),
    common_rule(
        17, "on A2/A3 numHeads is at most 256, by the V3 document", level=Level.SINGLE, profiles=DOC_A2A3_V3,
        cites=("v3.common.single.qs_gt1_n_a2", "v3.common.single.qs_eq1_n_a2"), basis=Basis.DOCUMENTED,
        enforced_by="older prefill route only", when=lambda s: s.Q_N > 0 and not s.rope_on and s.G is not None,
        requires=lambda s: s.Q_N <= 256, limit="256",
        breaks=(Break("above", where(lambda s: s.KV_N == 8, query_heads(264)), PLAIN),),
        boundaries=(Boundary(where(lambda s: s.KV_N == 8, query_heads(256)),
                             where(lambda s: s.KV_N == 8, query_heads(264)), PLAIN, limit="256"),),
    ),
    common_rule(
        18, "on A2/A3 TND or TND_NTD with D 512 has 32, 64 or 128 query heads, by one place of the V3 document",
        level=Level.CROSS, profiles=DOC_A2A3_V3, cites=("v3.common.cross.tnd512_q_n",), basis=Basis.DOCUMENTED,
        enforced_by="nothing", when=lambda s: s.packed and s.Q_D == 512 and s.Q_N in POWERS,
        requires=lambda s: s.Q_N in (32, 64, 128), limit="32, 64, 128",
        breaks=(Break("value", query_heads(16), {**_DECODE, "layout": ("TND", "TND_NTD")}),),
        note="Another place of the same document says 1, 2, 4, ..., 128.",
    ),
)
