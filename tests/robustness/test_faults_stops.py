"""A run that is asked to stop at any event goes on to the very cases that it would have had, and nothing else that the process has
loaded changes them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fiafuzz.campaign.corpus import Corpus, Entry
from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import CaseDone, Event, FindingFound, FindingKept, FindingRepeated, FlakyFound, RunFinished, decode_event
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.resume import read_past
from fiafuzz.campaign.stopping import StopFlag
from tests.unit.quick_runs import Quick, cases_of, kept_ids, plan_in, quick, run

__all__ = ["quick"]
Install = Callable[..., list[Quick]]
PLAN: dict[str, Any] = {"phases": ("sweep", "pairwise", "explore", "bulk"), "max_cases": 60}


def logged(root: Path) -> list[Event]:
    """The log of a run."""
    return [decode_event(line) for line in (root / "run" / "events.ndjson").read_bytes().splitlines()]


def stopped_at(plan: Plan, event: int) -> bool:
    """Run a campaign that is asked to stop when so many events have been told; whether it got so far."""
    stop = StopFlag()
    number = 0
    for number, _ in enumerate(run_campaign(plan, stop=stop), 1):
        if number == event:
            stop.set("SIGTERM")
    return number >= event


@pytest.mark.slow
def test_a_stop_at_any_event_loses_no_case(quick: Install, tmp_path: Path) -> None:
    quick()
    whole, _ = run(plan_in(tmp_path / "whole", **PLAN))
    told = [i for i, e in enumerate(whole, 1) if isinstance(e, (FindingFound, FindingKept)) or (isinstance(e, CaseDone) and e.sought)]
    places = sorted({*told, *range(2, len(whole), 9)})
    assert len(told) >= 4 and len(places) >= 10
    same = 0
    for place in places:
        root = tmp_path / str(place)
        assert stopped_at(plan_in(root, **PLAN), place)
        past = read_past(root / "run")
        if not past.complete:
            again, _ = run(past.plan, past=past)
            assert isinstance(again[-1], RunFinished)
        events = logged(root)
        cases = cases_of(events)
        assert [case[:2] for case in cases] == [case[:2] for case in cases_of(whole)], "each place once"
        if kept_ids(events) == kept_ids(whole):
            assert cases == cases_of(whole), place
            same += 1
        # Else it was asked to stop while it shrank a finding, and has kept that as it was; what is known decides what explore asks.
        begun = {e.number for e in events if isinstance(e, FindingFound)}
        assert begun <= {e.number for e in events if isinstance(e, (FindingKept, FindingRepeated, FlakyFound))}, place
        assert {e.id for e in Corpus(root / "corpus").entries() if isinstance(e, Entry)} == kept_ids(events)
    assert same >= len(places) // 2


def test_the_same_seed_gives_the_same_cases_whatever_else_is_loaded(
    quick: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hypothesis draws constants of modules that are not installed: its own tests, a conftest, this checkout."""
    quick()
    before, _ = run(plan_in(tmp_path / "before", phases=("explore",), max_cases=150))
    numbers = ", ".join(str(n) for n in range(3, 600))
    (tmp_path / "full_of_constants.py").write_text(f"NUMBERS = [{numbers}]\nWORDS = ['BSH', 'TND', 'x']\nFLOATS = [0.3, 0.7, 2.5]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("full_of_constants")
    after, _ = run(plan_in(tmp_path / "after", phases=("explore",), max_cases=150))
    assert cases_of(before) == cases_of(after)


def test_the_explore_phase_leaves_nothing_in_the_current_directory(quick: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hypothesis import configuration

    quick()
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(configuration, "__hypothesis_home_directory_default", here / ".hypothesis")
    configuration.set_hypothesis_home_dir(None)
    run(plan_in(tmp_path, phases=("explore",), max_cases=60))
    assert os.listdir(here) == []
    assert not [p for p in (tmp_path / "run").rglob("*") if p.name.startswith(".tmp")]
