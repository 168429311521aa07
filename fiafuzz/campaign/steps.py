"""Steps: what is left of a call made a little plainer, one thing at a time, as named pure functions on its fields.

Sizes go toward those of the plainest call, words toward the first of their order, literal values toward default ones.
As with bundles, the shrinker asks the prediction whether what comes out is still the kind of call that it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import msgspec

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.dtypes import FLOAT_QUERY
from fiafuzz.model.layouts import CACHE_LAYOUTS
from fiafuzz.model.parameters import INT_MAX

from .blueprint import SIZES, Fields, Literal, OptionalTensor
from .bundles import changed, keep_batches, to_key_size, to_layout, to_query_size, without
from .plainness import DTYPE_ORDER, HEAD_SIZES, LAYOUT_ORDER, MASK_FORMS, SPARSE_ORDER, STORAGE_ORDER, form_order


def steps(fields: Fields) -> Iterator[tuple[str, dict[str, Any]]]:
    """Plainer variants of what is left, the largest step of each kind first."""
    for kind in (_sizes, _batches, _words, _lengths, _optional):
        for name, found in kind(fields):
            if found is not None and found != fields:
                yield name, found


Steps = Iterator[tuple[str, Optional[dict[str, Any]]]]


def _toward(size: int, plain: int) -> list[int]:
    """Sizes from plain to size: plain and its neighbour first (another parity), then by halves of the way, then one less."""
    if size < plain:
        return [plain, plain + 1]
    found, low = [], plain
    while low < size:
        found.append(low)
        low += 1 if low == plain else max(1, (size - low) // 2)
    return found


def _sizes(fields: Fields) -> Steps:
    for size in _toward(fields["Q_S"], SIZES["Q_S"]):
        yield f"Q_S {size}", to_query_size(fields, size)
    for size in _toward(fields["KV_S"], SIZES["KV_S"]):
        yield f"KV_S {size}", to_key_size(fields, size)
    group = max(1, fields["Q_N"] // max(1, fields["KV_N"]))
    for heads in _toward(fields["KV_N"], 1):
        yield f"KV_N {heads}", changed(fields, KV_N=heads, Q_N=heads * group)
    for size in _toward(group, 1):
        yield f"G {size}", changed(fields, Q_N=fields["KV_N"] * size)
    if fields["V_D"] is None:
        for size in HEAD_SIZES:
            if size == fields["D"]:
                break
            yield f"D {size}", changed(fields, D=size)
    if fields["prefix_S"] is not None:
        for size in _toward(fields["prefix_S"], 1):
            yield f"prefix_S {size}", changed(fields, prefix_S=size)
    if fields["storage"] in CACHE_LAYOUTS:
        for size in (16, 32, 64, 128, 256):
            if size < fields["block_size"]:
                yield (
                    f"block_size {size}",
                    changed(fields, block_size=size, table=None, spare_blocks=0, spare_columns=0),
                )


def _batches(fields: Fields) -> Steps:
    count = fields["B"]
    if count > 1:
        for i in range(min(count, 8)):
            yield f"batch {i}", keep_batches(fields, (i,))
    if count > 2:
        yield "first batches", keep_batches(fields, tuple(range(count // 2)))
        yield "last batches", keep_batches(fields, tuple(range(count // 2, count)))
        for i in range(min(count, 8)):
            yield f"not batch {i}", keep_batches(fields, tuple(j for j in range(count) if j != i))


def _words(fields: Fields) -> Steps:
    """Another word of the same kind that comes earlier in the order of plainness."""
    for layout in LAYOUT_ORDER:
        if layout == fields["layout"]:
            break
        yield f"layout {layout}", to_layout(fields, layout)
    for storage in STORAGE_ORDER[1:]:
        if storage == fields["storage"] or fields["storage"] not in CACHE_LAYOUTS:
            break
        yield f"storage {storage}", changed(fields, storage=storage, D0=16)
    for mode in SPARSE_ORDER:
        if mode == fields["sparseMode"]:
            break
        yield f"sparseMode {mode}", changed(fields, sparseMode=mode)
        yield (
            f"sparseMode {mode}, open tokens",
            changed(fields, sparseMode=mode, preTokens=INT_MAX, nextTokens=INT_MAX),
        )
    mask = fields.get("in:attenMask")
    if fields["sparseMode"] in (2, 3, 4) and isinstance(mask, OptionalTensor):
        for form in MASK_FORMS[:3]:
            full = OptionalTensor(form, mask.dtype, (0,) * len(form), mask.format)
            open_full = {"sparseMode": 0, "preTokens": INT_MAX, "nextTokens": INT_MAX, "in:attenMask": full}
            yield f"mask {form} in mode 0", changed(fields, **open_full)
    for name in ("kv_dtype", "out_dtype", "q_dtype"):
        for dtype in DTYPE_ORDER:
            if dtype == fields[name] or fields[name] == "=":
                break
            yield f"{name} {dtype}", changed(fields, **{name: dtype})
    yield "per channel", _per_channel(fields)
    for precise in (0, 1, 2):
        if precise == fields["innerPrecise"]:
            break
        yield f"innerPrecise {precise}", changed(fields, innerPrecise=precise)


def _per_channel(fields: Fields) -> Optional[dict[str, Any]]:
    """Separate antiquant scales of the plainest kind: one number for each key head and column, symmetric."""
    if "in:keyAntiquantScale" not in fields or fields["q_dtype"] not in FLOAT_QUERY:
        return None
    scale = OptionalTensor(("K*D",), "=", (0,))
    found = without(
        fields,
        ("keyAntiquantOffset", "valueAntiquantOffset"),
        keyAntiquantMode=0,
        valueAntiquantMode=0,
        **{"in:keyAntiquantScale": scale, "in:valueAntiquantScale": scale},
    )
    return found


def _lengths(fields: Fields) -> Steps:
    for name, axis in (("q_lens", "Q_S"), ("kv_lens", "KV_S")):
        lens = fields[name]
        if lens is None:
            continue
        for i, n in enumerate(lens[:8]):
            for less in _toward(n, 1)[:3]:
                cut = (*lens[:i], less, *lens[i + 1 :])
                yield f"{name}[{i}] {less}", changed(fields, **{name: cut})
                if max(cut) != fields[axis]:
                    yield f"{name}[{i}] {less}, axis too", changed(fields, **{name: cut, axis: max(cut)})


def _optional(fields: Fields) -> Steps:
    for name, item in fields.items():
        if name.startswith("=") and isinstance(item, Literal):
            yield from _plainer_override(fields, name, item.value)
        if not name.startswith("in:"):
            continue
        if not isinstance(item, OptionalTensor):
            if len(item) > 1 or any(item):
                yield f"{name} zeros", changed(fields, **{name: (0,)})
            continue
        bare = item.__class__(item.form, item.dtype, item.shape, item.format)
        if item.fill is not None or (item.values is not None and item.shape != (1,)):
            yield f"{name} default values", changed(fields, **{name: bare})
        for form in form_order(name, item.form):
            if form == item.form:
                break
            yield f"{name} {form}", changed(fields, **{name: OptionalTensor(form, item.dtype, item.shape, item.format)})
        if name == "in:attenMask" and item.dtype != "BOOL":
            yield "mask BOOL", changed(fields, **{name: msgspec.structs.replace(item, dtype="BOOL")})


def _plainer_override(fields: Fields, name: str, value: Any) -> Steps:
    """A literal tensor without its values, or a literal list cut short."""
    if isinstance(value, TensorSpec) and (value.fill is not None or value.values is not None):
        yield (
            f"{name} default values",
            changed(fields, **{name: Literal(TensorSpec(value.shape, value.dtype, value.format, value.strides))}),
        )
    if isinstance(value, tuple) and len(value) > 1 and all(isinstance(v, int) for v in value):
        yield f"{name} shorter", changed(fields, **{name: Literal(value[: len(value) // 2])})
