"""The corpus: written whole, read as data from a stranger."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fiafuzz.campaign.corpus import (
    MAX_ENTRY_BYTES,
    BadEntry,
    Corpus,
    CorpusError,
    Entry,
    Got,
    decode_entry,
    encode_entry,
    read_entry,
    reproduce_line,
)
from fiafuzz.campaign.results import Element
from fiafuzz.campaign.triage import Signature, plain_case
from fiafuzz.campaign.verdict import Foreseen

ID = "F101-0123456789"


def entry(entry_id: str = ID, seed: int = 0) -> Entry:
    return Entry(
        id=entry_id, title="wrong values", signature=Signature("cpu", "F101", None, (("lse", "on"),)), profile="950-v5",
        case=plain_case("950", "v5").replace(seed=seed), original="00", expected=Foreseen("accept", (0,)),
        got=Got("ok", text="off", error_ratio=3.0, worst=(Element("softmaxLse", (0, 0), "inf", 1.0, 0.5),)), differences=("lse: on",),
        environment={"torch": "2"}, seed=7, first_seen="2026-01-01T00:00:00+00:00", reproduce=f"fiafuzz replay {entry_id} --backend cpu")


def test_an_entry_comes_back_as_it_was(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    path = corpus.add(entry())
    assert path == tmp_path / "found" / f"{ID}.json"
    assert list(corpus.entries()) == [entry()]
    assert corpus.find(ID) == entry()
    assert corpus.find("F101-ffffffffff") is None
    assert decode_entry(encode_entry(entry())) == entry()
    assert os.listdir(tmp_path / "found") == [path.name], "no temporary file is left"


def test_reading_makes_nothing(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "none")
    assert list(corpus.entries()) == [] and corpus.find(ID) is None
    assert not (tmp_path / "none").exists()


def test_the_first_entry_of_a_signature_stays(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.add(entry(seed=1))
    with pytest.raises(FileExistsError):
        corpus.add(entry(seed=2))
    assert list(corpus.entries()) == [entry(seed=1)]


def test_entries_of_all_folders_are_read(tmp_path: Path) -> None:
    for folder, number in (("regressions", 1), ("imported", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "any name.json").write_bytes(encode_entry(entry(f"F101-000000000{number}")))
    (tmp_path / "regressions" / "notes.txt").write_text("not an entry")
    (tmp_path / "regressions" / ".hidden.json").write_text("not an entry")
    assert [e.id for e in Corpus(tmp_path).entries() if isinstance(e, Entry)] == ["F101-0000000001", "F101-0000000002"]
    assert Corpus(tmp_path).find("F101-0000000002") == entry("F101-0000000002")


def bad_lines(corpus: Corpus) -> list[str]:
    found = [str(e) for e in corpus.entries() if isinstance(e, BadEntry)]
    assert all("\n" not in line for line in found)
    return found


def test_what_is_no_entry_is_told_and_left_alone(tmp_path: Path) -> None:
    found = tmp_path / "found"
    found.mkdir()
    good = encode_entry(entry())
    (found / f"{ID}.json").write_bytes(good)
    files = {
        "empty.json": b"", "half.json": good[: len(good) // 2], "list.json": b"[1]", "text.json": b"\xff\xfe",
        "other.json": b'{"case": {}}', "future.json": good.replace(b'"fiafuzz_entry": 1', b'"fiafuzz_entry": 99'),
        "case.json": good.replace(b'"dtype": "FLOAT16"', b'"dtype": "FLOAT17"'), "deep.json": b"[" * 100_000,
        "id.json": good.replace(ID.encode(), b"../../evil.."),
    }
    for name, data in files.items():
        (found / name).write_bytes(data)
    (found / "directory.json").mkdir()
    (found / "link.json").symlink_to(found / f"{ID}.json")
    os.mkfifo(found / "pipe.json")
    corpus = Corpus(tmp_path)
    lines = bad_lines(corpus)
    assert len(lines) == len(files) + 3
    for word in ("is a directory", "links are not followed", "not a regular file", "version 99", "FLOAT17", "no field fiafuzz_entry",
                 "not of the form"):
        assert any(word in line for line in lines), word
    assert [e for e in corpus.entries() if isinstance(e, Entry)] == [entry()]
    assert all((found / name).read_bytes() == data for name, data in files.items())


def test_huge_files_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    with open(path, "wb") as file:
        file.truncate(MAX_ENTRY_BYTES + 1)
    found = read_entry(path)
    assert isinstance(found, BadEntry) and "over the limit" in found.reason


def test_a_folder_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f"{ID}.json").write_bytes(encode_entry(entry()))
    root = tmp_path / "corpus"
    root.mkdir()
    (root / "found").symlink_to(elsewhere)
    assert bad_lines(Corpus(root)) == [f"{root / 'found'}: not a directory (links are not followed)"]
    assert Corpus(root).find("F101-aaaaaaaaaa") is None
    with pytest.raises(CorpusError, match="links are not followed"):
        Corpus(root).add(entry("F101-aaaaaaaaaa"))
    assert len(os.listdir(elsewhere)) == 1


@pytest.mark.parametrize("entry_id", ["", "..", "../x", "F101-/etc", "F101-012345678", "F101-0123456789/../x", "F101-0123456789\n"])
def test_ids_cannot_leave_the_directory(tmp_path: Path, entry_id: str) -> None:
    assert Corpus(tmp_path).find(entry_id) is None
    with pytest.raises(CorpusError):
        Corpus(tmp_path).add(entry(entry_id))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_files_never_do_more_than_be_told(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = encode_entry(entry())
    at = data.draw(st.integers(0, len(whole)))
    junk = data.draw(st.binary(max_size=8))
    path = tmp_path_factory.mktemp("damaged") / "x.json"
    path.write_bytes(whole[:at] + junk + (whole[at + len(junk):] if data.draw(st.booleans()) else b""))
    found = read_entry(path)
    assert isinstance(found, (Entry, BadEntry))
    if isinstance(found, BadEntry):
        assert "\n" not in str(found)


def _add_all(root: str, seed: int) -> None:
    corpus = Corpus(root)
    for number in range(30):
        with contextlib.suppress(FileExistsError):
            corpus.add(entry(f"F101-{number:010x}", seed))


def test_two_writers_leave_whole_entries(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_add_all, args=(str(tmp_path), seed)) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    found = list(Corpus(tmp_path).entries())
    assert len(found) == 30 and all(isinstance(e, Entry) for e in found)
    assert sorted(os.listdir(tmp_path / "found")) == [f"F101-{n:010x}.json" for n in range(30)]


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(CorpusError, match="not a directory"):
        list(Corpus(path).entries())
    with pytest.raises(CorpusError) as caught:
        Corpus(path).check_writable()
    assert "\n" not in str(caught.value)


def test_the_reproduce_line_is_safe_for_a_shell() -> None:
    assert reproduce_line(ID, "cpu", "corpus") == f"fiafuzz replay {ID} --backend cpu"
    assert reproduce_line(ID, "x; rm -rf /", "my dir") == f"fiafuzz replay {ID} --backend 'x; rm -rf /' --corpus 'my dir'"


def test_entries_are_plain_json(tmp_path: Path) -> None:
    data = msgspec.json.decode(Corpus(tmp_path).add(entry()).read_bytes())
    assert data["fiafuzz_entry"] == 1 and data["case"]["fiafuzz"] == 1
    assert data["got"]["worst"][0]["expected"] == "inf"
