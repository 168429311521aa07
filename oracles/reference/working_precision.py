"""The operator's working precision per path, as relative and absolute errors of its steps (spec/numerics.md 2, 14,
15, 16).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from fiafuzz.model.dtypes import DTYPES

from .full_fp8 import Fp8Operands
from .full_mla import MlaOperands
from .full_mxfp8 import Mxfp8Operands
from .full_per_tensor import PerTensorOperands
from .operands import Operands
from .problem import Problem

U = 2.0**-24
HALF = 2.0**-11
"""Unit roundoffs of float32 and FLOAT16."""

FP16_MAX = 65504.0


@dataclass(frozen=True)
class Precision:
    """Errors of one working precision, relative unless said otherwise.

    ``p``: rounding of the exponentials before the product; ``p_step``: the absolute part of it, for an exponential of
    at most 1 (integers, subnormal 8-bit floats); ``tiny``: the absolute part that FLOAT16 has by underflow.
    ``score``: of a score per step; ``sums``: unit of row sums and products; ``total``: rounding of the row sum;
    ``out``: rounding of the result, ``floor`` its absolute part. ``k``, ``v``: rounding of dequantised keys and
    values. ``range``: largest raw score that keeps its value. ``usual``: whether lse follows a plain float32
    evaluation of the reference's own scores.
    """

    p: float
    out: float
    floor: float
    tiny: float = 0.0
    p_step: float = 0.0
    score: float = U
    sums: float = U
    total: float = 0.0
    k: float = 0.0
    v: float = 0.0
    range: float = np.inf
    usual: bool = True


def precision_of(problem: Problem, operands: Operands) -> Precision:
    """The working precision of a case."""
    scene = problem.scene
    out = DTYPES[scene.out_dtype] if scene.out_dtype in ("FLOAT16", "BFLOAT16", "FLOAT32") else DTYPES["FLOAT16"]
    unit, floor = out.epsilon / 2, out.min_subnormal
    if isinstance(operands, PerTensorOperands):
        factor = max(float(operands.p_scale), 1e-30)
        if operands.integer:
            return Precision(4 * HALF, unit, floor, p_step=0.5 / factor, score=HALF, total=HALF)
        return _eight_bits(scene.q_dtype or "", factor, unit, floor, hybrid=True)
    if isinstance(operands, MlaOperands):
        if operands.integer:
            return Precision(6 * HALF, unit, floor, p_step=0.5 / 127)
        return _eight_bits(operands.dtype, float(operands.factor), unit, floor, hybrid=False)
    if isinstance(operands, (Fp8Operands, Mxfp8Operands)):
        found = _eight_bits("FLOAT8_E4M3FN", max(operands.p_scale, 1e-30) / 2, unit, floor, hybrid=False)
        return replace(found, score=HALF) if isinstance(operands, Fp8Operands) and operands.half_scores else found
    fast = scene.inner_precise & 1 and scene.q_dtype == "FLOAT16" and scene.inputs.pseShift is None
    return _floats(scene.q_dtype or "", out.name, bool(fast), bool(fast and not scene.is_950 and scene.quant_kind == "none"))


@lru_cache(maxsize=64)
def _floats(query: str, output: str, fast: bool, half: bool) -> Precision:
    work = DTYPES[query] if query in ("FLOAT16", "BFLOAT16", "FLOAT32") else DTYPES["FLOAT16"]
    out = DTYPES[output]
    p, tiny = work.epsilon / 2, work.min_subnormal / 2
    reach = FP16_MAX if fast else np.inf
    if half:
        # High performance: scores, exponentials and sums in FLOAT16; which steps exactly is not documented.
        return Precision(2 * p, out.epsilon / 2, out.min_subnormal, tiny=2 * tiny, score=HALF, sums=HALF, range=reach, usual=False)
    return Precision(p, out.epsilon / 2, out.min_subnormal, tiny=tiny, range=reach)


def _eight_bits(dtype: str, factor: float, out: float, floor: float, *, hybrid: bool) -> Precision:
    """Exponentials times ``factor`` in an 8-bit float. HIFLOAT8 has two fraction bits from 16 on and one from 256 on;
    HYBRID may round by a whole unit.
    """
    if dtype == "HIFLOAT8":
        unit = 0.25 if factor < 256 else 0.5
        return Precision(unit if hybrid else unit / 2, out, floor, p_step=2.0**-22 / factor)
    fmt = DTYPES[dtype]
    return Precision(fmt.epsilon / 2, out, floor, p_step=fmt.min_subnormal / 2 / factor)


def undocumented(precision: Precision, problem: Problem) -> Precision:
    """The precision granted to dequantised keys and values when no documented order of roundings fits: two roundings
    of each.
    """
    unit = DTYPES[problem.scene.q_dtype or "FLOAT16"].epsilon
    return replace(precision, k=unit, v=unit, usual=False)
