"""Published JSON schemas: of the event stream, of a case, of a corpus entry, of the tables.

Each lies here as NAME-VERSION.json and is what ``fiafuzz schema NAME`` prints. ``python -m reports.schemas`` writes those
that follow from the code anew; a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_FILE = re.compile(r"([a-z]+)-([0-9]+)\.json")


def published() -> Mapping[str, tuple[int, str]]:
    """The schemas that are here: name -> newest version and the name of its file, sorted by name."""
    found: dict[str, tuple[int, str]] = {}
    for item in files(__name__).iterdir():
        match = _FILE.fullmatch(item.name)
        if match and int(match[2]) >= found.get(match[1], (0, ""))[0]:
            found[match[1]] = (int(match[2]), item.name)
    return MappingProxyType(dict(sorted(found.items())))


def text(name: str) -> str:
    """A published schema as it lies in its file. KeyError when there is none of that name."""
    return files(__name__).joinpath(published()[name][1]).read_text(encoding="utf-8")


def _events() -> tuple[int, dict[str, Any]]:
    from fiafuzz.campaign.events import LOG_VERSION, Event

    return LOG_VERSION, _schema(Event, "An event of a run: one line of events.ndjson, or of what --events writes")


def _case() -> tuple[int, dict[str, Any]]:
    from fiafuzz.model.case import SCHEMA_VERSION, Case

    return SCHEMA_VERSION, _schema(Case, "A case: one call of the operator")


def _entry() -> tuple[int, dict[str, Any]]:
    from fiafuzz.campaign.corpus import ENTRY_VERSION, Entry

    return ENTRY_VERSION, _schema(Entry, "An entry of the corpus: one kept finding")


def _tables() -> tuple[int, dict[str, Any]]:
    from reports.frame_columns import described

    return 1, {"title": "Columns of the tables of a run (load_run, report --format csv and parquet)", "tables": described()}


CURRENT: Mapping[str, Callable[[], tuple[int, dict[str, Any]]]] = MappingProxyType(
    {"events": _events, "case": _case, "entry": _entry, "tables": _tables}
)
"""Name -> a function that gives version and schema as they follow from the code."""


def _schema(kind: Any, title: str) -> dict[str, Any]:
    import msgspec

    (found,), definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    return {"$schema": DIALECT, "title": title, **found, "$defs": dict(sorted(definitions.items()))}


def current(name: str) -> tuple[str, str]:
    """File name and text of a schema as they follow from the code. KeyError when there is none of that name."""
    import json

    version, schema = CURRENT[name]()
    return f"{name}-{version}.json", json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
