"""JUnit XML: a test case for every rule of the run's profiles, every corpus entry, and the run itself.

The form is the one that the strict schema of Ant's JUnit task and the one that Jenkins ships both accept: no attributes on
the root, properties first, system-out and system-err last, at most one of skipped, error and failure in a test case.
What fails a run fails here; what does not (flaky failures, findings that an issue accounts for) is skipped with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from fiafuzz.campaign.events import Replayed
from oracles.constraints.catalogue import all_rules, rule_by_id
from oracles.constraints.statements import cite_text

from .coverage import RuleUse
from .finding_list import Finding, findings_of
from .run_data import RunData, read_run

# XML 1.0 has no place for these characters, not even escaped.
_UNSAYABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SKIPPED_STATES = ("flaky", "unsupported", "untestable", "skipped")
# The worst first: an entry that several backends replayed has one test case.
_WORST = ("failing", "new", "internal", "flaky", "untestable", "unsupported", "skipped", "fixed", "passing")


def junit_report(runs: Sequence[Path]) -> bytes:
    """One run as JUnit XML. RunError when it cannot be read."""
    (run,) = runs
    return junit_xml(read_run(run))


def junit_xml(data: RunData) -> bytes:
    """The run as JUnit XML, UTF-8."""
    findings = findings_of(data)
    suites = [_run_suite(data, findings), _rule_suite(data, findings), _corpus_suite(data, findings)]
    root = ElementTree.Element("testsuites")
    for number, suite in enumerate(suites):
        root.append(suite.element(data, number))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _text(value: object) -> str:
    return _UNSAYABLE.sub("\ufffd", str(value))


class _Suite:
    """A test suite while it is filled."""

    def __init__(self, name: str, seconds: float = 0.0, out: str = "") -> None:
        self.name = name
        self.seconds = seconds
        self.out = out
        self.cases: list[ElementTree.Element] = []

    def case(self, classname: str, name: str, seconds: float = 0.0) -> ElementTree.Element:
        """One test case more; it passes unless something is added."""
        case = ElementTree.Element("testcase", name=_text(name), classname=_text(f"fiafuzz.{classname}"), time=f"{seconds:.3f}")
        self.cases.append(case)
        return case

    def element(self, data: RunData, number: int) -> ElementTree.Element:
        """The suite as XML, with its counts."""
        counts = {
            name: str(sum(c.find(tag) is not None for c in self.cases))
            for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
        }
        started = data.started.started[:19] if data.started else "1970-01-01T00:00:00"
        suite = ElementTree.Element(
            "testsuite",
            name=self.name,
            package="fiafuzz",
            id=str(number),
            hostname="localhost",
            timestamp=started if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", started) else "1970-01-01T00:00:00",
            tests=str(len(self.cases)),
            **counts,
            time=f"{self.seconds:.3f}",
        )
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in _properties(data).items():
            ElementTree.SubElement(properties, "property", name=_text(name), value=_text(value))
        suite.extend(self.cases)
        ElementTree.SubElement(suite, "system-out").text = _text(self.out)
        ElementTree.SubElement(suite, "system-err").text = ""
        return suite


def _properties(data: RunData) -> dict[str, object]:
    found: dict[str, object] = {"cases": data.cases, "complete": str(data.complete).lower()}
    if data.started is not None:
        plan = data.started.plan
        found.update(
            seed=plan.seed, backends=" ".join(plan.backends), profiles=" ".join(plan.profiles), mode=plan.mode, fiafuzz=data.started.version
        )
    for leg in data.legs:
        found.update({f"{leg.backend}.{name}": version for name, version in leg.versions.items()})
    return found


def _fail(case: ElementTree.Element, tag: str, kind: str, message: str, text: str = "") -> None:
    ElementTree.SubElement(case, tag, type=_text(kind), message=_text(message)).text = _text(text)


def _skip(case: ElementTree.Element, message: str) -> None:
    ElementTree.SubElement(case, "skipped", message=_text(message))


# ---- the run itself -------------------------------------------------------------------------------------------------


def _run_suite(data: RunData, findings: Sequence[Finding]) -> _Suite:
    seconds = data.summary.seconds if data.summary else sum(p.seconds for p in data.phases)
    failing = sum(f.fails for f in findings)
    told = f"{failing} finding{'s' * (failing != 1)} that fail the run, {len(findings) - failing} known by an issue"
    suite = _Suite("run", seconds, f"{data.cases} cases, {told}")
    ended = suite.case("run", "the run comes to its end")
    if not data.complete:
        _fail(ended, "error", "incomplete", "the log ends before the run did")
    elif data.summary is not None and data.summary.interrupted:
        _fail(ended, "error", "interrupted", "the run was interrupted")
    problems = suite.case("run", "fiafuzz and its backends work")
    if data.summary is not None and data.summary.problems:
        _fail(problems, "error", "problem", data.summary.problems[0], "\n".join(data.summary.problems))
    for phase in data.phases:
        suite.case(f"phases.{phase.backend}", f"{phase.phase} under {phase.profile}", phase.seconds)
    for issue in data.issues:
        case = suite.case("issues", issue.issue)
        if issue.status == "passes":
            _fail(case, "failure", issue.status, issue.text)
        else:
            _skip(case, issue.text)
    return suite


# ---- rules ----------------------------------------------------------------------------------------------------------


def _rule_suite(data: RunData, findings: Sequence[Finding]) -> _Suite:
    suite = _Suite("rules")
    known = rule_by_id()
    profiles = set(data.started.plan.profiles) if data.started else {leg.profile for leg in data.legs}
    named: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.rule in known:
            named.setdefault(str(finding.rule), []).append(finding)
    ids = dict.fromkeys(r.id for r in all_rules() if profiles & r.profiles)
    used = _used(data)
    ids.update(dict.fromkeys(sorted({*used, *named} - set(ids))))
    for rule_id in ids:
        rule = known.get(rule_id)
        case = suite.case(f"rules.{rule.group if rule else 'unknown'}", f"{rule_id} {rule.title}" if rule else rule_id)
        cites = f"{cite_text(rule.cites)}\n" if rule else ""
        _rule_outcome(case, used.get(rule_id) or RuleUse(), named.get(rule_id, ()), cites)
    return suite


def _used(data: RunData) -> dict[str, RuleUse]:
    """What each rule has been put through in all legs together."""
    found: dict[str, RuleUse] = {}
    for leg in data.coverage.legs.values():
        for rule, use in leg.rules.items():
            found.setdefault(rule, RuleUse()).merge(use)
    return found


def _rule_outcome(case: ElementTree.Element, use: RuleUse, findings: Sequence[Finding], cites: str) -> None:
    failing = [f for f in findings if f.fails]
    if failing:
        _fail(case, "failure", failing[0].code, f"{failing[0].id}: {failing[0].title}", cites + "\n\n".join(f.text for f in failing))
    elif findings:
        _skip(case, "; ".join(f"{f.id} is known: {f.issue}" for f in findings))
    elif use.disagreed:
        message = f"{use.disagreed} calls were not answered as predicted; no finding of the run names the rule"
        _fail(case, "failure", "disagreed", message, cites)
    elif not use.reached:
        _skip(case, "not reached in this run")


# ---- corpus entries -------------------------------------------------------------------------------------------------


def _corpus_suite(data: RunData, findings: Sequence[Finding]) -> _Suite:
    suite = _Suite("corpus")
    told = {f.id for f in findings}
    for finding in findings:
        case = suite.case("corpus" if finding.entry is not None else "findings", f"{finding.id} {finding.title}", finding.seconds)
        if finding.fails:
            _fail(case, "failure", finding.code, f"{finding.state}: {finding.heading}", finding.text)
        else:
            _skip(case, f"known: {finding.issue}")
    replayed: dict[str, tuple[int, Replayed]] = {}
    for again in data.replayed:
        rank = _WORST.index(again.status) if again.status in _WORST else 0
        if again.entry not in told and (again.entry not in replayed or rank < replayed[again.entry][0]):
            replayed[again.entry] = (rank, again)
    for entry, (_, again) in replayed.items():
        _replay_outcome(suite.case("corpus", entry), again)
    for place, flaky in enumerate(data.flaky):
        if place not in data.flaky_entries:
            _skip(
                suite.case("flaky", f"{flaky.verdict.code} {flaky.case.digest}"),
                f"flaky: failed {flaky.failed} of {flaky.tries} times; {flaky.verdict.text}",
            )
    return suite


def _replay_outcome(case: ElementTree.Element, again: Replayed) -> None:
    if again.status in ("fixed", "passing"):
        return
    text = f"{again.status}: {again.text}" if again.text else again.status
    if again.known:
        _skip(case, f"known: {again.known}; {text}")
    elif again.status in _SKIPPED_STATES:
        _skip(case, text)
    else:
        _fail(case, "error" if again.status == "internal" else "failure", again.status, f"{again.entry} is {again.status}", again.text)
