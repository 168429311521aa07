"""Planted faults of the room quant that concern full quantisation."""

from __future__ import annotations

import math
from typing import Any

from .record import BY_SOURCE, MANY, Fault

PER_TENSOR = {"scenario": "full_per_tensor"}
MLA = {"scenario": "full_decode_mla"}
GQA = {"scenario": "full_gqa_fp8"}
MX = {"scenario": "full_mxfp8"}


def _as_double(correct: Any, k: Any) -> None:
    if k.p.kind == "full_per_tensor" and k.p.scene.dtype("deqScale1") == "UINT64":
        k.deq1 = float(k.x.array("deqScale1").view("float64").reshape(-1)[0])


def _no_quant_scale(correct: Any, k: Any, p: Any) -> Any:
    return p.half().float().round() if k.p.kind == "full_per_tensor" and k.p.q_dtype == "INT8" else correct(p)


def _second_scale_twice(correct: Any, k: Any, p: Any, v: Any, first: bool) -> Any:
    part = correct(p, v, first)
    return part * k.quant1 if k.p.kind == "full_per_tensor" else part


def _scaled_sum(correct: Any, k: Any, acc: Any, total: Any) -> Any:
    return correct(acc, total * k.quant1 if k.p.kind == "full_per_tensor" else total)


def _real_units(correct: Any, k: Any, span: Any) -> Any:
    q = correct(span)
    if k.p.kind == "full_decode_mla":
        q = q.clone()
        rows = k.split_heads(k.rows_of(k.query_scale, span))
        q[..., k.p.D :] /= rows * k.key_scale
    return q


def _query_scale_of_head_zero(correct: Any, k: Any) -> None:
    if k.p.kind in ("full_decode_mla", "full_gqa_fp8"):
        heads = k.query_scale.dim() - 3
        first = k.query_scale.narrow(heads, 0, 1)
        k.query_scale = first.expand_as(k.query_scale)


def _no_value_scale(correct: Any, k: Any, acc: Any, total: Any) -> Any:
    x = correct(acc, total)
    return x / k.key_scale if k.p.kind == "full_decode_mla" else x


def _with_p_scale(correct: Any, k: Any, shift: Any, total: Any) -> Any:
    lse = correct(shift, total)
    return lse + math.log(k.p_scale) if k.p.kind == "full_gqa_fp8" else lse


def _keep_maximum(correct: Any, k: Any, best: Any) -> Any:
    k.unrounded = best
    return correct(best)


def _of_unrounded(correct: Any, k: Any, shift: Any, total: Any) -> Any:
    lse = correct(shift, total)
    return lse - shift - math.log(k.p_scale) + k.unrounded if k.p.kind == "full_mxfp8" else lse


