"""Stopping: a flag that Ctrl-C, SIGTERM or the caller sets and that every loop of a campaign looks at.

The first signal asks the run to end in good order, with everything found so far on disk; a second one interrupts at
once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Optional


class StopFlag:
    """Set once; ``reason`` says by what ("SIGINT", "SIGTERM", "caller")."""

    def __init__(self) -> None:
        self.reason: Optional[str] = None

    def set(self, reason: str) -> None:
        """Ask for the end; the first reason stays."""
        if self.reason is None:
            self.reason = reason

    def __bool__(self) -> bool:
        return self.reason is not None


@contextmanager
def signals_stop(flag: StopFlag) -> Iterator[None]:
    """Let SIGINT and SIGTERM set the flag while this lasts; a second signal raises KeyboardInterrupt. In other threads
    than the main one, signals are none of our business."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Optional[FrameType]) -> None:
        if flag:
            raise KeyboardInterrupt
        flag.set(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, old if old is not None else signal.SIG_DFL)
