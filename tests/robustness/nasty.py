"""Backends that behave badly, offered like any third-party backend through an entry point (see plugin.py).

They need no torch, so workers start at once. Where they behave, outputs are those of the reference. The bad thing
happens only to cases with an odd number of key columns, so that there is something to shrink.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Optional

import numpy as np

from fiafuzz.backends.protocol import BackendInfo, Outcome
from fiafuzz.model.case import Case
from fiafuzz.model.codecs import encode
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import predict

FLOOD_BYTES = 64 << 20


class Worse(BaseException):
    """Not an Exception."""


class Unprintable(Exception):
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def _computed(case: Case, scene: Scene, tensors: Any, outputs: dict[str, Any]) -> None:
    from oracles.reference import reference

    expected = reference(case, tensors, scene=scene)
    for name, buffer in outputs.items():
        spec = scene.tensor(name)
        assert spec is not None
        buffer[...] = encode(spec.dtype, np.nan_to_num(expected.outputs[name], posinf=np.inf, neginf=-np.inf))


class Nasty:
    """Right, except for what ``deed`` does when the key axis is odd."""

    def __init__(self, name: str, deed: Callable[[dict[str, Any]], Optional[Outcome]], profile: Optional[str]) -> None:
        self.name, self.deed, self.profile = name, deed, profile

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(self.name, f"behaves badly: {self.name}", "own", {"nasty": "1"})

    def cannot_express(self, scene: Scene) -> Optional[str]:
        return None

    def run(self, case: Case, scene: Scene, tensors: Any, outputs: dict[str, Any]) -> Outcome:
        found = predict(case, self.profile, scene=scene)
        if found.verdict == "reject":
            return Outcome("reject", code=min(found.codes), stage=found.stage)
        if (scene.KV_S or 0) % 2:
            outcome = self.deed(outputs)
            if outcome is not None:
                return outcome
        _computed(case, scene, tensors, outputs)
        return Outcome("ok", outputs)


def _die(number: int) -> Callable[[dict[str, Any]], Optional[Outcome]]:
    def deed(outputs: dict[str, Any]) -> Optional[Outcome]:
        os.kill(os.getpid(), number)
        time.sleep(60)
        return None

    return deed


def _wild_read(outputs: dict[str, Any]) -> Optional[Outcome]:
    ctypes.string_at(0)
    return None


def _leave(outputs: dict[str, Any]) -> Optional[Outcome]:
    os._exit(7)


def _sleep_deaf(outputs: dict[str, Any]) -> Optional[Outcome]:
    """Hang in native code, deaf to every signal that can be blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
    libc = ctypes.CDLL(None)
    while True:
        libc.sleep(3600)


def _flood(outputs: dict[str, Any]) -> Optional[Outcome]:
    line = b"native noise \x1b[31m\xff\x00" * 4096
    for fd in (1, 2):
        for _ in range(FLOOD_BYTES // 2 // len(line)):
            os.write(fd, line)
    return None


def _eat(outputs: dict[str, Any]) -> Optional[Outcome]:
    held = []
    while len(held) < 512:
        held.append(np.ones(1 << 24, np.uint8))
    return None


def _eat_natively(outputs: dict[str, Any]) -> Optional[Outcome]:
    """Take memory without noticing that there is none: writes through the null pointer that malloc gives in the end."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    for _ in range(512):
        libc.memset(libc.malloc(ctypes.c_size_t(1 << 24)), 1, 1 << 24)
    return None


def _raise(error: BaseException) -> Callable[[dict[str, Any]], Optional[Outcome]]:
    def deed(outputs: dict[str, Any]) -> Optional[Outcome]:
        raise error

    return deed


def _leave_a_child(outputs: dict[str, Any]) -> Optional[Outcome]:
    """A child keeps every pipe of the worker open, and the worker dies."""
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    os._exit(9)


def _write_nonsense(outputs: dict[str, Any]) -> Optional[Outcome]:
    """Something writes into the result pipe."""
    os.write(int(sys.argv[2]), b"\x07\x00\x00\x00garbage")
    time.sleep(60)
    return None


def _once(outputs: dict[str, Any]) -> Optional[Outcome]:
    """Dies once and never again: a flaky crash."""
    path = os.environ["FIAFUZZ_TEST_ONCE"]
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return None
    os.abort()


def _wrong_shape(outputs: dict[str, Any]) -> Optional[Outcome]:
    return Outcome("ok", {name: array.reshape(-1) for name, array in outputs.items()})


def _huge_message(outputs: dict[str, Any]) -> Optional[Outcome]:
    return Outcome("error", message="x\x1b]0;title\x07" * (1 << 20))


DEEDS: dict[str, Callable[[dict[str, Any]], Optional[Outcome]]] = {
    "good": lambda outputs: None,
    "sigkill": _die(signal.SIGKILL),
    "sigsegv": _wild_read,
    "abort": lambda outputs: os.abort(),
    "exit": _leave,
    "hang": _sleep_deaf,
    "flood": _flood,
    "memory": _eat,
    "native-memory": _eat_natively,
    "base-exception": _raise(Worse("worse than an exception")),
    "system-exit": _raise(SystemExit(3)),
    "keyboard-interrupt": _raise(KeyboardInterrupt()),
    "unprintable": _raise(Unprintable()),
    "child": _leave_a_child,
    "nonsense": _write_nonsense,
    "once": _once,
    "wrong-shape": _wrong_shape,
    "huge-message": _huge_message,
    "nothing-returned": lambda outputs: "done",  # type: ignore[dict-item,return-value]
    "lost": lambda outputs: Outcome("lost", message="device 0 does not answer"),
}


def _factory(name: str) -> Callable[[Optional[str]], Nasty]:
    return lambda profile=None: Nasty(f"nasty-{name}", DEEDS[name], profile)


def __getattr__(name: str) -> Any:
    """``make_NAME`` is the factory of a backend, with underscores for its dashes."""
    if name.startswith("make_"):
        wanted = name[5:].replace("_", "-")
        if wanted == "does-not-load":
            os.abort()
        if wanted == "refuses":
            return _refuses
        if wanted in DEEDS:
            return _factory(wanted)
    raise AttributeError(name)


def _refuses(profile: Optional[str] = None) -> Nasty:
    from fiafuzz.backends.protocol import BackendUnavailable

    raise BackendUnavailable("no such device; plug one in")


NAMES: tuple[str, ...] = (*DEEDS, "does-not-load", "refuses")
