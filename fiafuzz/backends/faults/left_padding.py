"""Planted faults of the room left_padding."""

from __future__ import annotations

from typing import Any

from .actual_seq_len import _per_batch
from .record import MASK_GIVEN, MODE_MASK, Fault

QUERY = ("query", "both")
KEY = ("kv", "both")
ANY = ("query", "kv", "both")


def _size(k: Any, name: str) -> int:
    return int(k.x.array(name).reshape(-1)[0])


def _query_from_left(correct: Any, k: Any) -> None:
    if k.p.scene.q_padding_on:
        for span in _per_batch(k):
            span.q_at = span.q_row = 0


def _key_from_left(correct: Any, k: Any) -> None:
    if k.p.scene.kv_padding_on:
        for span in _per_batch(k):
            span.kv_at = span.kv_col = 0


def _no_right_gap(correct: Any, k: Any) -> None:
    if k.p.scene.kv_padding_on:
        for span in _per_batch(k):
            if span.kv_len:
                span.kv_at = span.kv_col = k.p.kv_size - span.kv_len


def _relative(name: str) -> Any:
    def hook(correct: Any, k: Any, span: Any, *tile: int) -> Any:
        from dataclasses import replace

        if k.p.scene.left_padding_on and getattr(k.x, name) is not None:
            span = replace(span, q_row=0, kv_col=0)
        return correct(span, *tile)

    return hook


def _negative_counts(correct: Any, k: Any) -> None:
    scene = k.p.scene
    for span in _per_batch(k):
        if scene.q_padding_on and span.q_len and _size(k, "queryPaddingSize") < 0:
            span.q_at = span.q_row = max(0, span.q_at + _size(k, "queryPaddingSize"))
        if scene.kv_padding_on and span.kv_len and _size(k, "kvPaddingSize") < 0:
            span.kv_at = span.kv_col = max(0, span.kv_at + _size(k, "kvPaddingSize"))


FAULTS: tuple[Fault, ...] = (
    Fault(
        "query-padding-ignored",
        "query rows are taken from the left end",
        "left_padding",
        {"prepare": _query_from_left},
        {"left_padding": QUERY},
        ("a query length below Q_S",),
    ),
    Fault(
        "key-padding-ignored",
        "keys are taken from the left end",
        "left_padding",
        {"prepare": _key_from_left},
        {"left_padding": KEY},
        ("a key length below KV_S",),
    ),
    Fault(
        "key-padding-gap",
        "keys are taken from the right end, without the gap of kvPaddingSize",
        "left_padding",
        {"prepare": _no_right_gap},
        {"left_padding": KEY},
        ("kvPaddingSize over 0",),
    ),
    Fault(
        "padding-mask-relative",
        "with left padding the mask is indexed from the first valid row and column",
        "left_padding",
        {"masked": _relative("mask")},
        {"left_padding": ANY, "sparse_mode": MODE_MASK, "mask": MASK_GIVEN},
        ("a mask that is not uniform",),
    ),
    Fault(
        "padding-bias-relative",
        "with left padding the bias is indexed from the first valid row and column",
        "left_padding",
        {"bias": _relative("pse")},
        {"left_padding": ANY, "pse": "bias"},
    ),
    Fault(
        "negative-padding",
        "a negative padding size moves the data instead of counting as 0",
        "left_padding",
        {"prepare": _negative_counts},
        {"left_padding": ANY},
        ("a padding size below 0",),
    ),
)
