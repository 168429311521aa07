"""The findings of one or several runs as the HTML report shows them: one record a finding, merged over the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Optional

import msgspec

from fiafuzz.campaign.codes import CODES, VerdictCode, title
from fiafuzz.campaign.corpus import Entry
from fiafuzz.campaign.events import FindingFound, FindingKept, FlakyFound
from fiafuzz.campaign.results import Element, Picture
from fiafuzz.campaign.sequence_shrink import describe_before
from fiafuzz.campaign.verdict import Foreseen
from fiafuzz.model.case import Case, case_to_dict
from oracles.constraints.catalogue import rule_by_id
from oracles.constraints.rule import Rule
from oracles.constraints.statements import cite_text

from .html_data import RunView
from .nearest import Neighbour, neighbour

NEW, OPEN, AGAIN, FLAKY, KNOWN, FIXED = "new", "open", "again", "flaky", "known", "fixed"
STATES = (NEW, OPEN, AGAIN, FLAKY, KNOWN, FIXED)
"""new; open: confirmed, but not shrunk or kept when the log ends; again: the corpus had it, and nothing accounts for it; flaky;
known: an issue or the baseline accounts for it, so that it does not fail the run; fixed: a corpus entry that no longer fails.
In the order of the report."""


@dataclass
class FindingView:
    """One finding for the report. ``pictures``: label and picture."""

    id: str
    state: str
    code: str
    backend: str
    profile: str
    text: str
    case: Optional[Case] = None
    expected: Optional[Foreseen] = None
    entry: Optional[Entry] = None
    rule_id: Optional[str] = None
    issue: Optional[str] = None
    path: Optional[str] = None
    problem: str = ""
    cases: int = 0
    runs: list[str] = field(default_factory=list)
    pictures: list[tuple[str, Picture]] = field(default_factory=list)
    tries: str = ""
    shrink_runs: int = 0
    reproduce: str = ""

    @property
    def heading(self) -> str:
        """The finding in a few words."""
        own = self.entry.title if self.entry is not None else ""
        return own if own and own != title(self.code) else title(self.code)

    @property
    def record(self) -> Optional[VerdictCode]:
        """The verdict code with its meaning and advice."""
        return CODES.get(self.code)

    @property
    def rule(self) -> Optional[Rule]:
        """The rule that it is about."""
        ids = [self.rule_id, *(self.expected.rules if self.expected is not None else ())]
        return next((rule_by_id()[i] for i in ids if i in rule_by_id()), None)

    @property
    def cites(self) -> str:
        """Where the rule is stated."""
        return cite_text(self.rule.cites) if self.rule is not None else ""

    @property
    def expected_text(self) -> str:
        """The prediction in words."""
        if self.expected is None:
            return "not recorded"
        if self.expected.verdict == "reject":
            codes = " or ".join(str(c) for c in self.expected.codes)
            return f"reject with {codes}" if codes else "reject"
        if self.expected.verdict == "accept" and self.code.startswith("F1"):
            return "accept, with the values of the reference"
        return self.expected.verdict

    @property
    def got_text(self) -> str:
        """What came, in words."""
        if self.entry is None:
            return self.text
        got = self.entry.got
        kind = "accepted" if got.kind == "ok" else got.kind
        return kind + (f" with {got.code}" if got.kind == "reject" and got.code is not None else "")

    @property
    def after(self) -> tuple[str, ...]:
        """The calls that the same process must make first, a line each."""
        return describe_before(self.entry.before, self.entry.case) if self.entry is not None else ()

    @property
    def worst(self) -> tuple[Element, ...]:
        """The worst elements of the shrunk case."""
        return self.entry.got.worst if self.entry is not None else ()

    @cached_property
    def near(self) -> Optional[Neighbour]:
        """The nearest valid call, None when there is no case or it cannot be had."""
        if self.case is None:
            return None
        try:
            return neighbour(self.case, self.profile)
        except ValueError:  # a profile that this version does not know
            return None

    @property
    def case_text(self) -> str:
        """The case as JSON, for a file."""
        if self.case is None:
            return ""
        return msgspec.json.format(msgspec.json.encode(case_to_dict(self.case)), indent=2).decode()


def findings_of(views: Sequence[RunView]) -> list[FindingView]:
    """All findings of the runs, merged by id: new ones first, by state, code and id."""
    found: dict[str, FindingView] = {}
    for view in views:
        for finding in _of_run(view):
            before = found.setdefault(finding.id, finding)
            if before is not finding:
                _merge(before, finding)
            if view.label not in before.runs:
                before.runs.append(view.label)
    return sorted(found.values(), key=lambda f: (STATES.index(f.state), f.code, f.id))


def _merge(kept: FindingView, other: FindingView) -> None:
    """The same finding in another run: it counts as the more urgent of its states."""
    kept.cases += other.cases
    if STATES.index(other.state) < STATES.index(kept.state):
        kept.state, kept.issue = other.state, other.issue
    for name in ("entry", "case", "expected", "path", "reproduce", "problem", "rule_id", "tries"):
        if not getattr(kept, name):
            setattr(kept, name, getattr(other, name))
    kept.pictures = kept.pictures or other.pictures


def _of_run(view: RunView) -> list[FindingView]:
    data = view.data
    flaky = {f.number for f in data.flaky if f.number}
    found = [_kept(view, number, kept) for number, kept in data.kept.items()]
    for finding in {f.id: f for f in found}.values():
        finding.cases += view.tally.repeats[finding.id]  # once, however often it was kept
    for number, event in data.found.items():
        if number not in data.kept and number not in flaky and number not in data.repeated:
            found.append(_open(event))
    found += [_flaky(view, event, data.flaky_entries.get(place)) for place, event in enumerate(data.flaky)]
    kept = {f.id for f in found}
    for again in data.replayed:
        if again.status == FIXED and again.entry not in kept:
            found.append(FindingView(again.entry, FIXED, again.entry.split("-")[0], "", "", again.text, issue=again.known))
    return found


def _kept(view: RunView, number: int, event: FindingKept) -> FindingView:
    entry, first = event.entry, view.data.found.get(number)
    pictures = [("as found", p) for p in first.pictures] if first is not None else []
    if first is None or first.case != entry.case:
        pictures += [("shrunk", p) for p in entry.got.pictures]
    state = KNOWN if event.known is not None else NEW if event.new else AGAIN
    return FindingView(
        entry.id,
        state,
        entry.signature.code,
        entry.signature.backend,
        entry.profile,
        entry.got.text,
        entry.case,
        entry.expected,
        entry,
        entry.signature.rule,
        event.known,
        event.path,
        event.problem,
        1 if first is not None else 0,  # the case of a replayed entry counts among its repeats
        pictures=pictures,
        shrink_runs=event.runs or entry.runs,
        reproduce=entry.reproduce,
    )


def _open(event: FindingFound) -> FindingView:
    code = event.verdict.code or "finding"
    return FindingView(
        f"{code}-{event.case.digest}",
        OPEN,
        code,
        event.backend,
        event.profile,
        event.verdict.text,
        event.case,
        event.foreseen,
        rule_id=event.verdict.rule,
        cases=1,
        pictures=[("as found", p) for p in event.pictures],
    )


def _flaky(view: RunView, event: FlakyFound, entry: Optional[str]) -> FindingView:
    first = view.data.found.get(event.number) if event.number else None
    leg = view.data.legs[-1] if view.data.legs else None
    backend = first.backend if first is not None else leg.backend if leg is not None else ""
    profile = first.profile if first is not None else leg.profile if leg is not None else ""
    code = event.verdict.code or "flaky"
    return FindingView(
        entry or f"{code}-{event.case.digest}",
        FLAKY,
        code,
        backend,
        profile,
        event.verdict.text,
        event.case,
        first.foreseen if first is not None else None,
        rule_id=event.verdict.rule,
        cases=1,
        pictures=[("as found", p) for p in first.pictures] if first is not None else [],
        tries=f"failed {event.failed} of {event.tries} times",
    )
