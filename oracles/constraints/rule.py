"""Rule: one demand of the operator, as a record that drives prediction, faults, boundary cases and coverage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Optional, Union

from fiafuzz.model.profiles import PROFILES
from fiafuzz.model.scene import Scene

Predicate = Callable[[Scene], bool]
Change = Callable[[Scene], Optional[Mapping[str, object]]]
Words = dict[str, Union[str, tuple[str, ...]]]
"""Factor words that a valid case should have (model/factors.py): a word or several per factor."""


class Level(str, Enum):
    """How many parameters a demand joins, in the documents' words."""

    SINGLE = "single"
    EXISTENCE = "existence"
    CONSISTENCY = "consistency"
    CROSS = "cross"


class Stage(IntEnum):
    """Where a call is answered, in the order in which the host works (spec/host_behaviour.md 3)."""

    ENTRY = 10
    LISTS = 20
    DTYPES = 30
    SHAPE_INFERENCE = 40
    PARSER = 50
    CHECKER = 60
    TILING = 70
    OUTPUT = 80
    KERNEL = 90

    @property
    def key(self) -> str:
        """The name under which a profile lists its status codes."""
        return self.name.lower()


class Effect(str, Enum):
    """What follows when the demand is broken (for ACCEPT: when it is met)."""

    REJECT = "reject"
    UNSPECIFIED = "unspecified"
    """Demanded, but nobody promises an answer."""
    CRASH = "crash"
    HANG = "hang"
    ACCEPT = "accept"
    """An early exit of the host with success: whatever stands behind it is not looked at."""


class Basis(str, Enum):
    """Who states the demand: the documents, only the operator's source, or both."""

    DOCUMENTED = "documented"
    SOURCE = "source"
    BOTH = "both"


# Sets of profile names that rules use. A profile joins by product, API and release, so a new release is added here.
DOC_950 = frozenset({"950-v5"})
SRC_950 = frozenset({"950-v5-2026.08"})
ALL_950 = DOC_950 | SRC_950
DOC_A2A3_V3 = frozenset({"a2-v3", "a3-v3"})
DOC_A2A3_V5 = frozenset({"a2-v5", "a3-v5"})
DOC_A2A3 = DOC_A2A3_V3 | DOC_A2A3_V5
SRC_A2A3_V3 = frozenset({"a2-v3-2026.08", "a3-v3-2026.08"})
SRC_A2A3_V5 = frozenset({"a2-v5-2026.08"})
SRC_A2A3 = SRC_A2A3_V3 | SRC_A2A3_V5
ALL_A2A3 = DOC_A2A3 | SRC_A2A3
ALL_V5 = ALL_950 | DOC_A2A3_V5 | SRC_A2A3_V5
EVERYWHERE = frozenset(PROFILES) - {"950-v3"}


@dataclass(frozen=True)
class Break:
    """A recipe for one fault: how to turn a valid case into one that breaks exactly the rule on one side.

    ``change(scene)`` gives the parameters to set (C name -> new value: TensorSpec, tuple, number, None) or None when
    this valid case offers no place for it. ``needs`` are factor words (model/factors.py) that the valid case should
    have: a word or a tuple of words per factor. ``entails`` names further rules that cannot be kept when this one is
    broken this way.
    ``side`` is one of below, above, absent, present, dtype, rank, axis, value, pair, format, strides.
    """

    side: str
    change: Change
    needs: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    entails: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Boundary:
    """A recipe at the edge of a limit: ``inside`` keeps the last accepted value, ``outside`` the first rejected one."""

    inside: Change
    outside: Optional[Change] = None
    needs: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    entails: tuple[str, ...] = ()
    limit: str = ""


@dataclass(frozen=True, eq=False)
class Rule:
    """One demand. It is broken by a scene when ``when`` holds and ``requires`` does not.

    ``when`` and ``requires`` read scene facts only, are quick, and must be None-safe: a fact that could not be derived
    never breaks a rule that is not about that fact (so one fault does not cascade). ``cites`` are spec ids. ``stage``
    fixes the status codes (profile.statuses[stage.key]) unless ``codes`` overrides them. ``order`` sorts within a stage
    (50 is the middle): it decides only between an ACCEPT, CRASH or HANG and rejections of the same stage. ``routes``
    names the parts of the A2/A3 host that enforce the demand (routes.py; empty: all of them): elsewhere it is a demand
    of the documents alone.
    """

    id: str
    title: str
    group: str
    level: Level
    profiles: frozenset[str]
    cites: tuple[str, ...]
    when: Predicate
    requires: Predicate
    stage: Stage = Stage.CHECKER
    basis: Basis = Basis.BOTH
    effect: Effect = Effect.REJECT
    enforced_by: str = ""
    codes: frozenset[int] = frozenset()
    order: int = 50
    breaks: tuple[Break, ...] = ()
    boundaries: tuple[Boundary, ...] = ()
    limit: str = ""
    note: str = ""
    routes: frozenset[str] = frozenset()

    def broken(self, scene: Scene) -> bool:
        """Whether the scene breaks this rule."""
        return self.when(scene) and not self.requires(scene)


def always(_: Scene) -> bool:
    """The condition of a rule that concerns every call."""
    return True


def never(_: Scene) -> bool:
    """The demand of a rule whose condition alone is the fault."""
    return False
