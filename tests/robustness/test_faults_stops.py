"""A run that is asked to stop at any moment goes on to the very cases and findings that it would have had, and nothing else that the
process has loaded changes them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fiafuzz.campaign.corpus import Corpus, Entry, content_of
from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import CaseDone, Event, FindingFound, FindingKept, FindingRepeated, FlakyFound, RunFinished, decode_event
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.resume import read_past
from fiafuzz.campaign.schedulers.protocol import Completed
from fiafuzz.campaign.stopping import StopFlag
from fiafuzz.campaign.wire import Job
from tests.unit.quick_runs import Quick, cases_of, plan_in, quick, run

__all__ = ["quick"]
Install = Callable[..., list[Quick]]
PLAN: dict[str, Any] = {"phases": ("sweep", "pairwise", "explore", "bulk"), "max_cases": 60}
EXPLORE: dict[str, Any] = {"phases": ("explore",), "max_cases": 45}
ONE: dict[str, Any] = {"phases": ("bulk",), "max_cases": 6}
"""A run with one finding."""


def logged(root: Path) -> list[Event]:
    """The log of a run."""
    return [decode_event(line) for line in (root / "run" / "events.ndjson").read_bytes().splitlines()]


def outcome(root: Path) -> tuple[list[Any], list[Any], list[Any]]:
    """What a run comes to: its cases, its findings with their cases, and what they have become in the corpus."""
    events = logged(root)
    last = events[-1]
    assert isinstance(last, RunFinished)
    cases = sorted((e.phase, e.place, e.digest, e.verdict.status) for e in events if isinstance(e, CaseDone))
    files = [(path.name, content_of(e), e.runs, e.interrupted) for path, e in Corpus(root / "corpus").files() if isinstance(e, Entry)]
    assert len(files) == len(list((root / "corpus" / "found").iterdir()))
    return cases, sorted((line.id, line.new, line.count) for line in last.summary.findings), files


def resumed(root: Path) -> None:
    """Run a campaign that was asked to stop to its end."""
    past = read_past(root / "run")
    if not past.complete:
        run(past.plan, past=past)
    assert read_past(root / "run").complete
    events = logged(root)
    begun = {e.number for e in events if isinstance(e, FindingFound)}
    ends = [e for e in events if isinstance(e, (FindingRepeated, FlakyFound)) or (isinstance(e, FindingKept) and not e.interrupted)]
    ended = [e.number for e in ends if e.number]  # what was flaky from the start has none
    assert begun <= {*ended} and len(ended) == len({*ended}), "each comes to one end"


def stopped_at(plan: Plan, event: int) -> bool:
    """Run a campaign that is asked to stop when so many events have been told; whether it got so far."""
    stop = StopFlag()
    number = 0
    for number, _ in enumerate(run_campaign(plan, stop=stop), 1):
        if number == event:
            stop.set("SIGTERM")
    return number >= event


@pytest.mark.slow
def test_a_stop_at_any_event_loses_nothing(quick: Install, tmp_path: Path) -> None:
    quick()
    whole, _ = run(plan_in(tmp_path / "whole", **PLAN))
    told = [i for i, e in enumerate(whole, 1) if isinstance(e, (FindingFound, FindingKept)) or (isinstance(e, CaseDone) and e.sought)]
    places = sorted({*told, *range(2, len(whole), 14)})
    assert len(told) >= 4 and len(places) >= 8
    for place in places:
        root = tmp_path / str(place)
        assert stopped_at(plan_in(root, **PLAN), place)
        resumed(root)
        assert outcome(root) == outcome(tmp_path / "whole"), place


@pytest.mark.slow
@pytest.mark.parametrize("settings", [PLAN, EXPLORE], ids=["phases", "explore"])
def test_a_stop_at_any_run_of_the_backend_loses_nothing(
    settings: dict[str, Any], quick: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the middle of shrinking: what was kept by then gives way to what the shrink comes to. In explore, what a stop kept of
    one call may be explained by a plainer one that comes later."""
    quick()
    ran, last, stop = 0, 0, StopFlag()
    answer = Quick.run

    def counted(self: Quick, job: Job, **options: Any) -> Completed:
        nonlocal ran
        ran += 1
        if ran == last:
            stop.set("SIGTERM")
        return answer(self, job, **options)

    monkeypatch.setattr(Quick, "run", counted)
    run(plan_in(tmp_path / "whole", **settings))
    whole, length, unfinished = outcome(tmp_path / "whole"), ran, 0
    assert len(whole[1]) == (2 if settings is PLAN else 1)
    for last in range(5, length, 7):
        root, ran, stop = tmp_path / str(last), 0, StopFlag()
        events = list(run_campaign(plan_in(root, **settings), stop=stop))
        kept = [e for e in events if isinstance(e, FindingKept)]
        there = {e.id: e.interrupted for e in Corpus(root / "corpus").entries() if isinstance(e, Entry)}
        assert {e.entry.id: e.interrupted for e in kept} == there, "what was told is there"
        unfinished += any(there.values())
        ran = length  # it is not asked to stop again
        resumed(root)
        assert outcome(root) == whole, last
    assert unfinished >= 3


@pytest.mark.slow
def test_what_was_stopped_twice_is_replaced_twice(quick: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time it is asked to stop while it shrinks, a little later; a file of that name that is not its own stays as it is."""
    quick()
    run(plan_in(tmp_path / "whole", **ONE))
    root, left, seen = tmp_path / "again", 0, set()
    answer = Quick.run
    stop = StopFlag()

    def counted(self: Quick, job: Job, **options: Any) -> Completed:
        nonlocal left
        left -= job.id < 0  # a run of the shrink
        if not left:
            stop.set("SIGTERM")
        return answer(self, job, **options)

    monkeypatch.setattr(Quick, "run", counted)
    plan, past = plan_in(root, **ONE), None
    for runs in (2, 4, 6):
        left, stop = runs, StopFlag()
        for _ in run_campaign(plan, stop=stop, past=past):
            pass
        past = read_past(root / "run")
        (entry,) = [e for e in Corpus(root / "corpus").entries() if isinstance(e, Entry)]
        assert entry.interrupted and not past.complete
        assert [k.entry for k in past.tally.findings.values()] == [entry]
        seen.add((entry.id, content_of(entry)))
    assert len(seen) >= 2
    left = -1
    resumed(root)
    assert outcome(root) == outcome(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["moved", "edited"])
def test_an_unfinished_entry_that_people_have_touched_stays(
    quick: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    quick()
    stop = StopFlag()
    answer = Quick.run

    def stopped(self: Quick, job: Job, **options: Any) -> Completed:
        if job.id < 0:
            stop.set("SIGTERM")
        return answer(self, job, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Quick, "run", stopped)
        list(run_campaign(plan_in(tmp_path, **ONE), stop=stop))
    (file,) = (tmp_path / "corpus" / "found").iterdir()
    if change == "moved":
        (tmp_path / "corpus" / "regressions").mkdir()
        file = file.rename(tmp_path / "corpus" / "regressions" / file.name)
    else:
        file.write_bytes(file.read_bytes().replace(b'"title": "', b'"title": "looked into by mei: '))
    before = file.read_bytes()
    resumed(tmp_path)
    assert file.read_bytes() == before
    log = [e for e in logged(tmp_path) if isinstance(e, FindingKept)]
    there = {(e.id, content_of(e)) for e in Corpus(tmp_path / "corpus").entries() if isinstance(e, Entry)}
    assert (log[-1].entry.id, content_of(log[-1].entry)) in there and not log[-1].interrupted


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
