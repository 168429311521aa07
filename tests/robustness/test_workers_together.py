"""Several workers: one long case holds nobody up, the number of workers changes nothing that is found, and what a worker
starts ends with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fiafuzz.campaign import offspring
from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import CaseDone, FindingKept, RunFinished
from fiafuzz.campaign.execute import turns
from fiafuzz.campaign.offspring import carriers, end_offspring, new_mark
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.schedulers.copies import Copies
from fiafuzz.campaign.schedulers.local import LocalScheduler
from fiafuzz.campaign.wire import Job, Setup
from strategies.cases import generate

from .conftest import children
from .process_backends import DIRECTORY, install
from .test_campaigns import alive, gone
from .test_workers import call, collect


@pytest.fixture(autouse=True)
def where(tmp_path: Path, nasty_backends: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The backends of process_backends.py are installed; the directory in which they leave word."""
    install(nasty_backends)
    found = tmp_path / "processes"
    found.mkdir()
    monkeypatch.setenv(DIRECTORY, str(found))
    return found


@pytest.fixture
def two() -> Iterator[LocalScheduler]:
    """Two workers, both up, whose odd cases take as long as the test wants."""
    before = children()
    scheduler = LocalScheduler(Setup("process-slow", "950-v5"), 2, time_limit=120.0)
    scheduler.start()
    while not all(slot.ready for slot in scheduler._slots):
        scheduler.poll(0.1)
    yield scheduler
    scheduler.close()
    assert children() <= before


# ---- work stealing -----------------------------------------------------------------------------------


def test_what_waits_behind_a_long_case_goes_to_others(two: LocalScheduler, where: Path) -> None:
    jobs = [Job(i, call(3 if i == 0 else 2, seed=i)) for i in range(6)]
    for job in jobs:
        two._slots[0].process.send(job)
    early = collect(two, 5)
    assert {d.job.id: (d.worker, d.result.kind) for d in early} == dict.fromkeys(range(1, 6), (1, "ok"))
    (where / "release").touch()
    assert [(d.job.id, d.worker) for d in collect(two, 1)] == [(0, 0)]
    assert two.run(Job(9, call())).result.kind == "ok"
    assert two.poll(0.5) == [] and two.outstanding == 0, "no answer comes twice"
    assert len(two._slots[0].process.pending) == 0


def test_a_worker_with_recalled_jobs_that_dies_takes_none_with_it(two: LocalScheduler, where: Path) -> None:
    jobs = [Job(i, call(3 if i == 0 else 2, seed=i)) for i in range(5)]
    for job in jobs:
        two._slots[0].process.send(job)
    collect(two, 4)
    two._slots[0].process.kill("hang")
    last = collect(two, 1)
    assert [(d.job.id, d.result.kind) for d in last] == [(0, "hang")]
    assert two.run(Job(9, call())).result.kind == "ok"
    assert two.poll(0.3) == [] and two.outstanding == 0


def test_the_first_answer_of_two_copies_counts() -> None:
    copies, job, other = Copies(), Job(1, call()), Job(1, call())
    assert copies.answered(job), "a job that was never stolen"
    copies.stolen([job])
    assert copies.answered(job) and copies.is_answered(job) and not copies.is_answered(other)
    assert not copies.answered(job)
    assert not copies.is_answered(job), "nothing is kept of a job that nobody holds"
    copies.stolen([job])
    copies.gone([job])
    assert copies.answered(job)
    copies.stolen([job])
    copies.stolen([job])
    copies.gone([job, job])
    assert copies.answered(job) and not copies.is_answered(job)


# ---- the same whatever the number of workers -----------------------------------------------------------


def outcome(tmp_path: Path, name: str, workers: int, **changes: Any) -> tuple[Counter[tuple[str, ...]], dict[str, str], int]:
    """Cases with their verdicts, findings with their calls, and the number of cases of a run that is bound by their number."""
    settings: dict[str, Any] = {
        "backends": (name,), "corpus": str(tmp_path / f"corpus-{workers}"), "out": str(tmp_path / f"run-{workers}"), "seed": 11,
        "canary": False, "max_time": None, "max_cases": 60, "time_limit": 60.0, "workers": workers, "shrink_runs": 40,
    }
    events = list(run_campaign(Plan(**{**settings, **changes})))
    cases = Counter((e.phase, e.digest, e.verdict.status, e.verdict.code or "") for e in events if isinstance(e, CaseDone))
    kept = {e.entry.id: e.entry.case.digest for e in events if isinstance(e, FindingKept)}
    assert isinstance(events[-1], RunFinished)
    return cases, kept, events[-1].summary.cases


