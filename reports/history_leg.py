"""What the history needs of one run, read from its log in one pass; memory does not grow with the number of cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

import msgspec

from fiafuzz.campaign.codes import title
from fiafuzz.campaign.corpus import read_regular
from fiafuzz.campaign.events import (
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
    RunFinished,
    RunResumed,
    RunStarted,
)
from fiafuzz.model.profiles import PROFILES

from .coverage import NOT_RUN, RuleCoverage, facts_of
from .run_data import added_up, read_events

MAX_RECORD = 16 * 1024 * 1024


@dataclass(frozen=True)
class Seen:
    """A finding in a leg. ``new``: the corpus of the run did not have it."""

    id: str
    code: str
    title: str
    rule: Optional[str] = None
    new: bool = False
    issue: Optional[str] = None
    reproduce: str = ""


@dataclass
class LegRecord:
    """One backend under one profile in one run. ``passing``: entries that were replayed and did not fail, with the status
    (fixed or passing). ``labels``: (rule, "answer" or "side") -> label."""

    backend: str
    profile: str
    versions: Mapping[str, str] = field(default_factory=dict)
    cases: int = 0
    phase_seconds: dict[str, float] = field(default_factory=dict)
    rules_reached: int = 0
    rules: int = 0
    pairs_met: int = 0
    pairs: int = 0
    failing: dict[str, Seen] = field(default_factory=dict)
    passing: dict[str, str] = field(default_factory=dict)
    flaky: dict[str, Seen] = field(default_factory=dict)
    labels: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Time that its phases took."""
        return sum(self.phase_seconds.values())


@dataclass
class RunRecord:
    """One run. ``started`` in ISO form, "" when the log does not tell; ``label``: the build's name in run.json, if any."""

    path: Path
    name: str
    started: str = ""
    status: str = "incomplete"
    complete: bool = False
    label: str = ""
    legs: dict[tuple[str, str], LegRecord] = field(default_factory=dict)


def read_record(path: Path) -> RunRecord:
    """A run directory (or an event log) for the history. RunError when there is no log."""
    folder = path if path.is_dir() else path.parent
    name, label = folder.resolve().name, _label(folder)
    return added_up(read_events(path), lambda: _Reader(RunRecord(path, name, label=label))).finish()


def _label(folder: Path) -> str:
    """The build's name that somebody has put into run.json ("build"); "" without one."""
    try:
        data = msgspec.json.decode(read_regular(folder / "run.json", MAX_RECORD), type=dict[str, msgspec.Raw])
        return msgspec.json.decode(data["build"], type=str) if "build" in data else ""
    except (OSError, ValueError, RecursionError):  # msgspec.DecodeError is a ValueError
        return ""


class _Pairs:
    """Which feasible pairs of factor words the accepted calls of a leg have."""

    def __init__(self, profile: str) -> None:
        from strategies.plan import Infeasible
        from strategies.tuples import feasible_tuples

        self._index: Mapping[tuple[str, str], int] = {}
        self._feasible: tuple[int, ...] = ()
        if profile in PROFILES:
            try:
                tuples = feasible_tuples(profile)
            except Infeasible:
                return
            self._index, self._feasible = tuples.literals.index, tuples.pairs
        self._met = [0] * len(self._feasible)

    def add(self, names: tuple[str, ...], factors: str) -> None:
        """Count one call."""
        index = self._index
        if not index:
            return
        numbers = sorted(n for n in map(index.get, zip(names, factors.split("|"))) if n is not None)
        seen = 0
        for number in numbers:
            self._met[number] |= seen
            seen |= 1 << number

    def counts(self) -> tuple[int, int]:
        """Pairs met, and pairs that are feasible."""
        met = sum((m & possible).bit_count() for m, possible in zip(self._met, self._feasible)) if self._index else 0
        return met, sum(possible.bit_count() for possible in self._feasible)


