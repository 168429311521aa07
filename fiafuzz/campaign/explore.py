"""The explore phase: Hypothesis draws the cases, remembers what failed, climbs the error ratio and shrinks on its own
choices.

Hypothesis wants to call a test; the engine wants to hand out events. So Hypothesis runs in a thread of its own, which
proposes a case and waits for the answer, while the engine runs cases and yields events as always. A failure that no
known finding explains is raised to Hypothesis, which then looks for plainer ones for a while; the plainest goes on to
the campaign's own shrinker. Nothing that Hypothesis thinks of slow or unlucky generation fails a run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, Optional, Union

from fiafuzz.model.case import Case

from .events import Event, Note
from .plainness import weight_of
from .plan import Plan
from .proposals import Proposal, of_generated
from .triage import family

if TYPE_CHECKING:
    from .leg import Leg, Settled

SHRINK_CALLS = 40
"""Calls that Hypothesis gets to find plainer failures before the campaign's own shrinker takes over."""
ROUND = 500
"""Examples of one Hypothesis run; afterwards a new one begins, with another part of the seed."""
DATABASE = "hypothesis"
WAIT_SECONDS = 0.05
END_SECONDS = 5.0


class _Leave(KeyboardInterrupt):
    """Ends a Hypothesis run at once: the only kind of exception that it does not take for a failing test."""


class _Failed(AssertionError):
    """Tells Hypothesis that the case failed. One class, raised in one line, so that it takes all of them as one
    failure."""


@dataclass(frozen=True)
class _Answer:
    """What became of a proposal: whether it failed in a way that nothing explains, its error ratio, and whether to go
    on."""

    failed: bool = False
    ratio: float = 0.0
    enough: bool = False


@dataclass(frozen=True)
class _Round:
    """A Hypothesis run is over."""


@dataclass(frozen=True)
class _End:
    """Hypothesis cannot go on; why."""

    problem: str


class _Explorer:
    """The thread with Hypothesis in it. ``asked`` carries proposals out, ``answers`` what became of them; None means:
    leave."""

    def __init__(self, plan: Plan, profile: str, database: Path) -> None:
        self.asked: Queue[Union[Proposal, _Round, _End]] = Queue()
        self.answers: Queue[Optional[_Answer]] = Queue()
        self._plan, self._profile, self._database = plan, profile, database
        self._leaving = False
        self._thread = threading.Thread(target=self._work, name="fiafuzz-explore", daemon=True)

    def start(self) -> None:
        """Let it run."""
        self._thread.start()

    def stop(self) -> None:
        """End it, wherever it is; a thread in the middle of drawing a case ends with its next proposal."""
        self._leaving = True
        self.answers.put(None)
        self._thread.join(END_SECONDS)

    def _work(self) -> None:
        try:
            for number in range(1 << 16):
                self._round(number)
                if self._leaving:
                    return
                self.asked.put(_Round())
        except Exception as error:
            self.asked.put(_End(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))

    def _round(self, number: int) -> None:
        """One Hypothesis run. It ends after ROUND examples, when its failure is as plain as it gets, or when told
        to."""
        from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings, target
        from hypothesis.database import DirectoryBasedExampleDatabase
        from hypothesis.errors import Flaky

        # In this order: a seed applied last would take the database away.
        @settings(
            max_examples=ROUND,
            derandomize=False,
            deadline=None,
            database=DirectoryBasedExampleDatabase(self._database),
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            report_multiple_bugs=False,
            phases=(Phase.reuse, Phase.generate, Phase.target, Phase.shrink),
        )
        @seed((self._plan.seed << 16) + number)
        @given(_strategy(self._plan, self._profile))
        def explored(item: Any) -> None:
            answer = self._ask(Proposal(item, "valid") if isinstance(item, Case) else of_generated(item))
            if answer.ratio:
                target(min(answer.ratio, 1e6), label="error ratio")
            if answer.failed:
                raise _Failed

        with contextlib.suppress(_Failed, Flaky, _Leave):
            explored()

    def _ask(self, proposal: Proposal) -> _Answer:
        if self._leaving:
            raise _Leave
        self.asked.put(proposal)
        answer = self.answers.get()
        if answer is None or answer.enough:
            raise _Leave
        return answer


def _strategy(plan: Plan, profile: str) -> Any:
    from strategies.cases import boundary_cases, invalid_cases, valid_cases

    make: dict[str, Callable[..., Any]] = {"invalid": invalid_cases, "boundary": boundary_cases}
    if plan.mode not in make:
        return valid_cases(profile)
    return make[plan.mode](profile, select=plan.select, ignore=plan.ignore)


class _Search:
    """The engine's side: the plainest unexplained failure of the present round, and how often Hypothesis has tried
    since."""

    def __init__(self, leg: Leg) -> None:
        self.leg = leg
        self.plainest: Optional[Settled] = None
        self.calls = 0

    def take(self, proposal: Proposal) -> Generator[Event, None, _Answer]:
        """Run a proposal, yield its events, return the answer."""
        leg = self.leg
        skipped = leg.offer(proposal, "explore")
        if skipped is not None:
            yield skipped
            return _Answer()
        found = leg.wait_for(leg.job_number)
        yield from leg.restarts()
        if found is None:
            return _Answer()
        judged = found.completed.result.judged
        ratio = judged.error_ratio if judged is not None else 0.0
        if self.plainest is None and (
            not found.verdict.failed or leg.investigator.explained(found.failure) is not None
        ):
            yield from leg.settled(found)
            return _Answer(False, ratio)
        return (yield from self._failing(found, ratio))

    def _failing(self, found: Settled, ratio: float) -> Generator[Event, None, _Answer]:
        """While a failure is being made plainer: does this one fail like it?"""
        self.calls += 1
        best = self.plainest
        failed = found.verdict.failed and (best is None or _alike(found, best))
        if not failed:
            yield from self.leg.settled(found)
        elif best is None or weight_of(found.running.proposal.case) < weight_of(best.running.proposal.case):
            if best is not None:
                yield self.leg.counted(best)
            self.plainest = found
        else:
            yield self.leg.counted(found)
        return _Answer(failed, ratio, enough=self.calls > SHRINK_CALLS)

    def close(self) -> Iterator[Event]:
        """The round is over: look into its failure."""
        best, self.plainest, self.calls = self.plainest, None, 0
        if best is not None:
            yield from self.leg.settled(best)


def _alike(one: Settled, other: Settled) -> bool:
    mine, theirs = one.verdict, other.verdict
    return family(mine.code or "") == family(theirs.code or "") and mine.rule == theirs.rule


def explore(leg: Leg, end: Optional[float], cases: Optional[int]) -> Generator[Event, None, str]:
    """Run the explore phase of a leg; returns why it ended."""
    explorer = _Explorer(leg.plan, leg.profile, leg.campaign.directory.path / DATABASE)
    search = _Search(leg)
    explorer.start()
    taken, reason = 0, ""
    try:
        while not reason:
            reason = leg.over(end, cases, taken)
            try:
                asked = None if reason else explorer.asked.get(timeout=WAIT_SECONDS)
            except Empty:
                continue
            if isinstance(asked, _End):
                yield leg.campaign.tell(Note, level="warning", text=f"explore ended early: {asked.problem}")
                reason = "done"
            elif isinstance(asked, _Round):
                yield from search.close()
            elif asked is not None:
                taken += 1
                answer = yield from search.take(asked)
                explorer.answers.put(answer)
        yield from search.close()
    finally:
        explorer.stop()
    return reason
