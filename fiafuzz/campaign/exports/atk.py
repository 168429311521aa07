"""``--as atk``: calls as an ATK case file, the inverse of the importer (facts: spec/vendor_formats.md).

ATK draws tensor values evenly from a range: a uniform fill is kept; of any other values only the range is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, Optional, cast

import numpy as np

from fiafuzz.campaign.imports.atk import dtype_word, is_integer
from fiafuzz.campaign.results import clean
from fiafuzz.campaign.verdict import foreseen
from fiafuzz.model.case import Case, CaseError, Constant, TensorSpec, Uniform
from fiafuzz.model.codecs import decode
from fiafuzz.model.parameters import ATTRIBUTES, INPUTS, OUTPUTS, Kind, Parameter
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import check_sizes, materialize_one
from oracles.constraints.predict import predict

from .common import CannotExport, Item, Remarks, c_string, refuse_outside_api, scale_value


def export_atk(calls: Iterable[dict[str, Any]]) -> str:
    """The text of an ATK file with these calls (of ``call_of``)."""
    return json.dumps(list(calls), indent=2, allow_nan=False) + "\n"


def call_of(item: Item, number: int, remarks: Remarks) -> dict[str, Any]:
    """One call. CannotExport when ATK has no word for something and leaving it out would change the call."""
    case = item.case
    refuse_outside_api(case)
    version = int(case.api[1:])
    api = "aclnnFusedInferAttentionScore" + (f"V{version}" if version > 1 else "")
    prediction = foreseen(predict(case, item.profile, scene=Scene(case)))
    if prediction.verdict not in ("accept", "reject"):
        remarks.add(f"expected_error_msg is left empty, since the prediction is {prediction.verdict}")
    refused = None
    if prediction.verdict == "reject":
        refused = " or ".join(str(code) for code in prediction.codes) or "refused"
    parameters = [p for p in (*INPUTS, *ATTRIBUTES, *OUTPUTS) if p.since <= version]
    return {
        "id": number,
        "name": clean(item.entry.id if item.entry is not None else item.title),
        "aclnn_name": api,
        "version": "v2.1",
        "expected_error_msg": refused,
        "api": None,
        "api_type": "aclnn",
        "backward": False,
        "standard": {"acc": "default"},
        "is_boundary": False,
        "inputs": [_parameter(case, p, remarks) for p in parameters],
        "outputs": None,
    }


def _parameter(case: Case, parameter: Parameter, remarks: Remarks) -> Any:
    name, value = parameter.name, cast(Any, case.get(parameter.name))
    called = name if parameter.required or parameter.kind is Kind.ATTRIBUTE or parameter.kind is Kind.OUTPUT else f"{name}Optional"
    if parameter.kind is Kind.ATTRIBUTE:
        return _attribute(case, name, parameter.required)
    if parameter.kind is Kind.INT_ARRAY:
        return _ints(called, value)
    if parameter.kind is Kind.TENSOR_LIST:
        if value is None:
            return [_item(called, "tensors", "fp16", [1], ["None"], parameter.required)]
        if not any(spec is not None for spec in value):
            raise CannotExport(f"ATK cannot say a list without any tensor ({name})")
        return [_tensor(case, parameter, called, spec, i, remarks) for i, spec in enumerate(value)]
    return _tensor(case, parameter, called, value, 0, remarks)


def _item(name: str, kind: str, dtype: str, shape: Any, values: Any, required: bool) -> dict[str, Any]:
    return {"name": name, "type": kind, "required": required, "dtype": dtype, "shape": shape, "range_values": values, "backward": False,
            "align_32B": None, "outlier_values": None}


def _tensor(case: Case, parameter: Parameter, called: str, spec: Optional[TensorSpec], index: int, remarks: Remarks) -> dict[str, Any]:
    kind = "tensors" if parameter.kind is Kind.TENSOR_LIST else "tensor"
    if spec is None:
        return _item(called, kind, "fp16", [1], ["None"], parameter.required)
    if spec.strides is not None or spec.offset:
        raise CannotExport(f"ATK cannot say strides or an offset ({parameter.name})")
    if spec.format != "ND":
        raise CannotExport(f"ATK cannot say the format {spec.format} ({parameter.name})")
    values = [0, 0] if parameter.kind is Kind.OUTPUT else _range(case, parameter.name, spec, index, remarks)
    return _item(called, kind, dtype_word(spec.dtype), list(spec.shape), values, parameter.required)


def _range(case: Case, name: str, spec: TensorSpec, index: int, remarks: Remarks) -> list[Any]:
    """Lowest and highest value of a tensor; exact where its fill is one that ATK has."""
    fill = spec.fill
    if isinstance(fill, Uniform) and not is_integer(spec.dtype) and max(abs(fill.low), abs(fill.high)) < 1e30:
        return [fill.low, fill.high]
    if isinstance(fill, Constant) and is_integer(spec.dtype) and isinstance(fill.value, int):
        return [fill.value, fill.value]
    try:
        check_sizes(case)
        stored = materialize_one(case, name, index)
        numbers = np.asarray(decode(spec.dtype, stored)).reshape(-1)
        if numbers.dtype.kind == "c":
            raise CannotExport(f"ATK has no range for {spec.dtype} ({name})")
        low, high = (numbers.min().item(), numbers.max().item()) if numbers.size else (0, 0)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise CannotExport(f"ATK has no range for inf or NaN ({name})")
    except (CaseError, MemoryError) as error:
        remarks.add(f"ranges of tensors that cannot be made are 0 .. 1: {clean(error)}")
        return [0, 1]
    if low != high:
        remarks.add("ATK draws the values of {} anew from their range", name)
    if isinstance(low, bool):
        return [int(low), int(high)]
    return [low, high]


def _ints(called: str, values: Any) -> Any:
    if values is None:
        return [_item(called, "attrs", "int", [1], ["None"], False)]
    if not values:
        return [_item(called, "attrs", "int", [0], [], False)]
    return [_item(called, "attrs", "int", [1], int(v), False) for v in values]


def _attribute(case: Case, name: str, required: bool) -> dict[str, Any]:
    value = getattr(case.attrs, name)
    if name == "inputLayout":
        if value is None or value in ("None", "null"):
            raise CannotExport(f"ATK cannot say inputLayout {value!r}: it stands for an absent one")
        c_string(value)
        return _item(name, "attr", "string", None, value, required)
    if name == "softmaxLseFlag":
        return _item(name, "attr", "bool", None, bool(value), required)
    if name == "scaleValue":
        number = scale_value(case)
        if not math.isfinite(number):
            raise CannotExport(f"ATK cannot say scaleValue {number}")
        return _item(name, "attr", "double", None, number, required)
    return _item(name, "attr", "int", None, value, required)