@pytest.mark.slow
@pytest.mark.parametrize("name, changes", [
    ("nasty-wrong-shape", {}),
    ("nasty-wrong-shape", {"max_findings": 1, "phases": ("bulk",), "mode": "valid"}),
    ("nasty-exit", {"max_cases": 24, "phases": ("bulk",), "mode": "valid", "shrink_runs": 12}),
], ids=["all-phases", "one-finding-only", "deaths"])
def test_the_number_of_workers_changes_neither_cases_nor_findings(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    one, two = outcome(tmp_path, name, 1, **changes), outcome(tmp_path, name, 2, **changes)
    assert one[0] == two[0]
    assert one[1] == two[1] and one[1]
    assert one[2] == two[2] == changes.get("max_cases", 60)


def test_turns_depend_on_the_case_alone_and_come_as_often_as_wanted() -> None:
    cases = [item.case for item in generate("950-v5", "valid", 400, 5)]
    found = [turns(case, Setup("cpu", "950-v5", repeat_every=4, relate_every=2)) for case in cases]
    assert found == [turns(case, Setup("other", "950-v5", repeat_every=4, relate_every=2)) for case in reversed(cases)][::-1]
    again, related = (sum(pair[i] for pair in found) for i in (0, 1))
    assert 60 <= again <= 140 and 150 <= related <= 250
    assert all(turns(case, Setup("cpu", "950-v5")) == (False, False) for case in cases)
    assert all(turns(case, Setup("cpu", "950-v5", repeat_every=1, relate_every=1)) == (True, True) for case in cases)


# ---- what workers start --------------------------------------------------------------------------------


def started(where: Path) -> set[int]:
    """Process ids that children of workers have left."""
    return {int(line) for line in (where / "children").read_text().splitlines()}


def test_children_of_a_dead_worker_end_even_those_that_left_its_session(where: Path) -> None:
    scheduler = LocalScheduler(Setup("process-orphans", "950-v5"))
    try:
        scheduler.start()
        assert scheduler.run(Job(1, call(3))).result.kind == "crash"
        assert scheduler.run(Job(2, call())).result.kind == "ok"
        assert len(started(where)) == 2 and gone(started(where))
    finally:
        scheduler.close()


@pytest.mark.parametrize("hidden", [False, True], ids=["seen", "hidden"])
def test_a_fork_bomb_is_ended_and_blamed(hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``hidden``: as many tasks end elsewhere on the machine."""
    if hidden:
        monkeypatch.setattr(offspring, "tasks", lambda: 700)
    scheduler = LocalScheduler(Setup("process-bomb", "950-v5"), time_limit=120.0)
    try:
        scheduler.start()
        mark = scheduler._slots[0].process.mark
        result = scheduler.run(Job(1, call(3))).result
        assert result.kind == "crash" and "started more than" in result.message, result
        assert carriers(mark) == []
        assert scheduler.run(Job(2, call())).result.kind == "ok"
    finally:
        scheduler.close()


def test_a_crowd_that_grows_while_others_leave_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else on the machine ends as many tasks as a worker starts: the sum tells nothing, that a case takes long does."""
    now = 100.0
    monkeypatch.setattr(offspring, "tasks", lambda: 700)
    monkeypatch.setattr(offspring, "monotonic", lambda: now)
    crowds = offspring.Crowds()
    now += 10 * offspring.LONG_SECONDS
    assert not crowds.grown(0.0) and not crowds.grown(offspring.LONG_SECONDS)
    assert crowds.grown(offspring.LONG_SECONDS + 0.1)
    crowds.calm_down(2)
    assert not crowds.grown(60.0), "not at every turn"
    now += offspring.LONG_SECONDS + 0.1
    assert crowds.grown(60.0) and not crowds.grown(0.0)
    monkeypatch.setattr(offspring, "tasks", lambda: 700 + offspring.JUMP + 1)
    assert crowds.grown(0.0)


def test_nothing_outlives_a_killed_driver(tmp_path: Path, where: Path) -> None:
    plan = Plan(
        backends=("process-hang-with-children",), corpus=str(tmp_path / "corpus"), out=str(tmp_path / "run"), seed=3, canary=False,
        phases=("bulk",), mode="valid", max_cases=1000, max_time=None, time_limit=1000.0,
    )
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(p or os.getcwd() for p in sys.path))
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.robustness.run_plan", msgspec.json.encode(plan).decode()], stdout=subprocess.DEVNULL, env=env,
    )
    try:
        deadline = time.monotonic() + 120
        while not ((where / "children").exists() and len(started(where)) == 2):
            assert time.monotonic() < deadline and driver.poll() is None
            time.sleep(0.05)
        assert all(alive(pid) for pid in started(where))
    finally:
        driver.kill()
        driver.wait(60)
    assert gone(started(where), 30.0)


def test_a_mark_finds_its_carriers_and_nobody_else() -> None:
    mine, other = new_mark(), new_mark()
    sleeper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], env={"FIAFUZZ_WORKER": mine})
    try:
        while sleeper.pid not in carriers(mine):
            assert sleeper.poll() is None
        assert carriers(other) == []
        assert end_offspring(other) and sleeper.poll() is None
        assert end_offspring(mine)
        assert sleeper.wait(30) == -9
    finally:
        sleeper.kill()
        sleeper.wait()
