"""Planted faults of the room attention_mask: sparse modes, bands, mask tensors."""

from __future__ import annotations

from typing import Any

from .record import MANY, MASK_GIVEN, MODE_MASK, UNEQUAL, Fault

OPEN = -(1 << 40)


def _shifted_diagonal(modes: tuple[int, ...], by: int) -> Any:
    def hook(correct: Any, k: Any, span: Any) -> Any:
        low, high = correct(span)
        return (low, high + by) if k.p.sparse_mode in modes else (low, high)

    return hook


def _corner(k: Any, span: Any) -> int:
    return int(k.p.columns(span) - span.q_len)


def _left_top(mode: int) -> Any:
    def hook(correct: Any, k: Any, span: Any) -> Any:
        low, high = correct(span)
        if k.p.sparse_mode != mode:
            return low, high
        shift = _corner(k, span)
        return low - shift if low > OPEN else low, high - shift

    return hook


def _no_pre_tokens(correct: Any, k: Any, span: Any) -> Any:
    low, high = correct(span)
    return (OPEN, high) if k.p.sparse_mode == 4 else (low, high)


def _negative_next(correct: Any, k: Any, span: Any) -> Any:
    low, high = correct(span)
    return (low, high - k.p.tokens[1]) if k.p.sparse_mode == 4 and k.p.tokens[1] < 0 else (low, high)


def _diagonal_of_axes(correct: Any, k: Any, span: Any) -> Any:
    low, high = correct(span)
    p = k.p
    if p.sparse_mode != 3:
        return low, high
    rows, columns = (p.scene.Q_S, p.scene.KV_S) if p.packed else (p.q_size, p.kv_size)
    return low, columns + p.prefix - rows


def _packed_rows(correct: Any, k: Any) -> None:
    mask = k.x.mask
    if mask is not None:
        columns = max((s.kv_col + k.p.columns(s) for s in k.p.spans if s.q_len), default=0)
        rows = mask.shape[1]
        k.x.mask = mask.flatten(1)[:, : rows * columns].reshape(mask.shape[0], rows, columns)


def _mask_of_batch_zero(correct: Any, k: Any) -> None:
    if k.x.mask is not None:
        k.x.mask = k.x.mask[:1]


def _inverted_uint8(correct: Any, k: Any) -> None:
    if k.x.mask is not None and k.p.scene.dtype("attenMask") == "UINT8":
        k.x.mask = ~k.x.mask


def _mode_one_causal(correct: Any, k: Any, span: Any) -> Any:
    low, high = correct(span)
    return (low, min(high, _corner(k, span))) if k.p.sparse_mode == 1 else (low, high)


def _single_row_unmasked(correct: Any, k: Any) -> None:
    if k.p.scene.single_token:
        k.x.mask = None


def _uniform_without_mask(correct: Any, k: Any, *arguments: Any) -> Any:
    scores = correct(*arguments)
    return scores if k.p.mask_on else scores.mul_(0)


def _first_mask_column(correct: Any, k: Any, span: Any, i0: int, i1: int, j0: int, j1: int) -> Any:
    hidden = correct(span, i0, i1, j0, j1)
    if hidden is not None and span.kv_col + j0 == 0 and hidden.shape[-1]:
        hidden = hidden.clone()
        hidden[..., 0] = False
    return hidden


FAULTS: tuple[Fault, ...] = (
    Fault(
        "causal-one-too-many",
        "the diagonal of modes 2 and 3 lets one column too many through",
        "attention_mask",
        {"band": _shifted_diagonal((2, 3), 1)},
        {"sparse_mode": ("2", "3")},
        ("more than one row",),
    ),
    Fault(
        "band-next-exclusive",
        "nextTokens of mode 4 counts as exclusive",
        "attention_mask",
        {"band": _shifted_diagonal((4,), -1)},
        {"sparse_mode": "4"},
        ("a right edge within the columns",),
    ),
    Fault(
        "left-top-for-right-bottom",
        "mode 3 starts its diagonal at the left top corner",
        "attention_mask",
        {"band": _left_top(3)},
        {"sparse_mode": "3", "length_relation": UNEQUAL},
    ),
    Fault(
        "band-origin",
        "mode 4 counts its band from the left top corner",
        "attention_mask",
        {"band": _left_top(4)},
        {"sparse_mode": "4", "length_relation": UNEQUAL},
    ),
    Fault(
        "band-without-pre",
        "preTokens of mode 4 is ignored",
        "attention_mask",
        {"band": _no_pre_tokens},
        {"sparse_mode": "4"},
        ("a left edge within the columns",),
    ),
    Fault(
        "negative-next-as-zero",
        "a negative nextTokens of mode 4 counts as 0",
        "attention_mask",
        {"band": _negative_next},
        {"sparse_mode": "4"},
        ("nextTokens below 0",),
    ),
    Fault(
        "diagonal-of-axes",
        "the diagonal of mode 3 is taken from the axes instead of the actual lengths",
        "attention_mask",
        {"band": _diagonal_of_axes},
        {"sparse_mode": "3", "length_relation": UNEQUAL},
        ("lengths shorter than the axes by different amounts",),
    ),
    Fault(
        "mask-row-stride",
        "rows of a mask wider than the data are found with the width of the data",
        "attention_mask",
        {"prepare": _packed_rows},
        {"sparse_mode": MODE_MASK, "mask": MASK_GIVEN, "q_s": ("2-16", "17+")},
        ("mask wider than the columns in use",),
    ),
    Fault(
        "mask-of-batch-zero",
        "every batch reads the mask of the first",
        "attention_mask",
        {"prepare": _mask_of_batch_zero},
        {"sparse_mode": MODE_MASK, "mask_shape": ("3d", "4d"), "batch": MANY},
        ("masks that differ by batch",),
    ),
    Fault(
        "uint8-mask-inverted",
        "1 in a UINT8 mask keeps instead of masking",
        "attention_mask",
        {"prepare": _inverted_uint8},
        {"sparse_mode": MODE_MASK, "mask": "UINT8"},
    ),
    Fault(
        "mode-one-causal",
        "mode 1 is causal besides its mask",
        "attention_mask",
        {"band": _mode_one_causal},
        {"sparse_mode": "1"},
        ("more than one row", "a mask that is not causal itself"),
    ),
    Fault(
        "single-row-unmasked",
        "a single query row ignores its mask",
        "attention_mask",
        {"prepare": _single_row_unmasked},
        {"sparse_mode": MODE_MASK, "mask": MASK_GIVEN, "q_s": "1"},
        ("a mask with a 1",),
    ),
    Fault(
        "uniform-without-mask",
        "without a mask every key weighs the same",
        "attention_mask",
        {"scale_scores": _uniform_without_mask},
        {"mask": ("none", "empty")},
    ),
    Fault(
        "first-column-seen",
        "the mask tensor cannot hide the first column",
        "attention_mask",
        {"masked": _first_mask_column},
        {"sparse_mode": MODE_MASK, "mask": MASK_GIVEN},
        ("a mask with a 1 in its first column",),
    ),
)
