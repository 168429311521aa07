"""t-way coverage of a run as a curve over its cases, and the feasible pairs that it met least."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .tway import Coverage

STEPS = (10, 13, 18, 24, 32, 42, 56, 75)
"""Points of the curve in each decade of cases."""
BLOCK = 2048


@dataclass(frozen=True)
class Point:
    """Coverage after that many cases: covered parts of 1-, 2- and 3-way combinations, 0 .. 1."""

    cases: int
    ratios: tuple[float, float, float]


@dataclass(frozen=True)
class RarePair:
    """A feasible pair of factor words and how many cases had it."""

    first: tuple[str, str]
    second: tuple[str, str]
    cases: int


class PairCurve:
    """Counts a profile's combinations while cases are added. Infeasible when the profile has no valid call."""

    def __init__(self, profile: str) -> None:
        self.coverage = Coverage(profile)
        self.points: list[Point] = []
        literals = self.coverage.literals
        self._size = literals.size
        self._pairs: NDArray[np.int64] = np.zeros((self._size, self._size), np.int64)
        self._block: list[list[int]] = []
        self._next = 1

    def add(self, names: tuple[str, ...], factors: str) -> None:
        """Count one case by the words of its factors, joined by "|"."""
        words = factors.split("|")
        index = self.coverage.literals.index
        numbers = sorted([index[item] for item in zip(names, words) if item in index])
        self.coverage.add_numbers(numbers, len(words) - len(numbers))
        self._block.append(numbers)
        if len(self._block) == BLOCK:
            self._flush()
        if self.coverage.cases >= self._next:
            self._mark()
            self._next = _following(self.coverage.cases)

    def _mark(self) -> None:
        one, two, three = (s.ratio for s in self.coverage.shares())
        self.points.append(Point(self.coverage.cases, (one, two, three)))

    def _flush(self) -> None:
        """Count the pairs of the block. Rows are filled up with a number that no word has."""
        if not self._block:
            return
        width, edge = max(map(len, self._block)), self._size + 1
        rows = np.array([row + [self._size] * (width - len(row)) for row in self._block], dtype=np.int64)
        places = (rows[:, :, None] * edge + rows[:, None, :]).reshape(-1)
        counts = np.bincount(places, minlength=edge * edge).reshape(edge, edge)
        self._pairs += counts[: self._size, : self._size]
        self._block.clear()

    def finish(self) -> None:
        """Close the curve with a point at the last case."""
        self._flush()
        if self.coverage.cases and (not self.points or self.points[-1].cases != self.coverage.cases):
            self._mark()

    def rarest(self, limit: int) -> tuple[list[RarePair], int]:
        """The feasible pairs with the fewest cases, up to a number, and how many feasible pairs were not met at all."""
        possible = self.coverage.feasible_pairs()
        counts = self._pairs[possible]
        first, second = np.nonzero(possible)
        names = self.coverage.literals.names
        order = np.argsort(counts, kind="stable")[:limit]
        pairs = [RarePair(names[first[i]], names[second[i]], int(counts[i])) for i in order]
        return pairs, int(np.count_nonzero(counts == 0))


def _following(cases: int) -> int:
    """The number of cases at which the next point of the curve stands."""
    scale = 1
    while True:
        for step in STEPS:
            at = -(-step * scale // 10)
            if at > cases:
                return at
        scale *= 10

