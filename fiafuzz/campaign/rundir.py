"""The run directory: the log of events, run.json, and whatever reports add. It ignores itself in git.

A log that can no longer be written (a full disk) does not end the run: findings still go to the corpus and to the event
stream, and the summary says what is missing.
"""

from __future__ import annotations

import contextlib
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

import msgspec

from .corpus import write_whole
from .events import Event, FindingFound, FindingKept, RunFinished, encode_event
from .plan import Plan

BASE = Path(".fiafuzz")
EVENTS, RECORD, IGNORE = "events.ndjson", "run.json", ".gitignore"


class RunDirError(OSError):
    """The run directory cannot be made or written; the text is one line."""


class RunDir:
    """An open run directory. ``problem`` is set once the log could not be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: Optional[str] = None
        try:
            path.mkdir(parents=True, exist_ok=True)
            ignore = path / IGNORE
            if not ignore.exists():
                ignore.write_text("*\n", encoding="ascii")
            self._log = open(path / EVENTS, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise RunDirError(f"{path}: {error.strerror or error}") from None

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
            self.problem = self.problem or f"{self.path / RECORD}: {error.strerror or error}"

    def close(self) -> None:
        """Close the log."""
        with contextlib.suppress(OSError):
            self._log.close()


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
