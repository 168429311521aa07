"""The local scheduler: a few worker processes on this machine, each with a short queue of jobs.

One loop does all the work (``_turn``): it reads results, notices deaths, hangs and memory, replaces workers and fills
queues. Queues hold about ``QUEUE_SECONDS`` of work, so that a worker never waits for the driver and a death loses
little. Only the job that a worker was in when it died is blamed; the jobs behind it go to another worker.
"""

from __future__ import annotations

import selectors
from collections import deque
from time import monotonic, sleep
from typing import Optional

from fiafuzz.campaign.process import WorkerProcess
from fiafuzz.campaign.results import Result, clean
from fiafuzz.campaign.wire import Done, Hello, Job, Setup

from .protocol import BackendRefused, Completed, Restart, SchedulerError

QUEUE_SECONDS = 0.1
MIN_QUEUE = 2
"""A worker always has the next job at hand while it answers the one before."""
MAX_QUEUE = 32
CALM_QUEUE = 6
CALM_SECONDS = 0.004
START_LIMIT = 180.0
"""Seconds for a worker to load its backend; devices take their time."""
MAX_FAILED_STARTS = 3
MAX_IDLE_DEATHS = 10
WATCH_SECONDS = 0.1
"""How often memory and time of busy workers are looked at."""
AWAY_SECONDS = 1.0
"""A driver that has not looked for longer than this does not hold the gap against the workers."""


class _Slot:
    """A place for a worker: the process changes, the place stays."""

    def __init__(self, number: int, process: WorkerProcess) -> None:
        self.number = number
        self.process = process
        self.reserved = False
        self.time_limit: Optional[float] = None
        self.pace = QUEUE_SECONDS / 4
        """Seconds for one job, smoothed."""

    @property
    def depth(self) -> int:
        """Jobs that its queue should hold."""
        return max(MIN_QUEUE, min(MAX_QUEUE, int(QUEUE_SECONDS / max(self.pace, 1e-4))))


