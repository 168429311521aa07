"""Planted faults of the room pse: additive bias and alibi."""

from __future__ import annotations

from typing import Any

from .record import GROUPED, MANY, Fault

ALIBI = ("alibi2", "alibi3")


def _before_scale(correct: Any, k: Any, scores: Any, bias: Any) -> Any:
    return correct(scores, bias * k.p.scale if k.x.pse is not None else bias)


def _batch_zero(correct: Any, k: Any) -> None:
    if k.x.pse is not None:
        k.x.pse = k.x.pse[:1]


def _row_zero(correct: Any, k: Any) -> None:
    if k.x.pse is not None:
        k.x.pse = k.x.pse[:, :, :1].expand_as(k.x.pse)


def _by_key_head(correct: Any, k: Any) -> None:
    if k.x.pse is not None:
        k.x.pse = k.x.pse[:, : k.p.KV_N].repeat_interleave(k.p.G, dim=1)


def _no_prefix(correct: Any, k: Any) -> None:
    if k.x.pse is not None and k.p.prefix:
        import torch

        columns = (torch.arange(k.x.pse.shape[3]) - k.p.prefix).clamp_min(0)
        k.x.pse = k.x.pse[..., columns]


def _twice(correct: Any, k: Any, scores: Any, bias: Any) -> Any:
    return correct(scores, bias * 2 if k.x.pse is not None else bias)


def _positive(correct: Any, k: Any, slopes: Any, distance: Any) -> Any:
    return -correct(slopes, distance)


def _no_start(correct: Any, k: Any) -> None:
    k.p.q_start = k.p.kv_start = 0


def _root_of_product(correct: Any, k: Any, slopes: Any, distance: Any) -> Any:
    if k.p.scene.attrs.pseType != 3:
        return correct(slopes, distance)
    return -(slopes[:, None, None] * distance).abs().sqrt()


def _signed(correct: Any, k: Any, i0: int, i1: int, j0: int, j1: int) -> Any:
    import torch

    shift = k.p.kv_start - k.p.q_start
    gap = torch.arange(j0 + shift, j1 + shift) - torch.arange(i0, i1).unsqueeze(1)
    return gap.clamp_min(0).float()


def _slope_by_key_head(correct: Any, k: Any) -> None:
    if k.x.slopes is not None:
        k.x.slopes = k.x.slopes[: k.p.KV_N].repeat_interleave(k.p.G)


FAULTS: tuple[Fault, ...] = (
    Fault(
        "bias-before-scale",
        "pseShift is added before the scale",
        "pse",
        {"add_bias": _before_scale},
        {"pse": "bias"},
        ("scaleValue is not 1",),
    ),
    Fault(
        "bias-of-batch-zero",
        "every batch reads the bias of the first",
        "pse",
        {"prepare": _batch_zero},
        {"pse": "bias", "batch": MANY},
        ("a bias with a batch axis",),
    ),
    Fault(
        "bias-of-row-zero",
        "every row reads the bias of the first row",
        "pse",
        {"prepare": _row_zero},
        {"pse": "bias", "q_s": ("2-16", "17+")},
        ("a bias of more than one row",),
    ),
    Fault(
        "bias-by-key-head",
        "the bias is indexed by key head",
        "pse",
        {"prepare": _by_key_head},
        {"pse": "bias", "group": GROUPED},
    ),
    Fault(
        "bias-without-prefix",
        "columns of the bias do not count the shared prefix",
        "pse",
        {"prepare": _no_prefix},
        {"pse": "bias", "prefix": ("full", "actual")},
    ),
    Fault("bias-twice", "pseShift is added twice", "pse", {"add_bias": _twice}, {"pse": "bias"}),
    Fault(
        "alibi-sign",
        "a positive slope rewards distance",
        "pse",
        {"alibi": _positive},
        {"pse": ALIBI},
        mode="disputed",
    ),
    Fault(
        "alibi-start-ignored",
        "qStartIdx and kvStartIdx are ignored",
        "pse",
        {"prepare": _no_start},
        {"pse": ALIBI},
        ("start indices that differ",),
        mode="disputed",
    ),
    Fault(
        "alibi-root-of-product",
        "pseType 3 takes the root after the slope",
        "pse",
        {"alibi": _root_of_product},
        {"pse": "alibi3"},
        mode="disputed",
    ),
    Fault(
        "alibi-one-sided",
        "columns before the row have no distance",
        "pse",
        {"distance": _signed},
        {"pse": ALIBI},
        ("more than one row, or start indices",),
        mode="disputed",
    ),
    Fault(
        "slope-by-key-head",
        "slopes are indexed by key head",
        "pse",
        {"prepare": _slope_by_key_head},
        {"pse": ALIBI, "group": GROUPED},
        mode="disputed",
    ),
)
