"""The replay phase of a leg: what the corpus holds is run again before anything new is made."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Optional

from .corpus import BadEntry, Entry
from .events import Event, FindingKept, FlakyFound, Note, Replayed
from .failures import Known
from .in_work import Running
from .proposals import Proposal
from .replay import replay_entry
from .verdict import FLAKY, SKIPPED, Verdict, foresee, reason_not_to_run

if TYPE_CHECKING:
    from .leg import Leg


def replay_corpus(leg: Leg, end: Optional[float]) -> Generator[Event, None, str]:
    """Run the corpus entries of the leg's profile, of this backend or any other; returns why it ended."""
    done = leg.past.entries_done
    for entry in leg.campaign.corpus.entries():
        if leg.campaign.stop:
            return "stopped"
        if end is not None and monotonic() >= end:
            return "time"
        if isinstance(entry, BadEntry):
            yield leg.campaign.tell(Note, level="warning", text=f"corpus: {entry}")
        elif entry.profile == leg.profile and entry.id not in done:
            yield from _replay_entry(leg, entry)
    return "done"


def _replay_entry(leg: Leg, entry: Entry) -> Iterator[Event]:
    """One entry. One that fails as it is kept counts as a known finding; one that fails in another way, or on another
    backend than its own, is looked into like any other failure.

    The event of its case is the last of those that tell what became of the entry: a resumed run takes the entry for
    done when it is there.
    """
    expected = foresee(entry.case, leg.profile)
    proposal = Proposal(entry.case, "replay", entry.signature.rule, entry=entry.id)
    running = Running(proposal, "replay", expected)
    tell = leg.campaign.tell
    reason = reason_not_to_run(expected, leg.hello.checks, dare=leg.plan.dare)
    if reason is not None:
        yield tell(Replayed, entry=entry.id, status="skipped", text=reason)
        yield leg.told.case(running, Verdict(SKIPPED, text=reason), None)
        return
    again = replay_entry(leg.scheduler, entry, expected, leg.backend, leg.plan.time_limit)
    done, verdict = again.completed, again.verdict
    if done.result.deadly:
        leg.investigator.effort.count_death(done.seconds)
    yield from leg.restarts()
    mine = entry.signature.backend == leg.backend
    known = leg.campaign.ledger.replayed(entry, again.status) if mine else None
    yield tell(Replayed, entry=entry.id, status=again.status, text=again.text, known=known)
    if again.status == "failing" and mine:
        leg.investigator.repeats.known.append(Known(entry.signature, entry.id, 1))
        leg.campaign.finding_number += 1
        yield tell(
            FindingKept,
            number=leg.campaign.finding_number,
            entry=entry,
            new=False,
            path=str(leg.campaign.corpus.root),
            runs=0,
            seconds=0.0,
            known=leg.campaign.ledger.label(entry),
        )
        yield leg.told.case(running, verdict, done, leg.investigator.repeats.known[-1])
    elif again.status == "flaky":
        yield leg.told.case(running, Verdict(FLAKY, entry.signature.code, entry.signature.rule, again.text), done)
        yield tell(FlakyFound, number=0, case=entry.case, verdict=verdict, failed=again.failed, tries=again.tries)
    else:
        if done.job.case != entry.case:  # it was one of the calls before
            running = Running(Proposal(done.job.case, "replay", entry=entry.id), "replay")
        leg.work.running[done.job.id] = running
        yield from leg.settle(done)
