"""Calls of pseType 2 out of calls without bias: what the faults of several rooms need."""

from __future__ import annotations

from typing import Optional

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene

from ..rule import Change


def equal_lengths(s: Scene) -> bool:
    """Whether every batch has as many query as key tokens, as far as the lengths are known."""
    q, kv = s.q_lens, s.kv_lens
    return q is None or kv is None or len(q) != len(kv) or q == kv


def with_slopes(s: Scene, **more: object) -> Optional[dict[str, object]]:
    """A legal call of pseType 2 out of one without bias (equal lengths on both sides), with parameters changed."""
    q, kv = s.q_axes, s.k_axes
    if s.Q_N <= 0 or s.given("pseShift"):
        return None
    values: dict[str, object] = {"pseType": 2, "pseShift": TensorSpec((s.Q_N,), "FLOAT32")}
    if not equal_lengths(s):
        if s.B is None or not 0 < s.B <= 4096 or q is None or kv is None or "S" not in q or "S" not in kv:
            return None
        length = min(q["S"], kv["S"])
        values.update(actualSeqLengths=(length,) * s.B, actualSeqLengthsKv=(length,) * s.B)
    return {**values, **more}


def slopes(**more: object) -> Change:
    """A call without bias as one of pseType 2 with further parameters set."""
    return lambda s: with_slopes(s, **more)
