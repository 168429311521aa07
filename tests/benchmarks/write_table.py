"""Markdown tables of benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One measurement: what was measured, the figure, and what it stands beside."""

    what: str
    figure: str
    beside: str


def write_table(head: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """A Markdown table with a line about machine and versions below it."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    found = [line(head), "| " + " | ".join("---" for _ in head) + " |", *(line(row) for row in rows)]
    return "\n".join(found) + "\n" + (f"\n{note}\n" if note else "")
