"""Workers that die, hang, flood, eat memory and send nonsense: the blame falls on the right case, and the others go
on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from fiafuzz.campaign.blueprint import PLAIN, put_together, with_fields
from fiafuzz.campaign.results import MAX_TEXT
from fiafuzz.campaign.schedulers.local import LocalScheduler
from fiafuzz.campaign.schedulers.protocol import BackendRefused, Completed, SchedulerError
from fiafuzz.campaign.wire import Job, Setup
from fiafuzz.model.case import Case

Make = Callable[..., LocalScheduler]


def call(keys: int = 2, seed: int = 0) -> Case:
    """A plain call with that many key columns: odd ones make the bad backends behave badly."""
    return put_together(with_fields(PLAIN, KV_S=keys, seed=seed), "v5", "950")


def collect(scheduler: LocalScheduler, wanted: int, seconds: float = 60.0) -> list[Completed]:
    """Results until there are enough of them."""
    found: list[Completed] = []
    end = time.monotonic() + seconds
    while len(found) < wanted and time.monotonic() < end:
        found += scheduler.poll(0.1)
    return found


@pytest.mark.parametrize("name, kind, number", [
    ("sigkill", "crash", signal.SIGKILL), ("sigsegv", "crash", signal.SIGSEGV), ("abort", "crash", signal.SIGABRT),
    ("exit", "crash", None), ("child", "crash", None), ("nonsense", "crash", None), ("memory", "oom", None),
    ("base-exception", "error", None), ("system-exit", "error", None), ("keyboard-interrupt", "error", None),
    ("unprintable", "error", None), ("nothing-returned", "error", None), ("lost", "lost", None), ("flood", "ok", None),
    ("huge-message", "error", None),
])
def test_the_bad_case_is_blamed_and_no_other(scheduler_of: Make, name: str, kind: str, number: int | None) -> None:
    scheduler = scheduler_of(name)
    jobs = [Job(i, call(3 if i == 4 else 2, seed=i)) for i in range(9)]
    for job in jobs:
        scheduler.submit(job)
    done = {d.job.id: d.result for d in collect(scheduler, len(jobs))}
    assert sorted(done) == list(range(9)), "each job comes back exactly once"
    assert done[4].kind == kind
    assert done[4].signal == number
    assert all(r.kind == "ok" and r.judged is not None and r.judged.passed for i, r in done.items() if i != 4)


def test_a_hang_deaf_to_signals_is_ended_at_the_limit(scheduler_of: Make) -> None:
    scheduler = scheduler_of("hang", time_limit=1.0)
    for i in range(4):
        scheduler.submit(Job(i, call(3 if i == 1 else 2)))
    began = time.monotonic()
    done = {d.job.id: d.result for d in collect(scheduler, 4)}
    assert done[1].kind == "hang"
    assert done[1].stage_at == "run"
    assert [done[i].kind for i in (0, 2, 3)] == ["ok"] * 3
    assert time.monotonic() - began < 30


def test_a_single_run_may_have_a_shorter_limit(scheduler_of: Make) -> None:
    scheduler = scheduler_of("hang", time_limit=100.0)
    began = time.monotonic()
    assert scheduler.run(Job(1, call(3)), time_limit=0.5).result.kind == "hang"
    assert time.monotonic() - began < 20
    assert scheduler.run(Job(2, call())).result.kind == "ok"


def test_native_memory_is_held_to_the_limit(scheduler_of: Make) -> None:
    scheduler = scheduler_of("native-memory", memory=256 << 20)
    result = scheduler.run(Job(1, call(3))).result
    assert result.kind in ("oom", "crash"), result
    assert scheduler.run(Job(2, call())).result.kind == "ok"


def test_a_fresh_worker_has_run_nothing(scheduler_of: Make) -> None:
    scheduler = scheduler_of("good")
    scheduler.run(Job(1, call()))
    before = scheduler._slots[0].process.process.pid
    assert scheduler.run(Job(2, call()), fresh=True).result.kind == "ok"
    after = scheduler._slots[0].process.process.pid
    assert after != before
    assert scheduler.run(Job(3, call())).result.kind == "ok"
    assert scheduler._slots[0].process.process.pid == after


def test_texts_are_short_and_printable(scheduler_of: Make) -> None:
    text = scheduler_of("huge-message").run(Job(1, call(3))).result.message
    assert len(text) <= MAX_TEXT
    assert "\x1b" not in text and "\x07" not in text
    noisy = scheduler_of("flood").run(Job(1, call(3))).result
    assert noisy.kind == "ok"


def test_output_of_the_wrong_shape_is_seen(scheduler_of: Make) -> None:
    judged = scheduler_of("wrong-shape").run(Job(1, call(3))).result.judged
    assert judged is not None and judged.code == "F103" and not judged.passed


def test_a_worker_killed_from_outside_while_idle_is_replaced(scheduler_of: Make) -> None:
    scheduler = scheduler_of("good")
    os.kill(scheduler._slots[0].process.process.pid, signal.SIGKILL)
    time.sleep(0.3)
    scheduler.poll(0.3)
    assert scheduler.run(Job(1, call())).result.kind == "ok"
    assert [r.reason for r in scheduler.restarts()] == ["killed by SIGKILL (killed from outside, perhaps for want of memory)"]


def test_two_workers_share_the_work_around_a_crash(scheduler_of: Make) -> None:
    scheduler = scheduler_of("abort", workers=2)
    for i in range(20):
        scheduler.submit(Job(i, call(3 if i in (3, 11) else 2)))
    done = {d.job.id: d.result.kind for d in collect(scheduler, 20)}
    assert [i for i, kind in done.items() if kind == "crash"] and sorted(i for i, k in done.items() if k == "crash") == [3, 11]
    assert len(done) == 20


def test_a_backend_that_refuses_says_why() -> None:
    scheduler = LocalScheduler(Setup("nasty-refuses", "950-v5"))
    with pytest.raises(BackendRefused, match="plug one in"):
        scheduler.start()
    scheduler.close()


def test_a_backend_that_kills_its_worker_while_loading_is_given_up() -> None:
    scheduler = LocalScheduler(Setup("nasty-does-not-load", "950-v5"))
    with pytest.raises(SchedulerError, match="do not come up"):
        scheduler.start()
    scheduler.close()


def test_an_unknown_backend_is_an_error_in_one_line() -> None:
    scheduler = LocalScheduler(Setup("nasty-gut", "950-v5"))
    with pytest.raises(SchedulerError, match="unknown backend") as caught:
        scheduler.start()
    scheduler.close()
    assert "\n" not in str(caught.value)
