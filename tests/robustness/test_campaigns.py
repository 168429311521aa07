"""Whole campaigns in bad company: crashes, interrupts, full disks, a killed parent, two at once. Nothing found is
lost."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fiafuzz.campaign.corpus as corpus_module
from fiafuzz.campaign.corpus import Corpus, CorpusError, Entry
from fiafuzz.campaign.engine import run_campaign, summarise
from fiafuzz.campaign.events import CaseDone, Event, FindingKept, FlakyFound, RunFinished, decode_event
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.rundir import RunDirError

from .conftest import children


def plan_for(name: str, tmp_path: Path, **changes: Any) -> Plan:
    """A short campaign on a bad backend."""
    settings: dict[str, Any] = {
        "backends": (f"nasty-{name}",), "corpus": str(tmp_path / "corpus"), "out": str(tmp_path / "run"), "seed": 3, "canary": False,
        "phases": ("bulk",), "mode": "valid", "max_time": None, "max_cases": 60, "time_limit": 20.0, "memory_limit": 1 << 30,
        "shrink_seconds": 120.0,
    }
    return Plan(**{**settings, **changes})


def logged(tmp_path: Path) -> list[Event]:
    """The events in the log of the run."""
    return [decode_event(line) for line in (tmp_path / "run" / "events.ndjson").read_bytes().splitlines()]


def kept(events: list[Event]) -> list[FindingKept]:
    """The findings among events."""
    return [e for e in events if isinstance(e, FindingKept)]


@pytest.mark.parametrize("name, code, error", [
    ("sigsegv", "F301", "signal 11"), ("base-exception", "F301", "Worse"), ("memory", "F301", "oom"),
    ("wrong-shape", "F103", ""), ("lost", "F303", "lost"),
])
def test_a_fault_ends_as_one_small_entry(tmp_path: Path, name: str, code: str, error: str) -> None:
    plan = plan_for(name, tmp_path, max_cases=25, memory_limit=192 << 20)
    events = list(run_campaign(plan))
    found = kept(events)
    assert len({k.entry.id for k in found}) == 1
    entry = found[0].entry
    assert (entry.signature.code, entry.signature.error) == (code, error)
    assert found[0].new and found[0].path is not None and Path(found[0].path).is_file()
    shape = entry.case.inputs.key[0].shape if entry.case.inputs.key and entry.case.inputs.key[0] else ()
    assert len(entry.differences) <= 3, entry.differences
    assert shape[2] % 2 == 1, "what makes it fail is still there"
    assert list(Corpus(plan.corpus).entries()) == [entry]
    finished = events[-1]
    assert isinstance(finished, RunFinished) and finished.summary.status == "findings"
    assert [type(e) for e in logged(tmp_path)] == [type(e) for e in events]
    assert summarise(logged(tmp_path)) == finished.summary


def test_a_crash_that_does_not_come_again_is_flaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIAFUZZ_TEST_ONCE", str(tmp_path / "once"))
    events = list(run_campaign(plan_for("once", tmp_path)))
    flaky = [e for e in events if isinstance(e, FlakyFound)]
    assert [e.verdict.code for e in flaky] == ["F301"]
    assert not kept(events)
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    assert finished.summary.flaky == 1 and finished.summary.verdicts["flaky"] == 1 and finished.summary.status == "clean"


def test_repeated_deaths_do_not_eat_the_run(tmp_path: Path) -> None:
    events = list(run_campaign(plan_for("abort", tmp_path, max_time=25.0, max_cases=None)))
    cases = [e for e in events if isinstance(e, CaseDone)]
    assert len(kept(events)) == 1
    assert all("known crash" in e.verdict.text for e in cases if e.verdict.status == "skipped")
    assert sum(e.verdict.status == "pass" for e in cases) >= 10


def test_no_worker_is_left_when_the_consumer_goes_away(tmp_path: Path) -> None:
    before = children()
    stream = run_campaign(plan_for("good", tmp_path, workers=2, max_cases=1000))
    for event in stream:
        if isinstance(event, CaseDone) and event.n == 10:
            break
    stream.close()  # type: ignore[attr-defined]
    assert children() <= before
    events = logged(tmp_path)
    assert isinstance(events[-1], RunFinished), "the books are closed all the same"
    assert msgspec.json.decode((tmp_path / "run" / "run.json").read_bytes())["status"] == "clean"


def start(plan: Plan, **options: Any) -> subprocess.Popen[str]:
    """The campaign in a process of its own."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(p or os.getcwd() for p in sys.path))
    return subprocess.Popen([sys.executable, "-m", "tests.robustness.run_plan", msgspec.json.encode(plan).decode()],
                            stdout=subprocess.PIPE, text=True, env=env, **options)


