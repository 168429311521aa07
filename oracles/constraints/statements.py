"""The statements of the inventories by id, and those among them that no test can decide.

``statements.csv`` is the index of what the documents and the operator demand, allow or define: id, kind, products,
lines of the user's document. ``untestable/<group>.csv`` names statements that need no rule and no test, with the
reason.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

KINDS = ("rule", "unenforced_rule", "accepted_behaviour", "definition", "note", "history_950")


@dataclass(frozen=True)
class Statement:
    """One statement: id (document, group, level, name), kind, products it names, lines of the user's document."""

    id: str
    kind: str
    products: tuple[str, ...]
    lines: tuple[int, ...]

    @property
    def document(self) -> str:
        """v5 or v3."""
        return self.id.split(".", 1)[0]

    @property
    def group(self) -> str:
        """Parameter group; the semantics of sparseMode belong to the mask."""
        group = self.id.split(".")[1]
        return "attention_mask" if group == "sparse_semantics" else group


def _read(name: str) -> list[dict[str, str]]:
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


@cache
def statements() -> Mapping[str, Statement]:
    """All statements by id, in the order of the index. ValueError when an id stands there twice."""
    found: dict[str, Statement] = {}
    for row in _read("statements.csv"):
        lines = tuple(int(n) for n in row["lines"].split())
        if row["id"] in found:
            raise ValueError(f"statement {row['id']} stands twice in the index")
        found[row["id"]] = Statement(row["id"], row["kind"], tuple(row["products"].split()), lines)
    return MappingProxyType(found)


@cache
def untestable() -> Mapping[str, str]:
    """Statements that neither a rule nor a test can cover: id -> reason."""
    found: dict[str, str] = {}
    folder = files(__package__).joinpath("untestable")
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".csv"):
            for row in csv.DictReader(io.StringIO(entry.read_text(encoding="utf-8"))):
                found[row["id"]] = row["reason"]
    return MappingProxyType(found)


def lines_of(cites: Iterable[str]) -> str:
    """Where cited statements stand in the user's documents, for example "V5 176, 190; V3 88"; "" when nowhere."""
    found: dict[str, set[int]] = {}
    for cite in cites:
        statement = statements().get(cite)
        if statement is not None and statement.lines:
            found.setdefault(statement.document.upper(), set()).update(statement.lines)
    parts = sorted(found.items(), reverse=True)
    return "; ".join(f"{name} {', '.join(str(n) for n in sorted(lines))}" for name, lines in parts)


def cite_text(cites: Iterable[str]) -> str:
    """Cites for people: spec ids and, where the user's documents state the demand, their lines."""
    cites = tuple(cites)
    lines = lines_of(cites)
    return ", ".join(cites) + (f"; line {lines}" if lines else "")
