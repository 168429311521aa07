"""The pytest plugin as its users run it: another pytest, in a directory of its own, with and without xdist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fiafuzz.campaign.corpus import Corpus, Entry
from fiafuzz.campaign.triage import Signature, plain_case
from fiafuzz.model.case import Case, encode_case
from fiafuzz.model.scene import Scene
from strategies.cases import generate
from tests.unit.run_logs import entry

ROOT = Path(__file__).resolve().parents[2]
CRASHING = "nasty-sigsegv"
"""Dies of every call with an odd number of key columns; without torch, so that the worker after it starts at once."""


def valid(odd: bool) -> Case:
    """A generated valid call with an odd or an even number of key columns."""
    for one in generate("950-v5", "valid", 200, 3):
        scene = Scene(one.case)
        if scene.KV_S and bool(scene.KV_S % 2) is odd and scene.storage == "contiguous":
            return one.case
    raise AssertionError("none generated")


def kept(case: Case, code: str, backend: str, error: str = "") -> Entry:
    """An entry about a case."""
    return entry(signature=Signature(backend, code, None, (("mask", case.digest[:6]),), error), case=case)


def run(where: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and output of a pytest of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments],
        cwd=where,
        env={**os.environ, "PYTHONPATH": f"{where / 'site'}{os.pathsep}{ROOT}", "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def outcomes(text: str) -> dict[str, str]:
    """Item name -> outcome, from the short summary."""
    found = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word in ("PASSED", "FAILED", "XFAIL", "SKIPPED", "ERROR") and "::" in rest:
            found[rest.split("::")[1].split(" - ")[0]] = word
    return found


def workers_of(pid_text: str) -> list[str]:
    """Worker processes whose command line names a parent that is gone."""
    left = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if "fiafuzz.campaign.worker" in words and words[-2] == pid_text:
                left.append(folder.name)
    return left


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A corpus with an entry that still fails, one that does not, a file that is none, and a file of cases."""
    where = tmp_path / "corpus"
    kept_in = Corpus(where)
    kept_in.add(kept(valid(odd=True), "F301", CRASHING, "signal 11"))
    kept_in.add(kept(valid(odd=False), "F301", CRASHING, "signal 11"))
    (where / "found" / "broken.json").write_text('{"fiafuzz_entry": 1', encoding="utf-8")
    (where / "imported").mkdir()
    lines = b'{"name": "plain", "case": ' + encode_case(plain_case("950", "v5")) + b'}\n{"name": "cut", "case": {\n'
    (where / "imported" / "calls.ndjson").write_bytes(lines)
    return where


def ids(corpus: Path) -> tuple[str, str]:
    """Ids of the failing and of the fixed entry."""
    entries = [e for e in Corpus(corpus).entries() if isinstance(e, Entry)]
    (odd,) = [e.id for e in entries if (Scene(e.case).KV_S or 0) % 2]
    (even,) = [e.id for e in entries if (Scene(e.case).KV_S or 0) % 2 == 0]
    return odd, even


@pytest.mark.parametrize("split", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_a_crashing_backend_fails_its_item_and_nothing_else(tmp_path: Path, corpus: Path, split: tuple[str, ...]) -> None:
    odd, even = ids(corpus)
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    code, text = run(tmp_path, "test_own.py", "--fiafuzz-corpus", "corpus", *split)
    found = outcomes(text)
    assert code == 1, text
    assert found[odd] == "FAILED" and found[even] == "PASSED" and found["test_own"] == "PASSED", text
    assert found["plain"] == "PASSED", text
    assert found["broken.json"] == "FAILED" and found["calls.ndjson:2"] == "FAILED", text
    assert sum(word == "FAILED" for word in found.values()) == 3, text
    assert f"{odd} is failing on {CRASHING} (950-v5): crash: killed by SIGSEGV" in text and "reproduce  fiafuzz replay" in text
    assert "Traceback" not in text


def test_known_issues_are_expected_failures_until_they_are_fixed(tmp_path: Path, corpus: Path) -> None:
    odd, even = ids(corpus)
    known = f'[[known]]\nsignature = "{odd}"\nissue = "OPS-1"\n[[known]]\nsignature = "{even}"\nissue = "OPS-2"\n'
    (corpus / "known.toml").write_text(known)
    _, text = run(tmp_path, "corpus/found", "--fiafuzz-corpus", "corpus")
    found = outcomes(text)
    assert found[odd] == "XFAIL" and "known issue OPS-1" in text, text
    assert found[even] == "FAILED" and "OPS-2, and no longer fails: remove it from known.toml" in text, text


OWN_TESTS = """
import pytest
from hypothesis import HealthCheck, given, settings
from fiafuzz.model.case import decode_case
from strategies.cases import valid_cases

CALLS = [decode_case(line) for line in open("calls.ndjson", "rb")]

@pytest.mark.parametrize("case", CALLS, ids=["even", "odd"])
def test_check(case, fia_backend, fia_profile):
    assert fia_profile == "950-v5" and fia_backend.name == "{backend}"
    fia_backend.check(case)

def test_run(fia_backend):
    result = fia_backend.run(CALLS[0])
    assert result.kind == "ok" and result.judged.passed and "attentionOut" in result.outputs

@given(valid_cases("950-v5"))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
def test_generated(fia_backend, case):
    fia_backend.run(case)
"""


@pytest.mark.parametrize("backend", [CRASHING, "cpu"], ids=["crashing", "cpu"])
def test_the_backend_fixture_serves_anyones_tests(tmp_path: Path, backend: str) -> None:
    (tmp_path / "calls.ndjson").write_bytes(encode_case(valid(odd=False)) + b"\n" + encode_case(valid(odd=True)) + b"\n")
    (tmp_path / "test_own.py").write_text(OWN_TESTS.replace("{backend}", backend))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nfiafuzz_backend = {backend}\n")
    code, text = run(tmp_path)
    found = outcomes(text)
    wanted = "FAILED" if backend == CRASHING else "PASSED"
    assert found["test_check[even]"] == "PASSED" and found["test_check[odd]"] == wanted, text
    assert found["test_run"] == "PASSED" and found["test_generated"] == "PASSED", text
    assert code == (1 if backend == CRASHING else 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--fiafuzz-corpus", "none"), "none is no directory"),
        (("--fiafuzz-profile", "950-v6"), "unknown profile '950-v6'"),
    ],
    ids=["directory", "profile"],
)
def test_what_makes_no_sense_is_refused_at_once(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    code, text = run(tmp_path, *arguments)
    assert code == 4 and said in text and "Traceback" not in text


def test_it_costs_nothing_while_nobody_uses_it(tmp_path: Path) -> None:
    heavy = "{'torch', 'numpy', 'oracles', 'fiafuzz.campaign'}"
    (tmp_path / "test_own.py").write_text(f"import sys\ndef test_own():\n    assert not {heavy} & set(sys.modules)\n")
    code, text = run(tmp_path, "-p", "no:hypothesispytest", "-p", "no:xdist")
    assert code == 0, text


def test_no_worker_outlives_the_session(tmp_path: Path, corpus: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import os\ndef pytest_unconfigure(config):\n    open('pid', 'w').write(str(os.getpid()))\n"
    )
    run(tmp_path, "--fiafuzz-corpus", "corpus")
    pid = (tmp_path / "pid").read_text()
    assert workers_of(pid) == []
