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
    KnownIssue,
    Note,
    Replayed,
    RunFinished,
    RunResumed,
    RunStarted,
    Summary,
    WorkerRestarted,
)
from .verdict import FINDING, INTERNAL, SKIPPED, UNSUPPORTED


class Tally:
    """Takes events one by one; ``summary`` may be asked at any time."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
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
        self.own: set[int] = set()
        """Findings that came with a failing case of their own; those of replayed entries do not, their case is a repeat."""
        self.loose = 0
        """Failing cases that neither a finding nor a repeat of one accounts for."""
        self.flaky = 0
        self.restarts = 0
        self.refused = 0
        self.resumed = 0
        self.passing_issues: list[str] = []
        self.expired_issues: dict[str, None] = {}
        self.problems: list[str] = []
        self._case_problems: list[str] = []
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
            self._reset()  # a log that holds two runs is about the last of them
            self.seed, self.directory = event.plan.seed, event.directory
        elif isinstance(event, RunResumed):
            self._resume()
        elif isinstance(event, FindingFound):
            self.open_findings[event.number] = event
            self.own.add(event.number)
            self.loose -= 1  # the event of its case came just before
        elif isinstance(event, FindingKept):
            self.open_findings.pop(event.number, None)
            self.findings[event.number] = event
        elif isinstance(event, KnownIssue):
            if event.status == "passes":
                self.passing_issues.append(event.text)
            else:
                self.expired_issues[event.text] = None
        elif isinstance(event, FlakyFound):
            if self.open_findings.pop(event.number, None) is not None:
                self.loose += 1  # it failed twice before it no longer did: that is no clean run
            self.flaky += 1
        elif isinstance(event, FindingRepeated):
            self.open_findings.pop(event.number, None)
            before = self.findings.get(event.number)
            if before is not None and before.interrupted:
                del self.findings[event.number]
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

    def _resume(self) -> None:
        """What stopped the run before does not count against it any more; cases and findings do."""
        self.resumed += 1
        self.finished = None
        self.canary_failed = self.interrupted = False
        self.passing_issues.clear()
        self.problems[:] = self._case_problems

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
        elif status == FINDING:
            self.loose += 1
        if status == INTERNAL and len(self._case_problems) < 20:
            self._case_problems.append(f"case {event.digest}: {event.verdict.text}")
            self.problems.append(self._case_problems[-1])
        self.elements["compared"] += event.compared
        self.elements["untestable"] += event.untestable

    def summary(self) -> Summary:
        """What has been counted so far."""
        lines: dict[str, FindingLine] = {}
        for number, kept in self.findings.items():
            entry = kept.entry
            before = lines.get(entry.id)
            count = (number in self.own) + (before.count if before else self.repeats[entry.id])
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
                kept.known if before is None or before.known else None,
            )
        return Summary(
            self._status(any(line.known is None for line in lines.values())),
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
            self._problems(),
            self.interrupted,
            self.directory,
            sum(line.known is not None for line in lines.values()),
            tuple(self.passing_issues),
            tuple(self.expired_issues),
            self.resumed,
            0 < self.refused == len(self.problems) and not self.cases,
        )

    def _problems(self) -> tuple[str, ...]:
        lost = {k.entry.id: k.problem for k in self.findings.values() if k.problem}
        return (*self.problems, *(f"{name} is not in the corpus: {why}" for name, why in lost.items()))

    def _status(self, unknown: bool) -> str:
        if unknown or self.open_findings or self.loose > 0 or self.passing_issues:
            return "findings"
        if self.canary_failed or self._problems():
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
