"""The scheduler for Ray: one actor a device (or a core) of a cluster, each with a worker process of its own (ray_host.py).

Ray brings jobs to actors and says when an actor or its node is dead; everything else is as it is locally. The job that an
actor was in when it died is run once more, alone. If its actor dies again, the case is blamed (F301). Only the driver
writes: corpus, log and reports are where they always are.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any, Optional

from fiafuzz.campaign.process import PATIENCE
from fiafuzz.campaign.results import Result, clean
from fiafuzz.campaign.wire import Hello, Job, Refused, Setup

from .copies import Copies
from .devices import difference
from .local import START_LIMIT, STEAL_SECONDS, WATCH_SECONDS
from .places import MAX_FAILED_STARTS
from .protocol import BackendRefused, Completed, DevicesLost, Restart, SchedulerError, WorkersDiffer
from .ray_cluster import INSTALL, Cluster, is_there, module
from .ray_host import Here, Host, Ran, decoded, encoded
from .slot import MAX_QUEUE, MIN_QUEUE, QUEUE_SECONDS

__all__ = ["INSTALL", "RayScheduler", "is_there"]

DEVICE, RESOURCE = "npu", "NPU"
ANSWER_GRACE = 2 * START_LIMIT
"""Seconds beyond the time limit of a case after which an actor, or the way to it, is taken to hang: its worker process may
have to be started anew for the case, and the device to answer a known-good call."""
MAX_DEATHS = 2


@dataclass
class _Call:
    """A call that an actor has not answered. ``job`` is None for the one that starts it; ``recalled``: given to another."""

    ref: Any
    job: Optional[Job]
    recalled: bool = False
    cancelled: bool = False
    time_limit: float = 0.0


@dataclass
class _Place:
    """A place for an actor: a device or a core of the cluster."""

    number: int
    actor: Any = None
    hello: Optional[Hello] = None
    node: str = ""
    calls: deque[_Call] = field(default_factory=deque)
    since: float = 0.0
    reserved: bool = False
    ran: int = 0
    pace: float = QUEUE_SECONDS / 4
    failed_starts: int = 0
    given_up: str = ""

    @property
    def ready(self) -> bool:
        """Whether it takes work."""
        return not self.given_up and self.hello is not None

    @property
    def depth(self) -> int:
        """Calls that it should hold."""
        return max(MIN_QUEUE, min(MAX_QUEUE, int(QUEUE_SECONDS / max(self.pace, 1e-4))))


class RayScheduler:
    """Workers on a Ray cluster (schedulers.protocol.Scheduler).

    ``workers``: how many actors at most; 0: as many as the cluster has devices, or cores for a backend that needs none.
    ``address``: of the cluster, or "auto". ``time_limit``: seconds for one case.
    """

    def __init__(self, setup: Setup, workers: int = 0, *, address: str = "auto", time_limit: float = 10.0) -> None:
        self.setup = setup
        self.time_limit = time_limit
        self.on_room: Optional[Callable[[], None]] = None
        self._cluster = Cluster(address)
        self._wanted = workers
        self._places: list[_Place] = []
        self._queue: deque[Job] = deque()
        self._suspects: deque[Job] = deque()
        """Jobs whose actor has died; each is run once more, with nothing behind it."""
        self._deaths: dict[int, int] = {}
        self._fresh: dict[int, tuple[bool, float]] = {}
        """How a job that is run alone is to be run: in a fresh worker or not, and its time limit (0: the usual one)."""
        self._ready: deque[Completed] = deque()
        self._restarts: list[Restart] = []
        self._copies = Copies()
        self._hello: Optional[Hello] = None
        self._resource = ""
        self._end: Optional[SchedulerError] = None
        self._up_at = 0.0

    # ---- the protocol -----------------------------------------------------------------------------

    def start(self) -> Hello:
        """Connect, and start the actors; returns what the first one says of its backend."""
        self._cluster.connect()
        self._up_at = monotonic()
        devices = self._cluster.amount(RESOURCE)
        self._resource = RESOURCE if devices else ""
        self._place()
        hello = self._first_hello()
        count = devices
        if hello.device != DEVICE:
            if self._resource:  # it needs no device, so it must not hold one
                self._kill(self._places.pop())
                self._resource, self._hello = "", None
                self._place()
                hello = self._first_hello()
            count = self._cluster.amount("CPU")
        for _ in range(1, max(1, min(count, self._wanted or count))):
            self._place()
        return hello

    def _first_hello(self) -> Hello:
        while self._hello is None:
            self._turn(WATCH_SECONDS)
        return self._hello

    def room(self) -> int:
        """Jobs that actors have room for."""
        room = sum(max(0, p.depth - len(p.calls)) for p in self._places if p.ready and not p.reserved)
        return max(0, room - len(self._queue) - len(self._suspects))

    @property
    def outstanding(self) -> int:
        """Jobs that have not been given back yet."""
        held = {id(call.job) for p in self._places for call in p.calls if call.job is not None}
        return len(self._ready) + len(held | {id(job) for job in (*self._queue, *self._suspects)})

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._queue.append(job)
        self._fill()

    def poll(self, timeout: float) -> list[Completed]:
        """Results that are in."""
        end = monotonic() + timeout
        while not self._ready:
            left = end - monotonic()
            self._turn(max(0.0, min(left, WATCH_SECONDS)))
            if left <= 0:
                break
        found = list(self._ready)
        self._ready.clear()
        return found

    def run(self, job: Job, *, fresh: bool = False, time_limit: Optional[float] = None) -> Completed:
        """Run one job alone, on the first actor that is free."""
        self._fresh[id(job)] = (fresh, time_limit or 0.0)
        self._suspects.append(job)
        kept: list[Completed] = []
        try:
            while True:
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
            self._fresh.pop(id(job), None)

    def given_up(self, worker: int) -> str:
        """Why the device of a worker was given up; its actor has said so with the result."""
        return next((p.given_up for p in self._places if p.number == worker), "")

    def restarts(self) -> list[Restart]:
        """Workers replaced since the last call."""
        found, self._restarts = self._restarts, []
        return found

    def close(self) -> None:
        """End all actors, and leave the cluster."""
        for place in self._places:
            self._kill(place)
        self._places = []
        self._cluster.close()

    # ---- actors -------------------------------------------------------------------------------------

    def _place(self) -> None:
        place = _Place(len(self._places))
        self._places.append(place)
        self._spawn(place)

    def _spawn(self, place: _Place) -> None:
        """Put a new actor into a place. It waits for a node with room."""
        ray = module()
        options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
        if self._resource:
            options.update(num_cpus=0, resources={self._resource: 1})
        if self._cluster.on_this_machine():
            path = os.pathsep.join(p or os.getcwd() for p in sys.path)
            options["runtime_env"] = {"env_vars": {"PYTHONPATH": path}}
        place.hello, place.ran, place.since = None, 0, monotonic()
        place.actor = ray.remote(Host).options(**options).remote(encoded(self.setup), self.time_limit)
        place.calls.append(_Call(place.actor.start.remote(), None))

    def _kill(self, place: _Place) -> None:
        ray = module()
        if place.actor is not None:
            with contextlib.suppress(Exception):
                ray.kill(place.actor, no_restart=True)
            place.actor = None

    # ---- one turn of the loop -----------------------------------------------------------------------

    def _turn(self, timeout: float) -> None:
        ray = module()
        if self._end is not None and not self._ready:
            raise self._end
        self._fill()
        heads = {place.calls[0].ref: place for place in self._places if place.calls}
        if not heads:
            sleep(timeout)
            return
        found, _ = ray.wait(list(heads), num_returns=1, timeout=timeout)
        if found and len(heads) > 1:
            found, _ = ray.wait(list(heads), num_returns=len(heads), timeout=0)
        for ref in found:
            self._take(heads[ref], ref)
        for place in self._places:
            self._check_answer(place)
        if not any(p.ready for p in self._places) and monotonic() - self._up_at > START_LIMIT * MAX_FAILED_STARTS:
            wanted = f"{self._resource} 1" if self._resource else "CPU 1"
            self._end = self._end or DevicesLost(f"no node of the Ray cluster has room for a worker ({wanted})")
        elif any(p.ready for p in self._places):
            self._up_at = monotonic()
        self._fill()
        self._steal()

    def _take(self, place: _Place, ref: Any) -> None:
        """Read the answer to the first call of a place."""
        ray = module()
        try:
            reply = decoded(ray.get(ref))
        except ray.exceptions.TaskCancelledError:
            call = place.calls.popleft()
            if call.job is not None:
                self._copies.gone((call.job,))
            place.since = monotonic()
            return
        except (ray.exceptions.RayError, ValueError) as error:
            self._died(place, clean(" ".join(str(error).split()), 300))
            return
        call = place.calls.popleft()
        place.since = monotonic()
        if isinstance(reply, Here):
            self._greet(place, reply)
        elif isinstance(reply, Refused):
            self._give_up(place, reply.text, refused=reply.kind == "unavailable")
        elif call.job is not None:
            self._complete(place, call.job, reply)

    def _greet(self, place: _Place, here: Here) -> None:
        place.hello, place.node, place.failed_starts = here.hello, here.node, 0
        if self._hello is None:
            self._hello = here.hello
        different = difference(self._hello, here.hello)
        if different:
            self._end = WorkersDiffer(f"nodes are not alike, and a run does not mix builds: {different} (node {here.node})")

    def _complete(self, place: _Place, job: Job, ran: Ran) -> None:
        self._restarts.extend(Restart(place.number, reason) for reason in ran.restarts)
        place.reserved = False
        place.ran += 1
        if ran.end:
            self._give_up(place, ran.end)
        if ran.result is None:
            self._queue_again(job)
        elif self._copies.answered(job):
            self._deaths.pop(id(job), None)
            place.pace += 0.2 * ((ran.result.took or ran.seconds) - place.pace)
            self._ready.append(Completed(job, ran.result, place.number, ran.seconds))

    def _queue_again(self, job: Job) -> None:
        (self._suspects if id(job) in self._fresh else self._queue).appendleft(job)

    def _check_answer(self, place: _Place) -> None:
        """Kill an actor that should have answered long ago."""
        if not place.ready or not place.calls:
            return
        limit = (1 + PATIENCE) * (place.calls[0].time_limit or self.time_limit) + ANSWER_GRACE
        if monotonic() - place.since > limit:
            self._died(place, f"no answer for {monotonic() - place.since:.0f} s")

    # ---- deaths -------------------------------------------------------------------------------------

    def _died(self, place: _Place, why: str) -> None:
        """An actor, or its node, is gone. What it was in is run again alone, the rest by others."""
        self._kill(place)
        calls, place.calls = list(place.calls), deque()
        place.reserved = False
        if calls and calls[0].job is None:
            place.failed_starts += 1
        for call in reversed(calls[1:]):
            if call.recalled:
                self._copies.gone((call.job,) if call.job else ())
            elif call.job is not None:
                self._queue.appendleft(call.job)
        if calls and calls[0].job is not None:
            self._suspect(place, calls[0], why)
        if place.failed_starts >= MAX_FAILED_STARTS:
            self._give_up(place, f"its actor does not come up: {why}")
            return
        self._restarts.append(Restart(place.number, f"its actor died{' on ' + place.node if place.node else ''}: {why}"))
        self._spawn(place)

    def _suspect(self, place: _Place, call: _Call, why: str) -> None:
        job = call.job
        assert job is not None
        if call.recalled:
            self._copies.gone((job,))
            return
        self._deaths[id(job)] = self._deaths.get(id(job), 0) + 1
        if self._deaths[id(job)] < MAX_DEATHS:
            self._suspects.append(job)
        elif self._copies.answered(job):
            del self._deaths[id(job)]
            text = f"the actor that ran it died twice, the second time with nothing else to do\n{why}"
            self._ready.append(Completed(job, Result("crash", message=text), place.number))

    def _give_up(self, place: _Place, why: str, refused: bool = False) -> None:
        """Leave a place without work. Its actor stays, so that Ray hands its device to nobody else."""
        place.given_up = clean(why, 500).replace("\n", " ")
        for call in reversed(place.calls):
            if call.job is not None and not call.recalled:
                self._queue_again(call.job)
        place.calls.clear()
        name = f"worker {place.number}" + (f" on {place.node}" if place.node else "")
        self._restarts.append(Restart(place.number, f"{name} is given up: {place.given_up}", given_up=True))
        if any(not p.given_up for p in self._places):
            return
        if self._hello is None:
            self._end = BackendRefused(place.given_up) if refused else SchedulerError(place.given_up)
        else:
            self._end = DevicesLost(f"no worker is left; {name}: {place.given_up}")

    # ---- queues ---------------------------------------------------------------------------------------

    def _fill(self) -> None:
        while self._suspects:
            free = [p for p in self._places if p.ready and not p.calls]
            if not free:
                break
            place = min(free, key=lambda p: p.ran)
            job = self._suspects.popleft()
            place.reserved = True
            fresh, limit = self._fresh.get(id(job), (id(job) in self._deaths, 0.0))
            self._call(place, job, fresh, limit)
        while self._queue:
            if self._copies.is_answered(self._queue[0]):
                self._copies.gone((self._queue.popleft(),))
                continue
            places = [p for p in self._places if p.ready and not p.reserved and len(p.calls) < p.depth]
            places.sort(key=lambda p: len(p.calls))
            if self._suspects:  # the place that will be free first is kept from getting more
                places = places[1:]
            if not places:
                return
            self._call(places[0], self._queue.popleft())

    def _call(self, place: _Place, job: Job, fresh: bool = False, limit: float = 0.0) -> None:
        if not place.calls:
            place.since = monotonic()
        place.calls.append(_Call(place.actor.run.remote(encoded(job), fresh, limit), job, time_limit=limit))

    def _steal(self) -> None:
        """Give what waits behind a long job to actors with nothing to do."""
        ray = module()
        if self._queue or not any(p.ready and not p.calls and not p.reserved for p in self._places):
            return
        for place in self._places:
            waiting = [call for call in list(place.calls)[1:] if not call.recalled and call.job is not None]
            if not waiting or monotonic() - place.since < STEAL_SECONDS:
                continue
            jobs = []
            for call in waiting:
                call.recalled = True
                with contextlib.suppress(Exception):
                    ray.cancel(call.ref)
                if call.job is not None:
                    jobs.append(call.job)
            self._copies.stolen(jobs)
            self._queue.extend(jobs)
        self._fill()
