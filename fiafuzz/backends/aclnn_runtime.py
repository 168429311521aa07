"""CANN's runtime for direct calls: one initialisation, device and stream for the process, and device memory that is kept for the
next call.

Every function here answers with a status (0: done) instead of raising, since what a status means depends on where it came up.
Sequence and types: spec/torch_npu.md 4, acl_rt.h.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from ctypes import byref, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from .aclnn_library import Libraries
from .npu_errors import of_status
from .protocol import BackendUnavailable

TO_DEVICE, FROM_DEVICE = 1, 2
HUGE_FIRST = 0
ALREADY_INITIALISED = 100002
NO_MEMORY = 207001
KEEP = 64 << 20
"""Device memory above this size is given back after the call that needed it."""
LEAST = 1 << 16

_P = ctypes.POINTER
_TYPES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "aclInit": ((c_char_p,), c_int32),
    "aclFinalize": ((), c_int32),
    "aclrtSetDevice": ((c_int32,), c_int32),
    "aclrtResetDevice": ((c_int32,), c_int32),
    "aclrtGetDeviceCount": ((_P(c_uint32),), c_int32),
    "aclrtCreateStream": ((_P(c_void_p),), c_int32),
    "aclrtDestroyStream": ((c_void_p,), c_int32),
    "aclrtSynchronizeStream": ((c_void_p,), c_int32),
    "aclrtMalloc": ((_P(c_void_p), c_size_t, c_int32), c_int32),
    "aclrtFree": ((c_void_p,), c_int32),
    "aclrtMemcpy": ((c_void_p, c_size_t, c_void_p, c_size_t, c_int32), c_int32),
    "aclGetRecentErrMsg": ((), c_char_p),
    "aclrtGetSocName": ((), c_char_p),
}
_OPTIONAL: dict[str, tuple[tuple[Any, ...], Any]] = {
    "aclrtSynchronizeStreamWithTimeout": ((c_void_p, c_int32), c_int32),
    "aclrtSetOpExecuteTimeOutWithMs": ((c_uint32,), c_int32),
    "aclrtSetOpExecuteTimeOutV2": ((c_uint64, _P(c_uint64)), c_int32),
    "aclrtSetOpExecuteTimeOut": ((c_uint32,), c_int32),
    "aclsysGetVersionStr": ((c_char_p, c_char_p), c_int32),
}

Bytes = NDArray[np.uint8]


class Runtime:
    """The runtime of this process, on one device. BackendUnavailable when it, the device or a stream cannot be had."""

    def __init__(self, libraries: Libraries, device: int, op_seconds: float) -> None:
        self.device = device
        self.dead = ""
        """Why nothing may be called any more: set after a fault of the device."""
        self._f = _functions(libraries.runtime)
        self._buffers: dict[str, _Buffer] = {}
        self._thread = threading.get_ident()
        self._milliseconds = max(1, round(op_seconds * 1000))
        self._stream = c_void_p()
        self._initialised = self._must(self._f["aclInit"](None), "aclInit", ALREADY_INITIALISED) == 0
        count = c_uint32()
        self._must(self._f["aclrtGetDeviceCount"](byref(count)), "aclrtGetDeviceCount")
        self.devices = count.value
        if not 0 <= device < count.value:
            visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
            limits = f" (ASCEND_RT_VISIBLE_DEVICES={visible})" if visible is not None else ""
            raise BackendUnavailable(f"device {device} is not there: the runtime sees {count.value}{limits}; see npu-smi info, "
                                     "or set FIAFUZZ_DEVICE or ASCEND_RT_VISIBLE_DEVICES")
        self._must(self._f["aclrtSetDevice"](device), f"aclrtSetDevice({device})")
        self.soc = (self._f["aclrtGetSocName"]() or b"").decode(errors="replace")
        self._must(self._f["aclrtCreateStream"](byref(self._stream)), "aclrtCreateStream")
        self._limit_operators()
        atexit.register(self.close)

    def _must(self, status: int, what: str, *also: int) -> int:
        if status and status not in also:
            said = of_status(status, self.error_text()).message
            raise BackendUnavailable(f"{what} answers {status} ({said}); see npu-smi info and fiafuzz doctor")
        return status

    def _limit_operators(self) -> None:
        """Shorten the operator time-out, so that a hang on the device is told by the device."""
        if "aclrtSetOpExecuteTimeOutWithMs" in self._f:
            self._f["aclrtSetOpExecuteTimeOutWithMs"](self._milliseconds)
        elif "aclrtSetOpExecuteTimeOutV2" in self._f:
            self._f["aclrtSetOpExecuteTimeOutV2"](self._milliseconds * 1000, byref(c_uint64()))
        elif "aclrtSetOpExecuteTimeOut" in self._f:
            self._f["aclrtSetOpExecuteTimeOut"](-(-self._milliseconds // 1000))
        self.error_text()

    @property
    def stream(self) -> c_void_p:
        """The stream of this process."""
        return self._stream

    def enter(self) -> None:
        """Make the device current in this thread; the runtime keeps that per thread."""
        thread = threading.get_ident()
        if thread != self._thread:
            self._f["aclrtSetDevice"](self.device)
            self._thread = thread

    def error_text(self) -> str:
        """What the runtime says about the last failure, copied and cleared; "" when nothing is said. Call it after every failure: texts
        pile up otherwise and are taken for those of the next one."""
        text = self._f["aclGetRecentErrMsg"]()
        return text.decode(errors="replace") if text else ""

    def version(self) -> str:
        """CANN's version in the runtime's own words; "" when it has none."""
        if "aclsysGetVersionStr" not in self._f:
            return ""
        for package in (b"CANN", b"runtime"):
            text = ctypes.create_string_buffer(256)
            if self._f["aclsysGetVersionStr"](package, text) == 0 and text.value:
                return text.value.decode(errors="replace")
            self.error_text()
        return ""

    def buffer(self, name: str, size: int) -> tuple[int, int]:
        """Device memory of at least ``size`` bytes under a name, kept for the next call: status and address.

        Two buffers of different names never overlap; the content is what the last call left.
        """
        held = self._buffers.get(name)
        if held is not None and held.size >= size:
            return 0, held.address
        self.drop(name)
        room = max(LEAST, 1 << (size - 1).bit_length()) if size <= KEEP else size
        address = c_void_p()
        status = int(self._f["aclrtMalloc"](byref(address), room, HUGE_FIRST))
        if status == 0 and not address.value:
            status = NO_MEMORY
        if status:
            return status, 0
        self._buffers[name] = _Buffer(int(address.value or 0), room)
        return 0, self._buffers[name].address

    def trim(self) -> None:
        """Give back what is too large to be kept."""
        for name in [n for n, held in self._buffers.items() if held.size > KEEP]:
            self.drop(name)

    def drop(self, name: str) -> None:
        """Give the device memory under a name back."""
        held = self._buffers.pop(name, None)
        if held is not None and not self.dead:
            self._f["aclrtFree"](held.address)

    def to_device(self, address: int, data: Bytes) -> int:
        """Copy host bytes to the device; the status."""
        return int(self._f["aclrtMemcpy"](address, data.nbytes, data.ctypes.data, data.nbytes, TO_DEVICE)) if data.nbytes else 0

    def from_device(self, data: Bytes, address: int) -> int:
        """Copy device memory into host bytes; the status."""
        return int(self._f["aclrtMemcpy"](data.ctypes.data, data.nbytes, address, data.nbytes, FROM_DEVICE)) if data.nbytes else 0

    def synchronise(self) -> int:
        """Wait until the stream has done all its work: the status, in which faults of the device show."""
        if "aclrtSynchronizeStreamWithTimeout" in self._f:
            # The device's own time-out comes first; this one is for a device that does not answer at all.
            return int(self._f["aclrtSynchronizeStreamWithTimeout"](self._stream, self._milliseconds + 1000))
        return int(self._f["aclrtSynchronizeStream"](self._stream))

    def close(self) -> None:
        """Give everything back, in the reverse order. Does nothing after a fault of the device: that must end with the process."""
        atexit.unregister(self.close)
        if self.dead or not self._stream:
            return
        self.enter()
        for name in list(self._buffers):
            self.drop(name)
        self._f["aclrtDestroyStream"](self._stream)
        self._stream = c_void_p()
        # Another user of the runtime in this process, such as torch_npu, finalises it itself.
        if self._initialised and "torch_npu" not in sys.modules:
            self._f["aclrtResetDevice"](self.device)
            self._f["aclFinalize"]()
        self.dead = "the runtime of this process is closed"


class _Buffer:
    __slots__ = ("address", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size


def _functions(library: Any) -> dict[str, Any]:
    found = {}
    for name, (types, result) in {**_TYPES, **_OPTIONAL}.items():
        try:
            function = library[name]
        except AttributeError:
            if name in _OPTIONAL:
                continue
            raise BackendUnavailable(f"{library._name} has no {name}: this is not a CANN runtime that direct calls can use; "
                                     "install the CANN toolkit of the release to be tested") from None
        function.argtypes, function.restype = types, result
        found[name] = function
    return found


class Handles:
    """The aclTensor, aclTensorList and aclIntArray objects of one call: made here, and all destroyed by ``close``."""

    def __init__(self, makers: Makers) -> None:
        self._makers = makers
        self._made: list[tuple[Any, int]] = []

    def tensor(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: int, fmt: int, offset: int, storage: tuple[int, ...],
               address: int) -> Optional[int]:
        """An aclTensor; None when the library refuses to make one."""
        made = self._makers.tensor(_int64(shape), len(shape), dtype, _int64(strides), offset, fmt, _int64(storage), len(storage), address)
        return self._keep(self._makers.drop_tensor, made)

    def tensor_list(self, items: list[Optional[int]]) -> Optional[int]:
        """An aclTensorList of tensors made here (None: a null entry), which it owns from now on; None when the library refuses."""
        made = self._makers.tensor_list((c_void_p * max(len(items), 1))(*items), len(items))
        if made:
            mine = {item for item in items if item}
            self._made = [(drop, handle) for drop, handle in self._made if handle not in mine]
        return self._keep(self._makers.drop_list, made)

    def int_array(self, values: tuple[int, ...]) -> Optional[int]:
        """An aclIntArray, also of no integers; None when the library refuses to make one."""
        return self._keep(self._makers.drop_ints, self._makers.int_array(_int64(values), len(values)))

    def _keep(self, drop: Any, handle: Optional[int]) -> Optional[int]:
        if handle:
            self._made.append((drop, handle))
        return handle or None

    def close(self) -> None:
        """Destroy everything; lists destroy their tensors."""
        while self._made:
            drop, handle = self._made.pop()
            drop(handle)


class Makers:
    """The functions that make and destroy handles."""

    def __init__(self, libraries: Libraries) -> None:
        ints = _P(c_int64)
        self.tensor = libraries.helper(
            "aclCreateTensor", (ints, c_uint64, c_int32, ints, c_int64, c_int32, ints, c_uint64, c_void_p), c_void_p
        )
        self.tensor_list = libraries.helper("aclCreateTensorList", (_P(c_void_p), c_uint64), c_void_p)
        self.int_array = libraries.helper("aclCreateIntArray", (ints, c_uint64), c_void_p)
        self.drop_tensor = libraries.helper("aclDestroyTensor", (c_void_p,), c_int32)
        self.drop_list = libraries.helper("aclDestroyTensorList", (c_void_p,), c_int32)
        self.drop_ints = libraries.helper("aclDestroyIntArray", (c_void_p,), c_int32)
        self._repeatable = libraries.helper_if_there("aclSetAclOpExecutorRepeatable", (c_void_p,), c_int32)
        self._drop_executor = libraries.helper_if_there("aclDestroyAclOpExecutor", (c_void_p,), c_int32)

    def drop_executor(self, executor: c_void_p) -> None:
        """Destroy an executor that no second phase took. The library lets go only of those that may be used again, so that is said
        first; one that is too old for either keeps it."""
        for function in (self._repeatable, self._drop_executor):
            if function is not None:
                function(executor)


def _int64(values: tuple[int, ...]) -> Any:
    """A C array; never of length 0, so that an empty list is not a null pointer."""
    if len(values) > 64:
        data = np.array(values, np.int64)
        return data.ctypes.data_as(_P(c_int64))
    return (c_int64 * max(len(values), 1))(*values)
