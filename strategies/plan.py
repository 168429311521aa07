"""Plans: a word for every scene factor, chosen so that a valid call with exactly these words exists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Optional, Union

import msgspec

from fiafuzz.model.factors import FACTORS

from . import (
    actual_seq_len,
    attention_mask,
    common,
    inner_precise,
    learnable_sink,
    left_padding,
    paged_attention,
    post_quant,
    pse,
    quant,
    shared_prefix,
    softmax_lse,
)
from .diagram import Diagram, Node, Step, narrowed
from .ground import ground_of
from .source import Source

Needs = Mapping[str, Union[str, tuple[str, ...]]]
"""Factor -> the word, or the words, that it may have."""

STEPS: tuple[Step, ...] = (
    common.scenario, common.layout, common.packed, common.storage, common.paged, common.feature_layout,
    common.q_s, common.single, common.form, common.store, common.empty, common.batch, common.batches,
    shared_prefix.prefix,
    actual_seq_len.q_lengths, actual_seq_len.kv_lengths, actual_seq_len.length_relation,
    actual_seq_len.q_given, actual_seq_len.kv_given, actual_seq_len.hollow, actual_seq_len.over,
    actual_seq_len.shorter, actual_seq_len.aligned,
    left_padding.left_padding, pse.pse_menu, softmax_lse.lse_menu, common.group_menu,
    post_quant.rows_certain,
    quant.q_dtype, learnable_sink.sink_menu, inner_precise.precise_menu,
    quant.kv_dtype, attention_mask.sparse_menu, attention_mask.mask_menu, paged_attention.block_menu,
    quant.antiquant, post_quant.out_dtype, common.size_menu, post_quant.post_menu, quant.antiquant_offset,
    post_quant.post_quant, common.group, common.head_size, paged_attention.block_size,
    learnable_sink.sink, inner_precise.inner_precise, pse.pse, softmax_lse.lse,
    attention_mask.sparse_mode, attention_mask.mask, attention_mask.mask_shape,
)
"""The order of choices; the menus stand as early as they can, so that little has to be remembered."""


class Infeasible(ValueError):
    """No valid call of a profile has the wanted words; the text says which."""


class Plan(msgspec.Struct, frozen=True):
    """A word for every factor."""

    words: dict[str, str]


@cache
def diagram_of(profile: str, wide: bool = False) -> Diagram:
    """The diagram of a profile's plans; ``wide`` adds words that only one of document and source accepts."""
    return Diagram(STEPS, {"ground": ground_of(profile, wide)})


def _wanted(profile: str, needs: Needs) -> dict[str, frozenset[str]]:
    wanted = {}
    for factor, words in needs.items():
        if factor not in FACTORS:
            raise Infeasible(f"{profile}: no factor {factor!r}; known: {', '.join(FACTORS)}")
        wanted[factor] = frozenset((words,) if isinstance(words, str) else words)
    return wanted


@lru_cache(maxsize=1024)
def _narrowed(profile: str, wide: bool, needs: tuple[tuple[str, frozenset[str]], ...]) -> Optional[Node]:
    return narrowed(diagram_of(profile, wide), dict(needs))


def root_of(profile: str, needs: Optional[Needs] = None) -> Node:
    """Where the plans of a profile with certain words begin.

    Words that stand on disputed ground are reached only when no undisputed plan has what is needed.
    Infeasible when there is no such plan, ValueError for an unknown profile.
    """
    if ground_of(profile).profile.name == "950-v3":
        raise Infeasible("950-v3: V3 on Ascend 950 answers 361001 to everything; no call is valid")
    if not needs:
        whole = diagram_of(profile).root
        assert whole is not None, f"{profile} has no plan"
        return whole
    wanted = _wanted(profile, needs)
    key = tuple(sorted(wanted.items()))
    found = _narrowed(profile, False, key) or _narrowed(profile, True, key)
    if found is None:
        raise Infeasible(f"{profile}: no valid call has {_conflict(profile, wanted)}")
    return found


@cache
def disputed_words(profile: str) -> tuple[tuple[str, str], ...]:
    """Words (factor, word) that valid calls of a profile have on disputed ground alone, in the order of the steps.

    Infeasible when it has no valid call, ValueError for an unknown profile.
    """
    root_of(profile)
    narrow, wide = (_all_words(diagram_of(profile, w)) for w in (False, True))
    return tuple(word for word in wide if word not in narrow)


def _all_words(diagram: Diagram) -> dict[tuple[str, str], None]:
    pairs = zip(diagram.factors, diagram.levels)
    return {(factor, word): None for factor, nodes in pairs for node in nodes for word in node.options}


def _conflict(profile: str, wanted: Mapping[str, frozenset[str]]) -> str:
    """The smallest part of the wanted words that no plan has: a single factor, a pair, or everything."""
    def name(keys: Iterable[str]) -> str:
        return " and ".join(f"{k} {' or '.join(sorted(wanted[k]))}" for k in keys)

    keys = sorted(wanted)
    candidates = [(k,) for k in keys] + [(a, b) for i, a in enumerate(keys) for b in keys[i + 1:]]
    for part in candidates:
        if _narrowed(profile, True, tuple((k, wanted[k]) for k in part)) is None:
            return name(part)
    return name(keys)


def plan(source: Source, profile: str, needs: Optional[Needs] = None) -> Plan:
    """A plan of a profile whose words are among the needed ones, chosen by the source.

    Infeasible when there is none (its text says which words do not go together).
    """
    return walk(source, root_of(profile, needs))


def walk(source: Source, node: Node) -> Plan:
    """The plan that the source chooses from a node on (the root of a diagram)."""
    return Plan(dict(zip(_FACTORS, source.path(node))))


_FACTORS: tuple[str, ...] = tuple(step.name for step in STEPS if step.chooses)
