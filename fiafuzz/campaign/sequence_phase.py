"""The sequences phase: groups of calls, each made by one process one after the other; every call is judged like any other.

A group is one job with its last call as the case and the others before it. When a call ends its process, the rest of its group
goes on as a job of its own. Groups are settled in their order, so that what is found does not depend on which worker is quicker.

What a process has run before a group is part of what may harm it, and depends on how many workers there are: a fault that reaches
over from one group to the next may be seen with one number of workers and not with another.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Optional

import msgspec

from fiafuzz.model.case import Case

from .events import Event
from .failures import Known
from .in_work import DRAIN_SECONDS, POLL_SECONDS, Running, Settled
from .proposals import Proposal
from .resume import PhaseState, ResumeError
from .schedulers.protocol import Completed, DevicesLost
from .sequence import Group, sequences
from .wire import Job

if TYPE_CHECKING:
    from .leg import Leg

MAX_GROUPS = 200
"""Groups that may be under way, or wait for an earlier one, before no more are handed out."""


@dataclass
class _UnderWay:
    """A group that is with a worker. ``members``: those to run, ``results`` what came of them so far, each with the cases that stood
    before it in its job; ``known``: those that are not run, since each is likely to repeat a known crash."""

    members: Group = ()
    results: list[tuple[Completed, tuple[Case, ...]]] = field(default_factory=list)
    known: list[tuple[Proposal, Known]] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether every member has its result."""
        return len(self.results) == len(self.members)


def run_sequences(leg: Leg, end: Optional[float], cases: Optional[int], state: PhaseState) -> Generator[Event, None, str]:
    """Run the sequences phase of a leg, on from what ``state`` has of it; returns why it ended. ResumeError when the groups are
    not those of the log."""
    return (yield from _Sequences(leg, state).run(end, cases))


class _Sequences:
    """The phase at work."""

    def __init__(self, leg: Leg, state: PhaseState) -> None:
        self.leg = leg
        self.state = state
        self.base = leg.work.job_number
        self.groups: dict[int, _UnderWay] = {}
        """Groups under way by number, in order."""
        self.jobs: dict[int, int] = {}
        """Job id -> number of its group."""
        self.next = state.until // leg.plan.sequences
        self.source = sequences(leg.plan, leg.profile, self.next, leg.accepted)
        self.taken = state.taken
        self.exhausted = False

    def run(self, end: Optional[float], cases: Optional[int]) -> Generator[Event, None, str]:
        """Hand out groups and settle them until the phase is over."""
        leg, skips, reason = self.leg, self.leg.work.skips, ""

        def over() -> str:
            return leg.over(end, cases, self.taken - (leg.work.skips - skips))

        def top_up() -> None:
            while not self.exhausted and len(self.groups) < MAX_GROUPS and leg.scheduler.room() > 0 and not over():
                self._hand_out()

        leg.scheduler.on_room = top_up
        try:
            while not reason:
                top_up()
                yield from self._settle_ready()
                why = over()
                if why in ("stopped", "time") or not self.groups:
                    reason = why or ("done" if self.exhausted else "")
        except DevicesLost:
            yield from self._count_whole()
            raise
        finally:
            leg.scheduler.on_room = None
        yield from self._drain()
        leg.work.job_number = self.base + self.next * leg.plan.sequences
        return reason

    # ---- out and in ------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        from strategies.plan import Infeasible

        try:
            group = next(self.source, None)
        except Infeasible:
            group = None
        if group is None:
            self.exhausted = True
            return
        self._check(group)
        number, self.next = self.next, self.next + 1
        under_way = self.groups[number] = _UnderWay()
        for member in group:
            killer = self.leg.would_repeat(member.case)
            if killer is None:
                under_way.members += (member,)
                self.taken += not self._is_told(member)
            elif not self._is_told(member):
                under_way.known.append((member, killer))
        self._submit(number, under_way.members)

    def _is_told(self, member: Proposal) -> bool:
        """Whether the log of the run that is resumed has this member."""
        return member.place <= self.state.until or member.place in self.state.ahead

    def _check(self, group: Group) -> None:
        place, digest = self.state.last
        for member in group:
            if member.place == place and member.case.digest != digest:
                raise ResumeError("the same seed gives other cases now than in the log (fiafuzz has changed); start a new run")

    def _submit(self, number: int, members: tuple[Proposal, ...]) -> None:
        if not members:
            return
        job = Job(
            self.base + members[0].place,
            members[-1].case,
            foresee=True,
            before=tuple(member.case for member in members[:-1]),
            turns=False,
        )
        self.jobs[job.id] = number
        self.leg.scheduler.submit(job)

    def _take(self, done: Completed) -> None:
        """Keep what came of the members of a job; what it left is handed out again."""
        number = self.jobs.pop(done.job.id, None)
        if number is None:
            return
        group = self.groups[number]
        at = len(group.results)
        in_job = group.members[at : at + len(done.job.before) + 1]
        last = msgspec.structs.replace(done.result, before=())
        for place, (member, result) in enumerate(zip(in_job, (*done.result.before, last))):
            job = Job(self.base + member.place, member.case, foresee=True)
            group.results.append((replace(done, job=job, result=result), done.job.before[:place]))
        self._submit(number, group.members[len(group.results) :])

    # ---- settling --------------------------------------------------------------------------------------

    def _settle_ready(self) -> Iterator[Event]:
        for done in self.leg.scheduler.poll(POLL_SECONDS):
            if not self.leg.campaign.stop:  # what comes in after that will be found again
                self._take(done)
        yield from self._release()
        yield from self.leg.restarts()

    def _release(self) -> Iterator[Event]:
        """Settle the groups that nothing before them holds up any more."""
        while self.groups and not self.leg.campaign.stop:
            number = next(iter(self.groups))
            if not self.groups[number].whole:
                return
            yield from self._settle(self.groups.pop(number))

    def _settle(self, group: _UnderWay) -> Iterator[Event]:
        leg = self.leg
        for member, killer in group.known:
            yield leg.spared(member, "sequences", killer)
        for settled in self._settled(group):
            if leg.campaign.stop:
                return
            yield from leg.settled(settled)

    def _settled(self, group: _UnderWay) -> Iterator[Settled]:
        """The members that are not told yet, with the verdicts on them."""
        leg = self.leg
        for member, (done, before) in zip(group.members, group.results):
            if self._is_told(member):
                continue
            leg.work.running[done.job.id] = Running(member, "sequences")
            found = leg.work.verdict_on(done)
            if found is not None:
                yield replace(found, before=before)

    def _count_whole(self) -> Iterator[Event]:
        """No worker is left: tell what has come in, without running anything again."""
        for number in list(self.groups):
            for settled in self._settled(self.groups.pop(number)):
                yield self.leg.counted(settled)

    def _drain(self) -> Iterator[Event]:
        """Settle the groups that are still under way, as ``Leg.drain`` does with single cases: when the run is being stopped, or its
        time has been over for long, what is left of them is let go."""
        leg = self.leg
        until = monotonic() + DRAIN_SECONDS + leg.plan.time_limit
        while self.groups and not leg.campaign.stop and (leg.plan.max_time is None or monotonic() < until):
            yield from self._settle_ready()
        for number in list(self.groups):
            if leg.campaign.stop:
                return
            yield from self._settle(self.groups.pop(number))  # as far as it has come
