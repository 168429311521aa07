"""fiafuzz report: where reports go, what it says, several runs, runs that were killed, and what it refuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..unit.run_logs import case, full_log, leg, phase, started, write_log
from .conftest import ROOT, Ran

Run = Callable[..., Ran]


def test_report_of_a_campaign_with_a_picture(fiafuzz: Run, tmp_path: Path) -> None:
    plan = ("-n", "15", "--seed", "7", "--mode", "valid", "--phases", "pairwise")
    ran = fiafuzz("fuzz", "--backend", "faulty:causal-one-too-many", *plan, "--out", "run")
    assert ran.code == 1, ran.err
    ran = fiafuzz("report", "run")
    assert ran.code == 0 and ran.out == "" and ran.err == "html report run/report.html\n"
    page = (tmp_path / "run" / "report.html").read_text()
    assert re.search(r"<h1>[1-9][0-9]* new findings? in [0-9]+ cases", page)
    assert "Error as it was found" in page and "What the query tokens of" in page and "sparseMode" in page
    assert "faulty:causal-one-too-many" in page and "fiafuzz replay F101-" in page
    entry = next((tmp_path / "corpus" / "found").glob("F101-*")).read_text()
    assert '"pictures"' in entry
    again = fiafuzz("replay", next((tmp_path / "corpus" / "found").glob("F101-*")).stem)
    assert again.code == 1 and again.out.startswith("failing")


def test_where_reports_go(fiafuzz: Run, tmp_path: Path) -> None:
    write_log(tmp_path / "a", full_log())
    write_log(tmp_path / "b", full_log())
    assert fiafuzz("report", "a", "-o", "page.html").code == 0 and (tmp_path / "page.html").exists()
    (tmp_path / "out").mkdir()
    assert fiafuzz("report", "a", "--format", "html,junit", "-o", "out").code == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["junit.xml", "report.html"]
    assert fiafuzz("report", "a", "-o", "new/").code == 0 and (tmp_path / "new" / "report.html").exists()
    assert fiafuzz("report", "a/events.ndjson").code == 0 and (tmp_path / "a" / "report.html").exists()
    both = fiafuzz("report", "a", "b")
    assert both.code == 0 and "2 runs" in (tmp_path / "report.html").read_text()
    ran = fiafuzz("report", "b", "-o", "-")
    assert ran.code == 0 and ran.out.startswith("<!doctype html>") and ran.out.endswith("</html>\n") and ran.err == ""
    assert not (tmp_path / "b" / "report.html").exists()


def test_what_is_refused(fiafuzz: Run, tmp_path: Path) -> None:
    write_log(tmp_path / "a", full_log())
    write_log(tmp_path / "b", full_log())
    (tmp_path / "file").write_text("")
    for arguments, words in (
        ((), "name a run directory"),
        (("nosuch",), "nosuch: No such file or directory"),
        (("a", "--format", "pdf"), "'pdf' is not one of html, junit"),
        (("a", "--format", "html,junit", "-o", "x.html"), "x.html is no directory"),
        (("a", "--format", "html,junit", "-o", "-"), "standard output takes one format"),
        (("a", "b", "--format", "junit"), "junit takes one run, not 2"),
        (("a", "-o", "file/page.html"), "file"),
    ):
        ran = fiafuzz("report", *arguments)
        assert ran.code == 2 and words in ran.complaint, (arguments, ran.err)
    assert not (tmp_path / "x.html").exists()


def test_one_bad_run_spoils_no_good_format(fiafuzz: Run, tmp_path: Path) -> None:
    write_log(tmp_path / "a", full_log())
    (tmp_path / "a" / "junit.xml").mkdir()
    ran = fiafuzz("report", "a", "--format", "junit,html")
    assert ran.code == 2 and "junit.xml" in ran.complaint
    assert (tmp_path / "a" / "report.html").exists()


def test_damaged_and_empty_logs(fiafuzz: Run, tmp_path: Path) -> None:
    log = write_log(tmp_path / "a", [started(), leg(), phase(), case(1)], end=False)
    with open(log / "events.ndjson", "ab") as file:
        file.write(b'{"event":"CaseDone","n":2,\xff')
    assert fiafuzz("report", "a").code == 0
    page = (log / "report.html").read_text()
    assert "Partial report" in page and "1 line of the log could not be read" in page
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "events.ndjson").write_bytes(b"")
    assert fiafuzz("report", "empty").code == 0
    assert "Partial report" in (tmp_path / "empty" / "report.html").read_text()


def test_control_characters_of_a_path_stay_off_the_terminal(fiafuzz: Run) -> None:
    ran = fiafuzz("report", "no\x1b[31msuch")
    assert ran.code == 2 and "\x1b" not in ran.err


@pytest.mark.slow
def test_killed_run_has_a_partial_report(fiafuzz: Run, tmp_path: Path) -> None:
    """kill -9 of the campaign and of its workers: what is in the log makes a report."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fiafuzz.cli.main", "fuzz", "--max-time", "120s", "--seed", "7", "--out", "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    log = tmp_path / "run" / "events.ndjson"
    try:
        deadline = time.monotonic() + 100
        while not (log.exists() and log.read_text().count('"event":"CaseDone"') >= 5):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    ran = fiafuzz("report", "run")
    assert ran.code == 0, ran.err
    page = (tmp_path / "run" / "report.html").read_text()
    assert "No finding so far in" in page and "Partial report: the log ends before the run did" in page
