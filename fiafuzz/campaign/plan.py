"""The plan of a campaign: what to run, on what, for how long. Plain data; ``check`` says what is wrong with it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from types import MappingProxyType
from typing import Optional

import msgspec

from fiafuzz.model.parameters import GROUPS
from fiafuzz.model.profiles import DEFAULT_PROFILE, PROFILES

from .wire import DEFAULT_MEMORY

PHASES: tuple[str, ...] = ("replay", "sweep", "pairwise", "explore", "sequences", "bulk")
"""In the order in which they run."""
MODES: tuple[str, ...] = ("valid", "invalid", "boundary", "disputed", "all")

SHARES: Mapping[str, float] = MappingProxyType(
    {"replay": 0.10, "sweep": 0.25, "pairwise": 0.20, "explore": 0.15, "sequences": 1.0, "bulk": 1.0}
)
"""Share of the whole time (or of the number of cases) after which a phase ends; what a phase leaves over goes to the
later ones."""

MODES_OF_PHASE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "replay": MODES,
        "sweep": ("invalid", "boundary", "disputed", "all"),
        "pairwise": ("valid", "all"),
        "explore": ("valid", "invalid", "boundary", "all"),
        "sequences": MODES,
        "bulk": MODES,
    }
)
"""Modes in which a phase has something to do."""
REFUSED_MODES: tuple[str, ...] = ("invalid", "disputed")
"""Modes without a call that must be accepted."""


MAX_SEQUENCE = 32
"""Calls of a group: a Ray actor must answer for all of them within its time."""


class PlanError(ValueError):
    """A plan that makes no sense; the text is one line."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign is to do.

    ``max_time`` in seconds and ``max_cases`` bound the run (at least one is needed; None: no bound); ``time_limit`` in
    seconds and ``memory_limit`` in bytes bound one case. ``select`` and ``ignore`` name parameter groups or rule ids.
    ``repeat_every``: each so many-th valid case is run twice and compared bit for bit. ``out``: the run directory
    (None: .fiafuzz/runs/<start>-<seed>). ``shrink_seconds`` bounds the shrinking of one finding, ``max_findings`` the
    number that is shrunk and kept. ``workers``: 0 is one a device, or one a core.
    """

    backends: tuple[str, ...] = ("cpu",)
    profiles: tuple[str, ...] = (DEFAULT_PROFILE,)
    seed: int = 0
    mode: str = "all"
    phases: tuple[str, ...] = PHASES
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    max_time: Optional[float] = 60.0
    max_cases: Optional[int] = None
    workers: int = 1
    corpus: str = "corpus"
    out: Optional[str] = None
    standard: str = ""
    time_limit: float = 8.0
    memory_limit: int = DEFAULT_MEMORY
    repeat_every: int = 50
    relate_every: int = 4
    shrink: bool = True
    shrink_runs: int = 150
    shrink_seconds: float = 20.0
    max_findings: int = 50
    canary: bool = True
    dare: bool = False
    """Run calls that are known to crash or hang the real host."""
    devices: tuple[str, ...] = ()
    """Ids of the devices to use, one worker each (empty: those that can be seen)."""
    ray: Optional[str] = None
    """Address of a Ray cluster to spread the work over ("auto": the one of this machine, or a new one; None: no Ray)."""
    own_profile: bool = False
    """Nobody has named a profile: a backend that stands for certain profiles only runs under its own instead."""
    examples: str = ""
    """Where the explore phase remembers: a directory, a redis:// address or "none" (empty: in the run directory)."""
    baseline: Optional[str] = None
    """File with the signatures that are accepted as they are."""
    baseline_update: bool = False
    baseline_prune: bool = False
    build: str = ""
    """What people call the build that is tested; a label for the history, not looked at otherwise."""
    sequences: int = 0
    """Calls in each group of the sequences phase, which one process makes one after the other (0: no such phase). The phase takes
    whatever time or number of cases is left, and its groups whole."""


def new_seed() -> int:
    """A seed for a run that was not given one: 32 bits, easy to type again."""
    return secrets.randbits(32)


