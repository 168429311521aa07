"""Plans and budgets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fiafuzz.campaign.budget import Budget
from fiafuzz.campaign.plan import MODES, PHASES, Plan, PlanError, check, new_seed, phases_of, selected_rules
from fiafuzz.campaign.tally import Tally


@pytest.mark.parametrize("changes, words", [
    ({"profiles": ("950-v6",)}, "did you mean"), ({"backends": ()}, "no backend"), ({"profiles": ()}, "no profile"),
    ({"phases": ("sweeps",)}, "'sweep'"), ({"phases": ()}, "no phase"), ({"mode": "valids"}, "'valid'"),
    ({"max_time": None}, "bounds the run"), ({"max_time": -1.0}, "max_time"), ({"max_cases": 0}, "max_cases"),
    ({"workers": -1}, "workers"), ({"seed": -1}, "seed"), ({"seed": 1 << 64}, "seed"),
    ({"select": ("paged_atention",)}, "'paged_attention'"),
    ({"ignore": ("FIA-XX-001",)}, "group or rule"), ({"time_limit": 0.0}, "time_limit"),
])
def test_plans_that_make_no_sense(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        check(Plan(**changes))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_plan_is_plain_data() -> None:
    plan = Plan(seed=3, select=("quant",), max_cases=10)
    check(plan)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


def test_seeds_are_short() -> None:
    assert all(0 <= new_seed() < 1 << 32 for _ in range(20))


def test_phases_of_modes() -> None:
    assert phases_of(Plan(sequences=4)) == PHASES
    assert phases_of(Plan()) == tuple(p for p in PHASES if p != "sequences"), "groups are made where they are asked for"
    assert phases_of(Plan(mode="valid")) == ("replay", "pairwise", "explore", "bulk")
    assert phases_of(Plan(mode="disputed")) == ("replay", "sweep", "bulk")


def test_a_backend_without_checks_has_no_phases_of_refused_calls() -> None:
    for mode in MODES:
        left = ("replay",) if mode in ("invalid", "disputed") else phases_of(Plan(mode=mode))
        assert phases_of(Plan(mode=mode), "none") == left and phases_of(Plan(mode=mode), "partial") == phases_of(Plan(mode=mode))
    assert phases_of(Plan(phases=("bulk", "sweep"))) == ("sweep", "bulk")
    assert all(phases_of(Plan(mode=m)) for m in MODES)


def test_selected_rules() -> None:
    every = selected_rules(Plan(), "950-v5")
    paged = selected_rules(Plan(select=("paged_attention",)), "950-v5")
    one = selected_rules(Plan(select=(paged[0],)), "950-v5")
    rest = selected_rules(Plan(ignore=("paged_attention",)), "950-v5")
    assert one == paged[:1] and set(paged) | set(rest) == set(every) and not set(paged) & set(rest)


def test_shares_of_a_budget() -> None:
    tally = Tally()
    budget = Budget(tally, 100.0, 1000)
    seconds, cases = budget.share_of("sweep", last=False)
    assert seconds is not None and 24 < seconds <= 25 and cases == 250
    tally.offered = 900
    assert budget.share_of("pairwise", last=False)[1] == 100
    assert budget.share_of("bulk", last=True)[1] == 100
    tally.offered = 1000
    assert budget.used_up
    assert not Budget(tally, None, 10).used_up and Budget(tally, 0.0, None).used_up
