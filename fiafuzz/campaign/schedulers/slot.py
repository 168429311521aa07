"""A place for a worker: the process changes, the place (and its device) stays."""

from __future__ import annotations

from typing import Optional

from fiafuzz.campaign.process import WorkerProcess
from fiafuzz.campaign.results import Result
from fiafuzz.campaign.wire import Hello, Job, Setup

from .devices import environment_for

QUEUE_SECONDS = 0.1
MIN_QUEUE = 2
"""A worker always has the next job at hand while it answers the one before."""
MAX_QUEUE = 32


class Slot:
    """A worker's place. ``probe`` is the known-good call that it has to answer before it gets other work (None: it need
    not), ``given_up`` why the place is empty for good.
    """

    def __init__(self, number: int, setup: Setup, process: WorkerProcess, device: Optional[str] = None) -> None:
        self.number = number
        self.setup = setup
        self.process = process
        self.device = device
        self.reserved = False
        self.time_limit: Optional[float] = None
        self.pace = QUEUE_SECONDS / 4
        """Seconds for one job, smoothed."""
        self.probe: Optional[Job] = None
        self.failed_probes = 0
        self.failed_starts = 0
        self.probed = False
        self.given_up = ""
        self.base_rss = 0

    @property
    def depth(self) -> int:
        """Jobs that its queue should hold."""
        return max(MIN_QUEUE, min(MAX_QUEUE, int(QUEUE_SECONDS / max(self.pace, 1e-4))))

    @property
    def there(self) -> bool:
        """Whether the place is still in use."""
        return not self.given_up

    @property
    def ready(self) -> bool:
        """Whether its worker can take work at once."""
        return self.there and self.process.hello is not None and not self.process.lost and self.probe is None

    @property
    def open(self) -> bool:
        """Whether the common queue may give it a job."""
        return self.ready and not self.reserved and len(self.process.pending) < self.depth

    @property
    def hello(self) -> Optional[Hello]:
        """What its present worker has said of itself."""
        return self.process.hello

    @property
    def name(self) -> str:
        """For texts."""
        return f"worker {self.number}" if self.device is None else f"device {self.device}"

    @property
    def empties(self) -> bool:
        """Whether what waits behind the job in work may be asked back."""
        return self.there and self.probe is None and len(self.process.pending) > 1

    def new_process(self, ready: Optional[WorkerProcess] = None) -> None:
        """Put a new process into the place."""
        self.process.close()
        self.process = ready if ready is not None else WorkerProcess(self.setup, environment_for(self.device))


def blamed_for(death: Result) -> Result:
    """A death in the stages that are ours (tensors, reference, judgement) by want of time or memory is no fault of the
    backend."""
    if death.stage_at in ("make", "reference", "judge") and death.kind in ("hang", "oom"):
        return Result(
            "untestable",
            message=f"{death.message.splitlines()[0]} while in stage {death.stage_at}",
            stage_at=death.stage_at,
            before=death.before,
        )
    return death
