"""fiafuzz export: command lines with their output, files and exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fiafuzz.campaign.corpus import Corpus, Entry, Got, encode_entry
from fiafuzz.campaign.results import Element, Foreseen
from fiafuzz.campaign.triage import Signature
from fiafuzz.model.case import case_from_dict

from .calls import line, plain
from .conftest import ROOT, Ran

Run = Callable[..., Ran]
FAULT = "faulty:causal-one-too-many"
ID = "F101-0123456789"


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """As ``fiafuzz``, in this process."""
    from fiafuzz.cli.main import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        out, err = capsys.readouterr()
        return Ran(int(left.value.code or 0), out, err)

    return run


def causal(**more: Any) -> dict[str, Any]:
    """A call on which the planted fault shows."""
    case = plain(sparseMode=3)
    case["inputs"]["attenMask"] = {"shape": [2048, 2048], "dtype": "BOOL"}
    return {**case, **more}


def entry(case: dict[str, Any]) -> Entry:
    return Entry(
        id=ID, title="wrong values", signature=Signature(FAULT, "F101"), profile="950-v5", case=case_from_dict(case), original="0",
        expected=Foreseen("accept", (0,)), got=Got("ok", text="off", worst=(Element("attentionOut", (0, 0, 1, 0), 0.25, 0.75, 0.001),)),
        differences=(), environment={}, seed=7, first_seen="2026-01-01T00:00:00+00:00", reproduce=f"fiafuzz replay {ID}",
    )  # fmt: skip


def test_a_case_of_a_file_goes_to_standard_output(fiafuzz: Run, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(line(plain()))
    ran = fiafuzz("export", "one.json")
    assert ran.code == 0 and ran.err == "", ran.err
    compile(ran.out, "x", "exec")
    assert "torch.ops.npu.npu_fused_infer_attention_score" in ran.out and "profile 950-v5" in ran.out
    assert str(tmp_path) not in ran.out
    assert fiafuzz("export", "-", "--as", "cpp", stdin=line(plain(), name="n")).out.startswith("// n\n")
    other = fiafuzz("export", "one.json", "--as", "cpp", "--profile", "950-v5-2026.08")
    assert "profile 950-v5-2026.08" in other.out


def test_an_entry_by_id_and_by_file(inside: Run, tmp_path: Path) -> None:
    path = Corpus(tmp_path / "kept").add(entry(plain()))
    by_id = inside("export", ID, "--corpus", "kept")
    assert by_id.code == 0 and f"{ID}: wrong values" in by_id.out and f"found on {FAULT}" in by_id.out
    assert "(16, 0.25, 0.249" in by_id.out.split("CHECKS")[1]
    assert inside("export", str(path)).out == by_id.out
    ran = inside("export", ID)
    assert ran.code == 2 and ran.complaint == f"fiafuzz: {ID}: neither a file nor an entry of corpus"


def test_several_cases_need_a_directory(inside: Run, tmp_path: Path) -> None:
    lines = line(plain(), name="a") + line(plain(numHeads=3), name="a") + line(plain(), name="../b")
    ran = inside("export", "-", "--as", "pytest", stdin=lines)
    assert ran.code == 2 and "3 cases: pytest makes one file for each; give -o DIRECTORY" in ran.complaint
    ran = inside("export", "-", "--as", "pytest", "-o", "out/new", stdin=lines)
    assert ran.code == 0 and "3 cases in out/new, 0 refused" in ran.err
    names = sorted(os.listdir(tmp_path / "out" / "new"))
    assert len(names) == 3 and {"test_fia_a.py", "test_fia_b.py"} < set(names)
    assert inside("export", "-", "--name", "../b", "--as", "pytest", stdin=lines).code == 0
    (tmp_path / "file").write_text("")
    ran = inside("export", "-", "--as", "pytest", "-o", "file", stdin=lines)
    assert ran.code == 2 and ran.complaint == "fiafuzz: file: not a directory"
    assert (tmp_path / "file").read_text() == ""


def test_what_cannot_be_said_does_not_hide_the_rest(inside: Run, tmp_path: Path) -> None:
    odd = plain()
    odd["inputs"]["key"] = odd["inputs"]["key"] * 2
    lines = line(plain(), name="good") + "{broken\n" + line(odd, name="odd")
    ran = inside("export", "-", "-o", "out", stdin=lines)
    assert ran.code == 2 and os.listdir(tmp_path / "out") == ["fia_good.py"]
    assert "odd: torch takes one tensor for key, not a list of 2; --as cpp says whatever the C interface can" in ran.err
    assert "<stdin>:2" in ran.err and "1 unreadable record" in ran.err and "1 cases in out, 1 refused" in ran.err
    ran = inside("export", "-", "--as", "ut-csv", stdin=lines)
    assert ran.code == 2 and len(ran.out.splitlines()) == 3, "the table says the list; the broken line is told"


@pytest.mark.parametrize("form", ["atk", "ut-csv"])
def test_tables_go_round(inside: Run, tmp_path: Path, form: str) -> None:
    (tmp_path / "cases.jsonl").write_text(line(plain(), name="a") + line(plain(numHeads=3), name="b"))
    ran = inside("export", "cases.jsonl", "--as", form, "-o", "t")
    assert ran.code == 0 and "2 cases, 0 refused" in ran.err and "note: " in ran.err and ran.out == ""
    back = inside("import", "t", "--from", form)
    assert back.code == 0, back.err
    records = [json.loads(text) for text in back.out.splitlines()]
    assert [(r["name"], r["expected"]["verdict"]) for r in records] == [("a", "accept"), ("b", "reject")]
    assert inside("export", "cases.jsonl", "--as", form).out.encode() == (tmp_path / "t").read_bytes()


def test_large_tensors_lie_beside_the_file(inside: Run, tmp_path: Path) -> None:
    case = plain()
    for name in ("key", "value"):
        case["inputs"][name] = [{"shape": [1, 2, 9000, 16], "dtype": "FLOAT16", "fill": {"kind": "normal"}}]
    ran = inside("export", "-", stdin=line(case, name="x"))
    assert ran.code == 2 and "with -o it lies beside it" in ran.complaint and ran.out == ""
    ran = inside("export", "-", "-o", "it.py", stdin=line(case, name="x"))
    assert ran.code == 0 and ran.err.splitlines()[-1] == "it.py with it.npz beside it"
    assert sorted(os.listdir(tmp_path)) == ["it.npz", "it.py"]
    first = (tmp_path / "it.npz").read_bytes(), (tmp_path / "it.py").read_bytes()
    assert inside("export", "-", "-o", "it.py", stdin=line(case, name="x")).code == 0
    assert first == ((tmp_path / "it.npz").read_bytes(), (tmp_path / "it.py").read_bytes())


BAD: tuple[tuple[str, tuple[str, ...], int, str], ...] = (
    ("no such file", ("nothing.json",), 2, "nothing.json: neither a file nor an entry of corpus"),
    ("no such form", ("-", "--as", "fortran"), 2, "'fortran' is not one of"),
    ("nothing", (), 2, "Missing argument"),
    ("profile", ("-", "--profile", "950-v6"), 2, "unknown profile '950-v6'"),
    ("name", ("-", "--name", "z"), 5, "no case to export is called 'z'"),
    ("where", ("-", "-o", "no/such/file.py"), 2, "no/such/file.py: No such file or directory"),
    ("table", ("-", "--as", "atk", "-o", "."), 2, ".: is a directory; atk makes one file"),
)


@pytest.mark.parametrize(("arguments", "code", "says"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_command_lines(inside: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    ran = inside("export", *arguments, stdin=line(plain(), name="x"))
    assert ran.code == code and says in ran.complaint and ran.out == ""
    assert os.listdir(tmp_path) == []


def test_an_entry_of_an_unknown_profile_is_refused_in_one_line(inside: Run, tmp_path: Path) -> None:
    data = json.loads(encode_entry(entry(plain())))
    (tmp_path / "e.json").write_text(json.dumps({**data, "profile": "\x1b[31mxx"}))
    ran = inside("export", "e.json")
    assert ran.code == 2 and "unknown profile" in ran.complaint and "\x1b" not in ran.err
    assert inside("export", "e.json", "--profile", "950-v5").code == 0


def test_an_exported_test_runs_as_it_is(inside: Run, tmp_path: Path) -> None:
    Corpus(tmp_path / "corpus").add(entry(causal()))
    assert inside("export", ID, "--as", "pytest", "-o", "test_it.py").code == 0

    def run(backend: str) -> tuple[int, str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "FIAFUZZ_BACKEND": backend}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout

    code, text = run("")
    assert code == 1 and f"on {FAULT}: failing F101" in text, text
    assert run("cpu")[0] == 0
