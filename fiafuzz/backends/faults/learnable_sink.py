"""Planted faults of the room learnable_sink."""

from __future__ import annotations

from typing import Any

from .record import GROUPED, Fault

ON = {"sink": "on"}


def _ignored(correct: Any, k: Any) -> None:
    k.x.sink = None


def _scaled(correct: Any, k: Any) -> None:
    if k.x.sink is not None:
        k.x.sink = k.x.sink * k.p.scale


def _by_key_head(correct: Any, k: Any) -> None:
    if k.x.sink is not None:
        k.x.sink = k.x.sink[: k.p.KV_N].repeat_interleave(k.p.G)


def _keep_lse(correct: Any, k: Any, sink: Any, shift: Any, total: Any, acc: Any) -> Any:
    k.lse_before_sink = shift + total.log()
    return correct(sink, shift, total, acc)


def _lse_before(correct: Any, k: Any, shift: Any, total: Any) -> Any:
    return correct(shift, total) if k.x.sink is None else k.lse_before_sink


def _per_tile(correct: Any, k: Any, sink: Any, shift: Any, total: Any, acc: Any) -> Any:
    import math

    columns = max(k.p.columns(s) for s in k.p.spans)
    return correct(sink + math.log(-(-columns // k.tile)), shift, total, acc)


def _without_maximum(correct: Any, k: Any, sink: Any, shift: Any, total: Any, acc: Any) -> Any:
    return shift, total + k.split_heads(sink[:, None, None]).exp(), acc


def _brings_a_value(correct: Any, k: Any, sink: Any, shift: Any, total: Any, acc: Any) -> Any:
    raised, new_total, new_acc = correct(sink, shift, total, acc)
    return raised, new_total, new_acc * (new_total / (total * (shift - raised).exp()))


FAULTS: tuple[Fault, ...] = (
    Fault("sink-ignored", "learnableSink is ignored", "learnable_sink", {"prepare": _ignored}, ON),
    Fault(
        "sink-scaled",
        "learnableSink is multiplied by scaleValue",
        "learnable_sink",
        {"prepare": _scaled},
        ON,
        ("scaleValue is not 1",),
    ),
    Fault(
        "sink-by-key-head",
        "learnableSink is indexed by key head",
        "learnable_sink",
        {"prepare": _by_key_head},
        {**ON, "group": GROUPED},
    ),
    Fault(
        "sink-not-in-lse",
        "softmaxLse leaves the sink out",
        "learnable_sink",
        {"add_sink": _keep_lse, "logsumexp": _lse_before},
        {**ON, "lse": "on"},
    ),
    Fault(
        "sink-per-tile",
        "the sink is added once per tile of columns",
        "learnable_sink",
        {"add_sink": _per_tile},
        ON,
        ("more columns than one tile",),
    ),
    Fault(
        "sink-without-maximum",
        "the sink is exponentiated without the row's maximum",
        "learnable_sink",
        {"add_sink": _without_maximum},
        ON,
    ),
    Fault(
        "sink-only-in-lse",
        "the sink counts in softmaxLse but not in the division",
        "learnable_sink",
        {"add_sink": _brings_a_value},
        ON,
    ),
)
