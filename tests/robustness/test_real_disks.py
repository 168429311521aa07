"""Disks that are really full or read-only (small tmpfs, in a mount namespace of their own) under the command line: every finding on
screen is in the corpus or told as missing, nothing is half-written, and with room again the run goes on to the same end.

Mounting is a right, nothing that could be installed: without it these tests skip also where FIAFUZZ_REQUIRE_ALL=1 lets nothing else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis.database import _hash

from fiafuzz.campaign.corpus import Corpus, Entry
from fiafuzz.campaign.events import FindingKept, decode_event
from fiafuzz.campaign.rundir import EXAMPLES

from .small_disks import ROOT, Disks, Ran, why_not

QUICK = ("fuzz", "--backend", "cpu", "--seed", "5", "-n", "20", "--phases", "sweep,explore,bulk")
FOUND = re.compile(r"(?:new|again) (F[0-9]{3}-[0-9a-f]{10})  F")
ROOM = "remount,size=4m,nr_inodes=1000"


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disks]:
    """A process that may mount."""
    reason = why_not()
    if reason:
        pytest.skip(f"this machine lets nobody mount a tmpfs, which no installation could change ({reason})")
    other = Disks(tmp_path_factory.mktemp("disks"))
    yield other
    other.close()


@pytest.fixture(scope="module")
def wanted(disks: Disks) -> set[str]:
    """What a run with room finds."""
    place = Place(disks, "room")
    ran = place.fuzz()
    assert ran.code == 1, ran.err
    found = place.found(ran)
    assert len(found) == 3 and all(why == "" for why in found.values())
    return set(found)


@dataclass(frozen=True)
class Place:
    """Where corpus and run directory lie."""

    disks: Disks
    name: str

    @property
    def root(self) -> Path:
        """The directory that has everything."""
        return self.disks.root / self.name

    @property
    def seen(self) -> Path:
        """The same, for this process."""
        return self.disks.seen(self.root)

    def fuzz(self, *words: str, at: int = 0, deed: tuple[str, ...] = (), full: str = "", **env: str) -> Ran:
        """A quick run there; ``words`` instead of those of a new run."""
        (self.disks.seen(self.disks.root) / self.name).mkdir(exist_ok=True)
        return self.disks.run(*(words or self.command), env=env, at=at, deed=list(deed), full=full)

    @property
    def command(self) -> tuple[str, ...]:
        """A new run there."""
        return (*QUICK, "--corpus", str(self.root / "corpus"), "--out", str(self.root / "run"))

    def resume(self) -> Ran:
        """Go on with the run there."""
        return self.fuzz("fuzz", "--resume", str(self.root / "run"))

    def entries(self) -> dict[str, Entry]:
        """What is in the corpus; all of it can be read, and no other file is there."""
        found = list(Corpus(self.seen / "corpus").files())
        assert all(isinstance(e, Entry) for _, e in found), found
        there = {p for p in (self.seen / "corpus").rglob("*") if p.is_file()}
        assert there == {path for path, _ in found}
        return {e.id: e for _, e in found if isinstance(e, Entry)}

    def found(self, ran: Ran) -> dict[str, str]:
        """The findings on screen, each with why it was not kept ("" when it was); those that were are in the corpus, those that
        were not are told again at the end and are in the log where that has room. Nothing is half-written."""
        found: dict[str, str] = {}
        last = ""
        for line in ran.err.splitlines():
            if heading := FOUND.match(line):
                found[last := heading[1]] = ""
            elif line.startswith("  not kept: "):
                found[last] = line.removeprefix("  not kept: ")
        there, log = self.entries(), self.log()
        assert self.ended("events.ndjson", b'"RunFinished"') or "the log is not complete: " in ran.err
        assert self.ended("run.json", b'"status": "findings"') or "run.json is not up to date: " in ran.err
        for name, why in found.items():
            assert (name in there) == (why == ""), ran.err
            assert not why or f"  problem   {name} is not in the corpus: {why}" in ran.err
            assert name in log or "the log is not complete: " in ran.err
        self.nothing_half()
        return found

    def ended(self, name: str, word: bytes) -> bool:
        """Whether a file of the run directory has its end."""
        path = self.seen / "run" / name
        return path.exists() and word in path.read_bytes()

    def log(self) -> set[str]:
        """Findings in the log, which has whole lines only."""
        path = self.seen / "run" / "events.ndjson"
        data = path.read_bytes() if path.exists() else b""
        assert data == b"" or data.endswith(b"\n")
        return {e.entry.id for e in map(decode_event, data.splitlines()) if isinstance(e, FindingKept)}

    def nothing_half(self) -> None:
        """No temporary file, no record without its end, no example but whole ones."""
        for path in self.seen.rglob("*"):
            assert not path.name.endswith(".tmp") and ".tmp-" not in path.name, path
            if path.name == "run.json":
                assert json.loads(path.read_bytes())["fiafuzz_run"] == 1
            elif path.name == ".gitignore":
                assert path.read_bytes() == b"*\n"
            elif EXAMPLES in path.parts and path.is_file():
                assert path.name == _hash(path.read_bytes())


ALL = [("all", o) for o in (
    "size=4k", "size=8k", "size=12k", "size=16k", "size=32k", "size=48k", *(f"nr_inodes={n}" for n in (1, 3, 5, 6, 9, 12)),
)]
PARTS = [("corpus", "size=4k"), ("corpus", "nr_inodes=3"), ("run", "size=4k"), ("run", "size=12k")]


@pytest.mark.parametrize("what, options", [*ALL, *PARTS], ids=lambda word: word.replace("=", "-"))
def test_too_small(disks: Disks, wanted: set[str], what: str, options: str) -> None:
    """Sizes from nothing to nearly enough (a page is 4 KiB), and as few files; everything on that disk, or a part."""
    place = Place(disks, f"{what}-{options}")
    disks.mount(place.root if what == "all" else place.root / what, options)
    ran = place.fuzz(TMPDIR=str(place.root)) if what == "all" else place.fuzz()
    assert "Traceback" not in ran.err and "internal error" not in ran.err
    if ran.code == 2:  # not even begun
        assert len(ran.told) == 1 and ran.told[0].endswith("No space left on device") and ran.err.count("\n") == 1, ran.err
        assert not place.entries() and not place.log()
        place.nothing_half()
    else:
        assert ran.code == 1, ran.err
        found = place.found(ran)
        assert set(found) == wanted, "a full disk hides nothing"
        assert "No space left on device" in ran.err.lower().replace("no space", "No space"), "else this size is not too small"
    disks.mount(place.root if what == "all" else place.root / what, ROOM)
    again = place.resume()
    if again.code == 2:  # nothing of the run is on that disk
        assert len(again.told) == 1 and not place.log()
        again = place.fuzz()
    assert again.code == 1, again.err
    place.found(again)
    assert set(place.entries()) == place.log() == wanted
    assert "  problem " not in again.err


def test_the_log_goes_on_where_run_json_has_no_room(disks: Disks, wanted: set[str]) -> None:
    """Two files may be there: .gitignore and the log. The findings matter, and so does that run.json is missing."""
    place = Place(disks, "two-files")
    disks.mount(place.root / "run", "nr_inodes=3")
    ran = place.fuzz()
    assert ran.code == 1 and set(place.found(ran)) == place.log() == wanted
    assert re.search(r"^  problem   run.json is not up to date: .*/run.json: No space left on device$", ran.err, re.M), ran.err
    assert "the log is not complete" not in ran.err and "example database: " in ran.err
    disks.mount(place.root / "run", ROOM)
    again = place.resume()
    assert again.code == 1 and "this run has finished" in again.err and "run.json is not up to date" in again.err


def test_no_room_for_temporary_files(disks: Disks, wanted: set[str]) -> None:
    """They go beside their targets: a full TMPDIR loses nothing, not even an example."""
    full = disks.root / "temporary"
    disks.mount(full, "size=4k,nr_inodes=2")
    (disks.seen(full) / "file").write_bytes(b"x" * 4096)
    place = Place(disks, "elsewhere")
    ran = place.fuzz(TMPDIR=str(full))
    assert ran.code == 1 and set(place.found(ran)) == wanted
    assert "problem" not in ran.err and "warning" not in ran.err
    assert [p for p in (place.seen / "run" / EXAMPLES).rglob("*") if p.is_file()]


@pytest.mark.parametrize("room", [False, True], ids=["full", "room"])
def test_a_shared_directory_of_examples(disks: Disks, wanted: set[str], room: bool) -> None:
    """On another disk than the temporary files, as a fleet's is: whole files that all may read, or none and a warning."""
    place, shared = Place(disks, f"sharing-{room}"), disks.root / f"shared-{room}"
    disks.mount(shared, "size=1m" if room else "size=4k")
    if not room:
        (disks.seen(shared) / "file").write_bytes(b"x" * 4096)
    ran = place.fuzz(*place.command, "--examples", str(shared))
    assert ran.code == 1 and set(place.found(ran)) == wanted
    kept = [p for p in disks.seen(shared).rglob("*") if p.is_file() and p.name != "file"]
    assert bool(kept) == room
    assert all(p.name == _hash(p.read_bytes()) and stat.S_IMODE(p.stat().st_mode) == 0o644 for p in kept)
    assert ran.err.count("warning: example database: ") == (not room), ran.err


