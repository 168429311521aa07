"""The verdict on the numbers of one run: official precision standards, and the row gate that no element escapes.

Why two. The official standards judge a whole tensor: mixed tolerance passes a case with one per cent of bad elements,
so one wrong row of a hundred goes unseen, and its absolute part hides everything when values are small; the relative
ones alarm on any correct kernel near zero. A fuzzer needs both ends: no alarm on a correct kernel, and every wrong
row seen. The **row gate** ("fiafuzz" among the standards) therefore looks at every element by itself. An element is
inside when one of these holds:

1. |a - g| <= rtol * (min(1, largest |v|) + |g|) with rtol of the output dtype (2**-10 for FLOAT16, 2**-7 for
   BFLOAT16): the mixed tolerance, its absolute part scaled down with the values. For lse: |a - g| <= 2**-13 * (1 +
   |g|), the mixed tolerance of FLOAT32.
2. it equals an allowed alternative (a marker for rows without keys, a second number where references part) to the
   same tolerance.
3. |a - g| is at most twice the rigorous bound of its row (``Expected.error_bound``: rounding of the exponentials,
   float32 sums, ill-conditioned scores; ``reference/bounds.py``), plus the quantisation step where P or the output is
   quantised.
4. for quantised keys and values: the outputs fit one of the documented orders of rounding (``Expected.arithmetics``)
   to these tolerances.

Rows whose bound says nothing (untestable) are not compared, and counted. Rows that stand for no computation (padding,
no keys, fully masked) must hold exactly their number. The gate passes correct kernels whatever the magnitudes, and a
dropped tail block, a wrong row, a length one too long (in lse) show at once, since nothing is averaged.

A verdict passes when the gate passes and the chosen standard passes; elements inside their rigorous bound do not
count against the two mixed standards (``standard_passed`` says what the letter of the standard gives). Criteria per
output are those of spec/numerics.md 23: INT8 one code, HIFLOAT8 one place in value order, lse 1e-3 + 2**-10 |g|,
8-bit P by the 0.5 % rule.

``poison`` gives the pattern that output buffers hold before a run; what still holds it was left unwritten (F104).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiafuzz.model.dtypes import DTYPES

from .judge import ElementRecord, Judgement, OutputRecord, judge_outputs
from .poison import holds_poison, poison
from .precision_standards import DEFAULT_STANDARD, STANDARDS, Standard

__all__ = [
    "DEFAULT_STANDARD",
    "STANDARDS",
    "ElementRecord",
    "Judgement",
    "OutputRecord",
    "Standard",
    "holds_poison",
    "judge_outputs",
    "poison",
    "poisoned_outputs",
]


def poisoned_outputs(case: Any) -> dict[str, NDArray[Any]]:
    """Poisoned buffers in storage form for the outputs of a case (softmaxLse only when softmaxLseFlag asks for it)."""
    found = {}
    for name in ("attentionOut", "softmaxLse"):
        spec = getattr(case.outputs, name)
        if spec is None or (name == "softmaxLse" and not case.attrs.softmaxLseFlag):
            continue
        if min(spec.shape, default=1) >= 0 and spec.dtype in DTYPES:
            found[name] = np.asarray(poison(spec.dtype, spec.shape))
    return found
