"""One leg of a campaign: one backend under one profile, through all phases, and what becomes of each result."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Optional

from fiafuzz.model.case import Case

from .budget import Budget
from .canary import sing
from .corpus_phase import replay_corpus
from .events import CanaryDone, Event
from .failures import Confirmed, Failure, Kept, Known, Repeat
from .in_work import DRAIN_SECONDS, POLL_SECONDS, InWork, Running, Settled
from .investigate import Investigator
from .leg_events import LegEvents
from .leg_past import LegPast
from .plan import phases_of
from .proposals import Proposal, proposals, skippable
from .resume import LegState, PhaseState
from .schedulers.protocol import Completed, DevicesLost, Scheduler
from .stream import stream
from .verdict import FLAKY, INFO, PASS, SKIPPED, Verdict
from .wire import Hello

if TYPE_CHECKING:
    from .engine import Campaign


class Leg:
    """Runs the phases. One scheduler, one investigator, one stream of events. ``state``: what the log of a resumed run has
    of it (ResumeError when it was another build of the backend)."""

    def __init__(
        self,
        campaign: Campaign,
        scheduler: Scheduler,
        hello: Hello,
        backend: str,
        profile: str,
        state: Optional[LegState] = None,
    ) -> None:
        from fiafuzz import __version__

        self.campaign = campaign
        self.plan = campaign.plan
        self.scheduler = scheduler
        self.hello = hello
        self.backend = backend
        self.profile = profile
        self.accepted = hello.checks == "none"
        """Whether calls that must be accepted are all that is worth making."""
        self.investigator = Investigator(
            scheduler,
            backend,
            profile,
            campaign.plan,
            campaign.corpus,
            {"fiafuzz": __version__, **hello.versions},
            lambda: bool(campaign.stop),
            lambda: campaign.began.isoformat(timespec="seconds"),
            campaign.unfinished.keep,
        )
        self.work = InWork(scheduler, profile, self.investigator.reruns, campaign.stop)
        self.told = LegEvents(campaign, backend, profile, self.investigator.effort)
        self.past = LegPast(self, state)

    def canary(self) -> Iterator[Event]:
        """The self-test."""
        began = monotonic()
        passed, text = sing(self.scheduler, self.plan.seed)
        yield self.campaign.tell(CanaryDone, passed=passed, text=text, seconds=round(monotonic() - began, 3))

    # ---- a phase ------------------------------------------------------------------------------------------

    def run_phase(self, phase: str, budget: Budget) -> Iterator[Event]:
        """One phase from its first event to its last."""
        last = phase == phases_of(self.plan, self.hello.checks)[-1]
        seconds, cases = budget.share_of(phase, last)
        state = self.past.phase(phase)
        if state.started is not None:
            seconds, cases = state.started.seconds, state.started.cases
        end, start = self.past.end_of(state, seconds), self.past.start_of(state)
        before = self.campaign.tally.cases - state.cases
        yield self.told.phase_started(phase, seconds, cases)
        try:
            reason = yield from self._phase(phase, end, cases, state)
        except DevicesLost:
            yield from self._abandon()
            raise
        yield self.told.phase_finished(phase, self.campaign.tally.cases - before, monotonic() - start, reason)

    def _phase(self, phase: str, end: Optional[float], cases: Optional[int], state: PhaseState) -> Generator[Event, None, str]:
        """What a phase does; returns why it ended."""
        if phase == "replay":
            return (yield from replay_corpus(self, end))
        if phase == "explore":
            from .explore import explore

            reason = yield from explore(self, end, cases, state)
            if reason != "stopped":
                yield from self.past.reopen(explored=True)
            return reason
        if phase == "sequences":
            from .sequence_phase import run_sequences

            return (yield from run_sequences(self, end, cases, state))
        skip = skippable(phase, state.until)
        found = proposals(phase, self.plan, self.profile, skip=skip, accepted=self.accepted)
        return (yield from stream(self, phase, self.past.placed(found, state, skip), end, cases, state.taken))

    def over(self, end: Optional[float], cases: Optional[int], taken: int) -> str:
        """Why a phase is over; "" while it is not."""
        if self.campaign.stop:
            return "stopped"
        if end is not None and monotonic() >= end:
            return "time"
        return "cases" if cases is not None and taken >= cases else ""

    def settle_ready(self) -> Iterator[Event]:
        """Settle what has come in, and tell of workers that were replaced."""
        for done in self.scheduler.poll(POLL_SECONDS):
            if not self.campaign.stop:  # what comes in after that will be found again
                yield from self.settle(done)
        yield from self.restarts()

    def drain(self) -> Iterator[Event]:
        """Settle the cases that are still in work; when the run is being stopped, or its time has been over for long, they
        are let go."""
        end = monotonic() + DRAIN_SECONDS + self.plan.time_limit
        while self.work.running and not self.campaign.stop and (self.plan.max_time is None or monotonic() < end):
            yield from self.settle_ready()
        if not self.campaign.stop:
            self.work.running.clear()
            yield from self._settle_all(self.work.free())

    def restarts(self) -> Iterator[Event]:
        """Events for workers that were replaced."""
        for restart in self.scheduler.restarts():
            yield self.told.restarted(restart)

    def _abandon(self) -> Iterator[Event]:
        """No worker is left: tell what has come in, without running anything again."""
        yield from self.restarts()
        self.work.running.clear()
        while self.work.waiting and not self.campaign.stop:
            try:
                yield from self._settle_all(self.work.free())
            except DevicesLost:
                continue

    # ---- a case goes out ------------------------------------------------------------------------------------

    def offer(self, proposal: Proposal, phase: str) -> Optional[Event]:
        """Hand a case to the workers; an event when it is not run."""
        killer = self.would_repeat(proposal.case)
        if killer is not None:
            return self.spared(proposal, phase, killer)
        self.work.hand_out(proposal, phase)
        return None

    def would_repeat(self, case: Case) -> Optional[Known]:
        """The known crash or hang that a case is likely to cause again, where that has cost too much time already. Only a
        run that is bound by time saves it: which cases another one runs is decided by its seed alone."""
        if self.plan.max_time is None or not self.investigator.repeats.known:
            return None
        return self.investigator.repeats.deadly(case)

    def spared(self, proposal: Proposal, phase: str, killer: Known) -> Event:
        """The event of a case that is not run, since it would repeat a known crash or hang."""
        reason = f"would repeat a known crash or hang ({killer.entry})"
        return self.told.case(Running(proposal, phase), Verdict(SKIPPED, text=reason), None)

    # ---- a result comes in ----------------------------------------------------------------------------------

    def settle(self, done: Completed) -> Iterator[Event]:
        """Events for one result, and for the failures that have waited for it."""
        yield from self._settle_all(self.work.after(done))

    def _settle_all(self, ready: Iterator[Settled]) -> Iterator[Event]:
        for found in ready:
            yield from self.settled(found)

    def settled(self, found: Settled) -> Iterator[Event]:
        """Events for one result: counted, explained by a known finding, or looked into."""
        running, done, verdict = found.running, found.completed, found.verdict
        if verdict.status == INFO:
            verdict = yield from self._disagreement(verdict)
        if not verdict.failed:
            if running.number:
                yield from self.past.settled_again(running.number, None)
            else:
                yield self.told.case(running, verdict, done)
            return
        self.investigator.effort.position = max(0, done.job.id)
        self.told.effort_before = self.investigator.effort.recorded
        if running.number:
            yield from self.past.settled_again(running.number, found.failure)
            return
        try:
            known = self.investigator.repeats.explained(found.failure)
        except DevicesLost:
            yield self.counted(found)
            raise
        if known is None and self.told.kept >= self.plan.max_findings:
            yield from self.told.enough()
            yield self.counted(found)
        elif known is not None:
            known.count += 1
            yield self.told.case(running, verdict, done, known)
        else:
            yield from self._look_into(running, found.failure, done)

    def counted(self, found: Settled) -> Event:
        """The event of a case that is only counted."""
        return self.told.case(found.running, found.verdict, found.completed)

    def _look_into(self, running: Running, failure: Failure, done: Completed) -> Iterator[Event]:
        """Events of a failure that nothing explains at first sight. Its case is told with the first step, which knows the verdict
        that stays; ``number`` is 0 until then, and for one that is no finding of its own."""
        number = 0
        steps = self.investigator.look_into(failure)
        while True:
            try:
                step = next(steps, None)
            except DevicesLost:
                if not number:
                    yield self.told.case(running, failure.verdict, done)
                raise
            if step is None:
                return
            if isinstance(step, Confirmed):
                self.campaign.finding_number += 1
                number, confirmed = self.campaign.finding_number, step.failure
                yield self.told.case(running, confirmed.verdict, done)
                yield self.told.found(number, running.phase, confirmed)
            elif isinstance(step, Kept):
                yield self.tell_kept(number, step)
            elif isinstance(step, Repeat):
                if number:
                    yield self.told.repeated(number, step.known, step.failure.case)
                else:
                    yield self.told.case(running, step.failure.verdict, done, step.known)
            else:
                if not number:
                    verdict = failure.verdict
                    yield self.told.case(running, Verdict(FLAKY, verdict.code, verdict.rule, verdict.text), done)
                yield self.told.flaky(number, failure.case, failure.verdict, step.failed, step.tries)

    def tell_kept(self, number: int, step: Kept) -> Event:
        """The event of a finding that has its entry."""
        return self.told.finding_kept(number, step, new=step.new or self.past.is_ours(step))

    def _disagreement(self, verdict: Verdict) -> Generator[Event, None, Verdict]:
        """The verdict to count where documents and source disagree; a backend that answers from the prediction, or that checks
        next to nothing, takes no side."""
        if self.hello.checks in ("emulated", "partial"):
            return Verdict(PASS, rule=verdict.rule)
        yield from self.told.disagreement(verdict)
        return verdict