def test_the_disk_fills_up_in_the_middle_and_is_emptied(disks: Disks, wanted: set[str]) -> None:
    """What somebody else writes there takes the room at the tenth call."""
    place = Place(disks, "filling")
    disks.mount(place.root, "size=256k")
    ran = place.fuzz(at=10, deed=("sh", "-c", f"cat /dev/zero > {place.root}/other 2>/dev/null; true"))
    assert ran.code == 1 and set(found := place.found(ran)) == wanted
    assert any(found.values()), ran.err
    (place.seen / "other").unlink()
    again = place.resume()
    assert again.code == 1 and "  problem " not in again.err, again.err
    assert set(place.entries()) == place.log() == wanted


@pytest.mark.parametrize("what", ["corpus", "run"])
def test_read_only_from_the_start(disks: Disks, wanted: set[str], what: str) -> None:
    place = Place(disks, f"read-only-{what}")
    disks.mount(place.root / what, "size=1m")
    assert place.fuzz().code == 1
    before = {p: p.read_bytes() for p in (place.seen / what).rglob("*") if p.is_file()}
    disks.mount(place.root / what, "remount,ro")
    for ran in (place.fuzz(), place.resume()) if what == "corpus" else (place.fuzz(),):
        if "this run has finished" in ran.err:
            continue
        assert ran.code == 2 and len(ran.told) == 1 and ran.told[0].endswith("Read-only file system"), ran.err
    assert {p: p.read_bytes() for p in (place.seen / what).rglob("*") if p.is_file()} == before
    assert place.resume().code == 1, "what has finished can be looked at"
    if what == "corpus":
        replayed = place.fuzz("replay", "--backend", "nasty-good", "--corpus", str(place.root / "corpus"))
        assert "Read-only" not in replayed.err and "internal error" not in replayed.err


