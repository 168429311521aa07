"""The places of workers: each has a process that is started, replaced when it dies, asked whether its device lives, and given
up when it does not."""

from __future__ import annotations

import selectors
from collections.abc import Sequence
from time import monotonic
from typing import Optional

from fiafuzz.campaign.offspring import MAX_OFFSPRING, Crowds, carriers
from fiafuzz.campaign.process import WorkerProcess
from fiafuzz.campaign.results import Result, clean
from fiafuzz.campaign.wire import Hello, Setup

from .devices import dealt, difference, environment_for
from .probe import is_alive, probe_job
from .protocol import BackendRefused, DevicesLost, Restart, SchedulerError, WorkersDiffer
from .slot import Slot

MAX_FAILED_STARTS = 3
MAX_FAILED_PROBES = 2


class Places:
    """Places of workers on this machine, without their queues. ``_end`` is set once none is left, or workers are not alike."""

    def __init__(self, setup: Setup, workers: int, devices: Sequence[str]) -> None:
        self.setup = setup
        self._wanted = workers
        self._devices = tuple(devices)
        self._slots: list[Slot] = []
        self._restarts: list[Restart] = []
        self._selector = selectors.DefaultSelector()
        self._spare: Optional[WorkerProcess] = None
        self._hello: Optional[Hello] = None
        self._deaths = 0
        self._crowds = Crowds()
        self._probe_passes: Optional[bool] = None
        self._end: Optional[SchedulerError] = None

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

    # ---- processes -----------------------------------------------------------------------------------

    def _add(self, device: Optional[str]) -> None:
        slot = Slot(len(self._slots), self.setup, WorkerProcess(self.setup, environment_for(device)), device)
        self._slots.append(slot)
        self._watch(slot)

    def _spread(self, hello: Hello, seen: tuple[str, ...]) -> None:
        """Give each place a device of its own, now that the backend has said that it needs one. The worker that is up uses
        the first of those that it sees, and stays."""
        found = seen or tuple(str(i) for i in range(hello.devices))
        if not found:
            return
        self._devices = found
        wanted = dealt(found, self._wanted or len(found))
        for slot, device in zip(self._slots, wanted):
            slot.device = device
            if device != wanted[0]:
                self._renew(slot)
        for device in wanted[len(self._slots) :]:
            self._add(device)

    def _renew(self, slot: Slot) -> None:
        """Put a new process into a place."""
        self._forget(slot)
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.since = monotonic()
        slot.new_process(spare)
        self._watch(slot)
        if self._deaths >= 2 and self._spare is None and not (self._hello and self._hello.device):
            # Where workers die one after the other (a crash being shrunk), the next one loads while this one works.
            self._spare = WorkerProcess(self.setup)

    # ---- hello, and are you alive ------------------------------------------------------------------

    def _greet(self, slot: Slot, hello: Hello) -> None:
        """A worker is up."""
        slot.failed_starts = 0
        slot.base_rss = slot.process.rss()
        if self._hello is None:
            self._hello = hello
        different = difference(self._hello, hello)
        if different:
            self._end = WorkersDiffer(f"workers are not alike, and a run does not mix builds: {different} ({slot.name})")
            return
        if slot.probe is not None or (hello.device and not slot.probed):
            slot.probe = slot.probe or probe_job(self.setup.profile)
            slot.probed = True
            slot.process.send(slot.probe)

    def _probed(self, slot: Slot, result: Optional[Result]) -> None:
        slot.probe = None
        if result is None or not is_alive(result, self._probe_passes):
            self._no_life(slot, result.message if result is not None else "no answer")
            return
        slot.failed_probes = 0
        if self._probe_passes is None:
            self._probe_passes = result.judged is not None and result.judged.passed

    def _no_life(self, slot: Slot, why: str) -> None:
        """A device does not answer the known-good call. It gets a second chance in another process."""
        slot.failed_probes += 1
        line = clean(why, 300).split("\n")[0] or "no answer"
        if slot.failed_probes >= MAX_FAILED_PROBES:
            self._give_up(slot, f"it does not answer a known-good call: {line}")
        else:
            slot.probe = probe_job(self.setup.profile)
            self._restarts.append(Restart(slot.number, f"known-good call: {line}"))
            self._renew(slot)

    # ---- ends ----------------------------------------------------------------------------------------

    def _failed_start(self, slot: Slot) -> None:
        """A worker never came up: try again, or give its place up when that makes no sense."""
        refused = slot.process.refused
        slot.failed_starts += 1
        if refused is not None:
            self._give_up(slot, refused.text, refused.kind == "unavailable")
        elif slot.failed_starts >= MAX_FAILED_STARTS:
            text = clean(f"workers do not come up: {slot.process.death().message}", 500).replace("\n", " ")
            self._give_up(slot, text)
        else:
            self._restarts.append(Restart(slot.number, slot.process.death().message.split("\n")[0]))
            self._renew(slot)

    def _give_up(self, slot: Slot, why: str, refused: bool = False) -> None:
        """Leave a place empty. When it was the last one, the reason is the end of all."""
        self._forget(slot)
        slot.process.close()
        slot.given_up = clean(why, 500).replace("\n", " ")
        slot.probe = None
        self._restarts.append(Restart(slot.number, f"{slot.name} is given up: {slot.given_up}", given_up=True))
        if any(s.there for s in self._slots):
            return
        if self._hello is None:
            self._end = BackendRefused(slot.given_up) if refused else SchedulerError(slot.given_up)
        else:
            self._end = DevicesLost(f"no worker is left; {slot.name}: {slot.given_up}")

    def _disperse(self) -> None:
        """Kill workers that have started far too many processes."""
        largest = 0
        for slot in self._slots:
            if slot.there and not slot.process.lost:
                count = len(carriers(slot.process.mark))
                if count > MAX_OFFSPRING:
                    slot.process.kill(f"it started more than {MAX_OFFSPRING} processes")
                else:
                    largest = max(largest, count)
        self._crowds.calm_down(largest)

    # ---- file descriptors ----------------------------------------------------------------------------

    def _watch(self, slot: Slot) -> None:
        process = slot.process
        self._selector.register(process.result_fd, selectors.EVENT_READ, (slot, process, "results"))
        self._selector.register(process.noise_fd, selectors.EVENT_READ, (slot, process, "noise"))

    def _watch_writes(self, slot: Slot) -> None:
        """Wait for room in the job pipe while, and only while, something waits to go out."""
        if not slot.there:
            return
        fd, wanted = slot.process.job_fd, slot.process.wants_to_write and not slot.process.lost
        registered = fd in self._selector.get_map()
        if wanted and not registered:
            self._selector.register(fd, selectors.EVENT_WRITE, (slot, slot.process, "jobs"))
        elif registered and not wanted:
            self._selector.unregister(fd)

    def _forget(self, slot: Slot) -> None:
        process = slot.process
        for fd in (process.result_fd, process.noise_fd, process.job_fd):
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
