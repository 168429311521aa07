"""Planted faults of the room actual_seq_len: length lists, padding rows, packed offsets."""

from __future__ import annotations

from typing import Any

from .record import BY_SOURCE, MANY, PACKED, PAGED, UNEQUAL, Fault


def _per_batch(k: Any) -> list[Any]:
    """Split merged spans, so that each batch can be altered by itself."""
    from dataclasses import replace

    p = k.p
    p.spans = [replace(s, first=s.first + i, count=1) for s in p.spans for i in range(s.count)]
    return list(p.spans)


def _room(k: Any, span: Any) -> int:
    """Key positions that a batch has behind its first."""
    p = k.p
    if p.packed and p.storage != "paged":
        return int(span.kv_len)
    if p.storage == "tensor_list":
        return int(k.x.key.items[span.first].shape[2])
    if p.storage == "paged":
        # The rest of the last block: what lies behind it need not have a block.
        return int(-(-span.kv_len // p.block_size) * p.block_size)
    return int(p.kv_size - span.kv_at)


def _one_key_more(correct: Any, k: Any) -> None:
    for span in _per_batch(k):
        if 0 < span.kv_len < _room(k, span) and k.x.mask is None:
            span.kv_len += 1


def _last_packed_key(correct: Any, k: Any) -> None:
    for span in _per_batch(k):
        if k.p.packed and span.kv_len > 1:
            span.kv_len -= 1


def _padding_rows(correct: Any, k: Any) -> None:
    for span in _per_batch(k):
        if not k.p.packed and span.q_row == 0 and k.x.mask is None and k.x.pse is None:
            span.q_len = k.p.q_size


def _nothing_behind_zero(correct: Any, k: Any) -> None:
    seen = False
    for span in _per_batch(k):
        seen = seen or span.kv_len == 0
        if seen:
            span.kv_len = 0


def _cumulative_when_paged(correct: Any, k: Any) -> None:
    if k.p.packed and k.p.storage == "paged":
        before = 0
        for span in _per_batch(k):
            before, span.kv_len = span.kv_len, max(0, span.kv_len - before)


def _one_for_the_first(correct: Any, k: Any) -> None:
    given = k.p.scene.inputs.actualSeqLengthsKv
    if given is not None and len(given) == 1 and not k.p.packed and k.p.storage == "contiguous" and k.x.mask is None:
        for span in _per_batch(k)[1:]:
            span.kv_len = k.p.kv_size - span.kv_at


def _query_offsets_for_keys(correct: Any, k: Any) -> None:
    p = k.p
    if p.packed and p.storage != "paged":
        for span in p.spans:
            span.kv_at = min(span.q_at, p.kv_size - span.kv_len)


def _last_entries(correct: Any, k: Any) -> None:
    given = k.p.scene.inputs.actualSeqLengthsKv
    if given is not None and len(given) > k.p.B and not k.p.packed and k.x.mask is None:
        for span, length in zip(_per_batch(k), given[-k.p.B :]):
            span.kv_len = min(length, _room(k, span))


def _nothing(correct: Any, k: Any) -> None:
    return None


FAULTS: tuple[Fault, ...] = (
    Fault(
        "one-key-more",
        "one key behind the actual length is read",
        "actual_seq_len",
        {"prepare": _one_key_more},
        {"kv_lengths": ("per_batch", "one", "longer", "zero")},
        ("a length below its axis, and not full to the block",),
    ),
    Fault(
        "last-packed-key",
        "the last key of each packed sequence is left out",
        "actual_seq_len",
        {"prepare": _last_packed_key},
        {"layout": PACKED},
        ("a sequence of more than one key",),
    ),
    Fault(
        "padding-rows-computed",
        "rows behind the actual query length are computed instead of zeroed",
        "actual_seq_len",
        {"prepare": _padding_rows},
        {"q_lengths": ("per_batch", "one", "longer", "zero")},
        ("a query length below Q_S",),
    ),
    Fault(
        "stale-rows",
        "rows behind the actual query length keep what the buffer held",
        "actual_seq_len",
        {"blank": _nothing},
        {"q_lengths": ("per_batch", "one", "longer", "zero")},
        ("a query length below Q_S",),
        expect="F104",
    ),
    Fault(
        "nothing-behind-zero",
        "batches behind one without keys count as empty too",
        "actual_seq_len",
        {"prepare": _nothing_behind_zero},
        {"kv_lengths": "zero", "batch": MANY},
        ("a zero length before another",),
    ),
    Fault(
        "paged-lengths-cumulative",
        "key lengths of a packed call with a block table are taken as cumulative",
        "actual_seq_len",
        {"prepare": _cumulative_when_paged},
        {"layout": PACKED, "storage": PAGED, "batch": MANY},
    ),
    Fault(
        "one-length-for-the-first",
        "a list of one length holds for the first batch only",
        "actual_seq_len",
        {"prepare": _one_for_the_first},
        {"kv_lengths": "one", "batch": MANY},
        ("a length below KV_S",),
        profile=BY_SOURCE,
    ),
    Fault(
        "query-offsets-for-keys",
        "packed keys are found with the offsets of the queries",
        "actual_seq_len",
        {"prepare": _query_offsets_for_keys},
        {"layout": PACKED, "storage": "contiguous", "batch": MANY, "length_relation": UNEQUAL},
    ),
    Fault(
        "last-entries-of-longer-list",
        "of a list longer than B the last B entries are used",
        "actual_seq_len",
        {"prepare": _last_entries},
        {"kv_lengths": "longer"},
        ("entries that differ",),
        profile=BY_SOURCE,
    ),
)
