"""Processes that belong to a worker, and their end: whatever a worker starts carries the worker's mark in its environment.

Process groups alone do not do: a child may leave the group of its worker. So workers are started with a mark (a random
word) in their environment, which every descendant inherits; what carries the mark, or descends from what does, is ended
with the worker. A guard, a small process of its own that waits for the driver's end, does the same when the driver is
killed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

from . import guard

WORKER_MARK = "FIAFUZZ_WORKER"
MAX_OFFSPRING = 256
"""Processes that one worker may have at a time: compilers of operators start dozens, a fork bomb any number."""
SWEEP_SECONDS = 5.0
JUMP = 200
"""Tasks that the machine must have gained before anybody counts processes."""
LONG_SECONDS = 2.0
"""A case that takes longer is looked at all the same, as often as that."""


def new_mark() -> str:
    """A mark that nothing else carries."""
    return secrets.token_hex(12)


def carriers(mark: str) -> list[int]:
    """Living processes that carry a worker's mark (their own, or inherited)."""
    return guard.carriers(f"{WORKER_MARK}={mark}".encode())


def end_offspring(mark: str) -> bool:
    """Kill everything that carries a mark, again and again until nothing does; whether it succeeded in time."""
    end = monotonic() + SWEEP_SECONDS
    while True:
        left = carriers(mark)
        if not left:
            return True
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if monotonic() >= end:
            return False
        sleep(0.005)


class Crowds:
    """Notices that a worker starts more and more processes. Counting them is dear, so it is done only when the number of
    tasks of the whole machine has jumped, or a case takes long: what ends elsewhere meanwhile can hide a jump."""

    def __init__(self) -> None:
        self._calm = tasks()
        self._jump = JUMP
        self._looked = monotonic()

    def grown(self, busy: float) -> bool:
        """Whether it is time to count: the machine has gained many tasks since it was calm, or the case that has been in work for
        longest (``busy`` seconds) takes long."""
        now = tasks()
        self._calm = min(self._calm, now) if now else self._calm
        return now - self._calm > self._jump or min(busy, monotonic() - self._looked) > LONG_SECONDS

    def calm_down(self, largest: int) -> None:
        """What is there now is taken as normal. ``largest``: processes of the worker that has most of them; the next look comes
        before it can have too many."""
        self._calm = tasks()
        self._jump = max(1, min(JUMP, MAX_OFFSPRING - largest))
        self._looked = monotonic()


def tasks() -> int:
    """Number of tasks of the machine; 0 when it cannot be read."""
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            return int(file.read().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return 0


_guarded: dict[int, str] = {}
"""Process id of a driver (this one, unless it was forked) -> the mark that its guard looks for."""


def driver_mark() -> str:
    """The mark that everything carries which this process starts as a worker. The first call starts the guard."""
    pid = os.getpid()
    if pid not in _guarded:
        _guarded.clear()
        _guarded[pid] = new_mark()
        _start_guard(_guarded[pid])
    return _guarded[pid]


def guard_directory(directory: str) -> None:
    """Have a temporary directory removed when this process ends, however it ends."""
    _start_guard(driver_mark(), directory)


def _start_guard(mark: str, *directories: str) -> None:
    """Start the guard, detached. It holds the reading end of a pipe whose other end dies with this process. Without a guard
    workers still die with their driver; only what they started might not."""
    read_end, write_end = os.pipe()
    script = str(Path(guard.__file__))
    try:
        launcher = subprocess.Popen(
            [sys.executable, "-I", "-S", script, str(read_end), mark, *directories],
            pass_fds=(read_end,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            start_new_session=True,
        )
        launcher.wait(30.0)
    except (OSError, subprocess.SubprocessError):
        os.close(write_end)
    finally:
        os.close(read_end)
