"""fuzz, replay, shrink, coverage: command lines with their output, files and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fiafuzz.campaign.corpus import encode_entry
from tests.unit.kept_entries import entry_of

from .calls import line, plain
from .conftest import ROOT, Ran

Run = Callable[..., Ran]
FAULT = "faulty:causal-one-too-many"


def test_clean_run(fiafuzz: Run, tmp_path: Path) -> None:
    ran = fiafuzz("fuzz", "-n", "150", "--seed", "3", "--json", "--report", "html,junit", "--out", "run")
    assert ran.code == 0, ran.err
    summary = json.loads(ran.out)
    assert summary["status"] == "clean" and summary["seed"] == 3 and summary["findings"] == []
    assert 140 <= summary["cases"] <= 160
    assert "no finding" in ran.err and "seed 3" in ran.err
    root = ElementTree.parse(tmp_path / "run" / "junit.xml").getroot()
    suite = root.find("testsuite")
    assert suite is not None and suite.get("failures") == "0" and int(suite.get("tests", "0")) > 3
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Clean: " in page and "http" not in page.replace("http-equiv", "")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "clean" and record["plan"]["seed"] == 3
    coverage = fiafuzz("coverage", "run", "--json")
    assert json.loads(coverage.out)["suites"][0]["cases"] > 10


def test_finding_is_kept_replayed_and_shrunk(fiafuzz: Run, tmp_path: Path) -> None:
    ran = fiafuzz("fuzz", "--backend", FAULT, "-n", "100", "--seed", "7", "--mode", "valid", "--report", "junit,html", "--out", "run")
    assert ran.code == 1, ran.err
    # The relation that the fault breaks may be kept beside it; the wrong value itself is there once.
    names = sorted(path.name for path in (tmp_path / "corpus" / "found").iterdir())
    (kept,) = (tmp_path / "corpus" / "found").glob("F101-*")
    assert {name[:5] for name in names} <= {"F101-", "F106-"}
    entry = json.loads(kept.read_text())
    assert entry["signature"]["backend"] == FAULT and entry["signature"]["code"] == "F101"
    assert kept.stem in ran.err and "reproduce" in ran.err and "differs in" in ran.err
    assert kept.stem in (tmp_path / "run" / "report.html").read_text()
    suites = ElementTree.parse(tmp_path / "run" / "junit.xml").getroot().findall("testsuite")
    assert sum(int(suite.get("failures", "0")) for suite in suites) == len(names)

    reproduce = entry["reproduce"].split()
    assert reproduce[0] == "fiafuzz"
    again = fiafuzz(*reproduce[1:])
    assert again.code == 1 and again.out.startswith("failing")
    fixed = fiafuzz("replay", "--backend", "cpu")
    assert fixed.code == 0 and [text.split()[:2] for text in fixed.out.splitlines()] == [["passing", name[:-5]] for name in names]
    as_data = fiafuzz("replay", kept.stem, "--json")
    assert json.loads(as_data.out)["status"] == "failing"

    second = fiafuzz("fuzz", "--backend", FAULT, "-n", "60", "--seed", "8", "--mode", "valid")
    assert second.code == 1 and "known" in second.err
    assert [path.name for path in (tmp_path / "corpus" / "found").glob("F101-*")] == [kept.name]

    shrunk = fiafuzz("shrink", str(kept), "--backend", FAULT)
    assert shrunk.code == 0 and "runs in" in shrunk.err
    assert json.loads(shrunk.out)["fiafuzz"] == 1
    assert fiafuzz("shrink", str(kept), "--backend", "cpu").code == 5


def test_same_seed_same_cases(fiafuzz: Run, tmp_path: Path) -> None:
    digests = []
    for out in ("a", "b"):
        assert fiafuzz("fuzz", "-n", "120", "--seed", "11", "--out", out, "--corpus", f"corpus-{out}").code == 0
        events = [json.loads(text) for text in (tmp_path / out / "events.ndjson").read_text().splitlines()]
        digests.append([(e["phase"], e["digest"]) for e in events if e["event"] == "CaseDone" and e["phase"] != "explore"])
    assert sorted(digests[0]) == sorted(digests[1]) and len(digests[0]) > 50


def test_select_and_mode(fiafuzz: Run, tmp_path: Path) -> None:
    ran = fiafuzz("fuzz", "-n", "60", "--seed", "1", "--mode", "invalid", "--select", "pse", "--out", "run")
    assert ran.code == 0, ran.err
    events = [json.loads(text) for text in (tmp_path / "run" / "events.ndjson").read_text().splitlines()]
    rules = {e["rule"] for e in events if e["event"] == "CaseDone" and e.get("rule")}
    assert rules and all(rule.startswith("FIA-PS-") for rule in rules)
    assert fiafuzz("fuzz", "-n", "10", "--profile", "950-v3", "--mode", "valid").code == 5


def test_replay_compares_with_what_a_file_expects(fiafuzz: Run) -> None:
    ran = fiafuzz("replay", "-", stdin=line(plain(), name="good", expected={"verdict": "accept", "codes": [0]}))
    assert ran.code == 0 and ran.out.startswith("passing     good (cpu, 950-v5)")
    ran = fiafuzz("replay", "-", stdin=line(plain(), name="wrong", expected={"verdict": "reject", "codes": [561002]}))
    assert ran.code == 1 and "expected reject, predicted accept" in ran.out


def test_replay_of_damaged_files(fiafuzz: Run, tmp_path: Path) -> None:
    found = tmp_path / "corpus" / "found"
    found.mkdir(parents=True)
    (found / "F101-0123456789.json").write_text('{"fiafuzz_entry": 1, "id": ')
    (found / "F101-0123456780.json").mkdir()
    ran = fiafuzz("replay")
    assert ran.code == 2
    assert len([text for text in ran.err.splitlines() if text.startswith("fiafuzz: corpus/found/")]) == 2
    assert fiafuzz("replay", "../outside").code == 2


def test_entries_of_a_backend_that_is_not_here_do_not_end_a_replay(fiafuzz: Run, tmp_path: Path) -> None:
    found = tmp_path / "corpus" / "found"
    found.mkdir(parents=True)
    away, here = entry_of(backend="elsewhere"), entry_of("F102", backend="cpu")
    for entry in (away, here):
        (found / f"{entry.id}.json").write_bytes(encode_entry(entry))
    ran = fiafuzz("replay")
    assert ran.code == 0 and "fixed" in ran.out, ran.err
    assert "1 entry not replayed: unknown backend 'elsewhere'" in ran.err
    assert fiafuzz("replay", away.id).code == 2, "what is asked for by name must run"
    (found / f"{here.id}.json").unlink()
    ran = fiafuzz("replay")
    assert ran.code == 4 and "no entry can be replayed here" in ran.err


def test_unwritable_places(fiafuzz: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for option in ("--out", "--corpus"):
        ran = fiafuzz("fuzz", "-n", "5", option, "file/below")
        assert ran.code == 2
        assert "file" in ran.complaint


def test_unknown_and_impossible_backends(fiafuzz: Run) -> None:
    assert "unknown backend" in fiafuzz("fuzz", "--backend", "faulty:nosuch", "-n", "5").complaint
    hidden = {"PYTHONPATH": f"{ROOT}/tests/cli/without_torch{os.pathsep}{ROOT}"}
    ran = fiafuzz("fuzz", "-n", "5", env=hidden)
    assert ran.code == 4 and "torch" in ran.complaint
    assert fiafuzz("doctor", env=hidden).code == 4


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_keeps_what_it_found(tmp_path: Path, sent: signal.Signals) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fiafuzz.cli.main",
            "fuzz",
            "--max-time",
            "120s",
            "--seed",
            "7",
            "--out",
            "run",
            "--backend",
            FAULT,
            "--report",
            "junit",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    log = tmp_path / "run" / "events.ndjson"
    deadline = time.monotonic() + 100
    while not (log.exists() and '"event":"CaseDone"' in log.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; what was found so far is kept" in err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"
    assert (tmp_path / "run" / "junit.xml").exists()
