"""Which rules accepted calls have held to: a rule counts once a call that passed meets its condition and keeps its demand.

Only rules that are still open are looked at, so that the cost per case falls to a few microseconds after the first
hundred cases.
"""

from __future__ import annotations

from functools import cache

from fiafuzz.model.scene import Scene
from oracles.constraints.rule import Effect, Rule, never


@cache
def can_hold(profile: str) -> tuple[Rule, ...]:
    """The rules of a profile that an accepted call can hold to.

    Early exits are no demands, and a rule whose condition alone is the fault is held by every call that it is not about.
    """
    from oracles.constraints.predict import rules_for

    return tuple(r for r in rules_for(profile) if r.effect is not Effect.ACCEPT and r.requires is not never)


class Held:
    """The rules of a profile that no call has held to so far."""

    def __init__(self, profile: str) -> None:
        self.open = list(can_hold(profile))

    def by(self, scene: Scene) -> tuple[str, ...]:
        """Ids of the open rules to which this call holds; they are open no longer."""
        found = [rule for rule in self.open if _holds(rule, scene)]
        if found:
            self.open = [rule for rule in self.open if rule not in found]
        return tuple(rule.id for rule in found)


def _holds(rule: Rule, scene: Scene) -> bool:
    try:
        return rule.when(scene) and rule.requires(scene)
    except Exception:  # what cannot be evaluated holds nothing; the prediction counts it as undecided
        return False
