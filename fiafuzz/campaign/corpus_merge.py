"""Merging corpora: the entries of other corpora, of run directories and of single files go into one corpus.

Nothing is overwritten, and the order of the sources does not change which calls are there in the end. The same call under
the same signature is one entry, whoever found it and when. Another call under the same signature (two machines have
shrunk one fault differently) is kept beside it, under a name that ends in its content.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Union

import msgspec

from .corpus import (
    FOLDERS,
    FOUND,
    BadEntry,
    Corpus,
    CorpusError,
    Entry,
    content_of,
    decode_entry,
    encode_entry,
    is_entry_id,
    read_entry,
    variant_name,
)
from .events import FindingKept, FindingRepeated, decode_event
from .results import clean
from .rundir import EVENTS, log_lines
from .whole_files import clear_left

ADDED, THERE, APART, BAD = "added", "there", "apart", "bad"


@dataclass(frozen=True)
class Source:
    """An entry and where it comes from: the folder of the corpus that it belongs into, the file or log."""

    entry: Entry
    folder: str
    where: str


@dataclass(frozen=True)
class Merged:
    """What became of one entry: added, there (already), apart (added beside another call with its signature), or bad (no
    entry, or not written). ``path``: the file; ``text``: why, for people."""

    outcome: str
    name: str
    where: str
    path: str = ""
    text: str = ""


def sources_of(path: Path) -> Iterator[Union[Source, BadEntry]]:
    """The entries of a corpus directory, a run directory, a log (.ndjson) or an entry's file, in a stable order."""
    if (path / EVENTS).exists():
        yield from _of_log(path / EVENTS)
    elif path.suffix == ".ndjson":
        yield from _of_log(path)
    elif path.is_dir():
        if not any(os.path.lexists(path / folder) for folder in FOLDERS):
            yield BadEntry(str(path), f"neither a corpus (no folder {', '.join(FOLDERS)}) nor a run directory (no {EVENTS})")
            return
        for file, found in Corpus(path).files():
            yield found if isinstance(found, BadEntry) else Source(found, file.parent.name, str(file))
    else:
        found = read_entry(path)
        yield found if isinstance(found, BadEntry) else Source(found, FOUND, str(path))


def _of_log(path: Path) -> Iterator[Union[Source, BadEntry]]:
    """The findings that a run has kept. What it has kept before it was shrunk counts where the run was not resumed."""
    number = 0
    unfinished: dict[int, Source] = {}
    try:
        for _, line in log_lines(path):
            number += 1
            if b'"FindingKept"' not in line and b'"FindingRepeated"' not in line:
                continue
            where = f"{path}:{number}"
            try:
                event = decode_event(line)
                if isinstance(event, FindingRepeated):
                    unfinished.pop(event.number, None)
                elif isinstance(event, FindingKept):
                    # The reader of files is stricter than that of logs: limits, the form of the id.
                    found = Source(decode_entry(encode_entry(event.entry)), FOUND, where)
                    unfinished.pop(event.number, None)
                    if event.interrupted:
                        unfinished[event.number] = found
                    else:
                        yield found
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                if line.endswith(b"\n"):  # else the run was killed while it wrote
                    yield BadEntry(where, clean(" ".join(str(error).split()), 300))
    except OSError as error:
        yield BadEntry(str(path), error.strerror or str(error))
    yield from unfinished.values()


def merge(sources: Iterator[Union[Source, BadEntry]], into: Corpus, *, dry: bool = False) -> Iterator[Merged]:
    """Put entries into a corpus, one answer each; ``dry``: say what would be done. What cannot be read or written is told
    as bad, and the others go on."""
    names: dict[str, set[str]] = {}
    for folder in () if dry else FOLDERS:
        clear_left(into.root / folder)
    for file, found in into.files():
        if isinstance(found, Entry):
            names.setdefault(found.id, set()).add(content_of(found))
        elif is_entry_id(file.stem.partition(".")[0]):
            names.setdefault(file.stem.partition(".")[0], set()).add("")  # a damaged file stays, and keeps its name
    for source in sources:
        if isinstance(source, BadEntry):
            yield Merged(BAD, "", source.path, text=source.reason)
        else:
            yield _put(source, into, names, dry)


def _put(source: Source, into: Corpus, names: dict[str, set[str]], dry: bool) -> Merged:
    entry, content = source.entry, content_of(source.entry)
    there = names.setdefault(entry.id, set())
    if content in there:
        return Merged(THERE, entry.id, source.where)
    name = variant_name(entry) if there else f"{entry.id}.json"
    outcome = APART if there else ADDED
    text = f"another call than the entry {entry.id} that is there" if there else ""
    try:
        path = into.root / source.folder / name if dry else into.put(source.folder, name, entry)
    except FileExistsError:
        return Merged(BAD, entry.id, source.where, text=f"{into.root / source.folder / name} is taken by another file")
    except CorpusError as error:
        return Merged(BAD, entry.id, source.where, text=str(error))
    there.add(content)
    return Merged(outcome, entry.id, source.where, str(path), text)
