"""Records: bare cases, lines with a case field, documents, arrays; one bad line never hides the others."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from fiafuzz.model.records import BadRecord, ReadError, Record, read_records

CASE = {"fiafuzz": 1, "inputs": {}, "attrs": {"numHeads": 1}}
LINE = json.dumps(CASE)
NAMED = json.dumps({"name": "one", "profile": "950-v5", "expected": {"verdict": "accept"}, "case": CASE})


def read(tmp_path: Path, text: str | bytes, name: str = "f.jsonl") -> list[Record | BadRecord]:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return list(read_records(str(path)))


def test_lines_bare_and_named(tmp_path: Path) -> None:
    found = read(tmp_path, f"{LINE}\n\n{NAMED}\n")
    assert [type(r) for r in found] == [Record, Record]
    assert isinstance(found[1], Record)
    assert (found[1].name, found[1].profile, found[1].extra["expected"]) == ("one", "950-v5", {"verdict": "accept"})
    assert found[1].where.endswith(":3")


def test_pretty_document_and_array(tmp_path: Path) -> None:
    assert len(read(tmp_path, json.dumps(CASE, indent=2))) == 1
    assert len(read(tmp_path, json.dumps([CASE, json.loads(NAMED)], indent=2))) == 2
    assert len(read(tmp_path, json.dumps([CASE, CASE, CASE]))) == 3


def test_compressed(tmp_path: Path) -> None:
    assert len(read(tmp_path, gzip.compress(f"{LINE}\n{NAMED}\n".encode()), "f.jsonl.gz")) == 2


def test_truncated_gzip_is_one_line(tmp_path: Path) -> None:
    data = gzip.compress((LINE + "\n").encode() * 1000)
    path = tmp_path / "f.jsonl.gz"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ReadError, match=r"f\.jsonl\.gz: "):
        list(read_records(str(path)))


@pytest.mark.parametrize("bad", ["{", "[1", '{"case": 5}', "nonsense", '{"case": {"fiafuzz": 1}}', '{"case":' + LINE + ',"profile":5}'])
def test_bad_line_in_the_middle(tmp_path: Path, bad: str) -> None:
    found = read(tmp_path, f"{LINE}\n{bad}\n{NAMED}\n")
    assert [type(r) for r in found] == [Record, BadRecord, Record]
    assert str(found[1]).count("\n") == 0
    assert ":2: " in str(found[1])


def test_bad_first_line_does_not_hide_the_rest(tmp_path: Path) -> None:
    found = read(tmp_path, f'{{"fiafuzz": 1,\n{LINE}\n{NAMED}\n')
    assert [type(r) for r in found] == [BadRecord, Record, Record]


def test_empty_file_has_no_records(tmp_path: Path) -> None:
    assert read(tmp_path, "") == []
    assert read(tmp_path, "\n \n") == []


@pytest.mark.parametrize("text", ["{", "[", "null", "5", '{"a": }', "[" * 100_000, "\x00"])
def test_hopeless_files_are_one_bad_record(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, text)
    assert len(found) == 1 and isinstance(found[0], BadRecord)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="no such file"):
        list(read_records(str(tmp_path / "nosuch")))
    with pytest.raises(ReadError, match="is a directory"):
        list(read_records(str(tmp_path)))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        buffer = io.BytesIO(f"{LINE}\n".encode())

    monkeypatch.setattr(sys, "stdin", Fake())
    assert len(list(read_records("-"))) == 1
