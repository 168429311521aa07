"""Files that are there whole or not at all: written under a temporary name in the same directory, flushed, and put in place.

A program that is killed in between leaves the temporary file. Its name says who was writing it (boot, process namespace, process),
so that the next program here can take away what a dead one has left, and nothing that another is still writing, be it on another
machine that shares the directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from .guard import start_of

SUFFIX = ".tmp"
_LEFT = re.compile(r"\..+\.([0-9a-f]{8})-([0-9]{1,10})-([0-9]{1,20})-[a-z0-9_]+\.tmp", re.ASCII)


def write_once(folder: Path, name: str, data: bytes) -> Path:
    """Write a new file whole or not at all. FileExistsError when the name is taken, OSError when it cannot be
    written."""
    target = folder / name
    with _written(target, data) as temporary:
        try:
            os.link(temporary, target)  # fails, and never replaces, when another campaign was first
        except FileExistsError:
            raise
        except OSError:  # file systems without hard links
            if target.exists():
                raise FileExistsError(f"{target} exists") from None
            os.replace(temporary, target)
    sync_directory(folder)
    return target


def write_whole(target: Path, data: bytes) -> None:
    """Replace a file whole or not at all. OSError when it cannot be written."""
    with _written(target, data) as temporary:
        os.replace(temporary, target)


@contextlib.contextmanager
def _written(target: Path, data: bytes) -> Iterator[str]:
    """The data on disk, under a temporary name beside the target, which is gone afterwards."""
    fd, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.{_writer()}-", suffix=SUFFIX)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def sync_directory(folder: Path) -> None:
    """Flush the names in a directory to disk, where that can be done."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def clear_left(folder: Path) -> list[str]:
    """Remove the temporary files that programs which are dead by now have left in a directory; returns their names. Files of
    living ones, of other machines, and of anybody else stay; a link is not followed. Never raises."""
    removed: list[str] = []
    try:
        names = [] if folder.is_symlink() else os.listdir(folder)
    except OSError:
        return removed
    for name in names:
        found = _LEFT.fullmatch(name)
        if found is None or found[1] != _here() or start_of(int(found[2])) == found[3].encode():
            continue
        with contextlib.suppress(OSError):
            os.unlink(folder / name)
            removed.append(name)
    return removed


def _writer() -> str:
    """Names this process for good."""
    return f"{_here()}-{os.getpid()}-{start_of(os.getpid()).decode()}"


@lru_cache(maxsize=1)
def _here() -> str:
    """Eight hex digits for where numbers of processes are those of this process: the boot of the machine and the namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return hashlib.blake2b(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode(), digest_size=4).hexdigest()
    except OSError:  # then nothing can be told of processes either
        return hashlib.blake2b(os.urandom(8), digest_size=4).hexdigest()
