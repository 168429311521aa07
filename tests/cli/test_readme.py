"""Every example of the README is run; its two install commands are the ones that CI uses."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from .calls import line, plain
from .conftest import ROOT, Ran, fiafuzz_in

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^ {4}\$ (.+)$", README, re.MULTILINE)
(WITH_A_FAULT,) = (text for text in EXAMPLES if "faulty:" in text)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 7
    assert all(text.startswith("fiafuzz ") for text in EXAMPLES)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """The README's own run, made in an empty directory as RUN: the directory with the corpus that it filled, and what it said.

    Processes of one pytest share it: it is the longest example, and most others need a run that has ended.
    """
    ended = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        ended = ended.parent
    where, said = ended / "readme", ended / "readme.json"
    with open(ended / "readme.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            where.mkdir()
            ran = fiafuzz_in(where)(*shlex.split(WITH_A_FAULT)[1:], "--out", "RUN", timeout=900)
            said.write_text(json.dumps(asdict(ran)))
    return where, Ran(**json.loads(said.read_text()))


def test_the_run_that_finds_a_fault(finished: tuple[Path, Ran]) -> None:
    where, ran = finished
    assert ran.code == 1, ran.err
    (kept,) = (where / "corpus" / "found").glob("F101-*.json")
    # "prints what was expected, what came, the few parameters that matter, and the line that reproduces it"
    for words in ("expected ", "got ", "differs in ", f"reproduce  fiafuzz replay {kept.stem} "):
        assert words in ran.err, ran.err


@pytest.mark.parametrize("example", [text for text in EXAMPLES if text != WITH_A_FAULT])
def test_example(finished: tuple[Path, Ran], tmp_path: Path, example: str) -> None:
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "cases.jsonl").write_text(line(plain()) + line(plain(sparseMode=3), name="odd"))
    data: str = ""
    said = ""
    for part in example.split(" | "):
        words = shlex.split(part)
        assert words[0] == "fiafuzz"
        ran = fiafuzz_in(tmp_path)(*words[1:], stdin=data)
        # The run that is resumed has found something.
        assert ran.code == (1 if "--resume" in words else 0), ran.err
        data, said = ran.out, ran.err
    assert data or said


def test_install_commands() -> None:
    commands = re.findall(r"<!-- (\w+) command -->\n\n {4}(.+)\n", README)
    assert [name for name, _ in commands] == ["fuzz", "test"]
    for _, text in commands:
        assert text.startswith("python3 -m venv .venv && .venv/bin/pip install -q -c .ci/constraints.txt -e ")
    assert commands[0][1].endswith(".venv/bin/fiafuzz fuzz --max-time 60s")


def test_python_example(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    (tmp_path / "test_it.py").write_text(
        "from hypothesis import settings\n"
        "settings.register_profile('quick', max_examples=5, database=None)\n"
        "settings.load_profile('quick')\n" + block
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_it.py")],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_links_and_verbs_exist() -> None:
    for target in re.findall(r"\]\(([\w./-]+)\)", README):
        assert (ROOT / target).exists()
    from fiafuzz.cli.main import VERBS

    named = set(re.findall(r"fiafuzz (\w+)", README))
    assert {v for v in named if v in VERBS} >= {
        "fuzz",
        "replay",
        "generate",
        "predict",
        "reference",
        "judge",
        "shrink",
        "import",
        "coverage",
        "report",
        "history",
        "bisect",
        "export",
        "corpus",
        "doctor",
    }
