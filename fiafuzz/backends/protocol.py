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
    front answers from the constraint oracle, so it cannot disagree unless a fault is planted), "partial" (the candidate
    checks a few demands; a call that breaks only others, and that it lets through, it answers with "unsupported") or
    "none" (invalid calls are not run).
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
    blind: bool = False
    """Whether it also answers calls whose tensors cannot be made (negative or enormous shapes): it gets them without, and
    says in the outcome whether they were launched."""
    computes: bool = True
    """Whether the outputs hold values. False: only their shape and dtype are judged (F103)."""
    device: str = ""
    """What a worker occupies alone: "npu" for a backend that runs on a device, "" for one that needs none."""
    devices: int = 0
    """How many devices it can see in this process (0: it does not say)."""


@dataclass(frozen=True)
class Outcome:
    """What happened to one run.

    ``kind``: "ok" (outputs hold storage arrays by output name), "reject" (code, stage, message), "unsupported" (the
    backend cannot express the case: message says why), "crash" (signal, or the code of a device exception), "hang",
    "oom", "lost" (device) or "error" (the backend raised: message).
    ``code`` is an aclnn or runtime status and nothing else: a refusal by a layer above (stage "torch") has None.
    ``fatal`` says that the process, its queue or its device context must not be used again: the worker is replaced, the
    device probed with a known-good call, and the case run again alone.
    ``flaw`` is what the backend itself saw wrong with a call that came back: a verdict code and words, such as
    ("F103", "attentionOut is FLOAT8_E5M2 ...") or ("F107", "8 bytes that belong to no output changed ...").
    ``launched`` is False when the candidate's checks took a call that was not run, since its tensors cannot be made: the
    outputs hold nothing.
    """

    kind: str
    outputs: Optional[Outputs] = None
    code: Optional[int] = None
    stage: Optional[str] = None
    message: str = ""
    signal: Optional[int] = None
    seconds: float = 0.0
    fatal: bool = False
    flaw: Optional[tuple[str, str]] = None
    launched: bool = True


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
