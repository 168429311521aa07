"""Fixtures of the robustness tests: bad backends, schedulers that are ended, and a watch on what is left behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fiafuzz.campaign.schedulers.local import LocalScheduler
from fiafuzz.campaign.wire import Setup

from .plugin import install

PROFILE = "950-v5"


@pytest.fixture(autouse=True)
def nasty_backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bad backends are installed, for this process and for workers (they get its sys.path)."""
    site = tmp_path / "site"
    site.mkdir()
    install(site)
    monkeypatch.syspath_prepend(str(site))
    return site


def children() -> set[int]:
    """Processes whose parent is this one."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid() and fields[0] != "Z":
                found.add(int(entry))
    return found


@pytest.fixture
def scheduler_of() -> Iterator[Callable[..., LocalScheduler]]:
    """Makes started schedulers; afterwards they are ended, and no worker is left."""
    before, made = children(), []

    def make(name: str, workers: int = 1, memory: int = 1 << 30, time_limit: float = 20.0) -> LocalScheduler:
        scheduler = LocalScheduler(Setup(f"nasty-{name}", PROFILE, memory=memory), workers, time_limit=time_limit)
        made.append(scheduler)
        scheduler.start()
        return scheduler

    yield make
    for scheduler in made:
        scheduler.close()
    assert children() <= before
