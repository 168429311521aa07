"""How a campaign scales: python tests/benchmarks/bench_workers.py [speed] [driver] [memory] [--results N] [--rounds N]

- speed: the same native-bound cases on one worker and on two, in turns, in one run of this script; the ratio must be at least
  1.8 where two cores are free (the load of the machine is printed beside it). On a busy machine the share of the time that
  workers spend on cases tells what the driver costs;
- driver: results a second that the driver handles when workers cost nothing, with the cases ready made and with generation;
  the real code from proposal to log, on a scheduler that answers at once; at least 2,000;
- memory: resident memory of the driver over a great many simulated results (passes, repeats of findings, new findings,
  refusals, skips, disagreements), after each tenth of them; flat after the first.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fiafuzz.campaign.engine import Campaign
from fiafuzz.campaign.leg import Leg
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.proposals import Proposal, proposals
from fiafuzz.campaign.results import About, Foreseen, Judged, Result, Seconds
from fiafuzz.campaign.schedulers.local import LocalScheduler
from fiafuzz.campaign.schedulers.protocol import Completed, Restart
from fiafuzz.campaign.stopping import StopFlag
from fiafuzz.campaign.stream import stream
from fiafuzz.campaign.wire import Hello, Job, Setup
from fiafuzz.model.factors import factor_words
from fiafuzz.model.scene import Scene
from strategies.cases import generate

PROFILE = "950-v5"
Answer = Callable[[Job], Result]


class Instant:
    """A scheduler whose workers cost nothing."""

    def __init__(self, answer: Answer) -> None:
        self.on_room: Optional[Callable[[], None]] = None
        self.waiting: deque[Job] = deque()
        self.answer = answer

    def start(self) -> Hello:
        return Hello("instant", "costs nothing", "own")

    def room(self) -> int:
        return 64 - len(self.waiting)

    @property
    def outstanding(self) -> int:
        return len(self.waiting)

    def submit(self, job: Job) -> None:
        self.waiting.append(job)

    def poll(self, timeout: float) -> list[Completed]:
        found = [Completed(job, self.answer(job)) for job in self.waiting]
        self.waiting.clear()
        return found

    def run(self, job: Job, *, fresh: bool = False, time_limit: Optional[float] = None) -> Completed:
        return Completed(job, self.answer(job))

    def given_up(self, worker: int) -> str:
        return ""

    def restarts(self) -> list[Restart]:
        return []

    def close(self) -> None:
        pass


def leg_of(root: Path, name: str, answer: Answer, mode: str = "valid") -> tuple[Plan, Leg]:
    """A leg on workers that cost nothing, with everything else real."""
    plan = Plan(seed=1, mode=mode, phases=("bulk",), canary=False, corpus=str(root / "corpus"), out=str(root / name), max_cases=1)
    scheduler = Instant(answer)
    return plan, Leg(Campaign(plan, StopFlag()), scheduler, scheduler.start(), "instant", PROFILE)


# ---- speed -------------------------------------------------------------------------------------------


def native_cases(count: int) -> list[Any]:
    """Generated valid calls with enough work that the kernel and the reference take most of the time."""
    found = []
    for item in generate(PROFILE, "valid", 60 * count, 1):
        scene = Scene(item.case)
        work = scene.Q_N * sum(a * b for a, b in zip(scene.q_lens or (), scene.kv_lens or ())) * (scene.Q_D or 0)
        if 2_000_000 <= work <= 20_000_000:
            found.append(item.case)
        if len(found) == count:
            break
    return found


def seconds_for(cases: list[Any], scheduler: LocalScheduler) -> tuple[float, float]:
    """Seconds for all cases, and the share of them that the workers spent on cases rather than on waiting for the driver."""
    start, given, done, busy = perf_counter(), 0, 0, 0.0
    while done < len(cases):
        while given < len(cases) and scheduler.room():
            scheduler.submit(Job(given + 1, cases[given], foresee=True))
            given += 1
        for completed in scheduler.poll(0.05):
            done += 1
            busy += completed.result.seconds.total
    wall = perf_counter() - start
    return wall, busy / wall / len(scheduler._slots)


def speed(rounds: int) -> None:
    """Print the ratio of two workers to one."""
    cases = native_cases(120)
    schedulers = [LocalScheduler(Setup("cpu", PROFILE), n, time_limit=600.0) for n in (1, 2)]
    try:
        for scheduler in schedulers:
            scheduler.start()
            while not all(slot.ready for slot in scheduler._slots):
                scheduler.poll(0.1)
            seconds_for(cases[:10], scheduler)
        ratios, shares = [], []
        for _ in range(rounds):
            (one, busy), (two, both_busy) = (seconds_for(cases, scheduler) for scheduler in schedulers)
            ratios.append(one / two)
            shares.append(both_busy / busy)
            said = f"one worker {one:6.2f} s, busy {100 * busy:.1f} %; two {two:6.2f} s, busy {100 * both_busy:.1f} %"
            print(f"  {said}: {one / two:.2f}x (load {os.getloadavg()[0]:.1f})", flush=True)
        print(f"two workers against one, median       {median(ratios):8.2f} x    (target 1.8, on two free cores)")
        print(f"the same by how busy the workers are  {2 * median(shares):8.2f} x    (what is left when cores are not the limit)")
    finally:
        for scheduler in schedulers:
            scheduler.close()


# ---- driver ------------------------------------------------------------------------------------------


def passing(job: Job) -> Result:
    """A pass, as a worker tells it. The factor words are the worker's work, so here they are always the same."""
    return Result("ok", judged=Judged(True, compared=1), about=PASSED, seconds=Seconds(0.001, 0.002, 0.001, 0.001))


