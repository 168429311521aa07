"""The local scheduler: worker processes on this machine, one a device or a few a machine, each with a short queue of jobs.

One loop does all the work (``_turn``): it reads results, notices deaths, hangs and memory, replaces workers and fills
queues. Queues hold about ``QUEUE_SECONDS`` of work, so that a worker never waits for the driver and a death loses
little. Only the job that a worker was in when it died is blamed; the jobs behind it go to another worker, and so do jobs
that wait behind a long one while others have nothing to do.

Where workers sit on devices, a worker that replaces a dead one first has to answer a known-good call. When it cannot, the
device is given up, and the others go on.
"""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Optional

from fiafuzz.campaign.process import Answer
from fiafuzz.campaign.wire import Hello, Job, Setup

from .copies import Copies
from .devices import cores, dealt, visible_devices
from .places import Places
from .probe import PROBE_SECONDS, probe_job
from .protocol import BackendRefused, Completed, DevicesLost, Restart, SchedulerError
from .slot import Slot, blamed_for

CALM_QUEUE = 6
CALM_SECONDS = 0.004
START_LIMIT = 180.0
"""Seconds for a worker to load its backend; devices take their time."""
MAX_IDLE_DEATHS = 10
WATCH_SECONDS = 0.1
"""How often memory and time of busy workers are looked at."""
AWAY_SECONDS = 1.0
"""A driver that has not looked for longer than this does not hold the gap against the workers."""
STEAL_SECONDS = 0.25
"""A job that takes longer than this gives the queue behind it back to workers that have nothing to do."""


