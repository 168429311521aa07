"""ATK case files: a JSON list of calls; every parameter in C order as {name, type, dtype, shape, range_values}."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Optional, Union

import msgspec

from fiafuzz.model.case import Constant, Fill, Uniform
from fiafuzz.model.parameters import BY_NAME, Kind

from .common import CannotMap, Imported, Unmapped, build, c_name, content_of, dtype_of, tensor

_INTEGER = ("INT", "UINT", "BOOL")

_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "FLOAT16": "fp16",
        "BFLOAT16": "bf16",
        "FLOAT32": "fp32",
        "HIFLOAT8": "hif8",
        "FLOAT8_E4M3FN": "fp8_e4m3fn",
        "FLOAT8_E5M2": "fp8_e5m2",
        "FLOAT8_E8M0": "fp8_e8m0",
        "FLOAT4_E2M1": "fp4_e2m1",
        "FLOAT4_E1M2": "fp4_e1m2",
    }
)


def dtype_word(dtype: str) -> str:
    """ATK's word for a dtype by the documents' name: the inverse of reading one."""
    return _WORDS.get(dtype, dtype.lower())


def is_integer(dtype: str) -> bool:
    """Whether a range of values means whole numbers."""
    return dtype.startswith(_INTEGER)


def read_atk(path: str, api: str, product: str) -> Iterator[Union[Imported, Unmapped]]:
    """Calls of an ATK file as cases. The API version in ``aclnn_name`` wins over ``api``. ValueError when it is no such file."""
    raw = content_of(path)
    try:
        calls = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None
    if isinstance(calls, dict):
        calls = [calls]
    if not isinstance(calls, list):
        raise ValueError(f"{path}: an ATK file is a list of calls")
    for i, call in enumerate(calls):
        where = f"{path}[{i}]"
        name = str(call.get("name") or call.get("id") or where) if isinstance(call, dict) else where
        try:
            yield _call(call, where, name, api, product)
        except CannotMap as error:
            yield Unmapped(where, name, str(error))


def _call(call: Any, where: str, name: str, api: str, product: str) -> Imported:
    if not isinstance(call, dict) or not isinstance(call.get("inputs"), list):
        raise CannotMap("no list of inputs")
    operator = str(call.get("aclnn_name") or "")
    if operator:
        if "FusedInferAttentionScore" not in operator:
            raise CannotMap(f"operator {operator!r} is another one")
        tail = operator.rpartition("Score")[2]
        api = f"v{tail[1:]}" if tail[1:] in ("2", "3", "4", "5") else "v1"
    inputs: dict[str, Any] = {}
    attrs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    remarks: list[str] = []
    for item in call["inputs"]:
        first = item[0] if isinstance(item, list) and item else item
        if not isinstance(first, dict) or "name" not in first:
            raise CannotMap("an input has no name")
        parameter = BY_NAME[c_name(str(first["name"]))]
        value = _value(item, parameter.kind, parameter.name)
        if value is None:
            continue
        if parameter.since > int(api[1:]):
            remarks.append(f"{parameter.name} is not part of {api} and was left out")
        elif parameter.kind is Kind.ATTRIBUTE:
            attrs[parameter.name] = value
        elif parameter.kind is Kind.OUTPUT:
            outputs[parameter.name] = value
        else:
            inputs[parameter.name] = value
    expects = "reject" if call.get("expected_error_msg") else "accept"
    return Imported(build(api, product, inputs, attrs, outputs), where, name, expects, tuple(remarks))


def _absent(item: dict[str, Any]) -> bool:
    values = item.get("range_values")
    return (
        values is None or values in ("None", "null") or (isinstance(values, list) and bool(values) and values[0] in ("None", "null", None))
    )


def _value(item: Any, kind: Kind, name: str) -> Any:
    items = item if isinstance(item, list) else [item]
    if not items or not all(isinstance(i, dict) for i in items) or all(_absent(i) for i in items):
        return None
    if kind is Kind.ATTRIBUTE:
        return _scalar(items[0], name)
    if kind is Kind.INT_ARRAY:
        found: list[int] = []
        for part in items:
            values = part.get("range_values")
            found += [_integer(v, name) for v in (values if isinstance(values, list) else [values])]
        return tuple(found)
    if kind is Kind.TENSOR_LIST:
        return tuple(None if _absent(i) else _tensor(i, name) for i in items)
    return _tensor(items[0], name, filled=kind is not Kind.OUTPUT)


def _tensor(item: dict[str, Any], name: str, *, filled: bool = True) -> Any:
    shape = item.get("shape")
    if not isinstance(shape, list) or not all(isinstance(n, int) and not isinstance(n, bool) for n in shape):
        raise CannotMap(f"{name}: shape {shape!r} is no list of integers")
    dtype = dtype_of(str(item.get("dtype")))
    return tensor(tuple(shape), dtype, fill=_fill(item.get("range_values"), dtype) if filled else None)


def _fill(values: Any, dtype: str) -> Optional[Fill]:
    """The fill that a range of values says. A range of whole numbers is none (tables and masks have better defaults), unless it
    leaves no choice."""
    if not isinstance(values, list) or len(values) != 2 or not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        return None
    low, high = values
    if is_integer(dtype):
        return Constant(low) if low == high and isinstance(low, int) else None
    return Uniform(float(low), float(high)) if abs(low) < 1e30 and abs(high) < 1e30 else None


def _scalar(item: dict[str, Any], name: str) -> Any:
    value = item.get("range_values")
    if isinstance(value, list):
        value = value[0]
    if name == "inputLayout":
        return str(value)
    if name == "softmaxLseFlag":
        return value is True or str(value).lower() in ("true", "1")
    if name == "scaleValue":
        if not isinstance(value, (int, float)):
            raise CannotMap(f"{name}: {value!r} is no number")
        return float(value)
    return _integer(value, name)


def _integer(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or int(value) != value:
        raise CannotMap(f"{name}: {value!r} is no integer")
    return int(value)
