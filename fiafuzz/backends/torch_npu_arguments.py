"""A case as a call of torch_npu: which of its two operators, what goes in as which argument, and what it has no word for.

Nothing here needs torch: the names of the arguments of the installed version and the dtypes that torch has come in as sets.
Sources: spec/torch_npu.md 2.1, 2.2, 2.5, 2.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Optional, Union

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.parameters import ATTRIBUTES, INPUTS, INT_ARRAYS, TENSOR_INPUTS, TENSOR_LISTS, Kind
from fiafuzz.model.scene import Scene

from .torch_npu_words import DTYPE_ARGUMENTS, DTYPE_NUMBERS, LEAST_ITEM, OPERATORS, PLAIN_FORMATS, SCALAR_TYPES, TORCH_DTYPES, WORDS


@dataclass(frozen=True)
class TensorUse:
    """A tensor of the case as an argument: ``dtype`` is torch's dtype, ``packed`` whether two 4-bit elements share a byte."""

    parameter: str
    argument: str
    spec: TensorSpec
    dtype: str
    packed: bool


@dataclass(frozen=True)
class Call:
    """A case as a call of torch_npu: operator ("v1", "v2"), the C function behind it, tensors, all other arguments, and the
    outputs as the case has them (``lse`` None: torch's own empty one)."""

    operator: str
    function: str
    tensors: tuple[TensorUse, ...]
    plain: Mapping[str, object]
    out: TensorUse
    lse: Optional[TensorUse]


@dataclass(frozen=True)
class Vocabulary:
    """What the installed versions have: argument names by operator, torch dtypes by name."""

    arguments: Mapping[str, frozenset[str]]
    dtypes: frozenset[str]
    version: str = ""


def functions(family: Optional[str], cann: str = "") -> Mapping[str, str]:
    """The C function that each operator ends in on a product (a2, a3, 950; None: on no device): torch_npu decides it by the SoC,
    and by the CANN version before 8.1."""
    if family in ("950", None):
        return {"v1": "v5", "v2": "v5"}
    old = _numbers(cann) < (8, 1) if _numbers(cann) else False
    return {"v1": "v2" if old else "v3", "v2": "v4"}


def _numbers(version: str) -> tuple[int, ...]:
    parts = []
    for part in version.split(".")[:2]:
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts) if len(parts) == 2 else ()


def operators_for(scene: Scene, reach: Mapping[str, str], forced: Optional[str]) -> Union[tuple[str, ...], str]:
    """The operators that can stand for a case's API, the better one first; in words why there is none.

    ``reach``: operator -> C function. A V3 case goes to V3 (first operator) or to V4 (second), which adds parameters only.
    """
    api = scene.case.api
    able = {"v1": ("v1",), "v2": ("v2",), "v3": ("v3", "v4"), "v4": ("v4",), "v5": ("v5",)}[api]
    order = sorted((op for op in reach if reach[op] in able), key=lambda op: (able.index(reach[op]), op != "v2"))
    if forced is not None:
        order = [op for op in order if op == forced]
    if order:
        return tuple(order)
    ends = " and ".join(f"{OPERATORS[op]} in {reach[op].upper()}" for op in sorted(reach) if forced in (None, op))
    return f"torch_npu does not reach {api.upper()} on this device: {ends}"


def express(scene: Scene, operator: str, function: str, words: Vocabulary, own_outputs: bool = False) -> Union[Call, str]:
    """A case as a call of one operator; in words what that operator has no word for. ``own_outputs``: torch_npu makes the
    outputs, so that their dtype has to be asked for."""
    case = scene.case
    name, known, arguments = OPERATORS[operator], WORDS[operator], words.arguments[operator]
    plain: dict[str, object] = {}
    uses: list[TensorUse] = []
    number = min(int(function[1:]), scene.api)
    for parameter in (*INPUTS, *ATTRIBUTES):
        value, argument = case.get(parameter.name), known.get(parameter.name)
        unset = value == parameter.default if parameter.kind is Kind.ATTRIBUTE and not parameter.required else value is None
        if parameter.since > number:
            if not unset:
                return f"{case.api.upper()} has no {parameter.name}"
            continue
        if parameter.name == "quantScale1" and operator == "v2" and not unset and not scene.is_950:
            return f"{name} drops quantScale1 on this device"
        if argument is None or argument not in arguments:
            if not unset:
                return f"{name} has no argument for {parameter.name}" + ("" if argument is None else f" in torch_npu {words.version}")
            continue
        if parameter.name == "inputLayout" and value is None:
            return "torch cannot leave inputLayout null"
        if parameter.name in TENSOR_LISTS:
            found = _list(scene, parameter.name)
            if isinstance(found, str):
                return found
            value = found[0]
        if parameter.name in TENSOR_INPUTS or parameter.name in TENSOR_LISTS:
            if value is None:
                if parameter.name in ("query", "key", "value") and operator == "v2":
                    return f"{name} reads the dtype of {parameter.name}, so it cannot be null"
                plain[argument] = None
                continue
            assert isinstance(value, TensorSpec)
            use = _use(parameter.name, argument, value, operator, words, plain)
            if isinstance(use, str):
                return use
            uses.append(use)
        elif parameter.name in INT_ARRAYS:
            if value is not None and min(value, default=0) < LEAST_ITEM:  # type: ignore[call-overload]
                return f"torch_npu hands items of {parameter.name} below -2**62 on as other numbers"
            plain[argument] = None if value is None else list(value)  # type: ignore[call-overload]
        else:
            plain[argument] = float(value) if parameter.name == "scaleValue" else value  # type: ignore[arg-type]
    out = case.outputs.attentionOut
    if out is None:
        return "torch cannot leave attentionOut null"
    out_use = _use("attentionOut", "out", out, operator, words, plain)
    if isinstance(out_use, str):
        return out_use
    lse_use: Union[TensorUse, str, None] = None
    if case.outputs.softmaxLse is not None:
        lse_use = _use("softmaxLse", "out", case.outputs.softmaxLse, operator, words, plain)
        if isinstance(lse_use, str):
            return lse_use
    elif case.attrs.softmaxLseFlag:
        return "torch cannot leave softmaxLse null when it is asked for"
    if own_outputs:
        reason = _ask_for_dtype(scene, operator, words, plain)
        if reason:
            return reason
    return Call(operator, function, tuple(uses), MappingProxyType(plain), out_use, lse_use)


