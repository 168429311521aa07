"""All rules, gathered from the rooms. A room is a module here with a tuple ``RULES``."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from fiafuzz.model.parameters import GROUPS

from .rule import Rule


def _room(group: str) -> tuple[Rule, ...]:
    try:
        module = import_module(f"{__package__}.{group}")
    except ModuleNotFoundError as error:
        if error.name != f"{__package__}.{group}":
            raise
        return ()
    return tuple(module.RULES)


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule of every room, in the order of the parameter groups. ValueError when two share an id."""
    rules = [rule for group in GROUPS for rule in _room(group)]
    seen: set[str] = set()
    for rule in rules:
        if rule.id in seen:
            raise ValueError(f"two rules are called {rule.id}")
        seen.add(rule.id)
    return tuple(rules)


@cache
def rule_by_id() -> dict[str, Rule]:
    """Rules by id."""
    return {r.id: r for r in all_rules()}
