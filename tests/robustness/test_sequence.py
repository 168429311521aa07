"""Faults that one call leaves behind for the next, in real worker processes: found, made small, replayed, and gone when mended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fiafuzz.campaign.blueprint import PLAIN, put_together, with_fields
from fiafuzz.campaign.corpus import Corpus, Entry
from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import CaseDone, Event, FindingKept, RunFinished, WorkerRestarted
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.replay import entry_item, replay
from fiafuzz.campaign.resume import read_past
from fiafuzz.campaign.schedulers.local import LocalScheduler
from fiafuzz.campaign.triage import plain_case
from fiafuzz.campaign.wire import Job, Setup

from .state_backends import MENDED, SLOW_SECONDS, install

PROFILE = "950-v5"


@pytest.fixture(autouse=True)
def state_backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backends are installed, for this process and for workers."""
    site = tmp_path / "state_site"
    site.mkdir()
    install(site)
    monkeypatch.syspath_prepend(str(site))


def plan_for(name: str, root: Path, **changes: Any) -> Plan:
    """A few groups of calls on one of the backends."""
    settings: dict[str, Any] = {
        "backends": (f"state-{name}",), "profiles": (PROFILE,), "seed": 5, "mode": "valid", "phases": ("sequences",), "sequences": 6,
        "canary": False, "max_time": None, "max_cases": 12, "time_limit": 20.0, "memory_limit": 1 << 30, "shrink_runs": 40,
        "corpus": str(root / "corpus"), "out": str(root / "run"),
    }  # fmt: skip
    return Plan(**{**settings, **changes})


def run(plan: Plan) -> tuple[list[Event], list[Entry]]:
    """The events of a campaign, and its entries."""
    events = list(run_campaign(plan))
    assert isinstance(events[-1], RunFinished) and not events[-1].summary.problems
    return events, [e.entry for e in events if isinstance(e, FindingKept)]


@pytest.mark.parametrize(
    "name, error, calls, differs",
    [
        ("old-scale", "wrong values", 1, "scaleValue"),
        ("old-values", "wrong values", 1, "values"),
        ("old-buffer", "wrong values", 1, "sizes"),
        ("after-two", "F301 exit", 2, "scaleValue"),
        ("after-refusal", "wrong values", 1, None),
    ],
)
def test_a_fault_of_state_is_found_replayed_and_gone_when_mended(
    name: str, error: str, calls: int, differs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, entries = run(plan_for(name, tmp_path, mode="all" if name == "after-refusal" else "valid"))
    entry = entries[0]
    assert {e.signature.code for e in entries} == {"F304"}
    assert (entry.signature.error, len(entry.before)) == (error, calls)
    assert differs is None or ("differs", differs) in entry.signature.features
    assert any(isinstance(e, WorkerRestarted) for e in events) == (name == "after-two")
    assert Corpus(str(tmp_path / "corpus")).find(entry.id) == entry
    (again,) = replay([entry_item(entry)], f"state-{name}", time_limit=20.0)
    assert (again.status, again.verdict.code) == ("failing", "F304")
    monkeypatch.setenv(MENDED, "1")
    (mended,) = replay([entry_item(entry)], f"state-{name}", time_limit=20.0)
    assert mended.status == "fixed"


def test_a_sound_backend_gives_no_finding(tmp_path: Path) -> None:
    events, entries = run(plan_for("sound", tmp_path, mode="all", max_cases=60, workers=2))
    assert not entries and sum(isinstance(e, CaseDone) for e in events) == 60


# ---- jobs of several cases ----------------------------------------------------------------------------------


def job_of(*seeds: int) -> Job:
    """The plainest call with these seeds, one after the other."""
    cases = tuple(plain_case("950", "v5").replace(seed=seed) for seed in seeds)
    return Job(1, cases[-1], foresee=True, before=cases[:-1], turns=False)


@pytest.fixture
def slow() -> Iterator[LocalScheduler]:
    """A worker that takes a while for each case; four take longer than one may."""
    scheduler = LocalScheduler(Setup("state-slow", PROFILE), 1, time_limit=3.5 * SLOW_SECONDS)
    scheduler.start()
    yield scheduler
    scheduler.close()


def test_each_case_of_a_job_has_the_whole_time(slow: LocalScheduler) -> None:
    done = slow.run(job_of(1, 2, 3, 4))
    assert [r.kind for r in (*done.result.before, done.result)] == ["ok"] * 4
    assert done.result.took >= 4 * SLOW_SECONDS and not slow.restarts()
    after = slow.run(job_of(5))
    assert [case.seed for case in after.recent] == [1, 2, 3, 4] and after.result.before == ()
    fresh = slow.run(job_of(6), fresh=True)
    assert fresh.recent == ()


def test_the_case_that_hangs_is_the_one_that_is_blamed(slow: LocalScheduler) -> None:
    done = slow.run(job_of(1, 13, 3))
    assert (done.result.kind, done.result.stage_at) == ("hang", "run")
    assert [r.kind for r in done.result.before] == ["ok"]
    assert [case.seed for case in slow.run(job_of(7)).recent] == []


def test_a_crash_in_the_midst_of_a_job_leaves_what_came_before(scheduler_of: Callable[..., LocalScheduler]) -> None:
    even, odd = (put_together(with_fields(PLAIN, KV_S=keys), "v5", "950") for keys in (2, 3))
    done = scheduler_of("exit").run(Job(1, even, foresee=True, before=(even, even, odd, even), turns=False))
    assert done.result.kind == "crash" and [r.kind for r in done.result.before] == ["ok", "ok"]


# ---- the same, however it is run ------------------------------------------------------------------------------


def told(events: list[Event]) -> list[tuple[Any, ...]]:
    """What must not depend on how a run was run."""
    return [(e.place, e.digest, e.verdict.status, e.verdict.code, e.repeats) for e in events if isinstance(e, CaseDone)]


def test_two_workers_find_what_one_finds(tmp_path: Path) -> None:
    alone = run(plan_for("old-values", tmp_path / "1", max_cases=24))
    both = run(plan_for("old-values", tmp_path / "2", max_cases=24, workers=2))
    assert told(alone[0]) == told(both[0])
    assert [(e.id, e.case, e.before) for e in alone[1]] == [(e.id, e.case, e.before) for e in both[1]] != []


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = run(plan_for("old-values", tmp_path / "whole", max_cases=24))
    plan = plan_for("old-values", tmp_path / "cut", max_cases=24)
    command = [sys.executable, "-m", "tests.robustness.run_plan", msgspec.json.encode(plan).decode()]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("KEPT"):
                break
        child.send_signal(signal.SIGKILL)
    past = read_past(tmp_path / "cut" / "run")
    assert 0 < past.cases < 24
    again = list(run_campaign(plan, past=past))
    assert told(again) == told(whole[0])[past.cases :]
    found = sorted((tmp_path / "cut" / "corpus" / "found").glob("*.json"))
    assert [path.name for path in found] == sorted(f"{entry.id}.json" for entry in whole[1])
