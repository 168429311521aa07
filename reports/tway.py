"""t-way coverage: which words, pairs and triples of scene factors a suite has met, out of those that are feasible.

A combination is feasible when the generator has a plan with it for a valid call of the profile; these are counted
exactly from the diagram of all plans (strategies.tuples), not sampled. Any suite can be measured: generated cases,
imported ones, corpora.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.case import Case
from fiafuzz.model.factors import factors_of
from fiafuzz.model.scene import Scene
from strategies.tuples import Literals, Tuples, feasible_tuples


@dataclass(frozen=True)
class Share:
    """Coverage of combinations of ``t`` factor words: ``covered`` of ``feasible``; ``outside`` were met although no
    valid call of the profile has them (invalid or disputed calls)."""

    t: int
    covered: int
    feasible: int
    outside: int

    @property
    def ratio(self) -> float:
        """Covered part of the feasible combinations, 0 .. 1."""
        return self.covered / self.feasible if self.feasible else 0.0


class Coverage:
    """Counts 1-, 2- and 3-way coverage of a profile while cases are added.

    ``unknown`` counts factor words that no valid call of the profile has. Infeasible when the profile has no valid
    call, ValueError when it is unknown.
    """

    def __init__(self, profile: str) -> None:
        self.profile = profile
        self.cases = 0
        self.unknown = 0
        self._feasible: Tuples = feasible_tuples(profile)
        size = self._feasible.literals.size
        self._ones = 0
        self._pairs = [0] * size
        self._triples = [0] * size

    @property
    def literals(self) -> Literals:
        """The numbered words of the profile."""
        return self._feasible.literals

    def feasible_pairs(self) -> NDArray[np.bool_]:
        """Which pairs of literals a valid call can have: [a, b] for a < b."""
        found = np.zeros((self.literals.size, self.literals.size), np.bool_)
        for second, bits in enumerate(self._feasible.pairs):
            while bits:
                low = bits & -bits
                found[low.bit_length() - 1, second] = True
                bits ^= low
        return found

    def add(self, words: Mapping[str, str]) -> None:
        """Count one case by its factor words (``factors_of``, or the words of a plan)."""
        numbers = self.literals.of(words)
        self.add_numbers(numbers, len(words) - len(numbers))

    def add_numbers(self, numbers: Iterable[int], unknown: int = 0) -> None:
        """Count one case by the numbers of its words, in ascending order; ``unknown`` of its words have none."""
        self.cases += 1
        self.unknown += unknown
        size, seen, pairs = self.literals.size, 0, 0
        for number in numbers:
            self._pairs[number] |= seen
            self._triples[number] |= pairs
            pairs |= seen << (number * size)
            seen |= 1 << number
        self._ones |= seen

    def add_case(self, case: Case) -> None:
        """Count one case."""
        self.add(factors_of(Scene(case)))

    def share(self, t: int) -> Share:
        """Coverage of combinations of ``t`` words. ValueError unless ``t`` is 1, 2 or 3."""
        if t not in (1, 2, 3):
            raise ValueError(f"coverage counts 1-, 2- and 3-way combinations, not {t}-way")
        feasible = self._feasible
        if t == 1:
            sets = [(self._ones, feasible.ones)]
        elif t == 2:
            sets = list(zip(self._pairs, feasible.pairs))
        else:
            sets = list(zip(self._triples, feasible.triples))
        covered = sum((met & possible).bit_count() for met, possible in sets)
        met_all = sum(met.bit_count() for met, _ in sets)
        return Share(t, covered, feasible.count(t), met_all - covered)

    def shares(self) -> tuple[Share, Share, Share]:
        """1-, 2- and 3-way coverage."""
        return (self.share(1), self.share(2), self.share(3))

    def missing_pairs(self, limit: int = 20) -> list[tuple[tuple[str, str], tuple[str, str]]]:
        """Feasible pairs of (factor, word) that were not met, up to a number."""
        found: list[tuple[tuple[str, str], tuple[str, str]]] = []
        names = self._feasible.literals.names
        for second, (met, possible) in enumerate(zip(self._pairs, self._feasible.pairs)):
            left = possible & ~met
            while left and len(found) < limit:
                first = (left & -left).bit_length() - 1
                found.append((names[first], names[second]))
                left &= left - 1
        return found


def measure(profile: str, suite: Iterable[Mapping[str, str]]) -> Coverage:
    """Coverage of a suite given as factor words of its cases."""
    found = Coverage(profile)
    for words in suite:
        found.add(words)
    return found
