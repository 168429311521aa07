"""What a scheduler is to the engine: something that takes jobs and gives back results, each exactly once.

The local one runs worker processes on this machine; the one for Ray spreads jobs over the nodes of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional, Protocol

from fiafuzz.campaign.results import Result
from fiafuzz.campaign.wire import Hello, Job
from fiafuzz.model.case import Case


class SchedulerError(RuntimeError):
    """Workers cannot be started or kept alive; the text is one line."""


class BackendRefused(SchedulerError):
    """The backend says that it cannot run here."""


class WorkersDiffer(BackendRefused):
    """Workers of one run are of different builds or products."""


class DevicesLost(SchedulerError):
    """No worker is left: every device, or node, has been given up."""


@dataclass(frozen=True)
class Completed:
    """A job and what came of it. ``worker`` tells which worker ran it, ``seconds`` how long (its last case) took as the driver saw
    it, ``recent`` the last few cases that its process had run before, as far as the driver knows."""

    job: Job
    result: Result
    worker: int = 0
    seconds: float = 0.0
    recent: tuple[Case, ...] = ()


@dataclass(frozen=True)
class Restart:
    """A worker that was replaced, and why; or, ``given_up``, that will not be."""

    worker: int
    reason: str
    given_up: bool = False


class Scheduler(Protocol):
    """Runs jobs. A job whose worker died comes back with a result of kind crash, hang or oom; the jobs queued behind it
    are run by others, unseen by the engine.

    ``on_room`` is called now and then while ``run`` waits, so that the other workers need not idle: it may submit jobs.
    """

    on_room: Optional[Callable[[], None]]

    def start(self) -> Hello:
        """Start the workers and wait for the first to have loaded its backend. BackendRefused or SchedulerError."""
        ...

    def room(self) -> int:
        """How many more jobs can usefully be taken now."""
        ...

    @property
    def outstanding(self) -> int:
        """Jobs submitted whose results have not been given out by ``poll`` yet."""
        ...

    def submit(self, job: Job) -> None:
        """Take a job."""
        ...

    def poll(self, timeout: float) -> list[Completed]:
        """Results that are in; waits up to ``timeout`` seconds for the first. DevicesLost when nobody is left to bring
        more."""
        ...

    def run(self, job: Job, *, fresh: bool = False, time_limit: Optional[float] = None) -> Completed:
        """Run one job alone and wait for it; ``fresh``: in a worker that has run nothing before."""
        ...

    def given_up(self, worker: int) -> str:
        """Why the device of a worker was given up after the last death there; "" when it answers a known-good call again, and
        for workers without a device. May take the time of that call."""
        ...

    def restarts(self) -> list[Restart]:
        """Workers replaced since the last call."""
        ...

    def close(self) -> None:
        """End all workers at once."""
        ...
