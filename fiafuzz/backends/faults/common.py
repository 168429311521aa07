"""Planted faults of the room common: heads, layouts, scale, tiles, storage."""

from __future__ import annotations

from typing import Any

from .record import MANY, SEVERAL_KV, Fault


def _heads_tiled(correct: Any, k: Any, x: Any) -> Any:
    return x.unflatten(-3, (k.p.G, k.p.KV_N)).transpose(-4, -3)


def _heads_tiled_back(correct: Any, k: Any, x: Any) -> Any:
    return x.transpose(-4, -3).flatten(-4, -3)


def _first_key_head(correct: Any, k: Any, keys: Any, span: Any, j0: int, j1: int) -> Any:
    tile = correct(keys, span, j0, j1)
    return tile[:, :1].expand_as(tile)


def _scale_twice(correct: Any, k: Any, *arguments: Any) -> Any:
    return correct(*arguments) * k.p.scale


def _scale_default(correct: Any, k: Any) -> None:
    if k.p.scale == 1.0:
        k.p.scale = (k.p.D + k.p.rope_d) ** -0.5


def _no_tail_tile(correct: Any, k: Any, span: Any, i0: int, i1: int) -> Any:
    tiles = correct(span, i0, i1)
    return tiles[:-1] if len(tiles) > 1 and tiles[-1][1] - tiles[-1][0] < k.tile else tiles


def _no_rescale(correct: Any, k: Any, total: Any, acc: Any, factor: Any, part_sum: Any, part: Any) -> Any:
    return correct(total, acc, factor.clamp_min(1.0), part_sum, part)


def _sum_of_last_tile(correct: Any, k: Any, total: Any, acc: Any, factor: Any, part_sum: Any, part: Any) -> Any:
    total, acc = correct(total, acc, factor, part_sum, part)
    return part_sum, acc


