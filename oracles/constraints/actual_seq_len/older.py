"""What the V3 document demands of the lengths on A2 and A3, and what the fast TND route there does not check."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.scene import Scene

from ..changes import entries, entry, where
from ..facts import fast_tnd
from ..rule import DOC_A2A3, DOC_A2A3_V3, Basis, Boundary, Break, Change, Level, Words
from .lengths import key_lengths, query_lengths, rising, seq_rule

MOST = 4096
"""Entries of a length array for TND and NTD_TND."""

_FAST: Words = {"layout": "TND", "scenario": "gqa", "storage": "contiguous", "mask": "none", "inner_precise": "0"}


def _cumulative(s: Scene) -> bool:
    """Whether both arrays are as the documents want them: equally long, not negative, rising, the last one T."""
    q, k = query_lengths(s), key_lengths(s)
    if not q or len(k) != len(q) or min(q) < 0 or min(k) < 0 or not rising(q) or (s.T is not None and q[-1] != s.T):
        return False
    return s.paged or (rising(k) and (s.KV_T is None or k[-1] == s.KV_T))


def _shorter_queries(s: Scene) -> bool:
    return all(q < k for q, k in zip(s.q_lens or (), s.kv_lens or ()))


def _entries(count: int) -> Change:
    """Both arrays with ``count`` entries: the lengths as they are, then empty batches."""

    def change(s: Scene) -> Optional[dict[str, object]]:
        q, k = s.inputs.actualSeqLengths, s.inputs.actualSeqLengthsKv
        if not q or not k or len(q) != len(k) or len(q) > count:
            return None
        return {"actualSeqLengths": q + q[-1:] * (count - len(q)), "actualSeqLengthsKv": k + k[-1:] * (count - len(k))}

    return change


RULES = (
    seq_rule(
        31, "A2/A3: the lengths of a TND call are cumulative, end with T and are as many as each other",
        level=Level.CONSISTENCY, profiles=DOC_A2A3, basis=Basis.DOCUMENTED,
        cites=("v5.actual_seq_len.single.q_tnd_nondecreasing", "v5.actual_seq_len.single.q_tnd_last_is_t",
               "v5.actual_seq_len.single.kv_tnd_nondecreasing", "v5.actual_seq_len.single.kv_tnd_last_is_t",
               "v3.actual_seq_len.consistency.tnd_length_is_batch", "v3.actual_seq_len.consistency.tnd_cumulative",
               "v3.actual_seq_len.consistency.tnd_last_equals_t"),
        enforced_by="nothing (fast TND route)",
        when=lambda s: fast_tnd(s) and bool(s.inputs.actualSeqLengths) and s.inputs.actualSeqLengthsKv is not None,
        requires=_cumulative,
        breaks=(Break("value", where(fast_tnd, entry("actualSeqLengths", -1, lambda _, n: n + 1)), _FAST),
                Break("value", where(fast_tnd, entry("actualSeqLengthsKv", 0, -1)), _FAST)),
    ),
    seq_rule(
        32, "A2/A3: with one query token the query lengths are not negative, by one place of the V3 document",
        level=Level.SINGLE, profiles=DOC_A2A3_V3, cites=("v3.actual_seq_len.single.qs_eq1_q_nonneg",),
        basis=Basis.DOCUMENTED, enforced_by="nothing (the array is dropped)",
        when=lambda s: not s.packed and s.single_token, requires=lambda s: min(query_lengths(s), default=0) >= 0,
        limit="0",
        breaks=(Break("below", entry("actualSeqLengths", 0, -1), {"q_s": "1", "layout": ("BSH", "BSND", "BNSD")}),),
        boundaries=(Boundary(entry("actualSeqLengths", 0, lambda _, n: 0 if n else 1), entry("actualSeqLengths", 0, -1),
                             {"q_s": "1", "layout": ("BSH", "BSND", "BNSD")}, limit="0"),),
        note="Another place says that the array has no effect.",
    ),
    seq_rule(
        33, "A2/A3: with sparseMode 3 each query of a packed call is shorter than its key", level=Level.CROSS,
        profiles=DOC_A2A3_V3, cites=("v3.actual_seq_len.cross.tnd_sparse3_q_lt_kv",), basis=Basis.DOCUMENTED,
        enforced_by="nothing (equal lengths pass)",
        when=lambda s: s.packed and s.sparse_mode == 3 and s.Q_D is not None and s.Q_D != 512 and bool(s.q_lens),
        requires=_shorter_queries, limit="Q < KV",
        breaks=(Break("pair", entries("actualSeqLengthsKv", lambda s, n: s.inputs.actualSeqLengths), {
            "layout": ("TND", "NTD_TND"), "sparse_mode": "3", "storage": ("BnBsH", "BnNBsD"),
            "length_relation": "q_shorter", "scenario": ("gqa", "mla_prefill_split", "mla_prefill_combined")}),),
    ),
    seq_rule(
        34, "A2/A3: the arrays of TND and NTD_TND have at most 4096 entries", level=Level.SINGLE,
        profiles=DOC_A2A3_V3, cites=("v3.actual_seq_len.single.tnd_max_elements",), basis=Basis.DOCUMENTED,
        enforced_by="older prefill route only",
        when=lambda s: s.layout_name in ("TND", "NTD_TND") and s.Q_D is not None and s.Q_D != 512,
        requires=lambda s: len(s.inputs.actualSeqLengths or ()) <= MOST, limit="4096",
        breaks=(Break("above", _entries(MOST + 1), {"layout": "TND", "scenario": "gqa", "storage": "contiguous",
                                                    "mask": "none"}),),
        boundaries=(Boundary(_entries(MOST), _entries(MOST + 1), {
            "layout": "TND", "scenario": "gqa", "storage": "contiguous", "mask": "none"}, limit="4096"),),
    ),
    seq_rule(
        35, "A2/A3: with rope and more than one query token actualSeqLengths goes with packed layouts",
        level=Level.CROSS, profiles=DOC_A2A3_V3, cites=("v3.actual_seq_len.cross.mla_mtp_q_lengths",),
        basis=Basis.DOCUMENTED, enforced_by="nothing",
        when=lambda s: s.rope_on and s.Q_S is not None and s.Q_S > 1 and s.layout is not None,
        requires=lambda s: s.packed or s.inputs.actualSeqLengths is None,
        breaks=(Break("present", lambda s: {"actualSeqLengths": (s.Q_S,)}, {
            "scenario": "mla_decode", "q_s": "2-16", "q_lengths": "absent"}),),
    ),
)
