"""What the data frames are made of: the events of a run, gathered line by line; words are kept as small numbers."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
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

from .coverage import RuleCoverage
from .frame_columns import CASES, FACTOR

BIG = (1 << 63) - 1
"""The largest number that a column holds; what the log has beyond is cut to it."""


class Words:
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


class CaseColumns:
    """The columns of ``cases`` while the log is read."""

    def __init__(self) -> None:
        self.floats = {name: array("d") for name, (dtype, _) in CASES.items() if dtype == "float64"}
        self.ints = {name: array("q") for name, (dtype, _) in CASES.items() if dtype == "int64"}
        self.words = {name: Words() for name, (dtype, _) in CASES.items() if dtype == "category"}
        self.digests: list[str] = []
        self.factors = Words()
        self.factor_names: list[tuple[str, ...]] = [tuple(FACTORS)]

    def __len__(self) -> int:
        return len(self.digests)

    @property
    def repeats(self) -> Words:
        """The entries that explain failures."""
        return self.words["repeats"]

    def add(self, event: CaseDone, backend: Optional[str], profile: Optional[str]) -> None:
        """One case."""
        verdict, floats, ints, words = event.verdict, self.floats, self.ints, self.words
        ints["n"].append(min(event.n, BIG))
        ints["compared"].append(min(event.compared, BIG))
        ints["untestable"].append(min(event.untestable, BIG))
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
        columns = {name: Words() for names in self.factor_names for name in names}
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


class Gathered:
    """Takes the events of a log one by one."""

    def __init__(self) -> None:
        self.started: Optional[RunStarted] = None
        self.legs: dict[tuple[str, str], LegStarted] = {}
        self.summary: Optional[Summary] = None
        self.columns = CaseColumns()
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
