"""Campaigns in sequences, with workers that are nothing but what they remember: found, told, made small, kept, resumed, replayed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Optional

import msgspec
import pytest

import fiafuzz.campaign.engine as engine
import fiafuzz.campaign.sequence_phase as sequence_phase
from fiafuzz.campaign.corpus import Corpus, Entry
from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import CaseDone, Event, FindingFound, FindingKept, FlakyFound, Replayed
from fiafuzz.campaign.leg import Leg
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.process import RECENT
from fiafuzz.campaign.replay import entry_item, replay
from fiafuzz.campaign.results import Judged, Result
from fiafuzz.campaign.resume import read_past
from fiafuzz.campaign.schedulers.protocol import Completed
from fiafuzz.campaign.sequence import sequences
from fiafuzz.campaign.stopping import StopFlag
from fiafuzz.campaign.wire import Job, Setup
from fiafuzz.cli.display import entry_block
from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import predict

from .quick_runs import PROFILE, RIGHT, Quick, plan_in, run

WRONG = Result("ok", judged=Judged(False, "F101", 4.0, compared=8, text="off"))
Memory = dict[Any, Any]
Fault = Callable[[Case, Memory], Optional[Result]]


def last_scale(case: Case, memory: Memory) -> Optional[Result]:
    """The scale of the call before stays where query has the same shape."""
    shape = case.inputs.query.shape if case.inputs.query else None
    before, memory["last"] = memory.get("last"), (shape, case.attrs.scaleValue)
    return WRONG if before is not None and before[0] == shape and before[1] != case.attrs.scaleValue else None


def first_scale(case: Case, memory: Memory) -> Optional[Result]:
    """The scale of the first call with this shape stays for good."""
    shape = case.inputs.query.shape if case.inputs.query else None
    return WRONG if memory.setdefault(shape, case.attrs.scaleValue) != case.attrs.scaleValue else None


def third_call_dies(case: Case, memory: Memory) -> Optional[Result]:
    """Calls of three scales are too many for a process."""
    memory[case.attrs.scaleValue] = True
    return Result("crash", signal=11, message="killed by SIGSEGV") if len(memory) > 2 else None


def other_scale_dies(case: Case, memory: Memory) -> Optional[Result]:
    """As last_scale, but the process dies."""
    return Result("crash", signal=11, message="killed by SIGSEGV") if last_scale(case, memory) is not None else None


def never(case: Case, memory: Memory) -> Optional[Result]:
    """Sound."""
    return None


def large_scales(case: Case, memory: Memory) -> Optional[Result]:
    """An ordinary fault: nothing before matters."""
    return WRONG if case.attrs.scaleValue == 0.25 else None


class Remembering(Quick):
    """Workers (``count`` of them, in turn) that answer as ``fault`` says, with a memory each; a fresh one has none."""

    def __init__(self, fault: Fault, profile: str, count: int = 1) -> None:
        super().__init__(lambda case: None, profile, {"quick": "1"})
        self.fault = fault
        self.memories: list[Memory] = [{} for _ in range(count)]
        self.recent: list[list[Case]] = [[] for _ in range(count)]
        self.jobs: list[tuple[Job, bool]] = []
        self.turn = 0

    def run(self, job: Job, *, fresh: bool = False, time_limit: Optional[float] = None) -> Completed:
        self.jobs.append((job, fresh))
        worker = self.turn = (self.turn + 1) % len(self.memories)
        if fresh:
            self._new(worker)
        recent, results = tuple(self.recent[worker][-RECENT:]), []
        for case in (*job.before, job.case):
            self.recent[worker].append(case)
            results.append(self._answer(case, self.memories[worker]))
            if results[-1].deadly:
                self._new(worker)
                break
        return Completed(job, msgspec.structs.replace(results[-1], before=tuple(results[:-1])), worker, recent=recent)

    def _new(self, worker: int) -> None:
        self.memories[worker], self.recent[worker] = {}, []

    def _answer(self, case: Case, memory: Memory) -> Result:
        expected = predict(case, self.profile, scene=Scene(case))
        if expected.verdict == "reject":
            return Result("reject", code=min(expected.codes), stage=expected.stage)
        return self.fault(case, memory) or Result("ok", judged=RIGHT)


Install = Callable[..., list[Remembering]]


@pytest.fixture
def remembering(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Call it with a fault to put such workers under campaigns; returns the schedulers that they made."""

    def install(fault: Fault, count: int = 1) -> list[Remembering]:
        made: list[Remembering] = []

        def scheduler_of(plan: Plan, backend: str, profile: str) -> Remembering:
            made.append(Remembering(fault, profile, count))
            return made[-1]

        monkeypatch.setattr(engine, "scheduler_of", scheduler_of)
        return made

    return install


