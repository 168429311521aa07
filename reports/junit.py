"""JUnit XML: one test case for each rule that was exercised, each corpus entry, each finding and each phase."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from fiafuzz.campaign.codes import title
from fiafuzz.campaign.events import FindingKept
from oracles.constraints.catalogue import rule_by_id

from .run_data import RunData

# XML 1.0 has no place for these characters, not even escaped.
_UNSAYABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _text(value: object) -> str:
    return _UNSAYABLE.sub("\ufffd", str(value))


def _case(suite: ElementTree.Element, classname: str, name: str, seconds: float = 0.0) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=_text(classname), name=_text(name), time=f"{seconds:.3f}")


def _failure(case: ElementTree.Element, kind: str, message: str, text: str) -> None:
    failure = ElementTree.SubElement(case, "failure", type=_text(kind), message=_text(message))
    failure.text = _text(text)


def finding_text(kept: FindingKept) -> str:
    """A finding as lines: what was expected, what came, what matters, how to reproduce it."""
    entry = kept.entry
    codes = " or ".join(str(c) for c in entry.expected.codes)
    lines = [
        f"{entry.signature.code} {title(entry.signature.code)}: {entry.title}",
        f"expected: {entry.expected.verdict}" + (f" with {codes}" if codes and entry.expected.verdict == "reject" else ""),
        f"got: {entry.got.kind}"
        + (f" {entry.got.code}" if entry.got.code is not None else "")
        + (f" - {entry.got.text}" if entry.got.text else ""),
    ]
    lines += [f"differs from the plainest call: {d}" for d in entry.differences]
    lines.append(f"reproduce: {entry.reproduce}")
    return "\n".join(lines)


def junit_xml(data: RunData) -> bytes:
    """The run as JUnit XML, UTF-8."""
    root = ElementTree.Element("testsuites", name="fiafuzz")
    seconds = data.summary.seconds if data.summary else 0.0
    suite = ElementTree.SubElement(root, "testsuite", name="fiafuzz", time=f"{seconds:.3f}")
    if data.started is not None:
        suite.set("timestamp", data.started.started[:19])
        properties = ElementTree.SubElement(suite, "properties")
        told = {
            "seed": data.started.plan.seed,
            "backends": " ".join(data.started.plan.backends),
            "profiles": " ".join(data.started.plan.profiles),
            "fiafuzz": data.started.version,
            "cases": data.cases,
            "complete": str(data.complete).lower(),
        }
        for name, value in told.items():
            ElementTree.SubElement(properties, "property", name=name, value=_text(value))
    rules = rule_by_id()
    by_rule: dict[str, list[FindingKept]] = {}
    loose: list[FindingKept] = []
    for kept in data.kept.values():
        rule = kept.entry.signature.rule
        if rule in rules:
            by_rule.setdefault(str(rule), []).append(kept)
        else:
            loose.append(kept)
    for rule_id in sorted({*data.rules, *by_rule}):
        group = rules[rule_id].group if rule_id in rules else "unknown"
        case = _case(suite, f"fiafuzz.rules.{group}", f"{rule_id} {rules[rule_id].title}" if rule_id in rules else rule_id)
        for kept in by_rule.get(rule_id, ()):
            _failure(case, kept.entry.signature.code, kept.entry.title, finding_text(kept))
    for kept in loose:
        _failure(
            _case(suite, "fiafuzz.findings", kept.entry.id, kept.seconds), kept.entry.signature.code, kept.entry.title, finding_text(kept)
        )
    for number, found in data.found.items():
        if number not in data.kept:
            case = _case(suite, "fiafuzz.findings", f"{found.verdict.code} {found.case.digest}")
            _failure(case, found.verdict.code or "finding", title(found.verdict.code or ""), found.verdict.text)
    for again in data.replayed:
        case = _case(suite, "fiafuzz.corpus", again.entry)
        if again.status in ("failing", "flaky"):
            _failure(case, again.status, f"{again.entry} is {again.status}", again.text)
        elif again.status in ("unsupported", "untestable"):
            ElementTree.SubElement(case, "skipped", message=_text(again.text or again.status))
    for phase in data.phases:
        _case(suite, f"fiafuzz.phases.{phase.backend}", f"{phase.phase} ({phase.profile}, {phase.cases} cases)", phase.seconds)
    if not data.complete:
        case = _case(suite, "fiafuzz.run", "the run came to its end")
        ElementTree.SubElement(case, "error", type="interrupted", message="the log ends before the run did")
    cases = suite.findall("testcase")
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(c.find(tag) is not None for c in cases)))
    suite.set("tests", str(len(cases)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"