def test_the_corpus_becomes_read_only_in_the_middle(disks: Disks, wanted: set[str]) -> None:
    """As a file system does after an error of its device."""
    place = Place(disks, "turning")
    disks.mount(place.root / "corpus", "size=1m")
    ran = place.fuzz(at=10, deed=("mount", "-t", "tmpfs", "-o", "remount,ro", "none", str(place.root / "corpus")))
    assert ran.code == 1 and set(found := place.found(ran)) == wanted
    assert {why.rpartition(": ")[2] for why in found.values()} >= {"Read-only file system"}, ran.err
    refused = place.resume()
    assert refused.code == 2 and len(refused.told) == 1 and "Read-only file system" in refused.told[0]
    disks.mount(place.root / "corpus", "remount,rw")
    again = place.resume()
    assert again.code == 1 and set(place.entries()) == place.log() == wanted
    assert "  problem " not in again.err


def test_standard_error_is_on_a_full_disk(disks: Disks, wanted: set[str]) -> None:
    """Nobody can read of it, and the run does what it would have done."""
    place = Place(disks, "silent")
    assert place.fuzz(full="err").code == 1
    assert set(place.entries()) == place.log() == wanted
    assert place.fuzz("fuzz", "-n", "many", full="err").code == 2
    assert place.fuzz("generate", "-n", "2", "--seed", "1", full="err").out.count("\n") == 2


