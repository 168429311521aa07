"""What a failed NPU call means: texts of torch_npu and status numbers of aclnn and the runtime as kind, code, stage, message.

Everything is a table (spec/torch_npu.md 3). aclnn statuses are refusals by the operator's host and keep their number;
runtime numbers are faults of the device, time-outs or a lost device, after which the process must not be used again;
codes of torch itself (ERR01003 ...) are refusals before the operator was asked and have no number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Optional

from .protocol import Outcome

MAX_MESSAGE = 400


@dataclass(frozen=True)
class Failure:
    """One failed call, as an Outcome has it (protocol.Outcome)."""

    kind: str
    code: Optional[int] = None
    stage: Optional[str] = None
    message: str = ""
    fatal: bool = False

    def outcome(self, seconds: float = 0.0) -> Outcome:
        """The same as an outcome."""
        return Outcome(self.kind, None, self.code, self.stage, self.message, seconds=seconds, fatal=self.fatal)


STATUSES: Mapping[int, tuple[str, str]] = MappingProxyType(
    {
        161001: ("entry", "null pointer"),
        161002: ("dtypes", "bad parameter"),
        361001: ("entry", "a runtime call failed"),
        561000: ("tiling", "inner error"),
        561001: ("shape_inference", "shape inference failed"),
        561002: ("tiling", "tiling failed"),
        561003: ("kernel", "kernel not found"),
        561004: ("kernel", "kernel package not found"),
        561101: ("tiling", "no executor"),
        561102: ("tiling", "executor not released"),
        561103: ("tiling", "inner null pointer"),
    }
)
"""aclnn statuses: the stage of the host at which they are usually given, and what they mean. 561002 and 561103 cover
everything behind shape inference."""

CRASHES: Mapping[int, str] = MappingProxyType(
    {
        207003: "AI Core overflow",
        207016: "vector core overflow",
        207017: "overflow",
        507000: "internal error of the runtime",
        507001: "internal error of the task scheduler",
        507011: "model execution failed",
        507013: "system DMA error",
        507015: "AI Core exception",
        507016: "AI Core trap",
        507018: "AI CPU exception",
        507035: "vector core exception",
        507036: "vector core trap",
        507042: "AI Core trap: read overflow",
        507043: "AI Core trap: write overflow",
        507044: "vector core trap: read overflow",
        507045: "vector core trap: write overflow",
        507049: "FFTS+ exception",
        507050: "FFTS+ trap",
        507900: "internal error of the AI CPU",
        507916: "CCU exception",
    }
)
"""Runtime numbers that say that the kernel went wrong on the device."""

HANGS: Mapping[int, str] = MappingProxyType(
    {
        107019: "wait time-out",
        107020: "task time-out",
        207020: "driver time-out",
        507012: "report time-out",
        507014: "AI Core time-out",
        507017: "AI CPU time-out",
        507034: "vector core time-out",
        507046: "stream synchronisation timed out",
        507047: "event synchronisation timed out",
        507048: "FFTS+ time-out",
        507915: "CCU time-out",
    }
)
"""Runtime numbers that say that the kernel did not come to an end."""

LOST: Mapping[int, str] = MappingProxyType(
    {
        107001: "no such device",
        107002: "no device context",
        107022: "device task aborting",
        107023: "stream aborting",
        107035: "device task aborting",
        200002: "invalid device",
        207004: "no device",
        500004: "driver failure",
        507008: "wrong SoC version",
        507010: "task scheduler lost its heartbeat",
        507033: "device setup failed",
        507051: "message to the device failed",
        507052: "copy to the device failed",
        507053: "device memory error",
        507054: "HBM multi-bit ECC error",
        507055: "suspected device memory error",
        507056: "link error",
        507057: "suspected remote error",
        507899: "driver error",
        507901: "device disconnected",
        507914: "port error",
    }
)
"""Runtime numbers that say that the device is gone or broken, whatever the call was."""

OUT_OF_MEMORY: Mapping[int, str] = MappingProxyType(
    {
        200000: "host memory exhausted",
        207001: "device memory exhausted",
        207018: "device out of memory",
    }
)

TORCH_CODES: Mapping[str, tuple[str, bool]] = MappingProxyType(
    {
        "006": ("oom", False),
        "008": ("unsupported", False),
        "009": ("lost", True),
        "010": ("lost", True),
        "011": ("hang", True),
    }
)
"""The last three digits of torch_npu's own codes (ERR<module><kind>) that are no refusal of the call: memory, something that is
not installed, a device that is not available, system call, time-out."""

_NUMBER = re.compile(r"error[ _]code(?:\s+is\s+|\s*:\s*|\s*=\s*)(\d{5,6})\b", re.IGNORECASE)
_ACLNN = re.compile(r"call (aclnn\w+) failed")
_TORCH = re.compile(r"\bERR([0-9]{2})([0-9]{3})\b")
_DEAD_QUEUE = ("The Inner error is reported as above", "CAN_EXIT", "process exits for this inner error")
_SCHEMA = (
    "Expected a value of type",
    "Unknown keyword argument",
    "positional argument",
    "is missing value for argument",
    "Expected all tensors to be on the same device",
    "Could not run 'npu::",
    "Overflow when unpacking long",
)
_NO_WORD_FOR = (
    "Unsupported acl_type",
    "has not been supported",
    "not in libopapi.so",
    "Failed to find function",
    "Unsupported soc version",
)
_NO_DEVICE = ("No NPUs are available", "Device lost", "device is lost", "FORCE STOP", "UCE ERROR", "HBM MULTI BIT ECC")
_FAULTS: tuple[tuple[str, str], ...] = (
    ("aicore timeout", "hang"),
    ("timeout or trap error", "crash"),
    ("vector core timeout", "hang"),
    ("aicore exception", "crash"),
    ("vector core exception", "crash"),
    ("aicore error", "crash"),
    ("aivec error", "crash"),
)


def of_status(code: int, text: str = "") -> Failure:
    """The failure behind a status number of an aclnn function or of the runtime. ``text``: what aclGetRecentErrMsg said.

    An unknown number of aclnn's own ranges (161xxx, 361xxx, 561xxx) is a refusal; after any other unknown number the process
    is not used again, since nobody knows what state it leaves behind.
    """
    said = relevant(text)
    for table, kind in ((CRASHES, "crash"), (HANGS, "hang"), (LOST, "lost")):
        if code in table:
            return Failure(kind, code, "device", _join(f"{code}: {table[code]}", said), True)
    if code in OUT_OF_MEMORY:
        return Failure("oom", code, "device", _join(f"{code}: {OUT_OF_MEMORY[code]}", said))
    if code // 1000 in (161, 361, 561):
        stage, meaning = STATUSES.get(code, ("tiling", "refused"))
        return Failure("reject", code, stage, said or f"{code}: {meaning}")
    if code // 1000 == 507:
        return Failure("crash", code, "device", _join(f"{code}: runtime failure", said), True)
    return Failure("error", code, None, _join(f"runtime status {code}", said), True)


def of_text(text: str, type_name: str = "RuntimeError") -> Failure:
    """The failure behind an exception of torch or torch_npu: its text and the name of its class."""
    if type_name == "OutOfMemoryError" or "NPU out of memory" in text:
        return Failure("oom", None, "device", _first(text))
    number = _NUMBER.search(text)
    if number is not None and (_ACLNN.search(text) or "NPU function error" in text or "synchronize failed" in text):
        found = of_status(int(number[1]), text[number.end() :])
        return replace(found, stage="launch", fatal=True) if any(mark in text for mark in _DEAD_QUEUE) else found
    if any(mark in text for mark in _DEAD_QUEUE):
        name = re.search(r"current working operator name is (\w+)", text)
        return Failure(
            "reject", None, "launch", f"the task queue died{f' at {name[1]}' if name else ''}: a status came late, without its number", True
        )
    if any(mark in text for mark in _NO_DEVICE):
        return Failure("lost", None, "device", _first(text), True)
    if any(mark in text for mark in _NO_WORD_FOR):
        return Failure("unsupported", None, "torch", _first(text))
    if _ACLNN.search(text) or "acl api failed" in text or "CANN error" in text or _BLOCK.search(text):
        return _without_number(text)
    own = _TORCH.search(text)
    if own is not None:
        kind, fatal = TORCH_CODES.get(own[2], ("reject", False))
        return Failure(kind, None, "torch", _first(text), fatal)
    if any(mark in text for mark in _SCHEMA) or type_name in ("RuntimeError", "TypeError", "ValueError", "NotImplementedError"):
        return Failure("reject", None, "torch", _first(text))
    return Failure("error", None, None, f"{type_name}: {_first(text)}")


def _without_number(text: str) -> Failure:
    """An aclnn failure whose number was left out (older bindings, TORCH_NPU_COMPACT_ERROR_OUTPUT)."""
    lower = text.lower()
    for mark, kind in _FAULTS:
        if mark in lower:
            return Failure(kind, None, "device", relevant(text) or _first(text), True)
    stage = "dtypes" if "EZ1001" in text or "Parameter_Error" in text else "tiling"
    return Failure("reject", None, stage, relevant(text) or _first(text))


# ---- texts ------------------------------------------------------------------------------------

_BLOCK = re.compile(r"^(?:\[PID: ?\d+\][^\n]*?)?\s*(?:AclNN_\w+\()?(E[1-9A-Z][0-9A-Z]?\d{3,4})\b[:)]?", re.MULTILINE)
_FAULT = re.compile(
    r"there is an exception of ([\w+ ]{3,40}? error)(?:(?:(?!there is an exception)[^\n])*?core id is (\d+))?"
    r"(?:(?!there is an exception)[\s\S]){0,400}?error code = (0x[0-9a-fA-F]+)(?:(?!there is an exception)[\s\S]){0,800}?"
    r"errorStr: ([^.\n\[]{3,200})"
)
"""What the device's own report of an exception says (first one): unit, core, error code, reason."""

