"""Every example of the README is run; its two install commands are the ones that CI uses."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .calls import line, plain
from .conftest import ROOT, fiafuzz_in

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^ {4}\$ (.+)$", README, re.MULTILINE)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 7
    assert all(text.startswith("fiafuzz ") for text in EXAMPLES)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a finished run, called RUN, and the corpus that it filled."""
    where = tmp_path_factory.mktemp("readme")
    run = fiafuzz_in(where)
    ran = run("fuzz", "--backend", "faulty:causal-one-too-many", "-n", "600", "--seed", "7", "--out", "RUN")
    assert ran.code == 1, ran.err
    return where


def exit_code(words: list[str]) -> int:
    """What an example must end with: 1 where a planted fault is found or a run that found one is resumed."""
    return 1 if "faulty:" in " ".join(words) or "--resume" in words else 0


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(finished: Path, tmp_path: Path, example: str) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    (tmp_path / "cases.jsonl").write_text(line(plain()) + line(plain(sparseMode=3), name="odd"))
    data: str = ""
    said = ""
    for part in example.split(" | "):
        words = shlex.split(part)
        assert words[0] == "fiafuzz"
        ran = fiafuzz_in(tmp_path)(*words[1:], stdin=data)
        assert ran.code == exit_code(words), ran.err
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
