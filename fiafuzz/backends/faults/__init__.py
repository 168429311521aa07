"""Planted faults: one room per parameter group, and one for faults of the process itself."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from fiafuzz.model.parameters import GROUPS

from .record import Fault

ROOMS = (*GROUPS, "process")


@cache
def all_faults() -> tuple[Fault, ...]:
    """Every planted fault, room by room. ValueError when two share a name."""
    faults = [fault for room in ROOMS for fault in import_module(f"{__package__}.{room}").FAULTS]
    names = [fault.name for fault in faults]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two faults are called {name}")
    return tuple(faults)


def fault_by_name(name: str) -> Fault:
    """The fault of that name; ValueError lists the known ones."""
    for fault in all_faults():
        if fault.name == name:
            return fault
    raise ValueError(f"unknown fault {name!r}; known: {', '.join(f.name for f in all_faults())}")


__all__ = ["Fault", "all_faults", "fault_by_name"]
