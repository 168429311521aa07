"""SARIF 2.1.0: the findings of runs for code scanning and for tools that compare one night with the next.

A finding about a rule of the operator has that rule's id, any other one its verdict code. The fingerprint is the
signature, so that a finding is the same result in every run; its place is the file of its corpus entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Optional
from urllib.parse import quote

import msgspec

from fiafuzz.campaign.codes import CODES, title
from fiafuzz.campaign.events import Disagreement, FlakyFound
from fiafuzz.campaign.results import clean
from oracles.constraints.catalogue import rule_by_id
from oracles.constraints.rule import Rule
from oracles.constraints.statements import cite_text

from .finding_list import Finding, findings_of
from .run_data import RunData, read_run

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif_report(runs: Sequence[Path]) -> bytes:
    """One or several runs as SARIF, a SARIF run each. RunError when one cannot be read."""
    return sarif([read_run(run) for run in runs])


def sarif(runs: Iterable[RunData]) -> bytes:
    """Runs as SARIF, UTF-8."""
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(data) for data in runs]}
    return msgspec.json.format(msgspec.json.encode(log), indent=2) + b"\n"


def _run(data: RunData) -> dict[str, Any]:
    results = [
        *(_result(f, data) for f in findings_of(data)),
        *(_flaky(f, data.flaky_entries.get(place)) for place, f in enumerate(data.flaky)),
        *(_disagreement(d) for d in data.disagreements),
    ]
    ids = list(dict.fromkeys(r["ruleId"] for r in results))
    for result in results:
        result["ruleIndex"] = ids.index(result["ruleId"])
    found: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "fiafuzz",
                "version": data.started.version if data.started else "unknown",
                "shortDescription": {"text": "Property-based fuzzer and differential tester for Ascend CANN's FusedInferAttentionScore"},
                "rules": [_descriptor(name) for name in ids],
            }
        },
        "invocations": [_invocation(data)],
        "results": results,
        "columnKind": "unicodeCodePoints",
        "properties": _properties(data),
    }
    if data.started is not None:
        plan = data.started.plan
        # What is compared with what: runs of the same backends under the same profiles.
        found["automationDetails"] = {"id": f"fiafuzz/{'+'.join(plan.backends)}/{'+'.join(plan.profiles)}/"}
    return found


def _properties(data: RunData) -> dict[str, Any]:
    found: dict[str, Any] = {"cases": data.cases, "complete": data.complete}
    if data.started is not None:
        plan = data.started.plan
        found.update(seed=plan.seed, backends=list(plan.backends), profiles=list(plan.profiles), mode=plan.mode)
    if data.legs:
        found["versions"] = {leg.backend: dict(leg.versions) for leg in data.legs}
    return found


def _invocation(data: RunData) -> dict[str, Any]:
    summary = data.summary
    works = summary is not None and summary.status != "broken" and not summary.interrupted
    found: dict[str, Any] = {"executionSuccessful": works}
    if data.started is not None:
        try:
            start = datetime.fromisoformat(data.started.started).astimezone(timezone.utc)
            found["startTimeUtc"] = _time(start)
            if summary is not None:
                found["endTimeUtc"] = _time(start + timedelta(seconds=summary.seconds))
        except (ValueError, OverflowError):
            pass  # the log says something that is no time
    notes = [{"level": "error", "message": {"text": text}} for text in (summary.problems if summary else ())]
    notes += [{"level": "error" if i.status == "passes" else "warning", "message": {"text": i.text or i.status}} for i in data.issues]
    if summary is None:
        notes.append({"level": "warning", "message": {"text": "the log ends before the run did"}})
    if notes:
        found["toolExecutionNotifications"] = notes
    return found


def _time(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- results --------------------------------------------------------------------------------------------------------


def _rule_id(code: str, rule: Optional[str]) -> str:
    return rule if rule is not None and rule in rule_by_id() and code.startswith(("F2", "F4")) else code


def _result(finding: Finding, data: RunData) -> dict[str, Any]:
    properties: dict[str, Any] = {"code": finding.code, "backend": finding.backend, "profile": finding.profile, "state": finding.state}
    if finding.reproduce:
        properties["reproduce"] = finding.reproduce
    if finding.entry is not None:
        entry = finding.entry
        properties.update(
            differences=list(entry.differences),
            features=[list(f) for f in entry.signature.features],
            environment=dict(entry.environment),
            firstSeen=entry.first_seen,
            caseDigest=entry.case.digest,
        )
    found: dict[str, Any] = {
        "ruleId": _rule_id(finding.code, finding.rule),
        "level": "error",
        "kind": "fail",
        "message": {"text": f"{finding.id}: {finding.text}"},
        "locations": [_location(finding)],
        "fingerprints": {"fiafuzzSignature/v1": finding.id},
        # Code scanning would compute this one from the file; the signature is what makes two findings the same.
        "partialFingerprints": {"primaryLocationLineHash": finding.id},
        "baselineState": "new" if finding.state != "known" else "unchanged",
        "properties": properties,
    }
    if finding.issue is not None:
        found["suppressions"] = [{"kind": "external", "status": "accepted", "justification": f"known: {finding.issue}"}]
    return found


def _location(finding: Finding) -> dict[str, Any]:
    where: dict[str, Any] = {
        "logicalLocations": [{"name": finding.backend, "fullyQualifiedName": f"{finding.backend}/{finding.profile}", "kind": "module"}]
    }
    # A finding that was not kept is in the log alone; code scanning wants a place all the same.
    where["physicalLocation"] = {"artifactLocation": {"uri": _uri(finding.path or f"corpus/found/{finding.id}.json")}}
    where["physicalLocation"]["region"] = {"startLine": 1}
    return where


def _uri(path: str) -> str:
    """A path as a URI reference: relative ones stay so."""
    text = quote(clean(Path(path).as_posix(), 4000), safe="/")
    return f"file://{text}" if text.startswith("/") else text


def _flaky(event: FlakyFound, entry: Optional[str]) -> dict[str, Any]:
    verdict = event.verdict
    code = verdict.code or "finding"
    name = entry or f"flaky-{code}-{event.case.digest}"
    return {
        "ruleId": _rule_id(code, verdict.rule),
        "level": "warning",
        "message": {"text": f"flaky: failed {event.failed} of {event.tries} times; {verdict.text}"},
        "partialFingerprints": {"primaryLocationLineHash": name},
        "properties": {"code": code, "state": "flaky", "caseDigest": event.case.digest},
    }


def _disagreement(event: Disagreement) -> dict[str, Any]:
    return {
        "ruleId": _rule_id("F401", event.rule or None),
        "level": "note",
        "kind": "informational",
        "message": {"text": f"the backend takes the side of the {event.side}: {event.text}"},
        "partialFingerprints": {"primaryLocationLineHash": f"F401-{event.rule}-{event.side}"},
        "properties": {"code": "F401", "state": "information", "side": event.side},
    }


# ---- what the rule ids mean -----------------------------------------------------------------------------------------


def _descriptor(name: str) -> dict[str, Any]:
    rule = rule_by_id().get(name)
    if rule is not None:
        return _of_rule(rule)
    record = CODES.get(name)
    if record is None:
        return {"id": name, "shortDescription": {"text": title(name)}}
    text = f"{record.meaning}\n\n{record.advice}"
    return {
        "id": name,
        "name": _pascal(record.title),
        "shortDescription": {"text": record.title},
        "fullDescription": {"text": record.meaning},
        "help": {"text": text, "markdown": f"**{record.title}**\n\n{text}"},
        "defaultConfiguration": {"level": record.severity},
        "properties": {"tags": ["correctness" if name.startswith("F1") else "reliability" if name.startswith("F3") else "validation"]},
    }


def _of_rule(rule: Rule) -> dict[str, Any]:
    lines = [rule.title, f"Level: {rule.level.value}; stage: {rule.stage.key}; basis: {rule.basis.value}"]
    lines += [f"Limit: {rule.limit}"] if rule.limit else []
    lines += [f"Note: {rule.note}"] if rule.note else []
    lines.append(f"Stated in: {cite_text(rule.cites)}")
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": "\n".join(lines[:-1])},
        "help": {"text": "\n".join(lines), "markdown": "\n\n".join(lines)},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["validation", rule.group, rule.level.value], "cites": list(rule.cites)},
    }


def _pascal(words: str) -> str:
    return "".join(w[:1].upper() + w[1:] for w in words.split())
