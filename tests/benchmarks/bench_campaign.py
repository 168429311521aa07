"""How fast a campaign is, and what the isolation of workers costs: python tests/benchmarks/bench_campaign.py [seconds]

All figures come from one run on this machine, so that they can be set against each other:

- cases/s end to end on one worker (generated, predicted, run, judged), valid calls and all modes;
- the same valid calls in this process, without a worker: what is left is the price of isolation. The share is measured
in the worker's own
  time: how much of the wall clock it spends on something else than cases;
- results/s that the driver handles when workers cost nothing (generation, prediction, events and log included);
- a round trip to a worker, the start of a worker, one corpus entry on disk.
"""

from __future__ import annotations

import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fiafuzz.backends.registry import get_backend
from fiafuzz.campaign.corpus import Corpus, Entry, Got
from fiafuzz.campaign.engine import Campaign, run_campaign
from fiafuzz.campaign.events import PhaseFinished
from fiafuzz.campaign.execute import Executor
from fiafuzz.campaign.leg import Leg
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.proposals import proposals
from fiafuzz.campaign.results import About, Foreseen, Judged, Result
from fiafuzz.campaign.schedulers.local import LocalScheduler
from fiafuzz.campaign.schedulers.protocol import Completed, Restart
from fiafuzz.campaign.stopping import StopFlag
from fiafuzz.campaign.stream import stream
from fiafuzz.campaign.triage import Signature, plain_case
from fiafuzz.campaign.wire import Hello, Job, Setup
from fiafuzz.model.scene import Scene
from strategies.cases import generate

PROFILE = "950-v5"
SMALL = 200_000
"""Multiply-adds up to which a call counts as small."""


def small_calls(count: int) -> list[Any]:
    """Generated valid calls of little work."""
    found = []
    for item in generate(PROFILE, "valid", 50 * count, 1):
        scene = Scene(item.case)
        work = scene.Q_N * sum(a * b for a, b in zip(scene.q_lens or (), scene.kv_lens or ())) * (scene.Q_D or 0)
        if work <= SMALL:
            found.append(item.case)
        if len(found) == count:
            return found
    return found


def through_worker(cases: list[Any], scheduler: LocalScheduler) -> tuple[float, float]:
    """Cases a second through one worker, and the share of the time that it was busy with them."""
    start, busy, given, done = perf_counter(), 0.0, 0, 0
    while done < len(cases):
        while given < len(cases) and scheduler.room():
            scheduler.submit(Job(given, cases[given]))
            given += 1
        for completed in scheduler.poll(0.05):
            done += 1
            busy += completed.result.seconds.total
    wall = perf_counter() - start
    return len(cases) / wall, busy / wall


def in_process(cases: list[Any]) -> float:
    """Cases a second without a worker."""
    executor = Executor(get_backend("cpu", PROFILE), "")
    for case in cases[:30]:
        executor.execute(Job(0, case))
    start = perf_counter()
    for case in cases:
        executor.execute(Job(0, case))
    return len(cases) / (perf_counter() - start)


def end_to_end(seconds: float, mode: str, root: Path) -> tuple[int, float]:
    """Cases and cases a second of the bulk phase of a campaign on one worker."""
    plan = Plan(seed=1, mode=mode, phases=("bulk",), max_time=seconds + 4, canary=False, corpus=str(root / "corpus"), out=str(root / mode))
    ended = [e for e in run_campaign(plan) if isinstance(e, PhaseFinished)]
    return ended[0].cases, ended[0].cases / ended[0].seconds


PASSED = About(Foreseen("accept"), "", True)


class Instant:
    """A scheduler whose workers cost nothing."""

    def __init__(self) -> None:
        self.waiting: deque[Job] = deque()
        self.on_room: Optional[Callable[[], None]] = None

    def start(self) -> Hello:
        return Hello("instant", "costs nothing", "own")

    def room(self) -> int:
        return 32 - len(self.waiting)

    @property
    def outstanding(self) -> int:
        return len(self.waiting)

    def submit(self, job: Job) -> None:
        self.waiting.append(job)

    def poll(self, timeout: float) -> list[Completed]:
        found = [Completed(job, Result("ok", judged=Judged(True, compared=1), about=PASSED)) for job in self.waiting]
        self.waiting.clear()
        return found

    def run(self, job: Job, *, fresh: bool = False, time_limit: Optional[float] = None) -> Completed:
        return Completed(job, Result("ok"))

    def given_up(self, worker: int) -> str:
        return ""

    def restarts(self) -> list[Restart]:
        return []

    def close(self) -> None:
        pass


def driver_alone(count: int, root: Path) -> tuple[float, float]:
    """Results a second that the driver handles, with generation and without."""
    rates = []
    for made in (False, True):
        plan = Plan(seed=1, mode="valid", phases=("bulk",), canary=False, corpus=str(root / "corpus"), out=str(root / f"driver-{made}"))
        campaign = Campaign(plan, StopFlag())
        scheduler = Instant()
        leg = Leg(campaign, scheduler, scheduler.start(), "instant", PROFILE)
        source = (p for _, p in zip(range(count), proposals("bulk", plan, PROFILE)))
        if made:
            source = iter(list(source))
        start = perf_counter()
        for _ in stream(leg, "bulk", source, None, None, 0):
            pass
        rates.append(count / (perf_counter() - start))
    return rates[0], rates[1]


def entry_seconds(root: Path) -> float:
    """Seconds for one corpus entry, flushed to disk."""
    corpus, times = Corpus(root / "entries"), []
    for number in range(20):
        entry_id = f"F101-{number:010x}"
        case, signature = plain_case("950", "v5"), Signature("cpu", "F101")
        entry = Entry(entry_id, "", signature, PROFILE, case, "", Foreseen("accept"), Got("ok"), (), {}, 0, "", "")
        start = perf_counter()
        corpus.add(entry)
        times.append(perf_counter() - start)
    return median(times)


def main() -> None:
    """Print the figures."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        cases = small_calls(300)
        scheduler = LocalScheduler(Setup("cpu", PROFILE), 1, time_limit=120.0)
        start = perf_counter()
        scheduler.start()
        print(f"start of a worker with torch        {perf_counter() - start:8.2f} s")
        through_worker(cases, scheduler)  # warm up
        rounds = [through_worker(cases, scheduler) for _ in range(5)]
        rate, busy = median(r for r, _ in rounds), median(b for _, b in rounds)
        trips = []
        job = Job(0, plain_case("950", "v5"), judge=False)
        for _ in range(200):
            start = perf_counter()
            seconds_of_case = scheduler.run(job).result.seconds.total
            trips.append(perf_counter() - start - seconds_of_case)
        scheduler.close()
        alone = in_process(cases)
        print(f"small valid calls on one worker     {rate:8.0f} cases/s   (target 150)")
        print(f"the same calls in this process      {alone:8.0f} cases/s")
        print(f"worker busy with cases              {100 * busy:8.1f} %   (isolation {100 * (1 - busy):.1f} %, target under 5 %)")
        print(f"round trip to a waiting worker      {1e6 * median(trips):8.0f} us on top of the case")
        for mode in ("valid", "all"):
            count, per_second = end_to_end(seconds, mode, root)
            print(f"campaign, bulk phase, mode {mode:<8} {per_second:8.0f} cases/s   ({count} cases)")
        made, ready = driver_alone(2000, root)
        print(f"driver with workers that cost nothing {made:6.0f} results/s, {ready:.0f} with the cases ready made")
        print(f"one corpus entry on disk            {1e3 * entry_seconds(root):8.1f} ms")


if __name__ == "__main__":
    main()
