"""Gaps of the catalogue: statements that nothing enforces, rules without source, fault or boundary."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fiafuzz.model.parameters import GROUPS
from fiafuzz.model.profiles import PROFILES

from .catalogue import all_rules
from .rule import Effect, Rule
from .statements import statements, untestable

ID = re.compile(r"FIA-[A-Z]{2}-\d{3}")
SIDES = frozenset({"below", "above", "absent", "present", "dtype", "rank", "axis", "value", "pair", "format",
                   "strides"})


def lint() -> list[str]:
    """All gaps, one line each; empty when there is none. Never raises."""
    try:
        rules = all_rules()
    except ValueError as error:
        return [str(error)]
    return [*_uncited(rules), *_lists(rules), *(gap for rule in rules for gap in _gaps(rule))]


def _uncited(rules: tuple[Rule, ...]) -> Iterator[str]:
    cited = {c for r in rules for c in r.cites}
    loose = {c for r in rules for c in r.cites if r.effect is Effect.UNSPECIFIED or _documents_only(r)}
    for statement in statements().values():
        if statement.id in untestable():
            continue
        if statement.kind == "rule" and statement.id not in cited:
            yield f"{statement.id}: no rule cites this demand"
        elif statement.kind == "unenforced_rule" and statement.id not in loose:
            yield f"{statement.id}: no rule calls this demand without enforcement unspecified"


def _documents_only(rule: Rule) -> bool:
    return not any(p in PROFILES and PROFILES[p].by_source for p in rule.profiles)


def _lists(rules: tuple[Rule, ...]) -> Iterator[str]:
    cited = {c for r in rules for c in r.cites}
    for name, reason in untestable().items():
        if name not in statements():
            yield f"{name}: untestable, but no such statement"
        elif name in cited and statements()[name].kind == "rule":
            yield f"{name}: untestable, yet a rule cites it"
        if not reason.strip():
            yield f"{name}: untestable without a reason"


def has_limit(rule: Rule) -> bool:
    """Whether a rule has a limit in numbers with a last accepted and a first rejected value."""
    return bool(re.search(r"\d", rule.limit)) and any(b.side in ("below", "above") for b in rule.breaks)


def _gaps(rule: Rule) -> Iterator[str]:
    if not ID.fullmatch(rule.id):
        yield f"{rule.id}: not of the form FIA-XX-nnn"
    if rule.group not in GROUPS:
        yield f"{rule.id}: unknown group {rule.group}"
    if not rule.title.strip():
        yield f"{rule.id}: no title"
    if not rule.profiles:
        yield f"{rule.id}: holds for no profile"
    for name in sorted(rule.profiles - set(PROFILES)):
        yield f"{rule.id}: unknown profile {name}"
    if not rule.cites and rule.effect not in (Effect.CRASH, Effect.HANG):
        yield f"{rule.id}: cites nothing"
    for cite in rule.cites:
        if cite not in statements():
            yield f"{rule.id}: cites {cite}, which does not exist"
    if not rule.breaks:
        yield f"{rule.id}: has no fault"
    for fault in rule.breaks:
        if fault.side not in SIDES:
            yield f"{rule.id}: unknown side {fault.side}"
    if has_limit(rule) and not rule.boundaries:
        yield f"{rule.id}: has the limit {rule.limit}, but no boundary case"
