"""Lengths of every batch as the operator takes them (spec/numerics.md 3), checked so far that they can be used."""

from __future__ import annotations

from fiafuzz.model.scene import Scene

from .expected import ReferenceError

PLAIN_LAYOUTS: frozenset[str] = frozenset({"BSH", "BSND", "BNSD"})


def legacy_decode(scene: Scene) -> bool:
    """Whether A2 and A3 take their old single-token path: one query row, BSH, BSND or BNSD, no rope, equal head sizes.

    That path ignores actualSeqLengths, queryPaddingSize, sparseMode and both tokens
    (v5.actual_seq_len.cross.legacy_decode_q_ignored_a2, v5.sparse_semantics.cross.legacy_decode_ignores).
    """
    return not scene.is_950 and scene.single_token and scene.layout_name in PLAIN_LAYOUTS and not scene.rope_on and scene.Q_D == scene.V_D


def query_lengths(scene: Scene, legacy: bool) -> tuple[int, ...]:
    """Query rows of each batch. ReferenceError when they do not fit the tensor.

    One query row per batch outside the packed layouts is always taken where the list has no effect: the old path of
    A2 and A3, and antiquant (v5.actual_seq_len.cross.antiquant_decode_q_ignored).
    """
    B = scene.B
    if B is None or B < 0:
        raise ReferenceError(f"batch size unknown: {scene.why.get('B', 'negative')}")
    if not scene.packed and scene.single_token and (legacy or scene.quant_kind == "antiquant"):
        return (1,) * B
    lens = scene.q_lens
    if lens is None:
        raise ReferenceError(f"query lengths unknown: {scene.why.get('q_lens', '')}")
    if scene.packed:
        total = scene.T
        if min(lens, default=0) < 0 or total is None or sum(lens) > total:
            raise ReferenceError("actualSeqLengths decrease or end behind the T axis of query")
        return lens
    rows = scene.Q_S
    if rows is None or (lens and not 0 <= min(lens) <= max(lens) <= rows):
        raise ReferenceError(f"actualSeqLengths are not all in 0 .. {rows}")
    return lens


def key_lengths(scene: Scene) -> tuple[int, ...]:
    """Key columns of each batch without a shared prefix. ReferenceError when they do not fit the storage."""
    lens, B = scene.kv_lens, scene.B
    if lens is None or B is None:
        raise ReferenceError(f"key lengths unknown: {scene.why.get('kv_lens', '')}")
    if len(lens) < B:
        raise ReferenceError(f"{len(lens)} key lengths for {B} batches")
    lens = lens[:B]
    if scene.paged or not scene.packed:
        room = scene.table_span if scene.paged else scene.KV_S
        if room is None or (lens and not 0 <= min(lens) <= max(lens) <= room):
            raise ReferenceError(f"actualSeqLengthsKv are not all in 0 .. {room}")
    elif min(lens, default=0) < 0 or scene.KV_T is None or sum(lens) > scene.KV_T:
        raise ReferenceError("actualSeqLengthsKv decrease or end behind the T axis of key")
    return lens
