"""A call taken apart into independent fields, and put together again: the ground on which shrinking works.

``take_apart`` reads sizes, layout, storage, dtypes, lengths, attributes and optional tensors from any case;
``put_together`` builds a case in which every shape follows from the sizes. What does not follow (a mask that is too
large, a scale of the wrong rank - the very thing that a case may be about) is kept as a literal override, so
``put_together(take_apart(case)) == case`` for every case. A field that differs from the plainest valid call is a
*difference*; shrinking is doing without differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Optional

import msgspec

from fiafuzz.model.case import Attrs, Case, ColumnsFrom, Fill, Inputs, Outputs, Patch, Patched, TensorSpec
from fiafuzz.model.layouts import CACHE_LAYOUTS, LAYOUTS, cache_shape, lse_shape, tensor_shape
from fiafuzz.model.parameters import ATTRIBUTES, INPUTS, INT_MAX, OUTPUTS

from .forms import Form, cropped, shape_of

Fields = Mapping[str, Any]

SIZES: Mapping[str, int] = {"B": 1, "Q_N": 1, "KV_N": 1, "Q_S": 2, "KV_S": 2, "D": 64}
"""Sizes of the plainest call: one batch, one head, two tokens, head size 64 (which every layout and cache takes)."""

PLAIN: Mapping[str, Any] = {
    **SIZES,
    "layout": "BNSD",
    "storage": "contiguous",
    "q_dtype": "FLOAT16",
    "kv_dtype": "=",
    "out_dtype": "=",
    "V_D": None,
    "rope_D": None,
    "prefix_S": None,
    "q_lens": None,
    "kv_lens": None,
    "list_S": None,
    "block_size": 0,
    "table": None,
    "spare_blocks": 0,
    "spare_columns": 0,
    "D0": 16,
    "kv_heads_literal": False,
    "seed": 0,
    "scaleValue": 0.125,
    "preTokens": INT_MAX,
    "nextTokens": INT_MAX,
    "sparseMode": 0,
    "innerPrecise": 0,
    "antiquantMode": 0,
    "softmaxLseFlag": False,
    "keyAntiquantMode": 0,
    "valueAntiquantMode": 0,
    "queryQuantMode": 0,
    "pseType": 0,
}
"""Fields of the plainest valid call. Optional tensors and arrays (``in:NAME``), fills (``fill:NAME``) and overrides
(``=NAME``) are absent there."""

_DERIVED_ATTRS = frozenset({"numHeads", "numKeyValueHeads", "inputLayout", "blockSize"})
_FREE_ATTRS: tuple[str, ...] = tuple(a.name for a in ATTRIBUTES if a.name not in _DERIVED_ATTRS)
_BUILT = frozenset(
    {
        "query",
        "key",
        "value",
        "queryRope",
        "keyRope",
        "keySharedPrefix",
        "valueSharedPrefix",
        "blockTable",
        "actualSeqLengths",
        "actualSeqLengthsKv",
    }
)
_OPTIONAL: tuple[str, ...] = tuple(p.name for p in INPUTS if p.name not in _BUILT)
_FILLED: tuple[str, ...] = ("query", "key", "value", "queryRope", "keyRope", "keySharedPrefix", "valueSharedPrefix")
_ALL: tuple[str, ...] = tuple(p.name for p in (*INPUTS, *ATTRIBUTES, *OUTPUTS))


class OptionalTensor(msgspec.Struct, frozen=True):
    """An optional tensor as a field: the form of its shape, its dtype ("=" for query's), and how its values are made.

    ``shape`` is the shape at which literal ``values`` and patches were written.
    """

    form: Form
    dtype: str
    shape: tuple[int, ...]
    format: str = "ND"
    fill: Optional[Fill] = None
    values: Optional[tuple[Any, ...]] = None


def plain_value(name: str) -> Any:
    """The value of a field in the plainest call."""
    return PLAIN.get(name)


def differences(fields: Fields) -> tuple[str, ...]:
    """Names of the fields that differ from the plainest call. The seed is none."""
    return tuple(name for name, value in fields.items() if value != PLAIN.get(name) and name != "seed")


def with_fields(fields: Fields, **changes: Any) -> dict[str, Any]:
    """A copy with fields changed; None removes a field that the plainest call does not have."""
    found = dict(fields)
    for name, value in changes.items():
        if value is None and name not in PLAIN:
            found.pop(name, None)
        else:
            found[name] = value
    return found


# ---- putting together ------------------------------------------------------------------------------


def sizes_of(fields: Fields) -> dict[str, int]:
    """The size letters (forms.py) of a call described by fields."""
    packed = LAYOUTS[fields["layout"]].packed
    batches, block = fields["B"], fields["block_size"]
    q_lens, kv_lens = lengths_of(fields)
    paged = fields["storage"] in CACHE_LAYOUTS
    span = fields["KV_S"]
    columns = 0
    if paged:
        columns = -(-max((*kv_lens, 1)) // block) + fields["spare_columns"] if block > 0 else 1
        span = columns * block
    elif packed:
        span = max((*kv_lens, 0))
    blocks = fields["spare_blocks"] + (columns * batches if fields["table"] is None else 0) if paged else 0
    value_d = fields["V_D"] if fields["V_D"] is not None else fields["D"]
    return {
        "B": batches,
        "N": fields["Q_N"],
        "K": fields["KV_N"],
        "G": fields["Q_N"] // fields["KV_N"] if fields["KV_N"] > 0 else 0,
        "S": max((*q_lens, 0)) if packed else fields["Q_S"],
        "Z": span if packed or paged else fields["KV_S"],
        "W": span,
        "X": span + (fields["prefix_S"] or 0),
        "P": fields["prefix_S"] or 0,
        "D": fields["D"],
        "V": value_d,
        "R": fields["rope_D"] or 0,
        "T": sum(q_lens),
        "U": sum(kv_lens),
        "U64": sum(-(-n // 64) for n in kv_lens),
        "Bn": blocks,
        "Bs": block,
        "C": columns,
    }


def lengths_of(fields: Fields) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Query and key lengths of each batch."""
    batches = max(0, fields["B"])
    q = fields["q_lens"] if fields["q_lens"] is not None else (fields["Q_S"],) * batches
    kv = fields["kv_lens"]
    if kv is None:
        kv = (
            fields["list_S"] if fields["storage"] == "tensor_list" and fields["list_S"] else (fields["KV_S"],) * batches
        )
    return tuple(q), tuple(kv)


def put_together(fields: Fields, api: str, product: str) -> Case:
    """The case that the fields describe, overrides applied."""
    layout = LAYOUTS[fields["layout"]]
    sizes = sizes_of(fields)
    dtype = fields["q_dtype"]
    kv_dtype = dtype if fields["kv_dtype"] == "=" else fields["kv_dtype"]
    out_dtype = dtype if fields["out_dtype"] == "=" else fields["out_dtype"]
    inputs: dict[str, Any] = {
        "query": _data(fields, "query", _query_shape(layout.inputs, sizes, sizes["D"]), dtype),
        "key": _cache(fields, "key", sizes, sizes["D"], kv_dtype),
        "value": _cache(fields, "value", sizes, sizes["V"], kv_dtype),
    }
    q_lens, kv_lens = lengths_of(fields)
    paged = fields["storage"] in CACHE_LAYOUTS
    if layout.packed:
        inputs["actualSeqLengths"] = tuple(accumulate(q_lens))
    elif fields["q_lens"] is not None:
        inputs["actualSeqLengths"] = q_lens
    if layout.packed and not paged:
        inputs["actualSeqLengthsKv"] = tuple(accumulate(kv_lens))
    elif fields["kv_lens"] is not None or paged:
        inputs["actualSeqLengthsKv"] = kv_lens
    if fields["rope_D"] is not None:
        inputs["queryRope"] = _data(
            fields, "queryRope", _query_shape(layout.inputs, sizes, sizes["R"]), _like(fields, "rope", dtype)
        )
        inputs["keyRope"] = _cache(fields, "keyRope", sizes, sizes["R"], _like(fields, "rope", dtype))[0]
    if fields["prefix_S"] is not None:
        for name, d in (("keySharedPrefix", sizes["D"]), ("valueSharedPrefix", sizes["V"])):
            shape = tensor_shape(layout.inputs, B=1, S=sizes["P"], N=sizes["K"], D=d, T=sizes["P"])
            inputs[name] = _data(fields, name, _packed_int4(shape, kv_dtype), kv_dtype)
    if paged:
        inputs["blockTable"] = _block_table(fields, sizes)
    for name in _OPTIONAL:
        item = fields.get(f"in:{name}")
        if isinstance(item, OptionalTensor):
            inputs[name] = _optional(item, sizes, dtype)
        elif item is not None:
            inputs[name] = tuple(item)
    attrs = {name: fields[name] for name in _FREE_ATTRS}
    heads = fields["KV_N"] if fields["kv_heads_literal"] or fields["KV_N"] != fields["Q_N"] else 0
    out_shape = tensor_shape(layout.output, B=sizes["B"], S=sizes["S"], N=sizes["N"], D=sizes["V"], T=sizes["T"])
    lse = None
    if fields["softmaxLseFlag"]:
        lse = TensorSpec(lse_shape(layout, B=sizes["B"], N=sizes["N"], S=sizes["S"], T=sizes["T"]), "FLOAT32")
    case = Case(
        api=api,  # type: ignore[arg-type]
        product=product,
        seed=fields["seed"],
        inputs=Inputs(**inputs),  # type: ignore[arg-type]
        attrs=Attrs(
            numHeads=fields["Q_N"],
            numKeyValueHeads=heads,
            inputLayout=fields["layout"],
            blockSize=fields["block_size"] if paged else 0,
            **attrs,
        ),
        outputs=Outputs(TensorSpec(out_shape, out_dtype), lse),
    )
    overrides = {name[1:]: value.value for name, value in fields.items() if name.startswith("=")}
    return case.replace(**overrides) if overrides else case


class Literal(msgspec.Struct, frozen=True):
    """An override: this very value, which may be None."""

    value: Any


def _like(fields: Fields, name: str, dtype: str) -> str:
    found: str = fields.get(f"dtype:{name}") or dtype
    return found


def _query_shape(axes: str, sizes: Mapping[str, int], d: int) -> tuple[int, ...]:
    return tensor_shape(axes, B=sizes["B"], S=sizes["S"], N=sizes["N"], D=d, T=sizes["T"])


def _packed_int4(shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
    """INT4 travels eight to an INT32 word, along the last axis."""
    return (*shape[:-1], shape[-1] // 8) if dtype == "INT32" and shape else shape


def _data(fields: Fields, name: str, shape: tuple[int, ...], dtype: str) -> TensorSpec:
    fill = fields.get(f"fill:{name}")
    return TensorSpec(shape, dtype, fill=_fill_for(fill, shape) if fill is not None else None)


def _cache(fields: Fields, name: str, sizes: Mapping[str, int], d: int, dtype: str) -> tuple[TensorSpec, ...]:
    axes, storage = LAYOUTS[fields["layout"]].inputs, fields["storage"]
    if storage in CACHE_LAYOUTS:
        d0 = min(fields["D0"], 16) if name == "keyRope" else fields["D0"]
        shapes = [cache_shape(storage, blocks=sizes["Bn"], block_size=sizes["Bs"], N=sizes["K"], D=d, D0=d0 or 1)]
    elif storage == "tensor_list":
        shapes = [tensor_shape(axes, B=1, S=s, N=sizes["K"], D=d, T=s) for s in fields["list_S"] or ()]
    else:
        shapes = [tensor_shape(axes, B=sizes["B"], S=sizes["Z"], N=sizes["K"], D=d, T=sizes["U"])]
    return tuple(_data(fields, name, _packed_int4(shape, dtype), dtype) for shape in shapes)


def _block_table(fields: Fields, sizes: Mapping[str, int]) -> TensorSpec:
    shape = (sizes["B"], sizes["C"])
    rows = fields["table"]
    if rows is None:
        return TensorSpec(shape, "INT32")
    values = tuple(entry for row in rows[: sizes["B"]] for entry in row[: sizes["C"]])
    return TensorSpec(shape, "INT32", values=values)


def _optional(item: OptionalTensor, sizes: Mapping[str, int], dtype: str) -> TensorSpec:
    shape = shape_of(item.form, sizes)
    values = cropped(item.values, item.shape, shape)
    fill = _fill_for(item.fill, shape) if item.fill is not None and shape != item.shape else item.fill
    return TensorSpec(shape, dtype if item.dtype == "=" else item.dtype, item.format, fill=fill, values=values)  # type: ignore[arg-type]


def _fill_for(fill: Fill, shape: tuple[int, ...]) -> Fill:
    """A fill cut to another shape: patches inside it, starts for its batches."""
    if isinstance(fill, ColumnsFrom) and shape and len(fill.start) > max(1, shape[0]):
        return ColumnsFrom(fill.start[: max(1, shape[0])])
    if not isinstance(fill, Patched):
        return fill
    kept = []
    for patch in fill.patches:
        if len(patch.at) != len(shape):
            kept.append(patch)
            continue
        at = tuple(None if r is None else (min(r[0], n), min(r[1], n)) for r, n in zip(patch.at, shape))
        if all(r is None or r[0] < r[1] for r in at):
            kept.append(Patch(at, patch.value))
    base = _fill_for(fill.base, shape)
    return Patched(base, tuple(kept)) if kept else base
