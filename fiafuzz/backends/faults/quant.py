"""Planted faults of the room quant: antiquant here, full quantisation in full_quant.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .full_quant import FULL_FAULTS
from .record import BY_SOURCE, MANY, SEVERAL_KV, Fault

ANTIQUANT = {"scenario": "antiquant"}
PER_TOKEN = ("per_token", "token_head")
IN_PAGES = ("token_paged", "token_head_paged")


def _high_nibble_first(correct: Any, k: Any, codes: Any) -> Any:
    if k.p.scene.int4_carrier:
        codes = codes.unflatten(-1, (-1, 8)).flip(-1).flatten(-2)
    return correct(codes)


def _unsigned_nibbles(correct: Any, k: Any, codes: Any) -> Any:
    return correct(codes % 16 if k.p.kv_dtype == "INT4" else codes)


def _offset_subtracted(correct: Any, k: Any, x: Any, scale: Any, offset: Any) -> Any:
    return correct(x, scale, None if offset is None else -offset)


def _offset_behind_scale(correct: Any, k: Any, x: Any, scale: Any, offset: Any) -> Any:
    x = correct(x, scale, None)
    return x if offset is None else x + offset


def _offset_ignored(correct: Any, k: Any, x: Any, scale: Any, offset: Any) -> Any:
    return correct(x, scale, None)


def _both(k: Any) -> tuple[Any, ...]:
    """The antiquant parameters of key and value; none in calls without."""
    return (k.of_key, k.of_value) if k.p.kind == "antiquant" else ()


def _channel_of_head_zero(correct: Any, k: Any) -> None:
    for of in _both(k):
        if of.scale.how == "fixed" and of.scale.x.shape[2] > 1:
            of.scale = replace(of.scale, x=of.scale.x[:1])


def _heads_reversed(correct: Any, k: Any) -> None:
    for of in _both(k):
        if of.scale.how == "fixed" and of.scale.x.shape[0] > 1 and of.scale.x.shape[2] == 1:
            of.scale = replace(of.scale, x=of.scale.x.flip(0))


def _key_parameters_for_values(correct: Any, k: Any) -> None:
    same = k.p.scene.attrs.keyAntiquantMode == k.p.scene.attrs.valueAntiquantMode and k.p.D == k.p.V_D
    if _both(k) and same:
        k.of_value = k.of_key


def _unpadded(correct: Any, k: Any, span: Any) -> int:
    return 0


def _without_prefix(correct: Any, k: Any, parameter: Any, span: Any) -> Any:
    found = correct(parameter, span)
    if parameter is None or parameter.how != "token" or not k.p.prefix:
        return found
    import torch

    return torch.cat((found[:, :, : k.p.prefix], found[:, :, : span.kv_len]), dim=2)


def _batch_zero(correct: Any, k: Any) -> None:
    for of in _both(k):
        if of.scale.how == "token" and of.scale.x.shape[0] > 1:
            of.scale = replace(of.scale, x=of.scale.x[:1].expand_as(of.scale.x))


def _tokens_before_heads(correct: Any, k: Any) -> None:
    for of in _both(k):
        x = of.scale.x
        if of.scale.how == "token" and x.shape[1] > 1 and x.shape[3] == 1:
            of.scale = replace(of.scale, x=x.reshape(x.shape[0], x.shape[2], x.shape[1], 1).transpose(1, 2))


def _pages_in_order(correct: Any, k: Any, x: Any, span: Any) -> Any:
    import torch

    table = (torch.arange(k.x.table.numel()) % x.shape[0]).view(k.x.table.shape)
    found = x[table[span.first : span.first + span.count, : -(-span.kv_len // k.p.block_size)]]
    return found.transpose(1, 2).flatten(2, 3)[:, :, : span.kv_len]


def _bias_of_128(correct: Any, k: Any, x: Any, head: int) -> Any:
    return correct(x, head) / 2


def _groups_of_sixteen(correct: Any, k: Any, x: Any, head: int) -> Any:
    import torch

    return x.repeat_interleave(16, dim=-1)[..., torch.arange(head) % (16 * x.shape[-1])]


def _hif8_signs(correct: Any, k: Any, codes: Any) -> Any:
    x = correct(codes)
    if k.p.kv_dtype != "HIFLOAT8":
        return x
    size = x.abs()
    return (x / 4).where((size >= 2) & (size < 4), (x * 4).where((size >= 0.5) & (size < 1), x))


def _e5m2_table(correct: Any, k: Any, codes: Any) -> Any:
    if k.p.kv_dtype != "FLOAT8_E4M3FN":
        return correct(codes)
    import torch

    return codes.view(torch.float8_e5m2).float()


def _fp4_signs(correct: Any, k: Any, codes: Any) -> Any:
    return correct(codes ^ 8 if k.p.kv_dtype == "FLOAT4_E2M1" else codes)


def _halves_swapped(correct: Any, k: Any) -> None:
    if k.p.scene.merged_antiquant and k.p.D == k.p.V_D:
        k.of_key, k.of_value = k.of_value, k.of_key


def _value_channel(correct: Any, k: Any) -> None:
    if k.p.scene.antiquant_kind == "mixed":
        x = k.of_value.scale.x
        k.of_value.scale = replace(k.of_value.scale, x=x[:, :, :1].expand_as(x))


FAULTS: tuple[Fault, ...] = (
    Fault(
        "nibble-order",
        "the highest nibble of a word comes first",
        "quant",
        {"decode": _high_nibble_first},
        {**ANTIQUANT, "kv_dtype": "INT4"},
        ("INT4 packed in INT32",),
    ),
    Fault(
        "nibble-unsigned",
        "nibbles count as 0 .. 15",
        "quant",
        {"decode": _unsigned_nibbles},
        {**ANTIQUANT, "kv_dtype": "INT4"},
    ),
    Fault(
        "offset-subtracted",
        "the antiquant offset is subtracted",
        "quant",
        {"dequantise": _offset_subtracted},
        {**ANTIQUANT, "antiquant_offset": "offset"},
        ("offsets that are not all 0",),
    ),
    Fault(
        "offset-behind-scale",
        "the antiquant offset is added after the scale",
        "quant",
        {"dequantise": _offset_behind_scale},
        {**ANTIQUANT, "antiquant_offset": "offset"},
        ("offsets that are not all 0",),
    ),
    Fault(
        "offset-ignored",
        "the antiquant offset is ignored",
        "quant",
        {"dequantise": _offset_ignored},
        {**ANTIQUANT, "antiquant_offset": "offset"},
        ("offsets that are not all 0",),
    ),
    Fault(
        "channel-of-head-zero",
        "every head takes the channel scales of the first",
        "quant",
        {"prepare": _channel_of_head_zero},
        {**ANTIQUANT, "antiquant": ("per_channel", "mixed", "merged"), "group": SEVERAL_KV},
        ("more than one key head",),
    ),
    Fault(
        "head-scales-reversed",
        "scales per head are taken in reverse order",
        "quant",
        {"prepare": _heads_reversed},
        {**ANTIQUANT, "antiquant": "tensor_head", "group": SEVERAL_KV},
        ("more than one key head",),
    ),
    Fault(
        "key-scale-for-value",
        "values are dequantised with the parameters of the keys",
        "quant",
        {"prepare": _key_parameters_for_values},
        ANTIQUANT,
        ("key and value in the same mode",),
    ),
    Fault(
        "token-scale-unpadded",
        "with key left padding, scales per token are indexed from the first valid key",
        "quant",
        {"token_at": _unpadded},
        {**ANTIQUANT, "antiquant": PER_TOKEN, "left_padding": ("kv", "both")},
    ),
    Fault(
        "token-scale-without-prefix",
        "scales per token of the keys start at 0 although prefix columns come first",
        "quant",
        {"fetch_parameter": _without_prefix},
        {**ANTIQUANT, "antiquant": (*PER_TOKEN, "mixed"), "prefix": ("full", "actual")},
    ),
    Fault(
        "token-scale-of-batch-zero",
        "every batch takes the scales per token of the first",
        "quant",
        {"prepare": _batch_zero},
        {**ANTIQUANT, "antiquant": (*PER_TOKEN, "group"), "batch": MANY},
    ),
    Fault(
        "token-head-swapped",
        "scales per token and head are read as if tokens came before heads",
        "quant",
        {"prepare": _tokens_before_heads},
        {**ANTIQUANT, "antiquant": "token_head", "group": SEVERAL_KV},
        ("more than one key head and token",),
    ),
    Fault(
        "paged-scales-in-order",
        "scales in cache blocks are read in the order in which they are stored",
        "quant",
        {"by_block": _pages_in_order},
        {**ANTIQUANT, "antiquant": IN_PAGES},
        ("a table that is not the identity",),
    ),
    Fault(
        "group-bias",
        "E8M0 scales have a bias of 128",
        "quant",
        {"spread_groups": _bias_of_128},
        {**ANTIQUANT, "antiquant": "group"},
    ),
    Fault(
        "groups-of-sixteen",
        "an E8M0 scale holds for 16 elements",
        "quant",
        {"spread_groups": _groups_of_sixteen},
        {**ANTIQUANT, "antiquant": "group"},
        ("more than one group",),
    ),
    Fault(
        "hif8-table",
        "HIFLOAT8 exponents +1 and -1 are exchanged",
        "quant",
        {"decode": _hif8_signs},
        {**ANTIQUANT, "kv_dtype": "HIFLOAT8"},
    ),
    Fault(
        "e4m3-as-e5m2",
        "E4M3 keys and values are read as E5M2",
        "quant",
        {"decode": _e5m2_table},
        {**ANTIQUANT, "kv_dtype": "FLOAT8_E4M3FN"},
    ),
    Fault(
        "fp4-sign",
        "the sign bit of FLOAT4_E2M1 is inverted",
        "quant",
        {"decode": _fp4_signs},
        {**ANTIQUANT, "kv_dtype": "FLOAT4_E2M1"},
    ),
    Fault(
        "combined-halves-swapped",
        "of combined antiquant parameters the value's half is used for keys",
        "quant",
        {"prepare": _halves_swapped},
        {**ANTIQUANT, "antiquant": "merged"},
        profile="a2-v3",
    ),
    Fault(
        "mixed-value-of-first-token",
        "beside a channel scale for keys, every value takes the scale of the first token",
        "quant",
        {"prepare": _value_channel},
        {**ANTIQUANT, "antiquant": "mixed"},
        profile=BY_SOURCE,
    ),
    *FULL_FAULTS,
)
