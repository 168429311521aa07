"""Counting over the event stream."""

from __future__ import annotations

from fiafuzz.campaign.events import FindingKept
from fiafuzz.campaign.tally import Tally
from fiafuzz.campaign.verdict import Verdict

from .run_logs import case, entry, found, started


def counted(*events: object) -> dict[str, int]:
    tally = Tally()
    for event in (started(), *events):
        tally.add(event)  # type: ignore[arg-type]
    return {line.id: line.count for line in tally.summary().findings}


def kept(number: int) -> FindingKept:
    return FindingKept(number=number, entry=entry(), new=True, path="corpus", runs=1, seconds=0.1)


def test_a_finding_counts_the_cases_that_show_it() -> None:
    wrong = Verdict("finding", "F101", text="off")
    own, repeat = case(1, verdict=wrong), case(2, verdict=wrong, repeats=entry().id)
    assert counted(own, found(1), kept(1), repeat) == {entry().id: 2}
    assert counted(kept(1), repeat) == {entry().id: 1}, "the case of a replayed entry is the repeat"
