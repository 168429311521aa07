"""Numbers for a plan's sizes: batches, heads, head sizes and query tokens, and how large a call may become."""

from __future__ import annotations

from .draft import Draft
from .source import Table

_BUDGETS = Table((250_000, 80), (1_000_000, 14), (8_000_000, 5), (60_000_000, 1))
"""B * Q_N * Q_S * KV_S * (D + DV) that a call should stay under: most run in about a millisecond."""

_BATCHES = Table((3, 50), (4, 25), (5, 14), (7, 8), (13, 3))
_TOKENS_FEW = Table((2, 14), (3, 16), (4, 8), (5, 8), (7, 6), (8, 4), (9, 4), (15, 3), (16, 4))
_TOKENS_MANY = Table((17, 20), (18, 8), (20, 8), (24, 6), (31, 6), (32, 6), (33, 6), (40, 4), (63, 2), (65, 2),
                     (100, 1), (129, 1))
_EVEN = Table((1, 40), (2, 30), (3, 16), (4, 8), (5, 4), (8, 2))
_UNDER_ONE = Table((2, 30), (3, 26), (4, 16), (5, 14), (7, 8), (8, 6))
_KV_HEADS = Table((2, 56), (3, 24), (4, 12), (6, 8))
_GROUPS = Table((2, 40), (3, 30), (4, 12), (5, 12), (7, 6))
_MLA_HEADS = Table((2, 40), (4, 26), (8, 18), (16, 8), (32, 4), (64, 2), (128, 2))
_MLA_HEADS_V3 = Table((32, 90), (64, 8), (128, 2))

_BY_16 = (80, 32, 48, 96, 112, 16, 160, 176, 256, 320)
_BY_32 = (96, 32, 160, 224, 256, 320)
_BY_64 = (256, 320, 384)
_ODD = (72, 40, 17, 24, 88, 51, 100, 8, 85, 56, 104, 36, 127, 200)
_UNEQUAL = (32, 64, 80, 96, 128, 72, 40, 112, 24, 100, 8)


def decide(d: Draft) -> None:
    """Decide B, heads and head sizes, and how large the call may become."""
    words, source = d.words, d.source
    d.budget = _BUDGETS.of(source)
    _heads(d)
    d.D = _head_size(d, words["head_size"])
    if d.scenario == "unequal_d":
        d.DV = source.choice([n for n in _UNEQUAL if n != d.D])
    else:
        d.DV = 128 if d.scenario == "mla_prefill_combined" else d.D
    word = words["batch"]
    tokens = 300 if words["q_s"] == "17+" else 10
    large = d.Q_N * (d.D + d.DV) * tokens * 4 > d.budget or d.block_size * d.KV_N >= 256
    d.B = int(word) if word != "3+" else 3 if large else _BATCHES.of(source)


def _heads(d: Draft) -> None:
    source, word = d.source, d.words["group"]
    if d.scenario in ("mla_decode", "full_decode_mla"):
        d.KV_N = 1
        if d.scenario == "mla_decode" and d.ground.v3_document and d.packed:
            d.G = _MLA_HEADS_V3.of(source)
        else:
            d.G = 1 if word == "mha" else _MLA_HEADS.of(source)
    elif word == "mha":
        d.KV_N, d.G = _EVEN.of(source), 1
    elif word == "mqa":
        d.KV_N, d.G = 1, _UNDER_ONE.of(source)
    else:
        d.KV_N, d.G = _KV_HEADS.of(source), _GROUPS.of(source)
    d.Q_N = d.KV_N * d.G


def _head_size(d: Draft, word: str) -> int:
    if word.isdigit():
        return int(word)
    if d.scenario == "unequal_d":
        return d.source.choice([n for n in _UNEQUAL if (n % 16 == 0) == (word == "16k") and n not in (64, 128)])
    if word == "odd":
        return d.source.choice(_ODD)
    kv_dtype, out_dtype = d.words["kv_dtype"], d.words["out_dtype"]
    if kv_dtype in ("INT4", "FLOAT4_E2M1"):
        return d.source.choice(_BY_64)
    if d.ground.is_950:
        by_32 = d.layout.name == "BNSD_BSND" and out_dtype == "INT8"
        return d.source.choice(_BY_32 if by_32 else _BY_16)
    # A2 and A3: INT8 anywhere wants multiples of 32; D 80 and 256 change the route and the checks with it.
    by_32 = "INT8" in (kv_dtype, out_dtype)
    return d.source.choice([n for n in (_BY_32 if by_32 else _BY_16) if n < 256 and n != 80])


def query_tokens(d: Draft) -> int:
    """The query axis (or the longest packed query) that a plan's words allow."""
    word = d.words["q_s"]
    if word in ("0", "1"):
        return int(word)
    if word == "17+":
        many = int(_TOKENS_MANY.of(d.source))
        return many if d.B * d.Q_N * (d.D + d.DV) * many * many < 4 * d.budget else 17
    few = int(_TOKENS_FEW.of(d.source))
    return max(few, 3) if d.words["length_relation"] in ("mixed", "q_longer") else few
