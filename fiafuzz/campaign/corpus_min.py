"""A smaller corpus that covers the same: every signature, every rule, every pair of scene factor words.

Entries that people put under regressions/ always stay. Of the others the smallest call of each signature stays, and
then each that adds a rule or a pair which nothing kept so far has, the one that adds most first.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import combinations
from pathlib import Path

from fiafuzz.model.factors import factors_of
from fiafuzz.model.scene import Scene

from .corpus import BadEntry, Corpus, Entry
from .plainness import weight_of

PROTECTED = "regressions"
NOTHING = (0, 0)


@dataclass(frozen=True)
class Kept:
    """An entry of the subset and why it is in it."""

    path: Path
    entry: Entry
    why: str


@dataclass(frozen=True)
class Subset:
    """A covering subset, what is redundant beside it, and files that are no entries (they are left alone)."""

    kept: tuple[Kept, ...]
    redundant: tuple[tuple[Path, Entry], ...]
    bad: tuple[BadEntry, ...]


def covers(entry: Entry) -> frozenset[tuple[str, ...]]:
    """What an entry covers beside its signature: rules under its profile, and pairs of factor words."""
    rules = {*entry.expected.rules, *((entry.signature.rule,) if entry.signature.rule else ())}
    words = sorted(factors_of(Scene(entry.case)).items())
    found: set[tuple[str, ...]] = {("rule", entry.profile, rule) for rule in rules}
    found.update(("pair", *a, *b) for a, b in combinations(words, 2))
    return frozenset(found)


def subset(corpus: Corpus) -> Subset:
    """The covering subset of a corpus; the same for the same files. CorpusError when it cannot be read."""
    entries: list[tuple[Path, Entry]] = []
    bad: list[BadEntry] = []
    for path, found in corpus.files():
        if isinstance(found, BadEntry):
            bad.append(found)
        else:
            entries.append((path, found))
    cover = {path: covers(entry) for path, entry in entries}
    plainest = sorted(entries, key=lambda e: (weight_of(e[1].case), -len(cover[e[0]]), e[0].name))
    kept = [Kept(path, entry, PROTECTED) for path, entry in entries if path.parent.name == PROTECTED]
    signatures = {k.entry.signature for k in kept}
    for path, entry in plainest:
        if path.parent.name != PROTECTED and entry.signature not in signatures:
            signatures.add(entry.signature)
            kept.append(Kept(path, entry, "signature"))
    have = frozenset[tuple[str, ...]]().union(*(cover[k.path] for k in kept))
    taken = {k.path for k in kept}
    left = [e for e in plainest if e[0] not in taken]
    # What an entry adds only becomes less: the best of the outdated sums that is still the best now is the best of all.
    heap = [(_loss(cover[path] - have), place) for place, (path, _) in enumerate(left)]
    heapify(heap)
    chosen: set[int] = set()
    while heap and heap[0][0] != NOTHING:
        _, place = heappop(heap)
        path, entry = left[place]
        now = _loss(cover[path] - have)
        if heap and (now, place) > heap[0]:
            heappush(heap, (now, place))
        elif now != NOTHING:
            have |= cover[path]
            chosen.add(place)
            kept.append(Kept(path, entry, "rule" if now[0] else "pairs"))
    redundant = tuple(e for place, e in enumerate(left) if place not in chosen)
    return Subset(tuple(kept), redundant, tuple(bad))


def _loss(new: frozenset[tuple[str, ...]]) -> tuple[int, int]:
    """What would be lost without an entry, as numbers below 0; rules count before pairs."""
    rules = sum(what[0] == "rule" for what in new)
    return -rules, rules - len(new)
