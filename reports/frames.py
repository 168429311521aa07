"""A run as pandas data frames: ``fiafuzz.load_run(path)``.

The log is read once, line by line; words are kept as small numbers, so that a hundred thousand cases take some tens of
megabytes. A log that ends early gives what it holds. The columns are those of ``reports.frame_columns``.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd

from fiafuzz.campaign.events import (
    CaseDone,
    Event,
    FindingFound,
    FindingKept,
    FindingRepeated,
    FlakyFound,
    LegStarted,
    PhaseStarted,
    Replayed,
    RunFinished,
    RunResumed,
    RunStarted,
    Summary,
)
from fiafuzz.model.factors import FACTORS

from .coverage import NOT_RUN, RuleCoverage, RuleUse, facts_of
from .frame_columns import CASES, COVERAGE, FACTOR, FRAMES, RULES, VERDICTS, Columns
from .run_data import read_events

_BIG = (1 << 63) - 1


def load_run(path: str | Path) -> Run:
    """Read a run directory (or an events.ndjson) into data frames.

    Works on the log of a run that was killed or is still going; lines that cannot be read are passed over and counted in
    ``damaged_lines``. Raises RunError (a ValueError), one line, when there is no log.
    """
    damaged: list[int] = []
    gathered = _Gathered()
    for event in read_events(path, damaged):
        gathered.add(event)
    return Run(Path(path), gathered, len(damaged))


class Run:
    """One run. The frames: ``cases``, ``verdicts``, ``rules``, ``coverage``, ``findings``; each is made when it is asked for.

    ``started`` holds the plan and the versions of fiafuzz, ``legs`` the backends with theirs, ``summary`` the end of the
    run: None when the log ends before (``complete`` is False then).
    """

    def __init__(self, path: Path, gathered: _Gathered, damaged_lines: int) -> None:
        self.path = path
        self.damaged_lines = damaged_lines
        self.started: Optional[RunStarted] = gathered.started
        self.legs: tuple[LegStarted, ...] = tuple(gathered.legs.values())
        self.summary: Optional[Summary] = gathered.summary
        self._gathered = gathered

    def __repr__(self) -> str:
        state = self.summary.status if self.summary is not None else "incomplete"
        return f"<run {self.path}: {len(self._gathered.columns)} cases, {state}>"

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""
        return self.summary is not None

    @cached_property
    def cases(self) -> pd.DataFrame:
        """One row a case, in the order of the log."""
        return self._gathered.columns.frame()

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """Cases counted by backend, profile, phase, mode, prediction and verdict."""
        keys = [name for name, (dtype, _) in VERDICTS.items() if dtype == "category"]
        grouped = self.cases.groupby(keys, observed=True, dropna=False, sort=True)
        found = grouped.agg(
            cases=("n", "size"), seconds=("seconds", "sum"), compared=("compared", "sum"), untestable=("untestable", "sum")
        ).reset_index()
        return typed(found, VERDICTS)

    @cached_property
    def rules(self) -> pd.DataFrame:
        """One row for each rule of each leg, reached or not, and for rules of the log that this version does not know."""
        return _rules(self._gathered)

    @cached_property
    def coverage(self) -> pd.DataFrame:
        """1-, 2- and 3-way coverage of scene factors, a row each for every leg."""
        return _coverage(self.cases, self._gathered)

    @cached_property
    def findings(self) -> pd.DataFrame:
        """One row a finding, flaky failure and fixed entry."""
        from .finding_rows import finding_frame

        return finding_frame(self._gathered.found, self._gathered.legs, self._gathered.columns.repeats.counts())

    def frames(self) -> dict[str, pd.DataFrame]:
        """All frames by name."""
        return {name: getattr(self, name) for name in FRAMES}

    def to_csv(self, folder: str | Path) -> list[Path]:
        """Write every frame to ``folder``/NAME.csv; returns the paths. OSError when one cannot be written."""
        from .tables import csv_tables, write_tables

        return write_tables(Path(folder), csv_tables(self.frames()))

    def to_parquet(self, folder: str | Path) -> list[Path]:
        """Write every frame to ``folder``/NAME.parquet; returns the paths. MissingExtra without pyarrow, OSError when one
        cannot be written."""
        from .tables import parquet_tables, write_tables

        return write_tables(Path(folder), parquet_tables(self.frames()))


# ---- gathering ------------------------------------------------------------------------------------------------------


class _Words:
    """A column of words: a small number a row, -1 where there is none."""

    __slots__ = ("codes", "numbers")

    def __init__(self) -> None:
        self.codes = array("i")
        self.numbers: dict[Any, int] = {}

    def add(self, word: Optional[Any]) -> None:
        """One row more."""
        self.codes.append(-1 if word is None else self.numbers.setdefault(word, len(self.numbers)))

    def column(self) -> pd.Categorical:
        """As a categorical column; the words are sorted."""
        words = list(self.numbers)
        order = sorted(range(len(words)), key=words.__getitem__)
        place = np.full(len(words) + 1, -1, dtype=np.int32)
        place[order] = np.arange(len(words), dtype=np.int32)
        # place[-1], the last one, is that of "no word".
        return pd.Categorical.from_codes(place[np.frombuffer(self.codes, dtype=np.int32)], [words[i] for i in order])

    def counts(self) -> dict[Any, int]:
        """How often each word stands in the column."""
        codes = np.frombuffer(self.codes, dtype=np.int32)
        counted = np.bincount(codes[codes >= 0], minlength=len(self.numbers))
        return {word: int(counted[number]) for word, number in self.numbers.items()}


class _CaseColumns:
    """The columns of ``cases`` while the log is read."""

    def __init__(self) -> None:
        self.floats = {name: array("d") for name, (dtype, _) in CASES.items() if dtype == "float64"}
        self.ints = {name: array("q") for name, (dtype, _) in CASES.items() if dtype == "int64"}
        self.words = {name: _Words() for name, (dtype, _) in CASES.items() if dtype == "category"}
        self.digests: list[str] = []
        self.factors = _Words()
        self.factor_names: list[tuple[str, ...]] = [tuple(FACTORS)]

    def __len__(self) -> int:
        return len(self.digests)

    @property
    def repeats(self) -> _Words:
        """The entries that explain failures."""
        return self.words["repeats"]

    def add(self, event: CaseDone, backend: Optional[str], profile: Optional[str]) -> None:
        """One case."""
        verdict, floats, ints, words = event.verdict, self.floats, self.ints, self.words
        ints["n"].append(min(event.n, _BIG))
        ints["compared"].append(min(event.compared, _BIG))
        ints["untestable"].append(min(event.untestable, _BIG))
        floats["at"].append(event.at)
        floats["seconds"].append(event.seconds)
        floats["ratio"].append(event.ratio)
        words["backend"].add(backend)
        words["profile"].add(profile)
        words["phase"].add(event.phase)
        words["mode"].add(event.mode)
        words["foreseen"].add(event.foreseen)
        words["due"].add(" ".join(map(str, event.codes)) if event.codes and event.foreseen != "accept" else None)
        words["breaks"].add(" ".join(event.rules) if event.rules else None)
        words["got"].add(event.got or None)
        words["got_code"].add(None if event.got_code is None else str(event.got_code))
        words["status"].add(verdict.status)
        words["code"].add(verdict.code)
        words["about"].add(verdict.rule)
        words["text"].add(verdict.text or None)
        words["rule"].add(event.rule)
        words["side"].add(event.side)
        words["repeats"].add(event.repeats)
        self.digests.append(event.digest)
        self.factors.add((len(self.factor_names) - 1, event.factors) if event.factors else None)

    def frame(self) -> pd.DataFrame:
        """As a data frame."""
        data: dict[str, Any] = {}
        for name, (dtype, _) in CASES.items():
            if dtype == "float64":
                data[name] = np.frombuffer(self.floats[name], dtype=np.float64)
            elif dtype == "int64":
                data[name] = np.frombuffer(self.ints[name], dtype=np.int64)
            elif dtype == "category":
                data[name] = self.words[name].column()
            else:
                data[name] = pd.array(self.digests, dtype="string")
        data.update(self._factor_columns())
        return pd.DataFrame(data)

    def _factor_columns(self) -> dict[str, pd.Categorical]:
        columns = {name: _Words() for names in self.factor_names for name in names}
        for which, joined in self.factors.numbers:
            names, words = self.factor_names[which], joined.split("|")
            met = dict(zip(names, words)) if len(names) == len(words) else {}
            for name, column in columns.items():
                column.add(met.get(name))
        row = np.frombuffer(self.factors.codes, dtype=np.int32)
        found = {}
        for name, column in columns.items():
            kinds = column.column()
            codes = np.append(np.asarray(kinds.codes, dtype=np.int32), np.int32(-1))[row]
            found[FACTOR + name] = pd.Categorical.from_codes(codes, kinds.categories)
        return found


@dataclass
class Found:
    """What the log tells of findings."""

    found: dict[int, FindingFound] = field(default_factory=dict)
    kept: list[tuple[FindingKept, tuple[str, str]]] = field(default_factory=list)
    repeated: dict[int, FindingRepeated] = field(default_factory=dict)
    flaky: list[tuple[FlakyFound, tuple[str, str], Optional[str]]] = field(default_factory=list)
    replayed: list[tuple[Replayed, tuple[str, str]]] = field(default_factory=list)


class _Gathered:
    """Takes the events of a log one by one."""

    def __init__(self) -> None:
        self.started: Optional[RunStarted] = None
        self.legs: dict[tuple[str, str], LegStarted] = {}
        self.summary: Optional[Summary] = None
        self.columns = _CaseColumns()
        self.rules = RuleCoverage()
        self.found = Found()
        self.leg: tuple[Optional[str], Optional[str]] = (None, None)
        self._flaky_entry: Optional[str] = None

    @property
    def _here(self) -> tuple[str, str]:
        return self.leg[0] or "", self.leg[1] or ""

    def add(self, event: Event) -> None:
        """Take one event in."""
        self.rules.add(event)
        if isinstance(event, CaseDone):
            self.columns.add(event, *self.leg)
        elif isinstance(event, RunResumed):
            self.summary = None  # an end that stands before it was not the end
        elif isinstance(event, RunStarted):
            if self.started is not None:  # a log that holds two runs is about the last of them
                self.__init__()  # type: ignore[misc]
                self.rules.add(event)
            self.started = event
            if event.factors != self.columns.factor_names[-1]:
                self.columns.factor_names.append(event.factors)
        elif isinstance(event, (LegStarted, PhaseStarted)):
            self.leg = (event.backend, event.profile)
            if isinstance(event, LegStarted):
                self.legs[self._here] = event
        elif isinstance(event, FindingFound):
            self.found.found[event.number] = event
        elif isinstance(event, FindingKept):
            self._shrunk(event.number)
            self.found.kept.append((event, self._here))
        elif isinstance(event, FindingRepeated):
            self._shrunk(event.number)
            self.found.repeated[event.number] = event
        elif isinstance(event, FlakyFound):
            self.found.flaky.append((event, self._here, self._flaky_entry))
            self._flaky_entry = None
        elif isinstance(event, Replayed):
            self.found.replayed.append((event, self._here))
            # Of a flaky entry the log goes on to tell how often it failed.
            self._flaky_entry = event.entry if event.status == "flaky" else None
        elif isinstance(event, RunFinished):
            self.summary = event.summary


    def _shrunk(self, number: int) -> None:
        """A finding that was kept before it was shrunk, since the run was asked to stop, has come to another end now."""
        self.found.kept = [(kept, leg) for kept, leg in self.found.kept if kept.number != number or not kept.interrupted]


# ---- frames that are counted from the cases -------------------------------------------------------------------------


def _rules(gathered: _Gathered) -> pd.DataFrame:
    from oracles.constraints.catalogue import rule_by_id
    from oracles.constraints.statements import lines_of

    known = rule_by_id()
    findings = Counter({(k.entry.signature.backend, k.entry.profile, k.entry.signature.rule, k.entry.id) for k, _ in gathered.found.kept})
    named = Counter(key[:3] for key in findings)
    rows = []
    for (backend, profile), leg in gathered.rules.legs.items():
        facts = {f.rule.id: f for f in (facts_of(profile) if _known(profile) else ())}
        for rule_id in dict.fromkeys([*facts, *sorted(leg.rules)]):
            fact, rule, use = facts.get(rule_id), known.get(rule_id), leg.rules.get(rule_id, RuleUse())
            rows.append(
                {
                    "backend": backend,
                    "profile": profile,
                    "rule": rule_id,
                    "group": rule.group if rule else None,
                    "title": rule.title if rule else None,
                    "level": rule.level.value if rule else None,
                    "stage": rule.stage.key if rule else None,
                    "state": fact.state(use) if fact else None,
                    "reached": use.reached,
                    "held_by": min(use.held, _BIG),
                    **{name: getattr(use, name) for name in ("alone", "together", "agreed", "disagreed", "disputed", "not_run")},
                    **{way: fact.count(use, way) if fact else None for way in ("below", "at", "above")},
                    "sides": " ".join(f"{side}={number}" for side, number in sorted(use.sides.items())),
                    "findings": named[(backend, profile, rule_id)],
                    "cites": " ".join(rule.cites) if rule else "",
                    "lines": lines_of(rule.cites) if rule else "",
                }
            )
    return typed(pd.DataFrame(rows, columns=list(RULES)), RULES)


def _known(profile: str) -> bool:
    from fiafuzz.model.profiles import PROFILES

    return profile in PROFILES


def _coverage(cases: pd.DataFrame, gathered: _Gathered) -> pd.DataFrame:
    from strategies.plan import Infeasible

    from .tway import Coverage

    columns = [name for name in cases.columns if name.startswith(FACTOR)]
    names = [name[len(FACTOR) :] for name in columns]
    counted = cases[(cases["foreseen"] == "accept") & ~cases["status"].isin(NOT_RUN)]
    rows = []
    for backend, profile in gathered.legs:
        if not _known(profile):
            continue
        mine = counted[(counted["backend"] == backend) & (counted["profile"] == profile)]
        mine = mine[columns].dropna(how="all")
        try:
            coverage = Coverage(profile)
        except Infeasible:
            continue
        for words in mine.drop_duplicates().astype(object).itertuples(index=False):
            coverage.add({name: word for name, word in zip(names, words) if isinstance(word, str)})
        for share in coverage.shares():
            rows.append(
                {
                    "backend": backend,
                    "profile": profile,
                    "t": share.t,
                    "cases": len(mine),
                    "covered": share.covered,
                    "feasible": share.feasible,
                    "outside": share.outside,
                    "ratio": share.ratio,
                }
            )
    return typed(pd.DataFrame(rows, columns=list(COVERAGE)), COVERAGE)


def typed(frame: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """The frame with its columns in the documented order and dtypes."""
    return frame[list(columns)].astype({name: dtype for name, (dtype, _) in columns.items()})
