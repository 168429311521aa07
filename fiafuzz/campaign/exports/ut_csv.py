"""``--as ut-csv``: calls as rows of the operator's unit-test tables, the inverse of the importer (facts: spec/vendor_formats.md).

A table says shapes, dtypes, formats, lengths and attributes, never tensor values: its tests plan a call, they do not run it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from fiafuzz.campaign.imports.ut_csv import column_of, dtype_word
from fiafuzz.campaign.results import clean
from fiafuzz.campaign.verdict import foreseen
from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.parameters import ATTRIBUTES, INPUTS, OUTPUTS, Kind
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import predict

from .common import CannotExport, Item, Remarks, refuse_outside_api, scale_value

WITH_DATA = ("actualSeqLengths", "actualSeqLengthsKv", "actualSharedPrefixLen")
WITH_STRIDES = ("key", "value", "keyAntiquantScale", "valueAntiquantScale", "keyRope")
"""Parameters that newer tables have strides for."""


def header(strides: bool) -> list[str]:
    """The columns of a table, in the order of the C signature; ``strides`` as newer tables have them."""
    columns = ["case_name"]
    for parameter in (*INPUTS, *OUTPUTS):
        name = column_of(parameter.name)
        columns += [f"{name}_shape", f"{name}_dtype", f"{name}_format"]
        if parameter.name in WITH_DATA:
            columns.append(f"{name}_data")
    columns += [column_of(p.name) for p in ATTRIBUTES]
    columns += ["out_dtype", "expectResult", "expectTilingKey", "expectTilingDataHash", "case_annotation"]
    return columns + [f"{column_of(name)}_stride" for name in WITH_STRIDES if strides]


def export_ut_csv(rows: Iterable[dict[str, str]]) -> str:
    """The text of a table with these rows (of ``row_of``)."""
    kept = list(rows)
    out = io.StringIO(newline="")
    strides = any(f"{column_of(name)}_stride" in row for row in kept for name in WITH_STRIDES)
    writer = csv.DictWriter(out, header(strides), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(kept)
    return out.getvalue()


def row_of(item: Item, remarks: Remarks) -> dict[str, str]:
    """One call as a row. CannotExport when the table has no word for it and leaving it out would change the call."""
    case = item.case
    refuse_outside_api(case)
    version = int(case.api[1:])
    row = {"case_name": item.entry.id if item.entry is not None else item.title}
    for parameter in (*INPUTS, *OUTPUTS):
        value = case.get(parameter.name)
        if value is None or parameter.since > version:
            continue
        if parameter.kind is Kind.INT_ARRAY:
            row.update(_lengths(parameter.name, value))
        else:
            row.update(_tensors(parameter.name, value if parameter.kind is Kind.TENSOR_LIST else (value,), parameter.kind))
            if parameter.kind is not Kind.OUTPUT:
                _say_values(parameter.name, value, remarks)
    if case.seed:
        remarks.add("the seed and tensor values are not part of a table")
    for parameter in ATTRIBUTES:
        if parameter.since <= version:
            row[column_of(parameter.name)] = _attribute(case, parameter.name)
    prediction = foreseen(predict(case, item.profile, scene=Scene(case)))
    row["expectResult"] = {"accept": "SUCCESS", "reject": "FAILED"}.get(prediction.verdict, "")
    if not row["expectResult"]:
        remarks.add(f"expectResult is left empty, since the prediction is {prediction.verdict}")
    row["case_annotation"] = " ".join([*prediction.rules, item.title] if prediction.rules or item.entry is not None else [])
    return {column: _cell(text, column) for column, text in row.items()}


def _cell(text: str, column: str) -> str:
    if column != "input_layout":
        text = clean(text, 1 << 22).replace("\n", " ")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CannotExport(f"{column} {text!r:.80} is no valid Unicode text") from None
    return text


def _lengths(name: str, values: Any) -> dict[str, str]:
    column = column_of(name)
    cells = {f"{column}_shape": str(len(values)), f"{column}_dtype": "INT64", f"{column}_format": "ND"}
    if name in WITH_DATA:
        cells[f"{column}_data"] = " ".join(map(str, values))
    elif any(values):
        raise CannotExport(f"a table has no column for the values of {name}, here {list(values[:8])}")
    return cells


def _tensors(name: str, specs: Any, kind: Kind) -> dict[str, str]:
    if not specs:
        raise CannotExport(f"a table cannot say an empty list of tensors ({name})")
    if any(spec is None for spec in specs):
        raise CannotExport(f"a table cannot say a null inside a list of tensors ({name})")
    column = column_of(name)
    for spec in specs:
        _sayable(name, spec, kind)
    if len({(spec.dtype, spec.format) for spec in specs}) > 1:
        raise CannotExport(f"a table has one dtype and format for all tensors of {name}")
    cells = {
        f"{column}_shape": "|".join(" ".join(map(str, spec.shape)) for spec in specs),
        f"{column}_dtype": dtype_word(specs[0].dtype),
        f"{column}_format": specs[0].format,
    }
    if any(spec.strides is not None for spec in specs):
        cells[f"{column}_stride"] = "|".join(" ".join(map(str, spec.strides or ())) for spec in specs)
    return cells


def _sayable(name: str, spec: TensorSpec, kind: Kind) -> None:
    if not spec.shape:
        raise CannotExport(f"a table cannot say a tensor without axes ({name})")
    if spec.offset:
        raise CannotExport(f"a table cannot say an offset ({name}: {spec.offset})")
    if spec.strides is not None and (name not in WITH_STRIDES or not spec.strides):
        raise CannotExport(f"a table has no column for the strides of {name}")


def _say_values(name: str, value: Any, remarks: Remarks) -> None:
    specs = value if isinstance(value, tuple) else (value,)
    if any(spec.fill is not None or spec.values is not None for spec in specs if spec is not None):
        remarks.add("a table does not hold the values of {}", name)


def _attribute(case: Case, name: str) -> str:
    value = getattr(case.attrs, name)
    if name == "inputLayout":
        if value is None or not value or value != value.strip() or "\0" in value:
            raise CannotExport(f"a table cannot say inputLayout {value!r:.80}")
        return str(value)
    if name == "softmaxLseFlag":
        return str(int(value))
    return repr(scale_value(case)) if name == "scaleValue" else str(value)
