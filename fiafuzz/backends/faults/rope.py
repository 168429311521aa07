"""Planted faults of the room rope: split rope, Decode MLA, combined heads."""

from __future__ import annotations

from typing import Any

from .record import SEVERAL_KV, Fault

SPLIT = ("mla_decode", "mla_prefill_split")


def _scaled_twice(correct: Any, k: Any, span: Any) -> Any:
    q = correct(span)
    if k.p.rope_d:
        q = q.clone()
        q[..., k.p.D :] *= k.p.scale
    return q


def _left_out(correct: Any, k: Any, span: Any) -> Any:
    q = correct(span)
    if k.p.rope_d:
        q = q.clone()
        q[..., k.p.D :] = 0
    return q


def _value_used(correct: Any, k: Any) -> None:
    if k.p.scene.mla_kind == "decode":
        k.x.value = k.x.columns("value", "valueSharedPrefix")


def _key_head_zero(correct: Any, k: Any, keys: Any, span: Any, j0: int, j1: int) -> Any:
    tile = correct(keys, span, j0, j1)
    if k.p.rope_d:
        tile = tile.clone()
        tile[..., k.p.D :] = tile[:, :1, :, k.p.D :]
    return tile


def _wide_fractal(correct: Any, k: Any, span: Any) -> Any:
    found, cache = correct(span), k.x.key_rope.cache
    if cache is None or cache.dim() != 5 or found.shape[-1] % 32:
        return found
    return found.unflatten(-1, (-1, 32)).unflatten(-1, (2, 16)).transpose(-2, -3).flatten(-3)


def _first_columns(correct: Any, k: Any, span: Any) -> Any:
    q = correct(span)
    if k.p.scene.mla_kind == "prefill_combined":
        q = q.clone()
        q[..., k.p.V_D :] = 0
    return q


def _scale_of_nope(correct: Any, k: Any) -> None:
    if k.p.rope_d:
        k.p.scale *= ((k.p.D + k.p.rope_d) / k.p.D) ** 0.5


FAULTS: tuple[Fault, ...] = (
    Fault(
        "rope-scaled-twice",
        "the rope part of the score is scaled twice",
        "rope",
        {"queries": _scaled_twice},
        {"scenario": SPLIT},
        ("scaleValue is not 1",),
    ),
    Fault(
        "rope-left-out",
        "the rope part does not count in the score",
        "rope",
        {"queries": _left_out},
        {"scenario": SPLIT},
    ),
    Fault(
        "mla-value-used",
        "Decode MLA reads the value tensor instead of the keys",
        "rope",
        {"prepare": _value_used},
        {"scenario": ("mla_decode", "full_decode_mla")},
    ),
    Fault(
        "rope-key-head-zero",
        "all key heads share the rope columns of the first",
        "rope",
        {"key_tile": _key_head_zero},
        {"scenario": "mla_prefill_split", "group": SEVERAL_KV},
        ("more than one key head",),
    ),
    Fault(
        "rope-nz-of-32",
        "keyRope in NZ is read in fractals of 32 columns",
        "rope",
        {"x.key_rope.fetch": _wide_fractal},
        {"scenario": (*SPLIT, "full_decode_mla"), "storage": "NZ"},
    ),
    Fault(
        "combined-first-columns",
        "of 192 combined columns only the first 128 count",
        "rope",
        {"queries": _first_columns},
        {"scenario": "mla_prefill_combined"},
    ),
    Fault(
        "rope-scale-of-nope",
        "the score is rescaled for the head size with rope",
        "rope",
        {"prepare": _scale_of_nope},
        {"scenario": SPLIT},
    ),
)
