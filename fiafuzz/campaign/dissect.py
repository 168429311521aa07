"""Taking a case apart into the fields of blueprint.py; works for every case, however malformed."""

from __future__ import annotations

from typing import Any, Optional

from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.dtypes import FLOAT_QUERY
from fiafuzz.model.layouts import CACHE_LAYOUTS, LAYOUTS, axis_sizes
from fiafuzz.model.scene import Scene

from .blueprint import (
    _ALL,
    _FILLED,
    _FREE_ATTRS,
    _OPTIONAL,
    PLAIN,
    SIZES,
    Fields,
    Literal,
    OptionalTensor,
    put_together,
    sizes_of,
)
from .forms import fitting_form

MAX_BATCHES = 4096
"""Calls with more batches (or none) are kept as literal overrides of a one-batch call."""
MAX_SIZE = 1 << 40


def take_apart(case: Case) -> dict[str, Any]:
    """The fields of a case; ``put_together`` gives the same case back."""
    scene = Scene(case)
    fields: dict[str, Any] = dict(PLAIN)
    fields["seed"] = case.seed
    _read_sizes(fields, scene)
    _read_storage(fields, scene)
    _read_lengths(fields, scene)
    for name in _FREE_ATTRS:
        fields[name] = getattr(case.attrs, name)
    for name in _FILLED:
        spec = scene.tensor(name)
        if spec is not None and spec.fill is not None:
            fields[f"fill:{name}"] = spec.fill
    _read_optional(fields, scene)
    return settled(fields, case)


def settled(fields: Fields, case: Case) -> dict[str, Any]:
    """The fields with an override for every parameter in which the built case differs from ``case``, and no others."""
    found = {name: value for name, value in fields.items() if not name.startswith("=")}
    built = put_together(found, case.api, case.product)
    for name in _ALL:
        wanted = case.get(name)
        if built.get(name) != wanted:
            found[f"={name}"] = Literal(wanted)
    return found


def _size(value: Optional[int], name: str, low: int = 1) -> int:
    return value if value is not None and low <= value <= MAX_SIZE else SIZES[name]


def _read_sizes(fields: dict[str, Any], scene: Scene) -> None:
    if scene.attrs.inputLayout in LAYOUTS:
        fields["layout"] = scene.attrs.inputLayout
    batches = scene.B
    fields["B"] = batches if batches is not None and 1 <= batches <= MAX_BATCHES else 1
    fields["Q_N"] = _size(scene.Q_N, "Q_N")
    fields["KV_N"] = _size(scene.KV_N, "KV_N")
    fields["kv_heads_literal"] = scene.attrs.numKeyValueHeads == fields["KV_N"] == fields["Q_N"]
    fields["Q_S"] = _size(scene.Q_S, "Q_S", 0)
    fields["D"] = _size(scene.Q_D, "D")
    if scene.V_D is not None and fields["D"] != scene.V_D:
        fields["V_D"] = _size(scene.V_D, "D")
    if scene.q_dtype is not None:
        fields["q_dtype"] = scene.q_dtype
    stored = scene.dtype("key")
    if stored is not None and stored != fields["q_dtype"]:
        fields["kv_dtype"] = stored
    if scene.out_dtype is not None and scene.out_dtype != fields["q_dtype"]:
        fields["out_dtype"] = scene.out_dtype
    if scene.rope_on and scene.rope_d is not None:
        fields["rope_D"] = scene.rope_d
        if scene.dtype("queryRope") != fields["q_dtype"]:
            fields["dtype:rope"] = scene.dtype("queryRope")
    if scene.prefix_on and scene.prefix_s is not None:
        fields["prefix_S"] = scene.prefix_s


def _read_storage(fields: dict[str, Any], scene: Scene) -> None:
    if scene.storage == "tensor_list":
        axes = [axis_sizes(LAYOUTS[fields["layout"]].inputs, k.shape) if k is not None else None for k in scene.keys]
        sizes = tuple(a.get("S", 0) if a is not None else 0 for a in axes)
        if len(sizes) <= MAX_BATCHES:
            fields["storage"], fields["list_S"] = "tensor_list", sizes
    elif scene.paged and scene.cache_layout in CACHE_LAYOUTS and 0 < scene.block_size <= MAX_SIZE:
        fields["storage"], fields["block_size"] = scene.cache_layout, scene.block_size
        if scene.cache_layout == "NZ" and scene.key_shape and scene.key_shape[-1] > 0:
            fields["D0"] = scene.key_shape[-1]
    fields["KV_S"] = _size(scene.KV_S, "KV_S", 0)


def _read_lengths(fields: dict[str, Any], scene: Scene) -> None:
    """Lengths that the layout or the storage asks for anyway are a field of their own only where batches differ."""
    packed, batches = LAYOUTS[fields["layout"]].packed, fields["B"]
    paged = fields["storage"] in CACHE_LAYOUTS
    for name, axis, lens, given, needed in (
        ("q_lens", "Q_S", scene.q_lens, scene.inputs.actualSeqLengths, packed),
        ("kv_lens", "KV_S", scene.kv_lens, scene.inputs.actualSeqLengthsKv, packed or paged),
    ):
        if lens is None or given is None or len(lens) != batches or min(lens) < 0:
            continue
        if needed:
            fields[axis] = max(lens)
        if not needed or len(set(lens)) > 1:
            fields[name] = lens
    if paged:
        _read_table(fields, scene)


def _read_table(fields: dict[str, Any], scene: Scene) -> None:
    table = scene.inputs.blockTable
    shape = table.shape if table is not None else ()
    if table is None or len(shape) != 2 or shape[0] != fields["B"] or not 0 <= shape[1] <= MAX_SIZE:
        return
    fields["spare_columns"] = shape[1] - sizes_of(fields)["C"]
    blocks = scene.cache_blocks or 0
    if table.values is not None and len(table.values) == shape[0] * shape[1]:
        rows = shape[1]
        fields["table"] = tuple(tuple(table.values[i * rows : (i + 1) * rows]) for i in range(shape[0]))
        fields["spare_blocks"] = blocks
    else:
        fields["spare_blocks"] = blocks - shape[0] * shape[1]


def _read_optional(fields: dict[str, Any], scene: Scene) -> None:
    sizes = sizes_of(fields)
    for name in _OPTIONAL:
        value = getattr(scene.inputs, name)
        if isinstance(value, TensorSpec):
            form = fitting_form(name, value.shape, scene, sizes)
            follows = (
                value.dtype == fields["q_dtype"] and value.dtype in FLOAT_QUERY
            )  # an INT8 mask beside an INT8 query is chance
            dtype = "=" if follows else value.dtype
            fields[f"in:{name}"] = OptionalTensor(form, dtype, value.shape, value.format, value.fill, value.values)
        elif value is not None:
            fields[f"in:{name}"] = tuple(value)
