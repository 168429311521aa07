"""Whole command lines, run as a user runs them: a process, its output, its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ran:
    """Exit code and output of one command line."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The only line on stderr that starts with the program's name."""
        lines = [line for line in self.err.splitlines() if line.startswith("fiafuzz: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0]


def fiafuzz_in(where: Path) -> Callable[..., Ran]:
    """Something that runs ``fiafuzz ARGUMENTS`` in a directory."""

    def run(*arguments: str, stdin: str | bytes = b"", timeout: float = 240, env: dict[str, str] | None = None) -> Ran:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "100", **(env or {})}
        done = subprocess.run(
            [sys.executable, "-m", "fiafuzz.cli.main", *arguments],
            input=data,
            capture_output=True,
            cwd=where,
            env=environment,
            timeout=timeout,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    return run


@pytest.fixture
def fiafuzz(tmp_path: Path) -> Callable[..., Ran]:
    """Run ``fiafuzz ARGUMENTS`` in an empty directory."""
    return fiafuzz_in(tmp_path)
