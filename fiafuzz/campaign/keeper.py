"""A finding becomes an entry of the corpus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from .codes import title
from .corpus import Corpus, CorpusError, Entry, Got, reproduce_line
from .failures import Failure, Kept
from .plan import Plan
from .triage import Signature, describe
from .verdict import AFTER_CALLS


@dataclass(frozen=True)
class Keeper:
    """Keeps the findings of one backend under one profile.

    ``environment`` goes into entries; ``now`` gives their time stamp; ``put`` puts one into the corpus (None: Corpus.add).
    """

    backend: str
    profile: str
    plan: Plan
    corpus: Corpus
    environment: Mapping[str, str]
    now: Callable[[], str]
    put: Optional[Callable[[Entry], Path]] = None

    def keep(self, signature: Signature, found: Failure, final: Failure, runs: int, seconds: float, interrupted: bool) -> Kept:
        """Write the entry of a finding, ``final`` being what ``found`` was shrunk to. What cannot be written is said in the step."""
        entry = self._entry(signature, found, final, runs, interrupted)
        try:
            path = str((self.put or self.corpus.add)(entry))
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
