"""Backends with faults that reach beyond their own call: a damaged heap, exceptions that end generators, answers of a wrong kind, clocks
that jump. See nasty.py."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from fiafuzz.backends.protocol import Outcome

from .nasty import Nasty


def _corrupt_heap(outputs: dict[str, Any]) -> Optional[Outcome]:
    """Write behind blocks of the C heap and free them: glibc notices at this or a later call, in whatever code."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(ctypes.c_size_t(1032)) for _ in range(64)]
    for block in blocks:
        ctypes.memset(block - 8, 0x41, 1056)
    for block in blocks:
        libc.free(block)
    return None


def _corrupt_objects(outputs: dict[str, Any]) -> Optional[Outcome]:
    """Overwrite the head of an object of the interpreter."""
    victim = [object() for _ in range(8)]
    ctypes.memset(id(victim), 0xFF, 64)
    return Outcome("ok", {str(v): v for v in victim})


def _raise(error: BaseException) -> Callable[[dict[str, Any]], Optional[Outcome]]:
    def deed(outputs: dict[str, Any]) -> Optional[Outcome]:
        raise error

    return deed


def _unpicklable(outputs: dict[str, Any]) -> Optional[Outcome]:
    """An outcome full of things that no wire takes."""
    return Outcome("error", code=lambda: 1, stage=threading.Lock(), message=sys)  # type: ignore[arg-type]


def _lying_kind(outputs: dict[str, Any]) -> Optional[Outcome]:
    return Outcome("\x1b[31mowned")


def _thread_that_raises(outputs: dict[str, Any]) -> Optional[Outcome]:
    """A thread of the backend's own dies by an exception; the call itself is fine."""
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    return None


def _close_everything(outputs: dict[str, Any]) -> Optional[Outcome]:
    """Native code that closes descriptors which are not its own."""
    os.closerange(0, 256)
    return None


def _clock_back(outputs: dict[str, Any]) -> Optional[Outcome]:
    """The wall clock of the process jumps to another year."""
    time.time = lambda: 86_400.0
    return None


DEEDS: dict[str, Callable[[dict[str, Any]], Optional[Outcome]]] = {
    "heap": _corrupt_heap,
    "objects": _corrupt_objects,
    "generator-exit": _raise(GeneratorExit()),
    "stop-iteration": _raise(StopIteration("early")),
    "recursion": _raise(RecursionError("deep")),
    "unpicklable": _unpicklable,
    "lying-kind": _lying_kind,
    "thread": _thread_that_raises,
    "close": _close_everything,
    "clock": _clock_back,
}


def __getattr__(name: str) -> Any:
    """``make_NAME`` is the factory of a backend, with underscores for its dashes."""
    wanted = name.removeprefix("make_").replace("_", "-")
    if name.startswith("make_") and wanted in DEEDS:
        return lambda profile=None: Nasty(f"fault-{wanted}", DEEDS[wanted], profile)
    raise AttributeError(name)


def install(site: Path) -> None:
    """Write the metadata of a distribution whose entry points are these backends."""
    info = site / "fiafuzz_faults-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fiafuzz-faults\nVersion: 1.0\n", encoding="ascii")
    lines = [f"fault-{name} = tests.robustness.fault_backends:make_{name.replace('-', '_')}" for name in DEEDS]
    (info / "entry_points.txt").write_text("[fiafuzz.backends]\n" + "\n".join(lines) + "\n", encoding="ascii")
