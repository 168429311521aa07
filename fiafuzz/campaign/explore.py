"""The explore phase: Hypothesis draws the cases, remembers what failed, climbs the error ratio and shrinks on its own
choices.

Hypothesis wants to call a test; the engine wants to hand out events. So Hypothesis runs in a thread of its own, which
proposes a case and waits for the answer, while the engine runs cases and yields events as always. A failure that no
known finding explains is raised to Hypothesis, which then looks for plainer ones for a while; the plainest goes on to
the campaign's own shrinker. Nothing that Hypothesis thinks of slow or unlucky generation fails a run.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, Optional, Union

from fiafuzz.model.case import Case

from .events import CaseDone, Event, FindingKept, FindingRepeated, Note, RoundDone
from .failures import Known
from .plainness import weight_of
from .plan import Plan
from .proposals import Proposal, of_generated
from .resume import PhaseState
from .rundir import EXAMPLES
from .triage import family, features_of, may_explain

if TYPE_CHECKING:
    from .examples import Examples
    from .in_work import Settled
    from .leg import Leg

SHRINK_CALLS = 40
"""Calls that Hypothesis gets to find plainer failures before the campaign's own shrinker takes over."""
ROUND = 500
"""Examples of one Hypothesis run; afterwards a new one begins, with another part of the seed."""
ROUND_SPAN = 1 << 20
"""Places of a round: that of its first proposal is the number of the round times this, and one."""
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

    number: int


@dataclass(frozen=True)
class _End:
    """Hypothesis cannot go on; why."""

    problem: str


class _Explorer:
    """The thread with Hypothesis in it. ``asked`` carries proposals out, ``answers`` what became of them; None means:
    leave."""

    def __init__(self, plan: Plan, profile: str, database: Optional[Examples], first: int, accepted: bool) -> None:
        self.asked: Queue[Union[Proposal, _Round, _End]] = Queue()
        self.answers: Queue[Optional[_Answer]] = Queue()
        self._plan, self._profile, self._database, self._first, self._accepted = plan, profile, database, first, accepted
        self._place = 0
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
            for number in range(self._first, 1 << 16):
                self._place = number * ROUND_SPAN
                self._round(number)
                if self._leaving:
                    return
                self.asked.put(_Round(number))
                if self.answers.get() is None:
                    return
        except Exception as error:
            self.asked.put(_End(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))

    def _round(self, number: int) -> None:
        """One Hypothesis run. It ends after ROUND examples, when its failure is as plain as it gets, or when told
        to."""
        from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings, target
        from hypothesis.errors import Flaky

        # In this order: a seed applied last would take the database away.
        @settings(
            max_examples=ROUND,
            derandomize=False,
            deadline=None,
            database=self._database,
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            report_multiple_bugs=False,
            phases=(Phase.reuse, Phase.generate, Phase.target, Phase.shrink),
        )
        @seed((self._plan.seed << 16) + number)
        @given(_strategy(self._plan, self._profile, self._accepted))
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
        self._place += 1
        self.asked.put(replace(proposal, place=self._place))
        answer = self.answers.get()
        if answer is None or answer.enough:
            raise _Leave
        return answer


def _strategy(plan: Plan, profile: str, accepted: bool) -> Any:
    from strategies.cases import boundary_cases, invalid_cases, valid_cases

    if plan.mode == "invalid":
        return invalid_cases(profile, select=plan.select, ignore=plan.ignore)
    if plan.mode == "boundary":
        return boundary_cases(profile, select=plan.select, ignore=plan.ignore, accepted=accepted)
    return valid_cases(profile)


