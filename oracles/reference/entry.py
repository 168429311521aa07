"""The reference of a whole call: from a case and its tensors to expected outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Optional, cast

import numpy as np

from fiafuzz.model.case import Case
from fiafuzz.model.codecs import decode, encode
from fiafuzz.model.scene import Scene

from .antiquant import ONCE, REFERENCE, STEPS, AntiquantOperands
from .attention import Rows, attend
from .bounds import analyse, quick_safe
from .canvas import Canvas, empty_output
from .expected import F64, Bool, Expected, Limits, ReferenceError, Tensors
from .full_fp8 import Fp8Operands, PerBlockOperands
from .full_mla import MlaOperands
from .full_mxfp8 import Mxfp8Operands
from .full_per_tensor import PerTensorOperands
from .operands import Operands
from .post_quant import bound_after, post_quant_of, quantise
from .problem import Problem, Run, problem_of
from .stagewise import attend_rounded
from .tiled import TiledOperands
from .undefined import EXP_RANGE, after_all, after_run, after_sink, mark_no_keys, special_inputs
from .working_precision import Precision, precision_of, undocumented

FORMS: tuple[str, ...] = ("auto", "ideal", "stagewise")

_FAULTS = (ValueError, IndexError, TypeError, KeyError, AttributeError, OverflowError, ZeroDivisionError, MemoryError)


def reference(case: Case, tensors: Any, *, scene: Optional[Scene] = None, form: str = "auto") -> Expected:
    """Expected outputs of a case.

    ``tensors`` maps parameter names to arrays in storage form (key and value to lists of arrays), integer lists are
    read from the case. ``form``: "ideal" (float64 throughout), "stagewise" (with the roundings of the operator's
    published reference) or "auto", the one that judges: stage-wise for full quantisation, else ideal
    (spec/numerics.md 23). ReferenceError, one line, for a case that is malformed, invalid so far that nothing can be
    computed, or over the limits.
    """
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r}; known: {', '.join(FORMS)}")
    scene = Scene(case) if scene is None else scene
    try:
        if scene.empty_case:
            return _empty(scene, form)
        with np.errstate(all="ignore"):  # inf and NaN among the inputs are noticed, not warned about
            problem = problem_of(scene, cast(Tensors, tensors))
            operands = operands_of(problem)
            if form == "auto":
                form = "stagewise" if isinstance(operands, TiledOperands) else "ideal"
            return _expected(problem, operands, form)
    except ReferenceError:
        raise
    except _FAULTS as error:
        text = " ".join(str(error).split())
        raise ReferenceError(f"cannot be computed: {type(error).__name__}: {text}") from error


def operands_of(problem: Problem) -> Operands:
    """The operands of a case, by its kind of quantisation. ReferenceError for a kind that has none."""
    scene = problem.scene
    if scene.quant_kind == "none":
        return Operands(problem)
    if scene.quant_kind == "antiquant":
        if scene.q_dtype not in ("FLOAT16", "BFLOAT16", "FLOAT32"):
            raise ReferenceError(f"query of {scene.q_dtype} with key of {scene.k_dtype}")
        return AntiquantOperands(problem)
    if scene.q_dtype == "FLOAT32":
        return Operands(problem)
    if scene.q_dtype not in ("INT8", "HIFLOAT8", "FLOAT8_E4M3FN", "FLOAT8_E5M2") or scene.v_dtype != scene.k_dtype:
        raise ReferenceError(f"query, key and value of {scene.q_dtype}, {scene.k_dtype}, {scene.v_dtype}")
    kinds: dict[str, Callable[[Problem], Operands]] = {
        "per_tensor": PerTensorOperands,
        "decode_mla": MlaOperands,
        "gqa_fp8": Fp8Operands,
        "per_block": PerBlockOperands,
        "mxfp8": Mxfp8Operands,
    }
    return kinds[scene.full_kind or "per_tensor"](problem)


def _empty(scene: Scene, form: str) -> Expected:
    """Nothing to compute: zeros, and an lse of +inf (spec/numerics.md 3.2)."""
    outputs: dict[str, F64] = {"attentionOut": np.zeros(empty_output(scene, "attentionOut"))}
    if scene.lse_on and scene.lse is not None:
        outputs["softmaxLse"] = np.full(empty_output(scene, "softmaxLse"), np.inf)
    compare: dict[str, Bool] = {name: np.ones(value.shape, np.bool_) for name, value in outputs.items()}
    return Expected(outputs, compare, {}, "ideal" if form == "auto" else form)


def _expected(problem: Problem, operands: Operands, form: str) -> Expected:
    canvas = Canvas(problem)
    precision = precision_of(problem, operands)
    v_max = 0.0
    strange = False
    for run in problem.runs():
        q = operands.query(run)
        k = operands.key(run)
        v = operands.value(run, k)
        mask = problem.mask(run)
        bias = problem.run_bias(run)
        sink = run_sink(problem, run)
        largest = _largest(v)
        squares = float(np.vdot(q, q)) * float(np.vdot(k, k))
        finite = math.isfinite(largest) and math.isfinite(squares)
        strange |= not finite
        v_max = max(v_max, largest)
        rows = attend(q, k, v, mask, bias, sink) if form == "ideal" else _staged(problem, operands, run)
        canvas.put(run, rows.out, rows.lse + operands.lse_shift if form == "ideal" else rows.lse, rows.dead)
        after_run(canvas, run, mask, rows.dead, v, bias is not None and bias.hides(rows.dead))
        if sink is not None and canvas.lse_on and float(sink.max()) > EXP_RANGE / 2:
            after_sink(canvas, run, sink, attend(q, k, v, mask, bias, None).lse)
        if finite and not quick_safe(q, k, squares, problem.scale, precision):
            lost = analyse(q, k, v, mask, bias, sink, precision, scale=problem.scale).untestable
            canvas.exclude(canvas.marked(run, lost.reshape(run.count, -1, run.rows)), "untestable")
    plain = _finish(canvas, form)
    if strange or special_inputs(problem):
        canvas.exclude_all("inf or NaN among the inputs")
    if isinstance(operands, AntiquantOperands) and operands.disputed:
        canvas.exclude_all(operands.disputed)
    compare = {"attentionOut": canvas.compare_out}
    if canvas.lse_on:
        compare["softmaxLse"] = canvas.compare_lse
    expected = Expected(
        _outputs(canvas),
        compare,
        canvas.reasons,
        form,
        canvas.alternatives,
        v_max,
        canvas.fixed(),
        lambda: _limits(problem, operands, precision, plain),
    )
    if isinstance(operands, AntiquantOperands):
        for order in (REFERENCE, STEPS, ONCE):
            expected._arithmetics[order] = partial(_again, problem, AntiquantOperands(problem, order), "ideal")
    elif isinstance(operands, TiledOperands):
        other = "ideal" if form == "stagewise" else "stagewise"
        expected._arithmetics[other] = partial(_again, problem, operands, other)
    expected._benchmark = lambda: _rounded(problem, _again(problem, operands, "stagewise"))
    return expected


def _staged(problem: Problem, operands: Operands, run: Run) -> Rows:
    """A run in the stage-wise form."""
    mask, bias = problem.mask(run), problem.run_bias(run)
    if isinstance(operands, TiledOperands):
        return operands.staged(run, mask, bias)
    if isinstance(operands, AntiquantOperands) and operands.order != REFERENCE:
        operands = AntiquantOperands(problem, REFERENCE)
    k = operands.key(run)
    return attend_rounded(
        operands.query_numbers(run),
        k,
        operands.value(run, k),
        mask,
        bias,
        run_sink(problem, run),
        scale=problem.scale,
        dtype=problem.scene.q_dtype or "FLOAT16",
    )


def _finish(canvas: Canvas, form: str) -> F64:
    """Everything after the runs; gives attentionOut before post-quantisation."""
    mark_no_keys(canvas)
    post = post_quant_of(canvas.problem)
    plain = canvas.out.copy() if post is not None else canvas.out
    if post is not None:
        quantise(canvas, post, form)
        if not (np.isfinite(post.scale).all() and np.isfinite(post.offset).all()):
            canvas.exclude_all("inf or NaN among the inputs")
    elif form == "stagewise":
        canvas.out[...] = _round_to(canvas.problem.scene.out_dtype, canvas.out)
    after_all(canvas, post.offset if post is not None and post.has_offset else None)
    return plain


@np.errstate(all="ignore")
def _again(problem: Problem, operands: Operands, form: str) -> dict[str, F64]:
    """The outputs of a case once more, under another arithmetic."""
    canvas = Canvas(problem)
    for run in problem.runs():
        if form == "ideal":
            k = operands.key(run)
            rows = attend(
                operands.query(run),
                k,
                operands.value(run, k),
                problem.mask(run),
                problem.run_bias(run),
                run_sink(problem, run),
            )
            rows.lse = rows.lse + operands.lse_shift
        else:
            rows = _staged(problem, operands, run)
        canvas.put(run, rows.out, rows.lse, rows.dead)
    _finish(canvas, form)
    return _outputs(canvas)


def _outputs(canvas: Canvas) -> dict[str, F64]:
    found = {"attentionOut": canvas.out}
    if canvas.lse_on:
        found["softmaxLse"] = canvas.lse
    return found


def _rounded(problem: Problem, outputs: dict[str, F64]) -> dict[str, F64]:
    """Outputs rounded to their dtypes."""
    if "softmaxLse" in outputs:
        outputs["softmaxLse"] = _round_to("FLOAT32", outputs["softmaxLse"])
    return outputs


def _round_to(dtype: Optional[str], numbers: F64) -> F64:
    if dtype not in ("FLOAT16", "BFLOAT16", "FLOAT32"):
        return numbers
    return np.asarray(decode(dtype, encode(dtype, numbers)), dtype=np.float64)


@np.errstate(all="ignore")
def _limits(problem: Problem, operands: Operands, precision: Precision, plain: F64) -> Limits:
    """Bounds of all runs in output layout; ``plain`` is attentionOut before post-quantisation."""
    usual, worst = Canvas(problem), Canvas(problem)
    antiquant = isinstance(operands, AntiquantOperands)
    wide = undocumented(precision, problem) if antiquant else precision
    slack = Canvas(problem)
    for canvas in (usual, worst, slack):
        canvas.lse[...] = 0.0
    for run in problem.runs():
        q, k = operands.query(run), operands.key(run)
        v = operands.value(run, k)
        facts = (problem.mask(run), problem.run_bias(run), run_sink(problem, run))
        part = analyse(q, k, v, *facts, precision, scale=problem.scale)
        usual.put(run, part.out, part.lse, None)
        worst.put(run, part.out, part.lse_worst, None)
        if antiquant:
            part = analyse(q, k, v, *facts, wide, scale=problem.scale)
            slack.put(run, part.out, part.lse_worst, None)
    post = post_quant_of(problem)
    if post is not None:
        for canvas in (usual, slack):
            canvas.out_rows[...] = bound_after(post, canvas.rows_of(plain), canvas.out_rows)
    return Limits(_outputs(usual), worst.lse if worst.lse_on else None, _outputs(slack) if antiquant else {})


def run_sink(problem: Problem, run: Run) -> Optional[F64]:
    """learnableSink of the run's heads as (KV_N, G)."""
    if problem.sink is None:
        return None
    return problem.sink.reshape(problem.KV_N, problem.G)[run.heads]


def _largest(array: F64) -> float:
    """The largest magnitude; NaN when there is one, 0 for an empty array."""
    return float(max(array.max(), -array.min())) if array.size else 0.0
