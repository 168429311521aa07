"""The cases of a leg that are with workers, their results, and the order in which failures are settled.

A failure waits until all cases before it are settled, since what is found first explains what comes later: what is found must not
depend on which of several workers is quicker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Optional

from fiafuzz.model.case import Case

from .failures import Failure
from .proposals import Proposal
from .reruns import Reruns, lost_with
from .schedulers.protocol import Completed, Scheduler
from .stopping import StopFlag
from .verdict import SKIPPED, Foreseen, Verdict, decide, foresee
from .wire import Job

POLL_SECONDS = 0.05
DRAIN_SECONDS = 30.0
"""How long the cases still in work are waited for when the time of a phase is over."""


@dataclass(frozen=True)
class Running:
    """A case that is with a worker, or about to be. ``foreseen`` is None until the worker has told it."""

    proposal: Proposal
    phase: str
    foreseen: Optional[Foreseen] = None
    number: int = 0
    """That of the finding that this case is in the log already (0: none): the run was resumed before it came to its end."""


@dataclass(frozen=True)
class Settled:
    """A case that has come back, and the verdict on it. ``gone``: why its device was given up afterwards. ``before``: the cases
    that stood before it in its job."""

    running: Running
    completed: Completed
    verdict: Verdict
    gone: str = ""
    before: tuple[Case, ...] = ()

    @property
    def failure(self) -> Failure:
        """As a failure (it must be one)."""
        running, done = self.running, self.completed
        runs = done.result.about.runs if done.result.about is not None else 1
        assert running.foreseen is not None
        return Failure(running.proposal.case, running.foreseen, self.verdict, done.result, runs, self.gone, self.before, done.recent)


class InWork:
    """What is handed out and what has come back. Once ``stop`` is set, nothing more is settled: it will be found again."""

    def __init__(self, scheduler: Scheduler, profile: str, reruns: Reruns, stop: StopFlag) -> None:
        self.scheduler = scheduler
        self.profile = profile
        self.reruns = reruns
        self.stop = stop
        self.running: dict[int, Running] = {}
        """Job id -> the case, in the order in which they were handed out."""
        self.waiting: list[tuple[int, Settled]] = []
        """A heap of failures by job id that wait for the cases before them."""
        self.job_number = 0
        self.skips = 0
        """Cases that came back as not to be run."""

    def hand_out(self, proposal: Proposal, phase: str) -> None:
        """Give a case to the workers, which predict it and run it as it deserves."""
        self.job_number += 1
        job = Job(self.job_number, proposal.case, foresee=True)
        self.running[job.id] = Running(proposal, phase)
        self.scheduler.submit(job)

    def verdict_on(self, done: Completed) -> Optional[Settled]:
        """The verdict on a result; None for a job that nobody waits for."""
        running = self.running.pop(done.job.id, None)
        if running is None:
            return None
        if done.result.deadly:
            self.reruns.effort.count_death(done.seconds)
        else:
            self.reruns.slowest = max(self.reruns.slowest, done.result.seconds.total)
        about = done.result.about
        expected = about.foreseen if about is not None else running.foreseen or foresee(running.proposal.case, self.profile)
        verdict = decide(expected, done.result)
        self.skips += verdict.status == SKIPPED
        gone = self.scheduler.given_up(done.worker) if done.result.deadly or done.result.fatal else ""
        if gone:
            lost = lost_with(running.proposal.case, expected, done.result, 1, gone)
            verdict, done = lost.verdict, replace(done, result=lost.result)
        return Settled(replace(running, foreseen=expected), done, verdict, gone, done.job.before)

    def after(self, done: Completed) -> Iterator[Settled]:
        """What can be settled now that a result has come in."""
        found = self.verdict_on(done)
        if found is None:
            return
        if found.verdict.failed:
            heappush(self.waiting, (done.job.id, found))
        else:
            yield found
        yield from self.free()

    def free(self) -> Iterator[Settled]:
        """The failures that nothing before them holds up any more. When the run is being stopped, they will be found again: what
        they are taken for depends on those before them, which are no longer looked into to the end."""
        while self.waiting and not self.stop and (not self.running or self.waiting[0][0] < next(iter(self.running))):
            yield heappop(self.waiting)[1]

    def wait_for(self, number: int) -> Optional[Settled]:
        """Wait for the result of one job; the only one in work. None when the run is being stopped."""
        while not self.stop:
            for done in self.scheduler.poll(POLL_SECONDS):
                found = self.verdict_on(done)
                if done.job.id == number:
                    return found
        return None