_OURS = re.compile(r"FusedInferAttentionScore|IncreFlashAttention|PromptFlashAttention|FusedInfer|\bFAI|\bFIA|\bIFA\b|\bPFA\b")
_OTHER_OP = re.compile(
    r"\baclnn(?!Fused|Incre|Prompt)[A-Z]\w+|[Oo]p(?:Type|Name|_type|_name)?\s*[\[(:]\s*(?!Fused|Incre|Prompt)[A-Z][a-z]\w+"
)
_NOISE = re.compile(
    r"\[PID: ?\d+\]\s*[0-9: .-]*|\[(?:FUNC|FILE|LINE|THREAD):[^\]]*\]|\(function \w+\)|^\s*TraceBack \(most recent call last\):.*$|"
    r"^\s*(?:Solution|Possible Cause|\[ERROR\] \d{4}-|\[W\d{4} ).*$|^.*NPU function error: call aclnn\w+ failed, error code is \d+\s*$",
    re.MULTILINE,
)
_HEADS = re.compile(
    r"^\s*(?:CANN error:\s*|Inner Error,?[^.!\n]*[.!]|E[1-9A-Z][0-9A-Z]?\d{3,4}:?\s*|AclNN_\w+\(\w+\):?\s*|\[Error\]:\s*)", re.IGNORECASE
)


