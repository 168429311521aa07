"""From a failing case to a corpus entry: is it known, does it come again, what is the smallest form of it, where is it
kept.

A failure is run again at once; what does not come again is flaky. What does is shrunk. If it shrinks to a signature
that is known, it is a repeat; if not, the shrunk case must fail once more, alone in a fresh worker, before it is kept.
To spare shrinking every repeat, a failure whose features contain those of a known finding is taken as the same fault
after one run: the case without its other features (but with its sizes) must fail too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Optional

import msgspec

from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene

from .codes import title
from .corpus import Corpus, CorpusError, Entry, Got, reproduce_line
from .effort import Effort
from .failures import Confirmed, Failure, Flaky, Kept, Known, Repeat, Step
from .plain_starts import plain_faults
from .plan import Plan
from .results import Result
from .schedulers.protocol import Completed, Scheduler, SchedulerError
from .sequence_look import SequenceLook, kind_of, signature_after
from .shrink import shrink, stripped
from .triage import Signature, describe, family, features_of, may_explain, signature_of
from .verdict import AFTER_CALLS, FINDING, PROCESS_CODES, Foreseen, Verdict, decide, foreseen, gives_values
from .wire import Job

TRIES = 4
"""Runs that a failure gets to come again."""
PROOF_SHARE = 0.1
"""Share of the run so far that may go into checking whether repeats are repeats."""
SHRINK_SHARE = 0.3
"""Share of the run so far above which doubtful repeats are counted as repeats without being shrunk."""
UNTIMED = 6.0
"""How many times as long a shrink may take where no time bounds the run: the number of its runs bounds it, so that it comes
to the same call on a slower machine; this is for calls that take seconds."""
HANG_LIMITS = (1.0, 3.0)
"""Seconds that a case may take while a hang is shrunk, at least and at most: its cases are small ones."""
CONFIRM_HANG = 4.0
"""Seconds after which the shrunk case of a hang is taken to hang; the case itself has used up the whole limit twice."""
SLOW_FACTOR = 5.0
"""A case that takes this many times as long as the slowest ordinary case is suspected to hang."""


class _Gone(Exception):
    """The device that ran a case again was given up afterwards; ``failure`` is that case."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.gone)
        self.failure = failure


