"""``--as cpp``: a standalone program that makes one call through the aclnn C interface and compares the answer with the expected one.

It can say everything that the interface can: null pointers, tensor lists, formats, strides, any API version.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from fiafuzz.backends.aclnn_signature import DTYPE_CODES, FORMAT_CODES, function_name, signature
from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.parameters import ATTRIBUTES, INPUTS, INT_MAX, Kind
from fiafuzz.model.tensors import Tensors

from .common import CannotExport, Exported, Item, Remarks, c_string, refuse_outside_api, scale_value, shown_name, template
from .expectation import Checked, decoding_table, expect
from .memory import Buffer, axes_of, byte_size, dense_strides, input_buffer, output_buffer, place_of, poison_bytes

INLINE_CHARACTERS = 512 * 1024
"""Characters of all data up to which it stands in the program itself."""

SMALL_CHARACTERS = 4096
"""Characters of a tensor's data that stand in the program even when others lie beside it."""

_WIDTH = 100
_SHORTEST_RUN = len("{1, 0u},")


@dataclass
class _Data:
    """The bytes of all tensors, in the program or in the file beside it."""

    beside: bool
    embedded: dict[str, tuple[list[str], str]]
    items: list[dict[str, Any]] = field(default_factory=list)
    side: bytearray = field(default_factory=bytearray)

    def expression(self, buffer: Buffer) -> str:
        """An expression that gives the bytes of a buffer."""
        if not buffer.data:
            return "Bytes()"
        lines, expression = self.embedded[buffer.label]
        if self.beside and sum(map(len, lines)) > SMALL_CHARACTERS:
            begin = len(self.side)
            self.side += buffer.data
            return f"FromSide({begin}, {len(buffer.data)})"
        spec = buffer.spec
        self.items.append({"comment": f"{buffer.label}: {spec.dtype} {list(spec.shape)}", "lines": lines})
        return expression


def _embedded(name: str, buffer: Buffer) -> tuple[list[str], str]:
    """Lines of C++ that hold a buffer's bytes, and the expression that unpacks them: runs where they are shorter than base64."""
    data, width = buffer.data or b"", max(1, DTYPES[buffer.spec.dtype].itemsize)
    if width <= 8 and len(data) % width == 0:
        counts, elements = _runs(np.frombuffer(data, f"<u{width}"))
        if counts.size * _SHORTEST_RUN < len(data) * 4 // 3:
            text = [f"{{{count}, {element}u}}," for count, element in zip(counts.tolist(), elements.tolist())]
            if sum(map(len, text)) < len(data) * 4 // 3:
                return [f"const Run data_{name}[] = {{", *_filled(text, "    "), "};"], f"Repeated(data_{name}, {width})"
    code = base64.b64encode(data).decode()
    parts = [f'    "{code[i : i + _WIDTH]}"' for i in range(0, len(code), _WIDTH)]
    return [f"const char *const data_{name} =", *parts[:-1], f"{parts[-1]};"], f"Decoded(data_{name})"


