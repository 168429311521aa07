"""Which failures are repeats: does a finding that is known explain them, without shrinking each?

A failure whose features contain those of a known finding is taken as the same fault after one run: the case without its other
features (but with its sizes) must fail too.
"""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.case import Case

from .effort import Effort
from .failures import Failure, Known
from .reruns import Gone, Reruns
from .shrink import stripped
from .triage import Signature, features_of, may_explain
from .verdict import PROCESS_CODES, foresee

PROOF_SHARE = 0.1
"""Share of the run so far that may go into checking whether repeats are repeats."""
SHRINK_SHARE = 0.3
"""Share of the run so far above which doubtful repeats are counted as repeats without being shrunk."""
DEATH_SHARE = 0.25
"""Share of the time so far that dead workers may cost before cases that would kill another are spared."""


class Repeats:
    """The known findings of one backend under one profile, in the order in which they became known."""

    def __init__(self, reruns: Reruns, effort: Effort) -> None:
        self.reruns = reruns
        self.effort = effort
        self.known: list[Known] = []

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
            doubtful = doubtful or self.alike(failure)
        if doubtful is not None and self.effort.share("shrink") > SHRINK_SHARE:
            return doubtful
        return None

    def alike(self, failure: Failure) -> Optional[Known]:
        """A known finding of the same code and error, whatever its features."""
        alike = (k for k in self.known if k.signature.code == failure.verdict.code and k.signature.error == failure.error)
        return next(alike, None)

    def deadly(self, case: Case) -> Optional[Known]:
        """The known crash or hang that this case is likely to cause again, when deaths have cost too much time
        already."""
        if self.effort.share_of_time(self.effort.death_seconds) < DEATH_SHARE:
            return None
        features = set(features_of(case))
        return next(
            (k for k in self.known if k.signature.code in PROCESS_CODES and set(k.signature.features) <= features), None
        )

    def counted(self, signature: Signature) -> Optional[Known]:
        """The known finding of this very signature, with one case more; None when there is none."""
        for known in self.known:
            if known.signature == signature:
                known.count += 1
                return known
        return None

    def _same_without_the_rest(self, failure: Failure, signature: Signature) -> bool:
        """Whether the failure stays when all features but those of the signature are taken away."""

        def acceptable(case: Case) -> bool:
            return foresee(case, self.reruns.profile).verdict == failure.foreseen.verdict

        with self.effort.of("proof"):
            case = stripped(failure.case, dict(signature.features), acceptable)
            try:
                return case is not None and case != failure.case and self.reruns.fails(case, failure, None)
            except Gone:
                return False
