"""Counting: a running summary over the event stream, for the end of a run and for logs of runs that never reached
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .events import (
    CanaryDone,
    CaseDone,
    Event,
    FindingFound,
    FindingKept,
    FindingLine,
    FindingRepeated,
    FlakyFound,
    Note,
    Replayed,
    RunFinished,
    RunStarted,
    Summary,
    WorkerRestarted,
)
from .verdict import FINDING, INTERNAL, SKIPPED, UNSUPPORTED


class Tally:
    """Takes events one by one; ``summary`` may be asked at any time."""

    def __init__(self) -> None:
        self.seed = 0
        self.directory = ""
        self.seconds = 0.0
        self.cases = 0
        self.offered = 0
        self.phases: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.replayed: Counter[str] = Counter()
        self.elements: Counter[str] = Counter()
        self.repeats: Counter[str] = Counter()
        self.findings: dict[int, FindingKept] = {}
        self.open_findings: dict[int, FindingFound] = {}
        self.flaky = 0
        self.restarts = 0
        self.problems: list[str] = []
        self.canary_failed = False
        self.interrupted = False
        self.nothing = False
        self.finished: Summary | None = None

    def add(self, event: Event) -> None:
        """Count one event."""
        self.seconds = max(self.seconds, event.at)
        if isinstance(event, CaseDone):
            self._case(event)
        elif isinstance(event, RunStarted):
            self.seed, self.directory = event.plan.seed, event.directory
        elif isinstance(event, FindingFound):
            self.open_findings[event.number] = event
        elif isinstance(event, FindingKept):
            self.open_findings.pop(event.number, None)
            self.findings[event.number] = event
            if event.problem:
                self.problems.append(f"{event.entry.id} is not in the corpus: {event.problem}")
        elif isinstance(event, FlakyFound):
            self.open_findings.pop(event.number, None)
            self.flaky += 1
        elif isinstance(event, FindingRepeated):
            self.open_findings.pop(event.number, None)
            self.repeats[event.entry] += 1
        elif isinstance(event, Replayed):
            self.replayed[event.status] += 1
        elif isinstance(event, WorkerRestarted):
            self.restarts += 1
        elif isinstance(event, CanaryDone):
            self.canary_failed |= not event.passed
            if not event.passed:
                self.problems.append(f"canary: {event.text}")
        elif isinstance(event, Note) and event.level == "problem":
            self.problems.append(event.text)
        elif isinstance(event, RunFinished):
            self.finished = event.summary

    def _case(self, event: CaseDone) -> None:
        status = event.verdict.status
        if status == SKIPPED:
            self.skipped[event.verdict.text.split(" (", 1)[0]] += 1
        else:
            self.offered += 1
        if status not in (SKIPPED, UNSUPPORTED):
            self.cases += 1
            self.phases[event.phase] += 1
        self.verdicts[status] += 1
        if event.verdict.code:
            self.codes[event.verdict.code] += 1
        if event.repeats:
            self.repeats[event.repeats] += 1
        if status == INTERNAL and len(self.problems) < 20:
            self.problems.append(f"case {event.digest}: {event.verdict.text}")
        self.elements["compared"] += event.compared
        self.elements["untestable"] += event.untestable

    def summary(self) -> Summary:
        """What has been counted so far."""
        lines: dict[str, FindingLine] = {}
        for kept in self.findings.values():
            entry = kept.entry
            before = lines.get(entry.id)
            count = 1 + (before.count if before else self.repeats[entry.id])
            new = kept.new or (before.new if before else False)
            lines[entry.id] = FindingLine(
                entry.id,
                entry.signature.code,
                entry.title,
                entry.signature.rule,
                new,
                kept.path if before is None else before.path,
                count,
                entry.reproduce,
            )
        return Summary(
            self._status(bool(lines)),
            self.seed,
            round(self.seconds, 3),
            self.cases,
            dict(self.phases),
            dict(self.verdicts),
            dict(self.codes),
            tuple(lines.values()),
            self.flaky,
            self.restarts,
            dict(self.replayed),
            dict(self.skipped),
            dict(self.elements),
            tuple(self.problems),
            self.interrupted,
            self.directory,
        )

    def _status(self, kept: bool) -> str:
        if kept or self.open_findings or self.verdicts[FINDING]:
            return "findings"
        if self.canary_failed or self.problems:
            return "broken"
        if self.interrupted:
            return "interrupted"
        return "nothing" if self.nothing else "clean"


def summarise(events: Iterable[Event]) -> Summary:
    """The summary of a stream of events (of a log, say); that of its RunFinished when there is one."""
    tally = Tally()
    for event in events:
        tally.add(event)
    return tally.finished or tally.summary()
