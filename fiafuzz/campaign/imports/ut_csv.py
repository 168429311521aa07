"""Unit-test tables: one call a row, three columns a tensor (shape, dtype, format), integer lists with a data column."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any, Optional, Union

from fiafuzz.campaign.results import number as as_number
from fiafuzz.model.case import TensorSpec
from fiafuzz.model.parameters import ATTRIBUTES, INPUTS, OUTPUTS, Kind

from .common import DTYPES, CannotMap, Imported, Unmapped, build, content_of, dtype_of, tensor

MAX_COLUMN_CHARACTERS = 1 << 22

_SNAKE_TENSORS: Mapping[str, str] = {
    "deqScale1": "dequant_scale1",
    "deqScale2": "dequant_scale2",
}
_SNAKE_ATTRS: Mapping[str, str] = {"scaleValue": "scale"}


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


def column_of(name: str) -> str:
    """The column (or the beginning of the columns) of a parameter by its C name."""
    return _SNAKE_TENSORS.get(name) or _SNAKE_ATTRS.get(name) or _snake(name)


def dtype_word(dtype: str) -> str:
    """The table's word for a dtype by the documents' name: the inverse of reading one."""
    return {"FLOAT32": "FLOAT", "BFLOAT16": "BF16"}.get(dtype) or next(word for word, name in DTYPES.items() if name == dtype)


def read_ut_csv(path: str, api: str, product: str) -> Iterator[Union[Imported, Unmapped]]:
    """Rows of a table as cases. OSError or UnicodeDecodeError when the file cannot be read; csv.Error when it is no table."""
    csv.field_size_limit(MAX_COLUMN_CHARACTERS)
    with io.StringIO(content_of(path).decode("utf-8-sig"), newline="") as table:
        reader = csv.DictReader(table)
        header = set(reader.fieldnames or ())
        if "query_shape" not in header:
            raise csv.Error("no column query_shape: not a unit-test table")
        for row in reader:
            where = f"{path}:{reader.line_num}"
            name = (row.get("case_name") or "").strip() or where
            if not any((v or "").strip() for v in row.values() if isinstance(v, str)):
                continue
            try:
                yield _row(row, where, name, api, product)
            except CannotMap as error:
                yield Unmapped(where, name, str(error))


def _row(row: dict[str, Any], where: str, name: str, api: str, product: str) -> Imported:
    remarks: list[str] = []
    inputs: dict[str, Any] = {}
    version = int(api[1:])
    for parameter in INPUTS:
        found = _input(row, parameter.name, parameter.kind)
        if found is None:
            continue
        if parameter.since > version:
            remarks.append(f"{parameter.name} is not part of {api} and was left out")
            continue
        inputs[parameter.name] = found
    attrs: dict[str, Any] = {}
    for parameter in ATTRIBUTES:
        text = (row.get(column_of(parameter.name)) or "").strip()
        if not text:
            continue
        if parameter.since > version:
            if text not in ("0", "0.0"):
                remarks.append(f"{parameter.name} is not part of {api} and was left out")
            continue
        attrs[parameter.name] = _attribute(parameter.name, text)
    outputs = {p.name: _tensor(row, _snake(p.name)) for p in OUTPUTS}
    if (row.get("out_dtype") or "").strip() not in ("", "0"):
        remarks.append("out_dtype is internal and was left out")
    case = build(api, product, inputs, attrs, outputs)
    expects = {"SUCCESS": "accept", "FAILED": "reject"}.get((row.get("expectResult") or "").strip())
    return Imported(case, where, name, expects, tuple(remarks))


def _input(row: dict[str, Any], name: str, kind: Kind) -> Any:
    column = column_of(name)
    shape = (row.get(f"{column}_shape") or "").strip()
    if not shape:
        return None
    if kind is Kind.TENSOR_LIST:
        strides = (row.get(f"{column}_stride") or "").split("|")
        found = []
        for i, part in enumerate(shape.split("|")):
            found.append(_spec(row, column, part, strides[i] if i < len(strides) else ""))
        return tuple(found)
    if kind is Kind.INT_ARRAY:
        data = row.get(f"{column}_data")
        if data is None or not data.strip():
            if shape == "0":
                return ()
            # start indices have no data column: their values do not matter for the shape checks, zeros stand for them
            if f"{column}_data" not in row:
                return (0,) * max(0, _ints(shape, f"{column}_shape")[0])
            raise CannotMap(f"{name} is given without values (planning-time mode)")
        return _ints(data, f"{column}_data")
    return _spec(row, column, shape, row.get(f"{column}_stride") or "")


def _tensor(row: dict[str, Any], column: str) -> Optional[TensorSpec]:
    shape = (row.get(f"{column}_shape") or "").strip()
    return _spec(row, column, shape, "") if shape else None


def _spec(row: dict[str, Any], column: str, shape: str, strides: str) -> TensorSpec:
    try:
        dtype = dtype_of(row.get(f"{column}_dtype") or "", float32_known=False)
    except CannotMap as error:
        raise CannotMap(f"{column}: {error}") from None
    form = (row.get(f"{column}_format") or "ND").strip() or "ND"
    stride = _ints(strides, f"{column}_stride") if strides.strip() else None
    return tensor(_ints(shape, f"{column}_shape"), dtype, format=form, strides=stride)


def _ints(text: str, column: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.replace(",", " ").split())
    except ValueError:
        raise CannotMap(f"{column}: {text.strip()!r} is no list of integers") from None


def _attribute(name: str, text: str) -> Any:
    if name == "inputLayout":
        return text
    try:
        if name == "scaleValue":
            return as_number(float(text))  # a case writes nan and inf as words
        number = int(float(text)) if "." in text or "e" in text.lower() else int(text)
    except (ValueError, OverflowError):
        if name == "softmaxLseFlag" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise CannotMap(f"{name}: {text!r} is no number") from None
    return bool(number) if name == "softmaxLseFlag" else number
