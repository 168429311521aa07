"""A case that has failed is run again: does it come again, does it fail alone in a fresh worker, does another case fail like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

import msgspec

from fiafuzz.model.case import Case

from .effort import Effort
from .failures import Failure
from .plan import Plan
from .results import Result
from .schedulers.protocol import Completed, Scheduler
from .triage import family
from .verdict import FINDING, PROCESS_CODES, Foreseen, Verdict, decide, foresee, gives_values
from .wire import Job

TRIES = 4
"""Runs that a failure gets to come again."""
HANG_LIMITS = (1.0, 3.0)
"""Seconds that a case may take while a hang is shrunk, at least and at most: its cases are small ones."""
CONFIRM_HANG = 4.0
"""Seconds after which the shrunk case of a hang is taken to hang; the case itself has used up the whole limit twice."""
SLOW_FACTOR = 5.0
"""A case that takes this many times as long as the slowest ordinary case is suspected to hang."""


class Gone(Exception):
    """The device that ran a case again was given up afterwards; ``failure`` is that case."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.gone)
        self.failure = failure


def lost_with(case: Case, expected: Foreseen, result: Result, runs: int, gone: str) -> Failure:
    """The failure (F303) of a case after which its device no longer answered a known-good call."""
    before = decide(expected, result)
    said = before.text or result.message.split("\n")[0] or result.kind
    verdict = Verdict(FINDING, "F303", before.rule, f"after this call ({said}) its device was given up: {gone}")
    return Failure(case, expected, verdict, msgspec.structs.replace(result, kind="lost"), runs, gone)


def same_failure(found: Failure, failure: Failure) -> bool:
    """Whether one failure is of the same family, error and rule as another (where a process dies, the rule says nothing)."""
    if not found.verdict.failed:
        return False
    mine, theirs = found.verdict, failure.verdict
    if family(mine.code or "") != family(theirs.code or "") or found.error != failure.error:
        return False
    return mine.rule == theirs.rule or mine.code in PROCESS_CODES


class Reruns:
    """Runs cases for the investigator of one backend under one profile, and counts what that takes as its effort.

    ``stop`` ends further tries early. Whatever is run here may raise Gone, or what the scheduler raises.
    """

    def __init__(self, scheduler: Scheduler, profile: str, plan: Plan, effort: Effort, stop: Callable[[], bool]) -> None:
        self.scheduler = scheduler
        self.profile = profile
        self.plan = plan
        self.effort = effort
        self.stop = stop
        self.slowest = 0.0
        """Seconds of the slowest case that ended in time."""
        self._job = -1

    def again(self, failure: Failure) -> tuple[Optional[Failure], int]:
        """Run a failure again until it comes again; the failure as it came, and how often it failed in all.

        A difference between two runs of one case is what F105 is about, so a wrong value that does not come again is
        looked at for that too.
        """
        runs = max(failure.runs, 3 if failure.verdict.code == "F105" else 1)
        for attempt in range(TRIES):
            if attempt and failure.foreseen.verdict == "accept":
                runs = 5
            deadly = failure.result.deadly
            found = self.run(failure, failure.case, failure.foreseen, runs, fresh=deadly, pictures=not deadly)
            if same_failure(found, failure):
                return found, 2
            if found.verdict.code == "F105":
                return Failure(found.case, found.foreseen, found.verdict, found.result, 5), 2
            if self.stop():
                break
        return None, 1

    def alone(self, case: Case, failure: Failure) -> Optional[Failure]:
        """The failure of a case alone in a fresh worker; None when it does not come."""
        for _ in range(2 if failure.verdict.code == "F105" else 1):
            limit = (
                min(self.plan.time_limit, max(CONFIRM_HANG, SLOW_FACTOR * self.slowest))
                if failure.verdict.code == "F302"
                else None
            )
            expected = foresee(case, self.profile)
            found = self.run(failure, case, expected, failure.runs, fresh=True, time_limit=limit, pictures=True)
            if same_failure(found, failure):
                return found
        return None

    def fails(self, case: Case, failure: Failure, time_limit: Optional[float]) -> bool:
        """Whether a case fails as ``failure`` does, in a worker that lives on."""
        found = self.run(failure, case, foresee(case, self.profile), failure.runs, time_limit=time_limit)
        return same_failure(found, failure)

    def limit_of(self, failure: Failure) -> Optional[float]:
        """Seconds that a case may take while a failure is made small; None: as long as any."""
        if failure.verdict.code != "F302":
            return None
        low, high = HANG_LIMITS
        return min(self.plan.time_limit, high, max(low, SLOW_FACTOR * self.slowest))

    def run(
        self,
        like: Failure,
        case: Case,
        expected: Foreseen,
        runs: int,
        *,
        fresh: bool = False,
        time_limit: Optional[float] = None,
        pictures: bool = False,
        before: tuple[Case, ...] = (),
    ) -> Failure:
        """Run a case, after others if need be, to see whether it fails like ``like``."""
        self._job -= 1
        valid = gives_values(expected)
        job = Job(
            self._job,
            case,
            judge=valid,
            runs=runs if valid else 1,
            relations=valid and like.verdict.code == "F106",
            relation=like.verdict.rule if like.verdict.code == "F106" else None,
            pictures=pictures,
            before=before,
        )
        self.effort.runs += 1 + len(before)
        done: Completed = self.scheduler.run(job, fresh=fresh, time_limit=time_limit)
        result = done.result
        if result.deadly:
            self.effort.count_death(done.seconds)
        gone = self.scheduler.given_up(done.worker) if result.deadly or result.fatal else ""
        if gone:
            raise Gone(lost_with(case, expected, result, runs, gone))
        return Failure(case, expected, decide(expected, result), result, runs)
