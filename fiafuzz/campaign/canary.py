"""The canary: before a run reports anything, generator, prediction, judge and shrinker show that they are alive.

In the worker that the run will use, plain calls must pass on the cpu backend, and planted faults must be seen on the
faulty ones: a wrong value by the judge, an unchecked demand by the prediction. One is shrunk and must come out plainer.
When the canary fails, a clean run would mean nothing, so there is no run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene

from .plainness import weight_of
from .schedulers.protocol import Scheduler
from .shrink import shrink
from .verdict import Verdict, decide, foreseen
from .wire import Job

PROFILE = "950-v5"
"""The canary sings in its own profile, whatever the run's: some have no valid call at all."""
PASSES = 5
TRIES = 40
"""Generated calls among which a planted fault must be seen."""
SHRINK_RUNS = 40
LIVES = 3
"""How often a call is tried whose worker dies: one that was killed from outside says nothing about the canary."""
CITE = "v5.interface.single.inner_precise_values"
"""The demand that faulty:inner-precise-unchecked does not check."""


@dataclass(frozen=True)
class Bird:
    """A planted fault, the mode in which it shows and the verdict that must be seen."""

    backend: str
    mode: str
    code: str


WRONG_VALUES = Bird("faulty:scale-twice", "valid", "F101")
UNCHECKED = Bird("faulty:inner-precise-unchecked", "invalid", "F201")


class _Dead(Exception):
    """Something does not live; the text says what."""


class _Missing(Exception):
    """The built-in backends cannot run here."""


def sing(scheduler: Scheduler, seed: int) -> tuple[bool, str]:
    """Run the self-test; whether all is alive, and a line about it. Where the cpu backend cannot run there is no test,
    and the line says so."""
    song = _Song(scheduler, seed)
    try:
        return True, "; ".join(song.verses())
    except _Dead as error:
        return False, str(error)
    except _Missing as error:
        return True, f"not run: {error}"


class _Song:
    def __init__(self, scheduler: Scheduler, seed: int) -> None:
        self._scheduler = scheduler
        self._seed = seed
        self._job = -10_000_000

    def verses(self) -> Iterator[str]:
        """One line for each thing that is proved to live."""
        passed = 0
        for case in self._cases("valid", PASSES):
            passed += 1
            verdict = self._run("cpu", case)
            if verdict.status != "pass":
                raise _Dead(f"a generated valid call is {verdict.status} on cpu: {verdict.code} {verdict.text}")
        if passed < PASSES:
            raise _Dead(f"the generator gives {passed} of {PASSES} valid calls")
        yield f"{PASSES} valid calls pass"
        failing = self._seen(WRONG_VALUES)
        yield f"{WRONG_VALUES.backend} is seen"
        shrunk = shrink(
            failing,
            lambda c: self._run(WRONG_VALUES.backend, c).code == WRONG_VALUES.code,
            PROFILE,
            max_runs=SHRINK_RUNS,
        )
        if weight_of(shrunk.case) >= weight_of(failing) and shrunk.differences:
            raise _Dead(f"the shrinker made nothing plainer in {shrunk.runs} runs")
        if self._run(WRONG_VALUES.backend, shrunk.case).code != WRONG_VALUES.code:
            raise _Dead("what the shrinker gives does not fail any more")
        yield f"shrunk in {shrunk.runs} runs"
        self._seen(UNCHECKED)
        yield f"{UNCHECKED.backend} is seen"

    def _seen(self, bird: Bird) -> Case:
        """The first generated case on which the planted fault shows."""
        tried = 0
        for case in self._cases(bird.mode, TRIES):
            tried += 1
            if self._run(bird.backend, case).code == bird.code:
                return case
        raise _Dead(f"{bird.backend} is not seen in {tried} generated calls")

    def _cases(self, mode: str, count: int) -> Iterator[Case]:
        from oracles.constraints.catalogue import all_rules
        from strategies.cases import generate

        rules = [r.id for r in all_rules() if CITE in r.cites and PROFILE in r.profiles]
        for item in generate(PROFILE, mode, count, self._seed, select=rules if mode == "invalid" else ()):
            yield item.case

    def _run(self, backend: str, case: Case) -> Verdict:
        from oracles.constraints.predict import predict

        expected = foreseen(predict(case, PROFILE, scene=Scene(case)))
        self._job -= 1
        job = Job(self._job, case, judge=expected.verdict == "accept", backend=backend, profile=PROFILE)
        result = self._scheduler.run(job).result
        for _ in range(LIVES - 1):
            if not result.deadly:
                break
            result = self._scheduler.run(job, fresh=True).result
        if result.kind == "internal" and "BackendUnavailable" in result.message:
            raise _Missing(result.message)
        return decide(expected, result)
