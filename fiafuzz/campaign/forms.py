"""How the shape of every optional tensor follows from the sizes of a call, so that a call can be rebuilt smaller.

A *form* is a tuple of axis expressions: a number, or a product of size letters with an optional division (``K*D``,
``D/32`` rounded down, ``Bs^64`` rounded up), or one with slack (``X+3``: three more than needed). Letters: B, N (query heads), K (key
heads), G, S, Z (key columns), W (columns that the storage spans), X (W plus the shared prefix), D, V, R, P, T, U (packed tokens of query
and key), U64 (64-token groups of all batches), Bn, Bs, C (blocks, rows of a block, table columns). Sources: spec/v5_quant_rope_notes.md
3-4, v5_common_notes.md 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional, Union

from fiafuzz.model.layouts import MASK_COMPRESSED
from fiafuzz.model.scene import Scene

Axis = Union[int, str]
Form = tuple[Axis, ...]
Sizes = Mapping[str, int]

_SEQUENCES = frozenset({"S", "X", "W", "Z"})
"""Axes that may be longer than the data."""
_CHANNEL: tuple[Form, ...] = (
    (1,),
    ("K*D",),
    (1, "K*D"),
    ("K", "D"),
    (1, "K", "D"),
    ("K", 1, "D"),
    (1, "K", 1, "D"),
    (1, 1, "K", "D"),
)
_TOKEN: tuple[Form, ...] = (("B", "X"), (1, "B", "X"), ("B", "W"), (1, "B", "W"))
_BY_MODE: Mapping[int, tuple[Form, ...]] = {
    0: _CHANNEL,
    1: _TOKEN,
    2: (("K",),),
    3: (("B", "K", "X"), ("B", "K", "W")),
    4: (("Bn", "Bs"),),
    5: (("Bn", "K", "Bs"),),
    6: ((1, "B", "K", "X", "D/32"), (1, "B", "K", "W", "D/32")),
}
_MXFP8_KEY: tuple[Form, ...] = (
    ("U", "K", "D^64", 2),
    ("Bn", "K", "Bs", "D^64", 2),
    ("Bn", "K", "Bs^16", "D^64", 16, 2),
)
_MXFP8_VALUE: tuple[Form, ...] = (
    ("U64", "K", "V", 2),
    ("Bn", "K", "Bs^64", "V", 2),
    ("Bn", "K", "V^16", "Bs^64", 16, 2),
)
_QUERY_SCALE: Mapping[str, tuple[Form, ...]] = {
    "decode_mla": (("B", "S", "N"), ("B", "N", "S"), ("T", "N"), ("N", "T")),
    "mxfp8": (("T", "N", "D^64", 2), ("K", "T", "G", "D^64", 2)),
    "gqa_fp8": (("N", "T"),),
}
_POST_QUANT: tuple[Form, ...] = (
    (1,),
    ("N*V",),
    (1, "N*V"),
    (1, 1, "N*V"),
    ("N", "V"),
    (1, "N", "V"),
    (1, 1, "N", "V"),
    (1, "N", 1, "V"),
    ("N", 1, "V"),
)
_MASK: tuple[Form, ...] = (
    *((*lead, MASK_COMPRESSED, MASK_COMPRESSED) for lead in ((), (1,), (1, 1))),
    *((*lead, "S", width) for width in ("X", "W", "Z") for lead in ((), ("B",), (1,), ("B", 1), (1, 1))),
)
_PLAIN: Mapping[str, tuple[Form, ...]] = {
    "pseShift": (*((lead, "N", rows, width) for width in ("X", "Z") for rows in ("S", 1) for lead in ("B", 1)), ("N",)),
    "attenMask": _MASK,
    "quantScale2": _POST_QUANT,
    "quantOffset2": _POST_QUANT,
    "learnableSink": (("N",),),
    "antiquantScale": ((2,), (2, "K*D"), (2, "K", "D"), (2, "K", 1, "D"), (2, "B", "W")),
    "antiquantOffset": ((2,), (2, "K*D"), (2, "K", "D"), (2, "K", 1, "D"), (2, "B", "W")),
}


def _quant_forms(name: str, scene: Scene) -> tuple[Form, ...]:
    key_side = name.startswith("key")
    kind = scene.full_kind
    if kind == "mxfp8":
        return _MXFP8_KEY if key_side else _MXFP8_VALUE
    if kind == "gqa_fp8":
        return (("Bn", "K", "Bs"),) if key_side else (("K",),)
    mode = scene.antiquant_modes[0 if key_side else 1]
    return _BY_MODE.get(mode, ())


def forms_of(name: str, scene: Scene) -> tuple[Form, ...]:
    """The forms that an optional tensor may have in a call of that kind; the first that fits its shape is meant."""
    if name in ("keyAntiquantScale", "keyAntiquantOffset", "valueAntiquantScale", "valueAntiquantOffset"):
        return _quant_forms(name, scene)
    if name == "dequantScaleQuery":
        return _QUERY_SCALE.get(scene.full_kind or "", ())
    return _PLAIN.get(name, ())


def axis_size(axis: Axis, sizes: Sizes) -> int:
    """The size of one axis expression."""
    if isinstance(axis, int):
        return axis
    for mark in ("+", "/", "^"):
        if mark in axis:
            part, _, number = axis.partition(mark)
            whole, by = axis_size(part, sizes), int(number)
            return whole + by if mark == "+" else whole // by if mark == "/" else -(-whole // by)
    size = 1
    for letter in axis.split("*"):
        size *= sizes[letter]
    return size


def shape_of(form: Form, sizes: Sizes) -> tuple[int, ...]:
    """The shape that a form has for these sizes."""
    return tuple(axis_size(a, sizes) for a in form)


def fitting_form(name: str, shape: tuple[int, ...], scene: Scene, sizes: Sizes) -> Form:
    """The form whose shape this is; failing that, one that it has with slack on sequence axes (``X+3``); failing that,
    the shape itself (fixed numbers)."""
    forms = [form for form in forms_of(name, scene) if len(form) == len(shape)]
    for form in forms:
        if shape_of(form, sizes) == shape:
            return form
    for form in forms:
        loose = tuple(_with_slack(axis, size, sizes) for axis, size in zip(form, shape))
        if None not in loose:
            return tuple(axis for axis in loose if axis is not None)
    return shape


def _with_slack(axis: Axis, size: int, sizes: Sizes) -> Optional[Axis]:
    wanted = axis_size(axis, sizes)
    if wanted == size:
        return axis
    return f"{axis}+{size - wanted}" if axis in _SEQUENCES and size > wanted else None


def without_slack(form: Form) -> Form:
    """The form with every axis as long as it must be."""
    return tuple(axis.partition("+")[0] if isinstance(axis, str) else axis for axis in form)


def cropped(
    values: Optional[tuple[object, ...]], old: tuple[int, ...], new: tuple[int, ...]
) -> Optional[tuple[object, ...]]:
    """Row-major literal values of a tensor cut to a smaller shape; None (default values) when it is not smaller
    everywhere."""
    if values is None or old == new:
        return values
    if len(old) != len(new) or any(n > o for n, o in zip(new, old)):
        return None
    places = [0]
    for size_old, size_new in zip(old, new):
        places = [p * size_old + i for p in places for i in range(size_new)]
    return tuple(values[p] for p in places) if all(p < len(values) for p in places) else None