def relevant(text: str) -> str:
    """The part of an error text that speaks of this operator, in one short line; "" when there is none.

    aclGetRecentErrMsg gathers whatever was noted since it was last read, also by other operators. Blocks begin with an error
    number (E89999, EZ1001 ...); those that name another operator and not this one are left out.
    """
    fault = _FAULT.search(text)
    if fault is not None:
        core = f" on core {fault[2]}" if fault[2] else ""
        return _clean(f"{fault[1]}{core}, {fault[3]}: {' '.join(fault[4].split())}")
    starts = [m.start() for m in _BLOCK.finditer(text)]
    blocks = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)])] or [text]
    named = [b for b in blocks if _OURS.search(b)]
    chosen = named or [b for b in blocks if not _OTHER_OP.search(b)]
    for block in chosen:
        for line in _NOISE.sub("", block).splitlines():
            line = " ".join(_HEADS.sub("", _HEADS.sub("", line)).split())
            if len(line) > 3 and not _only_marks(line):
                return _clean(line)
    return ""


def _only_marks(line: str) -> bool:
    return not re.search(r"[A-Za-z]{3}", line) or line.startswith(("ERR00100", "call acl api failed"))


def _first(text: str) -> str:
    """The first line that says something, without the call site in front and torch's stamp behind."""
    for line in text.splitlines():
        line = " ".join(line.split())
        if line and not line.startswith(("[ERROR]", "[W", "Exception raised from")):
            return _clean(re.sub(r"^\S+:\S*\.(?:cpp|ts|h):\d+ ", "", line))
    return _clean(" ".join(text.split()))


def _join(meaning: str, said: str) -> str:
    return _clean(f"{meaning}; {said}" if said else meaning)


def _clean(text: str) -> str:
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if len(plain) <= MAX_MESSAGE else plain[: MAX_MESSAGE - 1] + "…"
