"""How much of a run goes into looking at failures rather than for them.

A run that is bound by time counts in seconds. A run that is bound by a number of cases alone must find the same things on
any machine and with any number of workers; it counts in runs of the backend, which its seed decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

FIRST_RUNS = 500
"""What stands for the start of a run where runs are counted: the first findings may take more than their share."""
RESTART_SECONDS = 3.0
"""What the death of a worker costs on top of the time of its case."""


@dataclass
class Effort:
    """Seconds and runs that went into each kind of work ("proof": whether a repeat is one; "shrink": making it small).

    ``timed``: seconds count, else runs. ``position`` is the number of cases before the failure that is looked at.
    """

    timed: bool
    started: float = field(default_factory=monotonic)
    position: int = 0
    runs: int = 0
    death_seconds: float = 0.0
    """Seconds that dead workers have cost, in looks at failures or not."""
    seconds_of: dict[str, float] = field(default_factory=dict)
    runs_of: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def of(self, kind: str) -> Iterator[None]:
        """Counts what happens inside as work of that kind."""
        began, before = monotonic(), self.runs
        try:
            yield
        finally:
            self.seconds_of[kind] = self.seconds_of.get(kind, 0.0) + monotonic() - began
            self.runs_of[kind] += self.runs - before

    @property
    def recorded(self) -> tuple[int, ...]:
        """The runs, as the log has them: all, for proofs, for shrinking."""
        return self.runs, self.runs_of["proof"], self.runs_of["shrink"]

    def recall(self, recorded: tuple[int, ...]) -> None:
        """Go on from what a log has."""
        if len(recorded) == 3:
            self.runs, self.runs_of["proof"], self.runs_of["shrink"] = recorded

    def share(self, kind: str) -> float:
        """The share of the run that has gone into a kind of work."""
        if self.timed:
            return self.share_of_time(self.seconds_of.get(kind, 0.0))
        return self.runs_of[kind] / (FIRST_RUNS + self.position + self.runs)

    def share_of_time(self, seconds: float) -> float:
        """Seconds as a share of the time since the start."""
        return seconds / max(1e-9, monotonic() - self.started)

    def count_death(self, seconds: float) -> None:
        """A worker has died after so many seconds of a case."""
        self.death_seconds += seconds + RESTART_SECONDS
