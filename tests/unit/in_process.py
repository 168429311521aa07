"""A scheduler without workers: what campaigns and replays ask of one, answered by an executor in the test's own process.

For backends that cannot do worse than a wrong answer: torch is loaded once, not once for each worker and each confirmation.
"""

from __future__ import annotations

from typing import Any, Optional

from fiafuzz.backends.registry import get_backend
from fiafuzz.campaign.execute import Executor
from fiafuzz.campaign.schedulers.protocol import Completed, Restart
from fiafuzz.campaign.wire import Hello, Job, Setup


class InProcess:
    """Runs each job at once. It is fresh every time: these backends keep nothing from call to call."""

    def __init__(self, setup: Setup) -> None:
        self.backend = get_backend(setup.backend, setup.profile)
        self.executor = Executor(self.backend, setup.standard, get_backend, profile=setup.profile)
        self.ready: list[Completed] = []
        self.on_room: Any = None

    def start(self) -> Hello:
        info = self.backend.info
        versions = {name: str(version) for name, version in info.versions.items()}  # torch has a class of its own for it
        return Hello(info.name, info.title, info.checks, versions, dict(info.policies), info.deterministic)

    def room(self) -> int:
        return max(0, 2 - len(self.ready))

    @property
    def outstanding(self) -> int:
        return len(self.ready)

    def submit(self, job: Job) -> None:
        self.ready.append(self.run(job))

    def poll(self, timeout: float) -> list[Completed]:
        return [self.ready.pop(0)] if self.ready else []

    def run(self, job: Job, *, fresh: bool = False, time_limit: Optional[float] = None) -> Completed:
        assert not job.before, "calls that stand behind others need a process of their own"
        return Completed(job, self.executor.execute(job))

    def given_up(self, worker: int) -> str:
        return ""

    def restarts(self) -> list[Restart]:
        return []

    def close(self) -> None:
        pass
