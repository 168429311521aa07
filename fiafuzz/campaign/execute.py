"""Running one case in this process: tensors, backend, reference, judgement, determinism and relations.

The worker wraps this in a process of its own; benchmarks and single checks call it directly.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Optional

import msgspec
import numpy as np
from numpy.typing import NDArray

from fiafuzz.backends.protocol import Outcome
from fiafuzz.model.case import Case, CaseError, TensorSpec
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.factors import factor_words
from fiafuzz.model.profiles import DEFAULT_PROFILE, profile_for
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import Tensors, check_sizes, materialize, named_specs
from oracles.precision_standards import DEFAULT_STANDARD

from .cost import estimated_seconds
from .held import Held
from .relations import relations_for
from .results import MAX_ELEMENTS_SHOWN, About, Broken, Element, Judged, Picture, RawArray, Result, Seconds, clean, in_words, number
from .triage import plain_case
from .verdict import PASS, decide, foreseen, gives_values, reason_not_to_run
from .wire import Job, Setup

if TYPE_CHECKING:
    from fiafuzz.backends.protocol import Backend, BackendInfo
    from oracles.precision import Judgement
    from oracles.reference import Expected

Arrays = dict[str, NDArray[Any]]

IDLE, MAKE, RUN, REFERENCE, JUDGE = range(5)
STAGES: tuple[str, ...] = ("idle", "make", "run", "reference", "judge")
"""Where the work on a case is; the worker leaves the number where the driver can read it after a death."""

MAX_BLIND_ELEMENTS = 1 << 24
"""Elements of a call that no one has predicted to be accepted: larger ones are run without tensors or not at all."""
MAX_OUTPUT_ELEMENTS = 1 << 28
MAX_RELATED_SECONDS = 1.0
"""The other side of a relation may be larger than the call itself, but no giant."""
MAX_RATIO = 1e30
"""What stands for an infinite error ratio."""
OOM_NAMES = frozenset({"MemoryError", "OutOfMemoryError"})
KINDS = frozenset({"ok", "reject", "unsupported", "crash", "hang", "oom", "lost", "error"})
FATAL_KINDS = frozenset({"crash", "hang", "lost"})
"""Outcomes after which a process is not trusted with another case, whether the backend says so or not."""


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
        again, relate = turns(case, setup) if judge else (False, False)
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
                ran.append(Ran(other, dict(outcome.outputs) if outcome.outputs is not None else buffers))
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


def is_fatal(outcome: Outcome) -> bool:
    """Whether the process must not run another case after this outcome."""
    return outcome.fatal or outcome.kind in FATAL_KINDS


def ended_as(outcome: Outcome, spent: Seconds) -> Result:
    """The result of a run that did not come back with outputs."""
    message, stage = clean(outcome.message), None if outcome.stage is None else clean(outcome.stage, 80)
    return Result(outcome.kind, outcome.code, stage, message, outcome.signal, seconds=spent, fatal=is_fatal(outcome))


def run_guarded(backend: Backend, case: Case, scene: Scene, tensors: Tensors, outputs: Arrays) -> Outcome:
    """The backend's outcome; whatever it raises, SystemExit and KeyboardInterrupt included, becomes one of kind "error"
    or "oom"."""
    try:
        outcome = backend.run(case, scene, tensors, outputs)
    except BaseException as error:
        kind = "oom" if type(error).__name__ in OOM_NAMES else "error"
        return Outcome(kind, message=in_words(error))
    if not isinstance(outcome, Outcome):
        return Outcome("error", message=clean(f"the backend returned {type(outcome).__name__} instead of an Outcome"))
    wrong = not_as_declared(outcome)
    return Outcome("error", message=clean(f"the backend returned an Outcome whose {wrong}")) if wrong else outcome


def not_as_declared(outcome: Outcome) -> str:
    """What is wrong with the fields of an outcome, "" when nothing is: a dataclass takes anything, the wire and the verdict do not."""
    if not isinstance(outcome.kind, str) or outcome.kind not in KINDS:
        return f"kind is {outcome.kind!r:.60}"
    for name in ("code", "signal"):
        value = getattr(outcome, name)
        if value is not None and (not isinstance(value, int) or abs(value) >= 1 << 63):
            return f"{name} is {type(value).__name__} {value!r:.60}"
    if outcome.stage is not None and not isinstance(outcome.stage, str):
        return f"stage is {type(outcome.stage).__name__}"
    return ""


def poisoned(case: Case) -> Arrays:
    """Output buffers of a call, in storage form, filled with the poison pattern. CaseError for impossible shapes."""
    from oracles.precision import poison

    found: Arrays = {}
    wanted: list[tuple[str, Optional[TensorSpec]]] = [("attentionOut", case.outputs.attentionOut)]
    if case.attrs.softmaxLseFlag:
        wanted.append(("softmaxLse", case.outputs.softmaxLse))
    for name, spec in wanted:
        if spec is None:
            continue
        if any(n < 0 for n in spec.shape) or math.prod(n or 1 for n in spec.shape) > MAX_OUTPUT_ELEMENTS:
            raise CaseError(f"no buffer of shape {list(spec.shape)} can be made", f"$.outputs.{name}.shape")
        found[name] = poison(spec.dtype, spec.shape)
    return found


def wrong_form(buffers: Arrays, got: Arrays) -> str:
    """What is wrong with shape or dtype of the outputs (F103), in words; "" when nothing is."""
    for name, buffer in buffers.items():
        array = got.get(name)
        if array is None:
            return f"{name} is missing"
        if not isinstance(array, np.ndarray):
            return f"{name} is {type(array).__name__}, not an array"
        if array.shape != buffer.shape or array.dtype != buffer.dtype:
            return f"{name} is {array.dtype} {list(array.shape)} instead of {buffer.dtype} {list(buffer.shape)}"
    return ""


def same_bits(one: NDArray[Any], other: NDArray[Any], where: Optional[NDArray[Any]]) -> bool:
    """Whether two arrays are equal bit for bit, at the places marked in ``where`` (all without it)."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = np.dtype(f"u{one.dtype.itemsize}")
    equal = np.ascontiguousarray(one).view(bits) == np.ascontiguousarray(other).view(bits)
    if where is not None and where.shape == equal.shape:
        equal = equal | ~where
    return bool(equal.all())


