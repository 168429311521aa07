"""Metamorphic relations: what outputs of related calls must have to do with each other, for any backend, without a reference.

``RELATIONS`` lists them; ``other_calls`` makes the other side of one, and ``Relation.compare`` says whether it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from .call import Call, Ran
from .masks import RELATIONS as _MASKS
from .moving import RELATIONS as _MOVING
from .relation import Relation
from .storage import RELATIONS as _STORAGE
from .sums import RELATIONS as _SUMS

__all__ = ["RELATIONS", "Call", "Ran", "Relation", "other_calls", "relation_by_name"]

RELATIONS: tuple[Relation, ...] = (*_MOVING, *_STORAGE, *_MASKS, *_SUMS)


def relation_by_name(name: str) -> Relation:
    """The relation of that name; ValueError lists the known ones."""
    for relation in RELATIONS:
        if relation.name == name:
            return relation
    raise ValueError(f"unknown relation {name!r}; known: {', '.join(r.name for r in RELATIONS)}")


def other_calls(relation: Relation, call: Call, usable: Callable[[Call], bool]) -> Optional[tuple[Call, ...]]:
    """The other side of a relation: the first candidate whose calls are all usable (accepted under the profile and expressible
    by the backend). None when the relation does not apply or offers no such candidate."""
    if not relation.applies(call.scene):
        return None
    for candidate in relation.transform(call):
        if all(usable(c) for c in candidate):
            return tuple(candidate)
    return None
