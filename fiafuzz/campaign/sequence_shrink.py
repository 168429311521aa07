"""Shrinking the calls before a failing one: as few of them as will do, and each as like the failing call as it can be.

The failing call itself stays as it is. What is left of the difference between it and the calls before it tells what the backend
should have noticed, and is what makes two such findings the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional, TypeVar

from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene

from .blueprint import SIZES, Fields, OptionalTensor, put_together
from .dissect import take_apart
from .shrink import DESCRIBES_NOTHING

T = TypeVar("T")
Calls = tuple[Case, ...]

SIZE_FIELDS = frozenset(SIZES) | {
    "V_D",
    "rope_D",
    "prefix_S",
    "q_lens",
    "kv_lens",
    "list_S",
    "block_size",
    "table",
    "spare_blocks",
    "spare_columns",
}


class Enough(Exception):
    """A budget is used up."""


class Before:
    """The search. ``check`` runs the case after some calls; what it gives is true when it fails in the same way still. It is asked at
    most ``max_runs`` times, and not once ``stop`` is true. ``best`` always fails (``before`` itself, at first)."""

    def __init__(
        self, case: Case, before: Calls, check: Callable[[Calls], object], profile: str, max_runs: int, stop: Callable[[], bool]
    ) -> None:
        self.case, self.best, self.profile = case, before, profile
        self.runs = 0
        self.cut_short = False
        self._check, self._max_runs, self._stop = check, max_runs, stop
        self._fields = take_apart(case)

    def shrink(self) -> Calls:
        """The calls that are left."""
        try:
            self._fewer()
            for place in reversed(range(len(self.best))):
                self._alike(place)
        except Enough:
            self.cut_short = True
        return self.best

    def _fails(self, before: Calls) -> bool:
        if self.runs >= self._max_runs or self._stop():
            raise Enough
        self.runs += 1
        failed = bool(self._check(before))
        if failed:
            self.best = before
        return failed

    def _fewer(self) -> None:
        """A single call, the last ones first, since most often one is enough; else by delta debugging."""
        calls = self.best
        if len(calls) > 1 and not any(self._fails((call,)) for call in reversed(calls)):
            fewest(calls, lambda kept: self._fails(tuple(kept)))

    def _alike(self, place: int) -> None:
        """Bring one of the calls as near to the failing one as it goes."""
        call = self.best[place]
        words = words_between(call, self.case)
        if not words or self._brought(place, call, ()):
            return
        alike: dict[str, list[str]] = {}
        for name, word in words.items():
            alike.setdefault(word, []).append(name)
        names = next((n for n in alike.values() if len(alike) > 1 and self._brought(place, call, tuple(n))), list(words))
        if len(names) > 1 and not any(self._brought(place, call, (name,)) for name in names if len(alike[words[name]]) > 1):
            fewest(names, lambda kept: self._brought(place, call, tuple(kept)))

    def _brought(self, place: int, call: Case, names: tuple[str, ...]) -> bool:
        """Whether it still fails when that call differs from the failing one in these fields only."""
        other = mixed(self.case, call, names)
        if other is None or self._verdict(other) != self._verdict(call):
            return False
        return self._fails((*self.best[:place], other, *self.best[place + 1 :]))

    def _verdict(self, case: Case) -> str:
        from oracles.constraints.predict import predict

        return str(predict(case, self.profile, scene=Scene(case)).verdict)


def fewest(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Delta debugging (ddmin, Zeller and Hildebrandt 2002): a part of ``items`` that fails and of which no single item can be left
    out. ``items`` itself must fail; the empty part is not tried."""
    parts = 2
    while len(items) > 1:
        step = -(-len(items) // parts)
        chunks = [items[i : i + step] for i in range(0, len(items), step)]
        rests = [[*items[:i], *items[i + step :]] for i in range(0, len(items), step)]
        small = next((c for c in chunks if fails(c)), None)
        if small is not None:
            items, parts = small, 2
            continue
        rest = next((r for r in rests if fails(r)), None) if parts > 2 else None
        if rest is not None:
            items, parts = rest, parts - 1
        elif parts >= len(items):
            break
        else:
            parts = min(len(items), 2 * parts)
    return items


def differing(one: Fields, other: Fields) -> tuple[str, ...]:
    """Names of the fields in which two calls differ, sorted."""
    return tuple(sorted(name for name in {*one, *other} if one.get(name) != other.get(name)))


def mixed(case: Case, other: Case, names: tuple[str, ...]) -> Optional[Case]:
    """The case with these fields as they are in another one; None when that describes no call."""
    fields, taken = dict(take_apart(case)), take_apart(other)
    for name in names:
        if name in taken:
            fields[name] = taken[name]
        else:
            fields.pop(name, None)
    try:
        return put_together(fields, case.api, case.product)
    except DESCRIBES_NOTHING:
        return None


def plainly(name: str) -> str:
    """The name of a field for people."""
    return name.removeprefix("in:").removeprefix("=").replace("fill:", "values of ").replace("dtype:", "dtype of ")


def word_for(name: str, one: Any, other: Any) -> str:
    """What a difference in a field counts as: "sizes", "values", or the field itself."""
    if name in SIZE_FIELDS:
        return "sizes"
    if name == "seed" or name.startswith("fill:"):
        return "values"
    if isinstance(one, OptionalTensor) and isinstance(other, OptionalTensor) and one.dtype == other.dtype and one.form == other.form:
        return "sizes" if (one.fill, one.values) == (other.fill, other.values) else "values"
    return plainly(name)


def words_between(call: Case, case: Case) -> dict[str, str]:
    """The fields in which two calls differ, with what each difference counts as."""
    own, fields = take_apart(call), take_apart(case)
    return {name: word_for(name, own.get(name), fields.get(name)) for name in differing(own, fields)}


def features_between(before: Calls, case: Case) -> tuple[tuple[str, str], ...]:
    """What makes two findings after other calls the same: how many calls, and in what they differ from the case."""
    count = "1 call" if len(before) == 1 else f"{len(before)} calls" if len(before) < 4 else "many calls"
    words = {word for call in before for word in words_between(call, case).values()}
    return (("after", count), *(("differs", word) for word in sorted(words)))


def describe_before(before: Calls, case: Case) -> tuple[str, ...]:
    """The calls before a case (those of an entry, say), a line each, by what they do not share with it."""
    fields, lines = take_apart(case), []
    for place, call in enumerate(before, 1):
        own = take_apart(call)
        names = differing(own, fields)
        told = "; ".join(_difference(name, own.get(name), fields.get(name)) for name in names[:6])
        more = f"; and {len(names) - 6} more" if len(names) > 6 else ""
        lines.append(f"call {place} of {len(before)}: " + (f"as this one, but {told}{more}" if names else "this very call"))
    return tuple(lines)


def _difference(name: str, one: Any, other: Any) -> str:
    there, here = _short(one), _short(other)
    if there == here:
        return f"other {word_for(name, one, other)} of {plainly(name)}"
    return f"{plainly(name)} {there} (here: {here})"


def _short(value: Any) -> str:
    if isinstance(value, OptionalTensor):
        return f"{'dtype of query' if value.dtype == '=' else value.dtype} [{', '.join(map(str, value.form))}]"
    text = "none" if value is None else str(list(value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 60 else text[:59] + "…"
