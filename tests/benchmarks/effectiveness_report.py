"""The tables of bench_effectiveness.py as Markdown: a summary of one screen, then a row for each fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isinf
from typing import Any

from fiafuzz.backends.faults import Fault
from tests.benchmarks.effectiveness_statistics import ALPHA, a12, censored_median, p_value, size_class

Line = Mapping[str, Any]
"""One finished (tool, seed)."""
BASE = "fiafuzz"
TWINS = {"fiafuzz-all": "hypothesis-all"}
"""Tools that are compared with another one than the base: those that are not told the mode of a fault, among themselves."""
SIZES = ("large", "medium", "small", "negligible")


@dataclass
class Runs:
    """What the runs of a tool gave: cases and seconds to each fault (infinite: not found), one value a run."""

    cases: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    streams: list[Mapping[str, Any]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    def add(self, line: Line) -> None:
        """Take one run."""
        self.seeds.append(line["seed"])
        for stream in line["streams"]:
            self.streams.append(stream)
            for name, (cases, seconds, _) in stream["found"].items():
                self._put(name, cases, seconds)
            for name in stream["hidden"]:
                self._put(name, inf, inf)

    def _put(self, name: str, cases: float, seconds: float) -> None:
        self.cases.setdefault(name, []).append(cases)
        self.seconds.setdefault(name, []).append(seconds)

    def of(self, name: str, runs: int, measure: str = "cases") -> list[float]:
        """Cases (or seconds) to a fault. A tool without a seed has run once; that run stands for as many as it is compared with."""
        values = self.cases[name] if measure == "cases" else self.seconds[name]
        return values * runs if len(values) == 1 else values


def collect(lines: Sequence[Line]) -> dict[str, Runs]:
    """Runs by tool."""
    found: dict[str, Runs] = {}
    for line in lines:
        found.setdefault(line["tool"], Runs()).add(line)
    return found


def shown(value: float, digits: int = 0) -> str:
    """A number; a dash for what was not found."""
    return "–" if isinf(value) else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def share(part: float, whole: float) -> str:
    """A percentage; a dash of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def _streams(runs: Runs, profile: str, *modes: str) -> list[Mapping[str, Any]]:
    return [s for s in runs.streams if s["profile"] == profile and s["mode"] in modes]


def _covered(streams: Sequence[Mapping[str, Any]], cases: str) -> str:
    shares = [s["coverage"][cases] for s in streams if cases in s.get("coverage", {})]
    if not shares:
        return "–"
    return " / ".join(f"{100 * censored_median(column):.1f}" for column in zip(*shares)) + " %"


def overview(tools: Mapping[str, Runs], faults: Sequence[Fault], marks: Sequence[int], profile: str) -> str:
    """One column a tool: faults found, cases and seconds, what its calls are like."""
    names = [f.name for f in faults]
    rows: dict[str, list[str]] = {}

    def row(title: str, *cells: str) -> None:
        rows.setdefault(title, []).extend(cells)

    for runs in tools.values():
        medians = [censored_median(runs.cases[n]) for n in names]
        row("runs", str(len(runs.seeds)))
        row("faults found in every run", str(sum(all(c < inf for c in runs.cases[n]) for n in names)))
        row("faults found in most runs", str(sum(m < inf for m in medians)))
        row("faults found at all", str(sum(any(c < inf for c in runs.cases[n]) for n in names)))
        row("median cases to a fault (median of all faults)", shown(censored_median(medians)))
        seconds = [censored_median(runs.seconds[n]) for n in names]
        row("median CPU seconds to a fault (median of all faults)", shown(censored_median(seconds), 2))
        valid = _streams(runs, profile, "valid", "all")
        row("accepted of the calls meant to be valid", share(sum(s["accepted"] for s in valid), sum(s["cases"] for s in valid)))
        invalid = _streams(runs, profile, "invalid", "all")
        refused = sum(s["refused"] for s in invalid)
        row("refused calls that break one demand as the operator answers", share(sum(s["pure"] for s in invalid), refused))
        row("refused calls that break one demand of all", share(sum(s["alone"] for s in invalid), refused))
        for mark in marks:
            row(f"1/2/3-way coverage after {mark} cases", _covered(valid, str(mark)))
        ran = sum(s["cases"] for s in runs.streams)
        row("false alarms on the sound kernel", f"{sum(len(s['alarms']) for s in runs.streams)} of {ran}")
        making, working = (sum(s[k] for s in runs.streams) for k in ("making", "working"))
        row("CPU ms a case: made, then predicted, run and judged", f"{1e3 * making / max(1, ran):.1f}, {1e3 * working / max(1, ran):.1f}")
    return table(["", *tools], [[title, *cells] for title, cells in rows.items()])