def _key_scales_in_order(correct: Any, k: Any, span: Any) -> Any:
    if k.p.kind != "full_gqa_fp8":
        return correct(span)
    import torch

    table = (torch.arange(k.x.table.numel()) % k.key_scale.shape[0]).view(k.x.table.shape)
    return (
        k.key_scale[table[span.first, : -(-span.kv_len // k.p.block_size)]]
        .transpose(0, 1)
        .flatten(1, 2)[None, :, : span.kv_len]
    )


def _value_scale_of_head_zero(correct: Any, k: Any) -> None:
    if k.p.kind == "full_gqa_fp8":
        k.value_scale = k.value_scale[:, :1]


def _groups_run_on(correct: Any, k: Any, span: Any) -> int:
    return int(min(span.kv_at // 64, k.value_scale.shape[0] - k.value_pairs(span)))


def _pairs_swapped(correct: Any, k: Any, x: Any) -> Any:
    return correct(x.flip(-1))


def _value_pairs_swapped(correct: Any, k: Any, x: Any, length: int) -> Any:
    return correct(x.flip(-1), length)


def _query_scales_of_other_shape(correct: Any, k: Any) -> None:
    if k.p.kind == "full_mxfp8":
        k.query_scale = k.query_scale.flip(0)


FULL_FAULTS: tuple[Fault, ...] = (
    Fault(
        "deq-scale-as-double",
        "deqScale1 in UINT64 is read as a double",
        "quant",
        {"prepare": _as_double},
        PER_TENSOR,
        ("deqScale1 of dtype UINT64",),
    ),
    Fault(
        "no-quant-scale",
        "INT8 probabilities are rounded without quantScale1",
        "quant",
        {"round_p": _no_quant_scale},
        {**PER_TENSOR, "q_dtype": "INT8"},
    ),
    Fault(
        "quant-scale-kept",
        "the dequantised product keeps quantScale1",
        "quant",
        {"weigh": _second_scale_twice},
        PER_TENSOR,
        ("quantScale1 is not 1",),
    ),
    Fault(
        "quant-scale-in-sum",
        "quantScale1 is counted in the sum of exponentials",
        "quant",
        {"normalise": _scaled_sum},
        PER_TENSOR,
        ("quantScale1 is not 1",),
    ),
    Fault(
        "mla-rope-in-real-units",
        "the rope part of a quantised Decode MLA is not multiplied by the scales",
        "quant",
        {"queries": _real_units},
        MLA,
    ),
    Fault(
        "query-scale-of-head-zero",
        "every head takes the query scales of the first",
        "quant",
        {"prepare": _query_scale_of_head_zero},
        {"scenario": ("full_decode_mla", "full_gqa_fp8")},
        ("more than one head",),
    ),
    Fault(
        "mla-no-value-scale",
        "the result of a quantised Decode MLA is not multiplied by the scale of the keys",
        "quant",
        {"normalise": _no_value_scale},
        MLA,
    ),
    Fault(
        "lse-with-p-scale",
        "softmaxLse of FP8 GQA keeps ln(quantScale1)",
        "quant",
        {"logsumexp": _with_p_scale},
        {**GQA, "lse": "on"},
        ("quantScale1 is not 1",),
        profile=BY_SOURCE,
    ),
    Fault(
        "mx-lse-of-unrounded-maximum",
        "softmaxLse of MXFP8 adds the maximum before it is rounded up",
        "quant",
        {"reference_point": _keep_maximum, "logsumexp": _of_unrounded},
        {**MX, "lse": "on"},
        profile=BY_SOURCE,
    ),
    Fault(
        "key-scales-in-order",
        "key scales of FP8 GQA are read in the order in which blocks are stored",
        "quant",
        {"key_scales": _key_scales_in_order},
        GQA,
        ("a table that is not the identity",),
        profile=BY_SOURCE,
    ),
    Fault(
        "value-scale-of-head-zero",
        "every head takes the value scale of the first",
        "quant",
        {"prepare": _value_scale_of_head_zero},
        GQA,
        ("more than one key head",),
        profile=BY_SOURCE,
    ),
    Fault(
        "value-groups-run-on",
        "groups of MXFP8 values do not restart with each batch",
        "quant",
        {"first_value_pair": _groups_run_on},
        {**MX, "storage": "contiguous", "batch": MANY},
        ("a sequence that is no multiple of 64",),
        profile=BY_SOURCE,
    ),
    Fault(
        "mx-pairs-swapped",
        "the two scales of a pair are exchanged for query and key of MXFP8",
        "quant",
        {"spread_columns": _pairs_swapped},
        MX,
        profile=BY_SOURCE,
    ),
    Fault(
        "mx-value-pairs-swapped",
        "the two scales of a pair are exchanged for values of MXFP8",
        "quant",
        {"spread_rows": _value_pairs_swapped},
        MX,
        profile=BY_SOURCE,
    ),
    Fault(
        "mx-query-heads-reversed",
        "query scales of MXFP8 are taken in reverse order of heads",
        "quant",
        {"prepare": _query_scales_of_other_shape},
        MX,
        ("more than one head",),
        profile=BY_SOURCE,
    ),
)
