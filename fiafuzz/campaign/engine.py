"""The engine: a plan goes in, events come out.

``run_campaign(plan)`` is a generator. It does the work as its events are taken, writes each of them to the log of the
run before it hands it over, and ends with RunFinished whatever happens in between: time, Ctrl-C, SIGTERM, a backend
that no longer starts, a full disk. Findings are in the corpus before anyone hears of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from time import monotonic
from typing import Any, Optional

import msgspec

from fiafuzz import __version__
from fiafuzz.model.factors import FACTORS

from .budget import Budget
from .corpus import Corpus
from .events import Event, Note, RunFinished, RunStarted, Summary
from .leg import Leg
from .plan import Plan, check, phases_of
from .rundir import RunDir, run_directory, utc_now
from .schedulers.local import LocalScheduler
from .schedulers.protocol import BackendRefused, Scheduler, SchedulerError
from .stopping import StopFlag, signals_stop
from .tally import Tally, summarise
from .wire import Setup

__all__ = ["Campaign", "run_campaign", "summarise"]


def run_campaign(plan: Plan, *, stop: Optional[StopFlag] = None) -> Iterator[Event]:
    """Run a campaign. The first event is RunStarted, the last RunFinished.

    Before the first event: PlanError for a plan that makes no sense, CorpusError and RunDirError (both OSError) when
    nothing could be written. ``stop`` may be set by the caller at any time.
    """
    check(plan)
    campaign = Campaign(plan, stop if stop is not None else StopFlag())
    return campaign.events()


class Campaign:
    """State of one run: the plan, the clock, the run directory, the corpus, the counts and the events on their way
    out."""

    def __init__(self, plan: Plan, stop: StopFlag) -> None:
        self.plan = plan
        self.stop = stop
        self.started = monotonic()
        self.began = utc_now()
        self.corpus = Corpus(plan.corpus)
        self.corpus.check_writable()
        self.directory = RunDir(run_directory(plan, self.began))
        self.tally = Tally()
        self.case_number = 0
        self.finding_number = 0
        self.disagreements: set[tuple[str, str]] = set()
        self.refused: Optional[BackendRefused] = None
        self._scheduler: Optional[Scheduler] = None
        self._told_of_log = False

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
                yield self.tell(
                    RunStarted,
                    plan=self.plan,
                    started=self.began.isoformat(timespec="seconds"),
                    version=__version__,
                    directory=str(self.directory.path),
                    factors=tuple(FACTORS),
                )
                yield from self._legs()
            except KeyboardInterrupt:
                self.stop.set("SIGINT")
            except Exception as error:
                self.tally.problems.append(f"internal error: {type(error).__name__}: {error}")
                raise
            finally:
                if self._scheduler is not None:
                    self._scheduler.close()
                summary = self._finish()
            yield self.last_event(summary)

    def last_event(self, summary: Summary) -> Event:
        """The last event; it is in the log already."""
        return RunFinished(at=round(self.elapsed, 6), summary=summary)

    def _finish(self) -> Summary:
        """Close the books: summary, run.json, log. Runs also when the consumer has gone or everything fails."""
        self.tally.interrupted = self.stop.reason in ("SIGINT", "SIGTERM")
        self.tally.nothing = not self.tally.cases and not self.tally.problems and not self.stop
        if self.directory.problem:
            self.tally.problems.append(f"the log is not complete: {self.directory.problem}")
        self.tally.seconds = self.elapsed
        summary = self.tally.summary()
        self.tell(RunFinished, summary=summary)
        self._record(summary)
        self.directory.close()
        return summary

    def _record(self, summary: Optional[Summary]) -> None:
        self.directory.record(
            {
                "fiafuzz_run": 1,
                "version": __version__,
                "python": sys.version.split()[0],
                "started": self.began.isoformat(timespec="seconds"),
                "plan": msgspec.to_builtins(self.plan),
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
            budget = self._budget(len(legs) - position)
            if budget.used_up:
                yield self.tell(Note, level="warning", text=f"no time left for {backend} under {profile}")
                continue
            yield from self._leg(backend, profile, budget, first=position == 0)

    def _budget(self, legs_left: int) -> Budget:
        seconds = None if self.plan.max_time is None else max(0.0, self.plan.max_time - self.elapsed) / legs_left
        cases = None if self.plan.max_cases is None else max(0, self.plan.max_cases - self.tally.offered) // legs_left
        return Budget(self.tally, seconds, cases)

    def _leg(self, backend: str, profile: str, budget: Budget, *, first: bool) -> Iterator[Event]:
        setup = Setup(backend, profile, self.plan.standard, self.plan.memory_limit)
        self._scheduler = scheduler = LocalScheduler(setup, self.plan.workers, time_limit=self.plan.time_limit)
        try:
            hello = scheduler.start()
            leg = Leg(self, scheduler, hello, backend, profile)
            yield leg.started_event()
            if first and self.plan.canary:
                yield from leg.canary()
                if self.tally.canary_failed:
                    return
            for phase in phases_of(self.plan):
                if self.stop or budget.used_up:
                    break
                yield from leg.run_phase(phase, budget)
        except BackendRefused as error:
            self.refused = error
            yield self.tell(Note, level="problem", text=f"backend {backend} cannot run here: {error}")
        except SchedulerError as error:
            yield self.tell(Note, level="problem", text=f"backend {backend}: {error}")
        finally:
            scheduler.close()
            self._scheduler = None
        if self.directory.problem and not self._told_of_log:
            self._told_of_log = True
            yield self.tell(
                Note, level="warning", text=f"the log of the run is no longer written: {self.directory.problem}"
            )
