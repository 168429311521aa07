"""What a person sees of a running campaign: progress on a terminal, plain lines elsewhere, findings as blocks, a summary."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import click

from fiafuzz.campaign.codes import title
from fiafuzz.campaign.corpus import Entry
from fiafuzz.campaign.events import (
    CanaryDone,
    CaseDone,
    Disagreement,
    Event,
    FindingFound,
    FindingKept,
    FlakyFound,
    KnownIssue,
    LegStarted,
    Note,
    PhaseFinished,
    PhaseStarted,
    Replayed,
    RunResumed,
    RunStarted,
    Summary,
    WorkerRestarted,
)

from .durations import in_words


def entry_block(entry: Entry, heading: str) -> str:
    """A finding for people: what, expected against got, the rule, the parameters that matter, the reproduce line."""
    from fiafuzz.campaign.results import clean
    from fiafuzz.campaign.sequence_shrink import describe_before
    from oracles.constraints.catalogue import rule_by_id
    from oracles.constraints.statements import cite_text

    expected = entry.expected.verdict
    if expected == "reject":
        expected += f" with {' or '.join(str(c) for c in entry.expected.codes)}"
    got = entry.got.kind + (f" with {entry.got.code}" if entry.got.kind == "reject" and entry.got.code is not None else "")
    lines = [
        f"{heading} {entry.id}  {entry.signature.code} {title(entry.signature.code)}",
        f"  {entry.title}",
        f"  expected   {expected}",
        f"  got        {got}" + (f": {entry.got.text}" if entry.got.text else ""),
    ]
    rule = rule_by_id().get(entry.signature.rule or next(iter(entry.expected.rules), ""))
    if rule is not None:
        lines.append(f"  rule       {rule.id} {rule.title} [{cite_text(rule.cites)}]")
    lines += [f"  {'differs in' if i == 0 else '          '} {line}" for i, line in enumerate(entry.differences)]
    lines += [f"  {'after' if i == 0 else '':<10} {line}" for i, line in enumerate(describe_before(entry.before, entry.case))]
    lines.append(f"  reproduce  {entry.reproduce}")
    return "\n".join(clean(line).replace("\n", "\n             ") for line in lines)


def heading_of(new: bool, known: str | None) -> str:
    """How a finding stands: covered by a known issue or the baseline, new, or kept by an earlier run."""
    return f"known ({known})" if known else "new" if new else "again"


class Display:
    """Consumes the events of a run. ``live`` draws a progress line on a terminal; else plain lines come out."""

    def __init__(self, live: bool, quiet: bool = False) -> None:
        self.quiet = quiet
        self.counts: Counter[str] = Counter()
        self.phase = ""
        self.findings = 0
        self._progress: Any = None
        self._task: Any = None
        if live and not quiet:
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True), transient=True
            )

    def __enter__(self) -> Display:
        if self._progress is not None:
            self._progress.start()
            self._task = self._progress.add_task("starting workers")
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, text: str) -> None:
        """One or more lines on stderr, above the progress line."""
        if self.quiet:
            return
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(text, err=True)

    def take(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, CaseDone):
            self.counts[event.verdict.status] += 1
            if self._progress is not None and sum(self.counts.values()) % 20 == 0:
                done = sum(self.counts.values())
                self._progress.update(self._task, description=f"{self.phase}  {done} cases  {self.findings} findings")
        elif isinstance(event, RunStarted):
            self.say(f"seed {event.plan.seed}  run {event.directory}")
        elif isinstance(event, RunResumed):
            self.say(f"resumed after {event.cases} cases and {event.findings} findings")
        elif isinstance(event, KnownIssue):
            self.say(f"known issue: {event.text}")
        elif isinstance(event, LegStarted):
            self.say(f"backend {event.backend} ({event.title}), profile {event.profile}")
        elif isinstance(event, CanaryDone):
            self.say(f"canary {'passed' if event.passed else 'FAILED'} in {in_words(event.seconds)}: {event.text}")
        elif isinstance(event, PhaseStarted):
            self.phase = event.phase
        elif isinstance(event, PhaseFinished):
            self.say(
                f"{event.phase}: {event.cases} cases in {in_words(event.seconds)}"
                + ("" if event.reason == "done" else f" (ended by {event.reason})")
            )
        elif isinstance(event, FindingFound):
            self.findings += 1
            self.say(f"finding {event.number}: {event.verdict.code} {title(event.verdict.code or '')}; {event.verdict.text}; shrinking")
        elif isinstance(event, FindingKept):
            self.say(entry_block(event.entry, heading_of(event.new, event.known)))
            if event.problem:
                self.say(f"  not kept: {event.problem}")
            if event.interrupted:
                self.say("  interrupted before it was shrunk; fuzz --resume finishes it")
        elif isinstance(event, FlakyFound):
            self.say(f"flaky: {event.verdict.code} on case {event.case.digest}, failed {event.failed} of {event.tries} times")
        elif isinstance(event, Replayed):
            if event.status not in ("passing", "unsupported"):
                known = f", known ({event.known})" if event.known else ""
                self.say(f"replay {event.entry}: {event.status}{known}" + (f" ({event.text})" if event.text else ""))
        elif isinstance(event, Disagreement):
            self.say(f"information: {event.rule}: backend takes the side of the {event.side}; {event.text}")
        elif isinstance(event, WorkerRestarted):
            if event.reason:
                self.say(f"worker {event.worker} restarted: {event.reason}")
        elif isinstance(event, Note):
            self.say(f"{event.level}: {event.text}")


def summary_text(summary: Summary) -> str:
    """The end of a run for people: counts per phase and verdict, findings, seed, time. Findings are new, or kept by an earlier
    run ("again"), or covered by a known issue or the baseline ("known")."""
    lines = ["", f"{summary.cases} cases in {in_words(summary.seconds)}, seed {summary.seed}"]
    if summary.phases:
        lines.append("  phases    " + ", ".join(f"{name} {n}" for name, n in summary.phases.items()))
    if summary.verdicts:
        lines.append("  verdicts  " + ", ".join(f"{name} {n}" for name, n in summary.verdicts.items() if n))
    if summary.elements.get("compared"):
        told = ", ".join(f"{n} {name}" for name, n in summary.elements.items())
        lines.append(f"  elements  {told}")
    if summary.skipped:
        lines.append("  skipped   " + ", ".join(f"{n}: {why}" for why, n in summary.skipped.items()))
    if summary.replayed:
        lines.append("  replayed  " + ", ".join(f"{name} {n}" for name, n in summary.replayed.items()))
    new = sum(f.new and f.known is None for f in summary.findings)
    counting = len(summary.findings) - summary.known
    if summary.findings:
        lines.append(f"  findings  {new} new, {counting - new} again, {summary.known} known")
        for finding in sorted(summary.findings, key=lambda f: f.known is not None):
            heading = heading_of(finding.new, finding.known)
            lines.append(f"    {finding.id} {heading:<5} {finding.title} ({finding.count} case{'s' * (finding.count != 1)})")
            lines.append(f"      {finding.reproduce}")
    lines += [f"  known     {text}" for text in (*summary.passing_issues, *summary.expired_issues)]
    if summary.flaky:
        lines.append(f"  flaky     {summary.flaky}")
    if summary.restarts:
        lines.append(f"  workers   restarted {summary.restarts} times")
    lines += [f"  problem   {text}" for text in summary.problems]
    if summary.directory:
        lines.append(f"  run       {summary.directory}")
    words = {
        "clean": f"no finding that is not known ({summary.known} known)" if summary.known else "no finding",
        "findings": _findings_in_words(counting, summary),
        "interrupted": "interrupted; what was found so far is kept",
        "nothing": "nothing was selected",
        "broken": "nothing was tested" if summary.refused else "fiafuzz itself failed; the result does not count",
    }
    lines.append(words.get(summary.status, summary.status))
    return "\n".join(lines)


def _findings_in_words(counting: int, summary: Summary) -> str:
    parts = [f"{counting} finding{'s' * (counting != 1)}"] if counting or not summary.passing_issues else []
    many = len(summary.passing_issues)
    if many:
        parts.append(f"{many} known issue{'s pass' if many != 1 else ' passes'} now and must be removed")
    return ", ".join(parts)


def on_terminal() -> bool:
    """Whether stderr is a terminal that can redraw a line."""
    import os

    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and "CI" not in os.environ