class LocalScheduler(Places):
    """Worker processes on this machine (schedulers.protocol.Scheduler).

    ``workers``: how many; 0: one a device for a device backend, else one a core. ``devices``: ids of the devices to use, one
    worker each unless there are more workers (empty: those that can be seen). ``time_limit``: seconds for one case, all its
    stages together. ``setup.memory``: bytes that a case may take.
    """

    def __init__(self, setup: Setup, workers: int = 1, *, time_limit: float = 10.0, devices: Sequence[str] = ()) -> None:
        if workers < 0:
            raise ValueError(f"{workers} workers")
        super().__init__(setup, workers, devices)
        self.time_limit = time_limit
        self.on_room: Optional[Callable[[], None]] = None
        self._queue: deque[Job] = deque()
        self._ready: deque[Completed] = deque()
        self._idle_deaths = 0
        self._last_look = monotonic()
        self._next_watch = 0.0
        self._copies = Copies()

    # ---- the protocol -----------------------------------------------------------------------------

    def start(self) -> Hello:
        """Start the workers; returns what the first one says of its backend."""
        seen = visible_devices()
        at_once = bool(self._devices) or (self._wanted > 0 and not seen)
        count = (self._wanted or len(self._devices)) if at_once else 1
        for device in dealt(self._devices, count):
            self._add(device)
        while self._hello is None:
            self._turn(WATCH_SECONDS)
        hello = self._hello
        if self._devices and not hello.device:
            raise BackendRefused(f"devices {','.join(self._devices)} are asked for, but backend {hello.name} uses none")
        if hello.device and not self._devices:
            self._spread(hello, seen)
        while len(self._slots) < (self._wanted or (1 if hello.device else cores())):
            self._add(None)
        while not any(s.ready for s in self._slots):
            self._turn(WATCH_SECONDS)
        return hello

    def room(self) -> int:
        """Jobs that queues have room for."""
        room = sum(max(0, s.depth - len(s.process.pending)) for s in self._slots if s.there and not s.reserved)
        return max(0, room - len(self._queue))

    @property
    def outstanding(self) -> int:
        """Jobs that have not been given back yet."""
        held = {id(job) for s in self._slots for job in s.process.pending if job is not s.probe}
        return len(self._ready) + len(held | {id(job) for job in self._queue})

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._queue.append(job)
        self._fill()

    def poll(self, timeout: float) -> list[Completed]:
        """Results that are in."""
        end = monotonic() + timeout
        busy = [len(s.process.pending) for s in self._slots if s.there]
        if not self._ready and busy and min(busy) >= CALM_QUEUE:
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
        kept: list[Completed] = []
        slot: Optional[Slot] = None
        try:
            while True:
                if slot is None or not slot.there:
                    slot = self._reserve(fresh)
                    slot.time_limit = time_limit
                    slot.process.send(job)
                self._turn(WATCH_SECONDS)
                while self._ready:
                    done = self._ready.popleft()
                    if done.job is job:
                        return done
                    kept.append(done)
                if self.on_room is not None:
                    self.on_room()
        finally:
            self._ready.extendleft(reversed(kept))
            if slot is not None:
                slot.reserved = False
                slot.time_limit = None
            self._fill()

    def given_up(self, worker: int) -> str:
        """Why the device of a worker was given up; waits for its probe."""
        slot = next((s for s in self._slots if s.number == worker), None)
        if slot is None or self._hello is None or not self._hello.device:
            return ""
        while slot.there and not slot.ready and self._end is None:
            self._turn(WATCH_SECONDS)
        return slot.given_up

    # ---- one turn of the loop -----------------------------------------------------------------------

    def _turn(self, timeout: float) -> None:
        if self._end is not None and not self._ready:
            raise self._end
        now = monotonic()
        if now - self._last_look > AWAY_SECONDS:
            for slot in self._slots:
                slot.process.since += now - self._last_look
        for key, events in self._selector.select(timeout):
            slot, process, kind = key.data
            if slot.process is not process or not slot.there:
                continue  # replaced by what was read just before
            if kind == "noise":
                if not process.drain_noise():
                    self._selector.unregister(process.noise_fd)
            elif kind == "results":
                self._receive(slot)
            elif events & selectors.EVENT_WRITE:
                process.flush()
        self._last_look = now = monotonic()
        if now >= self._next_watch:
            self._next_watch = now + WATCH_SECONDS
            for slot in self._slots:
                self._check_limits(slot)
            if self._crowds.grown(max((s.process.busy_seconds for s in self._slots if s.there), default=0.0)):
                self._disperse()
        for slot in self._slots:
            if slot.there and slot.process.lost:
                self._replace_lost(slot)
        self._fill()
        self._steal()
        for slot in self._slots:
            self._watch_writes(slot)

    def _receive(self, slot: Slot) -> None:
        process = slot.process
        known = process.hello is not None
        for answer in process.receive():
            self._complete(slot, answer)
        if not known and process.hello is not None:
            self._greet(slot, process.hello)

    def _complete(self, slot: Slot, answer: Answer) -> None:
        job, result = answer.job, answer.result
        if job is slot.probe:
            self._probed(slot, result)
        elif result is None:
            if answer.recalled:
                self._copies.gone((job,))
            else:
                self._queue.appendleft(job)
        elif self._copies.answered(job):
            slot.pace += 0.2 * ((result.took or answer.seconds) - slot.pace)
            self._idle_deaths = 0
            self._ready.append(Completed(job, result, slot.number, answer.seconds, answer.recent))

    def _check_limits(self, slot: Slot) -> None:
        process = slot.process
        if process.lost or not slot.there:
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
        limit = slot.time_limit or self.time_limit
        if process.pending[0] is slot.probe:
            limit = max(limit, PROBE_SECONDS)
        if process.hangs(limit):
            self._receive(slot)  # the answer may have come this very moment
            if process.hangs(limit) and not process.lost:
                process.kill("hang", ask_where=True)
        elif self.setup.memory and process.rss() > slot.base_rss + self.setup.memory:
            process.kill("oom")

    # ---- deaths -------------------------------------------------------------------------------------

    def _replace_lost(self, slot: Slot) -> None:
        process = slot.process
        if process.hello is None:
            self._failed_start(slot)
            return
        death = process.death()
        seconds = process.busy_seconds
        idle = not process.pending
        blamed, others, recalled = process.leave()
        self._copies.gone(recalled)
        if blamed is not None and process.spent:
            others.insert(0, blamed)
            blamed = None
        self._queue.extendleft(reversed(others))
        if blamed is not None and blamed is slot.probe:
            slot.probe = None
            self._no_life(slot, death.message)
            return
        if blamed is not None:
            self._deaths += 1
            if self._copies.answered(blamed):
                self._ready.append(Completed(blamed, blamed_for(death), slot.number, seconds, tuple(process.recent)))
        elif idle and not process.spent:
            self._idle_deaths += 1
            if self._idle_deaths >= MAX_IDLE_DEATHS:
                self._end = SchedulerError(f"workers die without a case in work: {death.message.splitlines()[0]}")
        reason = "the backend asked for a new process" if process.spent else death.message.split("\n")[0]
        self._restarts.append(Restart(slot.number, reason))
        if self._hello is not None and self._hello.device:
            slot.probe = probe_job(self.setup.profile)
        self._renew(slot)

    # ---- queues and file descriptors ------------------------------------------------------------------

    def _fill(self) -> None:
        while self._queue:
            if self._copies.is_answered(self._queue[0]):
                self._copies.gone((self._queue.popleft(),))
                continue
            slots = [s for s in self._slots if s.open]
            if not slots:
                return
            slot = min(slots, key=lambda s: len(s.process.pending))
            slot.process.send(self._queue.popleft())
            self._watch_writes(slot)

    def _steal(self) -> None:
        """Give what waits behind a long job to workers with nothing to do."""
        if self._queue or len(self._slots) < 2 or not any(s.open and not s.process.pending for s in self._slots):
            return
        for slot in self._slots:
            if slot.empties and slot.process.busy_seconds > STEAL_SECONDS:
                jobs = slot.process.recall()
                self._copies.stolen(jobs)
                self._queue.extend(jobs)
        self._fill()

    def _reserve(self, fresh: bool) -> Slot:
        """A place whose worker is up, idle and taken out of the queues; with ``fresh`` one that has run nothing."""
        while True:
            slots = [s for s in self._slots if s.there]
            if not slots:
                self._turn(0.0)
                raise self._end or DevicesLost("no worker is left")
            slot = min(slots, key=lambda s: (not s.ready, len(s.process.pending), fresh and s.process.ran > 0))
            slot.reserved = True
            try:
                while slot.there and slot.process.pending:
                    self._turn(WATCH_SECONDS)
                if slot.there and fresh and slot.process.ran:
                    self._renew(slot)
                while slot.there and not slot.ready:
                    self._turn(WATCH_SECONDS)
            except BaseException:
                slot.reserved = False
                raise
            if slot.there:
                return slot
