"""Readers of the output that go away before its end (| head)."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("words", [("generate", "-n", "3000", "--seed", "1"), ("constraints", "list", "--json")])
def test_a_reader_that_has_enough_is_no_finding(words: tuple[str, ...]) -> None:
    """Exit code 1 would be read as findings in a pipe with pipefail."""
    command = [sys.executable, "-m", "fiafuzz.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert len(process.stdout.read(10)) == 10
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
