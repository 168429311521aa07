"""Several cases in one file of the operator's own suites: what can be said is, the rest is named with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from .atk import call_of, export_atk
from .common import CannotExport, Item, Remarks
from .ut_csv import export_ut_csv, row_of

Refused = list[tuple[Item, str]]


def export_table(form: str, items: Iterable[Item]) -> tuple[str, int, Refused, list[str]]:
    """The text of an ``atk`` file or a ``ut-csv`` table.

    Returns the text, how many cases stand in it, the items that the format cannot say with the reason, and remarks on the others.
    """
    rows: list[dict[str, str]] = []
    calls: list[dict[str, Any]] = []
    refused: Refused = []
    said = Remarks()
    counts: Counter[str] = Counter()
    for item in items:
        remarks = Remarks()
        try:
            if form == "atk":
                calls.append(call_of(item, len(calls) + 1, remarks))
            else:
                rows.append(row_of(item, remarks))
        except CannotExport as error:
            refused.append((item, str(error)))
            continue
        for line, names in remarks.kinds:
            said.add(line, *names)
            counts[line] += 1
    text = export_atk(calls) if form == "atk" else export_ut_csv(rows)
    written = len(calls) + len(rows)
    told = [f"{said_line} ({counts[line]} of {written} cases)" for (line, _), said_line in zip(said.kinds, said.lines)]
    return text, written, refused, told
