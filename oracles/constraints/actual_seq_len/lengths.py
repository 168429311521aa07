"""The length arrays: existence, number of entries, values.

Packed layouts (TND, NTD and their kin) take cumulative lengths, the others one length for each batch; a paged cache
always takes one key length for each batch.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Optional

from fiafuzz.model.scene import Scene

from ..changes import Size, drop, entries, entry, held, put, where
from ..documents import ALL_PROFILES, V5_DOCUMENTS
from ..facts import decode_mla, fast_tnd, legacy_decode, scene_fact
from ..rule import ALL_950, Basis, Boundary, Break, Change, Level, Rule, Stage, Words, always

PACKED = ("TND", "NTD", "NTD_TND", "TND_NTD")
BATCHED = ("BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "BNSD_NBSD", "BSND_NBSD", "BSH_NBSD")


def seq_rule(number: int, title: str, **more: object) -> Rule:
    """A rule of the room actual_seq_len."""
    return Rule(id=f"FIA-AS-{number:03d}", title=title, group="actual_seq_len", **more)  # type: ignore[arg-type]


Ints = Optional[tuple[int, ...]]


def _looked_at(s: Scene, lens: Ints) -> tuple[int, ...]:
    """The entries that the host reads: all of packed layouts, one alone, else the first B."""
    if lens is None:
        return ()
    return lens if s.packed or s.B is None or len(lens) == 1 else lens[: max(s.B, 0)]


@scene_fact
def query_lengths(s: Scene) -> tuple[int, ...]:
    """Entries of actualSeqLengths that count; () when it is null."""
    return _looked_at(s, s.inputs.actualSeqLengths)


@scene_fact
def key_lengths(s: Scene) -> tuple[int, ...]:
    """Entries of actualSeqLengthsKv that count; () when it is null."""
    return _looked_at(s, s.inputs.actualSeqLengthsKv)


def rising(lens: tuple[int, ...]) -> bool:
    """Whether no entry is smaller than the one before it."""
    return all(a <= b for a, b in pairwise(lens))


def _fits_batch(s: Scene, lens: Ints) -> bool:
    return lens is None or len(lens) == 1 or (bool(lens) and s.B is not None and len(lens) >= s.B)


def _no_negative(lens: tuple[int, ...]) -> bool:
    return all(n >= 0 for n in lens)


def _packed_given(s: Scene) -> bool:
    return s.packed and not fast_tnd(s) and bool(s.inputs.actualSeqLengths)


def _packed_keys(s: Scene) -> bool:
    return s.packed and s.storage == "contiguous" and bool(s.inputs.actualSeqLengthsKv) and not fast_tnd(s)


def _query_counts(s: Scene) -> bool:
    """Whether the host looks at actualSeqLengths: on A2/A3 not for one query token outside packed layouts."""
    return s.is_950 or s.packed or not (s.single_token if s.api < 5 else legacy_decode(s))


def _last_step(s: Scene) -> bool:
    """Whether the last query is long enough to lose a token."""
    return bool(s.q_lens) and s.q_lens is not None and s.q_lens[-1] > 1


def _last_key_step(s: Scene) -> bool:
    return bool(s.kv_lens) and s.kv_lens is not None and s.kv_lens[-1] > 1


def _drop_step(_: Scene, lens: tuple[int, ...]) -> Ints:
    """Make an inner entry smaller than the one before it; the last one stays."""
    if len(lens) < 3 or lens[0] < 1:
        return None
    return (lens[0], lens[0] - 1, *lens[2:])


def _fewer(s: Scene, lens: tuple[int, ...]) -> Ints:
    """A number of entries between 1 and B."""
    return lens[:1] * (s.B - 1) if s.B is not None and s.B > 2 else None


def _qentries(name: str, change: Callable[[Scene, tuple[int, ...]], Ints]) -> Change:
    """A change of query lengths that the host looks at."""
    return where(lambda s: _query_counts(s) and not fast_tnd(s), entries(name, change))


def _qentry(name: str, at: int, value: Size) -> Change:
    return where(lambda s: _query_counts(s) and not fast_tnd(s), entry(name, at, value))


def _kentries(name: str, change: Callable[[Scene, tuple[int, ...]], Ints]) -> Change:
    """A change of key lengths outside the fast TND route of A2/A3."""
    return where(lambda s: not fast_tnd(s), entries(name, change))


def _kentry(name: str, at: int, value: Size) -> Change:
    return where(lambda s: not fast_tnd(s), entry(name, at, value))


_FREE: Words = {"left_padding": "none", "mask": "none"}
_CONTIGUOUS: Words = {**_FREE, "storage": ("contiguous", "tensor_list"), "layout": BATCHED}
_PACKED_PLAIN: Words = {"layout": PACKED, "storage": "contiguous",
                        "scenario": ("gqa", "unequal_d", "mla_prefill_combined"),
                        "post_quant": "none"}

RULES = (
    seq_rule(
        1, "packed layouts are given actualSeqLengths", level=Level.EXISTENCE, profiles=ALL_PROFILES,
        cites=("v5.actual_seq_len.existence.q_tnd_required", "v5.actual_seq_len.single.empty_array_tnd",
               "v3.actual_seq_len.existence.tnd_both_required"),
        stage=Stage.PARSER, enforced_by="GetActualSeqLenQSize", when=lambda s: s.packed,
        requires=lambda s: bool(s.inputs.actualSeqLengths), limit="at least 1 entry",
        breaks=(Break("absent", drop("actualSeqLengths"), {"layout": PACKED}),
                Break("below", put(actualSeqLengths=()), {"layout": PACKED, "scenario": "gqa", "storage": "contiguous",
                                                          "mask": "none"})),
        boundaries=(Boundary(held(always, put()), put(actualSeqLengths=()), {
            "layout": PACKED, "scenario": "gqa", "storage": "contiguous", "mask": "none", "batch": "1"}, limit="1"),),
        note="Also for calls with empty tensors. The number of entries is the batch size.",
    ),
    seq_rule(
        2, "packed layouts are given actualSeqLengthsKv", level=Level.EXISTENCE, profiles=ALL_PROFILES,
        cites=("v5.actual_seq_len.existence.kv_tnd_required", "v3.actual_seq_len.existence.tnd_both_required"),
        enforced_by="CheckExistenceActualSeqLenKv", when=lambda s: s.packed and s.inputs.blockTable is None,
        requires=lambda s: s.inputs.actualSeqLengthsKv is not None,
        breaks=(Break("absent", drop("actualSeqLengthsKv"), _PACKED_PLAIN),),
    ),
    seq_rule(
        3, "actualSeqLengths has one entry or at least one for each batch", level=Level.SINGLE,
        profiles=ALL_PROFILES,
        cites=("v5.actual_seq_len.single.q_len_other", "v5.interface.single.actual_seq_lengths_type",
               "v3.actual_seq_len.consistency.qs_gt1_q_len_other_a2"),
        enforced_by="CheckActualSeqLenQDim", when=lambda s: not s.packed and s.B is not None and _query_counts(s),
        requires=lambda s: _fits_batch(s, s.inputs.actualSeqLengths), limit="1, or B and more",
        breaks=(Break("pair", _qentries("actualSeqLengths", _fewer), {"layout": BATCHED, "batch": "3+"}),
                Break("below", _qentries("actualSeqLengths", lambda s, _: () if s.B else None), {"layout": BATCHED})),
        boundaries=(Boundary(_qentries("actualSeqLengths", lambda s, n: n[:1]), None,
                             {**_CONTIGUOUS, "scenario": "gqa"}, limit="1"),
                    Boundary(_qentries("actualSeqLengths", lambda s, n: n[:1] * s.B if s.B else None),
                             _qentries("actualSeqLengths", _fewer), {**_CONTIGUOUS, "scenario": "gqa", "batch": "3+"},
                             limit="B")),
        note="Entries behind B are not looked at.",
    ),
    seq_rule(
        4, "actualSeqLengthsKv has one entry or at least one for each batch", level=Level.SINGLE,
        profiles=ALL_PROFILES,
        cites=("v5.actual_seq_len.single.kv_len_other", "v5.interface.single.actual_seq_lengths_type",
               "v3.actual_seq_len.consistency.qs_gt1_kv_len_other_a2",
               "v3.actual_seq_len.consistency.qs_eq1_kv_len_other_a2"),
        enforced_by="CheckActualSeqLenKvDim", when=lambda s: not s.packed and s.B is not None,
        requires=lambda s: _fits_batch(s, s.inputs.actualSeqLengthsKv), limit="1, or B and more",
        breaks=(Break("pair", _kentries("actualSeqLengthsKv", _fewer), {"layout": BATCHED, "batch": "3+"}),
                Break("below", _kentries("actualSeqLengthsKv", lambda s, _: () if s.B else None), {
                    "layout": BATCHED, "storage": "contiguous"})),
        boundaries=(Boundary(_kentries("actualSeqLengthsKv", lambda s, n: n[:1] * s.B if s.B else None),
                             _kentries("actualSeqLengthsKv", _fewer), {**_CONTIGUOUS, "scenario": "gqa", "batch": "3+"},
                             limit="B"),),
    ),
    seq_rule(
        5, "actualSeqLengthsKv has exactly one entry for each batch, by the document", level=Level.SINGLE,
        profiles=V5_DOCUMENTS, basis=Basis.DOCUMENTED, cites=("v5.actual_seq_len.single.kv_len_other",),
        enforced_by="nothing",
        when=lambda s: (not s.packed and s.B is not None and s.inputs.actualSeqLengthsKv is not None
                        and _fits_batch(s, s.inputs.actualSeqLengthsKv)),
        requires=lambda s: s.inputs.actualSeqLengthsKv is not None and len(s.inputs.actualSeqLengthsKv) == s.B,
        limit="B",
        breaks=(Break("below", _kentries("actualSeqLengthsKv", lambda s, n: n[:1]), {
                    **_CONTIGUOUS, "batch": ("2", "3+"), "scenario": "gqa"}),
                Break("above", _kentries("actualSeqLengthsKv", lambda s, n: (*n, 1)), {
                    **_CONTIGUOUS, "batch": ("2", "3+"), "scenario": "gqa"})),
        note="The parameter table of the same document allows 1 and more than B.",
    ),
    seq_rule(
        6, "packed layouts have as many key lengths as query lengths", level=Level.CONSISTENCY,
        profiles=ALL_PROFILES,
        cites=("v5.actual_seq_len.single.kv_len_tnd", "v5.actual_seq_len.cross.q_kv_same_batch_tnd",
               "v3.actual_seq_len.consistency.tnd_length_is_batch",
               "v3.actual_seq_len.consistency.tnd512_kv_per_batch"),
        enforced_by="CheckActualSeqLenKvDim",
        when=lambda s: _packed_given(s) and s.inputs.actualSeqLengthsKv is not None,
        requires=lambda s: s.inputs.actualSeqLengthsKv is not None and len(s.inputs.actualSeqLengthsKv) == s.B,
        breaks=(Break("above", _kentries("actualSeqLengthsKv", lambda _, n: (*n, n[-1])), _PACKED_PLAIN),
                Break("below", _kentries("actualSeqLengthsKv", lambda _, n: n[1:] if len(n) > 1 else None),
                      {**_PACKED_PLAIN, "mask": "none"})),
    ),
    seq_rule(
        11, "cumulative query lengths do not decrease", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.actual_seq_len.single.q_tnd_nondecreasing", "v3.actual_seq_len.consistency.tnd_cumulative"),
        enforced_by="CheckActualSeqLenQData", when=_packed_given, requires=lambda s: rising(query_lengths(s)),
        breaks=(Break("value", _qentries("actualSeqLengths", _drop_step), {**_PACKED_PLAIN, "mask": "none"}),),
        note="Equal neighbours are an empty sequence and allowed.",
    ),
    seq_rule(
        12, "the last cumulative query length is T of query", level=Level.CONSISTENCY, profiles=ALL_PROFILES,
        cites=("v5.actual_seq_len.single.q_tnd_last_is_t", "v3.actual_seq_len.consistency.tnd_last_equals_t"),
        enforced_by="CheckActualSeqLenQTNDLastData", when=lambda s: _packed_given(s) and s.T is not None,
        requires=lambda s: s.inputs.actualSeqLengths is not None and s.inputs.actualSeqLengths[-1] == s.T, limit="T",
        breaks=(Break("above", _qentry("actualSeqLengths", -1, lambda _, n: n + 1), {**_PACKED_PLAIN, "mask": "none"}),
                Break("below", _qentry("actualSeqLengths", -1, lambda s, n: n - 1 if _last_step(s) else None),
                      {**_PACKED_PLAIN, "mask": "none"})),
    ),
    seq_rule(
        13, "query lengths are at most S of query", level=Level.CONSISTENCY, profiles=ALL_PROFILES,
        cites=("v5.actual_seq_len.single.q_other_max", "v3.actual_seq_len.consistency.qs_gt1_q_le_qs_a2"),
        enforced_by="CheckActualSeqLenQData",
        when=lambda s: not s.packed and s.Q_S is not None and s.Q_S >= 0 and _query_counts(s),
        requires=lambda s: s.Q_S is not None and max(query_lengths(s), default=0) <= s.Q_S, limit="Q_S",
        breaks=(Break("above", _qentry("actualSeqLengths", 0, lambda s, _: (s.Q_S or 0) + 1), {"layout": BATCHED}),
                Break("above", _qentry("actualSeqLengths", 0, 1 << 40), {"layout": BATCHED, "post_quant": "none"})),
        boundaries=(Boundary(_qentry("actualSeqLengths", 0, lambda s, _: s.Q_S),
                             _qentry("actualSeqLengths", 0, lambda s, _: (s.Q_S or 0) + 1),
                             {"layout": BATCHED, "scenario": "gqa"}, limit="Q_S"),),
    ),
    seq_rule(
        14, "query lengths are not negative", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.actual_seq_len.single.q_nonneg", "v3.actual_seq_len.single.qs_gt1_q_nonneg"),
        enforced_by="CheckActualSeqLenQData", when=lambda s: _query_counts(s) and not fast_tnd(s),
        requires=lambda s: _no_negative(query_lengths(s)), limit="0",
        breaks=(Break("below", _qentry("actualSeqLengths", 0, -1), {"layout": BATCHED}),
                Break("below", _qentry("actualSeqLengths", 0, lambda s, _: -1 if s.B and s.B > 1 else None),
                      {**_PACKED_PLAIN, "mask": "none"})),
        boundaries=(Boundary(_qentry("actualSeqLengths", 0, 0), _qentry("actualSeqLengths", 0, -1),
                             {"layout": BATCHED, "scenario": "gqa"}, limit="0"),),
    ),
    seq_rule(
        15, "cumulative key lengths do not decrease", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.actual_seq_len.single.kv_tnd_nondecreasing", "v3.actual_seq_len.consistency.tnd_cumulative"),
        enforced_by="CheckActualSeqLenKvData", when=_packed_keys, requires=lambda s: rising(key_lengths(s)),
        breaks=(Break("value", _kentries("actualSeqLengthsKv", _drop_step), {**_PACKED_PLAIN, "mask": "none"}),),
    ),
    seq_rule(
        16, "the last cumulative key length is T of key", level=Level.CONSISTENCY, profiles=ALL_PROFILES,
        cites=("v5.actual_seq_len.single.kv_tnd_last_is_t", "v3.actual_seq_len.consistency.tnd_last_equals_t"),
        enforced_by="CheckActualSeqLenKvTNDLastData", when=lambda s: _packed_keys(s) and s.KV_T is not None,
        requires=lambda s: s.inputs.actualSeqLengthsKv is not None and s.inputs.actualSeqLengthsKv[-1] == s.KV_T,
        limit="T of key",
        breaks=(Break("above", _kentry("actualSeqLengthsKv", -1, lambda _, n: n + 1),
                      {**_PACKED_PLAIN, "mask": "none"}),
                Break("below", _kentry("actualSeqLengthsKv", -1, lambda s, n: n - 1 if _last_key_step(s) else None),
                      {**_PACKED_PLAIN, "mask": "none"})),
    ),
    seq_rule(
        17, "key lengths are at most S of key", level=Level.CONSISTENCY, profiles=ALL_PROFILES,
        cites=("v5.actual_seq_len.single.kv_other_max", "v3.actual_seq_len.consistency.qs_gt1_kv_le_kvs_a2",
               "v3.actual_seq_len.consistency.qs_eq1_kv_le_kvs_a2"),
        enforced_by="CheckActualSeqLenKvData",
        when=lambda s: not s.packed and not s.paged and s.KV_S is not None and s.KV_S >= 0,
        requires=lambda s: s.KV_S is not None and max(key_lengths(s), default=0) <= s.KV_S,
        limit="KV_S, of a tensor list the longest S",
        breaks=(Break("above", _kentry("actualSeqLengthsKv", 0, lambda s, _: (s.KV_S or 0) + 1), _CONTIGUOUS),),
        boundaries=(Boundary(_kentry("actualSeqLengthsKv", 0, lambda s, _: s.KV_S),
                             _kentry("actualSeqLengthsKv", 0, lambda s, _: (s.KV_S or 0) + 1),
                             {**_CONTIGUOUS, "scenario": "gqa"}, limit="KV_S"),),
        note="With a tensor list an item may be shorter than its length. The columns of a paged cache have a rule of "
             "their own.",
    ),
    seq_rule(
        18, "key lengths are not negative", level=Level.SINGLE, profiles=ALL_PROFILES,
        cites=("v5.actual_seq_len.single.kv_nonneg", "v3.actual_seq_len.single.qs_gt1_kv_nonneg",
               "v3.actual_seq_len.single.qs_eq1_kv_nonneg"),
        enforced_by="CheckActualSeqLenKvData", when=lambda s: not fast_tnd(s),
        requires=lambda s: _no_negative(key_lengths(s)), limit="0",
        breaks=(Break("below", _kentry("actualSeqLengthsKv", 0, -1), {"layout": BATCHED, "left_padding": "none"}),
                Break("below", _kentry("actualSeqLengthsKv", 0, lambda s, _: -1 if s.B and s.B > 1 else None),
                      {**_PACKED_PLAIN, "mask": "none"})),
        boundaries=(Boundary(_kentry("actualSeqLengthsKv", 0, 0), _kentry("actualSeqLengthsKv", 0, -1),
                             {**_CONTIGUOUS, "scenario": "gqa"}, limit="0"),),
        note="0 is a batch without keys: its output is 0.",
    ),
    # ---- with other groups ----------------------------------------------------------------------
    seq_rule(
        21, "Decode MLA with full quantisation takes actualSeqLengths with packed layouts only", level=Level.CROSS,
        profiles=ALL_950,
        cites=("v5.actual_seq_len.cross.decode_mla_full_quant_q", "v5.quant.cross.mla_actual_seq_q_tnd_only"),
        enforced_by="CheckFeatureIFAMLA",
        when=lambda s: s.quant_kind == "full" and decode_mla(s) and not s.packed and s.layout is not None,
        requires=lambda s: s.inputs.actualSeqLengths is None,
        breaks=(Break("present", where(lambda s: s.B is not None and s.Q_S is not None and 0 < s.B <= 4096,
                                       lambda s: {"actualSeqLengths": (s.Q_S,) * (s.B or 0)}),
                      {"scenario": "full_decode_mla", "layout": BATCHED, "q_lengths": "absent"}),),
    ),
)
