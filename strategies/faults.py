"""Faults and edges: the recipes of the rules applied to valid calls, and what they changed, as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Optional, Union

from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.parameters import ATTRIBUTES, INPUTS, OUTPUTS
from fiafuzz.model.profiles import profile
from fiafuzz.model.scene import Scene
from oracles.constraints.catalogue import all_rules
from oracles.constraints.predict import predict
from oracles.constraints.rule import Basis, Boundary, Break, Change, Effect, Rule

from .plan import Infeasible, plan
from .realise import realise
from .source import Source

FaultRecord = list[list[Any]]
"""Changes [operation, parameter, before, after]; operations: drop, add, set, reshape, cast, format, strides, lengths,
list (number of tensors), values."""

BASES = 200
"""Valid calls that are tried for one recipe before it counts as without base."""
PROOFS = 6
"""Faulty calls of one recipe that are put to the oracle before an impure one is given."""


@dataclass(frozen=True)
class Recipe:
    """One way to break a rule (``side`` as in Break), or one edge of its limit (``side`` is inside or outside)."""

    rule: Rule
    side: str
    change: Change
    needs: Mapping[str, Union[str, tuple[str, ...]]]
    entails: tuple[str, ...]
    edge: Optional[str] = None

    @property
    def name(self) -> str:
        """Rule id and side, for people."""
        return f"{self.rule.id} {self.side}"


@dataclass(frozen=True)
class Generated:
    """A generated call: its mode, the rule that was broken or met at its edge, the side, the fault as data (changes of
    ``base``), whether the edge is inside or outside, and what else is bound to break."""

    case: Case
    mode: str
    rule: Optional[str] = None
    side: Optional[str] = None
    fault: Optional[FaultRecord] = None
    edge: Optional[str] = None
    base: Optional[Case] = None
    entails: tuple[str, ...] = ()


@dataclass(frozen=True)
class WithoutBase:
    """A recipe for which no valid call with a place for it was found, and why."""

    profile: str
    rule: str
    side: str
    reason: str


@lru_cache(maxsize=256)
def recipes(profile_name: str, mode: str, rule: Optional[str] = None) -> tuple[Recipe, ...]:
    """The recipes of a profile, in the order of the rules.

    ``mode``: invalid (rejections that documents and source agree on, or the source alone under a profile by source),
    boundary (edges of the same rules), disputed (rules of one side only, and demands to which nobody promises an
    answer). With a rule id only its recipes, then of any effect. ValueError for an unknown profile.
    """
    by_source = profile(profile_name).by_source
    found: list[Recipe] = []
    for one in all_rules():
        if profile_name not in one.profiles or (rule is not None and one.id != rule):
            continue
        if by_source and one.basis is Basis.DOCUMENTED:
            continue
        disputed = one.effect is Effect.UNSPECIFIED or (not by_source and one.basis is not Basis.BOTH)
        if rule is None and (disputed != (mode == "disputed") or one.effect in (Effect.CRASH, Effect.HANG)):
            continue
        if one.effect is Effect.ACCEPT:
            continue
        if mode in ("invalid", "disputed"):
            found += [_broken(one, b) for b in one.breaks]
        if mode in ("boundary", "disputed"):
            found += [r for b in one.boundaries for r in _edges(one, b)]
    return tuple(found)


def _broken(rule: Rule, fault: Break) -> Recipe:
    return Recipe(rule, fault.side, fault.change, fault.needs, fault.entails)


def _edges(rule: Rule, edge: Boundary) -> Iterator[Recipe]:
    yield Recipe(rule, "inside", edge.inside, edge.needs, (), "inside")
    if edge.outside is not None:
        yield Recipe(rule, "outside", edge.outside, edge.needs, edge.entails, "outside")


def apply(recipe: Recipe, source: Source, profile_name: str, mode: str,
          bases: int = BASES) -> Union[Generated, WithoutBase]:
    """Make a valid call with the words that the recipe needs and apply its change.

    Calls that offer no place for the change are replaced by others, up to ``bases``. The oracle then proves the fault: a call that
    breaks more than the rule and what it entails, or does not break it, is replaced too; after ``PROOFS`` of them the first one is
    given all the same, so that a rule whose fault cannot be had pure is still exercised.
    """
    # An empty call skips most checks: a base is one only where the recipe asks for it.
    needs = {"empty": "none", **recipe.needs}
    impure: Optional[Generated] = None
    refused = 0
    for _ in range(bases):
        try:
            base = realise(plan(source, profile_name, needs), source, profile_name)
        except Infeasible as error:
            return impure or WithoutBase(profile_name, recipe.rule.id, recipe.side, str(error))
        values = recipe.change(Scene(base))
        if values is None:
            continue
        case = base.replace(**values)
        if case == base and recipe.edge != "inside":
            continue
        # An "inside" that changes nothing: the base stands at the edge already.
        made = Generated(case, mode, recipe.rule.id, recipe.side, difference(base, case), recipe.edge, base, recipe.entails)
        if mode == "disputed" or _proven(made, profile_name):
            return made
        impure = impure or made
        refused += 1
        if refused == PROOFS:
            break
    return impure or WithoutBase(profile_name, recipe.rule.id, recipe.side,
                                 f"none of {bases} valid calls with {dict(recipe.needs)} offers a place for it")


def _proven(made: Generated, profile_name: str) -> bool:
    """Whether the oracle says of a made call what was meant: accepted inside a limit, else refused for this rule alone."""
    found = predict(made.case, profile_name)
    if made.edge == "inside":
        return found.verdict == "accept"
    ids = set(found.rule_ids)
    return found.verdict == "reject" and made.rule in ids and ids <= {made.rule, *made.entails}


# ---- differences ------------------------------------------------------------------------------


def difference(base: Case, case: Case) -> FaultRecord:
    """What was changed from one call to another, parameter by parameter in C order, with before and after."""
    found: FaultRecord = []
    for name in ("api", "product", "seed"):
        _set(found, name, getattr(base, name), getattr(case, name))
    for p in INPUTS:
        _parameter(found, p.name, getattr(base.inputs, p.name), getattr(case.inputs, p.name))
    for p in ATTRIBUTES:
        _set(found, p.name, getattr(base.attrs, p.name), getattr(case.attrs, p.name))
    for p in OUTPUTS:
        _parameter(found, p.name, getattr(base.outputs, p.name), getattr(case.outputs, p.name))
    return found


def _set(found: FaultRecord, name: str, before: object, after: object) -> None:
    if before != after:
        found.append(["set", name, before, after])


def _parameter(found: FaultRecord, name: str, before: Any, after: Any) -> None:
    if before == after:
        return
    if after is None:
        found.append(["drop", name, _brief(before), None])
    elif before is None:
        found.append(["add", name, None, _brief(after)])
    elif isinstance(before, TensorSpec):
        _tensor(found, name, before, after)
    elif _holds_tensors(before) or _holds_tensors(after):
        if len(before) != len(after):
            found.append(["list", name, len(before), len(after)])
        for i, (old, new) in enumerate(zip(before, after)):
            _parameter(found, name if len(after) == 1 else f"{name}[{i}]", old, new)
    else:
        found.append(["lengths", name, list(before), list(after)])


def _holds_tensors(value: Iterable[object]) -> bool:
    return any(isinstance(item, TensorSpec) for item in value)


def _tensor(found: FaultRecord, name: str, before: TensorSpec, after: TensorSpec) -> None:
    for operation, old, new in (
        ("reshape", list(before.shape), list(after.shape)),
        ("cast", before.dtype, after.dtype),
        ("format", before.format, after.format),
        ("strides", before.strides and list(before.strides), after.strides and list(after.strides)),
        ("strides", before.offset, after.offset),
    ):
        if old != new:
            found.append([operation, name, old, new])
    if before.shape == after.shape and before.values != after.values:
        found.append(["values", name, before.values and list(before.values), after.values and list(after.values)])
    if before.fill != after.fill:
        found.append(["values", name, "fill", "fill"])


def _brief(value: Any) -> Any:
    """A parameter in a few words: shape and dtype of a tensor, a list of them, or the numbers."""
    if isinstance(value, TensorSpec):
        return [list(value.shape), value.dtype]
    if isinstance(value, tuple):
        return [_brief(item) for item in value]
    return value
