"""Plain calls that break one rule: where a failure is about a rule, they are the first candidates of the shrinker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from fiafuzz.model.case import Case
from fiafuzz.model.profiles import profile as profile_of
from fiafuzz.model.scene import Scene

from .triage import plain_case

T = TypeVar("T")


class PlainSource:
    """A source of choices (strategies.source.Source) that always takes the plainest."""

    def integer(self, low: int, high: int) -> int:
        """The lowest."""
        return low

    def choice(self, options: Sequence[T]) -> T:
        """The first."""
        return options[0]

    def pick(self, table: Any) -> int:
        """The first."""
        return 0

    def path(self, node: Any) -> list[str]:
        """The first words all the way."""
        words = []
        while node.options:
            words.append(node.options[0])
            node = node.next[0]
        return words

    def chance(self, percent: int) -> bool:
        """No, unless it is certain."""
        return percent >= 100

    def order(self, count: int) -> list[int]:
        """As they stand."""
        return list(range(count))

    def seed(self) -> int:
        """Zero."""
        return 0


def plain_faults(profile: str, rule: str) -> Iterator[Case]:
    """Every way to break a rule, made on the plainest valid call where it offers a place, and on the plainest generated
    one that has what the way needs. Nothing for a rule without ways."""
    from strategies.faults import recipes
    from strategies.plan import Infeasible, plan
    from strategies.realise import realise

    chosen = profile_of(profile)
    for recipe in recipes(profile, "invalid", rule):
        bases = [plain_case(chosen.product, chosen.api)]
        with contextlib.suppress(Infeasible):
            needs = {"empty": "none", **recipe.needs}
            bases.append(realise(plan(PlainSource(), profile, needs), PlainSource(), profile))
        for base in bases:
            changes = recipe.change(Scene(base))
            if changes is not None:
                yield base.replace(**changes)
