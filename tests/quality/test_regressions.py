"""The findings that the repository keeps: entries are whole, known issues point to something, and scripts show what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fiafuzz.campaign.corpus import Corpus, Entry
from fiafuzz.campaign.corpus_verify import Trouble, verify
from fiafuzz.campaign.known import KNOWN_FILE, read_known

CORPUS = Path(__file__).resolve().parents[2] / "corpus"
SCRIPTS = sorted((CORPUS / "regressions" / "scripts").glob("*.py"))


def test_the_corpus_is_whole() -> None:
    found = list(verify(Corpus(CORPUS)))
    assert found and not [trouble for trouble in found if isinstance(trouble, Trouble)]


def test_entries_are_told_as_known_and_known_issues_have_a_script() -> None:
    issues = read_known(CORPUS / KNOWN_FILE)
    kept = {entry.id for entry in Corpus(CORPUS).entries() if isinstance(entry, Entry)}
    assert {issue.signature for issue in issues} == kept
    assert all((CORPUS / issue.issue).is_file() for issue in issues)


def test_entries_are_reproduced_from_the_checkout() -> None:
    for entry in Corpus(CORPUS).entries():
        assert isinstance(entry, Entry)
        assert entry.reproduce == f"fiafuzz replay {entry.id} --backend {entry.signature.backend}"


@pytest.mark.parametrize("script", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_a_script_shows_the_wrong_value(script: Path, tmp_path: Path) -> None:
    text = script.read_text(encoding="utf-8")
    assert "fiafuzz" not in text
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    command = [sys.executable, str(script)]
    ran = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=300, check=False)
    told = f"{ran.stdout}\n{ran.stderr[-2000:]}"
    if ran.returncode == 2 and os.environ.get("FIAFUZZ_REQUIRE_ALL") != "1":
        pytest.skip(ran.stdout.strip().splitlines()[-1])
    assert ran.returncode != 0, f"the defect is gone in this version: the script, its entries and its known issue can go\n{told}"
    assert ran.returncode == 1 and "due" in ran.stdout, told
