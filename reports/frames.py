"""A run as pandas data frames: ``fiafuzz.load_run(path)``.

The log is read once, line by line (``reports.gathered``), so that a hundred thousand cases take some tens of megabytes. A log that
ends early gives what it holds. The columns are those of ``reports.frame_columns``.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Optional

import pandas as pd

from fiafuzz.campaign.events import LegStarted, RunStarted, Summary

from .coverage import NOT_RUN, RuleUse, facts_of
from .frame_columns import COVERAGE, FACTOR, FRAMES, RULES, VERDICTS, Columns
from .gathered import BIG, Gathered
from .run_data import added_up, read_events


def load_run(path: str | Path) -> Run:
    """Read a run directory (or an events.ndjson) into data frames.

    Works on the log of a run that was killed or is still going; lines that cannot be read are passed over and counted in
    ``damaged_lines``. Raises RunError (a ValueError), one line, when there is no log.
    """
    damaged: list[int] = []
    gathered = added_up(read_events(path, damaged), Gathered)
    return Run(Path(path), gathered, len(damaged))


class Run:
    """One run. The frames: ``cases``, ``verdicts``, ``rules``, ``coverage``, ``findings``; each is made when it is asked for.

    ``started`` holds the plan and the versions of fiafuzz, ``legs`` the backends with theirs, ``summary`` the end of the
    run: None when the log ends before (``complete`` is False then).
    """

    def __init__(self, path: Path, gathered: Gathered, damaged_lines: int) -> None:
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


# ---- frames that are counted from the cases -------------------------------------------------------------------------


def _rules(gathered: Gathered) -> pd.DataFrame:
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
                    "held_by": min(use.held, BIG),
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


def _coverage(cases: pd.DataFrame, gathered: Gathered) -> pd.DataFrame:
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
