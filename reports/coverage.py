"""Rule coverage of runs, from their events: what each rule of a profile has been put through, a backend and profile at a
time.

For a rule, over the cases that were run:

    held        a call that passed meets its condition and keeps its demand (CaseDone.held)
    alone       calls that break this rule and no other; ``together``: calls that break it with others
    sides       calls made for this rule on purpose, by side: a way to break it (below, above, absent, dtype, ...), or an
                edge of its limit (inside: the last accepted value, outside: the first refused one)
    agreed      calls made for this rule that the backend answered as predicted; ``disagreed``: as not predicted
                (accepted, refused, another status, crash, hang)

Wrong values of an accepted call are no disagreement about a rule. A rule is *never reached* when it was neither held nor
broken nor met at an edge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from fiafuzz.campaign.events import CaseDone, Event, LegStarted
from fiafuzz.campaign.held import can_hold
from fiafuzz.campaign.verdict import INFO, PASS, SKIPPED, UNSUPPORTED, UNTESTABLE
from oracles.constraints.predict import rules_for
from oracles.constraints.rule import Effect, Rule

NOT_RUN = (SKIPPED, UNSUPPORTED)
EDGES = ("inside", "outside")
DISAGREED, EXERCISED, PARTLY, NEVER, APART = "disagreed", "exercised", "partly", "never", "apart"
"""States of a rule: the backend disagreed; all that can happen to it happened (held, broken alone); a part of it; nothing;
or it stands apart (an early exit of the host, or a fault that kills it and is not run unless dared)."""


@dataclass
class RuleUse:
    """What a rule has been put through; see the module."""

    held: int = 0
    """The first case that held to it, 0 for none."""
    alone: int = 0
    together: int = 0
    sides: Counter[str] = field(default_factory=Counter)
    agreed: int = 0
    disagreed: int = 0
    disputed: int = 0
    """Calls on ground where documents and source differ; the backend took one side."""
    not_run: int = 0

    @property
    def broken(self) -> int:
        """Calls that break the rule."""
        return self.alone + self.together

    @property
    def reached(self) -> bool:
        """Whether anything happened to it."""
        return bool(self.held or self.broken or self.sides)

    def merge(self, other: RuleUse) -> None:
        """Count what another run did; ``held`` stays a case of the first run that has one."""
        self.held = self.held or other.held
        for name in ("alone", "together", "agreed", "disagreed", "disputed", "not_run"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.sides.update(other.sides)


@dataclass(frozen=True)
class Facts:
    """What can happen to a rule: whether an accepted call can hold to it, whether calls are made that break it, the sides
    for which calls are made, and which way over the edge ``outside`` is ("" where the record does not tell)."""

    rule: Rule
    holdable: bool
    breakable: bool
    sides: tuple[str, ...]
    beyond: str

    @property
    def apart(self) -> bool:
        """Whether it counts in no share."""
        return not self.holdable and not self.breakable

    def state(self, use: RuleUse) -> str:
        """The state of the rule after that use."""
        if use.disagreed:
            return DISAGREED
        if self.apart:
            return APART
        held, broken = bool(use.held) or not self.holdable, bool(use.alone) or not self.breakable
        return EXERCISED if held and broken else PARTLY if use.reached else NEVER

    def count(self, use: RuleUse, way: str) -> int | None:
        """Calls below, at or above the limit; None where the rule has no such side."""
        if way == "at":
            return use.sides["inside"] if "inside" in self.sides else None
        found = [s for s in self.sides if s == way or (s == "outside" and self.beyond == way)]
        return sum(use.sides[s] for s in found) if found else None

    @property
    def other_sides(self) -> tuple[str, ...]:
        """Sides that are neither below nor at nor above the limit."""
        return tuple(s for s in self.sides if s not in ("below", "above", "inside") and not (s == "outside" and self.beyond))


def facts_of(profile: str) -> tuple[Facts, ...]:
    """The rules of a profile in the order of the host's stages, with what can happen to each."""
    holdable = {rule.id for rule in can_hold(profile)}
    found = []
    for rule in rules_for(profile):
        sides = dict.fromkeys(b.side for b in rule.breaks)
        for edge in rule.boundaries:
            sides.update(dict.fromkeys(EDGES if edge.outside is not None else EDGES[:1]))
        ways = {"below", "above"} & set(sides)
        runs = rule.effect in (Effect.REJECT, Effect.UNSPECIFIED)
        beyond = ways.pop() if len(ways) == 1 else ""
        found.append(Facts(rule, rule.id in holdable and runs, runs and bool(rule.breaks), tuple(sides), beyond))
    return tuple(found)


@dataclass
class LegCoverage:
    """Rule coverage of one backend under one profile."""

    backend: str
    profile: str
    cases: int = 0
    rules: dict[str, RuleUse] = field(default_factory=dict)

    def use(self, rule: str) -> RuleUse:
        """What that rule has been put through; counts from now on."""
        found = self.rules.get(rule)
        if found is None:
            found = self.rules[rule] = RuleUse()
        return found

    def add(self, event: CaseDone) -> None:
        """Count one case."""
        status = event.verdict.status
        if status in NOT_RUN:
            if event.rule is not None:
                self.use(event.rule).not_run += 1
            return
        self.cases += 1
        for rule in event.held:
            self.use(rule).held = self.use(rule).held or event.n
        if len(event.rules) == 1:
            self.use(event.rules[0]).alone += 1
        else:
            for rule in event.rules:
                self.use(rule).together += 1
        if event.rule is not None and event.side is not None:
            self.use(event.rule).sides[event.side] += 1
        about = event.rule or event.verdict.rule
        if about is not None:
            self._answer(event, about)

    def _answer(self, event: CaseDone, about: str) -> None:
        status, code = event.verdict.status, event.verdict.code or ""
        if event.verdict.failed and not code.startswith("F1"):
            self.use(event.verdict.rule or about).disagreed += 1
        elif event.rule is None:
            return
        elif status == INFO:
            self.use(about).disputed += 1
        elif status in (PASS, UNTESTABLE) or event.verdict.failed:
            self.use(about).agreed += 1

    def merge(self, other: LegCoverage) -> None:
        """Count what another run did on the same backend and profile."""
        for rule, use in other.rules.items():
            self.use(rule).merge(use)
        self.cases += other.cases


class RuleCoverage:
    """Rule coverage of a run while its events are added, a backend and profile at a time, in the order of their start."""

    def __init__(self) -> None:
        self.legs: dict[tuple[str, str], LegCoverage] = {}
        self._here: LegCoverage | None = None

    def add(self, event: Event) -> None:
        """Take one event in."""
        if isinstance(event, LegStarted):
            key = (event.backend, event.profile)
            self._here = self.legs.setdefault(key, LegCoverage(*key))
        elif isinstance(event, CaseDone) and self._here is not None:
            self._here.add(event)

    def merge(self, other: RuleCoverage) -> None:
        """Count another run."""
        for key, leg in other.legs.items():
            self.legs.setdefault(key, LegCoverage(*key)).merge(leg)


def rule_coverage(events: Iterable[Event]) -> RuleCoverage:
    """Rule coverage of a stream of events."""
    found = RuleCoverage()
    for event in events:
        found.add(event)
    return found
