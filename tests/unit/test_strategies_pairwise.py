"""Pairwise rows and t-way coverage."""

from __future__ import annotations

from itertools import combinations

import pytest

from reports.tway import Coverage, measure
from strategies.pairwise import pairwise_plans, pairwise_rows
from strategies.plan import Infeasible, plan
from strategies.source import SeededSource
from strategies.tuples import feasible_tuples


@pytest.mark.parametrize("profile", ["950-v5", "950-v5-2026.08", "a2-v3", "a2-v5-2026.08"])
def test_all_feasible_pairs_in_few_rows(profile: str) -> None:
    rows = pairwise_plans(profile)
    assert len(rows) <= 350
    covered = measure(profile, (row.words for row in rows))
    assert covered.share(2).ratio == 1.0 and covered.missing_pairs() == []
    # Said once more without bit sets, against plans that are drawn.
    met = {pair for row in rows for pair in combinations(sorted(row.words.items()), 2)}
    source = SeededSource(1)
    for _ in range(300):
        assert set(combinations(sorted(plan(source, profile).words.items()), 2)) <= met


def test_rows_belong_to_a_seed() -> None:
    first = pairwise_plans("a2-v3", 1)
    pairwise_plans.cache_clear()
    pairwise_rows.cache_clear()
    assert pairwise_plans("a2-v3", 1) == first != pairwise_plans("a2-v3", 2)


def test_nothing_to_cover_without_valid_calls() -> None:
    for ask in (pairwise_plans, Coverage, feasible_tuples):
        with pytest.raises(Infeasible):
            ask("950-v3")


def test_drawn_plans_stay_inside_the_feasible_tuples() -> None:
    for profile in ("950-v5", "a2-v3-2026.08"):
        covered = Coverage(profile)
        source = SeededSource(2)
        for _ in range(1500):
            covered.add(plan(source, profile).words)
        assert [s.outside for s in covered.shares()] == [0, 0, 0] and covered.unknown == 0


def test_coverage_counts_what_it_is_given() -> None:
    covered = Coverage("950-v5")
    words = pairwise_plans("950-v5")[0].words
    covered.add(words)
    covered.add(words)
    n = len(words)
    assert [s.covered for s in covered.shares()] == [n, n * (n - 1) // 2, n * (n - 1) * (n - 2) // 6]
    assert covered.cases == 2
    covered.add({**words, "scenario": "other"})
    assert covered.unknown == 1 and covered.share(1).covered == n
    # A combination that no valid call has counts apart.
    covered.add({"scenario": "unequal_d", "lse": "on"})
    assert covered.share(2).outside == 1
    with pytest.raises(ValueError, match="4-way"):
        covered.share(4)


def test_missing_pairs_are_named() -> None:
    covered = Coverage("a2-v3")
    assert len(covered.missing_pairs(limit=7)) == 7
    (first, second), *_ = covered.missing_pairs()
    covered.add(dict((first, second)))
    assert (first, second) not in covered.missing_pairs(limit=10_000)


@pytest.mark.parametrize("profile", ["950-v5", "950-v5-2026.08", "a2-v3"])
def test_three_way_coverage_of_three_thousand_calls(profile: str) -> None:
    """Pairwise rows first, then drawn plans: at least nine tenths of all feasible triples."""
    covered = measure(profile, (row.words for row in pairwise_plans(profile)))
    source = SeededSource(4)
    while covered.cases < 3000:
        covered.add(plan(source, profile).words)
    assert covered.share(3).ratio >= 0.90, covered.share(3)


def test_rows_are_searched_for_as_they_are_asked_for():
    pairwise_rows.cache_clear()
    rows = pairwise_rows("a2-v3", 5)
    one, other = iter(rows), iter(rows)
    taken = [next(one), next(other), next(other), next(one)]
    assert taken[0] == taken[1] and taken[2] == taken[3] and len(rows.found) == 2
    assert tuple(rows) == pairwise_plans("a2-v3", 5) and len(rows.found) > 50
