"""JUnit XML: what CI systems of both kinds accept, and what fails, is skipped, passes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fiafuzz.campaign.corpus import Got
from fiafuzz.campaign.events import Replayed, RunFinished, Summary
from oracles.constraints.predict import rules_for
from reports.junit import junit_xml
from reports.run_data import gather

from .run_logs import NASTY, PROFILE, RULE, case, entry, finished, full_log, invalid, kept, leg, phase, started

etree: Any
if os.environ.get("FIAFUZZ_REQUIRE_ALL"):
    from lxml import etree
else:
    etree = pytest.importorskip("lxml.etree", reason="needs lxml")

SCHEMAS = Path(__file__).parent / "schemas"
CLEAN = [started(), leg(), phase(), case(1), invalid(2)]
LOGS = {
    "clean": [*CLEAN, finished(CLEAN)],
    "full": [*full_log(), finished(full_log())],
    "killed": full_log()[:20],
    "empty": [],
    "only a start": [started(at="no time at all")],
}


def parsed(events: list[Any]) -> Any:
    """The report of a run, parsed."""
    return etree.fromstring(junit_xml(gather(events)))


def by_name(root: Any) -> dict[str, Any]:
    """Test cases by class and name; each has a name of its own."""
    found = {f"{c.get('classname')} {c.get('name')}": c for c in root.iter("testcase")}
    assert len(found) == len(list(root.iter("testcase")))
    return found


@pytest.mark.parametrize("schema", ["junit-ant.xsd", "junit-jenkins.xsd"])
@pytest.mark.parametrize("name", list(LOGS))
def test_it_is_valid(name: str, schema: str) -> None:
    etree.XMLSchema(etree.parse(SCHEMAS / schema)).assertValid(parsed(LOGS[name]))


@pytest.mark.parametrize("schema", ["junit-ant.xsd", "junit-jenkins.xsd"])
def test_the_schemas_can_say_no(schema: str) -> None:
    check = etree.XMLSchema(etree.parse(SCHEMAS / schema))
    root = parsed(LOGS["full"])
    del next(root.iter("testcase")).attrib["name"]
    assert not check.validate(root)
    assert not check.validate(etree.fromstring("<testsuites><testsuite name='x'/></testsuites>"))


@pytest.mark.parametrize("name", list(LOGS))
def test_counts_agree(name: str) -> None:
    for suite in parsed(LOGS[name]).iter("testsuite"):
        cases = suite.findall("testcase")
        assert int(suite.get("tests")) == len(cases)
        for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(count)) == sum(c.find(tag) is not None for c in cases)


def test_one_test_case_a_rule() -> None:
    cases = by_name(parsed(LOGS["full"]))
    rules = {name.split()[1] for name in cases if name.startswith("fiafuzz.rules.")}
    assert rules >= {r.id for r in rules_for(PROFILE)}
    (mine,) = [c for name, c in cases.items() if f" {RULE} " in name]
    failure = mine.find("failure")
    assert failure.get("type") == "F201" and entry("F201", RULE).id in failure.get("message")
    assert "reproduce: fiafuzz replay" in failure.text
    assert sum(c.find("skipped") is not None for name, c in cases.items() if name.startswith("fiafuzz.rules.")) == len(rules) - 1


def test_one_test_case_an_entry() -> None:
    cases = by_name(parsed(LOGS["full"]))
    outcome = {name.split()[1]: [child.tag for child in c] for name, c in cases.items() if name.startswith("fiafuzz.corpus ")}
    accounted = [f.entry.id for f in full_log() if getattr(f, "known", None) == "ISSUE-12"]
    assert outcome == {
        entry().id: ["failure"],
        entry("F201", RULE).id: ["failure"],
        accounted[0]: ["skipped"],
        "F202-00000000aa": [],
        "F202-00000000bb": ["failure"],
        "F105-00000000cc": ["skipped"],
        "F101-00000000dd": ["skipped"],
    }
    (loose,) = [c for name, c in cases.items() if name.startswith("fiafuzz.findings ")]
    assert loose.find("failure").get("type") == "F302"


def test_what_passes_a_run_passes_here() -> None:
    root = parsed(LOGS["clean"])
    assert not list(root.iter("failure")) and not list(root.iter("error"))
    passed = [c for c in root.iter("testcase") if not len(c)]
    assert any(RULE in c.get("name") for c in passed)


def test_a_known_issue_that_passes_fails() -> None:
    cases = by_name(parsed(LOGS["full"]))
    assert cases["fiafuzz.issues ISSUE-9"].find("failure") is not None


def test_an_interrupted_or_killed_run_is_an_error() -> None:
    killed = by_name(parsed(LOGS["killed"]))["fiafuzz.run the run comes to its end"]
    assert killed.find("error").get("type") == "incomplete"
    summary = Summary("interrupted", 1, 1.0, 2, {}, {}, {}, (), 0, 0, {}, {}, {}, ("the backend is gone",), interrupted=True)
    cases = by_name(parsed([*CLEAN, RunFinished(summary=summary)]))
    assert cases["fiafuzz.run the run comes to its end"].find("error").get("type") == "interrupted"
    assert cases["fiafuzz.run fiafuzz and its backends work"].find("error").get("message") == "the backend is gone"


def test_an_entry_of_several_backends_has_its_worst_outcome() -> None:
    twice = [Replayed(entry="F101-00000000aa", status="passing"), Replayed(entry="F101-00000000aa", status="failing", text="off")]
    for order in (twice, twice[::-1]):
        (one,) = [c for name, c in by_name(parsed([*CLEAN, *order])).items() if name.startswith("fiafuzz.corpus")]
        assert one.find("failure") is not None


def test_findings_without_an_entry_of_their_rule_still_show() -> None:
    cases = by_name(parsed([*CLEAN, invalid(3, agreed=False)]))
    (mine,) = [c for name, c in cases.items() if f" {RULE} " in name]
    assert mine.find("failure").get("type") == "disagreed"


@settings(max_examples=30, deadline=None)
@given(text=st.one_of(st.just(NASTY), st.text(st.characters(), max_size=40)))
def test_any_text_gives_valid_xml(text: str) -> None:
    safe = text.encode("utf-8", "replace").decode()
    wrong = entry(title=safe, got=Got("crash", text=safe), reproduce=safe, differences=(safe,))
    root = parsed([*CLEAN, kept(1, wrong), Replayed(entry=safe, status="failing", text=safe)])
    etree.XMLSchema(etree.parse(SCHEMAS / "junit-ant.xsd")).assertValid(root)