def check(plan: Plan) -> None:
    """PlanError, one line, when the plan makes no sense."""
    if not plan.backends:
        raise PlanError("no backend")
    if not plan.profiles:
        raise PlanError("no profile")
    _known("profile", plan.profiles, tuple(PROFILES))
    _known("phase", plan.phases, PHASES)
    _known("mode", (plan.mode,), MODES)
    if not plan.phases:
        raise PlanError("no phase")
    if plan.max_time is None and plan.max_cases is None:
        raise PlanError("neither a time nor a number of cases bounds the run")
    if plan.sequences and not 2 <= plan.sequences <= MAX_SEQUENCE:
        raise PlanError(f"sequences of {plan.sequences} calls; a group has 2 to {MAX_SEQUENCE}")
    if plan.phases == ("sequences",) and not plan.sequences:
        raise PlanError("the phase sequences needs the number of calls of a group: --sequences N")
    if plan.workers < 0:
        raise PlanError(f"workers is {plan.workers}, not positive (0: one a device, or one a core)")
    if plan.devices and plan.ray is not None:
        raise PlanError("devices cannot be chosen under Ray, which hands them out itself")
    for device in plan.devices:
        if not (device.isascii() and device.isdigit()) or plan.devices.count(device) > 1:
            raise PlanError(f"devices: {device!r} is no number of a device, or stands twice")
    for name in ("max_time", "max_cases", "time_limit", "shrink_runs"):
        value = getattr(plan, name)
        if value is not None and not value > 0:
            raise PlanError(f"{name} is {value}, not positive")
    if (plan.baseline_update or plan.baseline_prune) and plan.baseline is None:
        raise PlanError("the baseline is to be changed, but no baseline file is named")
    if not 0 <= plan.seed < 1 << 64:
        raise PlanError("seed is outside 0 .. 2**64-1")
    _check_selection(plan)
    _check_examples(plan.examples)


def _check_examples(where: str) -> None:
    scheme, colon, rest = where.partition("://")
    if not colon or scheme == "file":
        return
    if scheme not in ("redis", "rediss"):
        raise PlanError(f"examples: unknown kind of database {scheme!r}; known: a directory, redis://HOST/DB?prefix=TEXT, none")
    from urllib.parse import urlsplit

    try:
        password, port = urlsplit(where).password, urlsplit(where).port
    except ValueError as error:
        raise PlanError(f"examples: {error}") from None
    if password is not None:
        raise PlanError("examples: the address is recorded with the run; give the password in FIAFUZZ_REDIS_PASSWORD instead")
    if port == 0 or not rest.strip("/"):
        raise PlanError("examples: the address names no host")


def _known(kind: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    from difflib import get_close_matches

    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            raise PlanError(
                f"unknown {kind} {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}")
            )


def _check_selection(plan: Plan) -> None:
    wanted = (*plan.select, *plan.ignore)
    if not any(name not in GROUPS for name in wanted):
        return
    from oracles.constraints.catalogue import rule_by_id

    _known("group or rule", wanted, (*GROUPS, *rule_by_id()))


def selected_rules(plan: Plan, profile: str) -> tuple[str, ...]:
    """Ids of the rules of a profile that the plan selects, in the order of the host's stages."""
    from oracles.constraints.predict import rules_for

    found = []
    for rule in rules_for(profile):
        names = {rule.id, rule.group}
        if (not plan.select or names & set(plan.select)) and not names & set(plan.ignore):
            found.append(rule.id)
    return tuple(found)


def phases_of(plan: Plan, checks: str = "own") -> tuple[str, ...]:
    """The phases that have something to do in the plan's mode for a backend with that kind of checks, in order. One without checks
    is given calls that must be accepted, and nothing else."""
    found = tuple(p for p in PHASES if p in plan.phases and plan.mode in MODES_OF_PHASE[p] and (p != "sequences" or plan.sequences))
    return tuple(p for p in found if p == "replay") if checks == "none" and plan.mode in REFUSED_MODES else found
