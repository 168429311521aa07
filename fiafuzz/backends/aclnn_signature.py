"""The C interface of aclnnFusedInferAttentionScore, V1 to V5, as data: functions, arguments in C order, enum values.

Everything follows from ``fiafuzz.model.parameters`` (order, kinds and the version that brought each parameter); nothing here loads
a library. Sources: spec/torch_npu.md 2.5, 2.6 and 4, the public headers acl_base_rt.h and graph/c_types.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from fiafuzz.model.case import Case
from fiafuzz.model.parameters import ATTRIBUTES, INPUTS, OUTPUTS, Kind, Parameter

APIS: tuple[str, ...] = ("v1", "v2", "v3", "v4", "v5")
FUNCTION = "aclnnFusedInferAttentionScore"

DTYPE_CODES: Mapping[str, int] = MappingProxyType(
    {
        "FLOAT32": 0,
        "FLOAT16": 1,
        "INT8": 2,
        "INT32": 3,
        "UINT8": 4,
        "INT16": 6,
        "UINT16": 7,
        "UINT32": 8,
        "INT64": 9,
        "UINT64": 10,
        "DOUBLE": 11,
        "BOOL": 12,
        "COMPLEX64": 16,
        "COMPLEX128": 17,
        "BFLOAT16": 27,
        "INT4": 29,
        "HIFLOAT8": 34,
        "FLOAT8_E5M2": 35,
        "FLOAT8_E4M3FN": 36,
        "FLOAT8_E8M0": 37,
        "FLOAT4_E2M1": 40,
        "FLOAT4_E1M2": 41,
    }
)
"""aclDataType by the dtype names of cases."""

FORMAT_CODES: Mapping[str, int] = MappingProxyType(
    {
        "UNDEFINED": -1,
        "NCHW": 0,
        "NHWC": 1,
        "ND": 2,
        "NC1HWC0": 3,
        "FRACTAL_Z": 4,
        "HWCN": 16,
        "NDHWC": 27,
        "FRACTAL_NZ": 29,
        "NCDHW": 30,
        "DHWCN": 31,
        "NDC1HWC0": 32,
        "FRACTAL_Z_3D": 33,
        "NCL": 47,
        "FRACTAL_NZ_C0_16": 50,
        "FRACTAL_NZ_C0_32": 51,
    }
)
"""aclFormat by the format names of cases. DHWCN has no name in aclFormat; it is the number of the graph engine, from which
aclFormat takes its own."""

_POINTERS: Mapping[Kind, str] = MappingProxyType(
    {
        Kind.TENSOR: "const aclTensor *",
        Kind.TENSOR_LIST: "const aclTensorList *",
        Kind.INT_ARRAY: "const aclIntArray *",
        Kind.OUTPUT: "const aclTensor *",
    }
)


@dataclass(frozen=True)
class Argument:
    """One argument of the first phase: the case's name of it, how it travels, and its type in C and in ctypes."""

    name: str
    kind: Kind
    c_type: str
    ctype: Any

    @property
    def is_pointer(self) -> bool:
        """Whether it is a handle made by one of the aclCreate functions."""
        return self.kind is not Kind.ATTRIBUTE


def function_name(api: str) -> str:
    """The second phase's C name, e.g. "aclnnFusedInferAttentionScoreV3" for v3; v1 has no suffix. ValueError for an unknown api."""
    return FUNCTION + ("" if _version(api) == 1 else api.upper())


def workspace_function_name(api: str) -> str:
    """The first phase's C name: it checks the call and answers with the workspace size and an executor."""
    return function_name(api) + "GetWorkspaceSize"


@cache
def signature(api: str) -> tuple[Argument, ...]:
    """The arguments of the first phase in C order, without the two results at the end (uint64_t *workspaceSize,
    aclOpExecutor **executor). ValueError for an unknown api."""
    version = _version(api)
    return tuple(_argument(p) for p in (*INPUTS, *ATTRIBUTES, *OUTPUTS) if p.since <= version)


@cache
def argument_types(api: str) -> tuple[Any, ...]:
    """``argtypes`` of the first phase, the two results included."""
    return (*(a.ctype for a in signature(api)), ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_void_p))


LAUNCH_TYPES: tuple[Any, ...] = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p)
"""``argtypes`` of the second phase: workspace, its size, executor, stream."""


def not_in(case: Case, api: str) -> tuple[str, ...]:
    """What a case gives that a version has no parameter for: inputs that are not null and attributes other than their default."""
    version = _version(api)
    return tuple(
        p.name
        for p in (*INPUTS, *ATTRIBUTES)
        if p.since > version and case.get(p.name) is not None and (p.kind is not Kind.ATTRIBUTE or case.get(p.name) != p.default)
    )


def _version(api: str) -> int:
    if api not in APIS:
        raise ValueError(f"unknown api {api!r}; known: {', '.join(APIS)}")
    return int(api[1:])


def _argument(parameter: Parameter) -> Argument:
    if parameter.kind is not Kind.ATTRIBUTE:
        return Argument(parameter.name, parameter.kind, _POINTERS[parameter.kind], ctypes.c_void_p)
    c_type, ctype = _attribute_type(parameter)
    return Argument(parameter.name, parameter.kind, c_type, ctype)


def _attribute_type(parameter: Parameter) -> tuple[str, Any]:
    default = parameter.default
    if isinstance(default, bool):
        return "bool", ctypes.c_bool
    if isinstance(default, float):
        return "double", ctypes.c_double
    if isinstance(default, str):
        return "char *", ctypes.c_char_p
    return "int64_t", ctypes.c_int64
