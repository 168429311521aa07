"""Faults of a backend that reach beyond its own call, and clocks that jump: the right case is blamed, and the next ones are right."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fiafuzz.campaign.events import CaseDone, FindingFound, FindingKept, RunFinished
from fiafuzz.campaign.results import Result
from fiafuzz.campaign.schedulers.local import LocalScheduler
from fiafuzz.campaign.schedulers.protocol import Completed, DevicesLost
from fiafuzz.campaign.wire import Job, Setup
from tests.unit.quick_runs import PROFILE, Quick, odd_keys_are_wrong, plan_in, quick, run

from .conftest import children
from .fault_backends import install
from .test_workers import call, collect

__all__ = ["quick"]


@pytest.fixture(autouse=True)
def faults(nasty_backends: Path) -> None:
    """The backends of fault_backends.py are installed."""
    install(nasty_backends)


@pytest.fixture
def started() -> Iterator[Any]:
    """Makes started schedulers, and ends them."""
    before, made = children(), []

    def start(name: str) -> LocalScheduler:
        made.append(LocalScheduler(Setup(f"fault-{name}", PROFILE, memory=1 << 30), 1, time_limit=30.0))
        made[-1].start()
        return made[-1]

    yield start
    for scheduler in made:
        scheduler.close()
    assert children() <= before


@pytest.mark.parametrize("name, kinds", [
    ("heap", {"crash"}), ("objects", {"crash"}), ("generator-exit", {"error"}), ("stop-iteration", {"error"}), ("recursion", {"error"}),
    ("unpicklable", {"error"}), ("lying-kind", {"error"}), ("thread", {"ok"}), ("close", {"crash"}),
    ("clock", {"ok"}),
])
def test_the_bad_case_is_blamed_and_the_next_ones_are_right(started: Any, name: str, kinds: set[str]) -> None:
    scheduler = started(name)
    jobs = [Job(i, call(3 if i == 2 else 2, seed=i)) for i in range(6)]
    for job in jobs:
        scheduler.submit(job)
    done = {d.job.id: d.result for d in collect(scheduler, len(jobs), 120.0)}
    assert sorted(done) == list(range(6))
    assert done[2].kind in kinds, done[2]
    assert all(done[i].kind == "ok" and done[i].judged is not None and done[i].judged.passed for i in done if i != 2), done
    assert done[2].message.isprintable() or "\n" in done[2].message


@pytest.mark.parametrize("jump", [-1e9, 1e9], ids=["back", "ahead"])
def test_the_wall_clock_may_jump(quick: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """Somebody sets the clock in the middle of a run that is bound by time: neither does it end early nor does it go on."""
    quick()
    real = time.time
    jumps = iter((0.0, *[jump] * 10_000_000))
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    began = time.monotonic()
    events, summary = run(plan_in(tmp_path, max_cases=None, max_time=2.0, phases=("bulk",)))
    assert time.monotonic() - began >= 1.9 and summary.cases >= 1
    assert [e.at for e in events] == sorted(e.at for e in events) and all(0 <= e.at < 1000 for e in events)


def test_nothing_reads_the_wall_clock_to_measure() -> None:
    """time.time and naive datetimes are not for measuring. (The guard only sleeps.)"""
    root = Path(__file__).resolve().parents[2] / "fiafuzz" / "campaign"
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "time.time(" not in text and ("import time\n" not in text or path.name == "guard.py"), path
        assert "datetime.now()" not in text and "utcnow" not in text, path


class Leaving(Quick):
    """Its last worker is lost (or the user loses patience) while the first finding is being shrunk."""

    error: BaseException = DevicesLost("no worker is left")
    at = 3

    def run(self, job: Job, *, fresh: bool = False, time_limit: float | None = None) -> Completed:
        looking = sum(digest == self.failing for digest in self.ran) if hasattr(self, "failing") else 0
        done = super().run(job)
        if done.result.judged is not None and not done.result.judged.passed and not hasattr(self, "failing"):
            self.failing = job.case.digest
        if looking >= 2 and job.case.digest != self.failing:
            raise self.error
        return done


@pytest.mark.parametrize("error", [DevicesLost("no worker is left"), KeyboardInterrupt()], ids=["lost", "impatient"])
def test_a_finding_that_has_come_again_is_kept_when_nothing_can_be_run_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    import fiafuzz.campaign.engine as engine

    made = Leaving(odd_keys_are_wrong, PROFILE, {"quick": "1"})
    made.error = error
    monkeypatch.setattr(engine, "scheduler_of", lambda *_: made)
    events, summary = run(plan_in(tmp_path, phases=("bulk",), mode="valid"))
    found = [e.number for e in events if isinstance(e, FindingFound)]
    kept = [e for e in events if isinstance(e, FindingKept)]
    assert found == [1] and [k.number for k in kept] == [1], "what was told is kept, as it was found"
    assert kept[0].path is not None and Path(kept[0].path).is_file()
    assert isinstance(events[-1], RunFinished)
    assert summary.interrupted == isinstance(error, KeyboardInterrupt)
    assert any("no worker is left" in p for p in summary.problems) == isinstance(error, DevicesLost)
    failed = [e.digest for e in events if isinstance(e, CaseDone) and e.verdict.failed]
    assert failed.count(kept[0].entry.original) == 1, "it is counted once"


def test_the_canary_survives_a_worker_that_is_killed(started: Any) -> None:
    """One worker killed from outside says nothing about the canary."""
    from fiafuzz.campaign.canary import sing

    class Killed:
        """A scheduler whose first run dies."""

        def __init__(self, inner: LocalScheduler) -> None:
            self.inner, self.left = inner, 1

        def run(self, job: Job, **options: Any) -> Completed:
            self.left -= 1
            if self.left == 0:
                return Completed(job, Result("crash", message="killed by SIGKILL", signal=9))
            return self.inner.run(job, **options)

    pytest.importorskip("torch")
    passed, text = sing(Killed(started("thread")), 7)  # type: ignore[arg-type]
    assert passed, text
