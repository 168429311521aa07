"""Planted faults of the room softmax_lse."""

from __future__ import annotations

import math
from typing import Any

from .record import MANY, Fault

ON = {"lse": "on"}


def _sign(correct: Any, k: Any, shift: Any, total: Any) -> Any:
    return 2 * shift - correct(shift, total)


def _base_two(correct: Any, k: Any, shift: Any, total: Any) -> Any:
    return correct(shift, total) / math.log(2)


def _no_maximum(correct: Any, k: Any, shift: Any, total: Any) -> Any:
    return correct(shift, total) - shift


def _batch_zero(correct: Any, k: Any, span: Any, rows: Any, o: Any, lse: Any) -> None:
    correct(span, rows, o, lse)
    if k.lse is None or k.p.packed or span.first + span.count < 2:
        return
    first = k.lse[:1, :, rows]
    k.lse[max(1, span.first) : span.first + span.count, :, rows] = first


def _minus_infinity(correct: Any, k: Any, outputs: Any) -> None:
    correct(outputs)
    if k.lse is not None:
        k.lse[k.lse == math.inf] = -math.inf


def _rows_before_heads(correct: Any, k: Any, outputs: Any) -> None:
    correct(outputs)
    p = k.p
    if k.lse is not None and p.q_axes in ("BSND", "BSH"):
        k.lse = k.lse_buffer.view(p.B, p.q_size, p.Q_N).transpose(1, 2)


def _heads_before_tokens(correct: Any, k: Any, outputs: Any) -> None:
    correct(outputs)
    p = k.p
    if k.lse is not None and p.q_axes == "NTD":
        k.lse = k.lse_buffer.view(p.Q_N, p.q_size)


FAULTS: tuple[Fault, ...] = (
    Fault(
        "lse-sign",
        "softmaxLse subtracts the logarithm of the sum",
        "softmax_lse",
        {"logsumexp": _sign},
        ON,
        ("more than one key",),
    ),
    Fault("lse-base-two", "softmaxLse is a logarithm to base 2", "softmax_lse", {"logsumexp": _base_two}, ON),
    Fault(
        "lse-without-maximum", "softmaxLse leaves the row's maximum out", "softmax_lse", {"logsumexp": _no_maximum}, ON
    ),
    Fault(
        "lse-of-batch-zero",
        "every batch holds the softmaxLse of the first",
        "softmax_lse",
        {"store": _batch_zero},
        {**ON, "batch": MANY},
        ("a padded layout",),
    ),
    Fault(
        "lse-minus-infinity",
        "rows without keys hold -inf",
        "softmax_lse",
        {"run": _minus_infinity},
        ON,
        ("a row without keys",),
    ),
    Fault(
        "lse-rows-before-heads",
        "softmaxLse of BSH and BSND layouts has rows before heads",
        "softmax_lse",
        {"open_outputs": _rows_before_heads},
        {**ON, "layout": ("BSH", "BSND", "BSND_BNSD", "BSH_BNSD", "BSND_NBSD", "BSH_NBSD"), "q_s": ("2-16", "17+")},
        ("more than one head",),
    ),
    Fault(
        "lse-heads-before-tokens",
        "softmaxLse of NTD layouts has heads before tokens",
        "softmax_lse",
        {"open_outputs": _heads_before_tokens},
        {**ON, "layout": ("NTD", "NTD_TND")},
        ("more than one head and token",),
    ),
)
