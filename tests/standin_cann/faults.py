"""Planted faults of the stand-in: ``STANDIN_FAULT=NAME[:CONDITION[&CONDITION...]][;NAME...]``.

A condition looks at the call: ``numHeads==4``, ``sparseMode!=0``, ``query.dtype==BFLOAT16``, ``query.rank>=4``, ``query.dim1<8``,
``key.count==2``, ``attenMask`` (given), ``!attenMask`` (null), ``api==v3``, ``verdict==accept``, ``call==3`` (the third call of the
process), ``digest==...`` (that one call, see ``digest``). Without one, every call is hit. The first fault that fits acts.
"""

from __future__ import annotations

import ctypes
import operator
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.codecs import decode, encode
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.parameters import INDEX_PARAMETERS

from . import memory, records, texts

if TYPE_CHECKING:
    from .host import Call, Launched

Compute = Callable[["Call"], None]
Condition = Callable[[Case, str, int], bool]
DONE: Launched = (0, "", 0, "")


@dataclass(frozen=True)
class Fault:
    """One kind of fault. ``refuse`` answers the first phase (None: as always); ``launch`` acts in the second."""

    name: str
    title: str
    expect: str
    """The verdict that a campaign must give, on a valid call unless ``on`` says otherwise."""
    launch: Callable[[Call, Compute], Launched] | None = None
    refuse: Callable[[Call], tuple[int, str] | None] | None = None
    on: str = "accept"
    workspace: int | None = None


@dataclass(frozen=True)
class Planted:
    """A fault that hits a call."""

    fault: Fault

    @property
    def takes_all(self) -> bool:
        """Whether calls that must be refused are taken."""
        return self.fault.name == "accept-invalid"

    def refuse(self, call: Call) -> tuple[int, str] | None:
        """Status and text of a refusal in the first phase; None when there is none."""
        return self.fault.refuse(call) if self.fault.refuse else None

    def workspace(self, usual: int) -> int:
        """The workspace that the call asks for."""
        return usual if self.fault.workspace is None else self.fault.workspace

    def launch(self, call: Call, compute: Compute) -> Launched:
        """The second phase."""
        if self.fault.launch is not None:
            return self.fault.launch(call, compute)
        compute(call)
        return DONE


# ---- what they do ----------------------------------------------------------------------------------------------------


def _wrong_status(call: Call) -> tuple[int, str] | None:
    code = next(c for c in (561002, 161002, 561103) if c not in call.foreseen.codes)
    return code, texts.refusal(code, call.record.entry, "planted: a check that does not exist")


def _status(code: int) -> Callable[[Call, Compute], Launched]:
    def launch(call: Call, compute: Compute) -> Launched:
        return code, texts.refusal(code, call.record.entry, "planted: the launch fails"), 0, ""

    return launch


def _device(code: int, unit: str, error: str, reason: str) -> Callable[[Call, Compute], Launched]:
    def launch(call: Call, compute: Compute) -> Launched:
        return 0, "", code, texts.device_exception(unit, error, reason)

    return launch


def _hang(call: Call, compute: Compute) -> Launched:
    while True:
        time.sleep(60)


def _crash(call: Call, compute: Compute) -> Launched:
    ctypes.string_at(0)
    return DONE


def _nothing(call: Call, compute: Compute) -> Launched:
    return DONE


_old: dict[str, np.ndarray[Any, Any]] = {}


def _stale(call: Call, compute: Compute) -> Launched:
    """The output keeps what an earlier call of the process left in that memory."""
    for name in call.outputs():
        data = call.record.args[name]
        raw = memory.device_bytes(data["addr"], _bytes(data))
        raw[...] = np.resize(_old.get(name, np.full(1, 0x3C, np.uint8)), raw.size)
    return DONE


def remember(call: Call) -> None:
    """Keep what a sound call wrote, for ``stale``."""
    for name in call.outputs():
        data = call.record.args[name]
        raw = memory.device_bytes(data["addr"], _bytes(data))
        if raw.size:
            _old[name] = np.array(raw[: 1 << 16])


