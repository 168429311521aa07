"""Suites side by side: what a run, a file of cases or generated cases reach of a profile, by one ruler.

Combinations of factor words are counted over calls that are predicted to be accepted; rules over every call: *held* by an
accepted call that meets the condition and keeps the demand, broken *alone*, or broken *together* with others.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fiafuzz.campaign.events import CaseDone, LegStarted, RunStarted
from fiafuzz.campaign.held import Held
from fiafuzz.model.case import Case
from fiafuzz.model.factors import factors_of
from fiafuzz.model.profiles import PROFILES, profile_for
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import predict

from .coverage import NOT_RUN, facts_of
from .run_data import read_events
from .tway import Coverage


class Suite:
    """What a suite reaches under a profile, while its cases are added. Infeasible when the profile has no valid call.

    ``cases`` counts all of them, ``others`` those of another product or API, which are left out. ``every``: combinations
    are counted over all calls, not only those that are predicted to be accepted.
    """

    def __init__(self, name: str, profile: str, *, every: bool = False) -> None:
        self.name = name
        self.profile = profile
        self.every = every
        self.coverage = Coverage(profile)
        self.cases = 0
        self.others = 0
        self.held: set[str] = set()
        self.alone: set[str] = set()
        self.together: set[str] = set()
        self._held = Held(profile)
        self._facts = facts_of(profile)

    @property
    def rules(self) -> int:
        """Rules of the profile that a call can reach at all."""
        return sum(not f.apart for f in self._facts)

    @property
    def reached(self) -> int:
        """Rules that were held or broken."""
        met = self.held | self.alone | self.together
        return sum(f.rule.id in met and not f.apart for f in self._facts)

    def count(self, met: Iterable[str]) -> int:
        """How many of these are rules of the profile that a call can reach."""
        known = {f.rule.id for f in self._facts if not f.apart}
        return len(known & set(met))

    def add_case(self, case: Case) -> None:
        """Count one case, predicted here."""
        own, mine = profile_for(case.api, case.product), PROFILES[self.profile]
        if (own.product, own.api) != (mine.product, mine.api):
            self.others += 1
            return
        self.cases += 1
        scene = Scene(case)
        prediction = predict(case, self.profile, scene=scene)
        if prediction.verdict == "accept":
            self.held.update(self._held.by(scene))
        self._broken(prediction.rule_ids)
        if self.every or prediction.verdict == "accept":
            self.coverage.add(factors_of(scene))

    def _broken(self, rules: tuple[str, ...]) -> None:
        (self.alone if len(rules) == 1 else self.together).update(rules)

    def add_run(self, path: str | Path) -> None:
        """Count the cases that a run has run under the profile, on whatever backend. RunError when there is no log."""
        names: tuple[str, ...] = ()
        here = True
        for event in read_events(path):
            if isinstance(event, RunStarted):
                names = event.factors
            elif isinstance(event, LegStarted):
                here = event.profile == self.profile
            elif isinstance(event, CaseDone) and event.verdict.status not in NOT_RUN:
                if here:
                    self._add_event(event, names)
                else:
                    self.others += 1

    def _add_event(self, event: CaseDone, names: tuple[str, ...]) -> None:
        self.cases += 1
        self.held.update(event.held)
        self._broken(event.rules)
        if event.factors and (self.every or event.foreseen == "accept"):
            self.coverage.add(dict(zip(names, event.factors.split("|"))))


def profile_of_run(path: str | Path) -> str | None:
    """The first profile of a run; None when its log does not tell. RunError when there is no log."""
    for event in read_events(path):
        if isinstance(event, RunStarted) and event.plan.profiles:
            return event.plan.profiles[0]
        if isinstance(event, LegStarted):
            return event.profile
    return None
