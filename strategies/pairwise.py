"""Pairwise: few plans that contain every feasible pair of factor words of a profile.

Greedy: each row starts from a pair that is still missing and takes, step by step, the word that adds most missing
pairs; only feasible words are on offer, so every row is a plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import count

from .diagram import Diagram, Node
from .plan import Plan, diagram_of, root_of
from .source import SeededSource
from .tuples import Literals, Tuples, feasible_tuples

_TRIES = 6
"""Rows tried for each that is kept: the one with most new pairs wins."""


@lru_cache(maxsize=64)
def pairwise_plans(profile: str, seed: int = 0) -> tuple[Plan, ...]:
    """Plans that contain every feasible pair of words of a profile; the same for the same seed.

    Rows with most new pairs come first. Infeasible when the profile has no valid call, ValueError when it is unknown.
    """
    return tuple(pairwise_rows(profile, seed))


@lru_cache(maxsize=64)
def pairwise_rows(profile: str, seed: int = 0) -> Iterable[Plan]:
    """The plans of ``pairwise_plans``, each searched for when it is asked for: the first takes a hundredth of the time of all."""
    return _Rows(_Cover(profile, feasible_tuples(profile), SeededSource(f"pairwise/{profile}/{seed}")).rows())


class _Rows:
    """Rows that are searched for once and kept for whoever asks next."""

    def __init__(self, search: Iterator[Plan]) -> None:
        self.search = search
        self.found: list[Plan] = []

    def __iter__(self) -> Iterator[Plan]:
        for n in count():
            if n == len(self.found):
                row = next(self.search, None)
                if row is None:
                    return
                self.found.append(row)
            yield self.found[n]


class _Cover:
    """The search for rows; ``missing[n]`` are the literals that still have to meet literal n."""

    def __init__(self, profile: str, tuples: Tuples, source: SeededSource) -> None:
        self.root = root_of(profile)
        self.edges = _numbered_edges(diagram_of(profile), tuples.literals)
        self.factors = tuple(dict.fromkeys(factor for factor, _ in tuples.literals.names))
        self.source = source
        self.literals = tuples.literals
        self.missing = list(tuples.pairs)
        for b, bits in enumerate(tuples.pairs):
            while bits:
                low = bits & -bits
                self.missing[low.bit_length() - 1] |= 1 << b
                bits ^= low
        self.factor_of = [factor for factor, _ in tuples.literals.names]

    def rows(self) -> Iterator[Plan]:
        """All rows, one by one."""
        while any(self.missing):
            best: list[int] = []
            most = -1
            for _ in range(_TRIES):
                row = self._row()
                gain = self._gain(row)
                if gain > most:
                    best, most = row, gain
            self._take(best)
            yield Plan(dict(self.literals.names[n] for n in best))

    def _gain(self, row: list[int]) -> int:
        bits = sum(1 << n for n in row)
        return sum((self.missing[n] & bits).bit_count() for n in row)

    def _take(self, row: list[int]) -> None:
        keep = ~sum(1 << n for n in row)
        for n in row:
            self.missing[n] &= keep

    def _row(self) -> list[int]:
        """One row that contains at least one missing pair."""
        first = self._heavy([n for n, bits in enumerate(self.missing) if bits])
        partners = self.missing[first]
        second = self._heavy([n for n in range(self.literals.size) if partners >> n & 1])
        forced = {self.factor_of[n]: n for n in (first, second)}
        alive = _Alive(self, forced)
        chosen, bits = [], (1 << first) | (1 << second)
        node = self.root
        while node.options:
            options = [(n, behind) for n, behind in self.edges[id(node)]
                       if forced.get(self.factor_of[n], n) == n and alive(behind)]
            if len(options) > 1:
                ranked = [(self.missing[n] & bits).bit_count() * 4 + self.missing[n].bit_count() for n, _ in options]
                top = max(ranked)
                number, node = options[self.source.choice([i for i, rank in enumerate(ranked) if rank == top])]
            else:
                number, node = options[0]
            chosen.append(number)
            bits |= 1 << number
        return chosen

    def _heavy(self, numbers: list[int]) -> int:
        """One of some literals, those with many missing pairs more likely."""
        pick = self.source.choice(numbers)
        other = self.source.choice(numbers)
        return pick if self.missing[pick].bit_count() >= self.missing[other].bit_count() else other


def _numbered_edges(diagram: Diagram, literals: Literals) -> dict[int, list[tuple[int, Node]]]:
    """Literal and next node of every option, by the identity of the node."""
    return {id(node): [(literals.index[factor, word], behind) for word, behind in zip(node.options, node.next)]
            for factor, nodes in zip(diagram.factors, diagram.levels) for node in nodes}


class _Alive:
    """Whether a plan with certain literals passes through a node."""

    def __init__(self, cover: _Cover, forced: dict[str, int]) -> None:
        self._edges = cover.edges
        self._wanted = [forced.get(factor) for factor in cover.factors]
        self._last = max(i for i, n in enumerate(self._wanted) if n is not None)
        self._known: dict[int, bool] = {}

    def __call__(self, node: Node) -> bool:
        if node.level > self._last:
            return True
        found = self._known.get(id(node))
        if found is None:
            wanted = self._wanted[node.level]
            found = False
            for n, behind in self._edges[id(node)]:
                if (wanted is None or wanted == n) and self(behind):
                    found = True
                    break
            self._known[id(node)] = found
        return found
