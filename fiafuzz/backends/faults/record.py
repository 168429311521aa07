"""What a planted fault is: a record with the few lines that spoil one step of the correct backend.

Fault modules do not import torch, so that the list of faults costs nothing; hooks work on the tensors handed to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Hook = Callable[..., Any]
"""``hook(correct, owner, *arguments)`` stands in for a method: ``correct`` is the method as it was, ``owner``
the kernel, front or backend."""

Words = Mapping[str, "str | tuple[str, ...]"]

MANY = ("2", "3+")
"""Factor words of more than one batch."""
GROUPED = ("gqa", "mqa")
SEVERAL_KV = ("gqa", "mha")
"""Groupings with more than one key head (mha: as soon as there is more than one head)."""
PAGED = ("BnBsH", "BnNBsD", "NZ")
PACKED = ("TND", "NTD", "NTD_TND", "TND_NTD")
BY_SOURCE = "950-v5-2026.08"
"""The profile under which calls are valid that the user's document does not list or words otherwise."""
UNEQUAL = ("q_shorter", "q_longer", "mixed")
MODE_MASK = ("0", "1")
MASK_GIVEN = ("BOOL", "INT8", "UINT8")


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    ``room`` is the parameter group it belongs to, ``needs`` the factor words (fiafuzz.model.factors) that must meet
    for it to show, ``also`` what must hold besides. ``hooks`` maps a method to its spoilt form: of the kernel ("band"),
    of a part of it ("x.value.fetch"), of the front ("front.reject") or of the backend ("backend.compute_empty").
    ``kind`` is numeric, check or process; ``expect`` the verdict code that finds it; ``profile`` and ``mode`` (valid,
    invalid or disputed) say which calls reach it.
    """

    name: str
    title: str
    room: str
    hooks: Mapping[str, Hook]
    needs: Words = field(default_factory=dict)
    also: tuple[str, ...] = ()
    kind: str = "numeric"
    expect: str = "F101"
    profile: str = "950-v5"
    mode: str = "valid"

    @property
    def interaction(self) -> int:
        """How many things must come together for the fault to show."""
        return len(self.needs) + len(self.also)


def constant(value: Any) -> Hook:
    """A hook that answers the same whatever it is asked."""
    return lambda correct, owner, *arguments: value
