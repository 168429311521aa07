"""What the HTML report needs of one run beyond RunData: coverage, combinations, answers, the course of time, notable cases.

Everything is added up while the log is read; memory does not grow with the number of cases.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fiafuzz.campaign.events import CanaryDone, CaseDone, Event, FindingKept, FindingRepeated, LegStarted, WorkerRestarted
from fiafuzz.campaign.results import clean
from fiafuzz.campaign.tally import Tally
from fiafuzz.campaign.verdict import PASS
from strategies.plan import Infeasible

from .coverage import NOT_RUN
from .pairs import PairCurve
from .run_data import RunData, added_up, read_events

BUCKETS = 96
"""Points of the curve over time, at most."""
FAILING_LISTED = 200
NOTABLE = 15
"""Passing cases with the largest errors, and slowest cases, that are listed."""
REASONS = 40
KINDS = 400
"""Kinds of answers and of outcomes that are told apart; honest logs have a few dozen."""


@dataclass
class Timeline:
    """Cases per stretch of time, a phase apart. ``width`` in seconds doubles whenever the stretches run out."""

    width: float = 0.25
    buckets: list[Counter[str]] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    """Findings: when, and which."""
    phases: list[str] = field(default_factory=list)

    def add(self, at: float, phase: str) -> None:
        """Count a case that came back at that second."""
        if not 0.0 <= at < 1e9:
            return
        while at >= BUCKETS * self.width:
            pairs = [self.buckets[i : i + 2] for i in range(0, len(self.buckets), 2)]
            self.buckets = [sum(pair, Counter()) for pair in pairs]
            self.width *= 2
        place = int(at / self.width)
        while len(self.buckets) <= place:
            self.buckets.append(Counter())
        if phase not in self.phases:
            if len(self.phases) >= KINDS:
                phase = self.phases[0]
            else:
                self.phases.append(phase)
        self.buckets[place][phase] += 1


@dataclass
class Answers:
    """The matrix of predicted and observed answers. ``wrong`` counts the cases of a cell that are findings."""

    cells: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, event: CaseDone) -> None:
        """Count one case that was run."""
        key = (_predicted(event), _observed(event))
        if key not in self.cells and len(self.cells) >= KINDS:
            key = ("other", "other")
        self.cells[key] += 1
        self.wrong[key] += event.verdict.failed

    def merge(self, other: Answers) -> None:
        """Count another run."""
        self.cells.update(other.cells)
        self.wrong.update(other.wrong)


def _predicted(event: CaseDone) -> str:
    codes = " or ".join(str(c) for c in event.codes)
    return f"{event.foreseen} {codes}".strip() if event.foreseen == "reject" else clean(event.foreseen, 40)


def _observed(event: CaseDone) -> str:
    """What came, as a column of the matrix. Logs of earlier versions do not say: then it follows from the verdict, where it
    does."""
    verdict = event.verdict
    if not event.got:
        return "not recorded"
    if event.got == "reject":
        return f"reject {event.got_code}" if event.got_code is not None else "reject"
    if event.got == "ok" and verdict.failed and (verdict.code or "").startswith("F1"):
        return f"ok, {verdict.code}"
    return clean(event.got, 40)


@dataclass
class RunView:
    """One run, added up for the report. ``label`` names it among others."""

    label: str
    path: str
    data: RunData = field(default_factory=RunData)
    tally: Tally = field(default_factory=Tally)
    curves: dict[str, PairCurve] = field(default_factory=dict)
    """By profile."""
    answers: Answers = field(default_factory=Answers)
    timeline: Timeline = field(default_factory=Timeline)
    outcomes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Cases by phase, mode and verdict."""
    failing: list[CaseDone] = field(default_factory=list)
    failing_count: int = 0
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Why cases were skipped, unsupported or untestable."""
    canaries: list[CanaryDone] = field(default_factory=list)
    restarts: Counter[str] = field(default_factory=Counter)
    titles: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    elements: Counter[str] = field(default_factory=Counter)
    _unfinished: dict[int, tuple[float, str]] = field(default_factory=dict)
    _nearest: list[tuple[float, int, CaseDone]] = field(default_factory=list)
    _slowest: list[tuple[float, int, CaseDone]] = field(default_factory=list)
    _profile: str = ""

    def add(self, event: Event) -> None:
        """Take one event in."""
        self.data.add(event)
        self.tally.add(event)
        self.seconds = max(self.seconds, event.at if 0.0 <= event.at < 1e9 else 0.0)
        if isinstance(event, CaseDone):
            self._case(event)
        elif isinstance(event, LegStarted):
            self._profile = event.profile
            self.titles[event.backend] = event.title
        elif isinstance(event, FindingKept):
            self._shrunk(event.number)
            mark = (event.at, event.entry.id)
            self.timeline.marks.append(mark)
            if event.interrupted:
                self._unfinished[event.number] = mark
        elif isinstance(event, FindingRepeated):
            self._shrunk(event.number)
        elif isinstance(event, CanaryDone):
            self.canaries.append(event)
        elif isinstance(event, WorkerRestarted) and event.reason:
            reason = clean(event.reason, 200)
            self.restarts[reason if reason in self.restarts or len(self.restarts) < REASONS else "other reasons"] += 1

    def _shrunk(self, number: int) -> None:
        """A finding that was kept before it was shrunk, since the run was asked to stop, has come to another end now."""
        mark = self._unfinished.pop(number, None)
        if mark is not None:
            self.timeline.marks.remove(mark)

    def _case(self, event: CaseDone) -> None:
        status = event.verdict.status
        self._count(self.outcomes, (event.phase, event.mode, status))
        if status in NOT_RUN or status in ("untestable", "internal"):
            key = (status, clean(event.verdict.text, 160))
            if key in self.reasons or len(self.reasons) < REASONS:
                self.reasons[key] += 1
            else:
                self.reasons[status, "other reasons"] += 1
        if status in NOT_RUN:
            return
        self.timeline.add(event.at, event.phase)
        self.answers.add(event)
        self.elements["compared"] += event.compared
        self.elements["untestable"] += event.untestable
        if event.verdict.failed:
            self.failing_count += 1
            if len(self.failing) < FAILING_LISTED:
                self.failing.append(event)
        elif status == PASS and event.ratio > 0:
            _keep(self._nearest, event.ratio, event)
        _keep(self._slowest, event.seconds, event)
        if event.foreseen == "accept" and event.factors and self._profile:
            self._curve(self._profile, event)

    def _count(self, counter: Counter[tuple[str, str, str]], key: tuple[str, str, str]) -> None:
        known = key in counter or len(counter) < KINDS
        counter[key if known else ("other", "other", "pass")] += 1

    def _curve(self, profile: str, event: CaseDone) -> None:
        if self.data.started is None:
            return
        if profile not in self.curves:
            try:
                self.curves[profile] = PairCurve(profile)
            except (Infeasible, ValueError):  # no valid call, or a profile that this version does not know
                return
        self.curves[profile].add(self.data.started.factors, event.factors)

    @property
    def replay_count(self) -> int:
        """Entries of the corpus that were run again."""
        return len(self.data.replayed)

    @property
    def nearest_misses(self) -> list[CaseDone]:
        """Passing cases with the largest errors, largest first."""
        return [e for _, _, e in sorted(self._nearest, key=lambda item: (-item[0], -item[1]))]

    @property
    def slowest(self) -> list[CaseDone]:
        """Cases that took longest, longest first."""
        return [e for _, _, e in sorted(self._slowest, key=lambda item: (-item[0], -item[1]))]


def _keep(heap: list[tuple[float, int, CaseDone]], weight: float, event: CaseDone) -> None:
    item = (weight, -event.n, event)
    if len(heap) < NOTABLE:
        heapq.heappush(heap, item)
    elif item[:2] > heap[0][:2]:
        heapq.heapreplace(heap, item)


def view_run(path: Path, label: str) -> RunView:
    """A run directory (or an event log), added up. RunError when it cannot be read."""
    damaged: list[int] = []
    view = added_up(read_events(path, damaged), lambda: RunView(label, os.fspath(path)))
    view.data.damaged_lines = len(damaged)
    for curve in view.curves.values():
        curve.finish()
    return view


def labels_of(paths: list[Path]) -> list[str]:
    """Short names for runs: the last parts of their paths, as many as it takes to tell them apart."""
    absolute = [Path(os.path.abspath(p)) for p in paths]
    for depth in range(1, max(len(p.parts) for p in absolute) + 1):
        found = [os.path.join(*p.parts[-depth:]) for p in absolute]
        if len(set(found)) == len(set(absolute)):
            return [clean(label, 120) for label in found]
    return [clean(p, 200) for p in absolute]
