"""The engine: a plan goes in, events come out.

``run_campaign(plan)`` is a generator. It does the work as its events are taken, writes each of them to the log of the
run before it hands it over, and ends with RunFinished whatever happens in between: time, Ctrl-C, SIGTERM, a backend
that no longer starts, a full disk. Findings are in the corpus before anyone hears of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from time import monotonic
from typing import Any, Optional

import msgspec

from fiafuzz import __version__
from fiafuzz.model.factors import FACTORS

from .baseline import BaselineError
from .budget import Budget
from .corpus import Corpus, CorpusError
from .events import Event, FindingKept, KnownIssue, Note, RunFinished, RunResumed, RunStarted, Summary
from .known import Ledger
from .leg import Leg
from .plan import Plan, check, phases_of
from .resume import LegState, Past, ResumeError
from .rundir import RunDir, run_directory, utc_now
from .schedulers.choice import scheduler_of
from .schedulers.protocol import BackendRefused, DevicesLost, Scheduler, SchedulerError
from .stopping import StopFlag, signals_stop
from .tally import Tally, summarise
from .unfinished import Unfinished, whose
from .wire import Hello

__all__ = ["Campaign", "run_campaign", "summarise"]


def run_campaign(plan: Plan, *, stop: Optional[StopFlag] = None, past: Optional[Past] = None) -> Iterator[Event]:
    """Run a campaign. The first event is RunStarted, the last RunFinished.

    Before the first event: PlanError for a plan that makes no sense, KnownError and BaselineError for lists of known
    findings that cannot be read, CorpusError and RunDirError (both OSError) when nothing could be written. ``stop`` may
    be set by the caller at any time.

    ``past`` (``resume.read_past``) lets a run that was killed or interrupted go on: ``plan`` is then that of the past, up
    to how it is run (workers). The first event is RunResumed; ResumeError comes when the backend is no longer the same.
    """
    check(plan)
    campaign = Campaign(plan, stop if stop is not None else StopFlag(), past)
    return campaign.events()


class Campaign:
    """State of one run: the plan, the clock, the run directory, the corpus, the counts and the events on their way
    out."""

    def __init__(self, plan: Plan, stop: StopFlag, past: Optional[Past] = None) -> None:
        self.plan = plan
        self.stop = stop
        self.past = past
        self.ledger = Ledger.of(plan)
        self.corpus = Corpus(plan.corpus)
        self.corpus.check_writable()
        if past is None:
            self.began = utc_now()
            self.directory = RunDir(run_directory(plan, self.began))
        else:
            self.began = datetime.fromisoformat(past.started)
            self.directory = RunDir(past.directory, (past.length, past.size))
            self._relearn(past)
        began = self.began.isoformat(timespec="seconds")
        self.unfinished = Unfinished(self.corpus, plan.seed, began, None if past is None else past.unfinished)
        self.started = monotonic() - (past.elapsed if past is not None else 0.0)
        self.tally = past.tally if past is not None else Tally()
        self.case_number = past.cases if past is not None else 0
        self.finding_number = past.findings if past is not None else 0
        self.disagreements: set[tuple[str, str]] = past.disagreements if past is not None else set()
        self._listed = False
        self.refused: Optional[BackendRefused] = None
        self._scheduler: Optional[Scheduler] = None
        self._builds: list[dict[str, Any]] = []
        self._told_of_log = False

    def _relearn(self, past: Past) -> None:
        """What the log says about known issues."""
        for kept in past.kept:
            self.ledger.label(kept.entry)
        for again in past.replayed:
            entry = self.corpus.find(again.entry)
            if entry is not None and (again.status == "fixed" or again.known is not None):
                self.ledger.replayed(entry, again.status)

    # ---- the clock and the stream -----------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return monotonic() - self.started

    def tell(self, kind: type[Any], **fields: Any) -> Event:
        """Make an event, count it and log it; the caller yields it."""
        event: Event = kind(at=round(self.elapsed, 6), **fields)
        self.tally.add(event)
        self.directory.write(event)
        return event

    # ---- the run ------------------------------------------------------------------------------------------

    def events(self) -> Iterator[Event]:
        """All events, in order."""
        with signals_stop(self.stop):
            try:
                self._record(None)
                yield from self._opening()
                yield from self._legs()
                yield from self._lists()
            except KeyboardInterrupt:
                self.stop.set("SIGINT")
            except ResumeError:
                self.stop.set("refused")
                raise
            except Exception as error:
                self.tally.problems.append(f"internal error: {type(error).__name__}: {error}")
                raise
            finally:
                if self._scheduler is not None:
                    self._scheduler.close()
                summary = self._finish()
            yield self.last_event(summary)

    def _opening(self) -> Iterator[Event]:
        """The first events of a run, or of a run that goes on."""
        past = self.past
        if past is None or not past.length:
            yield self.tell(
                RunStarted,
                plan=self.plan,
                started=self.began.isoformat(timespec="seconds"),
                version=__version__,
                directory=str(self.directory.path),
                factors=tuple(FACTORS),
            )
        if past is not None:
            now = utc_now().isoformat(timespec="seconds")
            yield self.tell(RunResumed, resumed=now, version=__version__, cases=past.cases, findings=past.findings)
            if past.damaged:
                text = f"{past.damaged} lines of the log could not be read; what they told is done again"
                yield self.tell(Note, level="warning", text=text)
            yield from self._keep_again()
        for issue, text in self.ledger.expired():
            yield self.tell(KnownIssue, issue=issue, status="expired", text=text)

    def _keep_again(self) -> Iterator[Event]:
        """Try again to write findings for which the corpus had no room, and take away what others have taken the place of."""
        for (backend, profile), leg in self.past.legs.items() if self.past is not None else ():
            for digest in leg.closed:
                self.unfinished.settle((backend, profile, digest))
        for kept in [k for k in self.tally.findings.values() if k.path is None]:
            fields = {name: value for name, value in msgspec.structs.asdict(kept).items() if name != "at"}
            try:
                path = str(self.unfinished.keep(kept.entry))
            except FileExistsError:
                path = str(self.corpus.root)
            except CorpusError:
                continue
            event = self.tell(FindingKept, **{**fields, "path": path, "problem": ""})
            self.unfinished.settle(whose(kept.entry), kept.entry if kept.interrupted else None)
            yield event

    def _lists(self) -> Iterator[Event]:
        """Known issues that pass now, and the baseline as it is to be; told and written once."""
        if self._listed:
            return
        self._listed = True
        if not self.stop:
            for issue, text in self.ledger.passing():
                yield self.tell(KnownIssue, issue=issue, status="passes", text=text)
        try:
            said = self.ledger.close()
        except (BaselineError, OSError) as error:
            yield self.tell(Note, level="problem", text=f"the baseline could not be written: {error}")
        else:
            if said is not None:
                yield self.tell(Note, level="info", text=said)

    def last_event(self, summary: Summary) -> Event:
        """The last event; it is in the log already."""
        return RunFinished(at=round(self.elapsed, 6), summary=summary)

    def _finish(self) -> Summary:
        """Close the books: summary, run.json, log. Runs also when the consumer has gone or everything fails."""
        for _ in self._lists():
            pass
        self.tally.interrupted = self.stop.reason in ("SIGINT", "SIGTERM", "refused")
        self.tally.nothing = not self.tally.cases and not self.tally.problems and not self.stop
        told = self._unwritten()
        self.tally.problems += told
        self.tally.seconds = self.elapsed
        summary = self.tally.summary()
        self.tell(RunFinished, summary=summary)
        self._record(summary)
        late = [problem for problem in self._unwritten() if problem not in told]
        if late:  # the end itself could not be written
            self.tally.problems += late
            summary = self.tally.summary()
        self.directory.close()
        return summary

    def _unwritten(self) -> list[str]:
        """What the run directory lacks, a line each."""
        lacks = {"the log is not complete": self.directory.problem, "run.json is not up to date": self.directory.record_problem}
        return [f"{what}: {why}" for what, why in lacks.items() if why]

    def _record(self, summary: Optional[Summary]) -> None:
        self.directory.record(
            {
                "fiafuzz_run": 1,
                "version": __version__,
                "python": sys.version.split()[0],
                "started": self.began.isoformat(timespec="seconds"),
                **({"build": self.plan.build} if self.plan.build else {}),
                "plan": msgspec.to_builtins(self.plan),
                "legs": self._builds,
                "status": "running" if summary is None else summary.status,
                "summary": None if summary is None else msgspec.to_builtins(summary),
            }
        )

    def _legs(self) -> Iterator[Event]:
        """Every backend under every profile, one after the other; each gets an equal share of what is left."""
        legs = [(b, p) for b in self.plan.backends for p in self.plan.profiles]
        for position, (backend, profile) in enumerate(legs):
            if self.stop:
                return
            state = None
            if self.past is not None:
                profile = self._profile_before(self.past, backend, profile)
                if self.past.over(backend, profile):
                    continue
                state = self.past.legs.get((backend, profile))
            budget = self._budget(len(legs) - position, state)
            if budget.used_up and (state is None or not state.unfinished):
                yield self.tell(Note, level="warning", text=f"no time left for {backend} under {profile}")
                continue
            yield from self._leg(backend, profile, budget, state, first=position == 0)

    def _profile_before(self, past: Past, backend: str, profile: str) -> str:
        """The profile that a leg of a resumed run had; it may have been the backend's own."""
        before = [p for b, p in past.legs if b == backend]
        return before[0] if self.plan.own_profile and before else profile

    def _started(self, backend: str, profile: str) -> tuple[Scheduler, Hello, str]:
        """A started scheduler, what its backend says of itself, and the profile that it runs under: the one asked for, or,
        where nobody has asked for one, its own. BackendRefused when it does not stand for the profile."""
        while True:
            scheduler = self._scheduler = scheduler_of(self.plan, backend, profile)
            hello = scheduler.start()
            fits = hello.profiles
            if not fits or profile in fits:
                return scheduler, hello, profile
            scheduler.close()
            self._scheduler = None
            if not self.plan.own_profile:
                product = next((v for k, v in hello.versions.items() if k.lower() in ("soc", "product")), hello.title)
                raise BackendRefused(f"{product} does not stand for {profile}; it does for {', '.join(fits)}")
            profile = fits[0]

    def _budget(self, legs_left: int, state: Optional[LegState]) -> Budget:
        """The share of a leg of what is left; for one that goes on, of what was left when it began."""
        elapsed = self.elapsed if state is None else state.started.at
        offered = self.tally.offered if state is None else state.offered
        seconds = None if self.plan.max_time is None else max(0.0, self.plan.max_time - elapsed) / legs_left
        cases = None if self.plan.max_cases is None else max(0, self.plan.max_cases - offered) // legs_left
        return Budget(self.tally, seconds, cases, self.started + elapsed, offered)

    def _leg(
        self, backend: str, profile: str, budget: Budget, state: Optional[LegState], *, first: bool
    ) -> Iterator[Event]:
        try:
            scheduler, hello, own = self._started(backend, profile)
            if own != profile:
                text = f"backend {backend} stands for {own} here, so it runs under that profile"
                yield self.tell(Note, level="info", text=text)
            leg = Leg(self, scheduler, hello, backend, own, state)
            yield leg.told.started(hello)
            self._builds.append({"backend": backend, "profile": own, "title": hello.title, "versions": dict(hello.versions)})
            self._record(None)
            sung = state is not None and state.canary is not None and state.canary.passed
            if first and self.plan.canary and not sung:
                yield from leg.canary()
                if self.tally.canary_failed:
                    return
            yield from leg.past.reopen()
            phases = phases_of(self.plan, hello.checks)
            if phases != phases_of(self.plan):
                text = f"backend {backend} has no parameter checks, so that no call of mode {self.plan.mode} is made for it"
                yield self.tell(Note, level="warning", text=text)
            for phase in phases:
                before = leg.past.phase(phase)
                if before.finished:
                    continue
                if self.stop or (budget.used_up and before.started is None):
                    break
                yield from leg.run_phase(phase, budget)
        except BackendRefused as error:
            self.refused = error
            self.tally.refused += 1
            yield self.tell(Note, level="problem", text=f"backend {backend} cannot run here: {error}")
        except SchedulerError as error:
            lost = ", the rest of its cases was not run" if isinstance(error, DevicesLost) else ""
            yield self.tell(Note, level="problem", text=f"backend {backend}: {error}{lost}")
        finally:
            if self._scheduler is not None:
                self._scheduler.close()
            self._scheduler = None
        if self.directory.problem and not self._told_of_log:
            self._told_of_log = True
            yield self.tell(
                Note, level="warning", text=f"the log of the run is no longer written: {self.directory.problem}"
            )
