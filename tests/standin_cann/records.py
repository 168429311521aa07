"""A recorded call as a Case of the project, and its tensors read from device memory.

Written from the C interface alone: it shares nothing with the adapters that make such calls.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fiafuzz.model.case import Attrs, Case, Inputs, Outputs, TensorSpec
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.parameters import INDEX_PARAMETERS
from fiafuzz.model.tensors import Tensors

from . import memory
from .signatures import APIS, ENTRIES, INTS, LIST, TENSOR

CODES: dict[int, str] = {
    0: "FLOAT32", 1: "FLOAT16", 2: "INT8", 3: "INT32", 4: "UINT8", 6: "INT16", 7: "UINT16", 8: "UINT32", 9: "INT64", 10: "UINT64",
    11: "DOUBLE", 12: "BOOL", 16: "COMPLEX64", 17: "COMPLEX128", 27: "BFLOAT16", 29: "INT4", 34: "HIFLOAT8", 35: "FLOAT8_E5M2",
    36: "FLOAT8_E4M3FN", 37: "FLOAT8_E8M0", 40: "FLOAT4_E2M1", 41: "FLOAT4_E1M2",
}  # fmt: skip
"""aclDataType -> name of the format."""

FORMATS: dict[int, str] = {
    -1: "UNDEFINED", 0: "NCHW", 1: "NHWC", 2: "ND", 3: "NC1HWC0", 4: "FRACTAL_Z", 16: "HWCN", 27: "NDHWC", 31: "DHWCN", 29: "FRACTAL_NZ",
    30: "NCDHW", 32: "NDC1HWC0", 33: "FRACTAL_Z_3D", 47: "NCL", 50: "FRACTAL_NZ_C0_16", 51: "FRACTAL_NZ_C0_32",
}  # fmt: skip
"""aclFormat -> its name."""

BY_RANK: dict[int, int] = {3: 47, 4: 0, 5: 30}
"""The format that torch_npu writes on a tensor of that rank; it means nothing more than ND."""

PRODUCTS: tuple[tuple[str, str], ...] = (("Ascend910B", "a2"), ("Ascend910_93", "a3"), ("Ascend950", "950"))


class Unreadable(ValueError):
    """A call that has no form as a Case."""


@dataclass(frozen=True)
class Record:
    """One recorded call."""

    entry: str
    suffix: str
    device: int
    """Physical number of the device."""
    args: dict[str, Any]

    @property
    def api(self) -> str:
        """v1 .. v5"""
        return APIS[self.entry]


def parse(line: str) -> Record:
    """A line of the log, or what the C side hands over."""
    data = json.loads(line)
    name: str = data["fn"]
    suffix = "GetMaxWorkspaceSize" if name.endswith("GetMaxWorkspaceSize") else "GetWorkspaceSize"
    return Record(name[: -len(suffix)], suffix, data["device"], data["args"])


def product_of(soc: str) -> str:
    """The product that a SoC belongs to: a2, a3 or 950. Unreadable for others."""
    for start, product in PRODUCTS:
        if soc.startswith(start):
            return product
    raise Unreadable(f"the stand-in knows no product of SoC {soc}")


def case_of(record: Record, soc: str, *, with_values: bool = True) -> Case:
    """The call as a case. Index tensors are read from device memory, since their values are part of a case; without
    ``with_values`` nothing is read (for a record of another process)."""
    inputs: dict[str, Any] = {}
    attrs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    for name, kind in ENTRIES[record.entry]:
        value = record.args[name]
        if kind == TENSOR:
            where = outputs if name in ("attentionOut", "softmaxLse") else inputs
            where[name] = None if value is None else _spec(value, with_values and name in INDEX_PARAMETERS)
        elif kind == LIST:
            inputs[name] = None if value is None else tuple(None if item is None else _spec(item) for item in value)
        elif kind == INTS:
            inputs[name] = None if value is None else tuple(value)
        elif name == "scaleValue":
            attrs[name] = value if math.isfinite(value) else "nan" if value != value else "inf" if value > 0 else "-inf"
        elif name == "inputLayout":
            attrs[name] = None if value is None else value.encode("latin-1").decode("utf-8", "replace")
        else:
            attrs[name] = value
    return Case(
        api=record.api,  # type: ignore[arg-type]
        product=product_of(soc),
        inputs=Inputs(**inputs),
        attrs=Attrs(**attrs),
        outputs=Outputs(**outputs),
    )


def as_recorded(case: Case) -> Case:
    """A case without what the C interface does not carry: its seed and what its tensors hold."""

    def bare(spec: TensorSpec | None) -> TensorSpec | None:
        if spec is None:
            return None
        strides = None if spec.contiguous or spec.empty else spec.strides
        return TensorSpec(spec.shape, spec.dtype, spec.format, strides, spec.offset)

    changes: dict[str, Any] = {"seed": 0}
    for name, kind in ENTRIES[next(entry for entry, api in APIS.items() if api == case.api)]:
        value: Any = case.get(name)
        if kind == TENSOR:
            changes[name] = bare(value)
        elif kind == LIST and value is not None:
            changes[name] = tuple(map(bare, value))
    if isinstance(case.attrs.scaleValue, int):
        changes["scaleValue"] = float(case.attrs.scaleValue)
    return case.replace(**changes)


def _spec(data: dict[str, Any], with_values: bool = False) -> TensorSpec:
    name = CODES.get(data["dtype"])
    if name is None:
        raise Unreadable(f"aclDataType {data['dtype']}")
    dims, strides = tuple(data["dims"]), tuple(data["strides"])
    code = data["format"]
    if len(data["storage"]) == 1 and code == BY_RANK.get(len(dims)):
        code = 2
    form = FORMATS.get(code)
    if form is None:
        raise Unreadable(f"aclFormat {code}")
    spec = TensorSpec(dims, name, form, strides, data["offset"])
    if spec.contiguous or spec.empty:
        spec = TensorSpec(dims, name, form, None, data["offset"])
    values = _literals(data, name) if with_values and DTYPES[name].is_integer else None
    if values is None:
        return spec
    return TensorSpec(spec.shape, spec.dtype, spec.format, spec.strides, spec.offset, None, values)


def _literals(data: dict[str, Any], name: str) -> tuple[int, ...] | None:
    try:
        return tuple(int(x) for x in array_of(data, name).reshape(-1))
    except (memory.OffDevice, ValueError):
        return None


def array_of(data: dict[str, Any], name: str | None = None) -> np.ndarray[Any, Any]:
    """The values of a recorded tensor in storage form, dense. OffDevice when they are not in device memory."""
    fmt = DTYPES[name or CODES[data["dtype"]]]
    return memory.read(data["addr"], tuple(data["dims"]), tuple(data["strides"]), data["offset"], fmt.bits, fmt.storage)


def put_array(data: dict[str, Any], dense: np.ndarray[Any, Any]) -> None:
    """Write an output in storage form to where it lies."""
    fmt = DTYPES[CODES[data["dtype"]]]
    memory.write(data["addr"], tuple(data["dims"]), tuple(data["strides"]), data["offset"], fmt.bits, dense)


def tensors_of(record: Record) -> Tensors:
    """All input tensors of a call, as the device sees them now."""
    found = Tensors()
    for name, kind in ENTRIES[record.entry]:
        value = record.args[name]
        if value is None or name in ("attentionOut", "softmaxLse"):
            continue
        if kind == TENSOR:
            found[name] = array_of(value)
        elif kind == LIST:
            found[name] = [None if item is None else array_of(item) for item in value]
    return found
