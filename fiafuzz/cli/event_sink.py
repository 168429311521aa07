"""The stream of events for programs that follow a run while it goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Any, BinaryIO

import click

from .main import UserError


class EventSink:
    """Writes each event to a file or to standard output ("-") as it comes, one JSON object a line; None: nowhere.

    A reader that goes away, or a disk that is full, ends the stream and not the run. UserError when the file cannot be
    opened.
    """

    def __init__(self, target: str | None) -> None:
        self.target = target
        self._file: BinaryIO | None = None

    def __enter__(self) -> EventSink:
        if self.target == "-":
            self._file = sys.stdout.buffer
        elif self.target is not None:
            try:
                self._file = open(self.target, "wb", buffering=0)
            except OSError as error:
                raise UserError(f"{self.target}: {error.strerror or error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None and self.target != "-":
            with contextlib.suppress(OSError):
                self._file.close()

    @staticmethod
    def _write(file: BinaryIO, line: bytes) -> None:
        written = file.write(line)
        if written < len(line):  # a full disk takes part of a line: take it back
            with contextlib.suppress(OSError):
                file.seek(-written, os.SEEK_CUR)
                file.truncate()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.flush()

    def take(self, event: Any) -> None:
        """Write one event."""
        if self._file is None:
            return
        from fiafuzz.campaign.events import encode_event

        try:
            self._write(self._file, encode_event(event))
        except OSError as error:
            self._file = None
            if self.target == "-":
                # Whatever else is written there must not fail in its turn: nobody reads it any more.
                with contextlib.suppress(OSError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            click.echo(f"fiafuzz: the stream of events to {self.target} ends here: {error.strerror or error}", err=True)
