"""history, bisect, schema, coverage side by side, and the reports of fuzz: command lines, output, exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fiafuzz.cli.main import main
from tests.unit.run_logs import NASTY, RULE, case, entry, finished, full_log, invalid, kept, leg, phase, started, words, write_log

from .conftest import ROOT, Ran

Run = Callable[..., Ran]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``fiafuzz ARGUMENTS`` in an empty directory and in this process, for command lines that end at once."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ran:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        said = capsys.readouterr()
        return Ran(int(stop.value.code or 0), said.out, said.err)

    return run


def nights(folder: Path, *titles: str) -> list[str]:
    """Runs of two nights: one finding on the second."""
    begin = [started(at="2026-03-01T01:00:00+00:00"), leg(cann="9.0"), phase()]
    write_log(folder / "first", [*begin, case(1, factors=words()), invalid(2)])
    later = [started(at="2026-03-02T01:00:00+00:00"), leg(cann="9.1"), phase()]
    write_log(folder / "second", [*later, kept(1, entry(title=titles[0] if titles else "a title")), invalid(2, agreed=False)])
    return ["second", "first"]


# ---- history --------------------------------------------------------------------------------------------------------


def test_history_as_a_table_and_a_page(fiafuzz: Run, tmp_path: Path) -> None:
    ran = fiafuzz("history", *nights(tmp_path), "--html", "history.html")
    assert ran.code == 0, ran.err
    head, first, second = ran.out.splitlines()[:3]
    assert head.split()[:6] == ["build", "started", "backend", "profile", "status", "new"]
    assert first.startswith("cann 9.0  2026-03-01 01:00  cpu") and second.startswith("cann 9.1  2026-03-02 01:00  cpu")
    assert f"new     {entry().id} a title" in ran.out and f"flip    {RULE}" in ran.out and "agreed in first, now disagreed" in ran.out
    assert entry().id in (tmp_path / "history.html").read_text() and "report history.html" in ran.err


def test_history_of_a_folder_with_labels_as_json(here: Run, tmp_path: Path) -> None:
    nights(tmp_path / "runs")
    data = json.loads(here("history", "runs", "--label", "first=RC1", "--label", "runs/second=RC2", "--json").out)
    assert data["fiafuzz_history"] == 1 and [row["build"] for row in data["rows"]] == ["RC1", "RC2"]
    assert data["rows"][1]["new"][0]["id"] == entry().id and data["rows"][1]["flips"][0]["rule"] == RULE
    (last,) = json.loads(here("history", "runs", "--last", "1", "--json").out)["rows"]
    assert last["run"] == "second" and last["flips"]  # the first run still counts


def test_history_with_bad_input(here: Run, tmp_path: Path) -> None:
    names = nights(tmp_path)
    some = here("history", *names, "nowhere")
    assert some.code == 2 and "nowhere" in some.complaint and "cann 9.1" in some.out
    assert here("history", *names, "--label", "third=x").complaint.endswith("which is not among the runs")
    assert here("history", *names, "--label", "x").code == 2
    assert here("history", *names, "--html", "no/such/folder/x.html").code == 2
    (tmp_path / "empty").mkdir()
    nothing = here("history")
    assert nothing.code == 5 and nothing.out == "" and ".fiafuzz/runs" in nothing.complaint


def test_history_prints_no_control_characters(here: Run, tmp_path: Path) -> None:
    ran = here("history", *nights(tmp_path, NASTY))
    assert ran.code == 0 and "\x1b" not in ran.out and "\u202e" not in ran.out and "=cmd" in ran.out


# ---- bisect ---------------------------------------------------------------------------------------------------------

PROBE = """
import os, sys, time
build, case, log = int(sys.argv[1]), sys.argv[2], sys.argv[3]
open(log, "a").write(f"{build} {os.path.basename(case)}\\n")
if os.path.exists("stop-at-%d" % build):
    open("reached", "w").close()
    time.sleep(600)
