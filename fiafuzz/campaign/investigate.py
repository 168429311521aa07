"""From a failing case to a corpus entry: does it come again, what is the smallest form of it, is that known.

A failure is run again at once; what does not come again is flaky. What does is shrunk. If it shrinks to a signature
that is known, it is a repeat; if not, the shrunk case must fail once more, alone in a fresh worker, before it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import Optional

from fiafuzz.model.case import Case

from .corpus import Corpus, Entry
from .effort import Effort
from .failures import Confirmed, Failure, Flaky, Kept, Known, Repeat, Step
from .keeper import Keeper
from .plain_starts import plain_faults
from .plan import Plan
from .repeats import Repeats
from .reruns import TRIES, Gone, Reruns
from .schedulers.protocol import Scheduler, SchedulerError
from .sequence_look import SequenceLook, kind_of, signature_after
from .shrink import shrink
from .triage import Signature, signature_of
from .verdict import AFTER_CALLS, decide

UNTIMED = 6.0
"""How many times as long a shrink may take where no time bounds the run: the number of its runs bounds it, so that it comes
to the same call on a slower machine; this is for calls that take seconds."""


class Investigator:
    """Looks into the failures of one backend under one profile.

    ``environment`` goes into entries; ``stop`` ends shrinking early; ``now`` gives the time stamp of entries; ``put`` puts one
    into the corpus (None: Corpus.add).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        backend: str,
        profile: str,
        plan: Plan,
        corpus: Corpus,
        environment: Mapping[str, str],
        stop: Callable[[], bool],
        now: Callable[[], str],
        put: Optional[Callable[[Entry], Path]] = None,
    ) -> None:
        self.backend = backend
        self.profile = profile
        self.plan = plan
        self.stop = stop
        self.effort = Effort(timed=plan.max_time is not None)
        self.reruns = Reruns(scheduler, profile, plan, self.effort, stop)
        self.repeats = Repeats(self.reruns, self.effort)
        self.confirmed: Optional[Failure] = None
        """The failure that is being looked into, once it has come again."""
        self._keeper = Keeper(backend, profile, plan, corpus, environment, now, put)
        self._sequences = SequenceLook(self)

    def look_into(self, failure: Failure) -> Iterator[Step]:
        """Confirm, shrink and keep one failure. Yields Flaky, or Repeat, or Confirmed and then Kept (or Flaky after
        all). A failure that took its device with it is kept as it is: nothing is run again that might take another. So is
        one that has come again when no worker is left, or the user is out of patience; then the exception goes on.

        A run that is asked to stop keeps what it is shrinking as it is by then, marked as interrupted; where that looks like a
        known finding it yields nothing more, since only a whole shrink can tell."""
        told = False
        gone: Optional[Failure] = failure if failure.gone else None
        end: Optional[BaseException] = None
        self.confirmed = None
        if gone is None:
            try:
                for step in self._look(failure):
                    told = told or isinstance(step, Confirmed)
                    yield step
                return
            except Gone as last:
                gone = last.failure
            except (SchedulerError, KeyboardInterrupt) as cut:
                if self.confirmed is None:
                    raise
                gone, end = self.confirmed, cut
        signature = self._signature(gone)
        known, interrupted = self.repeats.counted(signature), isinstance(end, KeyboardInterrupt)
        if not (known is not None and interrupted):
            if not told:
                yield Confirmed(gone)
            yield Repeat(gone, known) if known is not None else self.keep(signature, gone, gone, 0, 0.0, interrupted)
        if end is not None:
            raise end

    def _look(self, failure: Failure) -> Iterator[Step]:
        """The steps for a failure that stood behind others, or alone; one that does not come again alone is tried once more behind
        those that its worker had run."""
        if failure.before:
            yield from self._sequences.look(failure)
            return
        told = False
        for step in self.look_closely(failure):
            told = told or isinstance(step, Confirmed)
            if isinstance(step, Flaky) and failure.recent:
                yield from self._sequences.look_back(failure, step, told=told)
            else:
                yield step

    def look_closely(self, failure: Failure) -> Iterator[Step]:
        """The steps for a failure of a case alone."""
        again, failed = self.reruns.again(failure)
        if again is None:
            yield Flaky(failure, failed, TRIES + 1)
            return
        failure, began = again, monotonic()
        self.confirmed = failure
        early = failure.result.deadly and not self.repeats.alike(failure)
        if early:  # shrinking takes long where every success is a death: first of all it is told
            yield Confirmed(failure)
        with self.effort.of("shrink"):
            case, runs, cut = self._shrunk(failure)
        known = self.repeats.counted(signature_of(self.backend, failure.verdict, failure.error, case))
        if known is not None:
            if not cut:
                yield Repeat(failure, known)
            return
        if not early:
            yield Confirmed(failure)
        with self.effort.of("shrink"):
            final = self.reruns.alone(case, failure)
            if final is None and case != failure.case:
                final = self.reruns.alone(failure.case, failure)
        if final is None:
            yield Flaky(failure, failed, TRIES + 1)
            return
        signature = signature_of(self.backend, final.verdict, final.error, final.case)
        known = self.repeats.counted(signature)
        if known is None:
            yield self.keep(signature, failure, final, runs, monotonic() - began, cut)
        elif not cut:
            yield Repeat(failure, known)

    def keep(
        self, signature: Signature, found: Failure, final: Failure, runs: int, seconds: float, interrupted: bool = False
    ) -> Kept:
        """Put the entry of a finding into the corpus; from now on it is known."""
        self.repeats.known.append(Known(signature, signature.id, 1))
        return self._keeper.keep(signature, found, final, runs, seconds, interrupted)

    def _signature(self, failure: Failure) -> Signature:
        if failure.verdict.code == AFTER_CALLS:
            return signature_after(self.backend, failure, kind_of(decide(failure.foreseen, failure.result), failure.result))
        return signature_of(self.backend, failure.verdict, failure.error, failure.case)

    def _shrunk(self, failure: Failure) -> tuple[Case, int, bool]:
        """The smallest case that fails in the same way, the runs that it took, and whether the run was asked to stop before it was
        found."""
        if not self.plan.shrink:
            return failure.case, 0, False
        limit = self.reruns.limit_of(failure)
        found = shrink(
            failure.case,
            lambda c: self.reruns.fails(c, failure, limit),
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
