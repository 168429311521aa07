"""How long a process has waited for a core: on a machine with more work than cores a call takes long and does not hang."""

from __future__ import annotations

import os
from typing import Optional


class Starvation:
    """Watches one process. The kernel counts for each thread how long it was ready to run and had no core; where it does not
    (other systems than Linux), nothing is ever counted."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._case: Optional[float] = None
        self._before: dict[str, int] = {}

    def seconds(self, case: float) -> float:
        """Seconds that the thread which waited longest has waited since the first question about this case (any number that
        tells cases apart)."""
        now = self._delays()
        if case != self._case:
            self._case, self._before = case, now
        return max((delay - self._before.get(thread, 0) for thread, delay in now.items()), default=0) / 1e9

    def _delays(self) -> dict[str, int]:
        found: dict[str, int] = {}
        folder = f"/proc/{self._pid}/task"
        try:
            threads = os.listdir(folder)
        except OSError:
            return found
        for thread in threads:
            try:
                with open(f"{folder}/{thread}/schedstat", encoding="ascii") as file:
                    found[thread] = int(file.read().split()[1])
            except (OSError, ValueError, IndexError):
                continue
        return found
