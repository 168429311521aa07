"""Standard streams that cannot be written, as on a full disk.

What is remarked on standard error goes nowhere then: a run does not end because nobody can read of it, and its exit code says what it
always says. What is printed on standard output is a result, and that it is lost is told. A reader that goes away (EPIPE) is no such
fault and ends the program as ever.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Remarks:
    """A text stream whose failures are nobody's concern; everything else is that of the real one."""

    def __init__(self, real: TextIO) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def write(self, text: str) -> int:
        """Write a text, or drop it."""
        with self._unconcerned():
            self._real.write(text)
        return len(text)

    def flush(self) -> None:
        """Hand on what was written, or drop it."""
        with self._unconcerned():
            self._real.flush()

    @contextlib.contextmanager
    def _unconcerned(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError:
            drop(self._real)


@contextlib.contextmanager
def unconcerned_stderr() -> Iterator[None]:
    """Standard error never fails in here."""
    real, remarks = sys.stderr, Remarks(sys.stderr)
    sys.stderr = remarks  # type: ignore[assignment]
    try:
        yield
    finally:
        if sys.stderr is remarks:  # click puts its own there when a reader has gone
            sys.stderr = real


def drop(stream: TextIO) -> None:
    """Let everything that a stream still holds, or is given, go nowhere: nothing that writes there fails in its turn."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
