"""Whole campaigns without workers: a scheduler that answers at once, from a rule of its own about which calls go wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

import fiafuzz.campaign.engine as engine
from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import CaseDone, Event, FindingKept, RunFinished, Summary
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.results import Judged, Result
from fiafuzz.campaign.schedulers.protocol import Completed
from fiafuzz.campaign.wire import Hello, Job
from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import predict

PROFILE = "950-v5"
RIGHT = Judged(True, None, 0.25, compared=8)


def odd_keys_are_wrong(case: Case) -> Optional[Result]:
    """Two faults: an odd number of key columns has the wrong shape, a sink is added wrongly."""
    scene = Scene(case)
    if (scene.KV_S or 0) % 2:
        return Result("ok", judged=Judged(False, "F103", text="wrong shape"))
    if case.inputs.learnableSink is not None:
        return Result("ok", judged=Judged(False, "F101", 4.0, compared=8, text="off"))
    return None


def nothing_is_wrong(case: Case) -> Optional[Result]:
    """No fault."""
    return None


class Quick:
    """Answers in the driver's process. ``wrong`` gives the result of a call that goes wrong, None for others."""

    def __init__(self, wrong: Callable[[Case], Optional[Result]], profile: str, versions: dict[str, str]) -> None:
        self.wrong, self.profile, self.versions = wrong, profile, versions
        self.ready: list[Completed] = []
        self.ran: list[str] = []
        self.on_room: Any = None

    def start(self) -> Hello:
        return Hello("quick", "answers at once", "own", versions=self.versions)

    def room(self) -> int:
        return max(0, 3 - len(self.ready))

    @property
    def outstanding(self) -> int:
        return len(self.ready)

    def submit(self, job: Job) -> None:
        self.ready.append(self.run(job))

    def poll(self, timeout: float) -> list[Completed]:
        return [self.ready.pop()] if self.ready else []  # the last first: workers keep no order either

    def run(self, job: Job, *, fresh: bool = False, time_limit: Optional[float] = None) -> Completed:
        self.ran.append(job.case.digest)
        expected = predict(job.case, self.profile, scene=Scene(job.case))
        if expected.verdict == "reject":
            return Completed(job, Result("reject", code=min(expected.codes), stage=expected.stage))
        return Completed(job, self.wrong(job.case) or Result("ok", judged=RIGHT))

    def given_up(self, worker: int) -> str:
        return ""

    def restarts(self) -> list[Any]:
        return []

    def close(self) -> None:
        pass


def make_quick(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Quick]]:
    """What the fixture gives, for a patch of any scope."""

    def install(wrong: Callable[[Case], Optional[Result]] = odd_keys_are_wrong, versions: Optional[dict[str, str]] = None) -> list[Quick]:
        made: list[Quick] = []

        def scheduler_of(plan: Plan, backend: str, profile: str) -> Quick:
            made.append(Quick(wrong, profile, versions or {"quick": "1"}))
            return made[-1]

        monkeypatch.setattr(engine, "scheduler_of", scheduler_of)
        return made

    return install


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Quick]]:
    """Call it to make campaigns quick; returns the schedulers that they made."""
    return make_quick(monkeypatch)


def plan_in(root: Path, **changes: Any) -> Plan:
    """A short plan that is bound by a number of cases."""
    settings: dict[str, Any] = {
        "backends": ("quick",), "profiles": (PROFILE,), "seed": 5, "canary": False, "max_time": None, "max_cases": 60,
        "corpus": str(root / "corpus"), "out": str(root / "run"), "shrink_runs": 20,
    }
    return Plan(**{**settings, **changes})


def run(plan: Plan, **options: Any) -> tuple[list[Event], Summary]:
    """All events of a campaign, and its summary."""
    events = list(run_campaign(plan, **options))
    assert isinstance(events[-1], RunFinished)
    return events, events[-1].summary


def cases_of(events: list[Event]) -> list[tuple[str, int, str]]:
    """The cases of a run, sorted: phase, place, digest."""
    return sorted((e.phase, e.place, e.digest) for e in events if isinstance(e, CaseDone))


def kept_ids(events: list[Event]) -> set[str]:
    """Ids of the findings of a run."""
    return {e.entry.id for e in events if isinstance(e, FindingKept)}