def sequence_plan(root: Path, **changes: Any) -> Plan:
    """Sixty calls in groups of six."""
    return plan_in(root, **{"phases": ("sequences",), "sequences": 6, "mode": "valid", "shrink_runs": 60, **changes})


def kept(events: list[Event]) -> list[Entry]:
    """The entries that a run has kept."""
    return [e.entry for e in events if isinstance(e, FindingKept)]


def told(events: list[Event]) -> list[tuple[Any, ...]]:
    """What must not depend on how a run was run."""
    return [(e.place, e.digest, e.verdict.status, e.verdict.code, e.repeats) for e in events if isinstance(e, CaseDone)]


# ---- found ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [last_scale, first_scale])
def test_what_goes_wrong_after_another_call_is_one_small_finding(remembering: Install, fault: Fault, tmp_path: Path) -> None:
    remembering(fault)
    events, summary = run(sequence_plan(tmp_path))
    (entry,) = kept(events)
    assert (entry.signature.code, entry.signature.error) == ("F304", "wrong values")
    assert entry.signature.features == (("after", "1 call"), ("differs", "scaleValue"))
    (before,) = entry.before
    assert before == entry.case.replace(scaleValue=before.attrs.scaleValue) != entry.case
    assert f"  after      call 1 of 1: as this one, but scaleValue {before.attrs.scaleValue} (here:" in entry_block(entry, "new")
    assert "after 1 other call in the same process: F101 wrong values" in entry.got.text
    assert summary.status == "findings" and summary.flaky == 0
    assert sum(isinstance(e, FindingFound) for e in events) == 1, "the others are known for what they are before they are shrunk"
    (line,) = summary.findings
    assert line.count == sum(code == "F304" for *_, code, _ in told(events)) > 1
    assert Corpus(str(tmp_path / "corpus")).find(entry.id) == entry


def test_what_two_calls_before_it_take_is_kept_with_both(remembering: Install, tmp_path: Path) -> None:
    remembering(third_call_dies)
    events, _ = run(sequence_plan(tmp_path))
    (entry,) = kept(events)
    assert (entry.signature.code, entry.signature.error) == ("F304", "F301 signal 11")
    assert len({case.attrs.scaleValue for case in (*entry.before, entry.case)}) == 3 and len(entry.before) == 2
    assert all(case.replace(scaleValue=entry.case.attrs.scaleValue) == entry.case for case in entry.before)


def test_a_sound_backend_gives_no_finding_and_each_call_is_told(remembering: Install, tmp_path: Path) -> None:
    made = remembering(never)
    plan = sequence_plan(tmp_path, mode="all")
    events, summary = run(plan)
    assert summary.status == "clean" and summary.phases == {"sequences": 60}
    groups = list(islice(sequences(plan, PROFILE), 10))
    assert [(p, d) for p, d, *_ in told(events)] == [(m.place, m.case.digest) for g in groups for m in g]
    assert [(*job.before, job.case) for job, _ in made[0].jobs] == [tuple(m.case for m in group) for group in groups]
    assert all(not job.turns and job.foresee for job, _ in made[0].jobs)


def test_what_fails_alone_too_is_an_ordinary_finding(remembering: Install, tmp_path: Path) -> None:
    remembering(large_scales)
    events, _ = run(sequence_plan(tmp_path))
    assert kept(events) and {entry.signature.code for entry in kept(events)} == {"F101"}
    assert all(not entry.before for entry in kept(events))


def test_groups_are_whole(remembering: Install, tmp_path: Path) -> None:
    remembering(never)
    _, summary = run(sequence_plan(tmp_path, max_cases=8, sequences=5))
    assert summary.cases == 10


