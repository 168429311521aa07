"""Records: cases as they lie in files - bare, or in an object with a ``case`` field, alone or one a line.

A line's other fields (name, profile, expected, ...) ride along. One malformed record never hides the others.
"""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Union

import msgspec

from .case import MAX_JSON_BYTES, Case, CaseError, decode_case

MAX_FILE_BYTES = 2 * 1024 * 1024 * 1024


@dataclass(frozen=True)
class Record:
    """One case of a file: where it stands, its name, its profile field (or None) and all other fields."""

    case: Case
    where: str
    name: str
    profile: Union[str, None] = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BadRecord:
    """A record that could not be read: where it stands and why, in one line."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class ReadError(ValueError):
    """A file that cannot be read at all; the text is one line that names it."""


def read_records(path: str) -> Iterator[Union[Record, BadRecord]]:
    """Records of a file (NDJSON, or one JSON object or array of objects; ``.gz`` is unpacked) or of stdin ("-").

    Raises ReadError when the file cannot be opened; a malformed record comes as BadRecord and reading goes on.
    """
    if path == "-":
        yield from _records(sys.stdin.buffer, "<stdin>")
        return
    try:
        if not Path(path).is_file():
            raise ReadError(f"{path}: {'is a directory' if Path(path).is_dir() else 'no such file'}")
        with open(path, "rb") as raw:
            stream: BinaryIO = gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else raw  # type: ignore[assignment]
            yield from _records(stream, path)
    except (OSError, EOFError) as error:
        raise ReadError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _records(stream: BinaryIO, where: str) -> Iterator[Union[Record, BadRecord]]:
    head = b""
    number = 0
    total = 0
    while True:
        line = stream.readline(MAX_JSON_BYTES + 2)
        number += 1
        total += len(line)
        if len(line) > MAX_JSON_BYTES or total > MAX_FILE_BYTES:
            yield BadRecord(f"{where}:{number}", f"over the limit of {MAX_JSON_BYTES} bytes a record")
            return
        if not line:
            return
        text = line.strip()
        if not text:
            continue
        if number == 1 or not head:
            head = text[:1]
            if not _whole(text):
                yield from _document(io.BytesIO(line + stream.read(MAX_JSON_BYTES + 1)), where)
                return
            if text[:1] == b"[":
                yield from _items(text, where)
                continue
        yield _record(text, f"{where}:{number}")


def _whole(text: bytes) -> bool:
    # The first line decides between NDJSON and one document spread over lines: NDJSON lines end as they begin.
    return (text[:1], text[-1:]) in ((b"{", b"}"), (b"[", b"]")) or text[:1] not in (b"{", b"[")


def _document(stream: BinaryIO, where: str) -> Iterator[Union[Record, BadRecord]]:
    text = stream.read(MAX_JSON_BYTES + 1)
    if len(text) > MAX_JSON_BYTES:
        yield BadRecord(where, f"over the limit of {MAX_JSON_BYTES} bytes a document")
        return
    text = text.strip()
    if text[:1] == b"[":
        yield from _items(text, where)
        return
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if b"\n" in text:
            # Not one document: perhaps NDJSON whose first line is broken. Every line speaks for itself.
            records = [_record(line.strip(), f"{where}:{n}") for n, line in enumerate(text.split(b"\n"), 1) if line.strip()]
            if any(isinstance(r, Record) for r in records):
                yield from records
                return
    yield _record(text, where)


def _items(text: bytes, where: str) -> Iterator[Union[Record, BadRecord]]:
    try:
        items = msgspec.json.decode(text, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        yield BadRecord(where, " ".join(str(error).split()))
        return
    for i, item in enumerate(items):
        yield _record(bytes(item), f"{where}[{i}]")


def _record(text: bytes, where: str) -> Union[Record, BadRecord]:
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return BadRecord(where, " ".join(str(error).split()) or "nested too deeply")
    try:
        if "case" not in fields:
            return Record(decode_case(text), where, where)
        case = decode_case(bytes(fields.pop("case")))
    except CaseError as error:
        return BadRecord(where, str(error))
    extra: dict[str, Any] = {}
    for name, raw in fields.items():
        try:
            extra[name] = msgspec.json.decode(bytes(raw))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return BadRecord(where, f"{' '.join(str(error).split())} (at $.{name})")
    profile = extra.get("profile")
    if profile is not None and not isinstance(profile, str):
        return BadRecord(where, "Expected `str` (at $.profile)")
    called = extra.get("name") or extra.get("id")
    return Record(case, where, called if isinstance(called, str) else where, profile, extra)
