"""One leg of a campaign: one backend under one profile, through all phases."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from time import monotonic
from typing import TYPE_CHECKING, Optional

from fiafuzz.model.case import Case
from fiafuzz.model.factors import factor_words
from fiafuzz.model.scene import Scene

from .budget import Budget
from .canary import sing
from .corpus_phase import replay_corpus
from .events import (
    CanaryDone,
    CaseDone,
    Disagreement,
    Event,
    FindingFound,
    FindingKept,
    FindingRepeated,
    FlakyFound,
    LegStarted,
    Note,
    PhaseFinished,
    PhaseStarted,
    WorkerRestarted,
)
from .failures import Confirmed, Failure, Kept, Known, Repeat
from .held import Held
from .investigate import Investigator, lost_with
from .leg_past import LegPast
from .plan import phases_of
from .proposals import Proposal, proposals, skippable
from .results import About
from .resume import LegState
from .schedulers.protocol import Completed, DevicesLost, Scheduler
from .stream import stream
from .verdict import FINDING, FLAKY, INFO, PASS, SKIPPED, Foreseen, Verdict, decide, foreseen
from .wire import Hello, Job

if TYPE_CHECKING:
    from .engine import Campaign

POLL_SECONDS = 0.05
DRAIN_SECONDS = 30.0
"""How long the cases still in work are waited for when the time of a phase is over."""


@dataclass(frozen=True)
class _Running:
    """A case that is with a worker. ``foreseen`` is None until the worker has told it."""

    proposal: Proposal
    foreseen: Optional[Foreseen]
    runs: int
    phase: str
    number: int = 0
    """That of the finding that this case is in the log already (0: none): the run was resumed before it came to its end."""


@dataclass(frozen=True)
class Settled:
    """A case that has come back, and the verdict on it. ``gone``: why its device was given up afterwards. ``before``: the cases
    that stood before it in its job."""

    running: _Running
    completed: Completed
    verdict: Verdict
    gone: str = ""
    before: tuple[Case, ...] = ()

    @property
    def failure(self) -> Failure:
        """As a failure (it must be one)."""
        running, done = self.running, self.completed
        runs = done.result.about.runs if done.result.about is not None else running.runs
        assert running.foreseen is not None
        return Failure(running.proposal.case, running.foreseen, self.verdict, done.result, runs, self.gone, self.before, done.recent)


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
        self.campaign = campaign
        self.plan = campaign.plan
        self.scheduler = scheduler
        self.hello = hello
        self.backend = backend
        self.profile = profile
        self.running: dict[int, _Running] = {}
        self.effort: tuple[int, ...] = ()
        """What had gone into looking at failures before the present one."""
        self.job_number = 0
        self.kept = 0
        self.said_enough = False
        self.held = Held(profile)
        self.named: set[str] = set()
        """Rules that some accepted call has held to."""
        self.skips = 0
        self.waiting: list[tuple[int, Settled]] = []
        """Failures that wait until all cases before them are settled: what is found must not depend on which of several workers
        is quicker."""
        from fiafuzz import __version__

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
        self.past = LegPast(self, state)

    def started_event(self) -> Event:
        """The event that opens the leg."""
        h = self.hello
        return self.campaign.tell(
            LegStarted,
            backend=self.backend,
            title=h.title,
            profile=self.profile,
            checks=h.checks,
            versions=dict(h.versions),
            policies=dict(h.policies),
        )

    def canary(self) -> Iterator[Event]:
        """The self-test."""
        began = monotonic()
        passed, text = sing(self.scheduler, self.plan.seed)
        yield self.campaign.tell(CanaryDone, passed=passed, text=text, seconds=round(monotonic() - began, 3))

    # ---- a phase ------------------------------------------------------------------------------------------

    def run_phase(self, phase: str, budget: Budget) -> Iterator[Event]:
        """One phase from its first event to its last."""
        last = phase == phases_of(self.plan)[-1]
        seconds, cases = budget.share_of(phase, last)
        state = self.past.phase(phase)
        if state.started is not None:
            seconds, cases = state.started.seconds, state.started.cases
        end, start = self.past.end_of(state, seconds), self.past.start_of(state)
        before = self.campaign.tally.cases - state.cases
        yield self.campaign.tell(
            PhaseStarted,
            phase=phase,
            backend=self.backend,
            profile=self.profile,
            seconds=None if seconds is None else round(seconds, 3),
            cases=cases,
        )
        try:
            if phase == "replay":
                reason = yield from replay_corpus(self, end)
            elif phase == "explore":
                from .explore import explore

                reason = yield from explore(self, end, cases, state)
                if reason != "stopped":
                    yield from self.past.reopen(explored=True)
            elif phase == "sequences":
                from .sequence_phase import run_sequences

                reason = yield from run_sequences(self, end, cases, state)
            else:
                skip = skippable(phase, state.until)
                source = self.past.placed(proposals(phase, self.plan, self.profile, skip=skip), state, skip)
                reason = yield from stream(self, phase, source, end, cases, state.taken)
        except DevicesLost:
            yield from self._abandon()
            raise
        yield self.campaign.tell(
            PhaseFinished,
            phase=phase,
            backend=self.backend,
            profile=self.profile,
            cases=self.campaign.tally.cases - before,
            seconds=round(monotonic() - start, 3),
            reason=reason,
        )

    def settle_ready(self) -> Iterator[Event]:
        """Settle what has come in, and tell of workers that were replaced."""
        for done in self.scheduler.poll(POLL_SECONDS):
            if not self.campaign.stop:  # what comes in after that will be found again
                yield from self.settle(done)
        yield from self.restarts()

    def over(self, end: Optional[float], cases: Optional[int], taken: int) -> str:
        """Why a phase is over; "" while it is not."""
        if self.campaign.stop:
            return "stopped"
        if end is not None and monotonic() >= end:
            return "time"
        return "cases" if cases is not None and taken >= cases else ""

    def drain(self) -> Iterator[Event]:
        """Settle the cases that are still in work; when the run is being stopped, or its time has been over for long, they
        are let go."""
        end = monotonic() + DRAIN_SECONDS + self.plan.time_limit
        while self.running and not self.campaign.stop and (self.plan.max_time is None or monotonic() < end):
            yield from self.settle_ready()
        if not self.campaign.stop:
            self.running.clear()
            yield from self._release()

    def restarts(self) -> Iterator[Event]:
        """Events for workers that were replaced."""
        for restart in self.scheduler.restarts():
            if restart.given_up:
                yield self.campaign.tell(Note, level="warning", text=restart.reason)
            else:
                yield self.campaign.tell(WorkerRestarted, worker=restart.worker, reason=restart.reason)

    def _abandon(self) -> Iterator[Event]:
        """No worker is left: tell what has come in, without running anything again."""
        yield from self.restarts()
        self.running.clear()
        while self.waiting and not self.campaign.stop:
            try:
                yield from self._release()
            except DevicesLost:
                continue

    # ---- one case -------------------------------------------------------------------------------------------

    def offer(self, proposal: Proposal, phase: str) -> Optional[Event]:
        """Hand a case to the workers, which predict it and run it as it deserves; an event when it is not run."""
        killer = self.would_repeat(proposal.case)
        if killer is not None:
            reason = f"would repeat a known crash or hang ({killer.entry})"
            return self.done(_Running(proposal, None, 1, phase), Verdict(SKIPPED, text=reason), None)
        self.hand_out(proposal, phase)
        return None

    def would_repeat(self, case: Case) -> Optional[Known]:
        """The known crash or hang that a case is likely to cause again, where that has cost too much time already. Only a
        run that is bound by time saves it: which cases another one runs is decided by its seed alone."""
        if self.plan.max_time is None or not self.investigator.known:
            return None
        return self.investigator.deadly(case)

    def hand_out(self, proposal: Proposal, phase: str) -> None:
        """Give a case to the workers."""
        self.job_number += 1
        job = Job(self.job_number, proposal.case, foresee=True)
        self.running[job.id] = _Running(proposal, None, 1, phase)
        self.scheduler.submit(job)

    def foresee(self, case: Case) -> Foreseen:
        """The prediction of a case under the profile of the leg, as data."""
        from oracles.constraints.predict import predict

        return foreseen(predict(case, self.profile, scene=Scene(case)))

    def settle(self, done: Completed) -> Iterator[Event]:
        """Verdict and events for one result. A failure waits for the cases before it, since what is found first explains
        what comes later."""
        found = self.verdict_on(done)
        if found is None:
            return
        if found.verdict.failed:
            heappush(self.waiting, (done.job.id, found))
        else:
            yield from self.settled(found)
        yield from self._release()

    def _release(self) -> Iterator[Event]:
        """Events of the failures that nothing before them holds up any more. When the run is being stopped, they will be found
        again: what they are taken for depends on those before them, which are no longer looked into to the end."""
        while self.waiting and not self.campaign.stop and (not self.running or self.waiting[0][0] < next(iter(self.running))):
            yield from self.settled(heappop(self.waiting)[1])

    def verdict_on(self, done: Completed) -> Optional[Settled]:
        """The verdict on a result, before anything is told; None for a job that nobody waits for."""
        running = self.running.pop(done.job.id, None)
        if running is None:
            return None
        if done.result.deadly:
            self.investigator.death_seconds += done.seconds + 3.0
        else:
            self.investigator.slowest = max(self.investigator.slowest, done.result.seconds.total)
        about = done.result.about
        expected = about.foreseen if about is not None else running.foreseen or self.foresee(running.proposal.case)
        verdict = decide(expected, done.result)
        self.skips += verdict.status == SKIPPED
        gone = self.scheduler.given_up(done.worker) if done.result.deadly or done.result.fatal else ""
        if gone:
            lost = lost_with(running.proposal.case, expected, done.result, 1, gone)
            verdict, done = lost.verdict, replace(done, result=lost.result)
        return Settled(replace(running, foreseen=expected), done, verdict, gone, done.job.before)

    def settled(self, found: Settled) -> Iterator[Event]:
        """Events for one result: counted, explained by a known finding, or looked into."""
        running, done, verdict = found.running, found.completed, found.verdict
        if verdict.status == INFO:
            verdict = yield from self._disagreement(verdict)
        if not verdict.failed:
            if running.number:
                yield from self.past.settled_again(running.number, None)
            else:
                yield self.done(running, verdict, done)
            return
        self.investigator.effort.position = max(0, done.job.id)
        self.effort = self.investigator.effort.recorded
        if running.number:
            yield from self.past.settled_again(running.number, found.failure)
            return
        try:
            known = self.investigator.explained(found.failure)
        except DevicesLost:
            yield self.counted(found)
            raise
        if known is None and self.kept >= self.plan.max_findings:
            if not self.said_enough:
                self.said_enough = True
                yield self.campaign.tell(
                    Note, level="warning", text=f"{self.kept} findings are kept; further ones are only counted"
                )
            yield self.counted(found)
        elif known is not None:
            known.count += 1
            yield self.done(running, verdict, done, known)
        else:
            yield from self._look_into(running, found.failure, done)

    def counted(self, found: Settled) -> Event:
        """The event of a case that is only counted."""
        return self.done(found.running, found.verdict, found.completed)

    def _look_into(self, running: _Running, failure: Failure, done: Completed) -> Iterator[Event]:
        number = 0
        steps = self.investigator.look_into(failure)
        while True:
            try:
                step = next(steps, None)
            except DevicesLost:
                if not number:
                    yield self.done(running, failure.verdict, done)
                raise
            if step is None:
                return
            if isinstance(step, Confirmed):
                self.campaign.finding_number += 1
                number, confirmed = self.campaign.finding_number, step.failure
                yield self.done(running, confirmed.verdict, done)
                yield self.campaign.tell(
                    FindingFound,
                    number=number,
                    phase=running.phase,
                    backend=self.backend,
                    profile=self.profile,
                    case=confirmed.case,
                    verdict=confirmed.verdict,
                    foreseen=confirmed.foreseen,
                    pictures=confirmed.result.pictures,
                    before=confirmed.before,
                )
            elif isinstance(step, Kept):
                yield self.tell_kept(number, step)
            elif isinstance(step, Repeat):
                if number:
                    yield self.tell_repeat(number, step.known, step.failure.case)
                else:
                    yield self.done(running, step.failure.verdict, done, step.known)
            else:
                if not number:
                    verdict = failure.verdict
                    yield self.done(running, Verdict(FLAKY, verdict.code, verdict.rule, verdict.text), done)
                yield self.campaign.tell(
                    FlakyFound,
                    number=number,
                    case=failure.case,
                    verdict=failure.verdict,
                    failed=step.failed,
                    tries=step.tries,
                    effort=self.investigator.effort.recorded,
                )

    def tell_repeat(self, number: int, known: Known, case: Case) -> Event:
        """The event of a finding that turned out to be a known one; ``case``: as it was found."""
        effort = self.investigator.effort.recorded
        event = self.campaign.tell(FindingRepeated, number=number, entry=known.entry, effort=effort)
        self.campaign.unfinished.settle((self.backend, self.profile, case.digest))
        return event

    def tell_kept(self, number: int, step: Kept) -> Event:
        """The event of a finding that has its entry."""
        self.kept += 1
        ledger = self.campaign.ledger
        event = self.campaign.tell(
            FindingKept,
            number=number,
            entry=step.entry,
            new=step.new or self.past.is_ours(step),
            path=step.path,
            runs=step.runs,
            seconds=round(step.seconds, 3),
            problem=step.problem,
            known=ledger.peek(step.entry) if step.interrupted else ledger.label(step.entry),
            effort=self.investigator.effort.recorded,
            interrupted=step.interrupted,
        )
        if step.path is not None:
            about = (self.backend, self.profile, step.failure.case.digest)
            self.campaign.unfinished.settle(about, step.entry if step.interrupted else None)
        return event

    def _disagreement(self, verdict: Verdict) -> Generator[Event, None, Verdict]:
        """F401 is told once per rule and side; a backend that answers from the prediction, or that checks next to nothing,
        takes no side. Returns the verdict to count."""
        if self.hello.checks in ("emulated", "partial"):
            return Verdict(PASS, rule=verdict.rule)
        key = (verdict.rule or "", verdict.side or "")
        if key not in self.campaign.disagreements:
            self.campaign.disagreements.add(key)
            yield self.campaign.tell(Disagreement, rule=key[0], side=key[1], text=verdict.text)
        return verdict

    def running_case(self, proposal: Proposal, expected: Optional[Foreseen], runs: int, phase: str) -> _Running:
        """A case that is about to be with a worker."""
        return _Running(proposal, expected, runs, phase)

    def done(
        self, running: _Running, verdict: Verdict, done: Optional[Completed], known: Optional[Known] = None
    ) -> Event:
        """The event of a case that is done."""
        self.campaign.case_number += 1
        case, proposal = running.proposal.case, running.proposal
        about = done.result.about if done is not None else None
        expected = running.foreseen or self.foresee(case)
        judged = done.result.judged if done is not None else None
        return self.campaign.tell(
            CaseDone,
            n=self.campaign.case_number,
            phase=running.phase,
            mode=proposal.mode,
            digest=case.digest,
            verdict=verdict,
            foreseen=expected.verdict,
            rule=proposal.rule,
            side=proposal.side,
            factors=about.factors if about is not None else factor_words(Scene(case)),
            seconds=round(done.result.seconds.total or done.seconds, 6) if done is not None else 0.0,
            ratio=round(judged.error_ratio, 6) if judged is not None else 0.0,
            compared=judged.compared if judged is not None else 0,
            untestable=judged.untestable if judged is not None else 0,
            repeats=known.entry if known is not None else None,
            place=proposal.place,
            judged=about is not None and about.judged,
            effort=self._effort_of(verdict, known),
            sought=proposal.sought,
            codes=expected.codes if expected.verdict != "accept" else (),
            rules=expected.rules,
            got=done.result.kind if done is not None else "",
            got_code=done.result.code if done is not None else None,
            held=self._newly_held(case, about) if verdict.status == PASS and expected.verdict == "accept" else (),
        )

    def _effort_of(self, verdict: Verdict, known: Optional[Known]) -> tuple[int, ...]:
        """What a resumed run that goes on after this case begins with: without an explanation, the case is looked into
        again if nothing follows."""
        if verdict.status not in (FINDING, FLAKY):
            return ()
        return self.effort if known is None else self.investigator.effort.recorded

    def _newly_held(self, case: Case, about: Optional[About]) -> tuple[str, ...]:
        """Rules to which no accepted call before this one has held."""
        held = about.held if about is not None else self.held.by(Scene(case))
        found = tuple(rule for rule in held if rule not in self.named)
        self.named.update(found)
        return found

    def wait_for(self, number: int) -> Optional[Settled]:
        """Wait for the result of one job; the only one in work. None when the run is being stopped."""
        while not self.campaign.stop:
            for done in self.scheduler.poll(POLL_SECONDS):
                found = self.verdict_on(done)
                if done.job.id == number:
                    return found
        return None
