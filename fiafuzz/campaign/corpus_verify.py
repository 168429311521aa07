"""Verifying a corpus: every file an entry, every name that of its content, every prediction still the same, nothing left
behind."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fiafuzz.model.profiles import PROFILES
from fiafuzz.model.scene import Scene

from .corpus import FOLDERS, BadEntry, Corpus, CorpusError, Entry, variant_name
from .known import KNOWN_FILE, KnownError, missing_signatures, read_known
from .verdict import foreseen

UNREADABLE, NAME, PREDICTION, PROFILE, TWICE = "unreadable", "name", "prediction changed", "unknown profile", "twice"
STRAY, LEFTOVER, LINK, KNOWN = "stray file", "leftover", "link", "known issue"
EXPECTED = ("README.md", KNOWN_FILE, ".gitignore", ".gitattributes", ".gitkeep")
"""Files in the root or in a folder that are no entries and may be there."""
SCRIPTS = "scripts"
"""Beside regressions: programs that show a finding without fiafuzz. People run them, fiafuzz never does."""


@dataclass(frozen=True)
class Trouble:
    """Something about a corpus: kind, file, and one line."""

    kind: str
    path: str
    text: str


def verify(corpus: Corpus) -> Iterator[Trouble | Path]:
    """All troubles of a corpus, and the path of each entry that has none. CorpusError when the root cannot be read."""
    if not corpus.root.is_dir():
        raise CorpusError(f"{corpus.root}: not a directory")
    yield from _strays(corpus)
    seen: dict[str, Path] = {}
    for path, found in corpus.files():
        if isinstance(found, BadEntry):
            yield Trouble(LINK if "links are not followed" in found.reason else UNREADABLE, found.path, found.reason)
            continue
        troubles = list(_of_entry(path, found, seen))
        yield from troubles
        if not troubles:
            yield path
    yield from _known(corpus)


def _of_entry(path: Path, entry: Entry, seen: dict[str, Path]) -> Iterator[Trouble]:
    if entry.id != entry.signature.id:
        yield Trouble(NAME, str(path), f"the id {entry.id} is not that of its signature, {entry.signature.id}")
    elif path.name not in (f"{entry.id}.json", variant_name(entry)):
        yield Trouble(NAME, str(path), f"the file of {entry.id} is called neither {entry.id}.json nor {variant_name(entry)}")
    if path.name in seen:
        yield Trouble(TWICE, str(path), f"is in {seen[path.name].parent.name}/ too")
    seen.setdefault(path.name, path)
    if entry.profile not in PROFILES:
        yield Trouble(PROFILE, str(path), f"profile {entry.profile!r} is not known to this version")
    else:
        changed = changes_of_prediction(entry)
        if changed:
            yield Trouble(PREDICTION, str(path), changed)


def changes_of_prediction(entry: Entry) -> str:
    """Where the prediction for an entry's call is no longer what the entry expects, in words; "" when it is."""
    from oracles.constraints.predict import predict

    now, then = foreseen(predict(entry.case, entry.profile, scene=Scene(entry.case))), entry.expected
    told = []
    for name in ("verdict", "codes", "rules"):
        new, old = getattr(now, name), getattr(then, name)
        if new != old:
            told.append(f"{name} {_words(old)} -> {_words(new)}")
    return "; ".join(told)


def _words(value: str | tuple[object, ...]) -> str:
    return value if isinstance(value, str) else ",".join(str(v) for v in value) or "none"


def _strays(corpus: Corpus) -> Iterator[Trouble]:
    """Files that nothing reads, by folder."""
    for folder in (corpus.root, *(corpus.root / name for name in FOLDERS)):
        try:
            if stat.S_ISLNK(os.lstat(folder).st_mode) and folder != corpus.root:
                continue  # told with the entries
            names = sorted(os.listdir(folder))
        except OSError:
            continue  # told with the entries, or not there at all
        for name in names:
            path = folder / name
            if name.startswith(".") and name.endswith(".tmp"):
                yield Trouble(LEFTOVER, str(path), "a file that was being written when its program ended; it can be deleted")
            elif (
                name in EXPECTED
                or (folder == corpus.root and name in FOLDERS)
                or (name == SCRIPTS and folder == corpus.root / "regressions")
            ):
                continue
            elif folder == corpus.root:
                yield Trouble(STRAY, str(path), f"entries are looked for in {', '.join(FOLDERS)} alone")
            elif not name.endswith(".json") or name.startswith("."):
                yield Trouble(STRAY, str(path), "nothing reads files with such a name")


def _known(corpus: Corpus) -> Iterator[Trouble]:
    path = corpus.root / KNOWN_FILE
    try:
        issues = read_known(path)
    except KnownError as error:
        yield Trouble(UNREADABLE, str(path), str(error).removeprefix(f"{path}: "))
        return
    for text in missing_signatures(issues, corpus):
        where, _, rest = text.partition(": ")
        yield Trouble(KNOWN, where, rest)
