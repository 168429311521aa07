"""A disk that is full at any write, for once or for good: what was reported is on disk or told as missing, nothing is half-written, and
the run goes on once there is room. Here each write fails in its turn; test_real_disks.py has disks that are really full."""

from __future__ import annotations

import errno
import io
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional
from unittest import mock

import pytest

import fiafuzz.campaign.corpus as corpus_module
import fiafuzz.campaign.rundir as rundir_module
import fiafuzz.campaign.whole_files as whole_files
from fiafuzz.campaign.corpus import Corpus, CorpusError, Entry
from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import Event, FindingFound, FindingKept, RunFinished, decode_event
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.results import Judged, Result
from fiafuzz.campaign.resume import ResumeError, read_past
from fiafuzz.campaign.rundir import RunDirError
from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from tests.unit.quick_runs import Quick, kept_ids, plan_in, quick, run

__all__ = ["quick"]
Install = Callable[..., list[Quick]]
PLAN: dict[str, Any] = {"phases": ("sweep", "bulk"), "max_cases": 14, "shrink_runs": 6}
WRITES = ("mkdir", "fsync", "link", "replace", "rename", "ftruncate")
FOR_GOOD = 1 << 30


class Disk:
    """Counts what writes, and fails from the n-th write on, so many times. A write that fails may have taken a part."""

    def __init__(self, first: int, times: int, error: int) -> None:
        self.first, self.times, self.error, self.seen = first, times, error, 0

    def now(self) -> bool:
        """Whether this write fails."""
        self.seen += 1
        return self.first <= self.seen < self.first + self.times

    def fail(self) -> None:
        """OSError when this write fails."""
        if self.now():
            raise OSError(self.error, os.strerror(self.error))


class On:
    """A module whose functions write on such a disk."""

    def __init__(self, real: Any, disk: Disk) -> None:
        self._real, self._disk = real, disk

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name in ("fdopen", "FileIO"):
            return lambda *a, **k: Written(found(*a, **k), self._disk)
        if name in WRITES or name in ("mkstemp", "NamedTemporaryFile"):
            def call(*a: Any, **k: Any) -> Any:
                self._disk.fail()
                return found(*a, **k)
            return call
        return found


