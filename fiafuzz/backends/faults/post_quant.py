"""Planted faults of the room post_quant."""

from __future__ import annotations

from typing import Any

from .record import GROUPED, Fault

ANY = ("tensor", "channel", "tensor+offset", "channel+offset")
OFFSET = ("tensor+offset", "channel+offset")
CHANNEL = ("channel", "channel+offset")
NOT_ZERO = ("offsets that are not all 0",)


def _wraps(correct: Any, k: Any, y: Any) -> Any:
    if k.p.out_dtype != "INT8":
        return correct(y)
    import torch

    return ((y.half().float().round().to(torch.int32) + 128) % 256 - 128).to(torch.int8)


def _divided(correct: Any, k: Any, o: Any, scale: Any, offset: Any) -> Any:
    return correct(o, 1 / scale, offset)


def _offset_first(correct: Any, k: Any, o: Any, scale: Any, offset: Any) -> Any:
    return correct(o if offset is None else o + offset, scale, None)


def _offset_subtracted(correct: Any, k: Any, o: Any, scale: Any, offset: Any) -> Any:
    return correct(o, scale, None if offset is None else -offset)


def _columns_first(correct: Any, k: Any, name: str) -> Any:
    x = correct(name)
    return x.reshape(k.p.V_D, k.p.Q_N).transpose(0, 1).unsqueeze(1) if x.dim() else x


def _by_key_head(correct: Any, k: Any, name: str) -> Any:
    x = correct(name)
    return x[: k.p.KV_N].repeat_interleave(k.p.G, dim=0) if x.dim() else x


def _first_channel(correct: Any, k: Any, name: str) -> Any:
    x = correct(name)
    return x[:1, :, :1] if x.dim() else x


def _lowest_on_empty(correct: Any, k: Any, codes: Any, empty: Any) -> Any:
    return codes.masked_fill(empty, -128) if k.p.out_dtype == "INT8" else correct(codes, empty)


def _small_range(correct: Any, k: Any, y: Any) -> Any:
    return correct(y.clamp(-15, 15) if k.p.out_dtype == "HIFLOAT8" else y)


def _truncated(correct: Any, k: Any, y: Any) -> Any:
    return correct((y / 8).trunc() * 8 if k.p.out_dtype == "INT8" else y)


FAULTS: tuple[Fault, ...] = (
    Fault(
        "int8-wraps",
        "INT8 output keeps the low bits instead of saturating",
        "post_quant",
        {"to_codes": _wraps},
        {"post_quant": ANY, "out_dtype": "INT8"},
        ("a value beyond the range",),
    ),
    Fault(
        "int8-steps-of-eight",
        "INT8 output loses its three low bits",
        "post_quant",
        {"to_codes": _truncated},
        {"post_quant": ANY, "out_dtype": "INT8"},
    ),
    Fault(
        "scale-divided",
        "the output is divided by quantScale2",
        "post_quant",
        {"post_quantise": _divided},
        {"post_quant": ANY},
        ("quantScale2 is not 1",),
    ),
    Fault(
        "offset-before-scale",
        "quantOffset2 is added before the scale",
        "post_quant",
        {"post_quantise": _offset_first},
        {"post_quant": OFFSET},
        NOT_ZERO,
    ),
    Fault(
        "post-offset-subtracted",
        "quantOffset2 is subtracted",
        "post_quant",
        {"post_quantise": _offset_subtracted},
        {"post_quant": OFFSET},
        NOT_ZERO,
    ),
    Fault(
        "channel-columns-first",
        "parameters per channel are indexed column first",
        "post_quant",
        {"per_head_column": _columns_first},
        {"post_quant": CHANNEL},
        ("more than one head",),
    ),
    Fault(
        "channel-by-key-head",
        "parameters per channel are indexed by key head",
        "post_quant",
        {"per_head_column": _by_key_head},
        {"post_quant": CHANNEL, "group": GROUPED},
    ),
    Fault(
        "first-channel",
        "every channel takes the parameters of the first",
        "post_quant",
        {"per_head_column": _first_channel},
        {"post_quant": CHANNEL},
    ),
    Fault(
        "lowest-on-empty-rows",
        "fully masked rows of INT8 output hold -128, as 0/0 becomes",
        "post_quant",
        {"blank_codes": _lowest_on_empty},
        {"post_quant": ANY, "out_dtype": "INT8"},
        ("a fully masked row",),
    ),
    Fault(
        "hif8-range",
        "HIFLOAT8 output ends at 15",
        "post_quant",
        {"to_codes": _small_range},
        {"post_quant": ANY, "out_dtype": "HIFLOAT8"},
        ("a value beyond 15",),
    ),
)