def raw_arrays(arrays: Arrays) -> dict[str, RawArray]:
    """Arrays as bytes for the wire."""
    return {name: RawArray(a.shape, a.dtype.name, np.ascontiguousarray(a).tobytes()) for name, a in arrays.items()}


def from_raw(raw: Mapping[str, RawArray]) -> Arrays:
    """Arrays back from the wire; ValueError when size and shape do not agree."""
    known = {d.storage for d in DTYPES.values()} | {"float32", "float64"}
    found: Arrays = {}
    for name, item in raw.items():
        if item.dtype not in known:
            raise ValueError(f"unknown storage dtype {item.dtype!r}")
        found[name] = np.frombuffer(item.data, dtype=np.dtype(item.dtype)).reshape(item.shape)
    return found


def compact(judgement: Judgement) -> Judged:
    """A Judgement of the precision floor in the form that travels."""
    shown = [
        Element(record.name, e.index, number(e.expected), number(e.got), number(e.allowed))
        for record in judgement.outputs
        for e in record.worst
    ]
    ratio = judgement.error_ratio
    return Judged(
        judgement.passed,
        judgement.code,
        min(float(ratio), MAX_RATIO) if ratio == ratio else MAX_RATIO,
        judgement.compared,
        judgement.excluded,
        judgement.untestable,
        sum(r.failing for r in judgement.outputs),
        tuple(shown[:MAX_ELEMENTS_SHOWN]),
        "" if judgement.passed else clean(judgement.summary),
    )
