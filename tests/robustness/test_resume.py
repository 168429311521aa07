"""A run that is killed for good, again and again, and goes on: the whole is that of a run that was left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fiafuzz.campaign.corpus import Corpus, Entry
from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import CaseDone, Event, FindingKept, RunFinished
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.resume import read_past
from fiafuzz.campaign.rundir import log_lines

from .run_plan import EVENT_COUNT
from .test_campaigns import gone, logged, plan_for, workers_of

PLAN: dict[str, Any] = {"phases": ("sweep", "bulk"), "mode": "all", "max_cases": 60}


def outcome(events: list[Event]) -> tuple[list[tuple[str, int, str]], set[str]]:
    """What must not depend on whether a run was killed: its cases and findings."""
    cases = sorted((e.phase, e.place, e.digest) for e in events if isinstance(e, CaseDone))
    return cases, {e.entry.id for e in events if isinstance(e, FindingKept)}


def started(plan: Plan, *words: str) -> subprocess.Popen[str]:
    """A campaign in a process of its own that tells each event."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(p or os.getcwd() for p in sys.path), **{EVENT_COUNT: "1"})
    command = [sys.executable, "-m", "tests.robustness.run_plan", msgspec.json.encode(plan).decode(), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def killed_after(plan: Plan, events: int, *, resume: bool) -> None:
    """Run (or resume) a campaign in a process of its own and kill it, for good, when it has told so many events."""
    process = started(plan, *(["--resume"] if resume else []))
    assert process.stdout is not None
    told = 0
    for line in process.stdout:
        told += line.startswith("EVENT")
        if told >= events or line.startswith("FINISHED"):
            break
    workers = workers_of(process.pid)
    process.kill()
    process.communicate(timeout=60)
    assert gone(workers), "no worker outlives its parent"


def told_and_there(plan: Plan) -> None:
    """Whatever the log says was kept is in the corpus, whole."""
    there = {e.id for e in Corpus(plan.corpus).entries() if isinstance(e, Entry)}
    assert all(isinstance(e, Entry) for e in Corpus(plan.corpus).entries())
    for _, line in log_lines(Path(str(plan.out)) / "events.ndjson"):
        if line.endswith(b"\n") and b'"FindingKept"' in line:
            assert msgspec.json.decode(line)["entry"]["id"] in there


@pytest.mark.slow
def test_killed_again_and_again(tmp_path: Path) -> None:
    alone = plan_for("wrong-shape", tmp_path, out=str(tmp_path / "whole"), corpus=str(tmp_path / "whole-corpus"), **PLAN)
    whole = list(run_campaign(alone))
    assert len(outcome(whole)[1]) == 1
    plan = plan_for("wrong-shape", tmp_path, **PLAN)
    for number, events in enumerate((1, 19, 13, 22)):
        killed_after(plan, events, resume=number > 0)
        told_and_there(plan)
    past = read_past(tmp_path / "run")
    assert 0 < past.cases < 60 and not past.complete
    again = list(run_campaign(past.plan, past=past))
    assert isinstance(again[-1], RunFinished) and again[-1].summary.status == "findings"
    assert again[-1].summary.resumed == 4
    assert outcome(logged(tmp_path)) == outcome(whole)
    assert [f.new for f in again[-1].summary.findings] == [True]
    told_and_there(plan)
    assert read_past(tmp_path / "run").complete


@pytest.mark.slow
def test_killed_while_a_crash_is_shrunk(tmp_path: Path) -> None:
    """A crash is told before it is shrunk; the resumed run finishes what was found, under its number."""
    plan = plan_for("abort", tmp_path, max_cases=12)
    process = started(plan)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("EVENT FindingFound"):
            break
    workers = workers_of(process.pid)
    process.kill()
    process.communicate(timeout=60)
    assert gone(workers)
    past = read_past(tmp_path / "run")
    assert [list(leg.open) for leg in past.legs.values()] == [[1]]
    events = list(run_campaign(past.plan, past=past))
    kept = [e for e in events if isinstance(e, FindingKept)]
    assert [(k.number, k.new, k.entry.signature.code) for k in kept] == [(1, True, "F301")]
    assert isinstance(events[-1], RunFinished) and len(events[-1].summary.findings) == 1
    cases = [e.place for e in logged(tmp_path) if isinstance(e, CaseDone)]
    assert sorted(cases) == list(range(1, 13))
