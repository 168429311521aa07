"""The valid call that is nearest to a failing one, and what tells the two apart, parameter by parameter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from fiafuzz.campaign.blueprint import PLAIN, differences, put_together
from fiafuzz.campaign.dissect import take_apart
from fiafuzz.campaign.results import clean
from fiafuzz.campaign.triage import plain_case
from fiafuzz.model.case import Case
from oracles.constraints.predict import predict
from strategies.faults import difference

TRIES = 150
"""Calls that are put to the oracle in search of the nearest valid one."""
MAX_TEXT = 240


@dataclass(frozen=True)
class Change:
    """One difference: the C parameter, what about it differs, and its values in the valid and in the failing call."""

    parameter: str
    what: str
    valid: str
    failing: str


@dataclass(frozen=True)
class Neighbour:
    """The valid call next to a failing one. ``plainest``: it is the plainest call there is, because the failing one is valid
    itself (or no nearer one was found)."""

    case: Case
    plainest: bool
    changes: tuple[Change, ...]


def neighbour(case: Case, profile: str) -> Neighbour:
    """The nearest valid call of a failing case under a profile.

    For a call that must be refused: as few fields as possible set back to plain until the oracle accepts. For a valid call: the
    plainest one, so that the changes are what the failure needs. ValueError for an unknown profile.
    """
    plain = plain_case(case.product, case.api)
    found = plain
    if predict(case, profile).verdict != "accept":
        for number, candidate in enumerate(_candidates(case)):
            if predict(candidate, profile).verdict == "accept":
                found = candidate
                break
            if number >= TRIES:
                break
    changes = tuple(_change(*entry) for entry in difference(found, case) if entry[1] != "seed")
    return Neighbour(found, found is plain, changes)


def _candidates(case: Case) -> Iterator[Case]:
    """Calls with one field set back to plain, then two, and so on."""
    fields = take_apart(case)
    names = differences(fields)
    for count in range(1, len(names) + 1):
        for chosen in combinations(names, count):
            kept = {name: value for name, value in fields.items() if name not in chosen}
            kept.update({name: PLAIN[name] for name in chosen if name in PLAIN})
            try:
                yield put_together(kept, case.api, case.product)
            except (ValueError, ArithmeticError, LookupError, TypeError):
                continue  # fields that hold only together


_WORDS = {
    "drop": "absent",
    "add": "present",
    "set": "value",
    "reshape": "shape",
    "cast": "dtype",
    "list": "number of tensors",
    "lengths": "values",
}


def _change(operation: str, parameter: str, before: Any, after: Any) -> Change:
    return Change(parameter, _WORDS.get(operation, operation), _text(before, operation), _text(after, operation))


def _text(value: Any, operation: str) -> str:
    if value is None:
        return "absent" if operation in ("drop", "add") else "none"
    if value == "fill" and operation == "values":
        return "other fill"
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], str):
        return clean(f"{value[1]} {_list(value[0])}", MAX_TEXT)
    if isinstance(value, list) and value and all(isinstance(v, list) and len(v) == 2 and isinstance(v[1], str) for v in value):
        return clean("; ".join(f"{v[1]} {_list(v[0])}" for v in value), MAX_TEXT)
    return clean(_list(value) if isinstance(value, list) else value, MAX_TEXT)


def _list(values: Any) -> str:
    return "[" + ", ".join(str(v) for v in values) + "]"
