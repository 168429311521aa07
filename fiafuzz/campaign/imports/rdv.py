"""tiny_rdv cases: one call a JSON file, described by its sizes (b, n2, g, s1, s2, qk_d, v_d, rope_d, storage, ...)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Union

import msgspec

from fiafuzz.model.case import Triu
from fiafuzz.model.layouts import LAYOUTS, MASK_COMPRESSED, cache_shape, lse_shape, tensor_shape
from fiafuzz.model.parameters import INT_MAX

from .common import CannotMap, Imported, Unmapped, build, content_of, dtype_of, tensor

_CACHES = {"pa_bnbd": "BnNBsD", "pa_bbh": "BnBsH", "pa_bbnd": "BnBsH", "pa_nz": "NZ"}


def read_rdv(path: str, api: str, product: str) -> Iterator[Union[Imported, Unmapped]]:
    """The call (or list of calls) of a tiny_rdv file as cases. ValueError when it is no JSON."""
    raw = content_of(path)
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None
    for i, call in enumerate(found if isinstance(found, list) else [found]):
        where = f"{path}[{i}]" if isinstance(found, list) else path
        name = str(call.get("case_name") or where) if isinstance(call, dict) else where
        try:
            yield _call(call, where, name, api, product)
        except CannotMap as error:
            yield Unmapped(where, name, str(error))


def _size(call: dict[str, Any], key: str, default: int | None = None) -> int:
    value = call.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > INT_MAX:
        raise CannotMap(f"{key} {value!r} is no size")
    return value


def _list(call: dict[str, Any], key: str, count: int, full: int) -> list[int]:
    found = call.get(key) or []
    if not isinstance(found, list) or not all(isinstance(n, int) for n in found):
        raise CannotMap(f"{key} is no list of integers")
    if not found:
        return [full] * count
    return found * count if len(found) == 1 else found


def _cumulative(lens: list[int]) -> tuple[int, ...]:
    total = 0
    return tuple(total := total + n for n in lens)


def _call(call: Any, where: str, name: str, api: str, product: str) -> Imported:
    if not isinstance(call, dict):
        raise CannotMap("a call is an object")
    layout = LAYOUTS.get(str(call.get("input_layout")))
    if layout is None:
        raise CannotMap(f"unknown input_layout {call.get('input_layout')!r}")
    b, n2, g = _size(call, "b"), _size(call, "n2"), _size(call, "g")
    s1, s2, d, dv = _size(call, "s1"), _size(call, "s2"), _size(call, "qk_d"), _size(call, "v_d")
    rope, n1 = _size(call, "rope_d", 0), n2 * g
    if not 0 < b <= 65536 or min(n2, g, s1, s2, d, dv) < 0:
        raise CannotMap("a size is out of reach")
    q_lens, kv_lens = _list(call, "act_seq_lens_q", b, s1), _list(call, "act_seq_lens_kv", b, s2)
    mode = str(call.get("kv_storage_mode") or "continue")
    q_dtype = dtype_of(str(call.get("q_dtype")))
    kv_dtype = dtype_of(str(call.get("kv_dtype") or call.get("q_dtype")))
    rope_dtype = dtype_of(str(call.get("rope_dtype") or call.get("q_dtype")))
    t1, t2 = sum(q_lens), sum(kv_lens)
    inputs: dict[str, Any] = {}
    if mode == "continue":
        shapes = [tensor_shape(layout.inputs, B=b, S=s2, N=n2, D=size, T=t2) for size in (d, dv, rope)]
    elif mode in _CACHES:
        block = _size(call, "block_size")
        if block <= 0:
            raise CannotMap("paged storage without block_size")
        columns = max(1, max((-(-n // block) for n in kv_lens), default=1))
        blocks = b * columns
        shapes = [cache_shape(_CACHES[mode], blocks=blocks, block_size=block, N=n2, D=size) for size in (d, dv, rope)]
        inputs["blockTable"] = tensor((b, columns), "INT32", values=tuple(range(blocks)))
    else:
        raise CannotMap(f"unknown kv_storage_mode {mode!r}")
    inputs["query"] = tensor(tensor_shape(layout.inputs, B=b, S=s1, N=n1, D=d, T=t1), q_dtype)
    inputs["key"] = (tensor(shapes[0], kv_dtype),)
    inputs["value"] = (tensor(shapes[1], kv_dtype),)
    if rope:
        inputs["queryRope"] = tensor(tensor_shape(layout.inputs, B=b, S=s1, N=n1, D=rope, T=t1), rope_dtype)
        inputs["keyRope"] = tensor(shapes[2], rope_dtype)
    if layout.packed or call.get("act_seq_lens_q"):
        inputs["actualSeqLengths"] = _cumulative(q_lens) if layout.packed else tuple(q_lens)
    if layout.packed or mode != "continue" or call.get("act_seq_lens_kv"):
        inputs["actualSeqLengthsKv"] = _cumulative(kv_lens) if layout.packed and mode == "continue" else tuple(kv_lens)
    sparse = _size(call, "sparse_mode", 0)
    if call.get("enable_mask"):
        shape = call.get("mask_shape") or []
        if not isinstance(shape, list) or not all(isinstance(n, int) for n in shape):
            raise CannotMap("mask_shape is no list of integers")
        shape = shape or ([MASK_COMPRESSED] * 2 if sparse in (2, 3, 4) else [b, 1, s1, s2])
        inputs["attenMask"] = tensor(tuple(shape), "BOOL", fill=Triu(1))
    if call.get("enable_learnable_sink"):
        inputs["learnableSink"] = tensor((n1,), q_dtype)
    lse = bool(call.get("enable_softmax_lse"))
    attrs: dict[str, Any] = {
        "numHeads": n1,
        "numKeyValueHeads": n2,
        "inputLayout": layout.name,
        "sparseMode": sparse,
        "scaleValue": float(call.get("scale_value") or 1 / max(1, d + rope) ** 0.5),
        "softmaxLseFlag": lse,
        "preTokens": _size(call, "pre_tokens", INT_MAX),
        "nextTokens": _size(call, "next_tokens", INT_MAX),
        "innerPrecise": _size(call, "inner_precise", 0),
        "blockSize": _size(call, "block_size", 0) if mode != "continue" else 0,
    }
    outputs = {
        "attentionOut": tensor(
            tensor_shape(layout.output, B=b, S=s1, N=n1, D=dv, T=t1), dtype_of(str(call.get("out_dtype") or call.get("q_dtype")))
        ),
        "softmaxLse": tensor(lse_shape(layout, B=b, N=n1, S=s1, T=t1), "FLOAT32") if lse else None,
    }
    return Imported(build(api, product, inputs, attrs, outputs), where, name, "accept")