class _Search:
    """The engine's side: the plainest unexplained failure of the present round, the others like it, and how often
    Hypothesis has tried since. What the log of a resumed run has is answered from there."""

    def __init__(self, leg: Leg, state: PhaseState) -> None:
        self.leg = leg
        self.recorded = dict(state.explored)
        self.open = leg.past.explored
        """Findings that the log leaves open, by place and digest: their cases are run again, as if they had not been."""
        self.closing = any(found.sought for found in self.recorded.values())
        """Whether the log ends where a round was over and its failures were told one by one. Those that it lacks are the rest of
        them: whether something known explains them was asked before, when less was known."""
        leg.work.job_number += state.jobs - len(self.recorded)
        self.plainest: Optional[Settled] = None
        self.told_entry = ""
        """The entry of the plainest failure where that has been told already; ``plainest`` is None then."""
        self.weight: Any = None
        self.sought: Optional[tuple[str, Optional[str]]] = None
        self.alike: deque[Settled] = deque()
        self.calls = 0

    def recall(self, proposal: Proposal) -> Optional[_Answer]:
        """The answer to a proposal that was run before the run was resumed; None for one that was not."""
        found = self.recorded.pop(proposal.place, None)
        if (proposal.place, proposal.case.digest) in self.open:
            return None
        if found is None or found.digest != proposal.case.digest:
            return None
        self.leg.work.job_number += 1
        if self.sought is None and not found.sought:
            return _Answer(False, found.ratio)
        self.calls += 1
        if found.sought:
            if self._plainer(proposal.case):
                self._displace(None, found.entry)
            self.sought = _kind(found.verdict)
        return _Answer(found.sought, found.ratio, enough=self.calls > SHRINK_CALLS)

    def more_recorded(self, last: int) -> bool:
        """Whether the log has cases after a place: they cost nothing, and the plainest failure may be among them."""
        return any(place > last for place in self.recorded)

    def take(self, proposal: Proposal) -> Generator[Event, None, _Answer]:
        """Run a proposal, yield its events, return the answer."""
        leg = self.leg
        number = self.open.pop((proposal.place, proposal.case.digest), 0)
        if number:
            leg.work.hand_out(proposal, "explore")
        elif (skipped := leg.offer(proposal, "explore")) is not None:
            yield skipped
            return _Answer()
        found = leg.work.wait_for(leg.work.job_number)
        yield from leg.restarts()
        if found is None:
            return _Answer()
        found = replace(found, running=replace(found.running, number=number))
        judged = found.completed.result.judged
        ratio = round(judged.error_ratio, 6) if judged is not None else 0.0  # as the log has it
        if self.sought is None and (not found.verdict.failed or (not self.closing and self._explained(found))):
            yield from leg.settled(found)
            return _Answer(False, ratio)
        return (yield from self._failing(found, ratio))

    def _explained(self, found: Settled) -> bool:
        return self.leg.investigator.repeats.explained(found.failure) is not None

    def _failing(self, found: Settled, ratio: float) -> Generator[Event, None, _Answer]:
        """While a failure is being made plainer: does this one fail like it?"""
        self.calls += 1
        failed = found.verdict.failed and (self.sought is None or _kind(found.verdict) == self.sought)
        if not failed:
            yield from self.leg.settled(found)
        else:
            self.sought = _kind(found.verdict)
            if self._plainer(found.running.proposal.case):
                self._displace(found, "")
            else:
                self.alike.append(found)
        return _Answer(failed, ratio, enough=self.calls > SHRINK_CALLS)

    def _displace(self, plainest: Optional[Settled], told_entry: str) -> None:
        """Another failure is the plainest now."""
        if self.plainest is not None:
            self.alike.append(self.plainest)
        self.plainest, self.told_entry = plainest, told_entry

    def _plainer(self, case: Case) -> bool:
        """Whether a failing case is the plainest so far."""
        weight = weight_of(case)
        if self.weight is not None and not weight < self.weight:
            return False
        self.weight = weight
        return True

    def close(self) -> Iterator[Event]:
        """The round is over: look into its plainest failure; the others like it are the same if they have its features."""
        best = _as_sought(self.plainest) if self.plainest is not None else None
        alike = [_as_sought(found) for found in self.alike]
        entry = self.told_entry
        self.plainest, self.weight, self.sought, self.calls, self.told_entry, self.closing = None, None, None, 0, "", False
        self.alike.clear()
        if best is not None:
            for event in self.leg.settled(best):
                entry = _entry_of(event) or entry
                yield event
        known = next((k for k in self.leg.investigator.repeats.known if k.entry == entry), None)
        for found in alike:
            if self.leg.campaign.stop:
                return  # it will be found again
            number = found.running.number
            if known is None or not _same(known, found):
                yield from self.leg.settled(found)
            elif number:
                yield self.leg.past.explained(number, known)
            else:
                known.count += 1
                yield self.leg.told.case(found.running, found.verdict, found.completed, known)


def _as_sought(found: Settled) -> Settled:
    """A failure marked as one that Hypothesis was told of."""
    return replace(found, running=replace(found.running, proposal=replace(found.running.proposal, sought=True)))


def _kind(verdict: Any) -> tuple[str, Optional[str]]:
    """What makes failures alike while Hypothesis looks for plainer ones."""
    return family(verdict.code or ""), verdict.rule


