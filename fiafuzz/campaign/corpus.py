"""The corpus: one reviewable JSON file per signature, in plain directories that can be committed.

    corpus/found/        what campaigns write, one file per signature, never changed afterwards (but see unfinished.py)
    corpus/regressions/  entries (moved here by people) that must stay fixed
    corpus/imported/     cases of other suites
    corpus/known.toml    known issues (known.py)

Two campaigns, or two machines, may shrink one fault to different calls. Their entries have the same id; the second is
kept under a longer name (ID.CONTENT.json) where both are wanted.

Entries are written to a temporary name in the same directory, flushed to disk and then linked into place, so that a
reader never sees half a file and of two campaigns that find the same thing one wins. Files are read as data from a
stranger: size limits, no links followed, ids that cannot leave the directory; a malformed entry is reported in one line
and left where it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional, Union

import msgspec

from fiafuzz.model.case import Case, CaseError, case_to_dict, decode_case

from .results import Element, Picture, clean
from .triage import Signature
from .verdict import Foreseen
from .whole_files import clear_left, sync_directory, write_once, write_whole

ENTRY_VERSION = 1
MAX_ENTRY_BYTES = 16 * 1024 * 1024
MAX_ENTRIES = 100_000
MAX_BEFORE = 64
"""Cases that an entry may have before its own."""
FOUND = "found"
FOLDERS: tuple[str, ...] = ("regressions", FOUND, "imported")
_ID = re.compile(r"F[0-9]{3}-[0-9a-f]{10}")


class CorpusError(OSError):
    """The corpus cannot be read or written at all; the text is one line."""


class Got(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the backend did: kind of outcome, status, stage, text, largest error as a share of what is allowed, worst
    elements, pictures of the errors."""

    kind: str
    code: Optional[int] = None
    stage: Optional[str] = None
    text: str = ""
    signal: Optional[int] = None
    error_ratio: float = 0.0
    worst: tuple[Element, ...] = ()
    pictures: tuple[Picture, ...] = ()


class Entry(msgspec.Struct, frozen=True):
    """One kept finding. ``case`` is the shrunk case, ``original`` the digest of the case as it was found. ``before``: cases that the
    same process must run first, in this order, for it to fail (F304). ``interrupted``: the run was asked to stop before it was
    shrunk; when the run is resumed, the shrunk one takes its place."""

    id: str
    title: str
    signature: Signature
    profile: str
    case: Case
    original: str
    expected: Foreseen
    got: Got
    differences: tuple[str, ...]
    environment: dict[str, str]
    seed: int
    first_seen: str
    reproduce: str
    standard: str = ""
    runs: int = 0
    fiafuzz_entry: int = ENTRY_VERSION
    before: tuple[Case, ...] = ()
    interrupted: bool = False


class BadEntry(msgspec.Struct, frozen=True):
    """A file that is no entry: where it stands and why, in one line."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


_decoder = msgspec.json.Decoder(Entry, strict=True)


def is_entry_id(text: str) -> bool:
    """Whether a text has the form of an id."""
    return _ID.fullmatch(text) is not None


def encode_entry(entry: Entry) -> bytes:
    """The entry as the JSON text of its file: sorted where order means nothing, two blanks of indentation."""
    data = msgspec.to_builtins(entry)
    data["case"] = case_to_dict(entry.case)
    before = [case_to_dict(case) for case in entry.before]
    if before:
        data["before"] = before
    else:
        del data["before"]  # entries of single calls are written as they always were
    if not entry.interrupted:
        del data["interrupted"]
    ordered = {"fiafuzz_entry": data.pop("fiafuzz_entry"), **data}
    return msgspec.json.format(msgspec.json.encode(ordered), indent=2) + b"\n"


def decode_entry(data: bytes) -> Entry:
    """Read one entry. ValueError in one line when it is none."""
    if len(data) > MAX_ENTRY_BYTES:
        raise ValueError(f"over the limit of {MAX_ENTRY_BYTES} bytes")
    try:
        raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        if "fiafuzz_entry" not in raw:
            raise ValueError("not a corpus entry (no field fiafuzz_entry)")
        version = msgspec.json.decode(raw["fiafuzz_entry"])
        if version != ENTRY_VERSION:
            raise ValueError(f"entry version {version!r} is not {ENTRY_VERSION}")
        if "case" in raw:
            decode_case(bytes(raw["case"]))  # the strict reader, with the limits of a case and the JSON path of a fault
        _check_before(raw)
        entry = _decoder.decode(data)
    except CaseError as error:
        raise ValueError(f"case: {error}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(clean(" ".join(str(error).split()), 300)) from None
    if not _ID.fullmatch(entry.id):
        raise ValueError(f"id {clean(entry.id, 40)!r} is not of the form F101-0123456789")
    return entry


def _check_before(raw: Mapping[str, msgspec.Raw]) -> None:
    """ValueError for cases before the entry's own that cannot be read, or are too many."""
    cases = msgspec.json.decode(raw["before"], type=list[msgspec.Raw]) if "before" in raw else []
    if len(cases) > MAX_BEFORE:
        raise ValueError(f"{len(cases)} cases before its own are over the limit of {MAX_BEFORE}")
    for place, case in enumerate(cases):
        try:
            decode_case(bytes(case))
        except CaseError as error:
            raise ValueError(f"before[{place}]: {error}") from None