def test_standard_output_is_on_a_full_disk(disks: Disks, wanted: set[str]) -> None:
    """A result that is lost is told; the exit code of a run is about its findings all the same."""
    place = Place(disks, "unheard")
    ran = place.fuzz(*place.command, "--json", full="out")
    assert ran.code == 1 and set(place.found(ran)) == wanted
    assert ran.told == ["fiafuzz: the summary cannot be written to standard output: No space left on device"]
    streamed = place.fuzz(*place.command, "--events", "-", full="out")
    assert streamed.code == 1 and streamed.told == ["fiafuzz: the stream of events to - ends here: No space left on device"]
    for words in (("generate", "-n", "2"), ("explain", "F101"), ("schema", "case")):
        lost = place.fuzz(*words, full="out")
        assert lost.code == 2 and lost.told == ["fiafuzz: cannot write: No space left on device"], lost.err


def test_reports_without_room(disks: Disks, wanted: set[str]) -> None:
    """They are whole or not there, and never hide the result."""
    place = Place(disks, "reports")
    disks.mount(place.root / "run", "size=48k")
    disks.mount(place.root / "stream", "size=8k")
    names = {"html": "report.html", "junit": "junit.xml", "sarif": "report.sarif", "csv": "csv"}
    ran = place.fuzz(*place.command, "--report", ",".join(names), "--events", str(place.root / "stream" / "events"))
    assert ran.code == 1 and set(place.found(ran)) == wanted and "  problem " not in ran.err, ran.err
    assert any(line.startswith("fiafuzz: the stream of events to ") for line in ran.told)
    stream = (place.seen / "stream" / "events").read_bytes()
    assert len(stream) > 4096 and stream.endswith(b"\n") and all(map(decode_event, stream.splitlines()))
    missing = {name for name, file in names.items() if f"fiafuzz: {place.root / 'run' / file}: No space left on device" in ran.told}
    assert "html" in missing and len(ran.told) == len(missing) + 1
    for name, file in names.items():
        assert (name in missing) != (f"report {place.root / 'run' / file}" in ran.err.splitlines())
        assert name == "csv" or (name in missing) != (place.seen / "run" / file).exists()
    disks.mount(place.root / "run", ROOM)
    again = place.fuzz("fuzz", "--resume", str(place.root / "run"), "--report", ",".join(names))
    assert again.code == 1 and not again.told and all((place.seen / "run" / file).exists() for file in names.values())


