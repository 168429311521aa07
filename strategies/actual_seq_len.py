"""Lengths: which lists are given, how query and key lengths relate, and the numbers."""

from __future__ import annotations

from itertools import accumulate

from . import lengths
from .diagram import Words, choice, derived
from .draft import Draft
from .ground import Ground
from .sizes import query_tokens


@choice
def q_lengths(ground: Ground, scenario: str, packed: bool, q_s: str, batches: str, empty: str) -> Words:
    if batches == "0":
        return ("absent",)
    if packed:
        if q_s == "0":
            return ("zero",)
        several = batches != "1" and not (scenario == "mla_decode" and ground.v3_document)
        return {"per_batch": 6, "zero": 2} if several else ("per_batch",)
    if scenario == "full_decode_mla":
        # Only packed tokens may have query lengths there.
        return ("absent",)
    if q_s == "0" or empty == "kv":
        return ("absent",)
    if not ground.is_950:
        if scenario == "mla_decode" and ground.v3_document:
            # V3 document: several tokens with rope take lengths only when packed.
            return ("absent",)
        if q_s == "1":
            # Ignored with one query token outside rope: only values that change nothing.
            words = {"absent": 8, "per_batch": 2}
            return words | ({"one": 1} if batches != "1" else {})
    words = {"absent": 6, "per_batch": 6, "zero": 3, "longer": 2}
    return words | ({"one": 2} if batches != "1" else {})


@choice
def kv_lengths(ground: Ground, packed: bool, paged: bool, batches: str, empty: str, prefix: str, q_s: str) -> Words:
    if batches == "0":
        return ("absent",)
    if empty == "kv":
        return ("zero",) if packed else ("absent",)
    if q_s == "0" and not packed:
        return ("absent",)
    # Batches without keys behind a prefix: the published references and the kernels differ (corrections 1).
    zero = {"zero": 2} if prefix == "none" else {}
    if packed:
        if not paged and batches == "1":
            # All tokens gone would be an empty tensor.
            zero = {}
        return {"per_batch": 6, **zero}
    words = {} if paged else {"absent": 5}
    words |= {"per_batch": 7, **zero}
    if ground.one_or_more_lengths:
        words |= {"longer": 1}
        if batches != "1":
            words |= {"one": 2}
    return words


@choice
def length_relation(scenario: str, packed: bool, store: str, q_s: str, batches: str, empty: str, prefix: str,
                    q_lengths: str, kv_lengths: str) -> Words:
    if batches == "0":
        return ("other",)
    if empty == "kv":
        return ("q_longer",)
    if q_s == "0":
        return {"q_shorter": 3, "equal": 1} if kv_lengths == "zero" and packed and batches != "1" else ("q_shorter",)
    several = batches != "1"
    q_zero, kv_zero = q_lengths == "zero", kv_lengths == "zero"
    same_axis = store != "tensor_list" or scenario == "mla_prefill_split"
    one_kv = kv_lengths == "one" or (kv_lengths == "absent" and same_axis)
    one_q = q_lengths in ("absent", "one")
    spread = several and not (one_q and one_kv)
    # More query tokens than keys need two tokens (and two more behind a prefix of at least one column).
    long_q = q_s != "1"
    if q_zero and kv_zero:
        if not several:
            return ("equal",)
        # Packed batches of at most one token: with two of them no key would be left, and that is an empty tensor.
        gone = packed and store == "contiguous" and not long_q
        return ("equal", "q_shorter", "mixed") if gone else ("equal", "q_shorter", "q_longer", "mixed")
    if q_zero:
        return {"q_shorter": 3, "mixed": 2} if several and long_q else ("q_shorter",)
    if kv_zero:
        return {"q_longer": 2, "mixed": 3} if several else ("q_longer",)
    words = {"q_shorter": 8}
    if prefix == "none" or long_q:
        words |= {"equal": 2}
    if long_q:
        words |= {"q_longer": 3}
        if spread:
            words |= {"mixed": 3}
    return words


@derived
def q_given(q_lengths: str) -> bool:
    return q_lengths != "absent"


@derived
def kv_given(kv_lengths: str) -> bool:
    return kv_lengths != "absent"


@derived
def hollow(q_lengths: str, kv_lengths: str) -> bool:
    """Whether some batch has no query tokens or no keys."""
    return "zero" in (q_lengths, kv_lengths)


@derived
def shorter(ground: Ground, length_relation: str) -> bool:
    """On A2 and A3, where checks ask for it: whether no batch has more query tokens than keys."""
    return not ground.is_950 and length_relation == "q_shorter"


@derived
def aligned(ground: Ground, length_relation: str) -> bool:
    """On disputed ground, where alibi asks for it: whether every batch has as many query tokens as keys."""
    return ground.wide and length_relation == "equal"


@derived
def over(length_relation: str) -> bool:
    """Whether some batch has more query tokens than keys, so that a right-bottom diagonal leaves rows without keys."""
    return length_relation in ("q_longer", "mixed")


# ---- building ---------------------------------------------------------------------------------


def axes(d: Draft) -> None:
    """Decide lengths and the sequence axes that hold them."""
    d.Q_S = query_tokens(d)
    lengths.decide(d)
    source, words = d.source, d.words
    longest = max(d.kv_lens, default=0)
    if d.packed:
        d.T, d.KV_T, d.KV_S = sum(d.q_lens), sum(d.kv_lens), longest
    elif d.storage == "tensor_list":
        _list_items(d)
        d.KV_S = max(d.item_s)
    elif words["kv_lengths"] == "absent":
        d.KV_S = longest if d.kv_lens or words["empty"] == "kv" else source.integer(1, 9)
    else:
        slack = source.integer(0, 9) if source.chance(45) else 0
        d.KV_S = max(1, longest + slack)
    if d.packed and d.paged:
        d.KV_T = 0


def _list_items(d: Draft) -> None:
    exact = d.words["kv_lengths"] == "absent"
    slack = [0 if exact else d.source.integer(0, 6) for _ in d.kv_lens]
    d.item_s = [max(1, n + extra) for n, extra in zip(d.kv_lens, slack)]
    if d.scenario == "mla_prefill_split":
        # keyRope is one tensor for the whole list: all items have its S.
        d.item_s = [max(d.item_s)] * len(d.item_s)


def lists(d: Draft) -> None:
    """Put the two length lists into the call."""
    q_word, kv_word = d.words["q_lengths"], d.words["kv_lengths"]
    if q_word != "absent":
        d.inputs["actualSeqLengths"] = _cumulative(d.q_lens) if d.packed else _listed(d, q_word, d.q_lens, d.Q_S, True)
    if kv_word != "absent":
        if d.packed:
            d.inputs["actualSeqLengthsKv"] = tuple(d.kv_lens) if d.paged else _cumulative(d.kv_lens)
        else:
            free = d.ground.one_or_more_lengths
            d.inputs["actualSeqLengthsKv"] = _listed(d, kv_word, d.kv_lens, max(d.kv_lens, default=0), free)


def _cumulative(lens: list[int]) -> tuple[int, ...]:
    return tuple(accumulate(lens))


def _listed(d: Draft, word: str, lens: list[int], most: int, free: bool) -> tuple[int, ...]:
    """A list of one entry, one a batch, or more (the surplus is not read)."""
    if word == "one":
        return (lens[0],)
    if word == "zero" and free and not any(lens) and d.source.chance(30):
        return (0,)
    if word == "longer" or (word == "zero" and free and d.source.chance(15)):
        return (*lens, *[d.source.integer(0, most) for _ in range(d.source.integer(1, 3))])
    return tuple(lens)