def made_dtype(scene: Scene, operator: str) -> Optional[str]:
    """The dtype of attentionOut that torch_npu's documents promise when none is asked for: INT8 with quantScale2, queryRope's or
    FLOAT16 for a quantised query, else the query's."""
    if scene.given("quantScale2"):
        return "INT8"
    quantised = ("INT8",) if operator == "v1" else ("INT8", "FLOAT8_E4M3FN", "HIFLOAT8")
    return (scene.dtype("queryRope") or "FLOAT16") if scene.q_dtype in quantised else scene.q_dtype


def _ask_for_dtype(scene: Scene, operator: str, words: Vocabulary, plain: dict[str, object]) -> str:
    """Ask for the dtype of attentionOut where it is not the one that is made unasked; in words why that cannot be."""
    wanted, argument = scene.out_dtype, DTYPE_ARGUMENTS["attentionOut"]
    plain.pop(argument, None)
    if wanted == made_dtype(scene, operator):
        return ""
    can = operator == "v2" and (scene.given("quantScale2") or scene.q_dtype in ("INT8", "FLOAT8_E4M3FN", "HIFLOAT8"))
    number = SCALAR_TYPES.get(wanted or "", DTYPE_NUMBERS.get(wanted or ""))
    if not can or number is None or argument not in words.arguments[operator]:
        return f"{OPERATORS[operator]} makes attentionOut {made_dtype(scene, operator)} here and cannot be asked for {wanted}"
    plain[argument] = number
    return ""


def _list(scene: Scene, name: str) -> Union[tuple[Optional[TensorSpec]], str]:
    items = scene.case.get(name)
    if items is None:
        return f"torch cannot leave the list {name} null (it makes a list with one null tensor)"
    assert isinstance(items, tuple)
    if len(items) != 1:
        return f"torch takes one tensor for {name}, not a list of {len(items)}"
    return items  # type: ignore[return-value]


def _use(
    parameter: str, argument: str, spec: TensorSpec, operator: str, words: Vocabulary, plain: dict[str, object]
) -> Union[TensorUse, str]:
    """How one tensor is passed; puts the number of its dtype beside it where torch has no such dtype."""
    wanted = ("ND", PLAIN_FORMATS.get(spec.rank, "ND"))
    if spec.format not in wanted:
        return f"torch chooses the format of {parameter} itself ({wanted[1]}), not {spec.format}"
    if any(n < 0 for n in spec.shape):
        return f"{parameter} has a negative size"
    if spec.offset < 0 or any(n < 0 for n in spec.strides or ()):
        return f"{parameter} has a negative stride or offset"
    if spec.strides is not None and len(spec.strides) != spec.rank:
        return f"{parameter} has {len(spec.strides)} strides for {spec.rank} axes"
    packed = DTYPES[spec.dtype].bits == 4
    if packed:
        reason = _unpackable(parameter, spec)
        if reason:
            return reason
    dtype = TORCH_DTYPES.get(spec.dtype)
    if dtype is not None and dtype in words.dtypes:
        return TensorUse(parameter, argument, spec, dtype, packed)
    beside = DTYPE_ARGUMENTS.get(parameter) if operator == "v2" else None
    if spec.dtype not in DTYPE_NUMBERS or beside is None or beside not in words.arguments[operator]:
        return f"torch has no dtype {spec.dtype}, and {OPERATORS[operator]} takes none beside {parameter}"
    plain[beside] = DTYPE_NUMBERS[spec.dtype]
    return TensorUse(parameter, argument, spec, "uint8", packed)


def _unpackable(parameter: str, spec: TensorSpec) -> str:
    """Why two elements a byte do not do for a 4-bit tensor; "" when they do."""
    if spec.rank == 0 or spec.shape[-1] % 2:
        return f"{parameter}: torch holds two 4-bit elements a byte, which the shape {list(spec.shape)} does not allow"
    if spec.strides is not None and (spec.strides[-1] != 1 or any(n % 2 for n in spec.strides[:-1])):
        return f"{parameter}: torch holds two 4-bit elements a byte, which the strides {list(spec.strides)} do not allow"
    if spec.offset:
        return f"{parameter}: torch_npu hands the offset of packed 4-bit elements on in bytes"
    return ""


def choose(
    scene: Scene, reach: Mapping[str, str], words: Vocabulary, forced: Optional[str] = None, own_outputs: bool = False
) -> Union[Call, str]:
    """The case as a call of the first operator that can say it; in words why none can."""
    found = operators_for(scene, reach, forced)
    if isinstance(found, str):
        return found
    reasons: list[str] = []
    for operator in found:
        call = express(scene, operator, reach[operator], words, own_outputs)
        if isinstance(call, Call):
            return call
        reasons.append(call)
    same = {reason.removeprefix(OPERATORS[op]) for op, reason in zip(found, reasons)}
    if len(reasons) > 1 and len(same) == 1 and not reasons[0].startswith("torch"):
        return f"torch_npu{same.pop()}"
    return "; ".join(dict.fromkeys(reasons))
