"""Where the generators' choices come from: Hypothesis draws, or a fast seeded generator; they do not know which.

Every method puts the plainest outcome first, so that Hypothesis shrinks to it.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Weighted(Protocol):
    """Options with running totals of their weights; ``options[0]`` is the plainest."""

    @property
    def options(self) -> Sequence[Any]:
        """The options."""

    @property
    def totals(self) -> Sequence[int]:
        """Running totals."""


class Source(Protocol):
    """A stream of choices."""

    def integer(self, low: int, high: int) -> int:
        """An integer in [low, high], equally likely; ``low`` is the plainest."""

    def choice(self, options: Sequence[T]) -> T:
        """One of some options, equally likely; the first is the plainest."""

    def pick(self, table: Weighted) -> int:
        """The index of one of a table's options, by weight; 0 is the plainest."""

    def path(self, node: Any) -> list[str]:
        """The words of a path from a diagram's node to its end."""

    def chance(self, percent: int) -> bool:
        """True in ``percent`` of 100 cases; False is the plainest."""

    def order(self, count: int) -> list[int]:
        """The numbers 0 .. count - 1 in some order; the natural order is the plainest."""

    def seed(self) -> int:
        """A seed for the fills of a case, in [0, 2**32); 0 is the plainest."""


class Table:
    """Weighted options, prepared once: ``source.pick(table)`` gives an index into ``options``."""

    __slots__ = ("options", "totals")

    def __init__(self, *weighted: tuple[Any, int]) -> None:
        self.options: tuple[Any, ...] = tuple(option for option, _ in weighted)
        self.totals: tuple[int, ...] = tuple(accumulate(weight for _, weight in weighted))

    def of(self, source: Source) -> Any:
        """One of the options."""
        return self.options[source.pick(self)]


class SeededSource:
    """Choices from one seed: the same on every machine and Python version, without shrinking, fast."""

    __slots__ = ("_random",)

    def __init__(self, seed: int | str) -> None:
        # Only random() is promised to stay the same between Python versions; everything else is arithmetic on it.
        self._random: Callable[[], float] = random.Random(seed).random

    def integer(self, low: int, high: int) -> int:
        """See Source."""
        return low + int(self._random() * (high - low + 1))

    def choice(self, options: Sequence[T]) -> T:
        """See Source."""
        return options[int(self._random() * len(options))]

    def pick(self, table: Weighted) -> int:
        """See Source."""
        totals = table.totals
        if len(totals) == 1:
            return 0
        return bisect_right(totals, self._random() * totals[-1])

    def path(self, node: Any) -> list[str]:
        """See Source; the inner loop of fast generation."""
        random, words = self._random, []
        options = node.options
        while options:
            totals = node.totals
            i = bisect_right(totals, random() * totals[-1]) if len(totals) > 1 else 0
            words.append(options[i])
            node = node.next[i]
            options = node.options
        return words

    def chance(self, percent: int) -> bool:
        """See Source."""
        return self._random() * 100 < percent

    def order(self, count: int) -> list[int]:
        """See Source."""
        found = list(range(count))
        for i in range(count - 1, 0, -1):
            j = int(self._random() * (i + 1))
            found[i], found[j] = found[j], found[i]
        return found

    def seed(self) -> int:
        """See Source."""
        return int(self._random() * 4294967296)


_PARTS = 1000


class HypothesisSource:
    """Choices drawn from Hypothesis: recorded, replayed and shrunk by it."""

    __slots__ = ("_drawn", "_raw")

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self._raw = draw
        self._drawn = 0

    def _draw(self, strategy: Any) -> Any:
        self._drawn += 1
        return self._raw(strategy)

    def fill_up(self, least: int) -> None:
        """Draw until at least ``least`` draws are made: to Hypothesis fewer draws are simpler, whatever they mean."""
        while self._drawn < least:
            self._draw(_integers(0, 1))

    def integer(self, low: int, high: int) -> int:
        """See Source."""
        return low if low == high else int(self._draw(_integers(low, high)))

    def choice(self, options: Sequence[T]) -> T:
        """See Source."""
        return options[self.integer(0, len(options) - 1)]

    def pick(self, table: Weighted) -> int:
        """See Source."""
        # Always a draw, and always from the same range: what a later draw means then depends little on earlier ones,
        # and Hypothesis can simplify one choice without upsetting the others.
        totals = table.totals
        return bisect_right(totals, self._draw(_integers(0, _PARTS - 1)) * totals[-1] // _PARTS)

    def path(self, node: Any) -> list[str]:
        """See Source."""
        words = []
        while node.options:
            i = self.pick(node)
            words.append(node.options[i])
            node = node.next[i]
        return words

    def chance(self, percent: int) -> bool:
        """See Source."""
        return bool(self._draw(_integers(0, 99)) >= 100 - percent)

    def order(self, count: int) -> list[int]:
        """See Source."""
        if count < 2:
            return list(range(count))
        # One draw turns the numbers: a full permutation would cost a draw for each of them.
        shift = self.integer(0, 2 * count - 1)
        turned = [(i + shift) % count for i in range(count)]
        return turned[::-1] if shift >= count else turned

    def seed(self) -> int:
        """See Source."""
        return int(self._draw(_integers(0, 4294967295)))


@lru_cache(maxsize=4096)
def _integers(low: int, high: int) -> Any:
    from hypothesis import strategies as st

    return st.integers(low, high)
