"""History: what changed from one nightly run to the next, a backend and profile at a time.

A *leg* is one backend under one profile in one run. Legs of the same backend and profile, ordered by the start of their
runs, form a line; each is compared with those before it in its line:

    new      fails, and neither an earlier run nor the corpus of its own run had it
    back     fails again after an earlier run saw it fixed
    known    fails, and was known before (by an earlier run, by the corpus, or by an issue)
    fixed    failed when it was last looked at, and passes now
    flaky    failed in some of several tries
    unseen   failed last time; this run neither met it nor replayed it

A rule's *label* is whether calls made for it were answered as predicted (agreed) or not (disagreed), and on ground where
documents and source differ the side that the backend took; a *flip* is a label that differs from the last one known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Optional

import msgspec

from oracles.constraints.catalogue import rule_by_id

from .history_leg import LegRecord, RunRecord, read_record

MARKS: tuple[str, ...] = ("new", "back", "known", "fixed", "flaky", "unseen")
BUILD_KEYS: tuple[str, ...] = ("cann", "opp", "operators", "torch_npu")
"""Beginnings of the version names that tell one NPU build from another, in the order in which they name it."""


class Line(msgspec.Struct, frozen=True):
    """A finding in a leg. ``issue`` accounts for it."""

    id: str
    code: str
    title: str
    rule: Optional[str] = None
    issue: Optional[str] = None
    reproduce: str = ""


class Flip(msgspec.Struct, frozen=True):
    """A rule whose label changed: from which to which, and the run that had the former."""

    rule: str
    title: str
    before: str
    after: str
    since: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One leg of one run, compared with those before it. ``rate``: cases a second; ``rules_reached`` of ``rules`` and
    ``pairs_met`` of ``pairs`` count those of the profile."""

    run: str
    build: str
    started: str
    backend: str
    profile: str
    status: str
    complete: bool
    cases: int
    seconds: float
    rate: float
    rules_reached: int
    rules: int
    pairs_met: int
    pairs: int
    new: tuple[Line, ...] = ()
    back: tuple[Line, ...] = ()
    known: tuple[Line, ...] = ()
    fixed: tuple[Line, ...] = ()
    flaky: tuple[Line, ...] = ()
    unseen: tuple[Line, ...] = ()
    flips: tuple[Flip, ...] = ()
    versions: dict[str, str] = {}

    @property
    def failing(self) -> int:
        """Findings that fail, whatever is known of them."""
        return len(self.new) + len(self.back) + len(self.known)


def history(paths: Iterable[Path], labels: Mapping[str, str] | None = None) -> tuple[Row, ...]:
    """Compare runs. ``labels``: build names by path or name of the run directory. Rows are ordered by start, then as in the run.

    RunError when a run cannot be read.
    """
    return compare([read_record(path) for path in paths], labels or {})


def compare(records: Sequence[RunRecord], labels: Mapping[str, str]) -> tuple[Row, ...]:
    """Rows for records of runs, in whatever order these come."""
    ordered = sorted(records, key=lambda r: (r.started, r.name))
    names = _builds(ordered, labels)
    lines: dict[tuple[str, str], _Past] = {}
    rows = []
    for record in ordered:
        for key, leg in record.legs.items():
            past = lines.setdefault(key, _Past())
            rows.append(past.next(record, leg, names[(record.path, key)]))
    return tuple(rows)


class _Past:
    """What the earlier legs of a line have shown."""

    def __init__(self) -> None:
        self.seen: dict[str, Line] = {}
        self.state: dict[str, str] = {}
        self.labels: dict[tuple[str, str], tuple[str, str]] = {}

    def next(self, record: RunRecord, leg: LegRecord, build: str) -> Row:
        """The row of the next leg; from then on it belongs to the past."""
        marks: dict[str, list[Line]] = {mark: [] for mark in MARKS}
        for finding in leg.failing.values():
            line = Line(finding.id, finding.code, finding.title, finding.rule, finding.issue, finding.reproduce)
            before = self.state.get(line.id)
            fresh = before is None and finding.new and line.issue is None
            marks["back" if before == "fixed" else "new" if fresh else "known"].append(line)
            self.seen[line.id] = line
        for name, status in leg.passing.items():
            if name not in leg.failing and self.state.get(name, "failing" if status == "fixed" else "fixed") != "fixed":
                marks["fixed"].append(self.seen.get(name) or Line(name, name[:4], ""))
        marks["flaky"] = [Line(f.id, f.code, f.title, f.rule) for f in leg.flaky.values() if f.id not in leg.failing]
        looked_at = {*leg.failing, *leg.passing, *leg.flaky}
        marks["unseen"] = [self.seen[name] for name, state in self.state.items() if state == "failing" and name not in looked_at]
        flips = self._flips(record, leg)
        self.state.update(dict.fromkeys(leg.passing, "fixed"))
        self.state.update(dict.fromkeys(leg.failing, "failing"))
        return Row(
            run=record.name,
            build=build,
            started=record.started,
            backend=leg.backend,
            profile=leg.profile,
            status=record.status,
            complete=record.complete,
            cases=leg.cases,
            seconds=round(leg.seconds, 3),
            rate=round(leg.cases / leg.seconds, 2) if leg.seconds > 0 else 0.0,
            rules_reached=leg.rules_reached,
            rules=leg.rules,
            pairs_met=leg.pairs_met,
            pairs=leg.pairs,
            flips=flips,
            versions=dict(leg.versions),
            **{mark: tuple(sorted(lines, key=lambda line: line.id)) for mark, lines in marks.items()},
        )

    def _flips(self, record: RunRecord, leg: LegRecord) -> tuple[Flip, ...]:
        found = []
        known = rule_by_id()
        for key, label in sorted(leg.labels.items()):
            before = self.labels.get(key)
            if before is not None and before[0] != label:
                rule = known.get(key[0])
                found.append(Flip(key[0], rule.title if rule else "", before[0], label, before[1]))
            self.labels[key] = (label, record.name)
        return tuple(found)


# ---- naming builds --------------------------------------------------------------------------------------------------


def _builds(records: Sequence[RunRecord], labels: Mapping[str, str]) -> dict[tuple[Path, tuple[str, str]], str]:
    """A name for the build of each leg: the label given for its run, else the versions that name a build, else those that
    differ along its line, else the name of the run."""
    lines: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for record in records:
        for key, leg in record.legs.items():
            lines.setdefault(key, []).append(leg.versions)
    found = {}
    for record in records:
        for key, leg in record.legs.items():
            label = labels.get(str(record.path)) or labels.get(record.name) or record.label
            found[(record.path, key)] = label or _named(leg.versions, lines[key]) or record.name
    return found


def _named(versions: Mapping[str, str], line: Sequence[Mapping[str, str]]) -> str:
    ranked = [
        (rank, name) for name in versions for rank, start in enumerate(BUILD_KEYS) if name.lower().split(" ")[0] == start and versions[name]
    ]
    names = [name for _, name in sorted(ranked)]
    if not names:
        names = [name for name in versions if any(other.get(name) != versions[name] for other in line)]
    return ", ".join(f"{name} {versions[name]}" for name in names)