def _entry_of(event: Event) -> Optional[str]:
    """The corpus entry that a failure has become."""
    if isinstance(event, FindingKept):
        return event.entry.id
    if isinstance(event, FindingRepeated):
        return event.entry
    return event.repeats if isinstance(event, CaseDone) else None


def _same(known: Known, found: Settled) -> bool:
    failure = found.failure
    code, features = failure.verdict.code or "", features_of(failure.case)
    return may_explain(known.signature, code, failure.verdict.rule, failure.error, features)


@contextlib.contextmanager
def _homeless() -> Iterator[None]:
    """Hypothesis keeps caches of its own in .hypothesis below the directory that the user happens to be in, and temporary files of
    them when it is killed. It gets a directory that cannot be made, and does without; examples have their own place."""
    from hypothesis import configuration

    name = "__hypothesis_home_directory"
    before = getattr(configuration, name, None)
    if before is None and not os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY"):
        configuration.set_hypothesis_home_dir(os.path.join(os.devnull, "hypothesis"))
    try:
        yield
    finally:
        configuration.set_hypothesis_home_dir(before)


@contextlib.contextmanager
def _sealed() -> Iterator[None]:
    """Hypothesis now and then draws constants that it finds in the sources of modules which happen to be imported and are not
    installed. The same seed must give the same cases, resumed or not and whatever else the process has loaded, so it finds none.
    There is no setting for that; a version without these names does no such thing."""
    from hypothesis.internal.conjecture import providers as module

    providers: Any = module
    names = ("_get_local_constants", "CONSTANTS_CACHE", "Constants")
    if not all(hasattr(providers, name) for name in names):
        yield
        return
    found, cache, nothing = providers._get_local_constants, providers.CONSTANTS_CACHE, providers.Constants()
    providers._get_local_constants, providers.CONSTANTS_CACHE = lambda: nothing, type(cache)(1024)
    try:
        yield
    finally:
        providers._get_local_constants, providers.CONSTANTS_CACHE = found, cache


def explore(
    leg: Leg, end: Optional[float], cases: Optional[int], state: PhaseState
) -> Generator[Event, None, str]:
    """Run the explore phase of a leg, on from what ``state`` has of it; returns why it ended."""
    with _homeless(), _sealed():
        return (yield from _explore(leg, end, cases, state))


def _explore(
    leg: Leg, end: Optional[float], cases: Optional[int], state: PhaseState
) -> Generator[Event, None, str]:
    from .examples import open_examples

    examples = open_examples(leg.plan, leg.backend, leg.profile, leg.campaign.directory.path / EXAMPLES)
    explorer = _Explorer(leg.plan, leg.profile, examples, state.round, leg.accepted)
    search = _Search(leg, state)
    explorer.start()
    taken, reason, asked_last = state.taken, "", 0
    try:
        while not reason:
            yield from _tell_problem(leg, examples)
            reason = leg.over(end, cases, taken)
            if reason == "cases" and search.more_recorded(asked_last):
                reason = ""
            try:
                asked = None if reason else explorer.asked.get(timeout=WAIT_SECONDS)
            except Empty:
                continue
            if isinstance(asked, _End):
                yield leg.campaign.tell(Note, level="warning", text=f"explore ended early: {asked.problem}")
                reason = "done"
            elif isinstance(asked, _Round):
                yield from search.close()
                if leg.campaign.stop:
                    continue  # what was left of the round must be found again
                if examples is not None:
                    examples.commit()
                yield leg.campaign.tell(RoundDone, backend=leg.backend, profile=leg.profile, round=asked.number)
                explorer.answers.put(_Answer())
            elif asked is not None:
                asked_last = asked.place
                answer = search.recall(asked)
                if answer is None:
                    taken += (asked.place, asked.case.digest) not in search.open  # such a one is counted already
                    answer = yield from search.take(asked)
                explorer.answers.put(answer)
        yield from search.close()
        if leg.campaign.stop:
            reason = "stopped"  # even at the very end: a resumed run finds what was left
        if examples is not None and reason != "stopped":
            examples.commit()
        yield from _tell_problem(leg, examples)
    finally:
        explorer.stop()
    return reason


def _tell_problem(leg: Leg, examples: Optional[Examples]) -> Iterator[Event]:
    """Say, once, why the example database is not used any more."""
    if examples is not None and examples.problem:
        yield leg.campaign.tell(Note, level="warning", text=f"example database: {examples.problem}")
        examples.problem = None
