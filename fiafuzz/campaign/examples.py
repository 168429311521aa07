"""The example database of the explore phase: what Hypothesis remembers of failures, so that it tries them first.

By default it lies in the run directory and is only written, so that the same seed gives the same cases; another run can
be given it. A fleet shares one: a directory, or Redis. A shared database never fails a run: what cannot be read or
written is told once, and the phase goes on without. A run does not take back what it has saved itself: it has looked
into that already.

Examples are Hypothesis' own bytes, which mean something only to the same strategy; keys therefore carry what the
strategy depends on. What a round of the phase saves is handed on when the round is over: a killed run has either the
whole round or nothing of it, and begins that round again.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Optional, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase, ReadOnlyDatabase

from .corpus import read_regular
from .plan import Plan
from .results import clean, in_words
from .whole_files import clear_left, write_whole

SECONDS = 3.0
"""How long Redis may take to answer before the phase goes on without it."""
MAX_EXAMPLE_BYTES = 1 << 20
MAX_EXAMPLES = 2000
"""Examples that one round takes from a shared database at most."""
DEFAULT_PREFIX = "fiafuzz:"
PASSWORD = "FIAFUZZ_REDIS_PASSWORD"

T = TypeVar("T")


class Examples(ExampleDatabase):
    """A database in front of the real one: changes wait for ``commit``. ``reads``: whether the examples of other runs are
    used. ``problem`` says, once, why the real one is not used any more."""

    def __init__(self, inner: ExampleDatabase, key: bytes, *, reads: bool = True, problem: Optional[str] = None) -> None:
        super().__init__()
        self.problem = problem
        self._reads = reads
        self._mine: set[tuple[bytes, bytes]] = set()
        self._inner: Optional[ExampleDatabase] = inner
        self._key = key
        self._saved: dict[bytes, dict[bytes, None]] = {}
        self._dropped: dict[bytes, dict[bytes, None]] = {}

    def save(self, key: bytes, value: bytes) -> None:
        """Remember an example from the next commit on."""
        self._saved.setdefault(key, {})[value] = None
        self._dropped.get(key, {}).pop(value, None)

    def delete(self, key: bytes, value: bytes) -> None:
        """Forget an example from the next commit on."""
        self._dropped.setdefault(key, {})[value] = None
        self._saved.get(key, {}).pop(value, None)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Examples of other runs, and those of this round."""

        def read(inner: ExampleDatabase) -> list[bytes]:
            small = (v for v in inner.fetch(self._key + key) if len(v) <= MAX_EXAMPLE_BYTES)
            return list(islice(small, MAX_EXAMPLES))

        dropped = self._dropped.get(key, {})
        there: list[bytes] = self._guarded(read, list[bytes]()) if self._reads else []
        others = (v for v in there if v not in dropped and (key, v) not in self._mine)
        return list(dict.fromkeys([*others, *self._saved.get(key, {})]))

    def commit(self) -> None:
        """Hand on what has changed."""
        changes = [(key, value, False) for key, values in self._dropped.items() for value in values]
        changes += [(key, value, True) for key, values in self._saved.items() for value in values]
        if self._reads:
            self._mine.update((key, value) for key, value, keep in changes if keep)
        self._saved, self._dropped = {}, {}

        def write(inner: ExampleDatabase) -> None:
            for key, value, keep in changes:
                (inner.save if keep else inner.delete)(self._key + key, value)

        if changes:
            self._guarded(write, None)

    def _guarded(self, use: Callable[[ExampleDatabase], T], otherwise: T) -> T:
        """Use the real database; once that fails, it is left alone for the rest of the run."""
        if self._inner is None:
            return otherwise
        try:
            return use(self._inner)
        except Exception as error:
            self._inner = None
            self.problem = _why(error)
            return otherwise


def _why(error: Exception) -> str:
    """What a database failed with, in one line: without the bytes of an example that a client of Redis quotes before it comes to the
    point, and with the name of the setting where the server wants a password."""
    if any(kind.__name__ == "AuthenticationError" for kind in type(error).__mro__):
        wrong = "does not take the password in" if os.environ.get(PASSWORD) else "wants a password; give it in"
        return f"the server {wrong} {PASSWORD}"
    text = in_words(error).replace("\n", " ")
    return clean(re.sub(r"Command # \d+ \(.*\) of pipeline caused error: ", "", text), 200)


class _Folder(DirectoryBasedExampleDatabase):
    """A directory that others may write to as well: only regular files of a sensible size are read, and each is written whole or
    not at all."""

    def save(self, key: bytes, value: bytes) -> None:
        """Keep an example. OSError when it cannot be written.

        What it overrides says nothing then, and takes a detour through the directory of temporary files: from there a file comes to
        another file system in pieces, and is for the eyes of one user only.
        """
        target = self._value_path(key, value)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            there = read_regular(target, MAX_EXAMPLE_BYTES) == value
        except (OSError, ValueError):
            there = False
        if not there:
            clear_left(target.parent)
            write_whole(target, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """All examples of a key."""
        folder = self._key_path(key)
        try:
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in sorted(n for n in names if not n.startswith(".")):  # others may be writing
            try:
                yield read_regular(folder / name, MAX_EXAMPLE_BYTES)
            except (OSError, ValueError):
                continue


def key_of(plan: Plan, backend: str, profile: str) -> bytes:
    """What examples depend on beside the test function: strategy and candidate."""
    parts = ("1", backend, profile, plan.mode, ",".join(plan.select), ",".join(plan.ignore))
    return "/".join(parts).encode() + b"/"


def open_examples(plan: Plan, backend: str, profile: str, local: Path) -> Optional[Examples]:
    """The example database that a plan names; ``local`` is the directory that it is in by default. None for "none"."""
    where, key = plan.examples, key_of(plan, backend, profile)
    if where == "none":
        return None
    if not where:
        return Examples(_Folder(local), key, reads=False)
    if urlsplit(where).scheme in ("redis", "rediss"):
        return _redis(where, key)
    folder = Path(where.removeprefix("file://"))
    problem = _unwritable(folder)
    inner: ExampleDatabase = _Folder(folder)
    return Examples(ReadOnlyDatabase(inner) if problem else inner, key, problem=problem)


def _unwritable(folder: Path) -> Optional[str]:
    """Why nothing can be written into a directory (it is made when it is missing); None when it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".tmp"):
            return None
    except OSError as error:
        return f"{folder} is only read: {error.strerror or error}"


def _redis(url: str, key: bytes) -> Examples:
    """A database in Redis. Nothing is asked of the server yet."""
    from hypothesis.extra.redis import RedisExampleDatabase
    from redis import Redis

    parts = urlsplit(url)
    query = parse_qs(parts.query)
    prefix = query.pop("prefix", [DEFAULT_PREFIX])[-1]
    plain = urlunsplit(parts._replace(query=urlencode(query, doseq=True)))
    limits: dict[str, Any] = {"socket_timeout": SECONDS, "socket_connect_timeout": SECONDS}
    password = os.environ.get(PASSWORD)
    if password:
        limits["password"] = password
    client = Redis.from_url(plain, **limits)
    return Examples(RedisExampleDatabase(client, key_prefix=prefix.encode(), listener_channel=f"{prefix}changes"), key)
