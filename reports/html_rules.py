"""Rule coverage as the HTML report shows it: a heat map of groups over backends and profiles, and the rules of each cell."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fiafuzz.model.parameters import GROUPS
from fiafuzz.model.profiles import PROFILES
from oracles.constraints.rule import Effect
from oracles.constraints.statements import cite_text

from .coverage import APART, DISAGREED, EXERCISED, NEVER, PARTLY, Facts, LegCoverage, RuleCoverage, RuleUse, facts_of

STATES = {
    DISAGREED: ("✗", "disagreed"),
    NEVER: ("○", "never reached"),
    PARTLY: ("◐", "partly"),
    EXERCISED: ("●", "exercised"),
    APART: ("–", "stands apart"),
}
"""State -> symbol and words, the most urgent first."""


SHADES = (0.01, 0.5, 0.75, 0.9, 1.0)
"""Shares from which the colour scale goes one step darker."""


@dataclass(frozen=True)
class RuleRow:
    """One rule under one backend and profile."""

    facts: Facts
    use: RuleUse
    state: str
    profile: str = ""

    @property
    def symbol(self) -> str:
        """The symbol of the state."""
        return STATES[self.state][0]

    @property
    def words(self) -> str:
        """The state in words."""
        return STATES[self.state][1]

    @property
    def cites(self) -> str:
        """Where the demand is stated: spec ids and lines of the documents."""
        return cite_text(self.facts.rule.cites)

    @property
    def answer(self) -> str:
        """What breaking it leads to."""
        rule = self.facts.rule
        if rule.effect is not Effect.REJECT:
            return {"unspecified": "nobody promises an answer", "accept": "early exit with success"}.get(
                rule.effect.value, f"{rule.effect.value} of the host"
            )
        codes = rule.codes or PROFILES[self.profile].statuses.get(rule.stage.key, frozenset())
        return f"reject with {' or '.join(str(c) for c in sorted(codes))}" if codes else "reject"

    def ways(self) -> list[tuple[str, int | None]]:
        """Calls below, at and above the limit."""
        return [(way, self.facts.count(self.use, way)) for way in ("below", "at", "above")]

    def others(self) -> list[tuple[str, int]]:
        """Calls made for the rule in its other ways."""
        return [(side if side != "outside" else "just outside", self.use.sides[side]) for side in self.facts.other_sides]


@dataclass(frozen=True)
class Cell:
    """A group under a backend and profile: its rules and what became of them."""

    group: str
    leg: int
    rows: tuple[RuleRow, ...]

    @property
    def name(self) -> str:
        """Its id in the page."""
        return f"rules-{self.leg}-{self.group}"

    @property
    def counts(self) -> Counter[str]:
        """Rules by state."""
        return Counter(row.state for row in self.rows)

    @property
    def counted(self) -> list[RuleRow]:
        """The rules that count in the share."""
        return [row for row in self.rows if not row.facts.apart]

    @property
    def share(self) -> float | None:
        """Part of what can happen that has happened: rules held and rules broken alone, of those for which it is possible."""
        possible = sum(row.facts.holdable + row.facts.breakable for row in self.rows)
        done = sum(
            (row.facts.holdable and bool(row.use.held)) + (row.facts.breakable and bool(row.use.alone)) for row in self.rows
        )
        return done / possible if possible else None

    @property
    def shade(self) -> int:
        """The share as a step of the colour scale, 0 .. 5: finer towards the end, where runs differ."""
        return sum((self.share or 0.0) >= step for step in SHADES)

    def part(self, what: str) -> tuple[int, int]:
        """Rules held or broken alone, and those for which it is possible."""
        if what == "held":
            rows = [row for row in self.rows if row.facts.holdable]
            return sum(bool(row.use.held) for row in rows), len(rows)
        rows = [row for row in self.rows if row.facts.breakable]
        return sum(bool(row.use.alone) for row in rows), len(rows)


@dataclass(frozen=True)
class RuleMap:
    """The heat map. ``legs``: columns; ``groups``: rows; ``strange``: rules of the logs that this version does not know."""

    legs: tuple[LegCoverage, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    strange: int

    @property
    def cells(self) -> list[Cell]:
        """All cells, a column after the other."""
        return [cells[i] for i in range(len(self.legs)) for _, cells in self.rows if cells[i] is not None]  # type: ignore[misc]

    def totals(self, leg: int) -> Counter[str]:
        """Rules by state under a backend and profile."""
        found: Counter[str] = Counter()
        for _, cells in self.rows:
            cell = cells[leg]
            if cell is not None:
                found.update(cell.counts)
        return found

    @property
    def exercised(self) -> float | None:
        """Part of the rules that were held and broken, over everything that counts."""
        rows = [row for cell in self.cells for row in cell.counted]
        return sum(row.state == EXERCISED or (row.state == DISAGREED) for row in rows) / len(rows) if rows else None


def rule_map(coverage: RuleCoverage) -> RuleMap:
    """The heat map of a run, or of several merged."""
    legs = tuple(leg for leg in coverage.legs.values() if leg.profile in PROFILES)
    columns = [_cells(number, leg) for number, leg in enumerate(legs)]
    rows = tuple((group, tuple(column.get(group) for column in columns)) for group in GROUPS if any(group in c for c in columns))
    strange: set[str] = set()
    for leg in legs:
        known = {facts.rule.id for facts in facts_of(leg.profile)}
        strange |= {rule for rule, use in leg.rules.items() if use.broken + use.held and rule not in known}
    return RuleMap(legs, rows, len(strange))


def _cells(number: int, leg: LegCoverage) -> dict[str, Cell]:
    rows: dict[str, list[RuleRow]] = {}
    for facts in facts_of(leg.profile):
        use = leg.rules.get(facts.rule.id) or RuleUse()
        rows.setdefault(facts.rule.group, []).append(RuleRow(facts, use, facts.state(use), leg.profile))
    return {group: Cell(group, number, tuple(sorted(found, key=lambda r: r.facts.rule.id))) for group, found in rows.items()}
