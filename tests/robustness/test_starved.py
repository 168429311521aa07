"""A machine with more work than cores: what takes long for want of a core does not hang."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from fiafuzz.campaign.process import PATIENCE, WATCH_FROM
from fiafuzz.campaign.schedulers.local import LocalScheduler
from fiafuzz.campaign.starvation import Starvation
from fiafuzz.campaign.wire import Job

from .test_workers import call

Make = Callable[..., LocalScheduler]
SPIN = "import os\nos.sched_setaffinity(0, {int(os.environ['CORE'])})\nwhile True: pass"


def test_the_kernel_tells_who_waits_for_a_core() -> None:
    """Four processes want one core, each of a session of its own, since the kernel shares a core out among sessions first."""
    env = {**os.environ, "CORE": str(min(os.sched_getaffinity(0)))}
    busy = [subprocess.Popen([sys.executable, "-c", SPIN], env=env, start_new_session=True) for _ in range(4)]
    idle = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=subprocess.PIPE)
    try:
        assert idle.stdout is not None and idle.stdout.readline()
        starved, sleeping = Starvation(busy[0].pid), Starvation(idle.pid)
        assert starved.seconds(1.0) == sleeping.seconds(1.0) == 0.0, "counted from the first question on"
        began, waited = time.monotonic(), 0.0
        while waited < 0.5 and time.monotonic() < began + 60:
            time.sleep(0.05)
            waited = starved.seconds(1.0)
        assert 0.5 <= waited <= time.monotonic() - began
        assert sleeping.seconds(1.0) < 0.25, "who sleeps does not wait for a core"
        assert starved.seconds(2.0) == 0.0, "another case"
    finally:
        for process in (*busy, idle):
            process.kill()
            process.communicate()
    assert starved.seconds(3.0) == 0.0, "a process that is gone"


@pytest.mark.parametrize("share, least", [(0.0, 1.0), (0.5, 2.0), (1.0, 1.0 + PATIENCE)])
def test_time_without_a_core_is_not_held_against_a_case(
    share: float, least: float, scheduler_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hang on a machine that gives it a part of a core only: it is ended all the same, as much later."""
    first: dict[float, float] = {}

    def seconds(self: Starvation, case: float) -> float:
        return share * (time.monotonic() - first.setdefault(case, time.monotonic()))

    monkeypatch.setattr(Starvation, "seconds", seconds)
    limit = 0.6
    result = scheduler_of("hang", time_limit=limit).run(Job(1, call(3))).result
    assert result.kind == "hang"
    took = float(result.message.split("no answer after ")[1].split(" s")[0])
    assert limit * least - WATCH_FROM * limit - 0.1 <= took
