"""Metamorphic relations as the campaign sees them: a list that is consulted when there is one.

A relation turns a case into one or more other cases whose outputs must follow from those of the first. They live in
``oracles.metamorphic`` (a sequence ``RELATIONS``); without that module no relation is tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Optional, Protocol, Union

from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene

if TYPE_CHECKING:
    import numpy as np

Outputs = Mapping[str, "np.ndarray[Any, Any]"]


class Relation(Protocol):
    """One relation. ``applies`` states its exact condition; ``compare`` gives None when it holds, else what is off in
    words."""

    @property
    def name(self) -> str:
        """Short stable name."""
        ...

    def applies(self, scene: Scene) -> bool:
        """Whether the relation is defined for this call."""
        ...

    def transform(self, case: Case) -> Union[Case, Sequence[Case], None]:
        """The other call or calls; None when this one offers no place for the change."""
        ...

    def compare(self, case: Case, outputs: Outputs, others: Sequence[tuple[Case, Outputs]]) -> Optional[str]:
        """None when the outputs (storage arrays) are related as they must be, else one line."""
        ...


@cache
def relations() -> tuple[Relation, ...]:
    """All relations that are installed."""
    try:
        module = import_module("oracles.metamorphic")
    except ModuleNotFoundError as error:
        if error.name != "oracles.metamorphic":
            raise
        return ()
    return tuple(module.RELATIONS)
