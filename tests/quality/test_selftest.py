"""The self-test finds planted faults of every kind and says so; what is not there to be found survives. And the canary: it
sings when all is alive, and whatever is broken silences it and the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fiafuzz.backends.faults import all_faults, fault_by_name
from fiafuzz.backends.registry import get_backend
from fiafuzz.campaign.canary import PASSES, sing
from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import CaseDone, RunFinished
from fiafuzz.campaign.execute import Executor
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.results import Judged
from fiafuzz.campaign.selftest import Kill, SelfTest, chosen_faults, totals
from fiafuzz.campaign.shrink import Shrunk
from fiafuzz.campaign.wire import Job, Setup
from oracles.constraints.predict import Prediction
from tests.unit.in_process import InProcess

SOME = ("scale-twice", "gqa-tiled", "prefix-values-late", "rope-left-out", "alibi-sign", "nondeterministic-row", "rejects-packed-sink",
        "inner-precise-unchecked", "heads-code", "combined-halves-swapped", "crash", "raises")
"""Of every kind, mode and profile, a few."""


@pytest.fixture(scope="module")
def kills() -> list[Kill]:
    with SelfTest(7, 120.0) as test:
        return list(test.hunts(chosen_faults(SOME)))


def test_faults_of_every_kind_are_found(kills: list[Kill]) -> None:
    assert [k.name for k in kills] == list(SOME)
    assert totals(kills).survivors == ()
    for kill in kills:
        assert kill.code == fault_by_name(kill.name).expect, kill
        assert kill.cases > 0 and kill.seconds > 0 and kill.shrink_runs <= 150
        assert kill.case is not None and kill.shrunk == len(kill.differs)


def test_findings_become_small(kills: list[Kill]) -> None:
    result = totals(kills)
    assert result.excess is not None and result.excess <= 2
    assert (result.faults, result.found) == (len(SOME), len(SOME))


def test_the_shrunk_case_tells_the_fault_from_the_correct_backend(kills: list[Kill]) -> None:
    for kill in kills:
        if kill.kind != "numeric" or kill.expect != "F101":
            continue
        profile = fault_by_name(kill.name).profile
        assert kill.case is not None
        judged = [Executor(get_backend(name, profile), "").execute(Job(1, kill.case)).judged for name in (f"faulty:{kill.name}", "cpu")]
        assert [j is not None and j.passed for j in judged] == [False, True], kill.name


def test_a_fault_that_nothing_reaches_survives() -> None:
    fault = fault_by_name("rejects-long-list")  # what it waits for is in no valid call of this profile
    with SelfTest(0, 3.0) as test:
        kill = test.hunt(replace(fault, profile="950-v5"))
    assert not kill.found and kill.cases > 0 and kill.seconds >= 3.0
    assert totals([kill]).survivors == ("rejects-long-list",)


def test_stopped_hunts_end() -> None:
    with SelfTest(0, 60.0, stop=lambda: True) as test:
        assert list(test.hunts(all_faults())) == []


def test_names_of_faults() -> None:
    assert chosen_faults(()) == all_faults()
    assert [f.name for f in chosen_faults(("faulty:crash", "crash", "abort"))] == ["crash", "abort"]
    with pytest.raises(ValueError, match="unknown fault 'cash'"):
        chosen_faults(("cash",))


# ---- the canary -----------------------------------------------------------------------------------


def sung(seed: int = 3) -> tuple[bool, str]:
    return sing(InProcess(Setup("cpu", "950-v5")), seed)  # a scheduler here, so that what is broken here is broken there


@pytest.mark.parametrize("seed", range(4))
def test_the_canary_sings_when_all_is_alive(seed: int) -> None:
    passed, text = sung(seed)
    assert passed and text.startswith(f"{PASSES} valid calls pass; faulty:scale-twice is seen; shrunk in"), text


def test_a_dead_generator_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strategies.cases.generate", lambda *_, **__: iter(()))
    assert sung() == (False, f"the generator gives 0 of {PASSES} valid calls")


def test_a_generator_that_repeats_one_call_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from fiafuzz.campaign.triage import plain_case
    from strategies.faults import Generated

    def same(profile: str, mode: str, n: int, seed: int, **_: Any) -> Iterator[Generated]:
        return (Generated(plain_case("950", "v5"), mode) for _ in range(n))

    monkeypatch.setattr("strategies.cases.generate", same)
    assert not sung()[0]


@pytest.mark.parametrize("verdict", ["accept", "reject", "unspecified"])
def test_an_oracle_that_always_says_the_same_is_noticed(verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def always(*_: Any, **__: Any) -> Prediction:
        return Prediction("950-v5", verdict, frozenset({0 if verdict == "accept" else 561002}), (), None, "both")

    monkeypatch.setattr("oracles.constraints.predict.predict", always)
    assert not sung()[0]


@pytest.mark.parametrize("passed", [True, False])
def test_a_judge_that_always_says_the_same_is_noticed(passed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fiafuzz.campaign.execute.compact", lambda judgement: Judged(passed, None if passed else "F101"))
    alive, text = sung()
    assert not alive and ("not seen" in text) == passed


def test_a_shrinker_that_does_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fiafuzz.campaign.canary.shrink", lambda case, *_, **__: Shrunk(case, 0, 0.0, ()))
    alive, text = sung()
    assert not alive and "nothing plainer" in text


def test_a_shrinker_that_does_not_ask_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from fiafuzz.campaign.triage import plain_case

    harmless = plain_case("950", "v5")
    harmless = harmless.replace(scaleValue=1.0)
    monkeypatch.setattr("fiafuzz.campaign.canary.shrink", lambda case, *_, **__: Shrunk(harmless, 1, 0.0, ()))
    assert sung() == (False, "what the shrinker gives does not fail any more")


def test_a_run_whose_canary_is_dead_does_not_end_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fiafuzz.campaign.canary.shrink", lambda case, *_, **__: Shrunk(case, 0, 0.0, ()))
    plan = Plan(seed=1, max_cases=20, max_time=None, corpus=str(tmp_path / "corpus"), out=str(tmp_path / "run"))
    events = list(run_campaign(plan))
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    assert finished.summary.status == "broken" and not any(isinstance(e, CaseDone) for e in events)
    assert "nothing plainer" in finished.summary.problems[0]
