"""Feasible combinations of factor words, exactly: read off a profile's diagram, not sampled.

A *literal* is one word of one factor, numbered in the order of the plan's steps. Sets of literals, of pairs and of
triples are integers used as bit sets: pair (a, b) with a < b is bit a of ``pairs[b]``, triple (a, b, c) is bit
b * size + a of ``triples[c]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from .diagram import Diagram
from .plan import diagram_of, root_of


@dataclass(frozen=True)
class Literals:
    """The numbered words of all factors."""

    names: tuple[tuple[str, str], ...]
    index: Mapping[tuple[str, str], int] = field(repr=False)

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.names)

    def of(self, words: Mapping[str, str]) -> list[int]:
        """Numbers of a plan's words in ascending order; words that no plan has are left out."""
        found = [self.index.get(item) for item in words.items()]
        return sorted(n for n in found if n is not None)


@dataclass(frozen=True)
class Tuples:
    """Sets of one, two and three literals that stand in one plan together."""

    literals: Literals
    ones: int
    pairs: tuple[int, ...]
    triples: tuple[int, ...]

    def count(self, t: int) -> int:
        """How many sets of ``t`` literals (1, 2 or 3)."""
        if t == 1:
            return self.ones.bit_count()
        return sum(bits.bit_count() for bits in (self.pairs if t == 2 else self.triples))


@cache
def literals_of(profile: str) -> Literals:
    """The numbered words of a profile. Infeasible when it has no plan, ValueError when unknown."""
    root_of(profile)
    diagram = diagram_of(profile)
    names = tuple((factor, word) for factor, nodes in zip(diagram.factors, diagram.levels)
                  for word in dict.fromkeys(w for node in nodes for w in node.options))
    return Literals(names, {name: i for i, name in enumerate(names)})


@cache
def feasible_tuples(profile: str) -> Tuples:
    """All feasible words, pairs and triples of a profile. Infeasible when it has no plan, ValueError when unknown."""
    literals = literals_of(profile)
    return tuples_of(diagram_of(profile), literals)


def tuples_of(diagram: Diagram, literals: Literals) -> Tuples:
    """All words, pairs and triples of words that some plan of a diagram has."""
    size = literals.size
    ones, pairs, triples = 0, [0] * size, [0] * size
    # What some path to a node has: literals, and pairs of them.
    above: dict[int, int] = {}
    pairs_above: dict[int, int] = {}
    for factor, nodes in zip(diagram.factors, diagram.levels):
        for node in nodes:
            seen, seen_pairs = above.get(id(node), 0), pairs_above.get(id(node), 0)
            for word, behind in zip(node.options, node.next):
                number = literals.index[factor, word]
                ones |= 1 << number
                pairs[number] |= seen
                triples[number] |= seen_pairs
                key = id(behind)
                above[key] = above.get(key, 0) | seen | 1 << number
                pairs_above[key] = pairs_above.get(key, 0) | seen_pairs | seen << (number * size)
    return Tuples(literals, ones, tuple(pairs), tuple(triples))
