"""The findings of a run as the machine formats list them: one record a signature, whatever the log has of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from fiafuzz.campaign.codes import title
from fiafuzz.campaign.corpus import FOLDERS, FOUND, Entry
from fiafuzz.campaign.events import FindingFound, FindingKept
from fiafuzz.campaign.sequence_shrink import describe_before
from fiafuzz.campaign.verdict import Foreseen

from .run_data import RunData


@dataclass(frozen=True)
class Finding:
    """One finding. ``id`` is that of its corpus entry; one that was not kept has its verdict code and the digest of its
    case. ``state`` is new, known, or open (not shrunk or not kept when the log ends). ``issue`` accounts for it: then it
    does not fail the run. ``path`` is its file, relative to the working directory where it lies below it."""

    id: str
    state: str
    code: str
    rule: Optional[str]
    title: str
    backend: str
    profile: str
    text: str
    reproduce: str
    issue: Optional[str] = None
    path: Optional[str] = None
    entry: Optional[Entry] = None
    seconds: float = 0.0

    @property
    def fails(self) -> bool:
        """Whether it makes the run fail."""
        return self.issue is None

    @property
    def heading(self) -> str:
        """Code, its title and the finding's own in one line."""
        return heading(self.code, self.title)


def findings_of(data: RunData) -> tuple[Finding, ...]:
    """The findings of a run, those that fail it first: new, open, known."""
    kept: dict[str, Finding] = {}
    for event in data.kept.values():
        before = kept.get(event.entry.id)
        now = _kept(event)
        if before is None or (now.state == "new" and before.state != "new"):
            kept[event.entry.id] = now
    flaky = {f.number for f in data.flaky}
    loose = {
        f.id: f
        for number, event in data.found.items()
        if number not in data.kept and number not in flaky and number not in data.repeated
        for f in (_open(event),)
    }
    order = {"new": 0, "open": 1, "known": 2}
    return tuple(sorted([*kept.values(), *loose.values()], key=lambda f: (not f.fails, order[f.state], f.code, f.id)))


def _kept(event: FindingKept) -> Finding:
    entry, issue = event.entry, event.known
    return Finding(
        entry.id,
        "new" if event.new and issue is None else "known",
        entry.signature.code,
        entry.signature.rule,
        entry.title,
        entry.signature.backend,
        entry.profile,
        finding_text(entry),
        entry.reproduce,
        issue,
        _file(event.path, entry.id),
        entry,
        event.seconds,
    )


def _open(event: FindingFound) -> Finding:
    code = event.verdict.code or "finding"
    text = "\n".join(
        (
            heading(code, title(code)),
            f"expected: {expected_text(event.foreseen)}",
            f"got: {event.verdict.text}",
            "not shrunk, and not in the corpus: the log has the case",
        )
    )
    return Finding(
        f"{code}-{event.case.digest}", "open", code, event.verdict.rule, title(code), event.backend, event.profile, text, reproduce=""
    )


def finding_text(entry: Entry) -> str:
    """A finding as lines: what was expected, what came, what matters, how to reproduce it."""
    got = entry.got
    lines = [
        heading(entry.signature.code, entry.title),
        f"expected: {expected_text(entry.expected)}",
        f"got: {got.kind}" + (f" {got.code}" if got.code is not None else "") + (f" - {got.text}" if got.text else ""),
    ]
    lines += [f"differs from the plainest call: {d}" for d in entry.differences]
    lines += [f"after {line}" for line in describe_before(entry.before, entry.case)]
    lines.append(f"reproduce: {entry.reproduce}")
    return "\n".join(lines)


def heading(code: str, own_title: str) -> str:
    """A verdict code, its title and the finding's own where that says more."""
    return f"{code} {title(code)}" + ("" if own_title == title(code) else f": {own_title}")


def expected_text(expected: Foreseen) -> str:
    """The prediction in words, with the status codes of a rejection."""
    if expected.verdict != "reject" or not expected.codes:
        return expected.verdict
    return f"reject with {' or '.join(str(c) for c in expected.codes)}"


def _file(path: Optional[str], entry_id: str) -> Optional[str]:
    """Where the entry lies. A replayed one has the corpus as its path, and may stand in any of its folders."""
    if path is None:
        return None
    found = path
    if not path.endswith(".json"):
        places = [os.path.join(path, folder, f"{entry_id}.json") for folder in FOLDERS]
        found = next((p for p in places if os.path.lexists(p)), os.path.join(path, FOUND, f"{entry_id}.json"))
    here = Path.cwd()
    return str(Path(found).relative_to(here)) if Path(found).is_absolute() and Path(found).is_relative_to(here) else found
