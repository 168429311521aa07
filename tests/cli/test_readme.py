"""Every example of the README is run; its two install commands are the ones that CI uses."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .calls import line, plain
from .conftest import ROOT, Ran

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^ {4}\$ (.+)$", README, re.MULTILINE)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 7
    assert all(text.startswith("fiafuzz ") for text in EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(fiafuzz: Callable[..., Ran], tmp_path: Path, example: str) -> None:
    (tmp_path / "cases.jsonl").write_text(line(plain()) + line(plain(sparseMode=3), name="odd"))
    (tmp_path / "corpus").mkdir()
    data: str = ""
    for part in example.split(" | "):
        words = shlex.split(part)
        assert words[0] == "fiafuzz"
        ran = fiafuzz(*words[1:], stdin=data)
        expected = 1 if "faulty:" in part else 5 if words[1] == "replay" else 0
        assert ran.code == expected, ran.err
        data = ran.out
    assert "faulty:" in example or "replay" in example or data


def test_install_commands() -> None:
    commands = re.findall(r"<!-- (\w+) command -->\n\n {4}(.+)\n", README)
    assert [name for name, _ in commands] == ["fuzz", "test"]
    for _, text in commands:
        assert text.startswith("python3 -m venv .venv && .venv/bin/pip install -q -c .ci/constraints.txt -e ")
    assert commands[0][1].endswith(".venv/bin/fiafuzz fuzz --max-time 60s")


def test_python_example(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    (tmp_path / "test_it.py").write_text(
        "from hypothesis import settings\nsettings.register_profile('quick', max_examples=5)\nsettings.load_profile('quick')\n" + block
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
    for target in re.findall(r"\]\(([\w./]+)\)", README):
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
    }
