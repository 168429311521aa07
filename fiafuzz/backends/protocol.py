"""What a candidate is to the campaign: capability, run, outcome. Every backend is one file that provides a Backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional, Protocol

from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene

if TYPE_CHECKING:
    import numpy as np

    from fiafuzz.model.tensors import Tensors

    Outputs = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class BackendInfo:
    """What a backend is and which policies of its own it declares.

    ``checks`` says how invalid calls are answered: "own" (the candidate's own checks), "emulated" (the cpu backend's
    front answers from the constraint oracle, so it cannot disagree unless a fault is planted) or "none" (invalid calls
    are not run).
    ``policies`` are declared deviations that must not count as findings, e.g. {"masked_row": "zero"}.
    """

    name: str
    title: str
    checks: str
    versions: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, str] = field(default_factory=dict)
    deterministic: bool = True
    profiles: tuple[str, ...] = ()
    """Profiles that it can stand for; () means any."""


@dataclass(frozen=True)
class Outcome:
    """What happened to one run.

    ``kind``: "ok" (outputs hold storage arrays by output name), "reject" (code, stage, message), "unsupported" (the
    backend cannot express the case: message says why), "crash" (signal), "hang", "oom", "lost" (device) or "error" (the
    backend raised: message).
    """

    kind: str
    outputs: Optional[Outputs] = None
    code: Optional[int] = None
    stage: Optional[str] = None
    message: str = ""
    signal: Optional[int] = None
    seconds: float = 0.0


class Backend(Protocol):
    """A candidate implementation of the operator."""

    @property
    def info(self) -> BackendInfo:
        """Name, versions and declared policies."""
        ...

    def cannot_express(self, scene: Scene) -> Optional[str]:
        """Why this case cannot be run here; None when it can."""
        ...

    def run(self, case: Case, scene: Scene, tensors: Tensors, outputs: dict[str, np.ndarray[Any, Any]]) -> Outcome:
        """Run one case. ``outputs`` holds the poisoned output buffers (storage form) to be written in place."""
        ...


class BackendUnavailable(RuntimeError):
    """The backend cannot run on this machine; the text says what is missing and the next step."""