if build in (12,): sys.exit(4)
if build == 11: sys.exit(1)
if case.endswith("must-work.json"): sys.exit(0)
print("the case is", case)
sys.exit(1 if build >= 14 else 0)
"""


@pytest.fixture
def probe(tmp_path: Path) -> list[str]:
    """Arguments of a bisection over 32 builds; 14 is the first bad one, 12 cannot run, 11 fails whatever it is given."""
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "builds.txt").write_text("# oldest first\n" + "".join(f"{i}\n\n" for i in range(32)) + "  # the end\n")
    found = tmp_path / "corpus" / "found"
    found.mkdir(parents=True)
    from fiafuzz.campaign.corpus import encode_entry

    (found / f"{entry().id}.json").write_bytes(encode_entry(entry()))
    command = f"{sys.executable} probe.py {{build}} {{case}} log.txt"
    return ["bisect", entry().id, "--good", "0", "--bad", "31", "--builds", "builds.txt", "--run", command]


def asked(tmp_path: Path) -> list[str]:
    """What the probe was asked, in order: the build and which call."""
    log = tmp_path / "log.txt"
    lines = log.read_text().splitlines() if log.exists() else []
    return [re.sub(r" .*\.must-work\.json$", " must work", line) for line in lines]


def test_bisect_finds_the_first_bad_build(fiafuzz: Run, tmp_path: Path, probe: list[str]) -> None:
    ran = fiafuzz(*probe)
    assert ran.code == 0, ran.err
    assert ran.out == "first bad build: 14\nlast good build: 13\n"
    assert "broken  11" in ran.err and "broken  12" in ran.err and "the call that must work gives bad too" in ran.err
    assert asked(tmp_path)[0] == f"31 {entry().id}.json"
    before = len(asked(tmp_path))
    again = fiafuzz(*probe, "--json")
    assert json.loads(again.out)["found"] == "14" and len(asked(tmp_path)) == before  # answered from the state
    fresh = fiafuzz(*probe, "--fresh", "--trust-ends", "--no-must-work")
    assert fresh.code == 0 and len(asked(tmp_path)) <= before + 6
    (state,) = [p for p in (tmp_path / ".fiafuzz" / "bisect").glob("*.json") if "must-work" not in p.name and "nothing" in p.read_text()]
    assert json.loads(state.read_text())["fiafuzz_bisect"] == 1


def test_bisect_names_the_range_that_remains(fiafuzz: Run, tmp_path: Path, probe: list[str]) -> None:
    (tmp_path / "probe.py").write_text(PROBE.replace("(12,)", "(10, 12, 13)").replace(">= 14", ">= 11"))
    ran = fiafuzz(*probe)
    assert ran.code == 1, ran.err
    assert ran.out.splitlines()[0] == "the first bad build is one of these 5:"
    assert ran.out.splitlines()[1].startswith("  10  broken: it cannot run here") and ran.out.splitlines()[-1] == "last good build: 9"


def test_bisect_goes_on_after_a_kill(fiafuzz: Run, tmp_path: Path, probe: list[str]) -> None:
    reference = fiafuzz(*probe, "--state", "other.json")
    whole = asked(tmp_path)
    (tmp_path / "log.txt").unlink()
    (tmp_path / "stop-at-7").write_text("")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for number in (signal.SIGKILL, signal.SIGTERM):
        (tmp_path / "reached").unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "fiafuzz.cli.main", *probe],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(1200):
            if (tmp_path / "reached").exists():
                break
            time.sleep(0.1)
        process.send_signal(number)
        _, err = process.communicate(timeout=120) if number == signal.SIGTERM else (process.wait(120), b"")
        if number == signal.SIGTERM:
            assert process.returncode == 130 and b"goes on from" in err
        else:
            _kill_probes(tmp_path)
        if process.stdout and process.stderr:
            process.stdout.close()
            process.stderr.close()
    (tmp_path / "stop-at-7").unlink()
    ran = fiafuzz(*probe)
    assert ran.out == reference.out and "of an earlier search" in ran.err
    told = asked(tmp_path)
    twice = [line for line in whole if line.startswith("7 ")]
    assert sorted(told) == sorted(whole + 2 * twice)  # only the question that was under way is asked again


def _kill_probes(folder: Path) -> None:
    """End probes that a killed bisection could not end; they run in this folder."""
    for status in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if os.readlink(status) == str(folder):
                os.kill(int(status.parent.name), signal.SIGKILL)
        except OSError:
            continue


def test_bisect_for_a_repair(fiafuzz: Run, tmp_path: Path) -> None:
    command = f'{sys.executable} -c "import sys; sys.exit(int(sys.argv[1][1:]) < 3)" {{build}}'
    ran = fiafuzz("bisect", "--good", "b5", "--bad", "b1", "--builds", "b0,b1,b2,b3,b4,b5", "--run", command)
    assert ran.code == 0 and ran.out == "first good build: b3\nlast bad build: b2\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--builds", "a,b", "--run", "true"), "does not name {build}"),
        (("--builds", "a,b", "--run", "true {build} {case}"), "no ENTRY or FILE"),
        (("F101-0000000000", "--builds", "a,b", "--run", "true {build} {case}"), "neither a file nor an entry"),
        (("--builds", "a", "--run", "true {build}"), "no such file"),
        (("--builds", "a,c", "--run", "true {build}"), "'b' is not in the list"),
        (("--builds", "a,b", "--run", "true '{build}"), "cannot be split"),
        (("--builds", "a,b", "--run", "true {build}"), "should be bad but is good"),
        (("--builds", "a,b", "--run", "/no/such {build}"), "should be bad but is broken"),
        (("--builds", "a,b", "--run", "true {build}", "--must-work", "x"), "--must-work needs"),
        (("--builds", "a,b", "--run", "true {build}", "--state", "junk.json"), "junk.json: not the state of a bisection"),
        (("junk.json", "--builds", "a,b", "--run", "true {build} {case}"), "no case"),
    ],
)
def test_bisect_with_bad_input(here: Run, tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    (tmp_path / "junk.json").write_text("[]")
    ran = here("bisect", "--good", "a", "--bad", "b", *arguments)
    assert ran.code == 2 and text in ran.err and ran.out == ""
    assert sum(line.startswith("fiafuzz: ") for line in ran.err.splitlines()) == 1 and "Traceback" not in ran.err


def test_bisect_without_shell(fiafuzz: Run, tmp_path: Path) -> None:
    builds = "$(touch one),`touch two`,; touch three"
    command = f"{sys.executable} -c \"import sys; sys.exit(sys.argv[1].startswith(';'))\" {{build}}"
    ran = fiafuzz("bisect", "--good", "$(touch one)", "--bad", "; touch three", "--builds", builds, "--run", command)
    assert ran.code == 0 and ran.out.startswith("first bad build: ; touch three")
    assert not any((tmp_path / name).exists() for name in ("one", "two", "three"))


# ---- schema ---------------------------------------------------------------------------------------------------------


def test_schema(here: Run) -> None:
    for name in ("events", "case", "entry", "tables"):
        ran = here("schema", name)
        assert ran.code == 0 and isinstance(json.loads(ran.out), dict)
        if name == "tables":
            assert json.loads(ran.out)["tables"]["findings"]["id"]["dtype"] == "string"
    assert "events" in here("schema").out
    wrong = here("schema", "event")
    assert wrong.code == 2 and "did you mean 'events'?" in wrong.complaint


# ---- coverage side by side ------------------------------------------------------------------------------------------


def test_coverage_side_by_side(here: Run, tmp_path: Path) -> None:
    profile = "950-v5-2026.08"
    told = [words(i, profile) for i in range(4)]
    log = [started((profile,)), leg("cpu", profile), phase("bulk", "cpu", profile)]
    log += [case(n + 1, factors=w, held=(RULE,) if not n else ()) for n, w in enumerate(told)]
    log += [invalid(5), case(6, "skipped", factors=words(6, profile)), leg("cpu", "a3-v3"), case(7, factors=words(1, "a3-v3"))]
    write_log(tmp_path / "run", log)
    made = here("generate", "-n", "3", "--seed", "4", "--profile", profile)
    (tmp_path / "cases.jsonl").write_text(made.out + here("generate", "-n", "1", "--seed", "4", "--profile", "a3-v3").out)
    data = json.loads(here("coverage", "run", "cases.jsonl", "--json").out)
    assert data["profile"] == profile
    run, suite = data["suites"]
    assert (run["cases"], run["all_cases"], run["other_cases"]) == (4, 5, 1)
    assert (suite["cases"], suite["all_cases"], suite["other_cases"]) == (3, 3, 1)
    assert run["rules"]["held"] == run["rules"]["alone"] == run["rules"]["reached"] == 1 and suite["rules"]["held"] > 50
    table = here("coverage", "run", "cases.jsonl").out.splitlines()
    assert table[0].split() == ["under", profile, "run", "cases.jsonl"]
    two = next(line for line in table if line.startswith("2-way"))
    shares = [f"{w['covered']} ({100 * w['ratio']:.1f} %)" for w in (run["ways"][1], suite["ways"][1])]
    assert all(share in two for share in shares) and any(line.startswith("rules reached") for line in table)


SHARED = Path(os.environ.get("FIAFUZZ_SHARED", ROOT.parent / "shared")) / "data" / "host_verdicts_dev.jsonl.gz"


@pytest.mark.skipif(not SHARED.is_file(), reason="the measured host verdicts are not here (FIAFUZZ_SHARED, or a folder shared beside)")
def test_measured_rows_beside_a_run_of_the_same_size(fiafuzz: Run, tmp_path: Path) -> None:
    import gzip

    profile = "950-v5-2026.08"
    with gzip.open(SHARED, "rt") as file:
        rows = [line for line in file if f'"profile":"{profile}"' in line[:200]][:150]
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    ran = fiafuzz("fuzz", "--profile", profile, "-n", str(len(rows)), "--seed", "2", "--phases", "pairwise,bulk", "--out", "run")
    assert ran.code == 0, ran.err
    run, suite = json.loads(fiafuzz("coverage", "run", "rows.jsonl", "--json").out)["suites"]
    assert suite["all_cases"] == len(rows) and suite["other_cases"] == 0
    assert abs(run["all_cases"] - len(rows)) <= 10
    assert all(mine["ratio"] > theirs["ratio"] for mine, theirs in zip(run["ways"], suite["ways"]))
    assert 0 < suite["rules"]["reached"] <= suite["rules"]["rules"] == run["rules"]["rules"]


# ---- reports of a run -----------------------------------------------------------------------------------------------


def test_every_report_of_a_run_and_its_event_stream(fiafuzz: Run, here: Run, tmp_path: Path) -> None:
    names = "html,junit,sarif,github,csv,ndjson"
    ran = fiafuzz("fuzz", "-n", "30", "--seed", "3", "--phases", "bulk", "--out", "run", "--report", names, "--events", "-")
    assert ran.code == 0, ran.err
    run = tmp_path / "run"
    for name in ("report.html", "junit.xml", "report.sarif", "annotations.txt", "csv/cases.csv", "csv/findings.csv", "report.ndjson"):
        assert (run / name).stat().st_size > 0 and f"report run/{name.split('/')[0]}" in ran.err
    assert not [p for p in run.rglob("*") if p.suffix == ".tmp"]
    stream = [json.loads(line) for line in ran.out.splitlines()]
    assert [e["event"] for e in stream[:2]] == ["RunStarted", "LegStarted"] and stream[-1]["event"] == "RunFinished"
    assert [e["event"] for e in stream] == [json.loads(line)["event"] for line in (run / "events.ndjson").read_text().splitlines()]
    assert (run / "report.ndjson").read_bytes() == (run / "events.ndjson").read_bytes()
    assert "::notice title=fiafuzz::cpu under 950-v5, seed 3" in ran.err
    assert len((run / "csv" / "cases.csv").read_text().splitlines()) == 1 + sum(e["event"] == "CaseDone" for e in stream)
    # The formats of report are those of fuzz.
    again = here("report", "run", "--format", "github")
    assert again.code == 0 and again.out == (run / "annotations.txt").read_text()
    tables = here("report", "run", "--format", "csv", "-o", "tables")
    assert tables.code == 0 and (tmp_path / "tables" / "cases.csv").read_bytes() == (run / "csv" / "cases.csv").read_bytes()


def test_reports_of_a_log_without_an_end(here: Run, tmp_path: Path) -> None:
    log = write_log(tmp_path / "run", full_log(), end=False) / "events.ndjson"
    log.write_bytes(log.read_bytes()[:-30])
    (tmp_path / "out").mkdir()
    ran = here("report", "run", "--format", "junit,sarif,github,csv,ndjson", "-o", "out")
    assert ran.code == 0 and "Traceback" not in ran.err
    assert "the log ends before the run did" in (tmp_path / "out" / "annotations.txt").read_text()
    assert '"CaseDone"' in (tmp_path / "out" / "report.ndjson").read_text() and (tmp_path / "out" / "csv" / "cases.csv").is_file()


def test_parquet_without_pyarrow_is_told_before_the_run(fiafuzz: Run, tmp_path: Path) -> None:
    (tmp_path / "hide").mkdir()
    hook = (
        "import sys\nclass Hide:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'pyarrow': raise ModuleNotFoundError(name)\nsys.meta_path.insert(0, Hide())\n"
        "import importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'pyarrow' else real(name, package)\n"
    )
    (tmp_path / "hide" / "sitecustomize.py").write_text(hook)
    environment = {"PYTHONPATH": os.pathsep.join((str(tmp_path / "hide"), str(ROOT)))}
    ran = fiafuzz("fuzz", "-n", "5", "--report", "parquet", env=environment)
    assert ran.code == 4 and "pip install 'fiafuzz[parquet]'" in ran.complaint and not (tmp_path / ".fiafuzz").exists()


def test_options_that_do_not_go_together(here: Run) -> None:
    assert "standard output" in here("fuzz", "-n", "5", "--json", "--events", "-").complaint
    assert "no/such/events" in here("fuzz", "-n", "5", "--events", "no/such/events").complaint
    assert "'nosuch' is not one of html, junit, sarif" in here("fuzz", "-n", "5", "--report", "nosuch").complaint


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "fiafuzz.cli.main",
        "fuzz",
        "-n",
        "25",
        "--seed",
        "3",
        "--phases",
        "bulk",
        "--out",
        "run",
        "--events",
        "-",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    assert '"RunStarted"' in process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(200) == 0, err
    assert "the stream of events to - ends here" in err and "no finding" in err
    assert '"RunFinished"' in (tmp_path / "run" / "events.ndjson").read_text()


def test_after_the_reader_has_gone_nothing_fails(tmp_path: Path) -> None:
    code = """
import sys
from fiafuzz.cli.event_sink import EventSink
from fiafuzz.campaign.events import Note
sys.stdin.readline()
with EventSink("-") as sink:
    for _ in range(3):
        sink.take(Note(level="info", text="x" * 100_000))
print("more", flush=True)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"go\n")
        process.stdin.close()
        err = process.stderr.read().decode()
        assert process.wait(120) == 0, err
    assert err.count("the stream of events to - ends here") == 1


def test_the_helper_of_these_tests_ends_its_logs() -> None:
    assert finished(full_log()).summary.status == "findings" and shutil.which("true")


def test_the_name_given_to_a_build_is_its_label(fiafuzz: Callable[..., Ran]) -> None:
    assert fiafuzz("fuzz", "--phases", "bulk", "-n", "3", "--seed", "1", "--build", "0901-rc2", "--out", "one").code == 0
    ran = fiafuzz("history", "one", "--json")
    assert ran.code == 0 and '"build":"0901-rc2"' in ran.out.replace(" ", "")
