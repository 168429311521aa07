"""What a leg tells: the events of its phases, cases and findings, and what it must remember to tell them right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional

from fiafuzz.model.case import Case
from fiafuzz.model.factors import factor_words
from fiafuzz.model.scene import Scene

from .effort import Effort
from .events import (
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
from .failures import Failure, Kept, Known
from .held import Held
from .in_work import Running
from .results import About
from .schedulers.protocol import Completed, Restart
from .verdict import FINDING, FLAKY, PASS, Verdict, foresee
from .wire import Hello

if TYPE_CHECKING:
    from .engine import Campaign


class LegEvents:
    """Makes, counts and logs the events of one backend under one profile; whoever asks for one yields it at once."""

    def __init__(self, campaign: Campaign, backend: str, profile: str, effort: Effort) -> None:
        self.campaign = campaign
        self.backend = backend
        self.profile = profile
        self.effort = effort
        self.effort_before: tuple[int, ...] = ()
        """What had gone into looking at failures before the present one."""
        self.kept = 0
        """Findings that have their entry."""
        self.named: set[str] = set()
        """Rules that some accepted call has held to."""
        self._held = Held(profile)
        self._said_enough = False

    # ---- the leg and its phases -------------------------------------------------------------------------

    def started(self, hello: Hello) -> Event:
        """The leg begins."""
        return self.campaign.tell(
            LegStarted,
            backend=self.backend,
            title=hello.title,
            profile=self.profile,
            checks=hello.checks,
            versions=dict(hello.versions),
            policies=dict(hello.policies),
        )

    def phase_started(self, phase: str, seconds: Optional[float], cases: Optional[int]) -> Event:
        """A phase begins, with what it may take."""
        return self.campaign.tell(
            PhaseStarted,
            phase=phase,
            backend=self.backend,
            profile=self.profile,
            seconds=None if seconds is None else round(seconds, 3),
            cases=cases,
        )

    def phase_finished(self, phase: str, cases: int, seconds: float, reason: str) -> Event:
        """A phase is over, and why."""
        return self.campaign.tell(
            PhaseFinished,
            phase=phase,
            backend=self.backend,
            profile=self.profile,
            cases=cases,
            seconds=round(seconds, 3),
            reason=reason,
        )

    def restarted(self, restart: Restart) -> Event:
        """A worker was replaced, or given up."""
        if restart.given_up:
            return self.campaign.tell(Note, level="warning", text=restart.reason)
        return self.campaign.tell(WorkerRestarted, worker=restart.worker, reason=restart.reason)

    # ---- a case -------------------------------------------------------------------------------------------

    def case(self, running: Running, verdict: Verdict, done: Optional[Completed], known: Optional[Known] = None) -> Event:
        """A case is done; ``done`` is None for one that was not run, ``known`` the finding that explains its failure."""
        self.campaign.case_number += 1
        case, proposal = running.proposal.case, running.proposal
        about = done.result.about if done is not None else None
        expected = running.foreseen or foresee(case, self.profile)
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
        return self.effort_before if known is None else self.effort.recorded

    def _newly_held(self, case: Case, about: Optional[About]) -> tuple[str, ...]:
        """Rules to which no accepted call before this one has held."""
        held = about.held if about is not None else self._held.by(Scene(case))
        found = tuple(rule for rule in held if rule not in self.named)
        self.named.update(found)
        return found

    def disagreement(self, verdict: Verdict) -> Iterator[Event]:
        """F401 is told once per rule and side."""
        key = (verdict.rule or "", verdict.side or "")
        if key not in self.campaign.disagreements:
            self.campaign.disagreements.add(key)
            yield self.campaign.tell(Disagreement, rule=key[0], side=key[1], text=verdict.text)

    # ---- a finding ----------------------------------------------------------------------------------------

    def found(self, number: int, phase: str, confirmed: Failure) -> Event:
        """A failure has come again, and nothing known explains it."""
        return self.campaign.tell(
            FindingFound,
            number=number,
            phase=phase,
            backend=self.backend,
            profile=self.profile,
            case=confirmed.case,
            verdict=confirmed.verdict,
            foreseen=confirmed.foreseen,
            pictures=confirmed.result.pictures,
            before=confirmed.before,
        )

    def finding_kept(self, number: int, step: Kept, *, new: bool) -> Event:
        """A finding has its entry; ``new``: the corpus did not have it before this run."""
        self.kept += 1
        ledger = self.campaign.ledger
        event = self.campaign.tell(
            FindingKept,
            number=number,
            entry=step.entry,
            new=new,
            path=step.path,
            runs=step.runs,
            seconds=round(step.seconds, 3),
            problem=step.problem,
            known=ledger.peek(step.entry) if step.interrupted else ledger.label(step.entry),
            effort=self.effort.recorded,
            interrupted=step.interrupted,
        )
        if step.path is not None:
            about = (self.backend, self.profile, step.failure.case.digest)
            self.campaign.unfinished.settle(about, step.entry if step.interrupted else None)
        return event

    def repeated(self, number: int, known: Known, case: Case) -> Event:
        """A finding turned out to be a known one; ``case``: as it was found."""
        event = self.campaign.tell(FindingRepeated, number=number, entry=known.entry, effort=self.effort.recorded)
        self.campaign.unfinished.settle((self.backend, self.profile, case.digest))
        return event

    def flaky(self, number: int, case: Case, verdict: Verdict, failed: int, tries: int) -> Event:
        """A failure, or a finding that was told already, does not come again."""
        effort = self.effort.recorded
        return self.campaign.tell(
            FlakyFound, number=number, case=case, verdict=verdict, failed=failed, tries=tries, effort=effort
        )

    def enough(self) -> Iterator[Event]:
        """No more findings are kept; told once."""
        if not self._said_enough:
            self._said_enough = True
            yield self.campaign.tell(Note, level="warning", text=f"{self.kept} findings are kept; further ones are only counted")
