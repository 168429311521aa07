"""What a generated case costs. Run: python tests/benchmarks/bench_generation.py [--profile P] [--seconds S]

Prints, in one run on one core: valid cases a second by Hypothesis beside a bare composite of 40 scalars, and by the
fast source beside random.choice for as many draws. Targets: Hypothesis within 2x of the bare composite; fast source at
least 10,000 cases a second or within 8x of random.choice.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fiafuzz.model.profiles import DEFAULT_PROFILE
from strategies.cases import build_valid, valid_cases
from strategies.source import SeededSource, Weighted

T = TypeVar("T")


class CountingSource(SeededSource):
    """A seeded source that counts its draws."""

    __slots__ = ("draws",)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.draws = 0

    def integer(self, low: int, high: int) -> int:
        self.draws += 1
        return super().integer(low, high)

    def choice(self, options: Sequence[T]) -> T:
        self.draws += 1
        return super().choice(options)

    def pick(self, table: Weighted) -> int:
        self.draws += len(table.totals) > 1
        return super().pick(table)

    def path(self, node: Any) -> list[str]:
        words = []
        while node.options:
            i = self.pick(node)
            words.append(node.options[i])
            node = node.next[i]
        return words

    def chance(self, percent: int) -> bool:
        self.draws += 1
        return super().chance(percent)

    def order(self, count: int) -> list[int]:
        self.draws += count
        return super().order(count)

    def seed(self) -> int:
        self.draws += 1
        return super().seed()


@st.composite
def forty_scalars(draw: Callable[[Any], Any]) -> list[int]:
    """The bare composite: forty integers."""
    return [draw(st.integers(0, 100)) for _ in range(40)]


def hypothesis_rate(strategy: Any, seconds: float) -> float:
    """Examples a second of a strategy, generation alone."""
    examples = 300
    done = 0
    spent = 0.0
    while spent < seconds:
        @settings(max_examples=examples, phases=[Phase.generate], database=None, deadline=None,
                  suppress_health_check=list(HealthCheck), derandomize=False)
        @given(strategy)
        def body(_: object) -> None:
            nonlocal done
            done += 1

        start = time.perf_counter()
        body()
        spent += time.perf_counter() - start
    return done / spent


def fast_rates(profile: str, seconds: float, rounds: int = 5) -> tuple[float, float, float]:
    """Cases a second of the fast source, random.choice rounds a second for as many draws, and draws a case.

    Both are measured in turns, so that other work on the machine meets both.
    """
    counting = CountingSource(1)
    warm = 20_000
    for _ in range(warm):
        build_valid(counting, profile)
    draws = counting.draws / warm
    source, options, choose = SeededSource(2), tuple(range(10)), random.Random(3).choice
    mine = bare = 0.0
    cases = 0
    for _ in range(rounds):
        start = time.perf_counter()
        while time.perf_counter() - start < seconds / rounds:
            for _ in range(100):
                build_valid(source, profile)
            cases += 100
        mine += time.perf_counter() - start
        start = time.perf_counter()
        count = round(draws * 2000)
        for _ in range(count):
            choose(options)
        bare += (time.perf_counter() - start) / 2000 / rounds
    return cases / mine, 1 / bare, draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default=DEFAULT_PROFILE)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each measurement")
    options = parser.parse_args()
    for _ in range(2_000):
        build_valid(SeededSource(_), options.profile)
    half = options.seconds / 2
    rates = [(hypothesis_rate(valid_cases(options.profile), half), hypothesis_rate(forty_scalars(), half))
             for _ in range(2)]
    mine, bare = (sum(r) / 2 for r in zip(*rates))
    print(f"Hypothesis: {mine:,.0f} valid cases/s; bare composite of 40 scalars {bare:,.0f}/s; ratio {bare / mine:.2f}"
          " (target at most 2)")
    cases, choices, draws = fast_rates(options.profile, options.seconds)
    print(f"fast source: {cases:,.0f} valid cases/s; random.choice over {draws:.0f} draws {choices:,.0f}/s; ratio"
          f" {choices / cases:.2f} (target: 10,000/s, or a ratio of at most 8)")


if __name__ == "__main__":
    main()
