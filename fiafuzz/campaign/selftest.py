"""The self-test: does a short campaign find each planted fault, how soon, and how small does the finding become?

Each fault gets a campaign of its own on the backend ``faulty:NAME``: the phases of a run in the mode of the fault,
until the first failure, which is then looked into like any other: confirmed, shrunk, kept (in a corpus that is thrown
away). The generators know nothing of the fault. Workers serve one fault after the other; only a death costs a new one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Optional

import msgspec

from fiafuzz.backends.faults import Fault, all_faults, fault_by_name
from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene

from .blueprint import differences
from .corpus import Corpus
from .cost import GIANT_SHARE, estimated_seconds
from .dissect import take_apart
from .failures import Failure, Kept
from .investigate import Investigator
from .plan import Plan
from .proposals import Proposal, proposals
from .schedulers.local import LocalScheduler
from .schedulers.protocol import Completed, Restart, Scheduler
from .triage import describe
from .verdict import Foreseen, decide, foreseen, gives_values, reason_not_to_run
from .wire import Hello, Job, Setup

if TYPE_CHECKING:
    from types import TracebackType

BASE = "cpu"
"""The backend that the workers load; the faulty ones are this one with a fault planted."""
POLL_SECONDS = 0.05
MEMORY = 2 << 30
"""Bytes that one case may take: half of a campaign's, so that a leak comes to its end within the time of a case."""
MOST_KEPT = 200_000
"""Proposals of one profile and mode at most: far more than a hunt of some minutes takes."""


class Kill(msgspec.Struct, frozen=True):
    """What became of one fault.

    ``cases`` and ``seconds``: run until the first failure (or until the time was up). ``shrunk``: fields in which the
    shrunk case differs from the plainest valid call, None without one; ``differs`` names them in words; ``interaction``:
    how many things must meet for the fault to show. ``shrink_runs`` and ``shrink_seconds`` are what confirming and
    shrinking took. ``confirmed``: whether the failure came again and was kept.
    """

    name: str
    title: str
    room: str
    kind: str
    expect: str
    interaction: int
    found: bool
    cases: int
    seconds: float
    code: Optional[str] = None
    confirmed: bool = False
    shrunk: Optional[int] = None
    shrink_runs: int = 0
    shrink_seconds: float = 0.0
    differs: tuple[str, ...] = ()
    case: Optional[Case] = None
    text: str = ""


@dataclass(frozen=True)
class Totals:
    """The kill table in numbers. ``excess``: median of fields beyond the interaction size; None where nothing was found."""

    faults: int
    found: int
    survivors: tuple[str, ...]
    median_cases: Optional[float]
    median_seconds: Optional[float]
    median_shrunk: Optional[float]
    excess: Optional[float]
    most_runs: int


def totals(kills: Sequence[Kill]) -> Totals:
    """The numbers of a kill table. A fault counts as found when its failure also came again and was kept."""
    found = [k for k in kills if k.found and k.confirmed]
    sized = [k for k in found if k.shrunk is not None]
    return Totals(
        len(kills),
        len(found),
        tuple(k.name for k in kills if not (k.found and k.confirmed)),
        median(k.cases for k in found) if found else None,
        median(k.seconds for k in found) if found else None,
        median(k.shrunk or 0 for k in sized) if sized else None,
        median((k.shrunk or 0) - k.interaction for k in sized) if sized else None,
        max((k.shrink_runs for k in found), default=0),
    )


def chosen_faults(names: Sequence[str]) -> tuple[Fault, ...]:
    """The faults of these names ("faulty:" may stand before them), all without one. ValueError for an unknown name."""
    plain = dict.fromkeys(name.removeprefix("faulty:") for name in names)
    return tuple(fault_by_name(name) for name in plain) if names else all_faults()


