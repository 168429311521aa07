"""One leg of a campaign: one backend under one profile, through all phases."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Optional

from fiafuzz.model.case import Case
from fiafuzz.model.factors import FACTORS
from fiafuzz.model.scene import Scene

from .budget import Budget
from .canary import sing
from .corpus import BadEntry, Entry
from .cost import estimated_seconds
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
    Replayed,
    WorkerRestarted,
)
from .failures import Confirmed, Failure, Kept, Known, Repeat
from .investigate import Investigator
from .plan import phases_of
from .proposals import Proposal, proposals
from .replay import replay_entry
from .schedulers.protocol import Completed, Scheduler
from .verdict import FLAKY, INFO, PASS, SKIPPED, Foreseen, Verdict, decide, foreseen, gives_values, reason_not_to_run
from .wire import Hello, Job

if TYPE_CHECKING:
    from .engine import Campaign

POLL_SECONDS = 0.05
GIANT_SHARE = 0.4
"""Cases that are likely to take more than this share of the time limit are not judged, and run only where checks are
real."""
DRAIN_SECONDS = 30.0
"""How long the cases still in work are waited for when a phase is over."""
_READERS = tuple(FACTORS.values())


@dataclass(frozen=True)
class _Running:
    """A case that is with a worker."""

    proposal: Proposal
    foreseen: Foreseen
    runs: int
    phase: str


@dataclass(frozen=True)
class Settled:
    """A case that has come back, and the verdict on it."""

    running: _Running
    completed: Completed
    verdict: Verdict

    @property
    def failure(self) -> Failure:
        """As a failure (it must be one)."""
        running = self.running
        return Failure(running.proposal.case, running.foreseen, self.verdict, self.completed.result, running.runs)


class Leg:
    """Runs the phases. One scheduler, one investigator, one stream of events."""

    def __init__(self, campaign: Campaign, scheduler: Scheduler, hello: Hello, backend: str, profile: str) -> None:
        self.campaign = campaign
        self.plan = campaign.plan
        self.scheduler = scheduler
        self.hello = hello
        self.backend = backend
        self.profile = profile
        self.running: dict[int, _Running] = {}
        self.valid_cases = 0
        self.job_number = 0
        self.kept = 0
        self.said_enough = False
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
        )

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
        end = None if seconds is None else monotonic() + seconds
        start, before = monotonic(), self.campaign.tally.cases
        yield self.campaign.tell(
            PhaseStarted,
            phase=phase,
            backend=self.backend,
            profile=self.profile,
            seconds=None if seconds is None else round(seconds, 3),
            cases=cases,
        )
        if phase == "replay":
            reason = yield from self._replay(end)
        elif phase == "explore":
            from .explore import explore

            reason = yield from explore(self, end, cases)
        else:
            reason = yield from self._stream(phase, proposals(phase, self.plan, self.profile), end, cases)
        yield self.campaign.tell(
            PhaseFinished,
            phase=phase,
            backend=self.backend,
            profile=self.profile,
            cases=self.campaign.tally.cases - before,
            seconds=round(monotonic() - start, 3),
            reason=reason,
        )

    def _stream(
        self, phase: str, source: Iterator[Proposal], end: Optional[float], cases: Optional[int]
    ) -> Generator[Event, None, str]:
        """Keep the workers busy with proposals and settle what comes back; returns why it ended."""
        reason, taken = "", 0
        while not reason:
            while self.scheduler.room() > 0 and not reason:
                reason = self.over(end, cases, taken)
                if reason:
                    break
                proposal = next(source, None)
                if proposal is None:
                    reason = "done"
                    break
                skipped = self.offer(proposal, phase)
                if skipped is None:
                    taken += 1
                else:
                    yield skipped
            for done in self.scheduler.poll(POLL_SECONDS):
                if not self.campaign.stop:  # what comes in after that will be found again
                    yield from self.settle(done)
            yield from self.restarts()
            if not reason:
                reason = self.over(end, cases, taken)
        yield from self.drain()
        return reason

    def over(self, end: Optional[float], cases: Optional[int], taken: int) -> str:
        """Why a phase is over; "" while it is not."""
        if self.campaign.stop:
            return "stopped"
        if end is not None and monotonic() >= end:
            return "time"
        return "cases" if cases is not None and taken >= cases else ""

    def drain(self) -> Iterator[Event]:
        """Settle the cases that are still in work; when the run is being stopped they are let go."""
        end = monotonic() + DRAIN_SECONDS + self.plan.time_limit
        while self.running and not self.campaign.stop and monotonic() < end:
            for done in self.scheduler.poll(POLL_SECONDS):
                if not self.campaign.stop:
                    yield from self.settle(done)
            yield from self.restarts()

    def restarts(self) -> Iterator[Event]:
        """Events for workers that were replaced."""
        for restart in self.scheduler.restarts():
            yield self.campaign.tell(WorkerRestarted, worker=restart.worker, reason=restart.reason)

    # ---- one case -------------------------------------------------------------------------------------------

    def offer(self, proposal: Proposal, phase: str) -> Optional[Event]:
        """Predict a case and hand it to the workers; an event when it is not run."""
        expected = self.foresee(proposal.case)
        reason = reason_not_to_run(expected, self.hello.checks, dare=self.plan.dare)
        judge = gives_values(expected)
        if reason is None and judge and estimated_seconds(Scene(proposal.case)) > GIANT_SHARE * self.plan.time_limit:
            judge = False
            reason = None if self.hello.checks == "own" else "too large for a CPU"
        if reason is None and self.investigator.known:
            killer = self.investigator.deadly(proposal.case)
            if killer is not None:
                reason = f"would repeat a known crash or hang ({killer.entry})"
        if reason is not None:
            return self._done(_Running(proposal, expected, 1, phase), Verdict(SKIPPED, text=reason), None)
        job = self.job(proposal.case, judge)
        self.running[job.id] = _Running(proposal, expected, job.runs, phase)
        self.scheduler.submit(job)
        return None

    def foresee(self, case: Case) -> Foreseen:
        """The prediction of a case under the profile of the leg, as data."""
        from oracles.constraints.predict import predict

        return foreseen(predict(case, self.profile, scene=Scene(case)))

    def job(self, case: Case, judge: bool) -> Job:
        """A job for a case, with the extra run and the relations that are its turn. ``judge``: whether it is judged by
        the reference."""
        self.job_number += 1
        self.valid_cases += judge
        again = judge and self.plan.repeat_every > 0 and self.valid_cases % self.plan.repeat_every == 0
        relate = judge and self.plan.relate_every > 0 and self.valid_cases % self.plan.relate_every == 0
        return Job(self.job_number, case, judge=judge, runs=2 if again else 1, relations=relate)

    def settle(self, done: Completed) -> Iterator[Event]:
        """Verdict and events for one result."""
        found = self.verdict_on(done)
        if found is not None:
            yield from self.settled(found)

    def verdict_on(self, done: Completed) -> Optional[Settled]:
        """The verdict on a result, before anything is told; None for a job that nobody waits for."""
        running = self.running.pop(done.job.id, None)
        if running is None:
            return None
        if done.result.deadly:
            self.investigator.death_seconds += done.seconds + 3.0
        else:
            self.investigator.slowest = max(self.investigator.slowest, done.result.seconds.total)
        return Settled(running, done, decide(running.foreseen, done.result))

    def settled(self, found: Settled) -> Iterator[Event]:
        """Events for one result: counted, explained by a known finding, or looked into."""
        running, done, verdict = found.running, found.completed, found.verdict
        if verdict.status == INFO:
            verdict = yield from self._disagreement(verdict)
        if not verdict.failed:
            yield self._done(running, verdict, done)
            return
        known = self.investigator.explained(found.failure)
        if known is None and self.kept >= self.plan.max_findings:
            if not self.said_enough:
                self.said_enough = True
                yield self.campaign.tell(
                    Note, level="warning", text=f"{self.kept} findings are kept; further ones are only counted"
                )
            yield self.counted(found)
        elif known is not None:
            known.count += 1
            yield self._done(running, verdict, done, known)
        else:
            yield from self._look_into(running, found.failure, done)

    def counted(self, found: Settled) -> Event:
        """The event of a case that is only counted."""
        return self._done(found.running, found.verdict, found.completed)

    def _look_into(self, running: _Running, failure: Failure, done: Completed) -> Iterator[Event]:
        number = 0
        for step in self.investigator.look_into(failure):
            if isinstance(step, Confirmed):
                self.campaign.finding_number += 1
                number, confirmed = self.campaign.finding_number, step.failure
                yield self._done(running, confirmed.verdict, done)
                yield self.campaign.tell(
                    FindingFound,
                    number=number,
                    phase=running.phase,
                    backend=self.backend,
                    profile=self.profile,
                    case=confirmed.case,
                    verdict=confirmed.verdict,
                    foreseen=confirmed.foreseen,
                )
            elif isinstance(step, Kept):
                self.kept += 1
                yield self.campaign.tell(
                    FindingKept,
                    number=number,
                    entry=step.entry,
                    new=step.new,
                    path=step.path,
                    runs=step.runs,
                    seconds=round(step.seconds, 3),
                    problem=step.problem,
                )
            elif isinstance(step, Repeat):
                if number:
                    yield self.campaign.tell(FindingRepeated, number=number, entry=step.known.entry)
                else:
                    yield self._done(running, step.failure.verdict, done, step.known)
            else:
                if not number:
                    verdict = failure.verdict
                    yield self._done(running, Verdict(FLAKY, verdict.code, verdict.rule, verdict.text), done)
                yield self.campaign.tell(
                    FlakyFound,
                    number=number,
                    case=failure.case,
                    verdict=failure.verdict,
                    failed=step.failed,
                    tries=step.tries,
                )

    def _disagreement(self, verdict: Verdict) -> Generator[Event, None, Verdict]:
        """F401 is told once per rule and side; a backend that answers from the prediction takes no side. Returns the
        verdict to count."""
        if self.hello.checks == "emulated":
            return Verdict(PASS, rule=verdict.rule)
        key = (verdict.rule or "", verdict.side or "")
        if key not in self.campaign.disagreements:
            self.campaign.disagreements.add(key)
            yield self.campaign.tell(Disagreement, rule=key[0], side=key[1], text=verdict.text)
        return verdict

    def _done(
        self, running: _Running, verdict: Verdict, done: Optional[Completed], known: Optional[Known] = None
    ) -> Event:
        self.campaign.case_number += 1
        case, proposal = running.proposal.case, running.proposal
        scene = Scene(case)
        judged = done.result.judged if done is not None else None
        return self.campaign.tell(
            CaseDone,
            n=self.campaign.case_number,
            phase=running.phase,
            mode=proposal.mode,
            digest=case.digest,
            verdict=verdict,
            foreseen=running.foreseen.verdict,
            rule=proposal.rule,
            side=proposal.side,
            factors="|".join(read(scene) for read in _READERS),
            seconds=round(done.result.seconds.total or done.seconds, 6) if done is not None else 0.0,
            ratio=round(judged.error_ratio, 6) if judged is not None else 0.0,
            compared=judged.compared if judged is not None else 0,
            untestable=judged.untestable if judged is not None else 0,
            repeats=known.entry if known is not None else None,
        )

    def wait_for(self, number: int) -> Optional[Settled]:
        """Wait for the result of one job; the only one in work. None when the run is being stopped."""
        while not self.campaign.stop:
            for done in self.scheduler.poll(POLL_SECONDS):
                found = self.verdict_on(done)
                if done.job.id == number:
                    return found
        return None

    # ---- replay ------------------------------------------------------------------------------------------------

    def _replay(self, end: Optional[float]) -> Generator[Event, None, str]:
        """Run the corpus entries of this backend or any other under this profile first."""
        for entry in self.campaign.corpus.entries():
            if self.campaign.stop:
                return "stopped"
            if end is not None and monotonic() >= end:
                return "time"
            if isinstance(entry, BadEntry):
                yield self.campaign.tell(Note, level="warning", text=f"corpus: {entry}")
            elif entry.profile == self.profile:
                yield from self._replay_entry(entry)
        return "done"

    def _replay_entry(self, entry: Entry) -> Iterator[Event]:
        """One entry. One that fails as it is kept counts as a known finding; one that fails in another way, or on
        another backend than its own, is looked into like any other failure."""
        expected = self.foresee(entry.case)
        proposal = Proposal(entry.case, "replay", entry.signature.rule, entry=entry.id)
        running = _Running(proposal, expected, 1, "replay")
        reason = reason_not_to_run(expected, self.hello.checks, dare=self.plan.dare)
        if reason is not None:
            yield self._done(running, Verdict(SKIPPED, text=reason), None)
            yield self.campaign.tell(Replayed, entry=entry.id, status="skipped", text=reason)
            return
        again = replay_entry(self.scheduler, entry, expected, self.backend, self.plan.time_limit)
        done, verdict = again.completed, again.verdict
        self.investigator.death_seconds += (done.seconds + 3.0) * done.result.deadly
        yield from self.restarts()
        yield self.campaign.tell(Replayed, entry=entry.id, status=again.status, text=again.text)
        if again.status == "failing" and entry.signature.backend == self.backend:
            self.investigator.known.append(Known(entry.signature, entry.id, 1))
            self.campaign.finding_number += 1
            yield self._done(running, verdict, done, self.investigator.known[-1])
            yield self.campaign.tell(
                FindingKept,
                number=self.campaign.finding_number,
                entry=entry,
                new=False,
                path=str(self.campaign.corpus.root),
                runs=0,
                seconds=0.0,
            )
        elif again.status == "flaky":
            yield self._done(running, Verdict(FLAKY, entry.signature.code, entry.signature.rule, again.text), done)
            yield self.campaign.tell(
                FlakyFound, number=0, case=entry.case, verdict=verdict, failed=again.failed, tries=again.tries
            )
        else:
            self.running[done.job.id] = running
            yield from self.settle(done)
