"""The phases whose cases come from a generator: keep the workers busy with proposals, and settle what comes back."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Optional

from .events import Event
from .proposals import Proposal

if TYPE_CHECKING:
    from .leg import Leg

MAX_WAITING = 1000
"""Failures that may wait for earlier cases before no more are handed out."""


def stream(
    leg: Leg, phase: str, source: Iterator[Proposal], end: Optional[float], cases: Optional[int], taken: int
) -> Generator[Event, None, str]:
    """Keep the workers busy with proposals and settle what comes back; returns why it ended. ``taken``: how many were
    taken before the run was resumed."""
    reason, before, exhausted = "", leg.work.skips, False
    ahead: deque[Proposal] = deque()  # taken from the source where no event could be told; offered next

    def over() -> str:
        return leg.over(end, cases, taken - (leg.work.skips - before))

    def wanted() -> bool:
        return not exhausted and len(leg.work.waiting) < MAX_WAITING and leg.scheduler.room() > 0 and not over()

    def top_up() -> None:
        nonlocal taken, exhausted
        while not ahead and wanted():
            proposal = next(source, None)
            if proposal is None:
                exhausted = True
            elif leg.would_repeat(proposal.case) is not None:
                ahead.append(proposal)
            else:
                leg.work.hand_out(proposal, phase)
                taken += 1

    leg.scheduler.on_room = top_up
    try:
        while not reason:
            while ahead or wanted():
                proposal = ahead.popleft() if ahead else next(source, None)
                if proposal is None:
                    exhausted = True
                    break
                skipped = leg.offer(proposal, phase)
                if skipped is None:
                    taken += 1
                else:
                    yield skipped
            yield from leg.settle_ready()
            why = over()
            if why in ("stopped", "time") or not leg.work.running:
                reason = why or ("done" if exhausted else "")
    finally:
        leg.scheduler.on_room = None
    yield from leg.drain()
    return reason
