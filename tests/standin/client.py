"""A small direct caller of the C API for tests of the stand-in itself: one call from a case and its tensors."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.tensors import Tensors, buffer_elements, strided_buffer, strided_view
from tests.standin_cann import records
from tests.standin_cann.signatures import APIS, BOOL, DOUBLE, ENTRIES, INT, INTS, LIST, STR, TENSOR

Array = np.ndarray[Any, Any]
POINTER = ctypes.c_void_p
C_TYPES = {
    TENSOR: POINTER, LIST: POINTER, INTS: POINTER, STR: ctypes.c_char_p, INT: ctypes.c_int64, DOUBLE: ctypes.c_double, BOOL: ctypes.c_bool,
}  # fmt: skip
CODES = {name: code for code, name in records.CODES.items()}
FORMATS = {name: code for code, name in records.FORMATS.items()}
ENTRY_OF = {api: entry for entry, api in APIS.items()}
H2D, D2H = 1, 2
GUARD = 64
FRESH = 0xA5
"""What fresh device memory holds."""


class DeviceGone(RuntimeError):
    """The device does not take memory any more."""


@dataclass
class Answer:
    """Statuses of the three steps (None: not reached), error text and outputs."""

    first: int
    second: int | None = None
    sync: int | None = None
    text: str = ""
    outputs: dict[str, Array] = field(default_factory=dict)
    overrun: bool = False
    """Whether something was written behind an output."""


class Device:
    """Device 0 of this process."""

    def __init__(self, device: int = 0) -> None:
        self.rt = ctypes.CDLL("libascendcl.so")
        self.nn = ctypes.CDLL("libnnopbase.so")
        self.op = ctypes.CDLL("libopapi.so")
        self.rt.aclGetRecentErrMsg.restype = ctypes.c_char_p
        self.rt.aclrtGetSocName.restype = ctypes.c_char_p
        self.rt.standin_live.restype = ctypes.c_longlong
        self.rt.aclrtMalloc.argtypes = [ctypes.POINTER(POINTER), ctypes.c_size_t, ctypes.c_int]
        self.rt.aclrtFree.argtypes = [POINTER]
        self.rt.aclrtMemcpy.argtypes = [POINTER, ctypes.c_size_t, POINTER, ctypes.c_size_t, ctypes.c_int]
        self.rt.aclrtSynchronizeStream.argtypes = [POINTER]
        self.rt.aclrtDestroyStream.argtypes = [POINTER]
        numbers = ctypes.POINTER(ctypes.c_int64)
        for name in ("aclCreateTensor", "aclCreateTensorList", "aclCreateIntArray"):
            getattr(self.nn, name).restype = POINTER
        self.nn.aclCreateTensor.argtypes = [
            numbers, ctypes.c_uint64, ctypes.c_int, numbers, ctypes.c_int64, ctypes.c_int, numbers, ctypes.c_uint64, POINTER,
        ]  # fmt: skip
        self.nn.aclCreateTensorList.argtypes = [ctypes.POINTER(POINTER), ctypes.c_uint64]
        self.nn.aclCreateIntArray.argtypes = [numbers, ctypes.c_uint64]
        for name in ("aclDestroyTensor", "aclDestroyTensorList", "aclDestroyIntArray", "aclDestroyAclOpExecutor"):
            getattr(self.nn, name).argtypes = [POINTER]
        self.rt.aclInit(None)
        self.status = self.rt.aclrtSetDevice(device)
        self.stream = POINTER()
        if not self.status:
            self.status = self.rt.aclrtCreateStream(ctypes.byref(self.stream))

    def close(self) -> None:
        """Give the stream back."""
        self.rt.aclrtDestroyStream(self.stream)

    def live(self) -> dict[str, int]:
        """Everything that is alive."""
        names = "tensors lists int_arrays scalars executors blocks bytes host_blocks streams events"
        return {name: self.rt.standin_live(name.encode()) for name in names.split()}

    def text(self) -> str:
        """The last error text."""
        return (self.rt.aclGetRecentErrMsg() or b"").decode()

    def malloc(self, size: int) -> tuple[int, POINTER]:
        """Status and address of a block."""
        found = POINTER()
        return self.rt.aclrtMalloc(ctypes.byref(found), size, 0), found

    def upload(self, data: Array) -> POINTER:
        """A block that holds the bytes of an array, and GUARD bytes more. DeviceGone when the device refuses."""
        status, found = self.malloc(data.nbytes + GUARD)
        if status:
            raise DeviceGone(f"{status}: {self.text()}")
        if data.nbytes:
            assert self.rt.aclrtMemcpy(found, data.nbytes, data.ctypes.data, data.nbytes, H2D) == 0
        return found

    def run(self, case: Case, tensors: Tensors, outputs: dict[str, Array], *, longest: bool = False, keep: bool = True) -> Answer:
        """Make one call: ``outputs`` holds what the output buffers contain before. ``longest`` asks for the greatest workspace
        only; without ``keep`` the executor is destroyed instead of launched."""
        call = _Call(self, case)
        try:
            return call.make(tensors, outputs, longest, keep)
        finally:
            call.free()


class _Call:
    def __init__(self, device: Device, case: Case) -> None:
        self.d, self.case = device, case
        self.blocks: list[POINTER] = []
        self.handles: list[tuple[str, Any]] = []

    def free(self) -> None:
        for kind, handle in self.handles:
            getattr(self.d.nn, f"aclDestroy{kind}")(handle)
        for block in self.blocks:
            self.d.rt.aclrtFree(block)

    def tensor(self, spec: TensorSpec | None, dense: Array | None, owned: bool = True) -> Any:
        if spec is None:
            return None
        flat = strided_buffer(spec, dense) if dense is not None else np.zeros(0, np.uint8)
        block = self.d.upload(packed(flat, DTYPES[spec.dtype].bits))
        self.blocks.append(block)
        strides = spec.strides or tuple(math.prod(spec.shape[i + 1 :]) for i in range(spec.rank))
        dims, code, form = _ints(spec.shape), CODES[spec.dtype], FORMATS[spec.format]
        handle = self.d.nn.aclCreateTensor(dims, spec.rank, code, _ints(strides), spec.offset, form, dims, spec.rank, block)
        if owned:
            self.handles.append(("Tensor", handle))
        return handle

    def value(self, name: str, kind: str, tensors: Tensors, outputs: dict[str, Array]) -> Any:
        given = self.case.get(name)
        if kind == TENSOR:
            return self.tensor(given, outputs.get(name) if name in outputs else tensors.one(name))  # type: ignore[arg-type]
        if kind == LIST:
            if given is None:
                return None
            items = [self.tensor(spec, dense, False) for spec, dense in zip(given, tensors.many(name))]  # type: ignore[arg-type]
            handle = self.d.nn.aclCreateTensorList((POINTER * max(1, len(items)))(*items), len(items))
            self.handles.append(("TensorList", handle))
            return handle
        if kind == INTS:
            if given is None:
                return None
            handle = self.d.nn.aclCreateIntArray(_ints(given), len(given))  # type: ignore[arg-type]
            self.handles.append(("IntArray", handle))
            return handle
        if kind == STR:
            return None if given is None else str(given).encode()
        return float(given) if kind == DOUBLE else given  # type: ignore[arg-type]

    def make(self, tensors: Tensors, outputs: dict[str, Array], longest: bool, keep: bool) -> Answer:
        entry = ENTRY_OF[self.case.api]
        arguments = [self.value(name, kind, tensors, outputs) for name, kind in ENTRIES[entry]]
        first = getattr(self.d.op, entry + ("GetMaxWorkspaceSize" if longest else "GetWorkspaceSize"))
        first.argtypes = [*(C_TYPES[kind] for _, kind in ENTRIES[entry]), ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(POINTER)]
        second = getattr(self.d.op, entry)
        second.argtypes = [POINTER, ctypes.c_uint64, POINTER, POINTER]
        size, executor = ctypes.c_uint64(), POINTER()
        answer = Answer(first(*arguments, ctypes.byref(size), ctypes.byref(executor)))
        if answer.first or longest:
            answer.text = self.d.text()
            return answer
        if not keep:
            self.d.nn.aclDestroyAclOpExecutor(executor)
            return answer
        workspace = POINTER()
        if size.value:
            status, workspace = self.d.malloc(size.value)
            if status:
                self.d.nn.aclDestroyAclOpExecutor(executor)
                answer.second, answer.text = status, self.d.text()
                return answer
            self.blocks.append(workspace)
        answer.second = second(workspace, size.value, executor, self.d.stream)
        answer.text = self.d.text()
        answer.sync = self.d.rt.aclrtSynchronizeStream(self.d.stream)
        if answer.sync:
            answer.text = self.d.text()
            return answer
        at = len(ENTRIES[entry]) - 2
        for name, block in zip(("attentionOut", "softmaxLse"), self._output_blocks(arguments, at)):
            spec = getattr(self.case.outputs, name)
            if block is not None and spec is not None and name in outputs:
                answer.outputs[name], guard = self._download(spec, block)
                answer.overrun |= bool((guard != FRESH).any())
        return answer

    def _output_blocks(self, arguments: list[Any], at: int) -> list[POINTER | None]:
        """The blocks of the two outputs: they were uploaded last, in order, and only where they are not null."""
        given = [argument is not None for argument in arguments[at:]]
        made = [b for b in self.blocks if b is not None]
        inputs = sum(spec is not None for name, kind in ENTRIES[ENTRY_OF[self.case.api]][:at] for spec in self._specs(name, kind))
        found = iter(made[inputs:])
        return [next(found) if there else None for there in given]

    def _specs(self, name: str, kind: str) -> tuple[Any, ...]:
        if kind not in (TENSOR, LIST):
            return ()
        value = self.case.get(name)
        return value or () if isinstance(value, tuple) or kind == LIST else (value,)  # type: ignore[return-value]

    def _download(self, spec: TensorSpec, block: POINTER) -> tuple[Array, Array]:
        fmt = DTYPES[spec.dtype]
        count = buffer_elements(spec)
        size = (count * fmt.bits + 7) // 8 if fmt.bits == 4 else count * fmt.itemsize
        raw = np.empty(size + GUARD, np.uint8)
        assert self.d.rt.aclrtMemcpy(raw.ctypes.data, raw.size, block, raw.size, D2H) == 0
        return np.array(strided_view(spec, raw[:size].view(fmt.storage))), raw[size:]


def packed(flat: Array, bits: int) -> Array:
    """Elements of 4 bits two a byte, the first in the lower half; others as they are."""
    if bits != 4:
        return np.ascontiguousarray(flat)
    codes = np.append(flat.astype(np.uint8) & 15, np.zeros(flat.size % 2, np.uint8))
    return codes[0::2] | codes[1::2] << 4


def _ints(values: Any) -> Any:
    return (ctypes.c_int64 * max(1, len(values)))(*values)