def test_merging_and_accepting_without_room(disks: Disks, wanted: set[str]) -> None:
    place = Place(disks, "merging")
    assert place.fuzz().code == 1
    disks.mount(place.root / "into", "size=8k")
    merge = ("corpus", "merge", str(place.root / "corpus"), "--into", str(place.root / "into"))
    ran = place.fuzz(*merge)
    there = list(Corpus(place.seen / "into").entries())
    assert ran.code == 2 and len(ran.told) == 1 and "No space left on device" in ran.told[0], ran.err
    assert len(there) == 2 and all(isinstance(e, Entry) for e in there)
    place.nothing_half()
    baseline = place.fuzz(*place.command, "--baseline", str(place.root / "into" / "accepted.json"), "--baseline-update")
    assert "the baseline could not be written" in baseline.err and "No space left on device" in baseline.err, baseline.err
    assert baseline.code != 0 and not (place.seen / "into" / "accepted.json").exists()
    disks.mount(place.root / "into", ROOM)
    assert place.fuzz(*merge).code == 0
    assert {e.id for e in Corpus(place.seen / "into").entries() if isinstance(e, Entry)} == wanted


@pytest.mark.slow
def test_with_workers(disks: Disks, nasty_backends: Path) -> None:
    """The whole command line, with nothing replaced: canary, workers, and their temporary files on the same small disk."""
    place = Place(disks, "workers")
    disks.mount(place.root, "size=12k,nr_inodes=40")
    env = {"PYTHONPATH": f"{nasty_backends}:{os.environ.get('PYTHONPATH', '')}:{ROOT}", "TMPDIR": str(place.root)}
    backend = ("--backend", "nasty-wrong-shape", "--seed", "5", "-n", "16", "--phases", "bulk")
    ran = disks.run("fuzz", *backend, "--corpus", "corpus", "--out", "run", quick=False, env=env, where=place.root)
    assert ran.code == 1 and "canary passed" in ran.err, ran.err
    found = place.found(ran)
    assert found and all("No space left" in why for why in found.values()), ran.err
    disks.mount(place.root, ROOM)
    again = disks.run("fuzz", "--resume", "run", quick=False, env=env, where=place.root)
    assert again.code == 1 and set(place.entries()) == place.log() == set(found), again.err
    assert set(place.found(again)) <= set(found)


def ordinary(where: Path, *words: str, closed: Path, mode: int) -> subprocess.CompletedProcess[str]:
    """``fiafuzz WORDS`` in a directory, run by somebody to whom permissions mean something (root gives up what lets it pass them
    by), while another directory is closed."""
    command = ["sh", "-c", 'chmod "$0" "$1" && shift && exec "$@"', f"{mode:o}", str(closed)]
    if os.geteuid() == 0:
        command += ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
        if shutil.which("setpriv") is None or subprocess.run([*command[-3:], "true"], capture_output=True, check=False).returncode:
            pytest.skip("root cannot give up its rights here (setpriv of util-linux, CAP_SETPCAP)")
    path = os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command += [sys.executable, "-m", "fiafuzz.cli.main", *words]
    try:
        return subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, timeout=120, check=False)
    finally:
        closed.chmod(0o755)


@pytest.mark.parametrize("closed", ["corpus/found", "corpus", "run", "."])
def test_what_an_ordinary_user_may_not_write(tmp_path: Path, closed: str) -> None:
    """One line, and nothing of the run anywhere."""
    work = tmp_path / "work"
    (work / closed).mkdir(parents=True)
    done = ordinary(work, *QUICK, "--corpus", "corpus", "--out", "run", closed=work / closed, mode=0o555)
    assert done.returncode == 2 and done.stderr.startswith(f"fiafuzz: {'run' if closed == 'run' else 'corpus/found'}: "), done.stderr
    assert done.stderr.endswith(": Permission denied\n") and done.stderr.count("\n") == 1
    assert [p for p in work.rglob("*") if p.is_file()] == []


def test_a_directory_above_that_may_not_be_looked_into(tmp_path: Path) -> None:
    """It has no configuration file for whoever works below it."""
    work = tmp_path / "closed" / "work"
    work.mkdir(parents=True)
    done = ordinary(work, "explain", "F101", closed=tmp_path / "closed", mode=0o000)
    assert done.returncode == 0 and "F101" in done.stdout, done.stderr
