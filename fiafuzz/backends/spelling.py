"""How the name of a backend carries options: ``BASE:ITEM[,ITEM]...`` with items ``WORD`` or ``KEY=VALUE``.

``torch-npu:v1,queue=1`` is the backend torch-npu with the word v1 and the option queue set to 1. The order does not matter;
the canonical name has the words first and then the options, both in the order in which the backend declares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches


@dataclass(frozen=True)
class Spelling:
    """What one base name takes behind the colon. Of each group of ``words`` at most one may be given; ``options`` lists
    the values that a key takes."""

    base: str
    words: tuple[tuple[str, ...], ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def examples(self) -> str:
        """All items, for messages."""
        words = [word for group in self.words for word in group]
        return ", ".join([*words, *(f"{key}={'|'.join(values)}" for key, values in self.options.items())])


@dataclass(frozen=True)
class Chosen:
    """A name that was read: its canonical form, the words and the options in it."""

    name: str
    words: frozenset[str] = frozenset()
    options: Mapping[str, str] = field(default_factory=dict)


def base_of(name: str) -> str:
    """What stands before the colon."""
    return name.partition(":")[0]


def read(spelling: Spelling, name: str) -> Chosen:
    """The options in a name. ValueError, one line, for an item that is unknown, given twice or excluded by another."""
    base, colon, rest = name.partition(":")
    if base != spelling.base:
        raise ValueError(f"{name!r} does not begin with {spelling.base}")
    words: set[str] = set()
    options: dict[str, str] = {}
    for item in rest.split(",") if colon else ():
        key, equals, value = item.partition("=")
        if equals:
            _option(spelling, name, key, value, options)
        else:
            _word(spelling, name, item, words)
    parts = [word for group in spelling.words for word in group if word in words]
    parts += [f"{key}={options[key]}" for key in spelling.options if key in options]
    return Chosen(":".join([base, ",".join(parts)]) if parts else base, frozenset(words), options)


def _word(spelling: Spelling, name: str, word: str, found: set[str]) -> None:
    group = next((g for g in spelling.words if word in g), None)
    if group is None:
        raise ValueError(f"unknown backend {name!r}: {word!r} is not among {spelling.examples()}{_near(word, spelling)}")
    clash = found.intersection(group)
    if clash:
        raise ValueError(f"backend {name!r}: {word} and {clash.pop()} exclude each other")
    found.add(word)


def _option(spelling: Spelling, name: str, key: str, value: str, found: dict[str, str]) -> None:
    values = spelling.options.get(key)
    if values is None:
        raise ValueError(f"unknown backend {name!r}: {key!r} is not among {spelling.examples()}{_near(key, spelling)}")
    if value not in values:
        raise ValueError(f"backend {name!r}: {key} is one of {', '.join(values)}, not {value!r}")
    if found.get(key, value) != value:
        raise ValueError(f"backend {name!r}: {key} is given twice")
    found[key] = value


def _near(item: str, spelling: Spelling) -> str:
    known = [*(word for group in spelling.words for word in group), *spelling.options]
    close = get_close_matches(item, known, 1)
    return f"; did you mean {close[0]}?" if close else ""