class LocalScheduler:
    """Worker processes on this machine (schedulers.protocol.Scheduler).

    ``time_limit``: seconds for one case, all its stages together. ``setup.memory``: bytes that a case may take.
    """

    def __init__(self, setup: Setup, workers: int = 1, *, time_limit: float = 10.0) -> None:
        if workers < 1:
            raise ValueError(f"{workers} workers")
        self.setup = setup
        self.time_limit = time_limit
        self._count = workers
        self._slots: list[_Slot] = []
        self._queue: deque[Job] = deque()
        self._ready: deque[Completed] = deque()
        self._restarts: list[Restart] = []
        self._selector = selectors.DefaultSelector()
        self._spare: Optional[WorkerProcess] = None
        self._deaths = 0
        self._failed_starts = 0
        self._idle_deaths = 0
        self._last_look = monotonic()
        self._next_watch = 0.0
        self._base_rss: dict[int, int] = {}

    # ---- the protocol -----------------------------------------------------------------------------

    def start(self) -> Hello:
        """Start the workers; returns what the first one says of its backend."""
        self._slots = [_Slot(i, self._spawned()) for i in range(self._count)]
        for slot in self._slots:
            self._watch(slot)
        while True:
            self._turn(WATCH_SECONDS)
            for slot in self._slots:
                if slot.process.hello is not None:
                    return slot.process.hello

    def room(self) -> int:
        """Jobs that queues have room for."""
        room = sum(max(0, s.depth - len(s.process.pending)) for s in self._slots if not s.reserved)
        return max(0, room - len(self._queue))

    @property
    def outstanding(self) -> int:
        """Jobs that have not been given back yet."""
        return len(self._queue) + len(self._ready) + sum(len(s.process.pending) for s in self._slots)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._queue.append(job)
        self._fill()

    def poll(self, timeout: float) -> list[Completed]:
        """Results that are in."""
        end = monotonic() + timeout
        if not self._ready and self._slots and min(len(s.process.pending) for s in self._slots) >= CALM_QUEUE:
            # Workers have enough to do: let results gather rather than be woken, and wake them, for each.
            sleep(min(timeout, CALM_SECONDS))
        while not self._ready:
            left = end - monotonic()
            self._turn(max(0.0, min(left, WATCH_SECONDS)))
            if left <= 0:
                break
        found = list(self._ready)
        self._ready.clear()
        return found

    def run(self, job: Job, *, fresh: bool = False, time_limit: Optional[float] = None) -> Completed:
        """Run one job alone."""
        slot = self._reserve(fresh)
        slot.time_limit = time_limit
        try:
            slot.process.send(job)
            kept: list[Completed] = []
            while True:
                self._turn(WATCH_SECONDS)
                while self._ready:
                    done = self._ready.popleft()
                    if done.job is job:
                        self._ready.extendleft(reversed(kept))
                        return done
                    kept.append(done)
        finally:
            slot.reserved = False
            slot.time_limit = None
            self._fill()

    def restarts(self) -> list[Restart]:
        """Workers replaced since the last call."""
        found, self._restarts = self._restarts, []
        return found

    def close(self) -> None:
        """End all workers."""
        for slot in self._slots:
            slot.process.close()
        if self._spare is not None:
            self._spare.close()
            self._spare = None
        self._slots = []
        self._selector.close()

    # ---- one turn of the loop -----------------------------------------------------------------------

    def _turn(self, timeout: float) -> None:
        now = monotonic()
        if now - self._last_look > AWAY_SECONDS:
            for slot in self._slots:
                slot.process.since += now - self._last_look
        for key, events in self._selector.select(timeout):
            slot, kind = key.data
            if kind == "noise":
                if not slot.process.drain_noise():
                    self._selector.unregister(slot.process.noise_fd)
            elif kind == "results":
                self._receive(slot)
            elif events & selectors.EVENT_WRITE:
                slot.process.flush()
        self._last_look = now = monotonic()
        if now >= self._next_watch:
            self._next_watch = now + WATCH_SECONDS
            for slot in self._slots:
                self._check_limits(slot)
        for slot in self._slots:
            if slot.process.lost:
                self._replace_lost(slot)
        self._fill()
        for slot in self._slots:
            self._watch_writes(slot)

    def _receive(self, slot: _Slot) -> None:
        process = slot.process
        known = process.hello is not None
        jobs = list(process.pending)
        begun = process.since
        for job, done in zip(jobs, process.receive()):
            self._complete(slot, job, done, begun)
            begun = process.since
        if not known and process.hello is not None:
            self._failed_starts = 0
            self._base_rss[process.process.pid] = process.rss()

    def _complete(self, slot: _Slot, job: Job, done: Done, begun: float) -> None:
        seconds = max(0.0, monotonic() - begun)
        work = done.result.seconds.total or seconds
        slot.pace += 0.2 * (work - slot.pace)
        self._idle_deaths = 0
        self._ready.append(Completed(job, done.result, slot.number, seconds))

    def _check_limits(self, slot: _Slot) -> None:
        process = slot.process
        if process.lost:
            return
        if process.ended:
            left = -1
            while not process.lost and left != len(process.pending):
                left = len(process.pending)
                self._receive(slot)
            process.lost = True
            return
        if process.hello is None:
            if monotonic() - process.since > START_LIMIT:
                process.kill("start", ask_where=True)
            return
        if not process.pending:
            return
        if process.busy_seconds > (slot.time_limit or self.time_limit):
            self._receive(slot)  # the answer may have come this very moment
            if process.busy_seconds > (slot.time_limit or self.time_limit):
                process.kill("hang", ask_where=True)
        elif self.setup.memory and process.rss() > self._base_rss.get(process.process.pid, 0) + self.setup.memory:
            process.kill("oom")

    def _replace_lost(self, slot: _Slot) -> None:
        process = slot.process
        if process.hello is None:
            self._failed_start(process)
        death = process.death()
        if process.pending:
            self._deaths += 1
            job = process.pending.popleft()
            self._ready.append(Completed(job, _blamed(death), slot.number, process.busy_seconds))
            self._queue.extendleft(reversed(process.pending))
            process.pending.clear()
        elif process.hello is not None:
            self._idle_deaths += 1
            if self._idle_deaths >= MAX_IDLE_DEATHS:
                raise SchedulerError(f"workers die without a case in work: {death.message.splitlines()[0]}")
        self._restarts.append(Restart(slot.number, death.message.split("\n")[0]))
        self._renew(slot)

    def _failed_start(self, process: WorkerProcess) -> None:
        """Count a worker that never came up; raise when that makes no sense to try again."""
        refused = process.refused
        if refused is not None:
            raise (BackendRefused if refused.kind == "unavailable" else SchedulerError)(refused.text)
        self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise SchedulerError(clean(f"workers do not come up: {process.death().message}", 500).replace("\n", " "))

    def _renew(self, slot: _Slot) -> None:
        """Put a new process into a slot."""
        self._forget(slot)
        slot.process.close()
        slot.process = self._spawned()
        self._watch(slot)
        if self._deaths >= 2 and self._spare is None:
            # Where workers die one after the other (a crash being shrunk), the next one loads while this one works.
            self._spare = WorkerProcess(self.setup)

    def _spawned(self) -> WorkerProcess:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.since = monotonic()
            return spare
        return WorkerProcess(self.setup)

    # ---- queues and file descriptors ------------------------------------------------------------------

    def _fill(self) -> None:
        while self._queue:
            open_slots = [
                s
                for s in self._slots
                if not s.reserved
                and s.process.hello is not None
                and not s.process.lost
                and len(s.process.pending) < s.depth
            ]
            if not open_slots:
                return
            slot = min(open_slots, key=lambda s: len(s.process.pending))
            slot.process.send(self._queue.popleft())
            self._watch_writes(slot)

    def _reserve(self, fresh: bool) -> _Slot:
        """A slot whose worker is up, idle and taken out of the queues; with ``fresh`` one that has run nothing."""
        slot = min(self._slots, key=lambda s: (len(s.process.pending), fresh and s.process.ran > 0))
        slot.reserved = True
        try:
            while slot.process.pending:
                self._turn(WATCH_SECONDS)
            if fresh and slot.process.ran:
                self._renew(slot)
            while slot.process.hello is None:
                self._turn(WATCH_SECONDS)
        except BaseException:
            slot.reserved = False
            raise
        return slot

    def _watch(self, slot: _Slot) -> None:
        process = slot.process
        self._selector.register(process.result_fd, selectors.EVENT_READ, (slot, "results"))
        self._selector.register(process.noise_fd, selectors.EVENT_READ, (slot, "noise"))

    def _watch_writes(self, slot: _Slot) -> None:
        """Wait for room in the job pipe while, and only while, something waits to go out."""
        fd, wanted = slot.process.job_fd, slot.process.wants_to_write and not slot.process.lost
        registered = fd in self._selector.get_map()
        if wanted and not registered:
            self._selector.register(fd, selectors.EVENT_WRITE, (slot, "jobs"))
        elif registered and not wanted:
            self._selector.unregister(fd)

    def _forget(self, slot: _Slot) -> None:
        process = slot.process
        self._base_rss.pop(process.process.pid, None)
        for fd in (process.result_fd, process.noise_fd, process.job_fd):
            if fd in self._selector.get_map():
                self._selector.unregister(fd)


def _blamed(death: Result) -> Result:
    """A death in the stages that are ours (tensors, reference, judgement) by want of time or memory is no fault of the
    backend."""
    if death.stage_at in ("make", "reference", "judge") and death.kind in ("hang", "oom"):
        return Result(
            "untestable",
            message=f"{death.message.splitlines()[0]} while in stage {death.stage_at}",
            stage_at=death.stage_at,
        )
    return death
