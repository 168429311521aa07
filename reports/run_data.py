"""What a report needs of a run, added up from the stream of events; memory does not grow with the number of cases."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Optional, Protocol, TypeVar

import msgspec

from fiafuzz.campaign.events import (
    CaseDone,
    Disagreement,
    Event,
    FindingFound,
    FindingKept,
    FindingRepeated,
    FlakyFound,
    KnownIssue,
    LegStarted,
    Note,
    PhaseFinished,
    Replayed,
    RunFinished,
    RunResumed,
    RunStarted,
    Summary,
    decode_event,
)
from fiafuzz.campaign.rundir import check_log

from .coverage import RuleCoverage

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A line of a log that is longer is none of ours."""
MAX_DAMAGED = 100_000
"""A log with more lines that cannot be read is none."""


class RunError(ValueError):
    """A run directory that cannot be read; the text is one line."""


@dataclass
class RuleCount:
    """How often a rule was broken on purpose or held at its boundary, and how often the backend agreed."""

    broken: int = 0
    held: int = 0
    agreed: int = 0
    disagreed: int = 0
    sides: set[str] = field(default_factory=set)


@dataclass
class RunData:
    """A run, added up. ``complete`` is false when the stream ended before RunFinished (an interrupted or running campaign)."""

    started: Optional[RunStarted] = None
    legs: list[LegStarted] = field(default_factory=list)
    phases: list[PhaseFinished] = field(default_factory=list)
    cases: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    foreseen: Counter[tuple[str, str]] = field(default_factory=Counter)
    rules: dict[str, RuleCount] = field(default_factory=lambda: defaultdict(RuleCount))
    found: dict[int, FindingFound] = field(default_factory=dict)
    kept: dict[int, FindingKept] = field(default_factory=dict)
    flaky: list[FlakyFound] = field(default_factory=list)
    repeated: dict[int, str] = field(default_factory=dict)
    replayed: list[Replayed] = field(default_factory=list)
    disagreements: list[Disagreement] = field(default_factory=list)
    issues: list[KnownIssue] = field(default_factory=list)
    coverage: RuleCoverage = field(default_factory=RuleCoverage)
    flaky_entries: dict[int, str] = field(default_factory=dict)
    """Place in ``flaky`` -> the corpus entry that was replayed."""
    notes: list[Note] = field(default_factory=list)
    summary: Optional[Summary] = None
    damaged_lines: int = 0

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""
        return self.summary is not None

    def add(self, event: Event) -> None:
        """Take one event in."""
        self.coverage.add(event)
        if isinstance(event, CaseDone):
            self._case(event)
        elif isinstance(event, RunStarted):
            self.started = event
        elif isinstance(event, RunResumed):
            self.summary = None  # an end that stands before it was not the end
        elif isinstance(event, LegStarted):
            # A resumed run tells its leg again, and its phase with all of its cases.
            self.legs = [one for one in self.legs if (one.backend, one.profile) != (event.backend, event.profile)]
            self.legs.append(event)
        elif isinstance(event, PhaseFinished):
            key = (event.phase, event.backend, event.profile)
            self.phases = [one for one in self.phases if (one.phase, one.backend, one.profile) != key]
            self.phases.append(event)
        elif isinstance(event, FindingFound):
            self.found[event.number] = event
        elif isinstance(event, FindingKept):
            self.kept[event.number] = event
        elif isinstance(event, FindingRepeated):
            self.repeated[event.number] = event.entry
            if event.number in self.kept and self.kept[event.number].interrupted:
                del self.kept[event.number]  # once it was shrunk after all, it was a known one
        elif isinstance(event, FlakyFound):
            # The replay of a flaky entry is told first, and then how often it failed.
            last = self.replayed[-1] if self.replayed and event.number == 0 else None
            if last is not None and last.status == "flaky" and last.entry not in self.flaky_entries.values():
                self.flaky_entries[len(self.flaky)] = last.entry
            self.flaky.append(event)
        elif isinstance(event, Replayed):
            self.replayed.append(event)
        elif isinstance(event, KnownIssue):
            self.issues.append(event)
        elif isinstance(event, Disagreement):
            self.disagreements.append(event)
        elif isinstance(event, Note):
            self.notes.append(event)
        elif isinstance(event, RunFinished):
            self.summary = event.summary

    def _case(self, event: CaseDone) -> None:
        self.cases += 1
        status = event.verdict.status
        self.verdicts[status] += 1
        if event.verdict.code:
            self.codes[event.verdict.code] += 1
        self.foreseen[(event.foreseen, status)] += 1
        if event.rule is None or status in ("unsupported", "skipped"):
            return
        count = self.rules[event.rule]
        if event.foreseen == "accept":
            count.held += 1
        else:
            count.broken += 1
        if event.side:
            count.sides.add(event.side)
        if event.verdict.failed:
            count.disagreed += 1
        elif status in ("pass", "info"):
            count.agreed += 1


class Gatherer(Protocol):
    """Something that adds up the events of one run."""

    def add(self, event: Event) -> None:
        """Take one event in."""
        ...


G = TypeVar("G", bound=Gatherer)


def added_up(events: Iterable[Event], fresh: Callable[[], G]) -> G:
    """What ``fresh`` makes, with the events of a run added. A log that holds two runs is about the last of them."""
    found, started = fresh(), False
    for event in events:
        if isinstance(event, RunStarted):
            found, started = fresh() if started else found, True
        found.add(event)
    return found


def gather(events: Iterable[Event]) -> RunData:
    """A run added up from its events."""
    return added_up(events, RunData)


def read_events(directory: str | Path, damaged: list[int] | None = None) -> Iterator[Event]:
    """Events of a run directory (or of an events.ndjson file). Lines that cannot be read, as a killed run may leave one at its end,
    are passed over; their numbers are put into ``damaged``. RunError when there is no log."""
    path, unread = Path(directory), 0
    if path.is_dir():
        path = path / "events.ndjson"
    try:
        with open(path, "rb", opener=_regular) as log:
            for number, line in enumerate(_lines(log), 1):
                try:
                    yield decode_event(line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    unread += 1
                    if unread > MAX_DAMAGED:
                        raise RunError(f"{path}: more than {MAX_DAMAGED} lines are no events") from None
                    if damaged is not None:
                        damaged.append(number)
    except OSError as error:
        raise RunError(f"{path}: {error.strerror or error}") from None


def _regular(path: str, flags: int) -> int:
    """Open a regular file; a pipe or a device would be waited for, or never end."""
    opened = os.open(path, flags | os.O_NONBLOCK)
    try:
        check_log(opened)
    except OSError:
        os.close(opened)
        raise
    return opened


def _lines(log: BinaryIO) -> Iterator[bytes]:
    """The lines of a log; one over the limit comes cut off, and its rest is passed over unread by anyone."""
    while line := log.readline(MAX_LINE_BYTES):
        yield line
        while len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = log.readline(MAX_LINE_BYTES)


def read_run(directory: str | Path) -> RunData:
    """A run directory, added up."""
    damaged: list[int] = []
    data = gather(read_events(directory, damaged))
    data.damaged_lines = len(damaged)
    return data
