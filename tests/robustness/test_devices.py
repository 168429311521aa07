"""Devices: one worker each, a known-good call after every death, dead ones given up, and no mix of builds."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fiafuzz.campaign.blueprint import PLAIN, put_together, with_fields
from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import CaseDone, Event, FindingKept, LegStarted, Note, RunFinished
from fiafuzz.campaign.plan import Plan, PlanError, check
from fiafuzz.campaign.schedulers.devices import VISIBLE, dealt, difference, visible_devices
from fiafuzz.campaign.schedulers.local import LocalScheduler
from fiafuzz.campaign.schedulers.protocol import BackendRefused, DevicesLost, SchedulerError
from fiafuzz.campaign.wire import Hello, Job, Setup
from fiafuzz.model.case import Case

from .conftest import children
from .device_backends import DIRECTORY, install
from .test_workers import collect

Make = Callable[..., LocalScheduler]


def call(keys: int = 2, seed: int = 0) -> Case:
    """A plain call with that many key columns."""
    return put_together(with_fields(PLAIN, KV_S=keys, seed=seed), "v5", "950")


@pytest.fixture(autouse=True)
def devices(tmp_path: Path, nasty_backends: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pretended devices: their backends are installed, their state is in the directory returned."""
    install(nasty_backends)
    where = tmp_path / "devices"
    where.mkdir()
    monkeypatch.setenv(DIRECTORY, str(where))
    monkeypatch.delenv(VISIBLE, raising=False)
    return where


@pytest.fixture
def made() -> Iterator[Make]:
    """Makes started schedulers on devices; afterwards they are ended, and no worker is left."""
    before, found = children(), []

    def make(name: str, workers: int = 0, devices: tuple[str, ...] = (), time_limit: float = 20.0) -> LocalScheduler:
        scheduler = LocalScheduler(Setup(f"device-{name}", "950-v5"), workers, devices=devices, time_limit=time_limit)
        found.append(scheduler)
        scheduler.start()
        return scheduler

    yield make
    for scheduler in found:
        scheduler.close()
    assert children() <= before


def used(where: Path) -> list[tuple[str, str, str]]:
    """The log of the devices: device, process, digest."""
    return [tuple(line.split()) for line in (where / "log").read_text().splitlines()]  # type: ignore[misc]


def all_up(scheduler: LocalScheduler) -> None:
    """Wait until each place has a worker that takes jobs."""
    for _ in range(600):
        if all(s.ready for s in scheduler._slots):
            return
        scheduler.poll(0.1)
    raise AssertionError("workers do not come up")


# ---- which device ------------------------------------------------------------------------------------


@pytest.mark.parametrize("said, found", [
    ("", ()), ("2", ("2",)), ("0,3", ("0", "3")), ("0, 3", ("0",)), ("1,x,2", ("1",)), ("NoDevFiles", ()), ("-1", ()),
])
def test_the_variable_is_read_as_the_runtime_reads_it(said: str, found: tuple[str, ...]) -> None:
    assert visible_devices({VISIBLE: said}) == found


def test_without_the_variable_the_nodes_of_the_machine_count(tmp_path: Path) -> None:
    for name in ("davinci0", "davinci10", "davinci2", "davinci_manager", "davincix", "null"):
        (tmp_path / name).touch()
    assert visible_devices({}, str(tmp_path)) == ("0", "2", "10")
    assert visible_devices({}, str(tmp_path / "none")) == ()


def test_workers_are_dealt_over_devices_in_turn() -> None:
    assert dealt(("4", "6"), 2) == ["4", "6"]
    assert dealt(("4", "6"), 3) == ["4", "6", "4"]
    assert dealt((), 2) == [None, None]


def test_each_worker_gets_a_device_of_its_own(made: Make, devices: Path) -> None:
    scheduler = made("good", devices=("2", "5"))
    all_up(scheduler)
    for i in range(8):
        scheduler.submit(Job(i, call(seed=i)))
    assert {d.result.kind for d in collect(scheduler, 8)} == {"ok"}
    by_process: dict[str, set[str]] = {}
    for number, process, _ in used(devices):
        by_process.setdefault(process, set()).add(number)
    assert sorted(by_process.values(), key=sorted) == [{"2"}, {"5"}]


def test_auto_is_one_worker_a_device_that_the_backend_sees(made: Make, devices: Path) -> None:
    scheduler = made("good", workers=0)
    all_up(scheduler)
    assert [s.device for s in scheduler._slots] == ["0", "1", "2"]
    for slot in scheduler._slots:
        slot.process.send(Job(slot.number, call(seed=slot.number)))
    collect(scheduler, 3)
    assert {number for number, _, _ in used(devices)} == {"0", "1", "2"}


def test_auto_without_devices_is_one_worker_a_core() -> None:
    from fiafuzz.campaign.schedulers.devices import cores

    scheduler = LocalScheduler(Setup("nasty-good", "950-v5"), 0)
    try:
        scheduler.start()
        assert len(scheduler._slots) == cores() == len(os.sched_getaffinity(0))
    finally:
        scheduler.close()


