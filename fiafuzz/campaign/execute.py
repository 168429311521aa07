"""Running one case in this process: tensors, backend, reference, judgement, determinism and relations.

The worker wraps this in a process of its own; benchmarks and single checks call it directly.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Optional

import msgspec
import numpy as np
from numpy.typing import NDArray

from fiafuzz.backends.protocol import Outcome
from fiafuzz.model.case import Case, CaseError
from fiafuzz.model.factors import factor_words
from fiafuzz.model.profiles import DEFAULT_PROFILE, profile_for
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import Tensors, check_sizes, materialize, named_specs
from oracles.precision_standards import DEFAULT_STANDARD

from .cost import estimated_seconds
from .earlier import Earlier, same_bits
from .held import Held
from .outcomes import MAX_RATIO, Arrays, compact, ended_as, is_fatal, poisoned, raw_arrays, run_guarded, wrong_form
from .relations import relations_for
from .results import About, Broken, Judged, Picture, Result, Seconds, clean, in_words
from .triage import plain_case
from .verdict import PASS, decide, foreseen, gives_values, reason_not_to_run
from .wire import Job, Setup

if TYPE_CHECKING:
    from fiafuzz.backends.protocol import Backend, BackendInfo
    from oracles.reference import Expected

IDLE, MAKE, RUN, REFERENCE, JUDGE = range(5)
STAGES: tuple[str, ...] = ("idle", "make", "run", "reference", "judge")
"""Where the work on a case is; the worker leaves the number where the driver can read it after a death."""

MAX_BLIND_ELEMENTS = 1 << 24
"""Elements of a call that no one has predicted to be accepted: larger ones are run without tensors or not at all."""
MAX_RELATED_SECONDS = 1.0
"""The other side of a relation may be larger than the call itself, but no giant."""


class Executor:
    """Runs jobs on one backend (and on others that jobs name) and judges them under one standard.

    ``get`` makes a backend from its name; ``mark`` is told where the work is (one of the numbers above); ``profile`` is the one
    under which the other side of a relation must be valid (None: the document profile of the case).
    """

    def __init__(
        self,
        backend: Backend,
        standard: str,
        get: Optional[Callable[[str, Optional[str]], Backend]] = None,
        mark: Optional[Callable[[int], None]] = None,
        profile: Optional[str] = None,
        setup: Optional[Setup] = None,
    ) -> None:
        self.backend = backend
        self.setup = setup or Setup("", profile or "")
        self._held: Optional[Held] = None
        self._fatal = False
        self._earlier: Optional[Earlier] = None
        self.profile = profile
        self.standard = standard or DEFAULT_STANDARD
        self._others: dict[tuple[str, Optional[str]], Backend] = {}
        self._get = get
        self._mark = mark or (lambda stage: None)

    def warm_up(self) -> None:
        """Load what the first case would load: rules, reference and judge. A worker that has said that it is ready must be as
        quick with its first case as with any other, or slowness would be taken for a hang."""
        from oracles.constraints.predict import predict

        case = plain_case("950", "v5")
        predict(case, DEFAULT_PROFILE)
        tensors = materialize(case)
        self._judge(case, Scene(case), tensors, poisoned(case), poisoned(case), Seconds())
        self._mark(IDLE)

    def _backend(self, name: Optional[str], profile: Optional[str]) -> Backend:
        if name is None:
            return self.backend
        key = (name, profile)
        if key not in self._others:
            if self._get is None:
                raise LookupError(f"no way to make the backend {name!r}")
            self._others[key] = self._get(name, profile)
        return self._others[key]

    def run_through(self, job: Job) -> Iterator[Result]:
        """Run the cases before a job, in order, and its own; a result for each, as soon as there is one. A fatal one is the last."""
        self._earlier = Earlier(job) if job.before else None
        for case in job.before:
            result = self.execute(Job(job.id, case, backend=job.backend, profile=job.profile, foresee=True, turns=False))
            yield result
            if result.fatal:
                return
        yield self.execute(job)

    def execute(self, job: Job) -> Result:
        """Run one job. Never raises for what a case or a backend does; what breaks here is a result of kind
        "internal"."""
        try:
            return self._foresee(job) if job.foresee else self._execute(job, Scene(job.case))
        except MemoryError:
            return Result("untestable", message="out of memory outside the backend")
        except Exception as error:
            return Result("internal", message=in_words(error))
        finally:
            self._mark(IDLE)

    def _foresee(self, job: Job) -> Result:
        """Predict a case, run it as it deserves, and say what was known of it before."""
        from oracles.constraints.predict import predict

        case, setup = job.case, self.setup
        scene = Scene(case)
        profile = self.profile or profile_for(case.api, case.product).name
        expected = foreseen(predict(case, profile, scene=scene))
        checks = self.backend.info.checks
        reason = reason_not_to_run(expected, checks, dare=setup.dare)
        judge = gives_values(expected)
        if reason is None and judge and setup.giant and estimated_seconds(scene) > setup.giant:
            judge = False
            reason = None if checks == "own" else "too large for a CPU"
        about = About(expected, factor_words(scene), judge)
        if reason is not None:
            return Result("skipped", message=reason, about=about)
        again, relate = turns(case, setup) if judge and job.turns else (False, False)
        job = msgspec.structs.replace(job, judge=judge, runs=2 if again else 1, relations=relate, foresee=False)
        result = self._execute(job, scene)
        held: tuple[str, ...] = ()
        if expected.verdict == "accept" and decide(expected, result).status == PASS:
            if self._held is None:
                self._held = Held(profile)
            held = self._held.by(scene)
        about = msgspec.structs.replace(about, runs=job.runs, held=held)
        return msgspec.structs.replace(result, about=about)

    def _execute(self, job: Job, scene: Scene) -> Result:
        backend, case = self._backend(job.backend, job.profile), job.case
        started = perf_counter()
        reason = backend.cannot_express(scene)
        if reason is not None:
            return Result("unsupported", message=clean(reason))
        self._mark(MAKE)
        try:
            tensors = self._tensors(case, job.judge, backend.info)
            outputs = poisoned(case)
        except CaseError as error:
            if job.judge or not backend.info.blind:
                kind = "untestable" if job.judge else "unsupported"
                return Result(kind, message=clean(f"no tensors: {error}"))
            tensors, outputs = Tensors(), {}
        made = perf_counter()
        self._mark(RUN)
        outcome = run_guarded(backend, case, scene, tensors, outputs)
        ran = perf_counter()
        if outcome.kind != "ok":
            return ended_as(outcome, Seconds(made - started, ran - made))
        if not outcome.launched:
            kind = "untestable" if job.judge else "ok"
            return Result(kind, message=clean(outcome.message), seconds=Seconds(made - started, ran - made))
        got = dict(outcome.outputs) if outcome.outputs is not None else outputs
        judged, wanted, spent = None, None, Seconds(made - started, ran - made)
        if outcome.flaw is not None:
            judged = Judged(False, outcome.flaw[0], MAX_RATIO, text=clean(outcome.flaw[1]))
        elif job.judge and not backend.info.computes:
            wrong = wrong_form(outputs, got)
            judged = Judged(not wrong, "F103" if wrong else None, MAX_RATIO if wrong else 0.0, text=wrong)
        elif job.judge:
            judged, wanted, spent = self._judge(case, scene, tensors, outputs, got, spent)
        same, broken = None, None
        self._fatal = is_fatal(outcome)
        if job.runs > 1 and backend.info.deterministic and backend.info.computes and not self._fatal:
            try:
                same = self._same(backend, case, scene, got, wanted.compare if wanted is not None else None, job.runs - 1)
            except _Ended as end:
                return ended_as(end.outcome, spent)
        measured = backend.info.deterministic and backend.info.computes and not self._fatal
        if self._earlier is not None and measured and same is not False and (judged is None or judged.passed):
            same = self._earlier.same(case, got, wanted.compare if wanted is not None else None, same)
        related: Optional[str] = None
        if job.relations and wanted is not None and judged is not None and judged.passed and not self._fatal:
            related, broken = self._relate(backend, job, tensors, wanted, got)
        return Result(
            "ok",
            judged=judged,
            same=same,
            related=related,
            broken=broken,
            seconds=spent,
            outputs=raw_arrays(got) if job.outputs else None,
            pictures=self._pictures(scene, tensors, wanted, got) if job.pictures and judged and not judged.passed else (),
            fatal=self._fatal,
        )

    def _tensors(self, case: Case, valid: bool, info: BackendInfo) -> Tensors:
        if not info.computes:  # shapes and dtypes are all that it reads
            return Tensors()
        if valid:
            return materialize(case)
        try:
            check_sizes(case)
            if sum(math.prod(spec.shape) for _, _, spec, _ in named_specs(case)) <= MAX_BLIND_ELEMENTS:
                return materialize(case)
            reason = CaseError(f"over {MAX_BLIND_ELEMENTS} elements in a call that may be refused")
        except CaseError as error:
            reason = error
        if info.checks == "emulated":  # answers from the call alone and never reads a tensor of a refused call
            return Tensors()
        raise reason

    def _judge(
        self, case: Case, scene: Scene, tensors: Tensors, buffers: Arrays, got: Arrays, spent: Seconds
    ) -> tuple[Optional[Judged], Optional[Expected], Seconds]:
        from oracles.precision import judge_outputs
        from oracles.reference import ReferenceError, reference

        wrong = wrong_form(buffers, got)
        if wrong:
            return Judged(False, "F103", MAX_RATIO, text=wrong), None, spent
        start = perf_counter()
        self._mark(REFERENCE)
        try:
            expected = reference(case, tensors, scene=scene)
        except ReferenceError as error:
            return Judged(True, text=clean(f"no reference: {error}")), None, spent
        done = perf_counter()
        self._mark(JUDGE)
        judged = compact(judge_outputs(case, scene, expected, got, self.standard))
        return judged, expected, Seconds(spent.make, spent.run, done - start, perf_counter() - done)

    def _pictures(self, scene: Scene, tensors: Tensors, wanted: Optional[Expected], got: Arrays) -> tuple[Picture, ...]:
        """Pictures of wrong values; none rather than a finding that is lost because it could not be drawn."""
        from oracles.picture import error_pictures
        from oracles.precision import judge_outputs

        if wanted is None:
            return ()
        try:
            judgement = judge_outputs(scene.case, scene, wanted, got, self.standard)
            return tuple(Picture(**vars(grid)) for grid in error_pictures(scene, tensors, wanted, got, judgement))
        except Exception:
            return ()

    def _same(
        self,
        backend: Backend,
        case: Case,
        scene: Scene,
        first: Arrays,
        compare: Optional[Mapping[str, NDArray[Any]]],
        times: int,
    ) -> bool:
        """Whether further runs, on tensors made anew, give the same bits wherever a value is defined."""
        first = {name: np.array(array) for name, array in first.items()}
        for _ in range(times):
            self._mark(MAKE)
            tensors, buffers = materialize(case), poisoned(case)
            self._mark(RUN)
            outcome = run_guarded(backend, case, scene, tensors, buffers)
            if is_fatal(outcome):
                raise _Ended(outcome)
            if outcome.kind != "ok":
                return False
            again = dict(outcome.outputs) if outcome.outputs is not None else buffers
            if not all(
                name in again and same_bits(array, again[name], (compare or {}).get(name))
                for name, array in first.items()
            ):
                return False
        return True

    def _relate(
        self, backend: Backend, job: Job, tensors: Tensors, expected: Expected, got: Arrays
    ) -> tuple[Optional[str], Optional[Broken]]:
        """Try one relation: the one that the job names, or the first in the turn of the case that offers another side. Gives
        its name (None: none applies) and how it is broken."""
        from oracles.constraints.predict import predict
        from oracles.metamorphic import Call, Ran, other_calls

        profile = job.profile or self.profile or profile_for(job.case.api, job.case.product).name

        def usable(call: Call) -> bool:
            return (
                predict(call.case, profile, scene=call.scene).verdict == "accept"
                and estimated_seconds(call.scene) < MAX_RELATED_SECONDS
                and backend.cannot_express(call.scene) is None
            )

        first = Ran(Call(job.case, tensors, expected), {name: np.array(array) for name, array in got.items()})
        for relation in relations_for(job.case, job.relation):
            others = other_calls(relation, first.call, usable)
            if others is None:
                continue
            ran: list[Ran] = []
            for other in others:
                buffers = poisoned(other.case)
                self._mark(RUN)
                outcome = run_guarded(backend, other.case, other.scene, other.tensors, buffers)
                self._fatal |= is_fatal(outcome)
                if outcome.kind == "unsupported":
                    break
                if outcome.kind != "ok":
                    text = f"the other side ({relation.title}) gives {outcome.kind} {outcome.code or ''}: {outcome.message}"
                    return relation.name, Broken(relation.name, clean(text))
                got_there = dict(outcome.outputs) if outcome.outputs is not None else buffers
                wrong = outcome.flaw[1] if outcome.flaw is not None else wrong_form(buffers, got_there)
                if wrong:
                    return relation.name, Broken(relation.name, clean(f"the other side ({relation.title}): {wrong}"))
                ran.append(Ran(other, got_there))
            else:
                self._mark(JUDGE)
                text = relation.compare(first, ran) or ""
                return relation.name, Broken(relation.name, clean(text)) if text else None
        return None, None


def turns(case: Case, setup: Setup) -> tuple[bool, bool]:
    """Whether it is a valid case's turn to be run twice and to be tried on a relation: by its content alone."""
    number = int.from_bytes(hashlib.blake2b(case.digest.encode(), digest_size=8, person=b"turns").digest(), "big")
    high, low = divmod(number, 1 << 32)
    return setup.repeat_every > 0 and high % setup.repeat_every == 0, setup.relate_every > 0 and low % setup.relate_every == 0


class _Ended(Exception):
    """A further run of the case ended this process's usefulness; ``outcome`` tells how."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.kind)
        self.outcome = outcome
