"""Planted faults of the room shared_prefix."""

from __future__ import annotations

from typing import Any

from .record import Fault

GIVEN = ("full", "actual")
OPEN = 1 << 40


def _not_in_diagonal(correct: Any, k: Any, span: Any) -> Any:
    low, high = correct(span)
    if k.p.sparse_mode not in (3, 4) or not k.p.prefix:
        return low, high
    return low - k.p.prefix if low > -OPEN else low, high - k.p.prefix if high < OPEN else high


def _whole(correct: Any, k: Any) -> None:
    if k.p.prefix and k.x.mask is None and k.x.pse is None and k.p.kind == "none":
        k.p.prefix = k.p.scene.prefix_s


def _late_values(correct: Any, k: Any, prefix: Any, own: Any) -> Any:
    return correct(prefix.roll(1, 2), own)


def _behind(correct: Any, k: Any, prefix: Any, own: Any) -> Any:
    return correct(own, prefix)


def _no_values(correct: Any, k: Any, prefix: Any, own: Any) -> Any:
    return correct(own[:, :, :1].expand_as(prefix) if own.shape[2] else prefix, own)


FAULTS: tuple[Fault, ...] = (
    Fault(
        "prefix-not-in-diagonal",
        "the causal diagonal does not count the prefix",
        "shared_prefix",
        {"band": _not_in_diagonal},
        {"prefix": GIVEN, "sparse_mode": ("3", "4")},
    ),
    Fault(
        "prefix-whole",
        "the whole prefix is used whatever actualSharedPrefixLen says",
        "shared_prefix",
        {"prepare": _whole},
        {"prefix": "actual"},
        ("actualSharedPrefixLen below the axis", "no mask and bias of exact width"),
    ),
    Fault(
        "prefix-values-late",
        "values of the prefix are one row late",
        "shared_prefix",
        {"x.value.join": _late_values},
        {"prefix": GIVEN},
        ("a prefix of more than one column",),
    ),
    Fault(
        "prefix-behind-keys",
        "prefix columns come behind the batch's own",
        "shared_prefix",
        {"x.key.join": _behind, "x.value.join": _behind},
        {"prefix": GIVEN},
        ("columns that are not all alike: mask or bias",),
    ),
    Fault(
        "prefix-values-of-first-key",
        "values of the prefix are those of the batch's first key",
        "shared_prefix",
        {"x.value.join": _no_values},
        {"prefix": GIVEN},
    ),
)