class _Offers:
    """Predicted proposals of one profile and mode, the same for every fault: made once, kept up to MOST_KEPT."""

    def __init__(self, plan: Plan) -> None:
        self._profile = plan.profiles[0]
        phases = ("pairwise", "bulk") if plan.mode == "valid" else ("sweep", "bulk")
        self._source = chain.from_iterable(proposals(p, plan, self._profile) for p in phases)
        self._kept: list[_Offer] = []
        self._left = MOST_KEPT

    def __iter__(self) -> Iterator[_Offer]:
        yield from self._kept
        while self._left:
            for proposal in self._source:
                self._left -= 1
                self._kept.append(self._offer(proposal))
                yield self._kept[-1]
                break
            else:
                return

    def _offer(self, proposal: Proposal) -> _Offer:
        from oracles.constraints.predict import predict

        scene = Scene(proposal.case)
        expected = foreseen(predict(proposal.case, self._profile, scene=scene))
        return _Offer(proposal, expected, gives_values(expected), estimated_seconds(scene))


@dataclass(frozen=True)
class _Offer:
    """A proposal, what is foreseen, whether its values are judged, and roughly how long it takes in seconds."""

    proposal: Proposal
    expected: Foreseen
    judge: bool
    seconds: float


class SelfTest:
    """Runs the hunts. A context manager: the workers end with it.

    ``max_time``: seconds for finding one fault; shrinking has its own bounds (plan.py). SchedulerError when workers
    cannot be kept alive, BackendRefused when the cpu backend cannot run here.
    """

    def __init__(self, seed: int, max_time: float, *, stop: Callable[[], bool] = lambda: False, workers: int = 1) -> None:
        self.seed = seed
        self.max_time = max_time
        self._stop = stop
        limits = Plan()
        self._scheduler: Scheduler = LocalScheduler(
            Setup(BASE, limits.profiles[0], limits.standard, MEMORY), workers, time_limit=limits.time_limit
        )
        self._offers: dict[tuple[str, str], _Offers] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="fiafuzz-selftest-")

    def __enter__(self) -> SelfTest:
        try:
            self._hello = self._scheduler.start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._scheduler.close()
        self._folder.cleanup()

    def hunts(self, faults: Sequence[Fault]) -> Iterator[Kill]:
        """One Kill for each fault, in order; fewer when it is being stopped."""
        for fault in faults:
            if self._stop():
                return
            kill = self.hunt(fault)
            if not self._stop() or kill.confirmed:
                yield kill

    def hunt(self, fault: Fault) -> Kill:
        """Look for one fault until it shows or the time is up, and look into what shows."""
        plan = Plan(
            backends=(f"faulty:{fault.name}",),
            profiles=(fault.profile,),
            seed=self.seed,
            mode=fault.mode,
            max_time=self.max_time,
            corpus=f"{self._folder.name}/{fault.name}",
        )
        key = (fault.profile, fault.mode)
        if key not in self._offers:
            self._offers[key] = _Offers(plan)
        hunt = _Hunt(fault, plan, self._offers[key], _Stamped(self._scheduler, plan), self._hello, self._stop)
        kill = hunt.search()
        self._scheduler.restarts()
        return kill


class _Stamped:
    """A scheduler whose jobs all go to one faulty backend (schedulers.protocol.Scheduler), in workers that go on."""

    on_room: Optional[Callable[[], None]] = None

    def __init__(self, scheduler: Scheduler, plan: Plan) -> None:
        self._scheduler, self._backend, self._profile = scheduler, plan.backends[0], plan.profiles[0]

    def _stamped(self, job: Job) -> Job:
        return msgspec.structs.replace(job, backend=self._backend, profile=self._profile)

    def start(self) -> Hello:
        """The workers run already."""
        raise NotImplementedError("the self-test starts the workers")

    def room(self) -> int:
        """Jobs that queues have room for."""
        return self._scheduler.room()

    @property
    def outstanding(self) -> int:
        """Jobs that have not been given back yet."""
        return self._scheduler.outstanding

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._scheduler.submit(self._stamped(job))

    def poll(self, timeout: float) -> list[Completed]:
        """Results that are in."""
        return self._scheduler.poll(timeout)

    def run(self, job: Job, *, fresh: bool = False, time_limit: Optional[float] = None) -> Completed:
        """Run one job alone. A worker that has only run other cases counts as fresh: planted faults keep no state."""
        return self._scheduler.run(self._stamped(job), time_limit=time_limit)

    def given_up(self, worker: int) -> str:
        """Why the device of a worker was given up."""
        return self._scheduler.given_up(worker)

    def restarts(self) -> list[Restart]:
        """Workers replaced since the last call."""
        return self._scheduler.restarts()

    def close(self) -> None:
        """Left to the self-test."""


