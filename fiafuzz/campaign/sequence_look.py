"""Failures that come after other calls in the same process, and not alone (F304): from a failing call to a corpus entry.

A call that fails in a sequence is first made alone. If it fails there too, it is an ordinary finding. If not, the sequence
must fail again in a fresh process; then as few calls before it as will do are sought, in a process that lives on, since starting one
takes long. What comes out must fail in a fresh process once more; if it does not, or is not plain, the search goes on with nothing
but fresh ones. Failures outside sequences that do not come again get one look of that kind, after the last few calls of their process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Optional

import msgspec

from fiafuzz.model.case import Case

from .codes import title
from .failures import Confirmed, Failure, Flaky, Known, Repeat, Step
from .reruns import same_failure
from .results import Result, clean
from .schedulers.protocol import Completed
from .sequence_shrink import Before, Calls, features_between, mixed, words_between
from .triage import Signature, family
from .verdict import AFTER_CALLS, FINDING, Verdict, error_of

if TYPE_CHECKING:
    from .investigate import Investigator

MAX_FRESH = 48
"""Runs in fresh workers that one search may take."""
MAX_IN_VAIN = 10
"""Failures outside sequences that are looked at in vain before no more are."""
MAX_PROOFS = 3
"""Calls (or so many of them as a known finding takes) that are tried as those before, to see whether a failure is a known one."""
PROOF_SHARE = 0.1
PLAIN = 2
"""Features of a finding that needs no further search: one call before it, and one thing in which that differs."""
UNTIMED = 6.0
"""As for single calls (investigate.py): how many times as long a search may take where no time bounds the run."""


def kind_of(verdict: Verdict, result: Result) -> str:
    """What tells apart failures after other calls: the code that the call would have had alone, and the kind of error."""
    code = verdict.code or ""
    return clean(f"{'wrong values' if family(code) == 'values' else code} {error_of(result)}".strip(), 80)


def as_finding(failure: Failure) -> Failure:
    """The failure of a call after others as a finding of its own code."""
    return replace(failure, verdict=after_calls(failure.verdict, len(failure.before)))


def after_calls(inner: Verdict, count: int) -> Verdict:
    """The verdict on a call that has failed in some way, and does so only after other calls."""
    text = f"right alone; after {count} other call{'s' * (count != 1)} in the same process: {inner.code} {title(inner.code or '')}"
    return Verdict(FINDING, AFTER_CALLS, inner.rule, f"{text}; {inner.text}" if inner.text else text)


def signature_after(backend: str, failure: Failure, kind: str) -> Signature:
    """The signature of a finding after other calls: not what the call is made of, but what the call before it differs in."""
    return Signature(backend, AFTER_CALLS, failure.verdict.rule, features_between(failure.before, failure.case), kind)


def calls_in(signature: Signature) -> int:
    """How many calls before its own a finding takes, as its signature has it (4: more than three); 0 when it does not say."""
    word = dict(signature.features).get("after", "").partition(" ")[0]
    return {"1": 1, "2": 2, "3": 3, "many": 4}.get(word, 0)


def as_it_ended(done: Completed) -> Completed:
    """A job with calls before its own, of which one has ended the process: as the job of that call."""
    job, ran = done.job, len(done.result.before)
    if ran == len(job.before):
        return done
    return replace(done, job=msgspec.structs.replace(job, case=job.before[ran], before=job.before[:ran]))


class SequenceLook:
    """Looks into failures after other calls, for an investigator."""

    def __init__(self, investigator: Investigator) -> None:
        self.main = investigator
        self.in_vain = 0

    def look(self, failure: Failure) -> Iterator[Step]:
        """A failure of a call that stood behind others in its job."""
        alone = replace(failure, before=(), recent=(), runs=max(failure.runs, 3 if failure.verdict.code == "F105" else 1))
        if self._fails_alone(alone):
            yield from self.main.look_closely(alone)
            return
        known = self._known(failure)
        if known is not None:
            yield Repeat(as_finding(failure), known)
            return
        found = self._after(failure, failure.before, fresh=True)
        if found is None and failure.recent:
            found = self._after(failure, (*failure.recent, *failure.before), fresh=True)
        if found is None:
            yield Flaky(failure, 1, 3 + bool(failure.recent))
            return
        yield from self._keep(found, told=False)

    def look_back(self, failure: Failure, flaky: Flaky, *, told: bool) -> Iterator[Step]:
        """A failure that did not come again alone: does it after what its process had run before? ``told``: it was told as
        confirmed."""
        found = None
        if self.in_vain < MAX_IN_VAIN and not self.main.stop():
            found = self._after(failure, failure.recent, fresh=True)
            self.in_vain += found is None
        if found is None:
            yield flaky
            return
        known = self._known(replace(failure, before=failure.recent))
        if known is not None:
            yield Repeat(as_finding(found), known)
            return
        yield from self._keep(found, told)

    # ---- does it fail -------------------------------------------------------------------------------------

    def _fails_alone(self, failure: Failure) -> bool:
        """Whether a call fails without the others. A live worker that answers it rightly has said enough; one that does not may
        have been spoilt before."""
        limit = self.main.reruns.limit_of(failure)
        if not failure.result.deadly and not self.main.reruns.fails(failure.case, failure, limit):
            return False
        return self.main.reruns.alone(failure.case, failure) is not None

    def _after(self, failure: Failure, before: Calls, *, fresh: bool) -> Optional[Failure]:
        """The failure as it comes after these calls; None when it does not."""
        limit = self.main.reruns.limit_of(failure)
        found = self.main.reruns.run(
            failure, failure.case, failure.foreseen, failure.runs, fresh=fresh, time_limit=limit, pictures=fresh, before=before
        )
        whole = len(found.result.before) == len(before)  # else a call before it has ended the process
        return replace(found, before=before) if whole and same_failure(found, failure) else None

    # ---- is it known --------------------------------------------------------------------------------------

    def _known(self, failure: Failure) -> Optional[Known]:
        """The known finding that explains it: the same kind of failure comes when the call before differs from the case in no more
        than that of the finding does."""
        kind = kind_of(failure.verdict, failure.result)
        alike = [
            k
            for k in self.main.repeats.known
            if k.signature.code == AFTER_CALLS and k.signature.error == kind and k.signature.rule == failure.verdict.rule
        ]
        if alike and self.main.effort.share("proof") > PROOF_SHARE:
            return alike[0]
        with self.main.effort.of("proof"):
            return next((k for k in alike if self._explains(k, failure)), None)

    def _explains(self, known: Known, failure: Failure) -> bool:
        words = {word for name, word in known.signature.features if name == "differs"}
        count = calls_in(known.signature)
        if not count:
            return False
        others: dict[str, Case] = {}
        for call in reversed(failure.before):
            other = _with_words(failure.case, call, words)
            if other is not None:
                others.setdefault(other.digest, other)
        calls = [*reversed(others.values()), *([failure.case] if count > 1 else [])]
        tries = [tuple(calls[i - count : i]) for i in range(len(calls), count - 1, -1)][:MAX_PROOFS]
        if not failure.result.deadly and any(self._after(failure, before, fresh=False) is not None for before in tries):
            return True
        # What a live worker has kept may hide it.
        return any(self._after(failure, before, fresh=True) is not None for before in tries[:1])

    # ---- made small, and kept -----------------------------------------------------------------------------

    def _keep(self, failure: Failure, told: bool) -> Iterator[Step]:
        """Shrink and keep a failure that has come again in a fresh worker."""
        main, began = self.main, monotonic()
        kind = kind_of(failure.verdict, failure.result)
        found = main.confirmed = as_finding(failure)
        if not told:
            yield Confirmed(found)
        with main.effort.of("shrink"):
            final, runs, cut = self._shrunk(failure)
        final = as_finding(final)
        signature = signature_after(main.backend, final, kind)
        known = main.repeats.counted(signature)
        if known is None:
            yield main.keep(signature, found, final, runs, monotonic() - began, cut)
        elif not cut:
            yield Repeat(found, known)

    def _shrunk(self, failure: Failure) -> tuple[Failure, int, bool]:
        """The failure after as few calls as will do, the runs that it took, and whether the run was asked to stop before."""
        main = self.main
        if not main.plan.shrink:
            return failure, 0, False
        end = monotonic() + main.plan.shrink_seconds * (1.0 if main.effort.timed else UNTIMED)
        runs, best, cut = 0, failure, False
        for fresh in (False, True):
            if fresh and (len(features_between(best.before, best.case)) <= PLAIN and best is not failure):
                break
            if not fresh and failure.result.deadly:
                continue  # each run costs a worker anyway, and one that has lived on may die too early
            most = min(main.plan.shrink_runs, MAX_FRESH) if fresh else main.plan.shrink_runs
            check = partial(self._after, failure, fresh=fresh)
            search = Before(best.case, best.before, check, main.profile, most, lambda: main.stop() or monotonic() > end)
            calls = search.shrink()
            runs += search.runs
            final = self._after(failure, calls, fresh=True) if calls != best.before else None
            best = final or best
            cut = search.cut_short and main.stop()
            if cut:
                break
        return best, runs, cut


def _with_words(case: Case, other: Case, words: set[str]) -> Optional[Case]:
    """The case with those fields of another call whose differences go by these words; None when they do not differ in all of them."""
    found = words_between(other, case)
    names = tuple(name for name, word in found.items() if word in words)
    return mixed(case, other, names) if words <= {*found.values()} else None
