"""Plainness: which words, sizes and forms count as plainer than others, and how far a call is from the plainest one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fiafuzz.model.case import Case

from .blueprint import SIZES, Fields, OptionalTensor, differences, lengths_of
from .dissect import take_apart
from .forms import Form

LAYOUT_ORDER: tuple[str, ...] = (
    "BNSD",
    "BSND",
    "BSH",
    "TND",
    "NTD",
    "BNSD_BSND",
    "BSND_BNSD",
    "BSH_BNSD",
    "NTD_TND",
    "BNSD_NBSD",
    "BSND_NBSD",
    "BSH_NBSD",
    "TND_NTD",
)
STORAGE_ORDER: tuple[str, ...] = ("contiguous", "BnNBsD", "BnBsH", "NZ", "tensor_list")
DTYPE_ORDER: tuple[str, ...] = (
    "FLOAT16",
    "BFLOAT16",
    "INT8",
    "FLOAT8_E4M3FN",
    "HIFLOAT8",
    "INT4",
    "INT32",
    "FLOAT4_E2M1",
)
SPARSE_ORDER: tuple[int, ...] = (0, 1, 3, 2, 4)
MASK_FORMS: tuple[Form, ...] = (("S", "X"), (1, "S", "X"), ("B", "S", "X"), (1, 1, "S", "X"), ("B", 1, "S", "X"))
BIAS_FORMS: tuple[Form, ...] = (("B", "N", "S", "X"), (1, "N", "S", "X"), ("B", "N", 1, "X"), (1, "N", 1, "X"))
COMPRESSED_FORMS: tuple[Form, ...] = ((2048, 2048), (1, 2048, 2048), (1, 1, 2048, 2048))
HEAD_SIZES: tuple[int, ...] = (64, 128, 16, 32, 96, 192, 512)

Weight = tuple[int, int, int, int, int]


def weight_of(case: Case) -> Weight:
    """How far a case is from the plainest call; smaller is plainer."""
    return weight(take_apart(case))


def weight(fields: Fields) -> Weight:
    """How far from plain fields are: differences first, then how fancy their words are, then sizes, then what is
    spelled out.

    Every adopted candidate lowers it, which is why shrinking ends.
    """
    q, kv = lengths_of(fields)
    off = sum(_off(fields[name], plain) for name, plain in SIZES.items())
    rank = (
        _rank(LAYOUT_ORDER, fields["layout"])
        + _rank(STORAGE_ORDER, fields["storage"])
        + _rank(SPARSE_ORDER, fields["sparseMode"])
        + sum(_rank(DTYPE_ORDER, fields[n]) for n in ("q_dtype", "kv_dtype", "out_dtype") if fields[n] != "=")
        + fields["innerPrecise"]
        + _form_rank(fields)
    )
    tokens = (
        sum(q) + sum(kv) + sum(fields[n] for n in ("B", "Q_N", "KV_N", "D", "Q_S", "KV_S")) + (fields["prefix_S"] or 0)
    )
    spelled = (
        sum(_spelled(v) for name, v in fields.items() if name.startswith(("in:", "=", "fill:"))) + fields["block_size"]
    )
    return len(differences(fields)), rank, off, tokens, spelled


def _off(size: int, plain: int) -> int:
    """How far a size is from plain; smaller ones are special ones (a single token, no key) and count as further away."""
    return size - plain if size >= plain else 4 * (plain - size)


def form_order(name: str, form: Form) -> tuple[Form, ...]:
    """The forms of an optional tensor (``in:NAME``) from the plainest on; none for those of which all forms are equal."""
    if name == "in:attenMask":
        return COMPRESSED_FORMS if COMPRESSED_FORMS[0][0] in form else MASK_FORMS
    return BIAS_FORMS if name == "in:pseShift" and len(form) == len(BIAS_FORMS[0]) else ()


def _form_rank(fields: Fields) -> int:
    found = 0
    for name in ("in:attenMask", "in:pseShift"):
        item = fields.get(name)
        if isinstance(item, OptionalTensor):
            found += _rank(form_order(name, item.form), item.form) + (name == "in:attenMask" and item.dtype != "BOOL")
    return found


def _rank(order: Sequence[Any], word: Any) -> int:
    return order.index(word) if word in order else len(order)


def _spelled(value: Any) -> int:
    return len(repr(value))
