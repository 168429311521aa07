"""Planted faults of the room inner_precise."""

from __future__ import annotations

import math
from typing import Any

from .record import MASK_GIVEN, MODE_MASK, Fault


def _no_row_fix(correct: Any, k: Any, span: Any, i0: int, o: Any, lse: Any, empty: Any) -> None:
    if empty is not None and k.p.scene.inner_precise in (2, 3):
        mean = k.value_tile(k.values(span), span, 0, k.p.columns(span)).mean(2)
        o = o.where(~empty, mean[:, :, None, None, :])
        lse = lse.masked_fill(empty.squeeze(-1), math.inf)
        empty = None
    correct(span, i0, o, lse, empty)


def _short_scores(correct: Any, k: Any, *arguments: Any) -> Any:
    scores = correct(*arguments)
    if k.p.scene.inner_precise in (1, 3) and k.p.q_dtype == "FLOAT16":
        scores = scores.bfloat16().float()
    return scores


FAULTS: tuple[Fault, ...] = (
    Fault(
        "row-fix-missing",
        "innerPrecise 2 and 3 do not zero fully masked rows: they hold the mean of the values",
        "inner_precise",
        {"write": _no_row_fix},
        {"inner_precise": ("2", "3"), "sparse_mode": MODE_MASK, "mask": MASK_GIVEN},
        ("a row whose mask is all ones",),
    ),
    Fault(
        "high-performance-scores",
        "innerPrecise 1 and 3 hold the scores of a FLOAT16 call in 8 bits",
        "inner_precise",
        {"scale_scores": _short_scores},
        {"inner_precise": ("1", "3"), "q_dtype": "FLOAT16"},
    ),
)
