"""Nothing is lost while things are killed: python tests/benchmarks/soak.py --minutes 20 --kill workers|ray|parent --seed S

Runs campaigns, one after the other, on a backend with planted faults (soak_backend.py), and every few seconds kills

- workers: a worker process of a local campaign with two of them (SIGKILL, SIGSEGV or SIGTERM);
- ray: an actor, or a worker process below one, of a campaign on a Ray cluster of this machine;
- parent: the campaign itself (SIGKILL, now and then SIGTERM or SIGINT), which then goes on with --resume until it is
  complete; cases and findings must be those of the same campaign left alone.

"--kill workers,ray" takes turns. After each campaign the soak checks that

- every finding that was printed (--events -) or logged is in the corpus, whole, and every one that was begun has come to an end;
- no case is missing or recorded twice;
- no process and no file is left behind (temporary ones, those of Ray, halves of entries).

The exit code is 0 when all of that held, else 1.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Optional

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from fiafuzz.campaign.corpus import Corpus, Entry
from fiafuzz.campaign.events import (
    CaseDone,
    Event,
    FindingFound,
    FindingKept,
    FindingRepeated,
    FlakyFound,
    PhaseStarted,
    RunFinished,
    WorkerRestarted,
    decode_event,
)
from fiafuzz.campaign.guard import DRIVER_MARK, carriers, start_of
from fiafuzz.campaign.rundir import log_lines
from fiafuzz.campaign.tally import summarise
from tests.benchmarks.soak_backend import NAME, install

MARK = "FIAFUZZ_SOAK"
KINDS = ("workers", "ray", "parent")
LASTS = {"workers": 100, "ray": 180}
"""Seconds of one campaign that is bound by time; Ray alone takes long to start on a busy machine."""
OURS = tuple(f"signal {int(number)}" for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM))
GRACE = 30.0
"""Seconds that what is left of a killed campaign gets to end."""
STUCK = 600.0
"""Seconds without an event after which a campaign is said to hang."""


@dataclass
class Counts:
    """What one kind of campaign has come to."""

    campaigns: int = 0
    cases: int = 0
    kills: int = 0
    restarts: int = 0
    resumes: int = 0
    before: int = 0
    """Findings that were printed or logged as kept."""
    after: int = 0
    """Those of them that are in the corpus, whole."""
    flaky: int = 0
    blamed: int = 0
    """Findings that only the kills explain: a case whose worker was killed each time it was tried."""
    interrupted: int = 0
    """Findings that were kept before they were shrunk, since the campaign was asked to stop, and came to their end later."""
    troubles: list[str] = field(default_factory=list)


class Campaign:
    """One campaign, as users run it, in directories of its own."""

    def __init__(self, base: Path, number: int, kind: str, seed: int, rng: random.Random, bound: list[str], interval: float) -> None:
        self.kind, self.rng, self.interval = kind, rng, interval
        self.place = base / f"{kind}-{number}"
        self.place.mkdir()
        self.mark = f"{number}-{seed}-{kind}"
        self.drivers: set[bytes] = set()
        self.printed: list[Event] = []
        self.counts = Counts(campaigns=1)
        self._told = monotonic()
        way = ["--ray", "auto"] if kind == "ray" else ["-w", "2"] if kind == "workers" else ["-w", "1"]
        self.line = ["--backend", NAME, "--seed", str(seed), *bound, *way, "--phases", "sweep,pairwise,explore,bulk", "--corpus", "corpus"]
        temporary = base / "tmp"
        temporary.mkdir(exist_ok=True)
        self.env = {
            **os.environ, MARK: self.mark, "TMPDIR": str(temporary), "RAY_ADDRESS": "local", "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": os.pathsep.join([str(base / "site"), str(ROOT)]),
        }

    # ---- running ----------------------------------------------------------------------------------------

    def start(self, out: str, words: list[str]) -> subprocess.Popen[bytes]:
        """Start fiafuzz; its events are read as it prints them."""
        command = [sys.executable, "-m", "fiafuzz.cli.main", "fuzz", *words, "--events", "-"]
        with open(self.place / f"{out}.stderr", "ab") as errors:
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, cwd=self.place, env=self.env
            )

    def read(self, process: subprocess.Popen[bytes], seen: list[Event]) -> threading.Thread:
        """Take the events in, on a thread of their own."""
        def take() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                self._told = monotonic()
                try:
                    seen.append(decode_event(line))
                except ValueError:
                    if line.endswith(b"\n"):  # half a line is the end of a campaign that was killed
                        self.trouble(f"standard output has more than events: {line[:200]!r}")
        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        return thread

    def hangs(self) -> bool:
        """Whether nothing has been told for long."""
        return monotonic() - self._told > STUCK

    def run(self) -> None:
        """Run it among kills, and check what it leaves."""
        if self.kind == "parent":
            self._parent()
        else:
            self._workers()
        self._check_findings("run")
        self._check_processes()
        self._check_files()

    def _workers(self) -> None:
        process = self.start("run", [*self.line, "--out", "run"])
        thread = self.read(process, self.printed)
        while process.poll() is None:
            try:
                process.wait(self.rng.uniform(0.3, 1.7) * self.interval)
            except subprocess.TimeoutExpired:
                if any(isinstance(e, PhaseStarted) for e in self.printed):  # the canary is one worker's, and has three lives only
                    self._kill_one()
            if self.hangs():
                self.trouble("no event for long; ended")
                process.kill()
        thread.join()
        if process.returncode != 1 or not isinstance(self.printed[-1], RunFinished):
            self.trouble(f"ended with {process.returncode}, see {self.place}/run.stderr")
        elif self.printed[-1].summary.problems:
            self.trouble(f"problems: {self.printed[-1].summary.problems}")

    def _kill_one(self) -> None:
        pids = [pid for pid in carriers(f"{MARK}={self.mark}".encode()) if self._may_die(pid)]
        grown = [pid for pid in pids if age(pid) > (12.0 if self.kind == "ray" else 3.0)]
        if self.rng.random() < 0.8:  # three starts in a row that fail are a reason to give a worker up, and rightly so
            pids = grown
        if pids:
            number = self.rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM))
            try:
                os.kill(self.rng.choice(pids), number)
            except ProcessLookupError:
                return
            self.counts.kills += 1

    def _may_die(self, pid: int) -> bool:
        """Workers; actors, which Ray gives the name of their class. Remembers whose workers they are."""
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
            for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if word.startswith(DRIVER_MARK.encode() + b"="):
                    self.drivers.add(word.partition(b"=")[2])
        except OSError:
            return False
        return b"fiafuzz.campaign.worker" in title or (self.kind == "ray" and title.startswith(b"ray::Host"))

    def _parent(self) -> None:
        alone = self.start("alone", [*self.line, "--corpus", "corpus-alone", "--out", "alone"])
        seen: list[Event] = []
        thread = self.read(alone, seen)
        alone.wait()
        thread.join()
        words, barren = [*self.line, "--out", "run"], 0
        while True:
            told = len(self.printed)
            done = self._one_life(words, patient=barren >= 2)
            if done is not None:
                break
            barren = 0 if any(isinstance(e, CaseDone) for e in self.printed[told:]) else barren + 1
            logged = (self.place / "run" / "run.json").exists() or (self.place / "run" / "events.ndjson").exists()
            if logged:
                words = ["--resume", "run"]
                self.counts.resumes += 1
        if done != 1:
            self.trouble(f"ended with {done}, see {self.place}/run.stderr")
        whole, again = outcome(self.logged("alone")), outcome(self.logged("run"))
        if whole[0] != again[0]:
            less, other = whole[0] - again[0], again[0] - whole[0]
            self.trouble(f"{less.total()} cases of the run left alone are missing ({[*less][:2]})")
            self.trouble(f"{other.total()} cases are others than those of the run left alone ({[*other][:2]})")
        if whole[1] != again[1]:
            self.trouble(f"findings and their cases when left alone: {sorted(whole[1] - again[1])}, now: {sorted(again[1] - whole[1])}")

    def _one_life(self, words: list[str], *, patient: bool) -> Optional[int]:
        """Run until the end (the exit code) or until it is killed (None). ``patient``: not before it has done a case, since on a
        busy machine a campaign that is always killed while it starts would never end."""
        process = self.start("run", words)
        told = len(self.printed)
        thread = self.read(process, self.printed)
        self._told = monotonic()
        if patient or self.rng.random() < 0.85:  # else it is killed while it starts, too
            wanted = (CaseDone, RunFinished) if patient else (object,)
            while not any(isinstance(e, wanted) for e in self.printed[told:]) and process.poll() is None and not self.hangs():
                sleep(0.05)
        try:
            process.wait(self.rng.uniform(0.1, 2.0) * self.interval)
            thread.join()
            if self.printed and isinstance(self.printed[-1], RunFinished) and not self.printed[-1].summary.interrupted:
                return process.returncode
        except subprocess.TimeoutExpired:
            for pid in carriers(f"{MARK}={self.mark}".encode()):
                self._may_die(pid)
            number = self.rng.choice((signal.SIGKILL,) * 3 + (signal.SIGTERM, signal.SIGINT))
            process.send_signal(number)
            self.counts.kills += 1
            try:
                process.wait(120.0)
            except subprocess.TimeoutExpired:
                self.trouble(f"did not end on {signal.Signals(number).name}")
                process.kill()
                process.wait()
            thread.join()
            if process.returncode in (0, 1) and isinstance(self.printed[-1], RunFinished) and not self.printed[-1].summary.interrupted:
                return process.returncode  # it was over when the signal came
        return None

    # ---- checking ---------------------------------------------------------------------------------------

    def trouble(self, text: str) -> None:
        """Something that must not be."""
        self.counts.troubles.append(f"{self.place.name}: {text}")

    def logged(self, out: str) -> list[Event]:
        """The events in the log of a run."""
        return [decode_event(line) for _, line in log_lines(self.place / out / "events.ndjson")]

    def _check_findings(self, out: str) -> None:
        counts, events = self.counts, self.logged(out)
        told = [e for e in [*self.printed, *events] if isinstance(e, FindingKept)]
        shrunk = {e.number for e in events if isinstance(e, FindingRepeated) or (isinstance(e, FindingKept) and not e.interrupted)}
        kept = {e.entry.id: e for e in told if not (e.interrupted and e.number in shrunk)}
        counts.interrupted = len({e.number for e in told if e.interrupted})
        if any(e.interrupted for e in kept.values()):
            self.trouble("findings were kept before they were shrunk, and never finished")
        there = {e.id: e for e in Corpus(self.place / "corpus").entries() if isinstance(e, Entry)}
        counts.before, counts.after = len(kept), sum(entry_id in there for entry_id in kept)
        for entry_id in sorted(kept.keys() - there.keys()):
            self.trouble(f"finding {entry_id} was told and is not in the corpus")
        for entry_id in sorted(there.keys() - kept.keys()):
            self.trouble(f"entry {entry_id} is in the corpus and was never told")
        begun = {e.number for e in events if isinstance(e, FindingFound)} | {e.number for e in self.printed if isinstance(e, FindingFound)}
        ended = {e.number for e in events if isinstance(e, (FindingKept, FindingRepeated, FlakyFound))}
        if begun - ended:
            self.trouble(f"findings {sorted(begun - ended)} were told, and nothing became of them")
        places = Counter((e.phase, e.place) for e in events if isinstance(e, CaseDone) and e.place)
        twice = [place for place, count in places.items() if count > 1]
        if twice:
            self.trouble(f"{len(twice)} cases are recorded twice, such as {twice[0]}")
        if not events or not isinstance(events[-1], RunFinished):
            self.trouble("the log has no end")
        counts.cases = sum(isinstance(e, CaseDone) and e.verdict.status not in ("skipped", "unsupported") for e in events)
        if events and isinstance(events[-1], RunFinished) and events[-1].summary.cases != counts.cases:
            self.trouble(f"{events[-1].summary.cases} cases in the summary, {counts.cases} in the log")
        counts.restarts = sum(isinstance(e, WorkerRestarted) for e in events)
        counts.flaky = sum(isinstance(e, FlakyFound) for e in events)
        if self.kind != "parent":
            counts.blamed = sum(k.entry.signature.error in OURS for k in kept.values())

    def _check_processes(self) -> None:
        end = monotonic() + GRACE
        while (left := self._left()) and monotonic() < end:
            sleep(0.2)
        for pid, title in left.items():
            self.trouble(f"process {pid} is left: {title[:120]}")

    def _left(self) -> dict[int, str]:
        """Processes of this campaign, its guards among them."""
        found = {}
        marked = set(carriers(f"{MARK}={self.mark}".encode()))
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                title = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            words = title.split(b"\0")
            if int(name) in marked or (title and any(mark in words for mark in self.drivers)):
                found[int(name)] = title.replace(b"\0", b" ").decode("utf-8", "replace")
        return found

    def _check_files(self) -> None:
        end = monotonic() + GRACE
        temporary = Path(self.env["TMPDIR"])
        while (left := os.listdir(temporary)) and monotonic() < end:
            sleep(0.2)
        for name in left:
            self.trouble(f"{name} is left in the directory for temporary files")
            shutil.rmtree(temporary / name, ignore_errors=True)
        known = {"alone", "run", "corpus", "corpus-alone", "run.stderr", "alone.stderr"}
        for name in sorted(set(os.listdir(self.place)) - known):
            self.trouble(f"{name} is left in the current directory")
        for name in ("run", "alone", "corpus", "corpus-alone"):
            for path in (self.place / name).rglob("*"):
                if path.name.endswith(".tmp") or (path.name.startswith(".") and path.name not in (".gitignore",)):
                    self.trouble(f"{path.relative_to(self.place)} is left")


def age(pid: int) -> float:
    """Seconds since a process was started; 0 when it is gone."""
    started = start_of(pid)
    return float(Path("/proc/uptime").read_text().split()[0]) - int(started) / os.sysconf("SC_CLK_TCK") if started else 0.0


def outcome(events: list[Event]) -> tuple[Counter[tuple[str, int, str, str]], set[tuple[str, int]]]:
    """Cases and findings of a run, and how many cases each of these explains: what must not depend on kills of the parent."""
    cases = Counter((e.phase, e.place, e.digest, e.verdict.status) for e in events if isinstance(e, CaseDone))
    return cases, {(line.id, line.count) for line in summarise(events).findings}


def soak(kinds: list[str], minutes: float, seed: int, bound: list[str], interval: float, keep: bool) -> dict[str, Counts]:
    """Campaigns until the time is over."""
    end = monotonic() + minutes * 60
    base = Path(tempfile.mkdtemp(prefix="fs", dir="/tmp"))
    install(base / "site")
    rng, total = random.Random(seed), {kind: Counts() for kind in kinds}
    number = 0
    while monotonic() < end:
        kind = kinds[number % len(kinds)]
        left = end - monotonic()
        words = bound or (["-n", "300"] if kind == "parent" else ["--max-time", f"{min(LASTS[kind], max(20, int(left)))}s"])
        campaign = Campaign(base, number, kind, rng.randrange(1 << 32), rng, words, interval)
        campaign.run()
        add(total[kind], campaign.counts)
        c = campaign.counts
        print(f"{campaign.place.name}: {c.cases} cases, {c.kills} kills, {c.restarts} restarts, {c.resumes} resumes, findings "
              f"{c.before} told {c.after} kept, {len(c.troubles)} troubles; {max(0, end - monotonic()) / 60:.1f} min left", flush=True)
        for text in c.troubles:
            print(f"  TROUBLE {text}", flush=True)
        if not keep and not c.troubles:
            shutil.rmtree(campaign.place)
        number += 1
    if not keep and not any(c.troubles for c in total.values()):
        shutil.rmtree(base)
    else:
        print(f"what was written is in {base}")
    return total


def add(total: Counts, more: Counts) -> None:
    """Add up."""
    for name in vars(total):
        setattr(total, name, getattr(total, name) + getattr(more, name))


def table(total: dict[str, Counts]) -> str:
    """The figures as text."""
    rows: list[tuple[Any, ...]] = [
        ("killed", "campaigns", "cases", "kills", "restarts", "resumes", "findings told", "in the corpus", "flaky", "blamed on kills",
         "kept unshrunk at first", "troubles")
    ]
    for kind, c in total.items():
        counts = (c.campaigns, c.cases, c.kills, c.restarts, c.resumes, c.before, c.after, c.flaky, c.blamed, c.interrupted)
        rows.append((kind, *counts, len(c.troubles)))
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(str(word).rjust(width) for word, width in zip(row, widths)) for row in rows)


def main() -> int:
    """Run the soak and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--kill", default="workers", help=f"one or several of {','.join(KINDS)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--interval", type=float, default=4.0, help="seconds between two kills, on average")
    parser.add_argument("--cases", type=int, default=0, help="cases of one campaign (0: bound by time; 300 where the parent is killed)")
    parser.add_argument("--keep", action="store_true", help="keep what campaigns wrote")
    given = parser.parse_args()
    kinds = given.kill.split(",")
    if set(kinds) - set(KINDS) or given.minutes <= 0 or given.interval <= 0:
        parser.error("--kill takes " + ", ".join(KINDS) + "; --minutes and --interval are positive")
    began = monotonic()
    total = soak(kinds, given.minutes, given.seed, ["-n", str(given.cases)] if given.cases else [], given.interval, given.keep)
    print(f"{(monotonic() - began) / 60:.1f} minutes, seed {given.seed}, load {os.getloadavg()[0]:.1f}")
    print(table(total))
    return 1 if any(c.troubles for c in total.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
