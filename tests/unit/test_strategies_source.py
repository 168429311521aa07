"""Sources of choices: the same numbers everywhere, within bounds, weighted, and plain first under Hypothesis."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from strategies.source import HypothesisSource, SeededSource, Table


def test_seeded_numbers_are_pinned() -> None:
    """A seed means the same cases on every machine and Python version: these numbers may not change."""
    source = SeededSource(7)
    assert [source.integer(0, 999) for _ in range(6)] == [323, 150, 650, 72, 535, 365]
    assert SeededSource("950-v5/valid/7").seed() == SeededSource("950-v5/valid/7").seed()
    assert [SeededSource(1).order(6), SeededSource(2).order(6)] == [[1, 2, 5, 3, 4, 0], [2, 1, 3, 0, 4, 5]]


def test_seeded_bounds_and_weights() -> None:
    source = SeededSource(3)
    assert {source.integer(-1, 1) for _ in range(200)} == {-1, 0, 1}
    assert {source.choice("abc") for _ in range(200)} == set("abc")
    table = Table(("often", 9), ("seldom", 1))
    met = Counter(table.of(source) for _ in range(4000))
    assert 0.86 < met["often"] / 4000 < 0.94
    assert 0.2 < sum(source.chance(25) for _ in range(4000)) / 4000 < 0.3
    assert all(0 <= source.seed() < 2**32 for _ in range(100))
    assert not any(source.chance(0) for _ in range(100)) and all(source.chance(100) for _ in range(100))


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_orders_are_permutations(count: int) -> None:
    assert sorted(SeededSource(5).order(count)) == list(range(count))


@st.composite
def six_kinds(draw):  # type: ignore[no-untyped-def]
    source = HypothesisSource(draw)
    table = Table(("plain", 1), ("odd", 3))
    found = (source.integer(3, 9), source.choice("xyz"), table.of(source), source.chance(50), source.order(4), source.seed())
    source.fill_up(12)
    return found


def test_hypothesis_shrinks_to_the_plainest() -> None:
    assert find(six_kinds(), lambda _: True) == (3, "x", "plain", False, [0, 1, 2, 3], 0)
    assert find(six_kinds(), lambda v: v[2] == "odd") == (3, "x", "odd", False, [0, 1, 2, 3], 0)
    assert find(six_kinds(), lambda v: v[3]) == (3, "x", "plain", True, [0, 1, 2, 3], 0)


@settings(max_examples=60, deadline=None, database=None)
@given(six_kinds())
def test_hypothesis_bounds(found) -> None:  # type: ignore[no-untyped-def]
    number, letter, word, _, order, seed = found
    assert 3 <= number <= 9 and letter in "xyz" and word in ("plain", "odd")
    assert sorted(order) == [0, 1, 2, 3] and 0 <= seed < 2**32


def test_filling_up_counts_draws() -> None:
    drawn: list[object] = []
    source = HypothesisSource(lambda strategy: drawn.append(strategy) or 0)
    source.integer(5, 5)
    assert not drawn, "an integer without choice needs no draw"
    source.integer(0, 4)
    source.fill_up(4)
    assert len(drawn) == 4
    source.fill_up(2)
    assert len(drawn) == 4