def _whole_sixteens(correct: Any, k: Any, span: Any) -> Any:
    q = correct(span).clone()
    q[..., k.p.D // 16 * 16 : k.p.D] = 0
    return q


def _eight_bit_p(correct: Any, k: Any, p: Any) -> Any:
    from ..cpu_numbers import to_fp8

    return to_fp8(correct(p), "FLOAT8_E4M3FN") if k.p.kind == "none" and k.p.q_dtype == "FLOAT16" else correct(p)


def _out_in_query_order(*layouts: str) -> Any:
    def hook(correct: Any, k: Any, outputs: Any) -> None:
        correct(outputs)
        p = k.p
        if p.scene.layout_name in layouts:
            flat = k.out_buffer.reshape(-1)
            k.out = flat.view(p.Q_N, p.q_size, p.V_D) if p.packed else flat.view(p.B, p.Q_N, p.q_size, p.V_D)

    return hook


def _token_major_query(correct: Any, k: Any) -> None:
    p = k.p
    if p.q_axes == "NTD":
        k.x.query = k.x.query.reshape(p.q_size, p.Q_N, p.D).transpose(0, 1)


def _value_stride_of_key(correct: Any, k: Any, span: Any) -> Any:
    import torch

    v = correct(span)
    rows, width = v.shape[-2:]
    if width == k.p.D or not rows:
        return v
    index = (torch.arange(rows)[:, None] * k.p.D + torch.arange(width)) % (rows * width)
    return v.flatten(-2)[..., index]


def _value_of_batch_before(correct: Any, k: Any, span: Any) -> Any:
    from dataclasses import replace

    if k.p.storage != "contiguous" or k.p.packed or k.p.scene.mla_kind == "decode":
        return correct(span)
    if span.count > 1:
        return correct(span).roll(1, 0)
    return correct(replace(span, first=max(0, span.first - 1)))


def _value_of_first_item(correct: Any, k: Any, span: Any) -> Any:
    v = correct(span)
    if k.p.storage != "tensor_list" or span.first == 0:
        return v
    first = k.x.value.items[0][:, :, : v.shape[2]]
    v = v.clone()
    v[:, :, : first.shape[2]] = first
    return v


FAULTS: tuple[Fault, ...] = (
    Fault(
        "gqa-tiled",
        "query head n reads key head n % KV_N instead of n // G",
        "common",
        {"split_heads": _heads_tiled, "join_heads": _heads_tiled_back},
        {"group": "gqa"},
    ),
    Fault(
        "first-key-head",
        "every query head reads the keys of head 0",
        "common",
        {"key_tile": _first_key_head},
        {"group": SEVERAL_KV},
        ("more than one key head",),
    ),
    Fault(
        "scale-twice",
        "scaleValue is applied twice",
        "common",
        {"scale_scores": _scale_twice},
        also=("scaleValue is not 1",),
    ),
    Fault(
        "scale-default",
        "scaleValue 1 counts as not given: 1/sqrt(D) is used",
        "common",
        {"prepare": _scale_default},
        also=("scaleValue is 1",),
    ),
    Fault(
        "tail-tile-dropped",
        "the last, partly filled tile of columns is not visited",
        "common",
        {"tiles": _no_tail_tile},
        also=("more columns than one tile, and no whole number of tiles",),
    ),
    Fault(
        "no-rescale",
        "the accumulator is not scaled down when a later tile raises the maximum",
        "common",
        {"merge": _no_rescale},
        also=("more columns than one tile",),
    ),
    Fault(
        "last-sum-only",
        "the sum of exponentials is that of the last tile",
        "common",
        {"merge": _sum_of_last_tile},
        also=("more columns than one tile",),
    ),
    Fault(
        "whole-sixteens",
        "the last D % 16 columns do not count in the scores",
        "common",
        {"queries": _whole_sixteens},
        {"head_size": "odd"},
    ),
    Fault(
        "p-eight-bits",
        "probabilities are rounded to 8 bits before they meet the values",
        "common",
        {"round_p": _eight_bit_p},
        {
            "q_dtype": "FLOAT16",
            "scenario": ("gqa", "unequal_d", "mla_decode", "mla_prefill_split", "mla_prefill_combined"),
        },
    ),
    Fault(
        "bsnd-out-as-bnsd",
        "the output of BNSD_BSND is written in the order of the query",
        "common",
        {"open_outputs": _out_in_query_order("BNSD_BSND")},
        {"layout": "BNSD_BSND", "q_s": ("2-16", "17+")},
        ("more than one head",),
    ),
    Fault(
        "bnsd-out-as-bsnd",
        "the output of BSND_BNSD and BSH_BNSD is written head by row as if Q_N and Q_S were exchanged",
        "common",
        {"store": lambda correct, k, span, rows, o, lse: _swapped_store(correct, k, span, rows, o, lse)},
        {"layout": ("BSND_BNSD", "BSH_BNSD"), "q_s": ("2-16", "17+")},
        ("more than one head",),
    ),
    Fault(
        "nbsd-as-bnsd",
        "the output of the NBSD layouts is written batch by batch",
        "common",
        {"open_outputs": _out_in_query_order("BNSD_NBSD", "BSND_NBSD", "BSH_NBSD")},
        {"layout": ("BNSD_NBSD", "BSND_NBSD", "BSH_NBSD"), "batch": MANY},
        ("more than one head",),
    ),
    Fault(
        "ntd-as-tnd",
        "a query in NTD is read as if it were TND",
        "common",
        {"prepare": _token_major_query},
        {"layout": ("NTD", "NTD_TND")},
        ("more than one head and token",),
    ),
    Fault(
        "value-stride-of-key",
        "rows of value are found with the head size of key",
        "common",
        {"x.value.fetch": _value_stride_of_key},
        {"scenario": ("unequal_d", "mla_prefill_combined")},
        ("more than one key",),
    ),
    Fault(
        "value-of-batch-before",
        "each batch reads the values of the batch before it",
        "common",
        {"x.value.fetch": _value_of_batch_before},
        {"batch": MANY, "storage": "contiguous"},
        ("a padded layout",),
    ),
    Fault(
        "value-of-first-item",
        "every batch of a tensor list reads the first value tensor",
        "common",
        {"x.value.fetch": _value_of_first_item},
        {"storage": "tensor_list"},
    ),
)


def _swapped_store(correct: Any, k: Any, span: Any, rows: Any, o: Any, lse: Any) -> None:
    if k.p.scene.layout_name in ("BSND_BNSD", "BSH_BNSD") and o.shape[2] == k.p.q_size:
        o = o.transpose(1, 2).reshape(o.shape)
    correct(span, rows, o, lse)
