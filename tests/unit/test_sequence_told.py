"""A finding after other calls, as verbs and reports tell it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fiafuzz.campaign.corpus import Corpus, encode_entry
from fiafuzz.campaign.triage import plain_case
from fiafuzz.cli.display import entry_block
from fiafuzz.cli.main import main
from reports.finding_list import finding_text
from reports.html import html_report
from reports.schemas import text as schema_text

from .kept_entries import entry_of
from .run_logs import case, found, kept, leg, phase, started, write_log

PLAIN = plain_case("950", "v5")
ENTRY = entry_of("F304", before=(PLAIN.replace(scaleValue=0.5), PLAIN))
LINES = ("call 1 of 2: as this one, but scaleValue 0.5 (here: 0.125)", "call 2 of 2: this very call")


def test_its_texts_name_the_calls_before() -> None:
    block = entry_block(ENTRY, "new")
    assert f"  after      {LINES[0]}\n             {LINES[1]}\n  reproduce  " in block
    told = finding_text(ENTRY)
    assert f"\nafter {LINES[0]}\nafter {LINES[1]}\nreproduce: " in told
    assert "after" not in entry_block(entry_of(), "new") and "after" not in finding_text(entry_of())


def test_the_page_names_the_calls_before(tmp_path: Path) -> None:
    log = [started(), leg(), phase(), case(1, "finding"), found(1), kept(1, ENTRY)]
    page = html_report([write_log(tmp_path / "run", log)]).decode()
    assert f"<dt>after</dt><dd>{LINES[0]}<br>{LINES[1]}</dd>" in page


def test_its_file_is_as_the_published_schema_says() -> None:
    jsonschema: Any = pytest.importorskip("jsonschema", reason="needs jsonschema")
    check = jsonschema.Draft202012Validator(json.loads(schema_text("entry")))
    data = json.loads(encode_entry(ENTRY))
    check.validate(data)
    assert len(data["before"]) == 2
    assert not check.is_valid({**data, "before": [{"fiafuzz": 1}]}) and not check.is_valid({**data, "before": 3})


def left(*words: str) -> int:
    """The exit code of a command line."""
    with pytest.raises(SystemExit) as end:
        main(list(words))
    return int(end.value.code or 0)


def test_it_is_not_exported_as_a_call_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    other = entry_of("F102")
    for entry in (ENTRY, other):
        Corpus("corpus").add(entry)
    assert left("export", ENTRY.id) == 2
    out, err = capsys.readouterr()
    assert not out and "it shows only after 2 other calls in the same process, and python makes the call alone" in err
    assert f"to run them all: {ENTRY.reproduce}" in err
    assert left("export", ENTRY.id, other.id, "--as", "ut-csv", "-o", "cases.csv") == 2
    assert Path("cases.csv").read_text().count("\n") == 2


def test_fuzz_takes_a_number_of_calls(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert left("explain", "F304") == 0
    assert "wrong after other calls" in capsys.readouterr().out
    assert left("fuzz", "--sequences", "1") == 2
    assert left("fuzz", "--phases", "sequences", "-n", "5") == 2
    assert "--sequences N" in capsys.readouterr().err
    assert left("fuzz", "--sequences", "9", "-n", "5", "--show-config") == 0
    assert "sequences" in capsys.readouterr().out
