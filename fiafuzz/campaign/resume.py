"""Resuming: what the log of a run that was killed or interrupted says about where to go on.

Everything that a resumed run needs is in its log. The plan; which legs and phases are over; which places of the phase
that was running have been run (CaseDone.place); what was found, and what was found but not yet shrunk and kept, or was kept
before it was shrunk, since the run was asked to stop. The log is read once and nothing of it is held but counts,
findings and the places that are ahead of the first gap.

A process can be killed between two events that belong together (a failing case and its finding, say). Such a beginning
without its end is cut off with the half-written last line, and is run again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional

import msgspec

from fiafuzz import __version__

from .corpus import Entry, read_regular
from .events import (
    CanaryDone,
    CaseDone,
    Disagreement,
    Event,
    FindingFound,
    FindingKept,
    FindingRepeated,
    FlakyFound,
    LegStarted,
    PhaseFinished,
    PhaseStarted,
    Replayed,
    RoundDone,
    RunFinished,
    RunStarted,
    Summary,
    decode_event,
)
from .plan import Plan, PlanError, check, phases_of
from .results import clean
from .rundir import EVENTS, RECORD, log_lines
from .tally import Tally
from .verdict import FINDING, FLAKY, SKIPPED, Verdict

MAX_RECORD_BYTES = 64 * 1024 * 1024
CUT = 3
"""Events at the end of a log that may be a beginning without its end."""


class ResumeError(ValueError):
    """A run that cannot be resumed; the text is one line."""


@dataclass(frozen=True)
class Recorded:
    """A case of the explore phase as the log has it: its digest, verdict, error ratio, whether Hypothesis was told that it fails,
    and the corpus entry that explains it or that it has become ("": none)."""

    digest: str
    verdict: Verdict
    ratio: float
    sought: bool
    entry: str = ""


@dataclass
class PhaseState:
    """A phase as far as it is recorded. ``until``: all places up to here are done; ``ahead``: places beyond it that are;
    ``last``: place and digest of one of them. ``jobs``: how many places are done; ``taken``: cases that count against the
    limit of the phase, ``cases``: those that were run. ``entries``: what was replayed. ``explored``: what explore has
    done in its present ``round``, by place."""

    started: Optional[PhaseStarted] = None
    finished: bool = False
    until: int = 0
    ahead: set[int] = field(default_factory=set)
    jobs: int = 0
    last: tuple[int, str] = (0, "")
    taken: int = 0
    cases: int = 0
    entries: set[str] = field(default_factory=set)
    explored: dict[int, Recorded] = field(default_factory=dict)
    round: int = 0

    def add(self, event: CaseDone) -> None:
        """Take a case in."""
        ran = event.verdict.status not in (SKIPPED, "unsupported")
        self.cases += ran
        if not event.place:
            return
        self.jobs += 1
        self.taken += event.phase == "explore" or event.verdict.status != SKIPPED
        if event.phase == "explore":
            self.explored[event.place] = Recorded(event.digest, event.verdict, event.ratio, event.sought, event.repeats or "")
            return
        self.ahead.add(event.place)
        if event.place > self.last[0]:
            self.last = (event.place, event.digest)
        while self.until + 1 in self.ahead:
            self.until += 1
            self.ahead.discard(self.until)


@dataclass
class LegState:
    """A leg as far as it is recorded: when it began, how many cases had been offered by then, its phases, what it has
    kept, its findings that are not yet looked into to the end (``open``; ``explored``: those of them that explore will ask for
    again, by the places of their cases), and how many (``shrunk``) are; the cases of those that are (``closed``); how many cases
    each kept entry explains; the runs of the backend that went into looking at failures, and the rules that calls were told to
    hold to (as in CaseDone)."""

    started: LegStarted
    offered: int
    canary: Optional[CanaryDone] = None
    phases: dict[str, PhaseState] = field(default_factory=dict)
    kept: dict[int, FindingKept] = field(default_factory=dict)
    open: dict[int, FindingFound] = field(default_factory=dict)
    explored: dict[int, int] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)
    shrunk: int = 0
    effort: tuple[int, ...] = ()
    named: set[str] = field(default_factory=set)
    explains: Counter[str] = field(default_factory=Counter)

    def close(self, number: int, effort: tuple[int, ...], *, done: bool = True) -> bool:
        """A finding has come to its end; whether it was open. ``done``: what was written of it before is of no use any more."""
        self.effort = effort or self.effort
        self.explored = {place: one for place, one in self.explored.items() if one != number}
        found = self.open.pop(number, None)
        if found is not None and done:
            self.closed.append(found.case.digest)
        return found is not None

    @property
    def unfinished(self) -> bool:
        """Whether it stopped in the middle of something."""
        return bool(self.open) or any(not p.finished for p in self.phases.values())

    @property
    def jobs(self) -> int:
        """Cases that were handed out in the phases that are over."""
        return sum(p.jobs for p in self.phases.values() if p.finished)


@dataclass
class Past:
    """A run as its log has it. ``size``: bytes of the log; ``length``: those that hold; ``damaged``: lines that could not
    be read."""

    directory: Path
    plan: Plan
    started: str
    version: str
    tally: Tally
    size: int = 0
    length: int = 0
    elapsed: float = 0.0
    cases: int = 0
    findings: int = 0
    legs: dict[tuple[str, str], LegState] = field(default_factory=dict)
    disagreements: set[tuple[str, str]] = field(default_factory=set)
    replayed: list[Replayed] = field(default_factory=list)
    kept: list[FindingKept] = field(default_factory=list)
    unfinished: list[Entry] = field(default_factory=list)
    """Entries that were written before they were shrunk, in all lives of the run."""
    finished: Optional[Summary] = None
    damaged: int = 0
    _leg: Optional[LegState] = None
    _phase: Optional[PhaseState] = None
    _entry: Optional[str] = None
    _last: Optional[CaseDone] = None

    @property
    def complete(self) -> bool:
        """Whether there is nothing to go on with: the run came to its end, not because something stopped it, and the corpus had
        room for all that it found."""
        done = self.finished
        if done is None or done.interrupted or done.status == "broken":
            return False
        if any(kept.path is None for kept in self.tally.findings.values()):
            return False
        return not any(leg.unfinished for leg in self.legs.values())

    def over(self, backend: str, profile: str) -> bool:
        """Whether a leg has nothing more to do: all of its phases are over, or a later leg had its turn already."""
        leg = self.legs.get((backend, profile))
        if leg is None or leg.unfinished:
            return False
        later = [*self.legs][-1] != (backend, profile)
        return later or all(p in leg.phases for p in phases_of(self.plan, leg.started.checks))

    def add(self, event: Event) -> None:
        """Take one event in."""
        self.tally.add(event)
        self.elapsed = max(self.elapsed, event.at)
        self.finished = event.summary if isinstance(event, RunFinished) else None
        if isinstance(event, LegStarted):
            key = (event.backend, event.profile)
            if key not in self.legs:
                self.legs[key] = LegState(event, self.tally.offered)
            self._leg = self.legs[key]
        elif isinstance(event, Disagreement):
            self.disagreements.add((event.rule, event.side))
        elif self._leg is not None:
            self._add_to_leg(self._leg, event)

    def _add_to_leg(self, leg: LegState, event: Event) -> None:
        if isinstance(event, CanaryDone):
            leg.canary = event
        elif isinstance(event, PhaseStarted):
            self._phase = leg.phases.setdefault(event.phase, PhaseState())
            self._phase.started = self._phase.started or event
        elif isinstance(event, PhaseFinished):
            state = leg.phases.setdefault(event.phase, PhaseState())
            # Places that are missing from a log with damaged lines are those of the lines.
            if event.reason != "stopped" and not (self.damaged and state.ahead):
                self._close(state)
                leg.explored.clear()
        elif isinstance(event, CaseDone):
            self._case(leg, event)
        elif isinstance(event, FindingFound):
            self.findings = max(self.findings, event.number)
            leg.open[event.number] = event
            case = self._last
            if event.phase == "explore" and case is not None and case.place and case.digest == event.case.digest:
                leg.explored[case.place] = event.number
        elif isinstance(event, FindingKept):
            self.findings = max(self.findings, event.number)
            if event.interrupted:
                self.unfinished.append(event.entry)
                return  # it is still open
            # One that could not be written at first is told again when the run is resumed, before any leg.
            leg = next((one for one in self.legs.values() if event.number in one.kept), leg)
            self._became(leg, event.number, event.entry.id)
            leg.shrunk += leg.close(event.number, event.effort, done=event.path is not None)
            leg.explains[event.entry.id] += event.number not in leg.kept
            leg.kept[event.number] = event
            self.kept.append(event)
        elif isinstance(event, FlakyFound):
            leg.close(event.number, event.effort, done=False)  # it did fail before: what was kept of it stays
        elif isinstance(event, Replayed):
            self._entry = event.entry
            self.replayed.append(event)
        elif isinstance(event, RoundDone) and self._phase is not None:
            self._phase.round = event.round + 1
            self._phase.explored.clear()
            leg.explored.clear()
        elif isinstance(event, FindingRepeated):
            self._became(leg, event.number, event.entry)
            leg.close(event.number, event.effort)
            leg.explains[event.entry] += 1

    def _became(self, leg: LegState, number: int, entry: str) -> None:
        """A finding has its entry; explore asks for that of its case."""
        place = next((place for place, one in leg.explored.items() if one == number), 0)
        explored = self._phase.explored if self._phase is not None else {}
        if place in explored:
            explored[place] = replace(explored[place], entry=entry)

    def _case(self, leg: LegState, event: CaseDone) -> None:
        self.cases, self._last = max(self.cases, event.n), event
        if event.repeats:
            leg.explains[event.repeats] += 1
        leg.effort = event.effort or leg.effort
        leg.named.update(event.held)
        state = leg.phases.setdefault(event.phase, PhaseState())
        state.add(event)
        if event.phase == "replay" and self._entry is not None:
            state.entries.add(self._entry)
            self._entry = None

    @staticmethod
    def _close(state: PhaseState) -> None:
        """A phase that is over needs its counts, and nothing else."""
        state.finished = True
        state.ahead.clear()
        state.explored.clear()


def read_past(directory: Path) -> Past:
    """What the log in a run directory says. ResumeError when it cannot be resumed from."""
    past: Optional[Past] = None
    held: list[tuple[int, Event]] = []  # the last few events wait until it is known that they are whole
    length = damaged = size = 0
    try:
        for end, line in log_lines(directory / EVENTS):
            size = end
            if line and not line.endswith(b"\n"):
                break
            try:
                event = decode_event(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                damaged += 1
                if past is not None:
                    past.damaged = damaged
                continue
            if isinstance(event, RunStarted):
                past = Past(directory, event.plan, event.started, event.version, Tally())
                held.clear()
                past.add(event)
                length = end
                continue
            if past is None:
                past = _from_record(directory)  # the line with the plan is damaged
            held.append((end, event))
            if len(held) > CUT:
                length, first = held.pop(0)
                past.add(first)
    except OSError as error:
        raise ResumeError(f"{directory / EVENTS}: {error.strerror or error}") from None
    if past is None:
        past = _from_record(directory)
    for end, event in _whole(held):
        past.add(event)
        length = end
    past.size, past.length, past.damaged = size, length, damaged
    _check(past)
    return past


def _whole(held: list[tuple[int, Event]]) -> list[tuple[int, Event]]:
    """The last events of a log without a beginning whose end is missing."""
    found = list(held)
    while found:
        last = found[-1][1]
        if isinstance(last, CaseDone) and last.verdict.status in (FINDING, FLAKY) and not last.repeats:
            found.pop()  # FindingFound or FlakyFound was to follow
        elif isinstance(last, Replayed):
            found.pop()  # its case was to follow
        elif isinstance(last, FindingKept) and len(found) > 1 and isinstance(found[-2][1], Replayed):
            found.pop()  # so here: the finding that a replayed entry stands for
        else:
            break
    return found


def _from_record(directory: Path) -> Past:
    """A run that was killed before its first event: its plan is in run.json."""
    path = directory / RECORD
    try:
        record = msgspec.json.decode(read_regular(path, MAX_RECORD_BYTES), type=dict[str, msgspec.Raw])
        plan = msgspec.json.decode(record["plan"], type=Plan)
        started, version = (msgspec.json.decode(record[name], type=str) for name in ("started", "version"))
    except KeyError as error:
        raise ResumeError(f"{path}: no {error.args[0]}") from None
    except OSError as error:
        raise ResumeError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ResumeError(f"{path}: {clean(' '.join(str(error).split()), 200)}") from None
    past = Past(directory, plan, started, version, Tally())
    past.tally.seed, past.tally.directory = plan.seed, str(directory)
    return past


def _check(past: Past) -> None:
    """ResumeError where going on could not give what the run would have given."""
    if past.version != __version__:
        raise ResumeError(
            f"{past.directory}: the run was made by fiafuzz {clean(past.version, 40)}, this is {__version__}, "
            "whose cases may be others; start a new run"
        )
    try:
        check(past.plan)
    except PlanError as error:
        raise ResumeError(f"{past.directory}: the plan in the log makes no sense: {error}") from None
    if not past.complete and not Path(past.plan.corpus).is_dir():
        raise ResumeError(
            f"{past.directory}: its corpus {past.plan.corpus} is not here; resume from the directory that the run was started in"
        )
