"""The run directory: the log of events, run.json, and whatever reports add. It ignores itself in git.

A log that can no longer be written (a full disk) does not end the run: findings still go to the corpus and to the event
stream, and the summary says what is missing. A log belongs to one run: a new run in a directory that has one sets it
aside (events-1.ndjson), and while a run writes, no other can.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import stat
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

import msgspec

from .events import Event, FindingFound, FindingKept, RunFinished, encode_event
from .plan import Plan
from .whole_files import clear_left, write_whole

BASE = Path(".fiafuzz")
EVENTS, RECORD, IGNORE = "events.ndjson", "run.json", ".gitignore"
EXAMPLES = "hypothesis"
"""Where the explore phase remembers what it has seen, unless it is told to do so elsewhere."""
MAX_LOG_BYTES = 1 << 36
MAX_LINE_BYTES = 64 * 1024 * 1024
"""Lines of a log that are longer are no events."""


class RunDirError(OSError):
    """The run directory cannot be made or written; the text is one line."""


class RunDir:
    """An open run directory. ``problem`` is set once the log could not be written, ``record_problem`` while run.json cannot be: a
    log goes on where there is no room for a second copy of run.json.

    ``keep``: how many bytes of the log that is there a resumed run goes on from, and of how many; None for a new run.
    RunDirError when it cannot be written, or when another run is writing it.
    """

    def __init__(self, path: Path, keep: Optional[tuple[int, int]] = None) -> None:
        self.path = path
        self.problem: Optional[str] = None
        self.record_problem: Optional[str] = None
        try:
            path.mkdir(parents=True, exist_ok=True)
            ignore = path / IGNORE
            if not ignore.exists():
                write_whole(ignore, b"*\n")
            self._log = _opened(path / EVENTS)
            clear_left(path)
            size = os.fstat(self._log.fileno()).st_size
            if keep is not None:
                if size != keep[1]:
                    raise RunDirError(errno.EBUSY, "the log has changed while it was read; try again")
                self._log.truncate(keep[0])
            elif size:
                self._set_aside()
        except OSError as error:
            raise RunDirError(f"{path}: {error.strerror or error}") from None

    def _set_aside(self) -> None:
        """Give the log of an earlier run, and what its explore phase remembered, another name."""
        number = 1
        while os.path.lexists(self.path / f"events-{number}.ndjson"):
            number += 1
        os.rename(self.path / EVENTS, self.path / f"events-{number}.ndjson")
        self._log.close()
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path / EXAMPLES, self.path / f"{EXAMPLES}-{number}")
        self._log = _opened(self.path / EVENTS)

    def write(self, event: Event) -> None:
        """Append one event; findings are on disk when this returns."""
        if self.problem is not None:
            return
        line = encode_event(event)
        try:
            start = self._log.tell()
            written = self._log.write(line)
            if written is not None and written < len(line):  # a full disk takes part of a line: take it back
                with contextlib.suppress(OSError):
                    self._log.truncate(start)
                raise OSError(28, "no space left on device")
            if isinstance(event, (FindingFound, FindingKept, RunFinished)):
                os.fsync(self._log.fileno())
        except OSError as error:
            self.problem = f"{self.path / EVENTS}: {error.strerror or error}"

    def record(self, data: Any) -> None:
        """Write run.json whole (plan, versions, summary once there is one)."""
        try:
            write_whole(self.path / RECORD, msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n")
        except OSError as error:
            self.record_problem = f"{self.path / RECORD}: {error.strerror or error}"
        else:
            self.record_problem = None

    def close(self) -> None:
        """Close the log."""
        with contextlib.suppress(OSError):
            self._log.close()


def _opened(path: Path) -> io.FileIO:
    """A log open for appending, and held: two runs that write one log would both be lost."""
    log = io.FileIO(path, "ab")
    try:
        fcntl.flock(log.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            log.close()
            raise RunDirError(errno.EWOULDBLOCK, "a run is writing there right now") from None
        # File systems without locks: go on without.
    return log


def check_log(fd: int) -> None:
    """OSError when an open file cannot be a log: a pipe would be waited for, a device never ends."""
    state = os.fstat(fd)
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if state.st_size > MAX_LOG_BYTES:
        raise OSError(errno.EFBIG, f"{state.st_size} bytes are over the limit of {MAX_LOG_BYTES}")


def log_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a log: where each ends (bytes from the start) and its text with the line end, if it has one.

    A line over the limit comes as an empty text. OSError when there is no log, or it is no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb", buffering=1 << 20) as log:
        check_log(fd)
        end = 0
        while line := log.readline(MAX_LINE_BYTES):
            end += len(line)
            whole = len(line) < MAX_LINE_BYTES or line.endswith(b"\n")
            while not line.endswith(b"\n") and len(line) == MAX_LINE_BYTES:
                line = log.readline(MAX_LINE_BYTES)
                end += len(line)
            yield end, line if whole else b""


def run_directory(plan: Plan, now: datetime) -> Path:
    """Where a run writes: ``plan.out``, or .fiafuzz/runs/<start>-<seed>, with a number when that is taken."""
    if plan.out is not None:
        return Path(plan.out)
    base = BASE / "runs" / f"{now.strftime('%Y%m%d-%H%M%S')}-{plan.seed}"
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}.{number}"), number + 1
    return path


def utc_now() -> datetime:
    """The time now, in UTC."""
    return datetime.now(timezone.utc)