class _Hunt:
    """The campaign against one fault."""

    def __init__(
        self, fault: Fault, plan: Plan, offers: _Offers, scheduler: _Stamped, hello: Hello, stop: Callable[[], bool]
    ) -> None:
        self.fault, self.plan, self.scheduler = fault, plan, scheduler
        self.checks, self.stop = hello.checks, stop
        self.began = monotonic()
        self.away = 0.0
        self.source: Iterator[_Offer] = iter(offers)
        self.valid = self.jobs = self.cases = 0
        self.running: dict[int, tuple[Proposal, Foreseen, Job]] = {}

    def search(self) -> Kill:
        """From the first case to the kept finding. A failure that does not come again is not enough: the hunt goes on."""
        flaky: Optional[Kill] = None
        while True:
            failure = self._first_failure()
            seconds = monotonic() - self.began - self.away
            if failure is None:
                return flaky or self._kill(False, seconds)
            began = monotonic()
            kept = self._kept(failure)
            spent = monotonic() - began
            self.away += spent
            if kept is None:
                flaky = self._kill(True, seconds, code=failure.verdict.code, text=failure.verdict.text, shrink_seconds=round(spent, 3))
                continue
            case = kept.entry.case
            return self._kill(
                True,
                seconds,
                code=failure.verdict.code,
                confirmed=True,
                shrunk=len(differences(take_apart(case))),
                shrink_runs=kept.runs,
                shrink_seconds=round(spent, 3),
                differs=describe(case),
                case=case,
                text=kept.entry.got.text,
            )

    def _kill(self, found: bool, seconds: float, **more: object) -> Kill:
        f = self.fault
        return Kill(f.name, f.title, f.room, f.kind, f.expect, f.interaction, found, self.cases, round(seconds, 3), **more)  # type: ignore[arg-type]

    def _kept(self, failure: Failure) -> Optional[Kept]:
        """The finding as a campaign would keep it; None when it does not come again."""
        investigator = Investigator(
            self.scheduler,
            self.plan.backends[0],
            self.plan.profiles[0],
            self.plan,
            Corpus(self.plan.corpus),
            {},
            self.stop,
            lambda: "",
        )
        return next((step for step in investigator.look_into(failure) if isinstance(step, Kept)), None)

    def _first_failure(self) -> Optional[Failure]:
        """Keep the workers busy until a case fails. What is in work then is waited for and dropped."""
        found: Optional[Failure] = None
        left = True
        while found is None and not self.stop():
            over = monotonic() - self.began - self.away >= (self.plan.max_time or 0)
            while left and not over and self.scheduler.room() > 0:
                offer = next(self.source, None)
                left = offer is not None
                if offer is not None:
                    self._submit(offer)
            if not self.running and (over or not left):
                return None
            found = self._settle()
        while self.running and not self.stop():
            self._settle()
        return found

    def _submit(self, offer: _Offer) -> None:
        """Give a case to the workers as a campaign does."""
        if reason_not_to_run(offer.expected, self.checks) is not None:
            return
        judge = offer.judge
        if judge and offer.seconds > GIANT_SHARE * self.plan.time_limit:
            return
        self.jobs += 1
        self.valid += judge
        again = judge and self.valid % self.plan.repeat_every == 0
        relate = judge and self.plan.relate_every > 0 and self.valid % self.plan.relate_every == 0
        job = Job(self.jobs, offer.proposal.case, judge=judge, runs=2 if again else 1, relations=relate)
        self.running[job.id] = (offer.proposal, offer.expected, job)
        self.scheduler.submit(job)

    def _settle(self) -> Optional[Failure]:
        """The first failure among the results that are in."""
        found: Optional[Failure] = None
        for done in self.scheduler.poll(POLL_SECONDS):
            item = self.running.pop(done.job.id, None)
            if item is None or found is not None:
                continue
            self.cases += 1
            proposal, expected, job = item
            verdict = decide(expected, done.result)
            if verdict.failed:
                found = Failure(proposal.case, expected, verdict, done.result, job.runs)
        return found