@dataclass(frozen=True)
class Duel:
    """One tool against another on one fault: medians, p and A12 (over 1/2: the first is sooner)."""

    fault: str
    first: float
    second: float
    p: float
    effect: float

    @property
    def won(self) -> bool:
        """Whether the first is sooner, and not by chance."""
        return self.p < ALPHA and self.effect > 0.5

    @property
    def lost(self) -> bool:
        """Whether the second is sooner, and not by chance."""
        return self.p < ALPHA and self.effect < 0.5


def duel(name: str, first: Runs, second: Runs, measure: str = "cases") -> Duel:
    """Two tools on one fault, by cases or by seconds."""
    runs = max(len(first.seeds), len(second.seeds))
    one, other = first.of(name, runs, measure), second.of(name, runs, measure)
    return Duel(name, censored_median(one), censored_median(other), p_value(one, other), a12(one, other))


def duels(tools: Mapping[str, Runs], faults: Sequence[Fault]) -> str:
    """One row a pair of tools and a measure; then, by cases, the faults where the first is not sooner."""
    rows, notes = [], []
    for measure in ("cases", "seconds"):
        for first, second in _pairs(tools):
            fought = [duel(f.name, tools[first], tools[second], measure) for f in faults]
            rows.append([f"{first} against {second}", measure, *_score(fought)])
            if measure == "cases":
                notes += _not_sooner(fought, second)
    head = ["medians", "of", "sooner", "same", "later", f"won (p < {ALPHA})", "lost", "A12 in favour: large / medium / small", "median A12"]
    return table(head, rows) + "".join(f"\n\n{note}" for note in notes)


def _score(fought: Sequence[Duel]) -> list[str]:
    sooner, later = sum(d.first < d.second for d in fought), sum(d.first > d.second for d in fought)
    sizes = [size_class(d.effect) if d.effect > 0.5 else "" for d in fought]
    counts = (sooner, len(fought) - sooner - later, later, sum(d.won for d in fought), sum(d.lost for d in fought))
    favour = " / ".join(str(sizes.count(size)) for size in SIZES[:3])
    return [*map(str, counts), favour, f"{censored_median([d.effect for d in fought]):.2f}"]


def _not_sooner(fought: Sequence[Duel], second: str) -> list[str]:
    worse = [f"{d.fault} ({shown(d.first, 1)} : {shown(d.second, 1)}, p {d.p:.3f})" for d in fought if d.first > d.second or d.lost]
    same = [f"{d.fault} ({shown(d.first, 1)})" for d in fought if d.first == d.second and not d.lost]
    told = [f"Later than {second}: {', '.join(worse)}."] if worse else []
    return told + ([f"Median as that of {second}: {', '.join(same)}."] if same else [])


def _pairs(tools: Mapping[str, Runs]) -> list[tuple[str, str]]:
    told = [name for name in tools if not name.endswith("-all")]
    found = [(BASE, other) for other in told if other != BASE] if BASE in tools else []
    return found + [(one, other) for one, other in TWINS.items() if one in tools and other in tools]


def details(tools: Mapping[str, Runs], faults: Sequence[Fault]) -> str:
    """One row a fault."""
    pairs = _pairs(tools)
    head = ["fault", "calls", *(f"{tool}: cases, s, runs" for tool in tools), *(f"p, A12 against {other}" for _, other in pairs)]
    rows = []
    for fault in faults:
        row = [fault.name, f"{fault.profile} {fault.mode}"]
        for runs in tools.values():
            cases, seconds = runs.cases[fault.name], runs.seconds[fault.name]
            hit = f"{sum(c < inf for c in cases)}/{len(cases)}"
            row.append(f"{shown(censored_median(cases), 1)}, {shown(censored_median(seconds), 2)}, {hit}")
        for first, second in pairs:
            one = duel(fault.name, tools[first], tools[second])
            row.append(f"{one.p:.2g}, {one.effect:.2f}")
        rows.append(row)
    return table(head, rows)