def _bytes(data: dict[str, Any]) -> int:
    bits = DTYPES[records.CODES[data["dtype"]]].bits
    if 0 in data["dims"]:
        return 0
    last = data["offset"] + sum((n - 1) * s for n, s in zip(data["dims"], data["strides"]))
    return ((last + 1) * bits + 7) // 8


_OTHER = {"FLOAT16": "BFLOAT16", "BFLOAT16": "FLOAT16", "FLOAT8_E4M3FN": "FLOAT8_E5M2", "HIFLOAT8": "FLOAT8_E4M3FN"}


def _wrong_dtype(call: Call, compute: Compute) -> Launched:
    compute(call)
    data = call.record.args["attentionOut"]
    name = records.CODES[data["dtype"]]
    dense = records.array_of(data)
    other = _OTHER.get(name)
    changed = dense ^ 0x55 if other is None else encode(other, decode(name, dense), overflow="saturate").view(dense.dtype)
    records.put_array(data, changed)
    return DONE


def _changed(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Places (flat) that a computation wrote: padding and what is left alone are not among them."""
    bits = f"u{after.dtype.itemsize}"
    return np.flatnonzero(before.reshape(-1).view(bits) != after.reshape(-1).view(bits))


def _half(call: Call, compute: Compute) -> Launched:
    """The second half of what is written stays as it was."""
    data = call.record.args["attentionOut"]
    before = records.array_of(data)
    compute(call)
    after = records.array_of(data)
    places = _changed(before, after)
    late = places[places.size // 2 :]
    after.reshape(-1)[late] = before.reshape(-1)[late]
    records.put_array(data, after)
    return DONE


def _overrun(call: Call, compute: Compute) -> Launched:
    """Right values, and 32 bytes more behind them."""
    compute(call)
    data = call.record.args["attentionOut"]
    end = data["addr"] + _bytes(data)
    if memory.on_device(end, 32):
        memory.device_bytes(end, 32)[...] = 0x11
    return DONE


def _flip(call: Call, compute: Compute) -> Launched:
    """The last element that is written gets another size."""
    data = call.record.args["attentionOut"]
    before = records.array_of(data)
    compute(call)
    after = records.array_of(data)
    last = _changed(before, after)[-1:]
    bits = after.reshape(-1).view(f"u{after.dtype.itemsize}")
    bits[last] ^= np.array(0x40 << 8 * (after.dtype.itemsize - 1), bits.dtype)
    records.put_array(data, after)
    return DONE


def _lost(call: Call, compute: Compute) -> Launched:
    path = os.environ.get("STANDIN_STATE", "")
    if path:
        with open(path, "a", encoding="ascii") as state:
            state.write(f"{call.record.device}\n")
    return 0, "", 507899, "EL0001: [Driver] the device does not answer any more: drv ret=4294967295.\n"


_ADDRESS = "The DDR address of the MTE instruction is out of range"
_TIMEOUT = "timeout or trap error"

FAULTS = MappingProxyType({
    f.name: f
    for f in (
        Fault("wrong-status", "the first phase refuses with a status that nothing calls for", "F202", refuse=_wrong_status),
        Fault("other-status", "a call that must be refused is refused with another status", "F203", refuse=_wrong_status, on="reject"),
        Fault("accept-invalid", "a call that must be refused is taken", "F201", launch=_nothing, on="reject"),
        Fault("late-status", "the launch fails with a status", "F202", _status(561002)),
        Fault("dead-queue", "the launch fails inside; a task queue is dead afterwards", "F202", _status(561000)),
        Fault("device-fault", "an exception of a core, seen at the next synchronisation", "F301",
              _device(507015, "aivec", "0x800000", _ADDRESS)),
        Fault("device-timeout", "the device gives up on the kernel", "F302", _device(507014, "aicore", "0x0", _TIMEOUT)),
        Fault("hang", "the launch does not come back", "F302", _hang),
        Fault("crash", "the host process dies of a wild read", "F301", _crash),
        Fault("no-op", "success, and nothing is written", "F104", _nothing),
        Fault("half", "the second half of the output is not written", "F104", _half),
        Fault("stale", "success, and the output holds what was there before", "F101", _stale),
        Fault("wrong-dtype", "the output's bytes are of another dtype", "F101", _wrong_dtype),
        Fault("flip", "one element is wrong", "F101", _flip),
        Fault("overrun", "32 bytes behind the output are written", "F107", _overrun),
        Fault("huge-workspace", "the workspace does not fit into the device", "F301", workspace=1 << 46),
        Fault("device-lost", "the device is gone, for every later process too (STANDIN_STATE)", "F303", _lost),
    )
})  # fmt: skip
"""Planted faults by name."""


# ---- conditions ------------------------------------------------------------------------------------------------------

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_TERM = re.compile(r"(!?)([A-Za-z]\w*)(?:\.(\w+))?(?:(==|!=|<=|>=|<|>)(.*))?")
_calls = 0


def planted(case: Case, verdict: str) -> Planted | None:
    """The fault that hits this call; None when none does. ValueError when STANDIN_FAULT cannot be read."""
    global _calls
    _calls += 1
    for fault, condition in parse(os.environ.get("STANDIN_FAULT", "")):
        if fault.on in ("any", verdict) and condition(case, verdict, _calls):
            return Planted(fault)
    return None


@cache
def parse(text: str) -> tuple[tuple[Fault, Condition], ...]:
    """The faults of a setting. ValueError names what is unknown."""
    found = []
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, _, condition = part.partition(":")
        if name not in FAULTS:
            raise ValueError(f"unknown fault {name!r}; known: {', '.join(FAULTS)}")
        found.append((FAULTS[name], _condition(condition)))
    return tuple(found)


def _condition(text: str) -> Condition:
    terms = [_term(part.strip()) for part in text.split("&") if part.strip()]
    return lambda case, verdict, calls: all(term(case, verdict, calls) for term in terms)


def _term(text: str) -> Condition:
    match = _TERM.fullmatch(text)
    if match is None:
        raise ValueError(f"the condition {text!r} is not of the form NAME==VALUE")
    negated, name, part, sign, wanted = match.groups()

    def holds(case: Case, verdict: str, calls: int) -> bool:
        value = _value(case, verdict, calls, name, part)
        if sign is None:
            return bool(value is None or value is False) == bool(negated)
        if value is None or wanted == "null":
            return (value is None and wanted == "null") == (sign == "==")
        return bool(_COMPARE[sign](value, type(value)(_read(wanted, value))))

    return holds


def _read(text: str, like: Any) -> Any:
    return text == "true" if isinstance(like, bool) else text


def digest(case: Case) -> str:
    """What tells a recorded call from others, whatever its tensors hold, by whichever entry it comes. The second output does
    not count where it is not asked for: some callers pass none, others an empty one."""
    lse = case.outputs.softmaxLse if case.attrs.softmaxLseFlag else None
    given = {name: getattr(case.inputs, name) for name in INDEX_PARAMETERS}
    bare = {name: msgspec.structs.replace(spec, values=None) for name, spec in given.items() if spec is not None}
    return case.replace(api="v5", softmaxLse=lse, **bare).digest


def _value(case: Case, verdict: str, calls: int, name: str, part: str | None) -> Any:
    if name == "digest":
        return digest(case)
    own = {"verdict": verdict, "api": case.api, "call": calls}
    value: Any = own[name] if name in own else case.get(name)
    if isinstance(value, tuple) and value and isinstance(value[0], TensorSpec):
        if part == "count":
            return len(value)
        value = value[0]
    if part is None or value is None:
        return value
    if isinstance(value, TensorSpec):
        if part.startswith("dim"):
            at = int(part[3:])
            return value.shape[at] if at < value.rank else None
        return {"dtype": value.dtype, "rank": value.rank, "format": value.format, "contiguous": value.contiguous}[part]
    return len(value) if part == "count" else None