def test_what_a_dead_process_leaves_of_a_group_is_run(remembering: Install, tmp_path: Path) -> None:
    made = remembering(third_call_dies)
    plan = sequence_plan(tmp_path)
    events, _ = run(plan)
    groups = list(islice(sequences(plan, PROFILE), 10))
    assert [(p, d) for p, d, *_ in told(events)] == [(m.place, m.case.digest) for g in groups for m in g]
    handed_out = [job for job, _ in made[0].jobs if job.foresee]
    assert len(handed_out) > 10 and sum(len(job.before) + 1 for job in handed_out if job.id % 6 == 1) == 60


def test_what_came_of_a_group_that_is_let_go_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    swallowed: list[Job] = []

    class Stuck(Remembering):
        """Never answers what is left of a group."""

        def submit(self, job: Job) -> None:
            if job.id % 6 == 1:
                super().submit(job)
            else:
                swallowed.append(job)

    monkeypatch.setattr(engine, "scheduler_of", lambda plan, backend, profile: Stuck(third_call_dies, profile))
    monkeypatch.setattr(Leg, "over", lambda leg, end, cases, taken: "time" if swallowed else "")
    monkeypatch.setattr(sequence_phase, "DRAIN_SECONDS", 0.0)
    events, summary = run(sequence_plan(tmp_path, max_cases=None, max_time=1000.0, time_limit=0.1, shrink=False))
    assert summary.status == "findings"
    left = {swallowed[0].id + i for i in range(len(swallowed[0].before) + 1)}
    places = {place for place, *_ in told(events)}
    assert min(left) - 1 in places and not left & places


# ---- the same, however it is run -------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [last_scale, other_scale_dies])
def test_two_workers_find_the_same(remembering: Install, fault: Fault, tmp_path: Path) -> None:
    remembering(fault)
    alone, _ = run(sequence_plan(tmp_path / "1"))
    remembering(fault, 2)
    both, _ = run(sequence_plan(tmp_path / "2"))
    assert told(both) == told(alone)
    assert [e.before for e in kept(both)] == [e.before for e in kept(alone)]


@pytest.mark.parametrize("share", [0.1, 0.25, 0.4, 0.6, 0.8, 0.95])
def test_a_killed_run_goes_on_to_the_same_end(remembering: Install, share: float, tmp_path: Path) -> None:
    remembering(last_scale)
    whole, _ = run(sequence_plan(tmp_path / "whole"))
    plan = sequence_plan(tmp_path / "cut")
    events, _ = run(plan)
    corpus = tmp_path / "cut" / "corpus"
    at = next(i for i, e in enumerate(events) if isinstance(e, FindingKept))
    cut, log = int(share * len(events)), tmp_path / "cut" / "run" / "events.ndjson"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:cut]))
    if cut <= at:  # the entry was not there then
        for path in (corpus / "found").glob("*.json"):
            path.unlink()
    again = list(run_campaign(plan, past=read_past(tmp_path / "cut" / "run")))
    past = told(events)
    assert past == told(whole) and 0 < len(told(again)) < len(past)
    assert told(again) == past[len(past) - len(told(again)) :]
    assert [p.name for p in sorted(corpus.glob("found/*.json"))] == [f"{entry.id}.json" for entry in kept(whole)]


def test_a_stopped_run_goes_on_to_the_same_end(remembering: Install, tmp_path: Path) -> None:
    remembering(last_scale)
    whole, _ = run(sequence_plan(tmp_path / "whole"))
    plan, stop, first = sequence_plan(tmp_path / "cut"), StopFlag(), []
    for event in run_campaign(plan, stop=stop):
        first.append(event)
        if isinstance(event, FindingFound):
            stop.set("SIGINT")
    again = list(run_campaign(plan, past=read_past(tmp_path / "cut" / "run")))
    assert told(first) + told(again) == told(whole)
    found = sorted((tmp_path / "cut" / "corpus" / "found").glob("*.json"))
    assert [path.name for path in found] == [f"{entry.id}.json" for entry in kept(whole)]
    assert [e.before for e in kept(again)][-1:] == [e.before for e in kept(whole)][-1:]


# ---- outside sequences ------------------------------------------------------------------------------------------


def every_ninth(case: Case, memory: Memory) -> Optional[Result]:
    """A process goes wrong at the first call with softmaxLse that comes after five without."""
    if case.attrs.softmaxLseFlag:
        wrong, memory["calls"] = memory.get("calls", 0) >= 5, 0
        return WRONG if wrong else None
    memory["calls"] = memory.get("calls", 0) + 1
    return None


