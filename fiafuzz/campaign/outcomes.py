"""What a backend gives back, made safe: whatever it raises or returns becomes an outcome that can be judged and sent; the buffers it
writes to, and the form in which outputs and judgements travel.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from numpy.typing import NDArray

from fiafuzz.backends.protocol import Outcome
from fiafuzz.model.case import Case, CaseError, TensorSpec
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import Tensors

from .results import MAX_ELEMENTS_SHOWN, Element, Judged, RawArray, Result, Seconds, clean, in_words, number

if TYPE_CHECKING:
    from fiafuzz.backends.protocol import Backend
    from oracles.precision import Judgement

Arrays = dict[str, NDArray[Any]]

MAX_OUTPUT_ELEMENTS = 1 << 28
MAX_RATIO = 1e30
"""What stands for an infinite error ratio."""
OOM_NAMES = frozenset({"MemoryError", "OutOfMemoryError"})
KINDS = frozenset({"ok", "reject", "unsupported", "crash", "hang", "oom", "lost", "error"})
FATAL_KINDS = frozenset({"crash", "hang", "lost"})
"""Outcomes after which a process is not trusted with another case, whether the backend says so or not."""


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


def raw_arrays(arrays: Arrays) -> dict[str, RawArray]:
    """Arrays as bytes for the wire."""
    return {name: RawArray(a.shape, a.dtype.name, np.ascontiguousarray(a).tobytes()) for name, a in arrays.items()}


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