class Corpus:
    """A corpus directory. Reading never creates anything; the first ``add`` makes the directory."""

    def __init__(self, root: Union[str, Path]) -> None:
        self.root = Path(root)

    # ---- reading ------------------------------------------------------------------------------

    def entries(self) -> Iterator[Union[Entry, BadEntry]]:
        """All entries, folder by folder, by file name; what is no entry comes as BadEntry. CorpusError when the root
        cannot be read."""
        for _, found in self.files():
            yield found

    def files(self) -> Iterator[tuple[Path, Union[Entry, BadEntry]]]:
        """All entries with their files, as ``entries`` gives them."""
        if not self.root.exists():
            return
        if not self.root.is_dir():
            raise CorpusError(f"{self.root}: not a directory")
        for folder in FOLDERS:
            yield from self._folder(self.root / folder)

    def _folder(self, folder: Path) -> Iterator[tuple[Path, Union[Entry, BadEntry]]]:
        try:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                yield folder, BadEntry(str(folder), "not a directory (links are not followed)")
                return
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            return
        except OSError as error:
            yield folder, BadEntry(str(folder), error.strerror or str(error))
            return
        for name in names[:MAX_ENTRIES]:
            if name.endswith(".json") and not name.startswith("."):
                yield folder / name, read_entry(folder / name)
        if len(names) > MAX_ENTRIES:
            yield folder, BadEntry(str(folder), f"{len(names)} files; those after the first {MAX_ENTRIES} are not read")

    def find(self, entry_id: str) -> Optional[Entry]:
        """The entry of that id, None without one."""
        if not _ID.fullmatch(entry_id):
            return None
        for folder in FOLDERS:
            found = read_entry(self.root / folder / f"{entry_id}.json")
            if isinstance(found, Entry) and found.id == entry_id:
                return found
        return next((e for e in self.entries() if isinstance(e, Entry) and e.id == entry_id), None)

    # ---- writing ------------------------------------------------------------------------------

    def add(self, entry: Entry) -> Path:
        """Keep an entry among the found ones; returns its path. An entry of that id that is there already, in any folder,
        stays as it is (FileExistsError tells). A file in its place that cannot be read stays too, and so does the unfinished
        entry of another run, which may be gone tomorrow; then the entry is kept under its longer name.

        CorpusError when it cannot be written.
        """
        for folder in FOLDERS:
            if self._has(folder, entry.id):
                raise FileExistsError(f"{self.root / folder / entry.id}.json exists")
        try:
            return self.put(FOUND, f"{entry.id}.json", entry)
        except FileExistsError:
            if self._has(FOUND, entry.id):
                raise
            return self._put_beside(entry)

    def _has(self, folder: str, entry_id: str) -> bool:
        found = read_entry(self.root / folder / f"{entry_id}.json")
        return isinstance(found, Entry) and found.id == entry_id and not (found.interrupted and folder == FOUND)

    def _put_beside(self, entry: Entry) -> Path:
        name = variant_name(entry)
        try:
            return self.put(FOUND, name, entry)
        except FileExistsError:
            if isinstance(read_entry(self.root / FOUND / name), Entry):
                raise
            raise CorpusError(f"{self.root / FOUND / name}: cannot be read, and stands in the way") from None

    def put(self, folder: str, name: str, entry: Entry) -> Path:
        """Write an entry under a name in a folder; returns its path. FileExistsError when the name is taken, CorpusError
        when it cannot be written."""
        if not _ID.fullmatch(entry.id):
            raise CorpusError(f"id {entry.id!r} is not of the form F101-0123456789")
        target = self.root / folder
        try:
            target.mkdir(parents=True, exist_ok=True)
            if target.is_symlink():
                raise CorpusError(f"{target}: is a link; links are not followed")
            return write_once(target, name, encode_entry(entry))
        except (FileExistsError, CorpusError) as error:
            if target.is_dir() or isinstance(error, CorpusError):
                raise
            raise CorpusError(f"{target}: not a directory") from None
        except OSError as error:
            raise CorpusError(f"{target}: {error.strerror or error}") from None

    def replace(self, path: Path, entry: Entry) -> None:
        """Write an entry over one that the same run has written, whole or not at all. CorpusError when that fails."""
        try:
            write_whole(path, encode_entry(entry))
        except OSError as error:
            raise CorpusError(f"{path}: {error.strerror or error}") from None
        sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        """Remove the file of an entry; where that cannot be done, it stays."""
        with contextlib.suppress(OSError):
            path.unlink()
            sync_directory(path.parent)

    def check_writable(self) -> None:
        """CorpusError when entries could not be written here; makes the directory, and takes away what killed campaigns have left
        half-written in it."""
        folder = self.root / FOUND
        try:
            folder.mkdir(parents=True, exist_ok=True)
            clear_left(folder)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".tmp"):
                pass
        except OSError as error:
            raise CorpusError(f"{folder}: {error.strerror or error}") from None


