"""Post-quantisation: y = out * quantScale2 + quantOffset2, then INT8, FLOAT8_E4M3FN or HIFLOAT8 (spec/numerics.md 17).

The ideal form leaves y unrounded (INT8 clamped to its range); the stage-wise form rounds as the published references
do (spec/numerics_corrections.md 9). Rows without a result hold 0 or round(offset), by reference: both are accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fiafuzz.model.codecs import decode, encode
from fiafuzz.model.dtypes import DTYPES

from .canvas import DEAD, NO_KEYS, Canvas
from .expected import F64, Bool, ReferenceError
from .problem import Problem
from .undefined import zero_rows

INT8_LOW, INT8_HIGH = -128.0, 127.0


@dataclass(frozen=True)
class PostQuant:
    """Scale and offset, broadcastable over (..., Q_N, rows, V_D), and the dtype of the output."""

    scale: F64
    offset: F64
    dtype: str
    has_offset: bool
    per_channel: bool

    @property
    def saturates(self) -> bool:
        """Whether overflow is defined (INT8); 8-bit floats depend on a control bit (spec/numerics.md 24 item 9)."""
        return self.dtype == "INT8"


def post_quant_of(problem: Problem) -> PostQuant | None:
    """The post-quantisation of a case; None when attentionOut is FLOAT16, BFLOAT16 or FLOAT32."""
    scene = problem.scene
    if not scene.post_quant_on or scene.out_dtype in (None, "FLOAT32"):
        return None
    scale = _parameter(problem, "quantScale2")
    has_offset = scene.given("quantOffset2")
    offset = _parameter(problem, "quantOffset2") if has_offset else np.zeros_like(scale)
    return PostQuant(scale, offset, str(scene.out_dtype), has_offset, scale.size > 1)


def _parameter(problem: Problem, name: str) -> F64:
    numbers = problem.numbers(name).reshape(-1)
    if numbers.size == 1:
        return numbers.reshape(1, 1, 1)
    if numbers.size != problem.Q_N * problem.V_D:
        raise ReferenceError(f"{name} has {numbers.size} elements instead of 1 or {problem.Q_N * problem.V_D}")
    return numbers.reshape(problem.Q_N, 1, problem.V_D)


def quantise(canvas: Canvas, post: PostQuant, form: str) -> None:
    """Replace attentionOut by its quantised numbers, in place, with the rules about rows without a result."""
    rows = canvas.out_rows
    blank = zero_rows(canvas)
    if form == "stagewise":
        rows[...] = _stagewise(canvas.problem, rows, post)
    else:
        rows *= post.scale
        rows += post.offset
        if post.saturates:
            np.clip(rows, INT8_LOW, INT8_HIGH, out=rows)
    if not post.saturates:
        largest = DTYPES[post.dtype].max_finite
        beyond = np.abs(rows) > largest
        if beyond.any():
            canvas.exclude_elements(beyond, f"beyond the range of {post.dtype}")
            np.clip(rows, -largest, largest, out=rows)
    if post.has_offset and blank.any():
        _blank_rows(canvas, post, blank, form)
    elif not post.has_offset:
        rows[blank] = 0.0


def _blank_rows(canvas: Canvas, post: PostQuant, blank: Bool, form: str) -> None:
    """Rows without a result are 0 or the quantised offset, by reference (spec/numerics_corrections.md 10)."""
    scene, rows = canvas.problem.scene, canvas.out_rows
    offset = np.clip(post.offset, INT8_LOW, INT8_HIGH) if post.saturates else post.offset
    offset = np.broadcast_to(np.rint(offset) if post.saturates and form == "stagewise" else offset, rows.shape)
    if scene.quant_kind == "antiquant":
        shifted = blank
    elif scene.quant_kind == "full":
        shifted = canvas.state == DEAD
    else:
        shifted = (canvas.state == NO_KEYS) & bool(scene.single_token)
    rows[blank & ~shifted] = 0.0
    rows[shifted] = offset[shifted]
    other = np.where(shifted[..., None], 0.0, offset)
    canvas.allow_out(blank, other, "row without result: 0 or the quantised offset")


def _stagewise(problem: Problem, out: F64, post: PostQuant) -> F64:
    if post.dtype != "INT8":
        y = (out.astype(np.float32) * post.scale.astype(np.float32) + post.offset.astype(np.float32)).astype(np.float64)
        rounding: Literal["hybrid"] | None = "hybrid" if post.dtype == "HIFLOAT8" else None
        return np.asarray(decode(post.dtype, encode(post.dtype, y, rounding=rounding, overflow="saturate")), np.float64)
    with np.errstate(over="ignore"):
        if problem.scene.quant_kind == "full":
            wide = out.astype(np.float32) * post.scale.astype(np.float16).astype(np.float32)
            y = (wide + post.offset.astype(np.float16).astype(np.float32)).astype(np.float64)
        else:
            product = out.astype(np.float16) * post.scale.astype(np.float16)
            if problem.scene.quant_kind == "antiquant" and post.per_channel:
                product = np.clip(product, np.float16(-256), np.float16(255))
            half = product + post.offset.astype(np.float16)
            y = np.clip(half, np.float16(-256), np.float16(255)).astype(np.float64)
    return np.clip(np.rint(y), INT8_LOW, INT8_HIGH)


def bound_after(post: PostQuant, out: F64, bound: F64) -> F64:
    """How far y may be off for an output that may be off by ``bound``, when all steps round to FLOAT16.

    ``out`` and ``bound`` are rows views before quantisation. The final rounding is not counted: it is the criterion's.
    """
    step = 2.0**-11 if post.dtype == "INT8" else 2.0**-23
    product = np.abs(out * post.scale)
    return np.asarray(
        bound * np.abs(post.scale) + 4 * step * product + step * (np.abs(post.offset) + np.abs(product + np.abs(post.offset)))
    )
