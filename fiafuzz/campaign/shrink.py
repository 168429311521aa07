"""Shrinking: the plainest call near a failing one that still fails in the same way.

It works on the fields of blueprint.py, not on the choices of a generator, so that an imported case shrinks like a
generated one. First whole features go (a chunk at a time, from large chunks to single features), then sizes and single
words. Every candidate must be predicted as the original was; only those that are cost a run of the backend. The order
is fixed, so the same case shrinks to the same case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from time import monotonic
from typing import TYPE_CHECKING, Any, Optional

from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene

from .blueprint import Fields, differences, put_together
from .bundles import BUNDLES, Reduction, override_bundles
from .dissect import settled, take_apart
from .plainness import weight, weight_of
from .steps import steps
from .triage import features_of

if TYPE_CHECKING:
    from oracles.constraints.predict import Prediction

MAX_RUNS = 150
"""Runs of the backend that one shrink may take."""
MAX_CANDIDATES = 4000
"""Candidates that one shrink may predict."""

MAX_STARTS = 6
MAX_ISOLATING = 80
"""Runs that may go into leaving single features and pairs of them."""
SIZE_BUNDLES = frozenset(
    {
        "batch",
        "groups",
        "heads",
        "queries",
        "keys",
        "head_size",
        "table",
        "query_lengths",
        "key_lengths",
        "fills",
        "scale",
    }
)

DESCRIBES_NOTHING = (ValueError, KeyError, ZeroDivisionError, IndexError)
"""What putting together raises for fields that do not go together."""

Check = Callable[[Case], bool]
"""Runs a case; whether it still fails in the same way."""


@dataclass(frozen=True)
class Shrunk:
    """The result: the case, runs of the backend used, seconds, names of the reductions that held, and whether a budget
    ended it."""

    case: Case
    runs: int
    seconds: float
    steps: tuple[str, ...]
    cut_short: bool = False

    @property
    def differences(self) -> tuple[str, ...]:
        """Fields in which the case differs from the plainest valid call."""
        return differences(take_apart(self.case))


class _Enough(Exception):
    """A budget is used up."""


def shrink(
    case: Case,
    check: Check,
    profile: str,
    *,
    max_runs: int = MAX_RUNS,
    max_seconds: Optional[float] = None,
    stop: Callable[[], bool] = lambda: False,
    starts: Iterable[Case] = (),
    dear: bool = False,
) -> Shrunk:
    """Shrink a failing case. ``check`` must be true for ``case`` itself (it is not asked); whatever it raises goes
    through.

    ``max_seconds`` and ``stop`` end it early with what has been reached. ``starts`` are plainer cases that might fail
    as well; they are tried first. ``dear``: every failing run costs a worker, so look for the feature that matters rather than take
    away those that do not. Never fails for the form of the case.
    """
    search = _Search(case, check, profile, max_runs, max_seconds, stop)
    cut_short = False
    try:
        search.jump(starts)
        if dear:
            search.isolate()
        search.drop_features()
        search.take_steps()
    except _Enough:
        cut_short = True
    return Shrunk(search.best, search.runs, monotonic() - search.started, tuple(search.held), cut_short)


class _Search:
    """State of one shrink. ``fields`` and ``best`` always describe a case that fails (the original at first)."""

    def __init__(
        self,
        case: Case,
        check: Check,
        profile: str,
        max_runs: int,
        max_seconds: Optional[float],
        stop: Callable[[], bool],
    ) -> None:
        self.best = case
        self.fields: Fields = take_apart(case)
        self.runs = 0
        self.predicted = 0
        self.held: list[str] = []
        self.started = monotonic()
        self._check = check
        self._profile = profile
        self._max_runs = max_runs
        self._max_seconds = max_seconds
        self._stop = stop
        self._wanted = self._prediction(case)
        self._known: dict[str, bool] = {case.digest: True}

    # ---- what counts as the same ----------------------------------------------------------------

    def _prediction(self, case: Case) -> Prediction:
        from oracles.constraints.predict import predict

        return predict(case, self._profile, scene=Scene(case))

    def _same_ground(self, found: Prediction) -> bool:
        """Whether a candidate is predicted as the original: the same verdict, and no rule broken that was not broken
        before."""
        wanted = self._wanted
        if found.verdict != wanted.verdict or (found.undecided and not wanted.undecided):
            return False
        if wanted.verdict == "accept":
            return True
        return bool(found.rules) and found.rules[0] == wanted.rules[0] and set(found.rule_ids) <= set(wanted.rule_ids)

    def _fails(self, case: Case) -> bool:
        """Whether a candidate fails like the original; answers from memory where it can."""
        digest = case.digest
        known = self._known.get(digest)
        if known is not None:
            return known
        self.predicted += 1
        if self.predicted > MAX_CANDIDATES or self._stop():
            raise _Enough
        if self._max_seconds is not None and monotonic() - self.started > self._max_seconds:
            raise _Enough
        if not self._same_ground(self._prediction(case)):
            self._known[digest] = False
            return False
        if self.runs >= self._max_runs:
            raise _Enough
        self.runs += 1
        failed = self._check(case)
        self._known[digest] = failed
        return failed

    def _try(self, name: str, fields: Optional[Fields]) -> bool:
        """Adopt plainer fields if the case that they describe still fails."""
        if fields is None or weight(fields) >= weight(self.fields):
            return False
        try:
            case = put_together(fields, self.best.api, self.best.product)
        except DESCRIBES_NOTHING:
            return False
        if not self._fails(case):
            return False
        self.best = case
        self.fields = settled(fields, case)
        self.held.append(name)
        return True

    def jump(self, starts: Iterable[Case]) -> None:
        """Go on from the plainest of some other cases that fails as well."""
        found = sorted(((weight_of(c), c.digest, c) for c in starts), key=lambda item: item[:2])
        for found_weight, _, case in found[:MAX_STARTS]:
            if found_weight < weight(self.fields) and self._fails(case):
                self.best, self.fields = case, take_apart(case)
                self.held.append("plain call")
                return

    # ---- the passes ---------------------------------------------------------------------------

    def isolate(self) -> None:
        """Everything plain but one feature, then but two: many runs, of which only the last one fails."""
        bundles = self._bundles()
        if self._try("everything", _applied(self.fields, bundles)):
            return
        for count in (1, 2):
            for kept in combinations(range(len(bundles)), count):
                if self.runs >= MAX_ISOLATING:
                    return
                rest = [bundle for i, bundle in enumerate(bundles) if i not in kept]
                if self._try("all but " + " ".join(bundles[i][0] for i in kept), _applied(self.fields, rest)):
                    return

    def drop_features(self) -> None:
        """Take features away: all at once, then chunks of half that size, down to single ones, until nothing goes."""
        bundles = self._bundles()
        size = len(bundles)
        while size and bundles:
            progress = False
            at = 0
            while at < len(bundles):
                chunk = bundles[at : at + size]
                if self._try(" ".join(n for n, _ in chunk), _applied(self.fields, chunk)):
                    progress = True
                    bundles = self._bundles()  # what is left is shorter; the same place now holds the next chunk
                else:
                    at += size
            if size == 1 and not progress:
                return
            size = max(1, min(size, len(bundles)) // 2) if size > 1 else 1

    def _bundles(self) -> list[tuple[str, Reduction]]:
        """Bundles that would change something in the present fields."""
        every = (*override_bundles(self.fields), *BUNDLES)
        return [(name, reduce) for name, reduce in every if reduce(self.fields) is not None]

    def take_steps(self) -> None:
        """Make what is left plainer step by step, until no step holds."""
        progress = True
        while progress:
            progress = False
            for name, fields in list(steps(self.fields)):
                if self._try(name, fields):
                    progress = True
                    break


def _applied(fields: Fields, chunk: Sequence[tuple[str, Reduction]]) -> Optional[dict[str, Any]]:
    found = dict(fields)
    for _, reduce in chunk:
        found = reduce(found) or found
    return found if found != fields else None


def stripped(case: Case, keep: Mapping[str, str], acceptable: Callable[[Case], bool]) -> Optional[Case]:
    """The case without the features that are not in ``keep`` (factor words), sizes left as they are; only changes that
    leave the prediction as it is are made."""
    fields = take_apart(case)
    best = case
    for name, reduce in BUNDLES:
        if name in SIZE_BUNDLES:
            continue
        tried = reduce(fields)
        if tried is None:
            continue
        try:
            candidate = put_together(tried, case.api, case.product)
        except DESCRIBES_NOTHING:
            continue
        words = dict(features_of(candidate))
        if all(words.get(factor) == word for factor, word in keep.items()) and acceptable(candidate):
            best, fields = candidate, take_apart(candidate)
    return best