def test_what_does_not_come_again_alone_is_tried_after_the_calls_before_it(remembering: Install, tmp_path: Path) -> None:
    remembering(every_ninth)
    events, summary = run(plan_in(tmp_path, phases=("bulk",), mode="valid", max_cases=80, shrink_runs=60))
    entries = kept(events)
    assert entries and {entry.signature.code for entry in entries} == {"F304"} and summary.flaky == 0
    assert all(len(entry.before) == 5 for entry in entries)


def now_and_then(counter: list[int]) -> Fault:
    """Goes wrong at every seventeenth call of all, whatever the process remembers."""

    def fault(case: Case, memory: Memory) -> Optional[Result]:
        counter[0] += 1
        return WRONG if counter[0] % 17 == 0 else None

    return fault


@pytest.mark.parametrize("phase", ["sequences", "bulk"])
def test_what_comes_by_chance_stays_flaky(remembering: Install, phase: str, tmp_path: Path) -> None:
    remembering(now_and_then([0]))
    events, summary = run(sequence_plan(tmp_path, phases=(phase,)))
    assert any(isinstance(e, FlakyFound) for e in events) and summary.flaky
    assert all(entry.signature.code != "F304" or len(entry.before) for entry in kept(events))


# ---- replayed ---------------------------------------------------------------------------------------------------


@pytest.fixture
def entry(remembering: Install, tmp_path: Path) -> Entry:
    """An entry of a fault after another call."""
    remembering(last_scale)
    (found,) = kept(run(sequence_plan(tmp_path / "first"))[0])
    return found


@pytest.mark.parametrize("fault, status", [(last_scale, "failing"), (never, "fixed"), (third_call_dies, "fixed"), (large_scales, None)])
def test_an_entry_is_replayed_as_a_sequence(entry: Entry, fault: Fault, status: Optional[str]) -> None:
    made: list[Remembering] = []

    def make(setup: Setup) -> Remembering:
        made.append(Remembering(fault, setup.profile))
        made[-1].memories[0]["last"] = (entry.case.inputs.query.shape if entry.case.inputs.query else None, -1.0)
        return made[-1]

    (again,) = replay([entry_item(entry)], "quick", make=make)
    assert all(job.before == entry.before and fresh for job, fresh in made[0].jobs)
    if status is not None:
        assert again.status == status
    if status == "failing":
        assert again.verdict.code == "F304" and "after 1 other call" in again.text


def test_a_call_before_that_dies_is_told_as_new(entry: Entry, remembering: Install, tmp_path: Path) -> None:
    def dies(case: Case, memory: Memory) -> Optional[Result]:
        return Result("crash", signal=6, message="killed by SIGABRT") if case == entry.before[0] else None

    (again,) = replay([entry_item(entry)], "quick", make=lambda setup: Remembering(dies, setup.profile))
    assert again.status == "new" and again.verdict.code == "F301"
    remembering(dies)
    events, _ = run(sequence_plan(tmp_path / "first", phases=("replay",), out=str(tmp_path / "again")))
    (found,) = [e for e in events if isinstance(e, FindingFound)]
    assert (found.case, found.verdict.code) == (entry.before[0], "F301")


def test_the_replay_phase_of_a_run_knows_it(entry: Entry, remembering: Install, tmp_path: Path) -> None:
    plan = sequence_plan(tmp_path / "first", phases=("replay", "sequences"), out=str(tmp_path / "again"))
    remembering(last_scale)
    events, summary = run(plan)
    assert [e.status for e in events if isinstance(e, Replayed)] == ["failing"]
    assert [line.id for line in summary.findings] == [entry.id] and not summary.findings[0].new
    remembering(never)
    events, summary = run(msgspec.structs.replace(plan, out=str(tmp_path / "mended")))
    assert [e.status for e in events if isinstance(e, Replayed)] == ["fixed"] and summary.status == "clean"


def test_another_backend_that_has_the_fault_keeps_its_own_entry(entry: Entry, remembering: Install, tmp_path: Path) -> None:
    remembering(last_scale)
    plan = sequence_plan(tmp_path / "first", phases=("replay",), backends=("other",), out=str(tmp_path / "again"))
    events, _ = run(plan)
    (found,) = kept(events)
    assert (found.signature.backend, found.before) == ("other", entry.before)