class Written:
    """A file there."""

    def __init__(self, real: Any, disk: Disk) -> None:
        self._real, self._disk = real, disk

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *_: Any) -> None:
        self._real.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def write(self, data: bytes) -> Any:
        if self._disk.now():
            count = self._real.write(data[: len(data) // 2])
            if isinstance(self._real, io.FileIO):
                return count  # as the kernel does it: a part is taken, and the next write fails
            raise OSError(self._disk.error, os.strerror(self._disk.error))
        return self._real.write(data)


@contextmanager
def on(disk: Disk) -> Iterator[None]:
    """Corpus and run directory lie on that disk."""
    with (
        mock.patch.object(whole_files, "os", On(os, disk)),
        mock.patch.object(whole_files, "tempfile", On(tempfile, disk)),
        mock.patch.object(corpus_module, "tempfile", On(tempfile, disk)),
        mock.patch.object(rundir_module, "os", On(os, disk)),
        mock.patch.object(rundir_module, "io", On(io, disk)),
    ):
        yield


def entries(root: Path) -> dict[str, Entry]:
    """What is in the corpus; all of it is whole."""
    found = list(Corpus(root / "corpus").entries())
    assert all(isinstance(e, Entry) for e in found), found
    return {e.id: e for e in found if isinstance(e, Entry)}


def left_behind(root: Path) -> list[str]:
    """Temporary files."""
    return [str(p) for p in root.rglob("*") if p.name.endswith(".tmp") or ".tmp-" in p.name]


def whole_log(root: Path) -> list[Event]:
    """The log; no line of it is half-written."""
    data = (root / "run" / "events.ndjson").read_bytes()
    assert not data or data.endswith(b"\n")
    return [decode_event(line) for line in data.splitlines()]


def told_right(root: Path, events: list[Event]) -> None:
    """Findings that were reported are in the corpus, or the event itself says that they are not and why; one that is in no file at all
    is told in the summary."""
    there, log = entries(root), whole_log(root)
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    for event in events:
        if isinstance(event, FindingKept) and event.path is not None:
            assert there[event.entry.id].signature == event.entry.signature
        elif isinstance(event, FindingKept):
            assert event.problem and "\n" not in event.problem
            assert any(event.entry.id in p for p in finished.summary.problems)
            in_log = any(isinstance(e, FindingKept) and e.entry == event.entry for e in log)
            assert in_log or any("log is not complete" in p for p in finished.summary.problems)
    if [type(e) for e in log] != [type(e) for e in events]:
        # RunFinished itself may be what was not written.
        assert finished.summary.problems or [type(e) for e in log] == [type(e) for e in events[:-1]]
    assert finished.summary.status in ("findings", "broken")
    assert not left_behind(root)


def writes_of(root: Path) -> int:
    """How many writes a run makes when nothing fails."""
    disk = Disk(0, 0, errno.ENOSPC)
    with on(disk):
        _, summary = run(plan_in(root, **PLAN))
    assert summary.status == "findings" and len(summary.findings) >= 2
    return disk.seen


def wrong(case: Case) -> Optional[Result]:
    """Three faults, so that several findings are kept."""
    scene = Scene(case)
    if (scene.KV_S or 0) % 2:
        return Result("ok", judged=Judged(False, "F103", text="wrong shape"))
    if case.attrs.softmaxLseFlag:
        return Result("ok", judged=Judged(False, "F101", 4.0, compared=8, text="off"))
    return Result("crash", message="killed by SIGSEGV", signal=11) if (scene.Q_S or 0) > 2 else None


@pytest.mark.parametrize("times, error", [(FOR_GOOD, errno.ENOSPC), (1, errno.ENOSPC), (1, errno.EIO)], ids=["full", "once", "error"])
def test_the_disk_fails_at_every_write(quick: Install, tmp_path: Path, times: int, error: int) -> None:
    quick(wrong)
    whole = tmp_path / "whole"
    count = writes_of(whole)
    assert count >= 40
    wanted = set(entries(whole))
    refused = completed = 0
    for first in range(1, count + 1, 2 if times == FOR_GOOD else 5):
        root = tmp_path / str(first)
        root.mkdir()
        disk = Disk(first, times, error)
        try:
            with on(disk):
                events, _ = run(plan_in(root, **PLAN))
        except (CorpusError, RunDirError) as refusal:
            assert "\n" not in str(refusal) and os.strerror(error) in str(refusal)
            refused += 1
            assert not left_behind(root)
            continue
        told_right(root, events)
        assert kept_ids(events) == wanted, "the run found what it would have found"
        completed += 1
        if first % 5 == 0:  # there is room again
            if not (root / "run" / "events.ndjson").stat().st_size and not (root / "run" / "run.json").exists():
                with pytest.raises(ResumeError):  # nothing of it is there
                    read_past(root / "run")
                continue
            past = read_past(root / "run")
            if not past.complete:
                run(past.plan, past=past)
                assert set(entries(root)) == wanted
    assert completed > count // 6 and refused >= 1


def test_findings_without_room_in_the_corpus_are_kept_when_the_run_goes_on(quick: Install, tmp_path: Path) -> None:
    """The corpus is full all the time, the log is not: the entries are in the log, and go to the corpus later."""
    quick(wrong)
    disk = Disk(1, 0, errno.ENOSPC)
    with mock.patch.object(corpus_module, "write_once", side_effect=OSError(errno.ENOSPC, "No space left on device")):
        events, summary = run(plan_in(tmp_path, **PLAN))
    assert disk.seen == 0 and not entries(tmp_path)
    told = kept_ids(events)
    assert len(told) >= 2 and sum("not in the corpus" in p for p in summary.problems) == len(told)
    past = read_past(tmp_path / "run")
    assert not past.complete
    run(past.plan, past=past)
    assert set(entries(tmp_path)) == told


def test_a_corpus_that_becomes_read_only_in_the_middle(quick: Install, tmp_path: Path) -> None:
    """A file system that turns read-only after a fault of its own: findings are told, and in the log."""
    quick(wrong)
    stream = run_campaign(plan_in(tmp_path, **PLAN))
    events: list[Event] = []
    read_only = mock.patch.object(corpus_module.tempfile, "mkstemp", side_effect=OSError(errno.EROFS, "Read-only file system"))
    with read_only:
        for event in stream:
            events.append(event)
            if isinstance(event, FindingFound):
                assert stat.S_ISDIR(os.stat(tmp_path / "corpus").st_mode)
    told_right(tmp_path, events)
    lost = [e for e in events if isinstance(e, FindingKept)]
    assert lost and all(e.path is None and "Read-only" in e.problem for e in lost)


def test_limits_of_the_real_kernel(tmp_path: Path) -> None:
    """RLIMIT_FSIZE cuts writes of a campaign in a process of its own short, at several sizes: no half lines, no half entries."""
    script = (
        "import resource, signal, sys, msgspec\n"
        "from pathlib import Path\n"
        "import pytest\n"
        "from tests.unit.quick_runs import make_quick, run\n"
        "from fiafuzz.campaign.plan import Plan\n"
        "from fiafuzz.campaign.events import FindingKept\n"
        "from tests.robustness.test_disk_full import wrong\n"
        "make_quick(pytest.MonkeyPatch())(wrong)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "for text, size in zip(sys.argv[1::2], sys.argv[2::2]):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), resource.RLIM_INFINITY))\n"
        "    events, _ = run(msgspec.json.decode(text, type=Plan))\n"
        "    print(sum(isinstance(e, FindingKept) for e in events))\n"
    )
    sizes = (900, 1500, 4000, 7001, 12_345)
    words = []
    for size in sizes:
        (tmp_path / str(size)).mkdir()
        words += [_text(plan_in(tmp_path / str(size), **PLAN)), str(size)]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(p or os.getcwd() for p in sys.path), PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert [int(line) >= 2 for line in done.stdout.split()] == [True] * len(sizes)
    for size in sizes:
        root = tmp_path / str(size)
        entries(root)
        whole_log(root)
        assert not left_behind(root)


def _text(plan: Plan) -> str:
    import msgspec

    return msgspec.json.encode(plan).decode()
