"""The published schemas: current, valid, and true of what is written."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from fiafuzz.campaign.corpus import encode_entry
from fiafuzz.campaign.events import Event, encode_event
from fiafuzz.model.case import case_to_dict
from reports.schemas import CURRENT, current, published, text
from strategies.cases import generate

from .run_logs import entry, full_log_bytes

jsonschema: Any = pytest.importorskip("jsonschema", reason="needs jsonschema")


def validator(name: str) -> Any:
    """A validator for a published schema."""
    schema = json.loads(text(name))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", sorted(CURRENT))
def test_it_is_what_follows_from_the_code(name: str) -> None:
    file, content = current(name)
    assert published()[name][1] == file, "write it with: python -m reports.schemas"
    assert json.loads(text(name)) == json.loads(content), "write it with: python -m reports.schemas"


def test_every_event_has_a_definition() -> None:
    schema = json.loads(text("events"))
    names = {kind.__name__ for kind in Event.__args__}
    assert {ref["$ref"].rsplit("/", 1)[1] for ref in schema["anyOf"]} == names <= set(schema["$defs"])


def test_events_of_a_log_are_valid() -> None:
    check = validator("events")
    lines = full_log_bytes().splitlines()
    kinds = set()
    for line in lines:
        data = json.loads(line)
        check.validate(data)
        kinds.add(data["event"])
    assert len(kinds) >= 11
    for wrong in ({"event": "Nobody"}, {"event": "Note", "level": 1, "text": "x"}, {"event": "CaseDone", "n": 1}):
        assert not check.is_valid(wrong)


@pytest.mark.parametrize("mode", ["valid", "invalid", "boundary"])
@pytest.mark.parametrize("profile", ["950-v5", "a3-v3"])
def test_generated_cases_are_valid(profile: str, mode: str) -> None:
    check = validator("case")
    for item in generate(profile, mode, 40, 3):
        check.validate(json.loads(msgspec.json.encode(case_to_dict(item.case))))
    assert not check.is_valid({"fiafuzz": 1, "api": "v5"})


def test_entries_are_valid() -> None:
    check = validator("entry")
    check.validate(json.loads(encode_entry(entry())))
    assert not check.is_valid({**json.loads(encode_entry(entry())), "seed": "five"})


def test_an_event_of_a_run_is_one_line() -> None:
    for line in full_log_bytes().splitlines(keepends=True):
        assert encode_event(msgspec.json.decode(line, type=Event)) == line
