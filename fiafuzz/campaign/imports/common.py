"""What the importers of all vendor formats share: results, names and dtypes."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Optional

import msgspec

from fiafuzz.model.case import MAX_JSON_BYTES, Attrs, Case, Inputs, Outputs, TensorSpec, case_from_dict, case_to_dict
from fiafuzz.model.parameters import BY_NAME


@dataclass(frozen=True)
class Imported:
    """One case of a vendor file: where it stood, its name there, what the file expects, and remarks on what was bent."""

    case: Case
    where: str
    name: str
    expects: Optional[str] = None
    remarks: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Unmapped:
    """One row that is no case: where it stands and what could not be said."""

    where: str
    name: str
    reason: str


def content_of(path: str) -> bytes:
    """The bytes of a vendor file. OSError when it cannot be read; ValueError, one line that begins with the path, when it is no
    regular file (a pipe would be waited for, a device never ends) or larger than a file of cases may be."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise ValueError(f"{path}: not a regular file")
        found = file.read(MAX_JSON_BYTES + 1) if state.st_size <= MAX_JSON_BYTES else None
    if found is None or len(found) > MAX_JSON_BYTES:
        raise ValueError(f"{path}: over the limit of {MAX_JSON_BYTES} bytes")
    return found


class CannotMap(ValueError):
    """A row says something that a case cannot say."""


DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "BF16": "BFLOAT16",
        "BFLOAT16": "BFLOAT16",
        "FP16": "FLOAT16",
        "FLOAT16": "FLOAT16",
        "FLOAT": "FLOAT32",
        "FP32": "FLOAT32",
        "DOUBLE": "DOUBLE",
        "INT8": "INT8",
        "UINT8": "UINT8",
        "BOOL": "BOOL",
        "INT16": "INT16",
        "UINT16": "UINT16",
        "INT32": "INT32",
        "UINT32": "UINT32",
        "INT64": "INT64",
        "UINT64": "UINT64",
        "INT4": "INT4",
        "COMPLEX64": "COMPLEX64",
        "COMPLEX128": "COMPLEX128",
        "HIFLOAT8": "HIFLOAT8",
        "HIF8": "HIFLOAT8",
        "FLOAT8_E4M3FN": "FLOAT8_E4M3FN",
        "FP8_E4M3FN": "FLOAT8_E4M3FN",
        "FP8_E4M3": "FLOAT8_E4M3FN",
        "FP8": "FLOAT8_E4M3FN",
        "FLOAT8_E5M2": "FLOAT8_E5M2",
        "FP8_E5M2": "FLOAT8_E5M2",
        "FLOAT8_E8M0": "FLOAT8_E8M0",
        "FP8_E8M0": "FLOAT8_E8M0",
        "FLOAT4_E2M1": "FLOAT4_E2M1",
        "FP4_E2M1": "FLOAT4_E2M1",
        "FLOAT4_E1M2": "FLOAT4_E1M2",
        "FP4_E1M2": "FLOAT4_E1M2",
    }
)

_SNAKE = {"dequant_scale1": "deqScale1", "dequant_scale2": "deqScale2", "scale": "scaleValue"}


def dtype_of(word: str, *, float32_known: bool = True) -> str:
    """The documents' dtype name for a vendor's word. CannotMap for an unknown one."""
    name = word.strip().upper().removeprefix("DT_")
    if name == "FLOAT32" and float32_known:
        return "FLOAT32"
    if name not in DTYPES:
        raise CannotMap(f"dtype {word!r} is unknown")
    return DTYPES[name]


def c_name(word: str) -> str:
    """The C parameter name without "Optional" for a snake-case or C-style vendor name. CannotMap when there is none."""
    name = _SNAKE.get(word) or re.sub(r"_([a-z0-9])", lambda m: m.group(1).upper(), word)
    name = name.removesuffix("Optional")
    aliases = {"dequantScale1": "deqScale1", "dequantScale2": "deqScale2", "scale": "scaleValue"}
    name = aliases.get(name, name)
    if name not in BY_NAME:
        raise CannotMap(f"parameter {word!r} is unknown")
    return name


def build(api: str, product: str, inputs: dict[str, Any], attrs: dict[str, Any], outputs: dict[str, Any]) -> Case:
    """A checked case from its parts. CannotMap (one line) when its form is wrong."""
    if "numHeads" not in attrs:
        raise CannotMap("numHeads is missing")
    try:
        case = Case(api=api, product=product, inputs=Inputs(**inputs), attrs=Attrs(**attrs), outputs=Outputs(**outputs))  # type: ignore[arg-type]
        return case_from_dict(case_to_dict(case))
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        raise CannotMap(" ".join(str(error).split())) from None


def tensor(shape: tuple[int, ...], dtype: str, **more: Any) -> TensorSpec:
    """A tensor spec; keyword arguments as TensorSpec has them."""
    return TensorSpec(shape=shape, dtype=dtype, **more)
