"""Corpus and run directory under faults of the disk, damage and other writers: what was reported is there, and is whole."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional
from unittest import mock

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import fiafuzz.campaign.corpus as corpus_module
import fiafuzz.campaign.rundir as rundir_module
import fiafuzz.campaign.whole_files as whole_files
from fiafuzz.campaign.corpus import BadEntry, Corpus, CorpusError, Entry
from fiafuzz.campaign.corpus_verify import LEFTOVER, Trouble, verify
from fiafuzz.campaign.events import FindingKept, decode_event
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.rundir import RunDir, run_directory, utc_now

from .kept_entries import entry_of

CALLS = ("mkdir", "fsync", "chmod", "link", "replace", "unlink", "write", "flush", "mkstemp", "open", "rename")
ENTRIES = [entry_of(features=(("lse", word),), seed=seed) for word in "abc" for seed in (0, 1)]


class Disk:
    """The modules os and tempfile with a disk that fails at the n-th call of those that write; ``short``: a write takes half of it."""

    def __init__(self, real: Any, left: list[int], short: bool) -> None:
        self._real, self._left, self._short = real, left, short

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name == "fdopen":
            return lambda *a, **k: File(found(*a, **k), self)
        if name in CALLS and callable(found):
            return lambda *a, **k: self.now(lambda: found(*a, **k))
        return found

    def now(self, call: Callable[[], Any], half: Optional[Callable[[], Any]] = None) -> Any:
        """Make a call, or fail."""
        self._left[0] -= 1
        if self._left[0] == 0:
            if half is not None and self._short:
                half()
            raise OSError(errno.ENOSPC, "No space left on device")
        return call()


class File:
    """A file on that disk."""

    def __init__(self, real: Any, disk: Disk) -> None:
        self._real, self._disk = real, disk

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: Any) -> None:
        self._real.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def write(self, data: bytes) -> Any:
        return self._disk.now(lambda: self._real.write(data), lambda: self._real.write(data[: len(data) // 2]))

    def flush(self) -> Any:
        return self._disk.now(self._real.flush)


class Log(File):
    """The log of a run on that disk: a write that fails may have taken a part of the line."""

    def write(self, data: bytes) -> Any:
        try:
            return super().write(data)
        except OSError:
            if self._disk._short:
                return len(data) // 2
            raise


class Storage(RuleBasedStateMachine):
    """Campaigns that report findings, on a disk that may fail at any call."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.reported: dict[str, list[Entry]] = {}
        self.damaged: set[str] = set()
        self.told = 0
        self.run: Optional[RunDir] = None

    def teardown(self) -> None:
        if self.run is not None:
            self.run.close()
        shutil.rmtree(self.root)

    @property
    def corpus(self) -> Corpus:
        return Corpus(self.root / "corpus")

    @initialize()
    def begin(self) -> None:
        self.corpus.check_writable()
        self.new_run()

    def new_run(self) -> None:
        """Start a run in the same directory: its log is its own."""
        if self.run is not None:
            self.run.close()
        self.run = RunDir(run_directory(Plan(out=str(self.root / "run")), utc_now()))
        self.told = 0

    @rule(entry=st.sampled_from(ENTRIES), fails=st.integers(0, 14), short=st.booleans())
    def report(self, entry: Entry, fails: int, short: bool) -> None:
        """What a campaign does with a finding."""
        assert self.run is not None
        left, log = [fails], self.run._log
        disk = Disk(os, left, short)
        with (
            mock.patch.object(corpus_module, "os", disk),
            mock.patch.object(whole_files, "os", disk),
            mock.patch.object(whole_files, "tempfile", Disk(tempfile, left, short)),
            mock.patch.object(rundir_module, "os", disk),
            mock.patch.object(self.run, "_log", Log(log, disk)),
        ):
            path: Optional[str] = None
            problem = ""
            try:
                path = str(self.corpus.add(entry))
            except FileExistsError:
                path = str(self.corpus.root)
            except CorpusError as error:
                problem = str(error)
                assert "\n" not in problem
            before = self.run.problem
            self.run.write(FindingKept(number=1, entry=entry, new=True, path=path, runs=0, seconds=0.0, problem=problem))
        if before is None and self.run.problem is None:
            self.told += 1
        if path is not None:
            self.reported.setdefault(entry.id, []).append(entry)
            self.damaged.discard(entry.id)

    @precondition(lambda self: self.reported)
    @rule(data=st.data(), junk=st.binary(max_size=6), cut=st.booleans())
    def damage(self, data: st.DataObject, junk: bytes, cut: bool) -> None:
        """Something outside writes into an entry."""
        files = sorted((self.root / "corpus" / "found").glob("*.json"))
        path = data.draw(st.sampled_from(files))
        whole = path.read_bytes()
        at = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:at] + junk + (b"" if cut else whole[at + len(junk):]))
        self.damaged.add(path.name.partition(".")[0])

    @rule(entry=st.sampled_from(ENTRIES))
    def killed_in_the_middle(self, entry: Entry) -> None:
        """A program ends while it writes an entry."""
        (self.root / "corpus" / "found" / f".{entry.id}.json.x{len(self.reported)}.tmp").write_bytes(b'{"fiafuzz_entry": 1, ')

    @rule()
    def another_run(self) -> None:
        """The run ends, and another one uses its directory."""
        self.new_run()

    @invariant()
    def what_was_reported_is_there(self) -> None:
        there: dict[str, list[Entry]] = {}
        for found in self.corpus.entries():
            if isinstance(found, BadEntry):
                assert Path(found.path).name.partition(".")[0] in self.damaged or self.stands_beside(found), "no entry is half-written"
            else:
                there.setdefault(found.id, []).append(found)
        for entry_id, entries in self.reported.items():
            if entry_id not in self.damaged:
                assert any(e in entries for e in there.get(entry_id, [])) or there.get(entry_id), entry_id

    def stands_beside(self, found: BadEntry) -> bool:
        """Whether a damaged file has a whole one of its id beside it."""
        entry_id = Path(found.path).name.partition(".")[0]
        return any(isinstance(e, Entry) and e.id == entry_id for e in self.corpus.entries())

    @invariant()
    def the_log_is_whole(self) -> None:
        if self.run is None:
            return
        lines = (self.root / "run" / "events.ndjson").read_bytes().splitlines(keepends=True)
        assert all(line.endswith(b"\n") and decode_event(line) for line in lines)
        assert len(lines) >= self.told

    @invariant()
    def verify_tells_what_is_left_behind(self) -> None:
        if (self.root / "corpus").is_dir():
            left = {p.name for p in (self.root / "corpus" / "found").glob(".*.tmp")}
            told = {Path(t.path).name for t in verify(self.corpus) if isinstance(t, Trouble) and t.kind == LEFTOVER}
            assert told == left


Storage.TestCase.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
TestStorage = Storage.TestCase


def test_the_disk_of_the_machine_fails_at_every_call(tmp_path: Path) -> None:
    """What the machine rests on: each of the calls that add an entry is one that can fail, and a failed one leaves nothing."""
    entry, outcomes = ENTRIES[0], []
    for fails in range(1, 20):
        root = tmp_path / str(fails)
        left = [fails]
        disk, temporary = Disk(os, left, True), Disk(tempfile, left, True)
        with mock.patch.object(whole_files, "os", disk), mock.patch.object(whole_files, "tempfile", temporary):
            try:
                Corpus(root).add(entry)
                outcomes.append("kept")
            except CorpusError:
                outcomes.append("told")
        kept = [e for e in Corpus(root).entries() if isinstance(e, Entry)]
        assert kept == ([entry] if outcomes[-1] == "kept" else [])
        assert not [e for e in Corpus(root).entries() if isinstance(e, BadEntry)]
    assert outcomes.count("told") >= 5 and outcomes[-1] == "kept"
    assert msgspec.json.encode(entry)