def _runs(elements: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """How many equal elements lie in a row, and which."""
    starts = np.concatenate([[0], np.flatnonzero(elements[1:] != elements[:-1]) + 1])
    return np.diff(starts, append=elements.size), elements[starts]


def _filled(words: list[str], margin: str) -> list[str]:
    lines, line = [], margin
    for word in words:
        if len(line) + len(word) > _WIDTH + len(margin) and line.strip():
            lines.append(line.rstrip())
            line = margin
        line += word + " "
    return [*lines, line.rstrip()] if line.strip() else lines


def export_cpp(item: Item, file: str, *, beside: bool) -> Exported:
    """The program for one case. ``file`` is the name that it will have, ``beside`` whether a file may lie beside it.

    CannotExport for what no C call can say, when the tensors of a call that computes something cannot be made, or when they are
    too large for a program alone and no file may lie beside it.
    """
    case, remarks = item.case, Remarks()
    refuse_outside_api(case)
    expected = expect(item, remarks)
    buffers = list(_buffers(case, expected.tensors))
    embedded = {b.label: _embedded(b.label.replace(".", "_"), b) for b in buffers if b.data}
    size = sum(sum(map(len, lines)) for lines, _ in embedded.values())
    if size > INLINE_CHARACTERS and not beside:
        raise CannotExport(f"the data takes {size} characters, over the {INLINE_CHARACTERS} of a program alone; with -o it lies beside it")
    data = _Data(size > INLINE_CHARACTERS, embedded)
    inputs, destroy = _inputs(case, {b.label: b for b in buffers}, data)
    outputs = _outputs(case, destroy)
    checks = [_check(case, c) for c in expected.checked if c.claims]
    version = case.api[1:]
    function = function_name(case.api)
    side = bytes(data.side)
    stem = file.removesuffix(".cpp")
    side_name = f"{stem}.bin" if side else ""
    codes = ", ".join(str(c) for c in expected.codes)
    text = template("aclnn_program.cpp.j2").render(
        title=item.title,
        product=case.product.upper(),
        profile=item.profile,
        function=function,
        header="aclnn_fused_infer_attention_score" + (f"_v{version}" if version != "1" else "") + ".h",
        must=expected.must,
        seen=expected.seen,
        answer=expected.answer,
        codes=codes,
        runs=expected.runs,
        file=shown_name(file, f"{item.stem}.cpp"),
        program=shown_name(stem, item.stem),
        dtypes=sorted({(s.dtype, DTYPE_CODES[s.dtype]) for s in _specs(case)}, key=lambda pair: pair[1]),
        formats=sorted({(s.format, _format(s)) for s in _specs(case)}, key=lambda pair: pair[1]),
        data=data.items,
        side_name=side_name,
        side_size=len(side),
        side_hash=zlib.crc32(side),
        checks=checks,
        readers=_readers(case, expected.checked),
        inputs=inputs,
        attributes=_attributes(case),
        outputs=outputs,
        parameters=",\n            ".join(_parameters(case)),
        destroy=destroy,
    )
    return Exported(text, side_name, side, tuple(remarks.lines))


def _format(spec: TensorSpec) -> int:
    return FORMAT_CODES[spec.format]


# ---- tensors --------------------------------------------------------------------------------------


def _present(case: Case) -> Iterator[tuple[str, Kind, Any]]:
    version = int(case.api[1:])
    for parameter in INPUTS:
        if parameter.since <= version:
            yield parameter.name, parameter.kind, getattr(case.inputs, parameter.name)


def _labelled(case: Case) -> Iterator[tuple[str, TensorSpec]]:
    for name, kind, value in _present(case):
        if kind is Kind.TENSOR_LIST:
            yield from ((f"{name}.{i}", spec) for i, spec in enumerate(value or ()) if spec is not None)
        elif kind is Kind.TENSOR and value is not None:
            yield name, value


def _specs(case: Case) -> Iterator[TensorSpec]:
    yield from (spec for _, spec in _labelled(case))
    yield from (spec for spec in (case.outputs.attentionOut, case.outputs.softmaxLse) if spec is not None)


def _buffers(case: Case, tensors: Optional[Tensors]) -> Iterator[Buffer]:
    for label, spec in _labelled(case):
        yield input_buffer(label, spec, tensors)


def _inputs(case: Case, buffers: dict[str, Buffer], data: _Data) -> tuple[list[str], list[str]]:
    """Lines that make the inputs, and lines that destroy them."""
    lines: list[str] = []
    destroy: list[str] = []
    for name, kind, value in _present(case):
        if value is None:
            null = {Kind.INT_ARRAY: "aclIntArray", Kind.TENSOR_LIST: "aclTensorList"}.get(kind, "aclTensor")
            lines.append(f"const {null} *{name} = nullptr;")
        elif kind is Kind.INT_ARRAY:
            lines += [f"aclIntArray *{name} = MakeInts({_ints(value)});", f"made = made && {name} != nullptr;"]
            destroy.append(f"aclDestroyIntArray({name});")
        elif kind is Kind.TENSOR:
            lines += [f"aclTensor *{name} = {_made(buffers[name], data)};", f"made = made && {name} != nullptr;"]
            destroy.append(f"aclDestroyTensor({name});")
        else:
            members = []
            for i, spec in enumerate(value):
                members.append(f"{name}_{i}" if spec is not None else "nullptr")
                if spec is not None:
                    lines += [f"aclTensor *{name}_{i} = {_made(buffers[f'{name}.{i}'], data)};", f"made = made && {name}_{i} != nullptr;"]
            lines += [f"aclTensorList *{name} = MakeList({{{', '.join(members)}}});", f"made = made && {name} != nullptr;"]
            destroy.append(f"aclDestroyTensorList({name});  // with its members")
    return lines, destroy


def _made(buffer: Buffer, data: _Data) -> str:
    spec = buffer.spec
    return f"MakeTensor(OnDevice({data.expression(buffer)}, {byte_size(spec, buffer.elements)}), {_described(spec, buffer.elements)})"


def _described(spec: TensorSpec, elements: int) -> str:
    """dtype, format, shape, strides, offset and storage shape as arguments."""
    plain = spec.strides is None and spec.offset == 0
    strides = dense_strides(spec.shape) if spec.strides is None else spec.strides
    storage = _ints(spec.shape) if plain else _ints((elements,))
    return f"T_{spec.dtype}, F_{spec.format}, {_ints(spec.shape)}, {_ints(strides)}, {_int(spec.offset)}, {storage}"


def _ints(values: tuple[int, ...]) -> str:
    return "Ints{" + ", ".join(_int(v) for v in values) + "}"


def _int(value: int) -> str:
    if value == -(1 << 63):
        return "INT64_MIN"
    return str(value) if abs(value) <= INT_MAX else f"{value}LL"


# ---- the rest -------------------------------------------------------------------------------------


def _attributes(case: Case) -> list[str]:
    version, lines = int(case.api[1:]), []
    for parameter in ATTRIBUTES:
        if parameter.since > version:
            continue
        name, value = parameter.name, getattr(case.attrs, parameter.name)
        if name == "scaleValue":
            lines.append(f"const double {name} = {_double(scale_value(case))};")
        elif name == "softmaxLseFlag":
            lines.append(f"const bool {name} = {'true' if value else 'false'};")
        elif name == "inputLayout":
            lines.append(f"char *{name} = nullptr;" if value is None else f"char {name}[] = {c_string(value)};")
        else:
            lines.append(f"const int64_t {name} = {_int(value)};")
    return lines


def _double(number: float) -> str:
    if math.isfinite(number):
        return repr(number)
    return "NAN" if math.isnan(number) else "HUGE_VAL" if number > 0 else "-HUGE_VAL"


def _outputs(case: Case, destroy: list[str]) -> list[str]:
    """Lines that make the outputs."""
    lines: list[str] = []
    given: list[str] = []
    for name in ("attentionOut", "softmaxLse"):
        spec = getattr(case.outputs, name)
        if spec is None:
            lines.append(f"const aclTensor *{name} = nullptr;")
            continue
        if any(n < 0 for n in spec.shape):
            elements = 0
        else:
            elements = output_buffer(name, spec).elements
        pattern = ", ".join(str(b) for b in poison_bytes(spec))
        lines += [
            f'Output {name}_{{"{name}", {byte_size(spec, elements)}, Bytes{{{pattern}}}, nullptr, Bytes()}};',
            f"made = made && {name}_.Fill();",
            f"aclTensor *{name} = MakeTensor({name}_.memory, {_described(spec, elements)});",
            f"made = made && {name} != nullptr;",
        ]
        given.append(name)
        destroy.append(f"aclDestroyTensor({name});")
    lines.append(f"std::vector<Output *> outputs = {{{', '.join(f'&{name}_' for name in given)}}};")
    return lines


def _parameters(case: Case) -> list[str]:
    return [line.rstrip(", ") for line in _filled([f"{argument.name}," for argument in signature(case.api)], "")]


def _check(case: Case, checked: Checked) -> dict[str, Any]:
    spec: TensorSpec = getattr(case.outputs, checked.output)
    lines = []
    for claim in checked.claims:
        numbers = ", ".join(_double(v) for v in (claim.expected, claim.low, claim.high))
        lines.append(f'{{{place_of(spec, claim.index)}, "{list(axes_of(spec.shape, claim.index))}", {numbers}}},')
    return {
        "output": checked.output,
        "count": len(checked.claims),
        "comparable": checked.comparable,
        "lines": lines,
        "reader": f"Number_{spec.dtype}",
    }


_READERS = {
    "FLOAT32": ("float", "value"),
    "DOUBLE": ("double", "value"),
    "INT8": ("int8_t", "value"),
    "UINT8": ("uint8_t", "value"),
    "INT16": ("int16_t", "value"),
    "UINT16": ("uint16_t", "value"),
    "INT32": ("int32_t", "value"),
    "UINT32": ("uint32_t", "value"),
    "INT64": ("int64_t", "static_cast<double>(value)"),
    "UINT64": ("uint64_t", "static_cast<double>(value)"),
}


def _readers(case: Case, checked: tuple[Checked, ...]) -> list[str]:
    """Functions that give the number of one element, for the dtypes of the outputs that are checked."""
    dtypes = dict.fromkeys(getattr(case.outputs, c.output).dtype for c in checked if c.claims)
    return [_reader(dtype) for dtype in dtypes]


def _reader(dtype: str) -> str:
    head = f"// The number that an element of {dtype} stands for.\ndouble Number_{dtype}(const Bytes &bytes, int64_t place) {{\n"
    table = decoding_table(dtype)
    if table is not None:
        words = [f"{_double(v)}," for v in table.values()]
        return (f"const double values_{dtype}[256] = {{\n" + "\n".join(_filled(words, "    ")) + "\n};\n\n" + head
                + f"    return values_{dtype}[bytes[static_cast<size_t>(place)]];\n}}\n")
    if dtype == "FLOAT16":
        return head + _HALF
    if dtype == "BFLOAT16":
        return head + _BRAIN
    kind, value = _READERS[dtype]
    return head + (f"    {kind} value;\n    std::memcpy(&value, bytes.data() + static_cast<size_t>(place) * sizeof value, sizeof value);\n"
                   f"    return {value};\n}}\n")


_HALF = """    uint16_t bits;
    std::memcpy(&bits, bytes.data() + static_cast<size_t>(place) * 2, 2);
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 31 ? (fraction != 0 ? NAN : HUGE_VAL)
                                  : std::ldexp(exponent != 0 ? fraction + 1024 : fraction, std::max(exponent, 1) - 25);
    return bits >> 15 != 0 ? -value : value;
}
"""

_BRAIN = """    uint16_t half;
    std::memcpy(&half, bytes.data() + static_cast<size_t>(place) * 2, 2);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
"""
