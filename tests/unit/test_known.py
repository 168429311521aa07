"""Known issues and the baseline: what covers a finding, what fails a run, what is said of a bad list."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fiafuzz.campaign.baseline as baseline_module
from fiafuzz.campaign.baseline import BaselineError, change_baseline, read_baseline
from fiafuzz.campaign.corpus import Corpus
from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import CaseDone, FindingKept, KnownIssue, Note, Replayed, RunFinished, Summary
from fiafuzz.campaign.known import Issue, KnownError, Ledger, missing_signatures, read_known
from fiafuzz.campaign.plan import Plan, PlanError, check
from fiafuzz.campaign.resume import read_past
from fiafuzz.campaign.stopping import StopFlag
from fiafuzz.model.case import Case

from .kept_entries import entry_of
from .quick_runs import Quick, kept_ids, nothing_is_wrong, odd_keys_are_wrong, plan_in, quick, run

__all__ = ["quick"]
Install = Callable[..., list[Quick]]
TODAY = date(2026, 11, 30)


def known_in(path: Path, text: str) -> Path:
    """Write a list of known issues into a corpus."""
    (path / "corpus").mkdir(exist_ok=True)
    (path / "corpus" / "known.toml").write_text(text)
    return path / "corpus" / "known.toml"


# ---- the file ---------------------------------------------------------------------------------


def test_a_full_entry(tmp_path: Path) -> None:
    path = known_in(tmp_path, '''
[[known]]
signature = "F101-0123456789"
issue = "OPS-12"
owner = "mei"
expires = 2027-03-31
reason = "waits"

[[known]]
rule = "FIA-PA-007"
code = "F201"
backend = "torch-npu*"
profile = "a2-*"
issue = "OPS-13"
''')
    first, second = read_known(path)
    assert first == Issue("OPS-12", f"{path}:2", "F101-0123456789", owner="mei", expires=date(2027, 3, 31), reason="waits")
    assert (second.where, second.rule, second.code, second.backend, second.profile) == (
        f"{path}:9", "FIA-PA-007", "F201", "torch-npu*", "a2-*")
    assert read_known(tmp_path / "none.toml") == ()


@pytest.mark.parametrize("text, told", [
    ("[[known]\n", "not TOML: "),
    ("\xff\xfe", "not TOML: "),
    ("[known]\nissue = 'x'\n", "written as [[known]]"),
    ("[[knwon]]\nissue = 'x'\n", "unknown table or key 'knwon'"),
    ("[[known]]\ncode = 'F101'\n", ":1: no issue"),
    ("\n\n[[known]]\nissue = 'x'\n", ":3: says nothing about what it covers"),
    ("[[known]]\nissue = 'x'\ncode = 'F101'\nexpire = 2027-01-01\n", "unknown key 'expire'; did you mean 'expires'?"),
    ("[[known]]\nissue = 'x'\ncode = 'F101'\nexpires = '2027-01-01'\n", "a date without quotes"),
    ("[[known]]\nissue = 'x'\ncode = 'F101'\nexpires = 2027-01-01T00:00:00\n", "a date without quotes"),
    ("[[known]]\nissue = 12\ncode = 'F101'\n", "issue must be a text in quotes, not 12"),
    ("[[known]]\nissue = ''\ncode = 'F101'\n", "issue must be one line of text"),
    ("[[known]]\nissue = \"a\\u001b[31m\"\ncode = 'F101'\n", "issue must be one line of text"),
    ("[[known]]\nissue = 'x'\nsignature = '../../x'\n", "not of the form F101-0123456789"),
    ("[[known]]\nissue = 'x'\ncode = 'F999'\n", "unknown code 'F999'"),
    ("[[known]]\nissue = 'x'\ncode = 'F401'\n", "unknown code 'F401'"),
    ("[[known]]\nissue = 'x'\nrule = 'FIA-PA-0007'\n", "did you mean 'FIA-PA-00"),
    ("[[known]]\nissue = 'x'\ncode = 'F101'\nprofile = 'a9-*'\n", "no profile fits 'a9-*'"),
    ("[[known]]\nissue = 'x'\ncode = 'F101'\n[[known]]\nissue = 'y'\n", ":4: says nothing"),
    ("x = " + "[" * 3000, "not TOML: "),
])
def test_a_bad_list_is_one_line_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    path = known_in(tmp_path, "")
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(KnownError) as caught:
        read_known(path)
    line = str(caught.value)
    assert told in line and line.startswith(str(path)) and "\n" not in line and line.isprintable()


def test_a_list_is_read_as_from_a_stranger(tmp_path: Path) -> None:
    path = known_in(tmp_path, "")
    os.remove(path)
    os.mkfifo(path)
    with pytest.raises(KnownError, match="not a regular file"):
        read_known(path)
    os.remove(path)
    path.symlink_to("/etc/hostname")
    with pytest.raises(KnownError, match="links are not followed"):
        read_known(path)
    os.remove(path)
    with open(path, "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(KnownError, match="over the limit"):
        read_known(path)


# ---- what covers what -------------------------------------------------------------------------


RULE_ENTRY = entry_of("F201", rule="FIA-PA-007", features=(), backend="torch-npu:v1", profile="a2-v5")


@pytest.mark.parametrize("fields, covered", [
    ({"signature": RULE_ENTRY.id}, True), ({"signature": "F201-0000000000"}, False), ({"rule": "FIA-PA-007"}, True),
    ({"rule": "FIA-PA-008"}, False), ({"code": "F201"}, True), ({"code": "F202"}, False), ({"code": "F201", "rule": "FIA-PA-008"}, False),
    ({"code": "F201", "backend": "torch-npu*"}, True), ({"code": "F201", "backend": "cpu"}, False),
    ({"code": "F201", "profile": "a2-*"}, True),
    ({"code": "F201", "profile": "950-*"}, False), ({"signature": RULE_ENTRY.id, "backend": "aclnn"}, False),
])
def test_all_that_is_given_must_fit(fields: dict[str, str], covered: bool) -> None:
    issue = Issue("OPS-1", "here:1", **fields)
    assert issue.covers(RULE_ENTRY) is covered
    assert (Ledger((issue,), today=TODAY).label(RULE_ENTRY) == "OPS-1") is covered


@pytest.mark.parametrize("expires, known", [(date(2026, 11, 30), "OPS-1"), (date(2026, 11, 29), None), (None, "OPS-1")])
def test_the_last_day_still_counts(expires: Any, known: Any) -> None:
    ledger = Ledger((Issue("OPS-1", "here:1", code="F201", expires=expires, owner="mei"),), Plan(backends=("cpu",)), TODAY)
    assert ledger.label(RULE_ENTRY) == known
    assert [text for _, text in ledger.expired()] == (
        [] if known else ["here:1: OPS-1 expired on 2026-11-29; its findings count again (owner: mei)"])


def test_an_expired_issue_of_another_backend_is_not_told() -> None:
    issue = Issue("OPS-1", "here:1", code="F201", backend="aclnn", expires=date(2020, 1, 1))
    assert Ledger((issue,), Plan(backends=("cpu",)), TODAY).expired() == []
    assert len(Ledger((issue,), Plan(backends=("cpu", "aclnn")), TODAY).expired()) == 1


@pytest.mark.parametrize("statuses, found, passes", [
    (["fixed"], False, True), (["passing"], False, False), ([], False, False), (["fixed", "failing"], False, False),
    (["fixed", "flaky"], False, False), (["fixed"], True, False), (["unsupported"], False, False), (["skipped", "fixed"], False, True),
])
def test_an_issue_passes_when_its_entries_were_run_and_are_fixed(statuses: list[str], found: bool, passes: bool) -> None:
    ledger = Ledger((Issue("OPS-1", "here:1", code="F201"),), today=TODAY)
    for status in statuses:
        ledger.replayed(RULE_ENTRY, status)
    if found:
        ledger.label(RULE_ENTRY)
    assert bool(ledger.passing()) is passes


# ---- in a run ---------------------------------------------------------------------------------


def found_ids(quick: Install, tmp_path: Path) -> tuple[str, str]:
    """Find both faults of the quick backend; their ids (F101, F103)."""
    quick()
    events, summary = run(plan_in(tmp_path, mode="valid", phases=("bulk",), out=str(tmp_path / "first")))
    assert summary.status == "findings"
    first, second = sorted(kept_ids(events))
    return first, second


def issues(*ids: str, extra: str = "") -> str:
    """Known issues for signatures."""
    return "".join(f'[[known]]\nsignature = "{one}"\nissue = "OPS-{n}"\n{extra}\n' for n, one in enumerate(ids, 1))


def again(quick: Install, tmp_path: Path, name: str, wrong: Any = odd_keys_are_wrong, **changes: Any) -> tuple[list[Any], Summary]:
    """Another run on the same corpus, with its entries first."""
    quick(wrong)
    return run(plan_in(tmp_path, mode="valid", phases=("replay", "bulk"), out=str(tmp_path / name), **changes))


def test_known_findings_do_not_fail_a_run_and_stand_apart(quick: Install, tmp_path: Path) -> None:
    one, two = found_ids(quick, tmp_path)
    known_in(tmp_path, issues(one, two))
    events, summary = again(quick, tmp_path, "known")
    assert summary.status == "clean" and summary.known == 2 and summary.verdicts["finding"] > 2
    assert {f.id: f.known for f in summary.findings} == {one: "OPS-1", two: "OPS-2"}
    assert {e.entry.id: e.known for e in events if isinstance(e, FindingKept)} == {one: "OPS-1", two: "OPS-2"}
    assert {e.known for e in events if isinstance(e, Replayed)} == {"OPS-1", "OPS-2"}
    known_in(tmp_path, issues(one))
    _, summary = again(quick, tmp_path, "half")
    assert summary.status == "findings" and summary.known == 1


def test_a_known_finding_that_a_run_finds_itself_is_known_too(quick: Install, tmp_path: Path) -> None:
    quick()
    known_in(tmp_path, '[[known]]\ncode = "F103"\nissue = "OPS-1"\n[[known]]\ncode = "F101"\nbackend = "q*k"\nissue = "OPS-2"\n')
    for number, phases in enumerate((("bulk",), ("explore",))):
        events, summary = run(plan_in(tmp_path, mode="valid", phases=phases, out=str(tmp_path / str(number))))
        assert summary.status == "clean" and summary.known >= 1, summary
        assert [e for e in events if isinstance(e, CaseDone) and e.verdict.failed]


def test_an_expired_issue_fails_the_run_again(quick: Install, tmp_path: Path) -> None:
    one, two = found_ids(quick, tmp_path)
    known_in(tmp_path, issues(one, two, extra="expires = 2020-01-01"))
    events, summary = again(quick, tmp_path, "expired")
    assert summary.status == "findings" and summary.known == 0 and len(summary.expired_issues) == 2
    assert [e.status for e in events if isinstance(e, KnownIssue)] == ["expired", "expired"]


def test_an_issue_that_passes_fails_the_run(quick: Install, tmp_path: Path) -> None:
    one, two = found_ids(quick, tmp_path)
    known_in(tmp_path, issues(one, two))
    events, summary = again(quick, tmp_path, "fixed", nothing_is_wrong)
    assert summary.status == "findings" and not summary.findings and len(summary.passing_issues) == 2
    assert all("remove it" in e.text and one[:4] in summary.passing_issues[0] for e in events if isinstance(e, KnownIssue))
    _, summary = run(plan_in(tmp_path, mode="valid", phases=("bulk",), out=str(tmp_path / "not-run")))
    assert summary.status == "clean", "without its entries nobody knows whether it passes"


def test_an_interrupted_run_does_not_say_that_an_issue_passes_and_the_resumed_one_does(quick: Install, tmp_path: Path) -> None:
    one, two = found_ids(quick, tmp_path)
    known_in(tmp_path, issues(one, two))
    quick(nothing_is_wrong)
    stop = StopFlag()
    plan = plan_in(tmp_path, mode="valid", phases=("replay", "bulk"), out=str(tmp_path / "stopped"))
    for event in run_campaign(plan, stop=stop):
        if isinstance(event, CaseDone) and event.phase == "bulk":
            stop.set("SIGINT")
    assert isinstance(event, RunFinished) and not event.summary.passing_issues and event.summary.status == "interrupted"
    past = read_past(tmp_path / "stopped")
    _, summary = run(past.plan, past=past)
    assert len(summary.passing_issues) == 2 and summary.status == "findings"


def test_cases_beyond_the_last_kept_finding_still_fail_a_run(quick: Install, tmp_path: Path) -> None:
    """What is only counted is covered by nobody."""
    quick()
    known_in(tmp_path, '[[known]]\ncode = "F103"\nissue = "OPS-1"\n')
    _, summary = run(plan_in(tmp_path, mode="valid", phases=("bulk",), max_findings=1, max_cases=120))
    assert summary.known == len(summary.findings) == 1 and summary.codes.get("F101") and summary.status == "findings"


def test_a_bad_list_stops_a_run_before_it_begins(quick: Install, tmp_path: Path) -> None:
    quick()
    known_in(tmp_path, "[[known]]\nissue = 'x'\n")
    with pytest.raises(KnownError):
        run_campaign(plan_in(tmp_path))
    assert not (tmp_path / "run").exists()


def test_known_issues_without_an_entry_are_named(tmp_path: Path) -> None:
    Corpus(tmp_path).add(RULE_ENTRY)
    there, missing = Issue("A", "x:1", signature=RULE_ENTRY.id), Issue("B", "x:2", signature="F101-0000000000")
    assert missing_signatures((there, missing, Issue("C", "x:3", code="F101")), Corpus(tmp_path)) == [
        "x:2: B names F101-0000000000, which the corpus does not hold"]


# ---- the baseline -----------------------------------------------------------------------------


def test_update_accepts_and_then_only_what_is_new_fails(quick: Install, tmp_path: Path) -> None:
    one, two = found_ids(quick, tmp_path)
    path = tmp_path / "baseline.json"

    def only_odd(case: Case) -> Any:
        found = odd_keys_are_wrong(case)
        return found if found is not None and found.judged is not None and found.judged.code == "F103" else None

    events, summary = again(quick, tmp_path, "update", only_odd, baseline=str(path), baseline_update=True)
    assert summary.status == "clean" and summary.known == 1
    assert list(read_baseline(path)) == [two]
    assert any(isinstance(e, Note) and "1 signatures added, 0 dropped" in e.text for e in events)
    before = path.read_bytes()
    _, summary = again(quick, tmp_path, "new", baseline=str(path))
    assert summary.status == "findings" and {f.id: f.known for f in summary.findings} == {one: None, two: "baseline"}
    assert path.read_bytes() == before
    again(quick, tmp_path, "extend", baseline=str(path), baseline_update=True)
    assert list(read_baseline(path)) == [one, two]


def test_prune_drops_what_was_run_and_no_longer_fails(quick: Install, tmp_path: Path) -> None:
    one, two = found_ids(quick, tmp_path)
    path = tmp_path / "baseline.json"
    gone = entry_of("F104", features=(("mask", "on"),))
    change_baseline(path, {e: baseline_module.Accepted("t", "quick", "950-v5", "2026") for e in (one, two, gone.id)}, frozenset())
    events, summary = again(quick, tmp_path, "told", nothing_is_wrong, baseline=str(path))
    assert summary.status == "clean" and any(isinstance(e, Note) and "2 of the baseline no longer fail" in e.text for e in events)
    assert len(read_baseline(path)) == 3
    again(quick, tmp_path, "prune", nothing_is_wrong, baseline=str(path), baseline_prune=True)
    assert list(read_baseline(path)) == [gone.id], "what was not run again stays"


def test_known_issues_go_before_the_baseline_and_expired_ones_are_not_hidden_by_it(quick: Install, tmp_path: Path) -> None:
    one, two = found_ids(quick, tmp_path)
    path = tmp_path / "baseline.json"
    again(quick, tmp_path, "update", baseline=str(path), baseline_update=True)
    known_in(tmp_path, issues(one) + f'[[known]]\nsignature = "{two}"\nissue = "OPS-9"\nexpires = 2020-01-01\n')
    _, summary = again(quick, tmp_path, "both", baseline=str(path), baseline_update=True)
    assert {f.id: f.known for f in summary.findings} == {one: "OPS-1", two: None} and summary.status == "findings"


@pytest.mark.parametrize("data, told", [
    (b"", "truncated"), (b"[]", "Expected `object`"), (b'{"fiafuzz_baseline": 2, "signatures": {}}', "version 2 is not 1"),
    (b'{"fiafuzz_baseline": 1, "signatures": {"x": {"title": "", "backend": "", "profile": "", "since": ""}}}', "not of the form"),
    (b'{"fiafuzz_baseline": 1, "signatures": {}, "more": 1}', "more"), (b"[" * 100_000, ""),
])
def test_a_bad_baseline_is_one_line_and_is_left_alone(quick: Install, tmp_path: Path, data: bytes, told: str) -> None:
    quick()
    path = tmp_path / "baseline.json"
    path.write_bytes(data)
    for changes in ({}, {"baseline_update": True}):
        with pytest.raises(BaselineError) as caught:
            run_campaign(plan_in(tmp_path, baseline=str(path), **changes))
        assert told in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(BaselineError):
        change_baseline(path, {}, frozenset())
    assert path.read_bytes() == data


def test_a_missing_baseline_is_a_mistake_unless_it_is_to_be_made(quick: Install, tmp_path: Path) -> None:
    quick(nothing_is_wrong)
    with pytest.raises(BaselineError, match="--baseline-update makes one"):
        run_campaign(plan_in(tmp_path, baseline=str(tmp_path / "none.json")))
    run(plan_in(tmp_path, max_cases=3, phases=("bulk",), baseline=str(tmp_path / "none.json"), baseline_update=True))
    assert read_baseline(tmp_path / "none.json") == {}
    with pytest.raises(PlanError, match="no baseline file"):
        check(Plan(baseline_prune=True))


def test_a_baseline_that_cannot_be_written_is_a_problem_and_the_old_one_stays(
    quick: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "baseline.json"
    change_baseline(path, {}, frozenset())
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(baseline_module, "write_whole", full)
    quick()
    _, summary = run(plan_in(tmp_path, mode="valid", phases=("bulk",), baseline=str(path), baseline_update=True))
    assert summary.status == "broken" and any("No space left" in p for p in summary.problems)
    assert path.read_bytes() == before


def test_a_change_keeps_what_another_run_has_added(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    line = baseline_module.Accepted("t", "cpu", "950-v5", "2026")
    assert change_baseline(path, {"F101-0000000001": line}, frozenset()) == (1, 0)
    assert change_baseline(path, {"F101-0000000002": line}, frozenset({"F101-0000000003"})) == (1, 0)
    assert change_baseline(path, {}, frozenset({"F101-0000000001"})) == (0, 1)
    assert list(read_baseline(path)) == ["F101-0000000002"]
    assert msgspec.json.decode(path.read_bytes())["fiafuzz_baseline"] == 1