def read_regular(path: Path, limit: int) -> bytes:
    """The bytes of a regular file. Never follows a link, never waits for a pipe, never reads more than the limit.
    OSError when it cannot be read, ValueError when it is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        if os.path.islink(path):
            raise ValueError("is a link; links are not followed") from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file")
        if status.st_size > limit:
            raise ValueError(f"{status.st_size} bytes are over the limit of {limit}")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(limit + 1)
    finally:
        os.close(fd)


def read_entry(path: Path) -> Union[Entry, BadEntry]:
    """The entry in a file. Never follows a link, never reads more than the limit, never raises."""
    try:
        return decode_entry(read_regular(path, MAX_ENTRY_BYTES))
    except OSError as error:
        return BadEntry(str(path), clean(error.strerror or str(error), 400))
    except ValueError as error:
        return BadEntry(str(path), clean(str(error), 400))


def content_of(entry: Entry) -> str:
    """Eight hex digits of what an entry says: the signature, the call and what must happen; not who found it, or when."""
    said = [msgspec.to_builtins(part) for part in (entry.signature, entry.expected)]
    cases = [case_to_dict(case) for case in (entry.case, *entry.before)]
    data = msgspec.json.encode([*said, entry.profile, entry.standard, *cases], order="sorted")
    return hashlib.blake2b(data, digest_size=4).hexdigest()


def variant_name(entry: Entry) -> str:
    """The file name of an entry whose id is taken by another call."""
    return f"{entry.id}.{content_of(entry)}.json"


def as_data(entry: Entry) -> Mapping[str, Any]:
    """The entry as plain data."""
    found: dict[str, Any] = msgspec.to_builtins(entry)
    return found


def reproduce_line(entry: str, backend: str, corpus: str) -> str:
    """The shell line that runs an entry again."""
    where = "" if corpus == "corpus" else f" --corpus {shlex.quote(corpus)}"
    return f"fiafuzz replay {entry} --backend {shlex.quote(backend)}{where}"
