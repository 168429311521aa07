"""Jobs that two workers hold: one that was asked to give them back, and whoever got them then. The first answer counts."""

from __future__ import annotations

from collections.abc import Iterable

from fiafuzz.campaign.wire import Job


class Copies:
    """Keeps count of the copies of stolen jobs that are still about, by identity, and of what has been answered."""

    def __init__(self) -> None:
        self._about: dict[int, tuple[Job, int]] = {}
        self._answered: set[int] = set()

    def stolen(self, jobs: Iterable[Job]) -> None:
        """Jobs were asked back, and go to others: there are two copies of each now."""
        for job in jobs:
            _, count = self._about.get(id(job), (job, 1))
            self._about[id(job)] = (job, count + 1)

    def gone(self, jobs: Iterable[Job]) -> None:
        """A copy of each has been given back unrun, or has died with its worker."""
        for job in jobs:
            self._one_less(job)

    def answered(self, job: Job) -> bool:
        """A worker has answered its copy, or died of it; whether it is the first answer."""
        if id(job) not in self._about:
            return True
        first = id(job) not in self._answered
        self._answered.add(id(job))
        self._one_less(job)
        return first

    def is_answered(self, job: Job) -> bool:
        """Whether nobody waits for this job any more."""
        return id(job) in self._answered

    def _one_less(self, job: Job) -> None:
        held = self._about.get(id(job))
        if held is None:
            return
        if held[1] <= 1:
            del self._about[id(job)]
            self._answered.discard(id(job))
        else:
            self._about[id(job)] = (job, held[1] - 1)