@dataclass
class Investigator:
    """Looks into the failures of one backend under one profile.

    ``environment`` goes into entries; ``stop`` ends shrinking early; ``now`` gives the time stamp of entries.
    """

    scheduler: Scheduler
    backend: str
    profile: str
    plan: Plan
    corpus: Corpus
    environment: Mapping[str, str]
    stop: Callable[[], bool]
    now: Callable[[], str]
    keep: Optional[Callable[[Entry], Path]] = None
    """Puts an entry into the corpus (None: Corpus.add)."""
    known: list[Known] = field(default_factory=list)
    slowest: float = 0.0
    """Seconds of the slowest case that ended in time."""
    death_seconds: float = 0.0
    effort: Effort = field(init=False)
    _confirmed: Optional[Failure] = None
    """The failure that is being looked into, once it has come again."""
    _job: int = -1

    def __post_init__(self) -> None:
        self.effort = Effort(timed=self.plan.max_time is not None)
        self._sequences = SequenceLook(self)

    # ---- is it known -------------------------------------------------------------------------------

    def explained(self, failure: Failure) -> Optional[Known]:
        """The known finding that explains this failure, None when it deserves a look of its own."""
        features = features_of(failure.case)
        code, rule = failure.verdict.code or "", failure.verdict.rule
        doubtful: Optional[Known] = None
        for known in self.known:
            if not may_explain(known.signature, code, rule, failure.error, features):
                continue
            if known.signature.code in PROCESS_CODES or (not known.signature.features and known.signature.rule):
                return known
            if code == "F106" and known.signature.code != code:
                return known
            if len(known.signature.features) == len(features) or self.effort.share("proof") > PROOF_SHARE:
                return known
            if self._same_without_the_rest(failure, known.signature):
                known.proved += 1
                return known
            doubtful = doubtful or known
        if failure.result.deadly:
            doubtful = doubtful or self._alike(failure)
        if doubtful is not None and self.effort.share("shrink") > SHRINK_SHARE:
            return doubtful
        return None

    def _alike(self, failure: Failure) -> Optional[Known]:
        """A known finding of the same code and error, whatever its features."""
        alike = (k for k in self.known if k.signature.code == failure.verdict.code and k.signature.error == failure.error)
        return next(alike, None)

    def deadly(self, case: Case) -> Optional[Known]:
        """The known crash or hang that this case is likely to cause again, when deaths have cost too much time
        already."""
        if self.effort.share_of_time(self.death_seconds) < 0.25:
            return None
        features = set(features_of(case))
        return next(
            (k for k in self.known if k.signature.code in PROCESS_CODES and set(k.signature.features) <= features), None
        )

    def _same_without_the_rest(self, failure: Failure, signature: Signature) -> bool:
        """Whether the failure stays when all features but those of the signature are taken away."""
        with self.effort.of("proof"):
            case = stripped(failure.case, dict(signature.features), self._acceptable(failure))
            try:
                return case is not None and case != failure.case and self._fails(case, failure, None)
            except _Gone:
                return False

    def _acceptable(self, failure: Failure) -> Callable[[Case], bool]:
        return lambda case: self._foresee(case).verdict == failure.foreseen.verdict

    # ---- does it come again --------------------------------------------------------------------------

    def look_into(self, failure: Failure) -> Iterator[Step]:
        """Confirm, shrink and keep one failure. Yields Flaky, or Repeat, or Confirmed and then Kept (or Flaky after
        all). A failure that took its device with it is kept as it is: nothing is run again that might take another. So is
        one that has come again when no worker is left, or the user is out of patience; then the exception goes on.

        A run that is asked to stop keeps what it is shrinking as it is by then, marked as interrupted; where that looks like a
        known finding it yields nothing more, since only a whole shrink can tell."""
        told = False
        gone: Optional[Failure] = failure if failure.gone else None
        end: Optional[BaseException] = None
        self._confirmed = None
        if gone is None:
            try:
                for step in self._look(failure):
                    told = told or isinstance(step, Confirmed)
                    yield step
                return
            except _Gone as last:
                gone = last.failure
            except (SchedulerError, KeyboardInterrupt) as cut:
                if self._confirmed is None:
                    raise
                gone, end = self._confirmed, cut
        signature = self._signature(gone)
        known, interrupted = self._known_by(signature), isinstance(end, KeyboardInterrupt)
        if not (known is not None and interrupted):
            if not told:
                yield Confirmed(gone)
            yield Repeat(gone, known) if known is not None else self._keep(signature, gone, gone, 0, 0.0, interrupted)
        if end is not None:
            raise end

    def _look(self, failure: Failure) -> Iterator[Step]:
        """The steps for a failure that stood behind others, or alone; one that does not come again alone is tried once more behind
        those that its worker had run."""
        if failure.before:
            yield from self._sequences.look(failure)
            return
        told = False
        for step in self._look_closely(failure):
            told = told or isinstance(step, Confirmed)
            if isinstance(step, Flaky) and failure.recent:
                yield from self._sequences.look_back(failure, step, told=told)
            else:
                yield step

    def _signature(self, failure: Failure) -> Signature:
        if failure.verdict.code == AFTER_CALLS:
            return signature_after(self.backend, failure, kind_of(decide(failure.foreseen, failure.result), failure.result))
        return signature_of(self.backend, failure.verdict, failure.error, failure.case)

    def _look_closely(self, failure: Failure) -> Iterator[Step]:
        again, failed = self._again(failure)
        if again is None:
            yield Flaky(failure, failed, TRIES + 1)
            return
        failure, began = again, monotonic()
        self._confirmed = failure
        early = failure.result.deadly and not self._alike(failure)
        if early:  # shrinking takes long where every success is a death: first of all it is told
            yield Confirmed(failure)
        with self.effort.of("shrink"):
            case, runs, cut = self._shrunk(failure)
        known = self._known_by(signature_of(self.backend, failure.verdict, failure.error, case))
        if known is not None:
            if not cut:
                yield Repeat(failure, known)
            return
        if not early:
            yield Confirmed(failure)
        with self.effort.of("shrink"):
            final = self._alone(case, failure)
            if final is None and case != failure.case:
                final = self._alone(failure.case, failure)
        if final is None:
            yield Flaky(failure, failed, TRIES + 1)
            return
        signature = signature_of(self.backend, final.verdict, final.error, final.case)
        known = self._known_by(signature)
        if known is None:
            yield self._keep(signature, failure, final, runs, monotonic() - began, cut)
        elif not cut:
            yield Repeat(failure, known)

    def _shrunk(self, failure: Failure) -> tuple[Case, int, bool]:
        """The smallest case that fails in the same way, the runs that it took, and whether the run was asked to stop before it was
        found."""
        if not self.plan.shrink:
            return failure.case, 0, False
        limit = self._hang_limit() if failure.verdict.code == "F302" else None
        found = shrink(
            failure.case,
            lambda c: self._fails(c, failure, limit),
            self.profile,
            max_runs=self.plan.shrink_runs,
            max_seconds=self.plan.shrink_seconds * (1.0 if self.effort.timed else UNTIMED),
            stop=self.stop,
            starts=self._starts(failure),
            dear=failure.result.deadly,
        )
        return found.case, found.runs, found.cut_short and self.stop()

    def _starts(self, failure: Failure) -> Iterator[Case]:
        """Plain calls that break the same rule: where a failure is about a rule, they may fail as well."""
        if failure.verdict.rule is None or failure.foreseen.verdict == "accept":
            return
        yield from plain_faults(self.profile, failure.verdict.rule)

    def _known_by(self, signature: Signature) -> Optional[Known]:
        for known in self.known:
            if known.signature == signature:
                known.count += 1
                return known
        return None

    def _again(self, failure: Failure) -> tuple[Optional[Failure], int]:
        """Run a failure again until it comes again; the failure as it came, and how often it failed in all.

        A difference between two runs of one case is what F105 is about, so a wrong value that does not come again is
        looked at for that too.
        """
        runs = max(failure.runs, 3 if failure.verdict.code == "F105" else 1)
        for attempt in range(TRIES):
            if attempt and failure.foreseen.verdict == "accept":
                runs = 5
            found = self._run(
                failure, failure.case, failure.foreseen, runs, fresh=failure.result.deadly, pictures=not failure.result.deadly
            )
            if self._same_failure(found, failure):
                return found, 2
            if found.verdict.code == "F105":
                return Failure(found.case, found.foreseen, found.verdict, found.result, 5), 2
            if self.stop():
                break
        return None, 1

    def _alone(self, case: Case, failure: Failure) -> Optional[Failure]:
        """The failure of a case alone in a fresh worker; None when it does not come."""
        for _ in range(2 if failure.verdict.code == "F105" else 1):
            limit = (
                min(self.plan.time_limit, max(CONFIRM_HANG, SLOW_FACTOR * self.slowest))
                if failure.verdict.code == "F302"
                else None
            )
            found = self._run(failure, case, self._foresee(case), failure.runs, fresh=True, time_limit=limit, pictures=True)
            if self._same_failure(found, failure):
                return found
        return None

    def _fails(self, case: Case, failure: Failure, time_limit: Optional[float]) -> bool:
        found = self._run(failure, case, self._foresee(case), failure.runs, time_limit=time_limit)
        return self._same_failure(found, failure)

    def _same_failure(self, found: Failure, failure: Failure) -> bool:
        if not found.verdict.failed:
            return False
        mine, theirs = found.verdict, failure.verdict
        if family(mine.code or "") != family(theirs.code or "") or found.error != failure.error:
            return False
        return mine.rule == theirs.rule or mine.code in PROCESS_CODES

    def _foresee(self, case: Case) -> Foreseen:
        from oracles.constraints.predict import predict

        return foreseen(predict(case, self.profile, scene=Scene(case)))

    def _run(
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
            self.death_seconds += done.seconds + 3.0
        gone = self.scheduler.given_up(done.worker) if result.deadly or result.fatal else ""
        if gone:
            raise _Gone(lost_with(case, expected, result, runs, gone))
        return Failure(case, expected, decide(expected, result), result, runs)

    def _hang_limit(self) -> float:
        low, high = HANG_LIMITS
        return min(self.plan.time_limit, high, max(low, SLOW_FACTOR * self.slowest))

    # ---- where it is kept ------------------------------------------------------------------------------

    def _keep(
        self, signature: Signature, found: Failure, final: Failure, runs: int, seconds: float, interrupted: bool = False
    ) -> Kept:
        entry = self._entry(signature, found, final, runs, interrupted)
        self.known.append(Known(signature, entry.id, 1))
        try:
            path = str((self.keep or self.corpus.add)(entry))
            return Kept(found, entry, True, path, runs, seconds, interrupted=interrupted)
        except FileExistsError:
            there = self.corpus.find(entry.id)
            return Kept(found, there or entry, False, str(self.corpus.root), runs, seconds, interrupted=interrupted)
        except CorpusError as error:
            return Kept(found, entry, True, None, runs, seconds, str(error), interrupted)

    def _entry(self, signature: Signature, found: Failure, final: Failure, runs: int, interrupted: bool) -> Entry:
        judged = final.result.judged
        got = Got(
            final.result.kind,
            final.result.code,
            final.result.stage,
            final.verdict.text or final.result.message.split("\n")[0],
            final.result.signal,
            judged.error_ratio if judged else 0.0,
            judged.worst if judged else (),
            final.result.pictures,
        )
        return Entry(
            id=signature.id,
            title=title(signature.code),
            signature=signature,
            profile=self.profile,
            case=final.case,
            original=found.case.digest,
            expected=final.foreseen,
            got=got,
            differences=describe(final.case),
            environment=dict(self.environment),
            seed=self.plan.seed,
            first_seen=self.now(),
            reproduce=reproduce_line(signature.id, self.backend, self.plan.corpus),
            standard=self.plan.standard,
            runs=runs,
            interrupted=interrupted,
            before=final.before if signature.code == AFTER_CALLS else (),
        )


def lost_with(case: Case, expected: Foreseen, result: Result, runs: int, gone: str) -> Failure:
    """The failure (F303) of a case after which its device no longer answered a known-good call."""
    before = decide(expected, result)
    said = before.text or result.message.split("\n")[0] or result.kind
    verdict = Verdict(FINDING, "F303", before.rule, f"after this call ({said}) its device was given up: {gone}")
    return Failure(case, expected, verdict, msgspec.structs.replace(result, kind="lost"), runs, gone)