def test_devices_for_a_backend_without_any_are_refused() -> None:
    scheduler = LocalScheduler(Setup("nasty-good", "950-v5"), 0, devices=("0",))
    with pytest.raises(SchedulerError, match="uses none"):
        scheduler.start()
    scheduler.close()


# ---- deaths ------------------------------------------------------------------------------------------


def test_a_fatal_outcome_replaces_the_worker_and_the_device_is_asked(made: Make, devices: Path) -> None:
    scheduler = made("exception", devices=("1",))
    first = scheduler.run(Job(1, call()))
    bad = scheduler.run(Job(2, call(3)))
    assert (first.result.kind, bad.result.kind, bad.result.code, bad.result.fatal) == ("ok", "crash", 507015, True)
    assert scheduler.given_up(bad.worker) == ""
    assert scheduler.run(Job(3, call(4)), fresh=True).result.kind == "ok"
    log = used(devices)
    plain = log[0][2]
    processes = list(dict.fromkeys(process for _, process, _ in log))
    runs = [[digest for _, process, digest in log if process == one] for one in processes]
    assert runs[0] == [plain, call().digest, call(3).digest], "nothing runs in a process after a fatal outcome"
    assert runs[1] == [plain], "the device is asked in a new process"
    assert runs[2] == [call(4).digest], "and a case that runs alone is the first and only one of its process"
    assert [r.reason for r in scheduler.restarts()] == ["the backend asked for a new process"]


def test_jobs_behind_a_fatal_one_are_run_by_the_next_process(made: Make) -> None:
    scheduler = made("exception", devices=("1",))
    for i in range(9):
        scheduler.submit(Job(i, call(3 if i in (2, 6) else 2, seed=i)))
    done = {d.job.id: d.result.kind for d in collect(scheduler, 9)}
    assert done == {i: "crash" if i in (2, 6) else "ok" for i in range(9)}


@pytest.mark.parametrize("name", ["killer", "dying-killer"])
def test_a_dead_device_is_given_up_and_the_others_go_on(made: Make, devices: Path, name: str) -> None:
    scheduler = made(name, devices=("0", "1"))
    all_up(scheduler)
    bad = scheduler.run(Job(1, call(3)))
    assert bad.result.kind == "crash"
    assert "does not answer" in scheduler.given_up(bad.worker)
    given_up = [r for r in scheduler.restarts() if r.given_up]
    assert len(given_up) == 1 and f"device {scheduler._slots[bad.worker].device} is given up" in given_up[0].reason
    for i in range(6):
        scheduler.submit(Job(10 + i, call(seed=i)))
    assert {d.result.kind for d in collect(scheduler, 6)} == {"ok"}


def test_when_the_last_device_dies_that_is_said(made: Make) -> None:
    scheduler = made("killer", devices=("0",))
    bad = scheduler.run(Job(1, call(3)))
    assert bad.result.kind == "crash" and scheduler.given_up(bad.worker)
    with pytest.raises(DevicesLost, match="no worker is left"):
        scheduler.run(Job(2, call()))
    with pytest.raises(DevicesLost):
        scheduler.poll(0.1)


def test_a_device_that_is_dead_from_the_start_is_left_out(made: Make, devices: Path) -> None:
    (devices / "dead-0").touch()
    (devices / "refuses-1").touch()
    scheduler = made("good", devices=("0", "1", "2"))
    for i in range(4):
        scheduler.submit(Job(i, call(seed=i)))
    assert {d.result.kind for d in collect(scheduler, 4)} == {"ok"}
    for slot in scheduler._slots[:2]:
        assert scheduler.given_up(slot.number)
    assert {number for number, _, digest in used(devices) if digest == call(seed=1).digest} == {"2"}


def test_no_device_that_lives_is_a_refusal(devices: Path) -> None:
    (devices / "refuses-0").touch()
    scheduler = LocalScheduler(Setup("device-good", "950-v5"), 0, devices=("0",))
    with pytest.raises(BackendRefused, match="device 0 is taken"):
        scheduler.start()
    scheduler.close()


def test_a_hang_on_a_device_is_ended(made: Make) -> None:
    scheduler = made("hang", devices=("0",), time_limit=1.0)
    assert scheduler.run(Job(1, call(3))).result.kind == "hang"
    assert scheduler.given_up(0) == ""
    assert scheduler.run(Job(2, call())).result.kind == "ok"


def test_a_worker_killed_from_outside_is_replaced_on_its_device(made: Make, devices: Path) -> None:
    scheduler = made("good", devices=("3",))
    os.kill(scheduler._slots[0].process.process.pid, signal.SIGKILL)
    scheduler.poll(0.5)
    assert scheduler.run(Job(1, call())).result.kind == "ok"
    assert {number for number, _, _ in used(devices)} == {"3"}


# ---- no mix ------------------------------------------------------------------------------------------


