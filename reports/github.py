"""Workflow annotations of GitHub Actions: findings as error, warning and notice lines that the runner turns into marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fiafuzz.campaign.results import clean

from .finding_list import Finding, findings_of
from .run_data import RunData, read_run

MAX_ANNOTATIONS = 50
"""GitHub shows the first ten of a kind in a step and fifty in a job; the rest is named in one line."""


def github_report(runs: Sequence[Path]) -> bytes:
    """Annotations of one or several runs, one a line. RunError when a run cannot be read."""
    return "".join(f"{line}\n" for run in runs for line in annotations(read_run(run))).encode()


def annotations(data: RunData) -> Iterator[str]:
    """The lines for one run: an error for each finding that fails it and each problem, a warning for flaky failures, a
    notice for findings that an issue accounts for, and one that sums the run up."""
    findings = findings_of(data)
    for finding in findings[:MAX_ANNOTATIONS]:
        yield _finding(finding)
    if len(findings) > MAX_ANNOTATIONS:
        yield command("warning", "fiafuzz: further findings", f"{len(findings) - MAX_ANNOTATIONS} more findings are in the other reports")
    for issue in data.issues:
        kind = "error" if issue.status == "passes" else "warning"
        yield command(kind, f"fiafuzz: {issue.issue} {issue.status}", issue.text)
    if data.flaky:
        codes = sorted({f.verdict.code or "?" for f in data.flaky})
        yield command("warning", "fiafuzz: flaky", f"{len(data.flaky)} failures did not come again ({', '.join(codes)})")
    for problem in data.summary.problems if data.summary else ():
        yield command("error", "fiafuzz: problem", problem)
    if not data.complete:
        yield command("warning", "fiafuzz: incomplete", f"the log ends before the run did; {data.cases} cases are in it")
    yield command("notice", "fiafuzz", _summed_up(data, findings))


def _finding(finding: Finding) -> str:
    place = {"file": finding.path, "line": "1"} if finding.path else {}
    kind = "error" if finding.fails else "notice"
    title = f"{finding.state}{f' ({finding.issue})' if finding.issue else ''} {finding.id}: {finding.heading}"
    return command(kind, title, f"{finding.backend}, {finding.profile}\n{finding.text}", **place)


def _summed_up(data: RunData, findings: Sequence[Finding]) -> str:
    failing = sum(f.fails for f in findings)
    plan = data.started.plan if data.started else None
    where = f"{', '.join(plan.backends)} under {', '.join(plan.profiles)}, seed {plan.seed}: " if plan else ""
    known = len(findings) - failing
    told = f"{failing} finding{'s' * (failing != 1)}" + (f", {known} more that an issue accounts for" if known else "")
    return f"{where}{data.cases} cases, {told}"


def command(kind: str, title: str, message: str, **properties: str) -> str:
    """One workflow command; everything that is foreign in it is escaped, so that it cannot begin another one."""
    told = {**properties, "title": title}
    fields = ",".join(f"{name}={_property(value)}" for name, value in told.items())
    return f"::{kind} {fields}::{_escaped(clean(message, 4000))}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(clean(text, 300)).replace(":", "%3A").replace(",", "%2C")