class _Reader:
    """Takes the events of one log."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.names: tuple[str, ...] = ()
        self.rules = RuleCoverage()
        self.pairs: dict[tuple[str, str], _Pairs] = {}
        self.open: dict[int, tuple[LegRecord, FindingFound]] = {}
        self.unfinished: dict[int, tuple[LegRecord, FindingKept]] = {}
        """Kept before they were shrunk, since the run was asked to stop."""
        self.here: Optional[LegRecord] = None
        self.phase_began: Optional[float] = None
        self.phase = ""
        self.last = 0.0
        self.flaky_entry: Optional[str] = None

    def add(self, event: Event) -> None:
        """Take one event in."""
        self.rules.add(event)
        record = self.record
        if isinstance(event, RunStarted):
            record.started = event.started
            self.names = event.factors
        elif isinstance(event, RunFinished):
            record.status, record.complete = event.summary.status, True
        elif isinstance(event, RunResumed):
            record.status, record.complete = "incomplete", False
        elif isinstance(event, (LegStarted, PhaseStarted)):
            self._leg(event)
        elif self.here is not None:
            self._of_leg(event, self.here)
        self.last = event.at

    def _leg(self, event: LegStarted | PhaseStarted) -> None:
        self._close_phase()
        key = (event.backend, event.profile)
        self.here = self.record.legs.setdefault(key, LegRecord(*key))
        if isinstance(event, LegStarted):
            self.here.versions = event.versions
        else:
            self.phase_began, self.phase = event.at, event.phase

    def _close_phase(self) -> None:
        """A phase without an end (a killed run) lasted until the last event."""
        if self.phase_began is not None and self.here is not None:
            told = self.here.phase_seconds
            told[self.phase] = told.get(self.phase, 0.0) + max(0.0, self.last - self.phase_began)
        self.phase_began = None

    def _of_leg(self, event: Event, leg: LegRecord) -> None:
        if isinstance(event, CaseDone):
            self._case(event, leg)
        elif isinstance(event, PhaseFinished):
            leg.phase_seconds[event.phase] = event.seconds  # of a resumed phase, too, this is all of its time
            self.phase_began = None
        elif isinstance(event, FindingFound):
            self.open[event.number] = (leg, event)
        elif isinstance(event, FindingKept):
            self.open.pop(event.number, None)
            self.unfinished.pop(event.number, None)
            if event.interrupted:
                self.unfinished[event.number] = (leg, event)
            else:
                self._kept(event, leg)
        elif isinstance(event, FindingRepeated):
            self.open.pop(event.number, None)
            self.unfinished.pop(event.number, None)
        elif isinstance(event, FlakyFound):
            self.open.pop(event.number, None)
            code = event.verdict.code or ""
            name = self.flaky_entry if event.number == 0 and self.flaky_entry else f"{code}-{event.case.digest}"
            leg.flaky[name] = Seen(name, code, title(code), event.verdict.rule)
            self.flaky_entry = None
        elif isinstance(event, Replayed):
            self.flaky_entry = event.entry if event.status == "flaky" else None
            if event.status in ("fixed", "passing"):
                leg.passing[event.entry] = event.status
        elif isinstance(event, Disagreement):
            leg.labels[(event.rule, "side")] = event.side

    def _case(self, event: CaseDone, leg: LegRecord) -> None:
        if event.verdict.status in NOT_RUN:
            return
        leg.cases += 1
        if event.foreseen == "accept" and event.factors:
            key = (leg.backend, leg.profile)
            if key not in self.pairs:
                self.pairs[key] = _Pairs(leg.profile)
            self.pairs[key].add(self.names, event.factors)

    @staticmethod
    def _kept(event: FindingKept, leg: LegRecord) -> None:
        entry, before = event.entry, leg.failing.get(event.entry.id)
        leg.failing[entry.id] = Seen(
            entry.id,
            entry.signature.code,
            entry.title,
            entry.signature.rule,
            event.new or (before is not None and before.new),
            event.known,
            entry.reproduce,
        )

    def finish(self) -> RunRecord:
        """The record, closed."""
        self._close_phase()
        for leg, kept in self.unfinished.values():
            self._kept(kept, leg)
        for leg, found in self.open.values():
            code = found.verdict.code or ""
            name = f"{code}-{found.case.digest}"
            leg.failing.setdefault(name, Seen(name, code, title(code), found.verdict.rule, new=True))
        for key, leg in self.record.legs.items():
            used = self.rules.legs[key].rules if key in self.rules.legs else {}
            facts = facts_of(leg.profile) if leg.profile in PROFILES else ()
            counted = [f for f in facts if not f.apart]
            leg.rules = len(counted)
            leg.rules_reached = sum(f.rule.id in used and used[f.rule.id].reached for f in counted)
            leg.pairs_met, leg.pairs = (self.pairs.get(key) or _Pairs(leg.profile)).counts()
            for rule, use in used.items():
                if use.disagreed or use.agreed:
                    leg.labels[(rule, "answer")] = "disagreed" if use.disagreed else "agreed"
        return self.record
