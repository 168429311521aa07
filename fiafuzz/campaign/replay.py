"""Replay: run kept entries and single cases again, and say what became of them.

failing: it fails as it is kept. fixed: it was kept for this backend and no longer fails. passing: it does not fail, and
never did here. new: it fails in a way that is not kept. flaky: it fails in some of several runs. Otherwise unsupported,
untestable or skipped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from fiafuzz.model.case import Case
from fiafuzz.model.profiles import profile_for
from fiafuzz.model.scene import Scene

from .corpus import Entry
from .results import Result
from .schedulers.local import LocalScheduler
from .schedulers.protocol import Completed, Scheduler
from .sequence_look import after_calls, as_it_ended, kind_of
from .triage import family
from .verdict import PASS, SKIPPED, Foreseen, Verdict, decide, error_of, foreseen, gives_values, reason_not_to_run
from .wire import DEFAULT_MEMORY, Hello, Job, Setup

STATUSES: tuple[str, ...] = (
    "failing",
    "new",
    "flaky",
    "fixed",
    "passing",
    "unsupported",
    "untestable",
    "skipped",
    "internal",
)
TRIES = 3
"""Runs of a case that is suspected to be flaky."""


@dataclass(frozen=True)
class Again:
    """What became of an entry: status, the last verdict, the run it came from, how many of how many runs failed."""

    status: str
    verdict: Verdict
    completed: Completed
    failed: int
    tries: int
    text: str = ""


@dataclass(frozen=True)
class Item:
    """Something to replay: a case, or an entry. ``expected`` is what its file says must happen (verdict, codes), if it
    says so."""

    name: str
    case: Case
    profile: Optional[str] = None
    entry: Optional[Entry] = None
    expected: Optional[Mapping[str, Any]] = None


@dataclass(frozen=True)
class Replay:
    """The answer for one item. ``disagrees`` says where the prediction is not what the file expects; "" when it is or
    says nothing."""

    item: Item
    status: str
    profile: str
    foreseen: Foreseen
    verdict: Verdict
    result: Optional[Result]
    text: str = ""
    disagrees: str = ""


def entry_item(entry: Entry) -> Item:
    """An entry as an item."""
    return Item(entry.id, entry.case, entry.profile, entry)


def replay_entry(scheduler: Scheduler, entry: Entry, expected: Foreseen, backend: str, time_limit: float) -> Again:
    """Run an entry again: until it fails twice, or passes as often as a flaky one deserves. One that has calls before its own gets a
    fresh worker each time. Where one of these ends the process, the answer is about that call: ``Again.completed`` is as if it had
    been the last."""
    mine = entry.signature.backend == backend
    runs = 5 if entry.signature.code == "F105" else 1
    valid = gives_values(expected)
    failed = tries = 0
    last: Optional[tuple[Verdict, Completed]] = None
    wanted = TRIES if mine else 1
    while tries < wanted:
        job = Job(
            -1_000_000 - tries,
            entry.case,
            judge=valid,
            runs=runs,
            relations=valid and entry.signature.code == "F106",
            relation=entry.signature.rule if entry.signature.code == "F106" else None,
            before=entry.before,
        )
        done = as_it_ended(scheduler.run(job, fresh=bool(entry.before) or (tries > 0 and failed > 0), time_limit=time_limit))
        tries += 1
        verdict = decide(expected, done.result) if done.job.case == entry.case else decide(_foreseen(done.job.case, entry), done.result)
        if verdict.failed:
            failed += 1
            if last is None or not last[0].failed:
                last = (verdict, done)
            wanted = TRIES
            if failed == 2:
                break
        elif last is None:
            last = (verdict, done)
        if not verdict.failed and verdict.status != PASS:
            break
    assert last is not None
    verdict, done = last
    status = _status(entry, verdict, done.result, failed, tries, mine)
    if status in ("failing", "flaky") and entry.before:
        verdict = after_calls(verdict, len(done.job.before))
    return Again(status, verdict, done, failed, tries, verdict.text)


def _foreseen(case: Case, entry: Entry) -> Foreseen:
    from oracles.constraints.predict import predict

    return foreseen(predict(case, entry.profile, scene=Scene(case)))


def _status(entry: Entry, verdict: Verdict, result: Result, failed: int, tries: int, mine: bool) -> str:
    if failed and failed < tries:
        return "flaky"
    if not failed:
        return ("fixed" if mine else "passing") if verdict.status in (PASS, "info") else verdict.status
    if entry.before:
        return "failing" if kind_of(verdict, result) == entry.signature.error and verdict.rule == entry.signature.rule else "new"
    same = family(verdict.code or "") == family(entry.signature.code) and (
        verdict.rule == entry.signature.rule or not entry.signature.rule
    )
    same = same and (not entry.signature.error or entry.signature.error == error_of(result))
    return "failing" if same else "new"


def replay(
    items: Iterable[Item],
    backend: str,
    profile: Optional[str] = None,
    *,
    time_limit: float = 10.0,
    memory_limit: int = DEFAULT_MEMORY,
    standard: str = "",
    dare: bool = False,
    stop: Callable[[], bool] = lambda: False,
    make: Optional[Callable[[Setup], Scheduler]] = None,
) -> Iterator[Replay]:
    """Run items again on a backend, in order, one answer each.

    ``profile`` holds for all of them; without it each item's own holds, or the one that follows from its api and
    product. Raises BackendRefused or SchedulerError when the backend cannot be started. ``stop`` ends it between two
    items.
    """

    def local(setup: Setup) -> Scheduler:
        return LocalScheduler(setup, time_limit=time_limit)

    with contextlib.ExitStack() as cleanup:
        workers: dict[str, tuple[Scheduler, Hello]] = {}
        for item in items:
            if stop():
                return
            name = profile or item.profile or profile_for(item.case.api, item.case.product).name
            if name not in workers:
                scheduler = (make or local)(Setup(backend, name, standard, memory_limit))
                cleanup.callback(scheduler.close)
                workers[name] = (scheduler, scheduler.start())
            yield replay_one(item, name, *workers[name], backend, time_limit, dare)


def replay_one(
    item: Item, profile: str, scheduler: Scheduler, hello: Hello, backend: str, time_limit: float, dare: bool
) -> Replay:
    """Run one item again on a backend that is up."""
    from oracles.constraints.predict import predict

    expected = foreseen(predict(item.case, profile, scene=Scene(item.case)))
    disagrees = disagreement(expected, item.expected)
    reason = reason_not_to_run(expected, hello.checks, dare=dare)
    if reason is not None:
        return Replay(item, "skipped", profile, expected, Verdict(SKIPPED, text=reason), None, reason, disagrees)
    if item.entry is not None:
        again = replay_entry(scheduler, item.entry, expected, backend, time_limit)
        return Replay(
            item, again.status, profile, expected, again.verdict, again.completed.result, again.text, disagrees
        )
    return _bare(item, profile, expected, scheduler, time_limit, disagrees)


def _bare(
    item: Item, profile: str, expected: Foreseen, scheduler: Scheduler, time_limit: float, disagrees: str
) -> Replay:
    """A case without a history: it passes, fails (new), or fails only sometimes (flaky)."""
    valid = gives_values(expected)
    job = Job(-2_000_000, item.case, judge=valid, runs=2 if valid else 1, relations=valid)
    result = scheduler.run(job, time_limit=time_limit).result
    verdict = decide(expected, result)
    status = "passing" if verdict.status in (PASS, "info") else verdict.status
    if verdict.failed:
        again = decide(expected, scheduler.run(job, fresh=True, time_limit=time_limit).result)
        status = "new" if again.failed else "flaky"
    return Replay(item, status, profile, expected, verdict, result, verdict.text, disagrees)


def disagreement(found: Foreseen, expected: Optional[Mapping[str, Any]]) -> str:
    """Where a prediction is not what a file expects (``verdict``, ``codes``), in words; "" where they agree or nothing
    is expected."""
    if not expected or "verdict" not in expected:
        return ""
    wanted = expected["verdict"]
    if found.verdict != wanted:
        return f"expected {wanted}, predicted {found.verdict}" + (f" ({', '.join(found.rules)})" if found.rules else "")
    codes = expected.get("codes")
    if wanted == "reject" and codes and not set(codes) & set(found.codes):
        return f"expected status {codes}, predicted {list(found.codes)}"
    return ""