def workers_of(parent: int) -> set[int]:
    """Living children of a process."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.add(int(entry))
    return found


def alive(pid: int) -> bool:
    """Whether a process lives."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: set[int], seconds: float = 10.0) -> bool:
    """Whether all of them end in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(alive(p) for p in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_partial_results(tmp_path: Path, number: int) -> None:
    process = start(plan_for("wrong-shape", tmp_path, max_cases=100_000, workers=2))
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    while not lines[-1].startswith("KEPT"):
        assert lines[-1], "ended without a finding"
        lines.append(process.stdout.readline())
    workers = workers_of(process.pid)
    assert len(workers) == 2
    process.send_signal(number)
    rest, _ = process.communicate(timeout=60)
    last = rest.splitlines()[-1].split()
    assert last[:3] == ["FINISHED", "findings", "True"]
    assert gone(workers)
    for line in [*lines, *rest.splitlines()]:
        if line.startswith("KEPT"):
            assert Path(line.split()[2]).is_file(), "whatever was reported is on disk"
    record = msgspec.json.decode((tmp_path / "run" / "run.json").read_bytes())
    assert record["summary"]["interrupted"] is True


def test_two_signals_end_a_run_that_hangs(tmp_path: Path) -> None:
    process = start(plan_for("hang", tmp_path, max_cases=100_000, time_limit=1000.0))
    assert process.stdout is not None
    deadline = time.monotonic() + 60
    while not workers_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = workers_of(process.pid)
    time.sleep(5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert rest.splitlines()[-1].startswith("FINISHED")
    assert gone(workers)


def test_workers_die_with_a_killed_parent(tmp_path: Path) -> None:
    process = start(plan_for("hang", tmp_path, max_cases=100_000, workers=2, time_limit=1000.0))
    deadline = time.monotonic() + 60
    while len(workers_of(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(4)  # into the hang, where no end of a pipe is noticed
    workers = workers_of(process.pid)
    assert len(workers) == 2
    process.kill()
    process.communicate(timeout=60)
    assert gone(workers)
    lines = (tmp_path / "run" / "events.ndjson").read_bytes().splitlines()
    assert all(decode_event(line) for line in lines)
    assert summarise(decode_event(line) for line in lines).seed == 3


def test_a_full_disk_for_the_log_does_not_end_the_run(tmp_path: Path) -> None:
    def little_room() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    process = start(plan_for("wrong-shape", tmp_path, max_cases=120), preexec_fn=little_room)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert any(line.startswith("KEPT") for line in out.splitlines())
    assert out.splitlines()[-1].split()[1] == "findings"
    lines = (tmp_path / "run" / "events.ndjson").read_bytes().splitlines()
    assert lines and all(decode_event(line) for line in lines), "no half lines"


def test_a_full_disk_for_the_corpus_is_told_with_the_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(corpus_module, "write_once", full)
    events = list(run_campaign(plan_for("wrong-shape", tmp_path, max_cases=30)))
    found = kept(events)
    assert found and found[0].path is None and "No space left" in found[0].problem
    assert any(isinstance(e, FindingKept) and e.entry == found[0].entry for e in logged(tmp_path)), "the log has the entry"
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    assert any("not in the corpus" in p for p in finished.summary.problems)


@pytest.mark.parametrize("what", ["file", "read-only parent is a file"])
def test_an_unwritable_place_is_an_error_before_anything_runs(tmp_path: Path, what: str) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    target = blocked if what == "file" else blocked / "below"
    with pytest.raises(RunDirError) as caught:
        run_campaign(plan_for("good", tmp_path, out=str(target)))
    assert "\n" not in str(caught.value) and "blocked" in str(caught.value)
    with pytest.raises(CorpusError) as caught_corpus:
        run_campaign(plan_for("good", tmp_path, corpus=str(target)))
    assert "\n" not in str(caught_corpus.value) and "blocked" in str(caught_corpus.value)


def test_two_campaigns_on_one_corpus(tmp_path: Path) -> None:
    first = start(plan_for("wrong-shape", tmp_path, out=str(tmp_path / "one"), seed=1, max_cases=40))
    second = start(plan_for("wrong-shape", tmp_path, out=str(tmp_path / "two"), seed=2, max_cases=40))
    outputs = [p.communicate(timeout=120)[0] for p in (first, second)]
    assert [p.returncode for p in (first, second)] == [0, 0]
    entries = list(Corpus(tmp_path / "corpus").entries())
    assert entries and all(isinstance(e, Entry) for e in entries)
    told = {line.split()[1] for out in outputs for line in out.splitlines() if line.startswith("KEPT")}
    assert told == {e.id for e in entries if isinstance(e, Entry)}
    assert not [f for f in os.listdir(tmp_path / "corpus" / "found") if not f.endswith(".json")]


def test_a_backend_that_cannot_run_here_is_told_in_the_summary(tmp_path: Path) -> None:
    events = list(run_campaign(plan_for("refuses", tmp_path)))
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    assert finished.summary.status == "broken" and "plug one in" in finished.summary.problems[0]


def test_the_corpus_is_replayed_first(tmp_path: Path) -> None:
    list(run_campaign(plan_for("wrong-shape", tmp_path, max_cases=30)))
    events = list(run_campaign(plan_for("wrong-shape", tmp_path, out=str(tmp_path / "again"), phases=("replay",))))
    found = kept(events)
    assert len(found) == 1 and not found[0].new
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    assert finished.summary.replayed == {"failing": 1} and finished.summary.status == "findings"
    events = list(run_campaign(plan_for("good", tmp_path, out=str(tmp_path / "good"), phases=("replay",))))
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    assert finished.summary.replayed == {"passing": 1} and finished.summary.status == "clean"
