"""Campaigns that are started, stopped, killed, resumed, whose workers die and whose disk fills up, in any order: what was told is on
disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fiafuzz.campaign.corpus import Corpus, CorpusError, Entry
from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import Event, FindingFound, FindingKept, FindingRepeated, FlakyFound, RunFinished, decode_event
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.results import Result
from fiafuzz.campaign.resume import ResumeError, read_past
from fiafuzz.campaign.rundir import RunDirError, log_lines
from fiafuzz.campaign.stopping import StopFlag
from fiafuzz.model.case import Case
from tests.unit.quick_runs import make_quick, plan_in

from .test_disk_full import FOR_GOOD, Disk, on, wrong

PLAN: dict[str, Any] = {"phases": ("sweep", "explore", "bulk"), "max_cases": 30, "shrink_runs": 5, "corpus": "corpus", "out": "run"}


class Night(RuleBasedStateMachine):
    """One run directory and one corpus through a bad night."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.die_next = False
        make_quick(self.patch)(self.answer)
        self.base = Path(tempfile.mkdtemp())
        self.lives = 0
        self.home = self.base / "0"
        self.home.mkdir()
        self.patch.chdir(self.home)
        self.stream: Optional[Iterator[Event]] = None
        self.stop = StopFlag()
        self.disk = Disk(0, 0, errno.ENOSPC)
        self.kept: dict[int, str] = {}
        """Number -> id. What was kept before it was shrunk gives way to what it comes to."""
        self.unfinished: dict[int, bool] = {}
        self.found: set[int] = set()
        self.log_failed = False
        self.finished = False

    def answer(self, case: Case) -> Optional[Result]:
        """The scripted backend: planted faults, and a worker that is killed from outside now and then."""
        if self.die_next:
            self.die_next = False
            return Result("crash", message="killed by SIGKILL", signal=9)
        return wrong(case)

    def teardown(self) -> None:
        try:
            self.disk.times = 0
            self.leave()
            for _ in range(3):  # once there is room and nobody disturbs it, it comes to its end
                if (self.home / "run").exists() and not self.log_failed:
                    self.go_on()
                    self.take(10_000)
            there = self.entries()
            assert {*self.kept.values()} <= there or self.log_failed
            if not self.log_failed and (self.home / "run" / "events.ndjson").exists():
                log = [decode_event(line) for _, line in log_lines(self.home / "run" / "events.ndjson")]
                kept = [e for e in log if isinstance(e, FindingKept)]
                ended = {e.number for e in log if isinstance(e, (FindingRepeated, FlakyFound))}
                assert self.found <= ended | {e.number for e in kept if not e.interrupted}, "what was found comes to an end"
                if not any(isinstance(e, FlakyFound) for e in log):
                    assert not [e for e in Corpus("corpus").entries() if isinstance(e, Entry) and e.interrupted], "all are shrunk"
        finally:
            self.patch.undo()
            shutil.rmtree(self.base)

    def leave(self) -> None:
        """The consumer goes away."""
        if self.stream is not None:
            with on(self.disk):
                self.stream.close()  # type: ignore[attr-defined]
            self.stream = None

    def entries(self) -> set[str]:
        """Ids in the corpus."""
        return {e.id for e in Corpus("corpus").entries() if isinstance(e, Entry)}

    def take(self, count: int) -> None:
        """Some events of the run that is going on."""
        with on(self.disk):
            for _ in range(count):
                event = next(self.stream, None) if self.stream is not None else None
                if event is None:
                    self.stream = None
                    return
                if isinstance(event, FindingKept) and event.path is not None:
                    self.kept[event.number] = event.entry.id
                    self.unfinished[event.number] = event.interrupted
                elif isinstance(event, FindingRepeated) and self.unfinished.get(event.number):
                    del self.kept[event.number]
                elif isinstance(event, FindingFound):
                    self.found.add(event.number)
                elif isinstance(event, RunFinished):
                    self.log_failed |= any("log is not complete" in p for p in event.summary.problems)
                    self.finished = not event.summary.interrupted

    def begin(self, plan: Plan, past: Any = None) -> None:
        """Start or go on."""
        self.stop = StopFlag()
        try:
            with on(self.disk):
                self.stream = run_campaign(plan, stop=self.stop, past=past)
        except (CorpusError, RunDirError) as error:
            assert "\n" not in str(error)

    # ---- what happens ------------------------------------------------------------------------------------

    @precondition(lambda self: self.stream is None and not (self.home / "run").exists())
    @rule()
    def start(self) -> None:
        self.begin(plan_in(self.home, **PLAN))

    @precondition(lambda self: self.stream is not None)
    @rule(count=st.integers(1, 25))
    def work(self, count: int) -> None:
        self.take(count)

    @precondition(lambda self: self.stream is not None)
    @rule()
    def a_worker_is_killed(self) -> None:
        self.die_next = True
        self.take(4)

    @precondition(lambda self: self.stream is not None)
    @rule(count=st.integers(0, 3))
    def somebody_asks_it_to_stop(self, count: int) -> None:
        self.take(count)
        self.stop.set("SIGTERM")
        self.take(10_000)

    @precondition(lambda self: self.stream is not None)
    @rule(torn=st.integers(0, 40))
    def the_parent_is_killed(self, torn: int) -> None:
        """What is on disk now is all there is: the run goes on in a copy of it, the last line of the log torn."""
        self.log_failed |= self.disk.times > 0
        self.lives += 1
        home = self.base / str(self.lives)
        shutil.copytree(self.home, home)
        self.leave()
        log = home / "run" / "events.ndjson"
        if log.exists():
            text = log.read_bytes()
            half = b'{"event":"CaseDone","at":1.0,"n":1,"phase":"bulk"'[:torn]
            log.write_bytes(text + half)
        self.home = home
        self.patch.chdir(home)

    @precondition(lambda self: self.stream is None and (self.home / "run").exists())
    @rule()
    def go_on(self) -> None:
        try:
            past = read_past(Path("run"))
        except ResumeError:
            assert self.log_failed or not (self.home / "run" / "run.json").exists()
            self.log_failed = True
            return
        if not past.complete:
            self.begin(past.plan, past)

    @rule(after=st.integers(0, 12))
    def the_disk_fills_up(self, after: int) -> None:
        self.disk.first, self.disk.seen, self.disk.times = after + 1, 0, FOR_GOOD

    @rule()
    def there_is_room_again(self) -> None:
        if self.disk.times:
            self.log_failed = True  # a log that has failed once is not written to again by that run
        self.disk.times = 0

    # ---- what must hold -----------------------------------------------------------------------------------

    @invariant()
    def what_was_told_is_there(self) -> None:
        assert {*self.kept.values()} <= self.entries()

    @invariant()
    def nothing_is_half_written(self) -> None:
        assert all(isinstance(e, Entry) for e in Corpus("corpus").entries())
        with contextlib.suppress(FileNotFoundError):
            assert all(name.endswith(".json") for name in os.listdir("corpus/found"))
            assert not [name for name in os.listdir("run") if name.endswith(".tmp")]


Night.TestCase.settings = settings(
    max_examples=20, stateful_step_count=14, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
TestNight = Night.TestCase
TestNight.pytestmark = [pytest.mark.slow]  # type: ignore[attr-defined]