def test_workers_of_two_builds_are_not_mixed() -> None:
    scheduler = LocalScheduler(Setup("device-mixed", "950-v5"), 0, devices=("0", "1"))
    with pytest.raises(SchedulerError, match=r"does not mix builds: driver [01] and [01]"):
        scheduler.start()
        for _ in range(600):
            scheduler.poll(0.1)
    scheduler.close()


def test_what_tells_builds_apart() -> None:
    one = Hello("npu", "NPU", "own", {"cann": "8.1", "device": "0"}, profiles=("a2-v3",), device="npu", fiafuzz="1")
    assert difference(one, msgspec.structs.replace(one, versions={"cann": "8.1", "device": "1"})) == ""
    assert difference(one, msgspec.structs.replace(one, versions={"cann": "8.2"})) == "cann 8.1 and 8.2"
    assert difference(one, msgspec.structs.replace(one, versions={})) == "cann 8.1 and not there"
    assert difference(one, msgspec.structs.replace(one, profiles=("a3-v3",))) == "profiles a2-v3 and a3-v3"
    assert difference(one, msgspec.structs.replace(one, fiafuzz="2")) == "fiafuzz 1 and 2"


# ---- campaigns ---------------------------------------------------------------------------------------


def plan_for(name: str, tmp_path: Path, **changes: Any) -> Plan:
    """A short campaign on pretended devices."""
    settings: dict[str, Any] = {
        "backends": (f"device-{name}",), "corpus": str(tmp_path / "corpus"), "out": str(tmp_path / "run"), "seed": 3, "canary": False,
        "phases": ("bulk",), "mode": "valid", "max_time": None, "max_cases": 20, "time_limit": 20.0, "workers": 0,
    }
    return Plan(**{**settings, **changes})


def ended(events: list[Event]) -> RunFinished:
    """The last event."""
    last = events[-1]
    assert isinstance(last, RunFinished)
    return last


@pytest.mark.parametrize("name, code, error", [("exception", "F301", "exit"), ("dead-queue", "F202", "None")])
def test_a_device_fault_ends_as_one_small_entry(tmp_path: Path, name: str, code: str, error: str) -> None:
    events = list(run_campaign(plan_for(name, tmp_path, devices=("1",), max_cases=12)))
    kept = [e for e in events if isinstance(e, FindingKept)]
    assert {k.entry.signature.code for k in kept} == {code}
    assert kept[0].entry.environment["soc"] == "Pretended910"
    assert ended(events).summary.cases == 12
    record = msgspec.json.decode((tmp_path / "run" / "run.json").read_bytes())
    assert record["legs"][0]["versions"]["driver"] == "1"


def test_a_device_killer_is_kept_as_it_is_and_the_run_goes_on(tmp_path: Path, devices: Path) -> None:
    events = list(run_campaign(plan_for("killer", tmp_path, devices=("0", "1", "2", "3"), max_cases=12, max_time=300.0)))
    kept = [e for e in events if isinstance(e, FindingKept)]
    assert kept and all(k.entry.signature.code == "F303" and k.entry.id in k.path for k in kept if k.new and k.path)
    killer = kept[0].entry.case.digest
    assert sum(digest == killer for _, _, digest in used(devices)) == 1, "it is not run on another device"
    notes = [e.text for e in events if isinstance(e, Note)]
    assert any("is given up" in text for text in notes)
    assert any(isinstance(e, CaseDone) and e.verdict.code == "F303" for e in events)


def test_the_loss_of_the_last_device_ends_the_run_with_its_finding(tmp_path: Path) -> None:
    events = list(run_campaign(plan_for("killer", tmp_path, devices=("0",), max_cases=500)))
    kept = [e for e in events if isinstance(e, FindingKept)]
    assert [k.entry.signature.code for k in kept] == ["F303"] and Path(str(kept[0].path)).is_file()
    summary = ended(events).summary
    assert summary.status == "findings" and any("no worker is left" in p for p in summary.problems)


def test_a_profile_that_the_product_does_not_stand_for_is_refused(tmp_path: Path) -> None:
    events = list(run_campaign(plan_for("a2", tmp_path, profiles=("950-v5",), devices=("0",))))
    summary = ended(events).summary
    assert summary.refused and summary.problems == (
        "backend device-a2 cannot run here: Pretended910 does not stand for 950-v5; it does for a2-v3",
    )


def test_without_a_profile_the_backends_own_is_taken(tmp_path: Path) -> None:
    events = list(run_campaign(plan_for("a2", tmp_path, own_profile=True, devices=("0",), max_cases=5)))
    assert [e.profile for e in events if isinstance(e, LegStarted)] == ["a2-v3"]
    assert ended(events).summary.cases == 5 and not ended(events).summary.problems


@pytest.mark.parametrize("changes, words", [
    ({"workers": -1}, "workers"), ({"devices": ("0", "0")}, "twice"), ({"devices": ("x",)}, "no number"),
    ({"devices": ("0",), "ray": "auto"}, "Ray"),
])
def test_a_plan_without_sense_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        check(plan_for("good", tmp_path, **changes))