PASSED = About(Foreseen("accept"), "|".join(["word"] * 27), True)


def driver(count: int, root: Path) -> None:
    """Print what the driver alone can do."""
    for mode in ("valid", "all"):
        for made in (False, True):
            plan, leg = leg_of(root, f"driver-{mode}-{made}", passing, mode)
            everything = proposals("bulk", plan, PROFILE)
            list(islice(everything, 1500))  # plans of the generator are made once a run
            source: Iterator[Proposal] = islice(everything, count)
            if made:
                source = iter(list(source))
            start = perf_counter()
            for _ in stream(leg, "bulk", source, None, None, 0):
                pass
            rate = leg.campaign.tally.cases / (perf_counter() - start)
            assert leg.campaign.tally.cases == count
            what = "cases ready made" if made else "with generation"
            print(f"driver, mode {mode:<6} {what:<20} {rate:8.0f} results/s" + ("   (target 2,000)" if made else ""), flush=True)


def pipes(count: int, root: Path) -> None:
    """Print what a result costs the driver when it comes from a real worker: encoding, pipes, decoding, events and log. It is the
    driver's own time that counts, since here the worker is the slower one."""
    plan = Plan(seed=1, mode="valid", phases=("bulk",), canary=False, corpus=str(root / "corpus"), out=str(root / "pipes"), max_cases=1)
    scheduler = LocalScheduler(Setup("cpu", PROFILE), 1, time_limit=600.0)
    try:
        leg = Leg(Campaign(plan, StopFlag()), scheduler, scheduler.start(), "cpu", PROFILE)
        source = iter(list(islice(proposals("bulk", plan, PROFILE), count)))
        start = process_time()
        for _ in stream(leg, "bulk", source, None, None, 0):
            pass
        each = (process_time() - start) / count
        print(f"driver, results from a real worker: {1e6 * each:.0f} us of its time each, so {1 / each:.0f} results/s at most")
    finally:
        scheduler.close()


# ---- memory ------------------------------------------------------------------------------------------


def rss() -> float:
    """Resident memory of this process in MiB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE / (1 << 20)


WORDS: dict[str, str] = {}
"""Factor words by digest: the workers' work, so it is done once a case."""


def all_sorts(job: Job) -> Result:
    """Passes, failures of many kinds, refusals, disagreements and skips; the digest decides, so that a failure comes again."""
    digest = job.case.digest
    number = int(digest[:8], 16) % 1000
    if digest not in WORDS:
        WORDS[digest] = factor_words(Scene(job.case))
    about = About(Foreseen("accept"), WORDS[digest], True)
    if number < 3:
        return Result("ok", judged=Judged(False, "F101", 3.0, compared=9, failed=1, text="1 of 9 elements is off"), about=about)
    if number < 5:
        return Result("error", message=f"Error{number}: no", about=about)
    if number < 15:
        return Result("skipped", message="known to crash the host (FIA-XX-001)", about=about)
    if number < 30:
        said = Foreseen("unspecified", (), (f"FIA-XX-{number:03d}",), document="reject", source="accept")
        return Result("ok", about=About(said, about.factors))
    return Result("ok", judged=Judged(True, compared=1), about=about)


def memory(count: int, root: Path) -> None:
    """Print the driver's memory over a great many results."""
    plan, leg = leg_of(root, "memory", all_sorts)
    stock = list(islice(proposals("bulk", plan, PROFILE), 20_000))
    step, seen = count // 10, []
    source = cycle(stock)
    for tenth in range(10):
        start = perf_counter()
        for _ in stream(leg, "bulk", islice(source, step), None, None, 0):
            pass
        gc.collect()
        seen.append(rss())
        rate = step / (perf_counter() - start)
        print(f"  {(tenth + 1) * step:9,} results: {seen[-1]:7.1f} MiB   ({rate:.0f} results/s)", flush=True)
    summary = leg.campaign.tally.summary()
    print(f"verdicts {summary.verdicts}, findings kept {len(summary.findings)}")
    print(f"memory of the driver, second tenth to the last {seen[-1] - seen[1]:+8.1f} MiB over {count - 2 * step:,} results")


def main() -> None:
    """Print the figures that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["speed", "driver", "memory"])
    parser.add_argument("--results", type=int, default=100_000, help="simulated results for the memory (a million takes minutes)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        if "speed" in options.what:
            speed(options.rounds)
        if "driver" in options.what:
            driver(4000, root)
            pipes(1500, root)
        if "memory" in options.what:
            memory(options.results, root)


if __name__ == "__main__":
    main()
