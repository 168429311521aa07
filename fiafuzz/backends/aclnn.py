"""The operator itself, called through CANN's C interface: aclnnFusedInferAttentionScore V1 to V5 by ctypes, without torch_npu.

Everything that the C interface can say is said as the case has it: null pointers, tensor lists with null entries, strides, offsets,
formats, dtypes of any kind, shapes that make no sense, attributes of any value. The version follows the case's api, or is forced by
the name of the backend (``aclnn:v4``).
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from time import perf_counter
from typing import Any, Optional

import numpy as np

from fiafuzz.model.case import INT64_MAX, INT64_MIN, Case, TensorSpec
from fiafuzz.model.parameters import TENSOR_LISTS, Kind
from fiafuzz.model.profiles import PROFILES
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import Tensors, named_specs

from . import aclnn_library, npu_errors
from .aclnn_layout import GUARD, GUARD_BYTE, Bytes, Layout, Place, count, slack
from .aclnn_library import Entry, Libraries
from .aclnn_runtime import KEEP, Handles, Makers, Runtime
from .aclnn_signature import DTYPE_CODES, FORMAT_CODES, Argument, function_name, not_in, signature
from .ascend import about_soc, chosen_device, look, profiles_of
from .protocol import BackendInfo, BackendUnavailable, Outcome

OP_VARIABLE = "FIAFUZZ_OP_SECONDS"
OP_SECONDS = 5.0


class _CannotMake(Exception):
    """A handle that the library refuses to make; the text says which."""


class _Machine:
    """What one process has: the libraries, the runtime on one device, and host memory that is kept for the next call."""

    def __init__(self) -> None:
        self.libraries: Libraries = aclnn_library.load()
        self.makers = Makers(self.libraries)
        try:
            device, seconds = chosen_device(), _op_seconds()
        except ValueError as error:
            raise BackendUnavailable(str(error)) from None
        self.runtime = Runtime(self.libraries, device, seconds)
        self._blocks: dict[str, Bytes] = {}
        self.guard: Bytes = np.full(GUARD, GUARD_BYTE, np.uint8)

    def block(self, name: str, size: int) -> Bytes:
        """Host memory of ``size`` bytes under a name; the content is undefined."""
        held = self._blocks.get(name)
        if held is None or held.size < size:
            held = np.empty(max(size, 1 << 16), np.uint8)
            if held.size <= KEEP:
                self._blocks[name] = held
        return held[:size]


@cache
def machine() -> _Machine:
    """The libraries and the runtime of this process, made at the first call. BackendUnavailable when they cannot be had."""
    return _Machine()


class AclnnBackend:
    """The C interface as a candidate. ``api``: the version that is forced, None: that of each case.

    BackendUnavailable when CANN, the device or the forced version is not there, or when no profile speaks of this SoC.
    """

    def __init__(self, api: Optional[str] = None) -> None:
        self._machine = machine()
        self._api = api
        libraries, runtime = self._machine.libraries, self._machine.runtime
        if api is not None:
            libraries.need(api)
        apis = tuple(libraries.entries) if api is None else (api,)
        title = f"{function_name(api)} through the C interface" if api else "aclnnFusedInferAttentionScore V1 to V5 through the C interface"
        self._info = BackendInfo(
            f"aclnn:{api}" if api else "aclnn",
            title,
            "own",
            blind=True,
            versions={
                "soc": runtime.soc,
                "cann": runtime.version() or "unknown",
                **look().versions,
                "device": f"{runtime.device} of {runtime.devices} visible",
                "libraries": ", ".join(sorted({_build(libraries.paths[function_name(a)]) for a in apis})),
                "functions": ", ".join(function_name(a) for a in apis),
            },
            profiles=_profiles(runtime.soc, api, apis),
            device="npu",
            devices=runtime.devices,
        )
        self._products = {PROFILES[name].product for name in self._info.profiles}

    @property
    def info(self) -> BackendInfo:
        """Name, versions and the profiles that this SoC can stand for."""
        return self._info

    def cannot_express(self, scene: Scene) -> Optional[str]:
        """What of the call has no word in C, or which version this CANN does not have; None when it can be called."""
        case = scene.case
        if case.product not in self._products:
            return f"the case is for {case.product}, this device is {self._machine.runtime.soc}"
        api = self._api or case.api
        if api not in self._machine.libraries.entries:
            return f"this CANN has no {function_name(api)}; it has {', '.join(self._machine.libraries.entries)}"
        extra = not_in(case, api)
        if extra:
            return f"{function_name(api)} has no parameter for {', '.join(extra)}"
        return _unspeakable(case)

    def run(self, case: Case, scene: Scene, tensors: Tensors, outputs: dict[str, np.ndarray[Any, Any]]) -> Outcome:
        """Run one call. ``outputs`` go to the device as they are (poisoned) and come back as the operator left them.

        Calls whose tensors or outputs cannot be made (they are not in ``tensors`` or ``outputs``) are given to the host's checks
        alone: the outcome says that they were not launched.
        """
        started = perf_counter()
        runtime = self._machine.runtime
        if runtime.dead:
            return Outcome("lost", message=runtime.dead, fatal=True)
        reason = self.cannot_express(scene)
        if reason is not None:
            return Outcome("unsupported", message=reason)
        runtime.enter()
        try:
            outcome = _Call(self._machine, self._machine.libraries.entries[self._api or case.api], case, tensors, outputs).run()
            if outcome.fatal:
                runtime.dead = f"the device context of this process is no longer used after: {outcome.message}"
        except MemoryError:  # of this process, for the copies that are made here: the operator's own allocations answer a status
            outcome = Outcome("unsupported", message="this process has no memory for copies of the tensors")
        finally:
            runtime.trim()
        return replace(outcome, seconds=perf_counter() - started)


class _Call:
    """One call from handles to outputs."""

    def __init__(self, machine: _Machine, entry: Entry, case: Case, tensors: Tensors, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
        self.machine, self.runtime = machine, machine.runtime
        self.entry, self.case, self.outputs = entry, case, outputs
        self.layout = Layout(case, tensors, outputs)
        self.handles = Handles(machine.makers)
        self.base = 0
        self.executor = ctypes.c_void_p()

    def run(self) -> Outcome:
        """Everything of the call; what it made is destroyed in any case."""
        total = self.layout.total
        status, self.base = self.runtime.buffer("tensors", total)
        if status:
            return self._no_room(status, total)
        before: Bytes = np.empty(0, np.uint8)
        if self.layout.complete:
            status, before = self._upload()
            if status:
                return self._failed(status)
        self.runtime.error_text()  # whatever was said before is not about this call
        try:
            return self._phases(self._arguments(), before)
        except _CannotMake as problem:
            return Outcome("unsupported", message=f"the C interface makes no {problem}")
        finally:
            if self.executor:  # no second phase has taken it
                self.machine.makers.drop_executor(self.executor)
            self.handles.close()

    def _upload(self) -> tuple[int, Bytes]:
        """Send the call's memory: the status, and the window that is read back later as it was sent. Small calls go in one copy;
        of large ones the host makes none."""
        layout, (start, stop) = self.layout, self.layout.window()
        if layout.total <= KEEP:
            block = self.machine.block("before", layout.total)
            layout.fill(block)
            return self.runtime.to_device(self.base, block), block[start:stop]
        for begin, piece in layout.pieces(0, start):
            status = self.runtime.to_device(self.base + begin, piece)
            if status:
                return status, piece
        window = self.machine.block("before", stop - start)
        layout.fill(window, start)
        return self.runtime.to_device(self.base + start, window), window

    def _phases(self, arguments: list[Any], before: Bytes) -> Outcome:
        runtime, size = self.runtime, ctypes.c_uint64()
        status = int(self.entry.workspace(*arguments, ctypes.byref(size), ctypes.byref(self.executor)))
        if status:
            self.executor = ctypes.c_void_p()  # a refused call leaves none
            return self._failed(status)
        if not self.layout.complete:
            unmade = next(place.title for place in self.layout.places.values() if not place.known)
            text = f"the host's checks take the call; it was not launched, since no memory for {unmade} can be made"
            return Outcome("ok", launched=False, message=text)
        address, guard = 0, 0
        if size.value:
            status, address = runtime.buffer("workspace", size.value + slack(size.value) + GUARD)
            guard = address + size.value + slack(size.value)
            status = status or runtime.to_device(guard, self.machine.guard)
            if status:
                failure = npu_errors.of_status(status, runtime.error_text())
                return replace(failure.outcome(), message=f"the operator asks for {size.value} bytes of workspace; {failure.message}")
        executor, self.executor = self.executor, ctypes.c_void_p()  # the second phase takes it, whatever it answers
        status = int(self.entry.launch(address or None, size.value, executor, runtime.stream))
        if status:
            outcome = self._failed(status)
            return replace(outcome, stage="launch") if outcome.kind == "reject" else outcome
        status = runtime.synchronise()
        if status:
            return self._failed(status)
        start, stop = self.layout.window()
        after = self.machine.block("after", stop - start)
        status = runtime.from_device(after, self.base + start)
        if status:
            return self._failed(status)
        text = self.layout.take(before, after, self.outputs)
        if guard and not text:
            behind = self.machine.block("behind", GUARD)
            status = runtime.from_device(behind, guard)
            if status:
                return self._failed(status)
            changed = int(np.count_nonzero(behind != GUARD_BYTE))
            text = f"{count(changed)} behind the workspace of {size.value} bytes changed" if changed else ""
        return Outcome("ok", self.outputs, flaw=("F107", text) if text else None)

    def _failed(self, status: int) -> Outcome:
        return npu_errors.of_status(status, self.runtime.error_text()).outcome()

    def _no_room(self, status: int, size: int) -> Outcome:
        failure = npu_errors.of_status(status, self.runtime.error_text())
        if failure.kind == "oom":  # what the call brings along, not what the operator asks for
            return Outcome("unsupported", message=f"the device has no {size} bytes for the tensors of the call")
        return failure.outcome()

    # ---- arguments ---------------------------------------------------------------------------

    def _arguments(self) -> list[Any]:
        return [self._argument(argument) for argument in signature(self.entry.api)]

    def _argument(self, argument: Argument) -> Any:
        value: Any = self.case.get(argument.name)
        if argument.kind is Kind.ATTRIBUTE:
            if argument.ctype is ctypes.c_char_p:
                return None if value is None else value.encode()
            return float(value) if argument.ctype is ctypes.c_double else value
        if value is None:
            return None
        if argument.kind is Kind.INT_ARRAY:
            return self._made(self.handles.int_array(value), f"int array {argument.name} of {len(value)} numbers")
        if argument.kind is Kind.TENSOR_LIST:
            items = [None if spec is None else self._tensor(argument.name, i) for i, spec in enumerate(value)]
            return self._made(self.handles.tensor_list(items), f"list {argument.name} of {len(items)} tensors")
        return self._tensor(argument.name, 0)

    def _tensor(self, name: str, index: int) -> int:
        place = self.layout.places[name, index]
        spec = place.spec
        handle = self.handles.tensor(
            spec.shape,
            strides_of(spec),
            DTYPE_CODES[spec.dtype],
            FORMAT_CODES[spec.format],
            spec.offset,
            _storage(place),
            self.base + place.begin,
        )
        return self._made(handle, f"tensor {place.title} of shape {list(spec.shape)}")

    @staticmethod
    def _made(handle: Optional[int], what: str) -> int:
        if handle is None:
            raise _CannotMake(what)
        return handle


def strides_of(spec: TensorSpec) -> tuple[int, ...]:
    """The strides that the C interface is told, in elements: the case's own, or the products of the sizes behind each axis.

    The products count a size of 0 as 0, as the vendor's examples do: with strides in the way of PyTorch an empty tensor passes for
    one that is not contiguous (spec/host_behaviour.md 4.2). They are cut to 64 bits.
    """
    if spec.strides is not None:
        return spec.strides
    found, step = [], 1
    for size in reversed(spec.shape):
        found.append(step)
        step = (step * size + (1 << 63)) % (1 << 64) - (1 << 63)
    return tuple(reversed(found))


def _storage(place: Place) -> tuple[int, ...]:
    """The shape of the memory behind a tensor: its own when it is dense, else one axis."""
    if place.elements is not None and (place.spec.strides is not None or place.spec.offset):
        return (place.elements,)
    return place.spec.shape


def _unspeakable(case: Case) -> Optional[str]:
    """What of a case no C call can say, whatever the version."""
    layout = case.attrs.inputLayout
    if layout is not None and ("\0" in layout or any(0xD800 <= ord(c) < 0xE000 for c in layout)):
        return "a C string cannot hold this inputLayout"
    try:
        float(case.attrs.scaleValue)
    except OverflowError:
        return "scaleValue does not fit into a double"
    outputs = [(name, 0, spec) for name in ("attentionOut", "softmaxLse") if (spec := getattr(case.outputs, name)) is not None]
    for name, index, spec in [*((n, i, s) for n, i, s, _ in named_specs(case)), *outputs]:
        title = f"{name}[{index}]" if name in TENSOR_LISTS else name
        if spec.strides is not None and len(spec.strides) != len(spec.shape):
            return f"{title}: an aclTensor has one stride for each axis, not {len(spec.strides)} for {len(spec.shape)}"
        if not INT64_MIN <= spec.offset <= INT64_MAX:
            return f"{title}: the offset does not fit into 64 bits"
    return None


def _profiles(soc: str, forced: Optional[str], apis: tuple[str, ...]) -> tuple[str, ...]:
    """The profiles of a SoC that speak of one of these versions. A forced V1, V2 or V4 stands in for V3, whose document covers them.

    BackendUnavailable when there is none.
    """
    if about_soc(soc):
        raise BackendUnavailable(about_soc(soc))
    wanted = tuple(sorted(set(apis) if forced is None else {"v5" if forced == "v5" else "v3"}))
    found = profiles_of(soc, wanted)
    if not found:
        raise BackendUnavailable(f"no profile speaks of {' or '.join(wanted)} on {soc}: take another version, or fiafuzz doctor")
    return found


def _build(path: str) -> str:
    """A library file with its size and date, which change with every build where the version does not."""
    try:
        found = os.stat(path)
    except OSError:
        return path
    when = datetime.fromtimestamp(found.st_mtime, timezone.utc)
    return f"{path} ({found.st_size} bytes, {when:%Y-%m-%d %H:%M:%S} UTC)"


def _op_seconds() -> float:
    """The limit in seconds for one call on the device: FIAFUZZ_OP_SECONDS, by default below the time limit of a case."""
    text = os.environ.get(OP_VARIABLE, "")
    try:
        seconds = float(text or OP_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= 3600:
        raise ValueError(f"{OP_VARIABLE}={text!r} is no number of seconds from 0.001 to 3600")
    return seconds


def automatic(profile: Optional[str] = None) -> AclnnBackend:
    """The version of each case's api. ``profile``: any that the SoC can stand for."""
    return AclnnBackend()


def v1(profile: Optional[str] = None) -> AclnnBackend:
    """Always aclnnFusedInferAttentionScore."""
    return AclnnBackend("v1")


def v2(profile: Optional[str] = None) -> AclnnBackend:
    """Always aclnnFusedInferAttentionScoreV2."""
    return AclnnBackend("v2")


def v3(profile: Optional[str] = None) -> AclnnBackend:
    """Always aclnnFusedInferAttentionScoreV3."""
    return AclnnBackend("v3")


def v4(profile: Optional[str] = None) -> AclnnBackend:
    """Always aclnnFusedInferAttentionScoreV4."""
    return AclnnBackend("v4")


def v5(profile: Optional[str] = None) -> AclnnBackend:
    """Always aclnnFusedInferAttentionScoreV5."""
    return AclnnBackend("v5")
