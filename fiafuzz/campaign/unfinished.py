"""Corpus entries that a run has written before they were shrunk, since it was asked to stop.

Such an entry says so (``Entry.interrupted``), and with run seed, start, backend, profile and the digest of its original case it
says whose it is. The run, resumed, looks into the finding again; what it comes to is on disk and in the log before the
entry goes, and no other file is ever touched.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from .corpus import FOUND, MAX_ENTRY_BYTES, Corpus, Entry, decode_entry, read_entry, read_regular

MARK = b'"interrupted"'
Whose = tuple[str, str, str]
"""Backend, profile, digest of the case as it was found."""


def whose(entry: Entry) -> Whose:
    """What an entry is about, before it is shrunk."""
    return entry.signature.backend, entry.profile, entry.original


class Unfinished:
    """The unfinished entries of one run in its corpus, and the way by which its findings get there.

    ``seed`` and ``began`` (the text of ``Entry.first_seen``) are those of the run. ``told``: the unfinished entries that the log of a
    resumed run tells of; it may have been killed before it told of one. None: a new run, which has left nothing.
    """

    def __init__(self, corpus: Corpus, seed: int, began: str, told: Optional[Sequence[Entry]] = None) -> None:
        self.corpus = corpus
        self._left: dict[Whose, list[tuple[Path, Entry]]] = {}
        if told is None:
            return
        known: dict[Whose, list[Entry]] = {}
        for entry in told:
            known.setdefault(whose(entry), []).append(entry)
        for path, entry in _marked(corpus.root / FOUND):
            mine = (entry.seed, entry.first_seen) == (seed, began)
            if mine and entry in known.get(whose(entry), (entry,)):  # else somebody has changed it
                self._left.setdefault(whose(entry), []).append((path, entry))

    def keep(self, entry: Entry) -> Path:
        """Put an entry into the corpus; returns its path. Where its file holds an unfinished entry about the same case, it takes
        its place at once; else as Corpus.add (FileExistsError, CorpusError)."""
        path = self.corpus.root / FOUND / f"{entry.id}.json"
        before = next((old for place, old in self._left.get(whose(entry), ()) if place == path), None)
        if before is not None and read_entry(path) == before:
            self.corpus.replace(path, entry)
        else:
            path = self.corpus.add(entry)
        left = [(place, old) for place, old in self._left.get(whose(entry), ()) if place != path]
        self._left[whose(entry)] = [*left, (path, entry)] if entry.interrupted else left
        return path

    def settle(self, about: Whose, but: Optional[Entry] = None) -> None:
        """The finding has come to its end, which is on disk and in the log: what was written of it before goes, but for the entry
        ``but``. A file that somebody has changed or moved since then stays."""
        for path, entry in self._left.pop(about, []):
            if entry == but:
                self._left[about] = [(path, entry)]
            elif read_entry(path) == entry:
                self.corpus.remove(path)


def _marked(folder: Path) -> list[tuple[Path, Entry]]:
    """The entries of a folder that are marked as unfinished."""
    found = []
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json") and not name.startswith("."))
    except OSError:
        return []
    for name in names:
        try:
            data = read_regular(folder / name, MAX_ENTRY_BYTES)
            if MARK in data and (entry := decode_entry(data)).interrupted:  # few files are worth decoding
                found.append((folder / name, entry))
        except (OSError, ValueError):
            continue  # no entry of ours
    return found
