"""The baseline: signatures that are accepted as they are now, so that only what is new fails a run.

    {"fiafuzz_baseline": 1, "signatures": {"F101-0123456789": {"title": ..., "backend": ..., "profile": ..., "since": ...}}}

A small JSON file that can be committed and reviewed. It is replaced whole or not at all; of two runs that change it at
the same time neither loses what the other added.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from .corpus import MAX_ENTRY_BYTES, Entry, is_entry_id, read_regular
from .results import clean
from .whole_files import write_whole

BASELINE_VERSION = 1


class BaselineError(ValueError):
    """A baseline file that cannot be read; the text is one line."""


class Accepted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One accepted signature, told so that a person can tell what it is. ``since``: when the finding was first seen."""

    title: str
    backend: str
    profile: str
    since: str


class _File(msgspec.Struct, forbid_unknown_fields=True):
    fiafuzz_baseline: int
    signatures: dict[str, Accepted]


def accepted(entry: Entry) -> Accepted:
    """An entry as a line of a baseline."""
    return Accepted(entry.title, entry.signature.backend, entry.profile, entry.first_seen)


def read_baseline(path: Path) -> dict[str, Accepted]:
    """The signatures of a baseline file. BaselineError when it is not there or is none."""
    try:
        data = read_regular(path, MAX_ENTRY_BYTES)
        found = msgspec.json.decode(data, type=_File)
    except OSError as error:
        raise BaselineError(f"{path}: {error.strerror or error}") from None
    except RecursionError:
        raise BaselineError(f"{path}: nested too deeply") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path}: {clean(' '.join(str(error).split()), 300)}") from None
    if found.fiafuzz_baseline != BASELINE_VERSION:
        raise BaselineError(f"{path}: baseline version {found.fiafuzz_baseline} is not {BASELINE_VERSION}")
    for name in found.signatures:
        if not is_entry_id(name):
            raise BaselineError(f"{path}: signature {clean(name, 40)!r} is not of the form F101-0123456789")
    return found.signatures


def change_baseline(path: Path, add: Mapping[str, Accepted], drop: frozenset[str]) -> tuple[int, int]:
    """Add and drop signatures; returns how many were added and dropped. The file is made when it is not there, and left
    alone when nothing changes. BaselineError or OSError when that fails."""
    with _alone(path.parent):
        try:
            before = read_baseline(path)
        except BaselineError:
            if os.path.lexists(path):
                raise
            before = {}
        after = {**add, **before}
        after = {name: after[name] for name in sorted(after) if name not in drop}
        if after != before or not path.exists():
            data = msgspec.json.encode(_File(BASELINE_VERSION, after))
            write_whole(path, msgspec.json.format(data, indent=2) + b"\n")
    return len(after.keys() - before.keys()), len(before.keys() - after.keys())


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a directory, where its file system has locks."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
