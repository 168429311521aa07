"""``--as python``: a standalone script that makes one call through torch_npu and compares the answer with the expected one."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import zlib
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from fiafuzz.backends.aclnn_signature import function_name
from fiafuzz.backends.torch_npu_arguments import Call, TensorUse, Vocabulary, choose, functions
from fiafuzz.backends.torch_npu_words import DTYPE_ARGUMENTS, DTYPE_NUMBERS, OPERATORS, TORCH_DTYPES, WORDS
from fiafuzz.model.case import Case
from fiafuzz.model.codecs import decode
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.parameters import TENSOR_LISTS
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import Tensors

from .common import CannotExport, Exported, Item, Remarks, c_string, python_literal, refuse_outside_api, scale_value, shown_name, template
from .expectation import Checked, decoding_table, expect
from .memory import Buffer, byte_size, input_buffer, output_buffer, poison_bytes

INLINE_BYTES = 256 * 1024
"""Compressed bytes of all tensors up to which they stand in the script itself."""

SMALL_BYTES = 2048
"""Compressed bytes of a tensor that stands in the script even when others lie beside it."""

LITERALS = 32
"""Elements up to which a tensor is written out as numbers."""

EVERYTHING = Vocabulary(
    {name: frozenset({*words.values(), *(DTYPE_ARGUMENTS.values() if name == "v2" else ())}) for name, words in WORDS.items()},
    frozenset(TORCH_DTYPES.values()),
)
"""The words of all versions of torch_npu: which one will run the script is not known."""

_CODE_NAMES = {"INT4": "int4", "HIFLOAT8": "hifloat8", "FLOAT4_E2M1": "float4_e2m1fn_x2", "FLOAT4_E1M2": "float4_e1m2fn_x2"}

_WRITTEN = frozenset({"FLOAT32", "FLOAT16", "BFLOAT16", "DOUBLE", "INT8", "UINT8", "INT16", "INT32", "INT64", "BOOL"})
_WIDTH = 112


@dataclass
class _Data:
    """The bytes of the input tensors: compressed text in the script, or arrays of the file beside it."""

    beside: bool
    small: dict[str, bytes]
    side: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def expression(self, buffer: Buffer) -> str:
        """An expression that gives the bytes of a buffer."""
        small = self.small[buffer.label]
        if self.beside and len(small) > SMALL_BYTES:
            self.side[buffer.label] = np.frombuffer(buffer.data or b"", np.uint8)
            return f"side[{python_literal(buffer.label)}].tobytes()"
        text = base64.b64encode(small).decode()
        if len(text) <= _WIDTH:
            return f"unpacked({python_literal(text)})"
        lines = "".join(f'\n            "{text[i : i + _WIDTH]}"' for i in range(0, len(text), _WIDTH))
        return f"unpacked({lines}\n        )"


def export_python(item: Item, file: str, *, beside: bool) -> Exported:
    """The script for one case. ``file`` is the name that it will have, ``beside`` whether a file may lie beside it.

    CannotExport when torch_npu has no words for the call, when its tensors cannot be made, or when they are too large for a
    script alone and no file may lie beside it.
    """
    case, remarks = item.case, Remarks()
    refuse_outside_api(case)
    scale_value(case)
    call = choose(Scene(case), functions(case.product), EVERYTHING)
    if isinstance(call, str):
        raise CannotExport(f"{call}; --as cpp says whatever the C interface can")
    expected = expect(item, remarks)
    if expected.tensors is None:
        raise CannotExport(remarks.lines[-1])
    buffers = _inputs(call, expected.tensors)
    small = {b.label: zlib.compress(b.data or b"") for b in buffers.values() if not _written(b)}
    total = sum(map(len, small.values()))
    if total > INLINE_BYTES and not beside:
        raise CannotExport(f"the data takes {total} bytes compressed, over the {INLINE_BYTES} of a script alone; with -o it lies beside it")
    data = _Data(total > INLINE_BYTES, small)
    arguments = _arguments(call, buffers, data)
    side = b""
    side_name = ""
    if data.side:
        stream = io.BytesIO()
        np.savez_compressed(stream, **data.side)  # type: ignore[arg-type]
        side, side_name = stream.getvalue(), f"{file.removesuffix('.py')}.npz"
    table = _table(case)
    text = template("torch_script.py.j2").render(
        file=shown_name(file, f"{item.stem}.py"),
        title=item.title,
        product=case.product.upper(),
        profile=item.profile,
        aclnn=function_name(call.function),
        operator=OPERATORS[call.operator],
        must=expected.must,
        seen=expected.seen,
        answer=expected.answer,
        codes=list(expected.codes),
        runs=expected.runs,
        checks=[_check(c) for c in expected.checked if c.claims],
        side_name=side_name,
        side_digest=hashlib.sha256(side).hexdigest(),
        table=table,
        arguments=arguments,
        outputs=[_output(call.out), _output(call.lse)],
    )
    return Exported(text, side_name, side, tuple(remarks.lines))


def _check(checked: Checked) -> dict[str, Any]:
    entries = [python_literal((c.index, c.expected, c.low, c.high)) + "," for c in checked.claims]
    lines, line = [], ""
    for entry in entries:
        if line and len(line) + len(entry) >= _WIDTH:
            lines.append(line)
            line = ""
        line = f"{line} {entry}".strip()
    return {"output": checked.output, "comparable": checked.comparable, "claims": checked.claims, "lines": [*lines, line]}


def _table(case: Case) -> Optional[list[str]]:
    """Lines of the value of every code of attentionOut, where torch has no dtype for it."""
    spec = case.outputs.attentionOut
    if spec is None or spec.dtype in TORCH_DTYPES or DTYPES[spec.dtype].bits != 8:
        return None
    values = [python_literal(v) for v in (decoding_table(spec.dtype) or {}).values()]
    return [", ".join(values[i : i + 8]) + "," for i in range(0, len(values), 8)]


def _inputs(call: Call, tensors: Tensors) -> dict[str, Buffer]:
    """The input tensors in memory, by C parameter."""
    found = {}
    for use in call.tensors:
        label = f"{use.parameter}.0" if use.parameter in TENSOR_LISTS else use.parameter
        found[use.parameter] = input_buffer(label, use.spec, tensors)
    return found


def _written(buffer: Buffer) -> bool:
    """Whether a tensor is written out as numbers."""
    spec = buffer.spec
    if spec.dtype not in _WRITTEN or not buffer.dense or not 0 < spec.numel <= LITERALS or not spec.shape:
        return False
    return all(math.isfinite(v) for v in _numbers(buffer))


def _numbers(buffer: Buffer) -> list[Any]:
    fmt = DTYPES[buffer.spec.dtype]
    stored = np.frombuffer(buffer.data or b"", np.dtype(fmt.storage).newbyteorder("<"))
    numbers = list(np.asarray(decode(buffer.spec.dtype, stored)).tolist())
    return [bool(n) for n in numbers] if fmt.kind == "bool" else numbers


def _arguments(call: Call, buffers: dict[str, Buffer], data: _Data) -> list[str]:
    """One line for each argument that is not left at None."""
    lines = []
    for use in call.tensors:
        buffer = buffers[use.parameter]
        if _written(buffer):
            numbers, shape = python_literal(_numbers(buffer)), python_literal(list(use.spec.shape))
            lines.append(f'"{use.argument}": literal(torch, {numbers}, "{use.dtype}", {shape}),')
        else:
            lines.append(f'"{use.argument}": tensor(torch, {data.expression(buffer)}, {_layout(use)}),')
    for argument, value in call.plain.items():
        if value is None and argument not in ("query", "key", "value"):  # these three have no default
            continue
        if isinstance(value, str):
            c_string(value)  # what a C string cannot say, torch would cut off in silence
        lines.append(f'"{argument}": {python_literal(value)},{_code_name(argument, value)}')
    return lines


def _code_name(argument: str, value: object) -> str:
    """A comment that names the dtype behind a number."""
    if argument not in DTYPE_ARGUMENTS.values():
        return ""
    names = [_CODE_NAMES[dtype] for dtype, number in DTYPE_NUMBERS.items() if number == value and dtype in _CODE_NAMES]
    return f"  # torch_npu.{names[0]}" if names else ""


def _layout(use: TensorUse) -> str:
    """dtype, shape and, where they are not the usual ones, strides and offset of a tensor, as arguments."""
    spec = use.spec
    shape, strides, offset = list(spec.shape), list(spec.strides) if spec.strides is not None else None, spec.offset
    if use.packed:  # two elements a byte
        shape[-1] //= 2
        offset //= 2
        strides = [*(n // 2 for n in strides[:-1]), 1] if strides is not None else None
    text = f'"{use.dtype}", {python_literal(shape)}'
    return text + (f", {python_literal(strides)}, {offset}" if strides is not None or offset else "")


def _output(use: Optional[TensorUse]) -> str:
    if use is None:
        return 'tensor(torch, b"", "float32", [0]),'
    buffer, pattern = output_buffer(use.parameter, use.spec), poison_bytes(use.spec)
    count = byte_size(use.spec, buffer.elements) // len(pattern)
    return f"poisoned(torch, {pattern!r}, {count}, {_layout(use)}),"
