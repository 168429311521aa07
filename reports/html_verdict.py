"""The verdict of a report: one sentence about one or several runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fiafuzz.campaign.events import Summary

from .html_data import RunView
from .html_findings import AGAIN, FLAKY, KNOWN, NEW, OPEN, FindingView

SYMBOLS = {"clean": "✓", "findings": "✗", "partial": "◐", "interrupted": "◐", "nothing": "○", "broken": "!"}
_ORDER = ("findings", "broken", "partial", "interrupted", "nothing", "clean")


@dataclass(frozen=True)
class Headline:
    """Status (clean, findings, partial, interrupted, nothing, broken), its symbol, and the sentence."""

    status: str
    symbol: str
    text: str


def status_of(view: RunView) -> str:
    """The status of one run; "partial" when its log ends before it did and nothing was found so far."""
    found = summary_of(view)
    return "partial" if view.data.summary is None and found.status in ("clean", "nothing", "interrupted") else found.status


def summary_of(view: RunView) -> Summary:
    """The summary of a run: its own, or what the log has so far."""
    return view.data.summary or view.tally.summary()


def headline(views: Sequence[RunView], findings: Sequence[FindingView]) -> Headline:
    """The verdict on all runs together."""
    status = min((status_of(v) for v in views), key=_ORDER.index)
    states = Counter(f.state for f in findings)
    cases = sum(summary_of(v).cases for v in views)
    where = f"in {cases:,} case{'s' * (cases != 1)}" + (f" of {len(views)} runs" if len(views) > 1 else "")
    fresh, again, known = states[NEW] + states[OPEN], states[AGAIN], states[KNOWN]
    others = [f"{count} {name}" for count, name in ((again, "again"), (known, "known")) if count]
    if fresh:
        text = ", ".join([f"{fresh} new finding{'s' * (fresh != 1)} {where}", *others])
    elif again:
        text = ", ".join([f"{again} finding{'s' * (again != 1)} again {where}", *others[1:], "none of them new"])
    elif status == "broken":
        text = "fiafuzz itself failed, the result does not count"
        problem = next((p for v in views for p in summary_of(v).problems), "")
        text += f": {problem}" if problem else ""
    elif status == "nothing":
        text = "Nothing was run"
    elif known:
        text = f"No new finding {where}; {known} known"
    elif status == "findings":
        text = f"Failing cases {where}, none of which could be kept as a finding"
    else:
        text = f"Clean: no finding {where}" if status == "clean" else f"No finding so far {where}"
    text += f"; {states[FLAKY]} flaky" if states[FLAKY] else ""
    passing = [text for v in views for text in summary_of(v).passing_issues]
    text += f"; {len(passing)} known issue{'s' * (len(passing) != 1)} must be removed" if passing else ""
    return Headline(status, SYMBOLS[status], text + _rest(views) + ".")


def _rest(views: Sequence[RunView]) -> str:
    """What keeps the runs from being complete."""
    partial = sum(v.data.summary is None for v in views)
    stopped = sum(v.data.summary is not None and v.data.summary.interrupted for v in views)
    found = ""
    if partial:
        found += f"; {partial} of {len(views)} logs end before their run did" if len(views) > 1 else ""
        found += ". Partial report: the log ends before the run did" if len(views) == 1 else ""
    if stopped:
        found += f"; {stopped} of {len(views)} runs were interrupted" if len(views) > 1 else ". The run was interrupted"
    return found
