"""Budgets: how much time and how many cases a leg and its phases may use."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Optional

from .plan import SHARES

if TYPE_CHECKING:
    from .tally import Tally


class Budget:
    """Time and cases that a leg may use (None: no bound). ``start`` and ``offered`` tell of a leg that is resumed: when it
    began (on this clock), and how many cases had been offered by then."""

    def __init__(
        self,
        tally: Tally,
        seconds: Optional[float],
        cases: Optional[int],
        start: Optional[float] = None,
        offered: Optional[int] = None,
    ) -> None:
        self._tally = tally
        self.seconds = seconds
        self.cases = cases
        self.start = monotonic() if start is None else start
        self.cases_at_start = tally.offered if offered is None else offered

    @property
    def used_up(self) -> bool:
        """Whether nothing is left."""
        return self.left_seconds == 0.0 or self.left_cases == 0

    @property
    def left_seconds(self) -> Optional[float]:
        """Seconds left."""
        return None if self.seconds is None else max(0.0, self.seconds - (monotonic() - self.start))

    @property
    def left_cases(self) -> Optional[int]:
        """Cases left."""
        return None if self.cases is None else max(0, self.cases - (self._tally.offered - self.cases_at_start))

    def share_of(self, phase: str, last: bool) -> tuple[Optional[float], Optional[int]]:
        """What a phase may use: its share of the whole, no more than what is left; the last phase may use all that is
        left."""
        share = 1.0 if last else SHARES[phase]
        seconds, cases = self.left_seconds, self.left_cases
        if seconds is not None and self.seconds is not None:
            seconds = min(seconds, share * self.seconds)
        if cases is not None and self.cases is not None:
            cases = min(cases, max(1, int(share * self.cases)))
        return seconds, cases
