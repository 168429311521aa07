"""What a leg of a resumed run takes over from its log: known findings, places that are done, findings to finish."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Optional

from .events import Event, FindingFound
from .failures import Failure, Flaky, Kept, Known, Repeat
from .proposals import Proposal
from .reruns import TRIES
from .resume import LegState, PhaseState, ResumeError
from .verdict import decide, gives_values
from .wire import Job

if TYPE_CHECKING:
    from .leg import Leg

REOPEN_JOB = -3_000_000


class LegPast:
    """A leg's past; an empty one in a run that is not resumed."""

    def __init__(self, leg: Leg, state: Optional[LegState]) -> None:
        self.leg = leg
        self.state = state
        if state is None:
            return
        hello, before = leg.hello, state.started
        if dict(hello.versions) != before.versions:
            names = sorted(dict(hello.versions).items() ^ before.versions.items())
            told = ", ".join(dict.fromkeys(f"{n} {before.versions.get(n, 'none')} -> {hello.versions.get(n, 'none')}" for n, _ in names))
            raise ResumeError(f"{leg.backend} is another build now ({told}); results of two builds are not mixed: start a new run")
        leg.investigator.effort.started = leg.campaign.started + before.at
        leg.investigator.repeats.known = [
            Known(k.entry.signature, k.entry.id, state.explains[k.entry.id])
            for k in {k.entry.id: k for k in state.kept.values()}.values()
        ]
        leg.told.kept = state.shrunk
        leg.work.job_number = state.jobs
        leg.investigator.effort.recall(state.effort)
        leg.told.named.update(state.named)

    @property
    def entries_done(self) -> set[str]:
        """Ids of corpus entries that need not be replayed: those that were, and those that the replay phase itself has
        added."""
        if self.state is None:
            return set()
        return self.phase("replay").entries | {k.entry.id for k in self.state.kept.values() if k.new}

    def phase(self, name: str) -> PhaseState:
        """What is recorded of a phase."""
        return PhaseState() if self.state is None else self.state.phases.get(name, PhaseState())

    def end_of(self, state: PhaseState, seconds: Optional[float]) -> Optional[float]:
        """When a phase has used up its time, on the clock of the run."""
        if state.started is None:
            return None if seconds is None else monotonic() + seconds
        given = state.started.seconds
        return None if given is None else self.leg.campaign.started + state.started.at + given

    def start_of(self, state: PhaseState) -> float:
        """When a phase began."""
        return monotonic() if state.started is None else self.leg.campaign.started + state.started.at

    def placed(self, source: Iterator[Proposal], state: PhaseState, skipped: int) -> Iterator[Proposal]:
        """Proposals with their places, without those that are done; ``skipped``: how many were not even made. ResumeError
        when they are not those of the log."""
        leg = self.leg
        leg.work.job_number += skipped
        for place, proposal in enumerate(source, skipped + 1):
            if place == state.last[0] and proposal.case.digest != state.last[1]:
                raise ResumeError("the same seed gives other cases now than in the log (fiafuzz has changed); start a new run")
            if place <= state.until:
                leg.work.job_number += 1  # what is found depends on how many cases came before
                if leg.campaign.stop:
                    return
                continue
            if place in state.ahead:
                leg.work.job_number += 1
                continue
            yield replace(proposal, place=place)

    # ---- findings that were found, and not kept before the run ended ----------------------------------------------

    @property
    def explored(self) -> dict[tuple[int, str], int]:
        """Open findings whose cases the explore phase will ask for again: place and digest of the case -> number."""
        state = self.state
        return {} if state is None else {(place, state.open[n].case.digest): n for place, n in state.explored.items()}

    def reopen(self, *, explored: bool = False) -> Iterator[Event]:
        """Look into the findings that the log leaves open; each keeps its number. Those that explore asks for again are left to
        it; ``explored``: it is over, and has not asked for these."""
        if self.state is None:
            return
        waiting = set(self.state.explored.values())
        for number, found in sorted(self.state.open.items()):
            if self.leg.campaign.stop:
                return
            if explored == (number in waiting):
                yield from self._reopen(number, found)

    def _reopen(self, number: int, found: FindingFound) -> Iterator[Event]:
        failure = self._failing_again(found)
        if failure is None:
            if not self.leg.campaign.stop:  # else it had no chance to
                yield self.leg.told.flaky(number, found.case, found.verdict, 1, TRIES + 1)
        else:
            yield from self._finish(number, found, failure)

    def _finish(self, number: int, found: FindingFound, failure: Failure) -> Iterator[Event]:
        leg = self.leg
        for step in leg.investigator.look_into(failure):
            if isinstance(step, Kept):
                yield leg.tell_kept(number, step)
            elif isinstance(step, Repeat):
                yield leg.told.repeated(number, step.known, found.case)
            elif isinstance(step, Flaky):  # a step Confirmed is in the log already
                yield leg.told.flaky(number, found.case, found.verdict, step.failed, step.tries)

    def settled_again(self, number: int, failure: Optional[Failure]) -> Iterator[Event]:
        """Events of an open finding whose case was run again; None: it did not fail."""
        found = self._taken_up(number)
        if failure is None:
            yield self.leg.told.flaky(number, found.case, found.verdict, 1, 2)
            return
        known = self.leg.investigator.repeats.explained(failure)
        if known is not None:
            yield self._repeats(number, known, found)
        else:
            yield from self._finish(number, found, failure)

    def explained(self, number: int, known: Known) -> Event:
        """The event of an open finding that a known one explains."""
        return self._repeats(number, known, self._taken_up(number))

    def _taken_up(self, number: int) -> FindingFound:
        """An open finding that explore has asked for again, so that it is not looked into once more when explore is over."""
        assert self.state is not None
        self.state.explored = {place: one for place, one in self.state.explored.items() if one != number}
        return self.state.open[number]

    def _repeats(self, number: int, known: Known, found: FindingFound) -> Event:
        known.count += 1
        return self.leg.told.repeated(number, known, found.case)

    def _failing_again(self, found: FindingFound) -> Optional[Failure]:
        """The failure of an open finding as a run of its case shows it; None when it does not come again."""
        leg = self.leg
        values = gives_values(found.foreseen)
        runs = 5 if found.verdict.code == "F105" else 1
        broken = found.verdict.code == "F106"
        for attempt in range(TRIES):
            job = Job(
                REOPEN_JOB - attempt,
                found.case,
                judge=values,
                runs=runs if values else 1,
                relations=values and broken,
                relation=found.verdict.rule if broken else None,
                before=found.before,
            )
            done = leg.scheduler.run(job, fresh=attempt > 0 or bool(found.before), time_limit=leg.plan.time_limit)
            if done.result.deadly:
                leg.investigator.effort.count_death(done.seconds)
            verdict = decide(found.foreseen, done.result)
            if verdict.failed and len(done.result.before) == len(found.before):
                return Failure(found.case, found.foreseen, verdict, done.result, runs, before=found.before)
            if leg.campaign.stop:
                break
        return None

    def is_ours(self, kept: Kept) -> bool:
        """Whether an entry that the corpus has already was put there by this very run, which ended before it could say so."""
        entry, campaign = kept.entry, self.leg.campaign
        return (
            campaign.past is not None
            and not kept.new
            and entry.seed == self.leg.plan.seed
            and entry.first_seen == campaign.began.isoformat(timespec="seconds")
            and all(k.entry.id != entry.id for k in campaign.tally.findings.values() if not k.interrupted)
        )
