"""``--as pytest``: a test file that replays one case on a backend of fiafuzz and asserts that nothing fails."""

from __future__ import annotations

import json

import msgspec

from fiafuzz.campaign.verdict import foreseen
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import predict

from .common import Exported, Item, case_line, python_literal, shown_name, template
from .expectation import foreseen_lines, seen_lines

_WIDTH = 110


def export_pytest(item: Item, file: str, *, beside: bool) -> Exported:
    """The test file for one case. ``file`` is the name that it will have; it never needs a file beside it."""
    entry = item.entry
    told = foreseen(predict(item.case, item.profile, scene=Scene(item.case)))
    whole = json.dumps(msgspec.to_builtins(entry), separators=(",", ":")) if entry is not None else ""
    text = template("pytest_file.py.j2").render(
        file=shown_name(file, f"test_{item.stem}.py"),
        title=item.title,
        stem=item.stem,
        must=foreseen_lines(told),
        seen=seen_lines(item),
        backend=entry.signature.backend if entry is not None else "cpu",
        profile=item.profile,
        entry_lines=_broken(whole),
        case_lines=_broken(case_line(item.case)),
    )
    return Exported(text)


def _broken(text: str) -> list[str]:
    """A long ASCII text as string literals, one a line."""
    return [python_literal(text[i : i + _WIDTH]) for i in range(0, len(text), _WIDTH)]
