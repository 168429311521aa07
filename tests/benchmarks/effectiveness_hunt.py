"""One stream of cases against many planted faults at once: the machinery of bench_effectiveness.py.

A tool's stream does not depend on the fault, so each case is predicted, run on the sound kernel and judged once, exactly as a
worker does it. Then every fault that is still hidden and within whose scope the case lies gets the same tensors and the same
reference. The scope are the words that a fault is declared to need: some faults of the quantised kernels trip over calls of other
kinds, and such an accident is no find. Outputs equal to those of the sound kernel bit by bit need no second judgement.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import process_time
from typing import Any, Optional

from fiafuzz.backends.faults import Fault
from fiafuzz.backends.faulty import FaultyBackend, faulty_backend
from fiafuzz.backends.registry import get_backend
from fiafuzz.campaign.cost import GIANT_SHARE
from fiafuzz.campaign.execute import MAX_RATIO, Arrays, Executor, compact, poisoned, run_guarded, same_bits, wrong_form
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.results import Judged, Result, Seconds
from fiafuzz.campaign.verdict import Verdict, decide
from fiafuzz.campaign.wire import Job, Setup
from fiafuzz.model.case import Case
from fiafuzz.model.factors import FACTORS
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import Tensors
from oracles.constraints.predict import broken_rules

HANG_SECONDS = 8.0
"""A call that takes longer in a child of its own hangs; the time limit of a campaign. Time in which the child waits for a core does
not count: other work on the machine is no fault."""
CHILD_MEMORY = 1 << 29
"""Bytes that a child may take beyond what it has."""
_DEFAULTS = Plan()


@dataclass
class Find:
    """When a fault was found: after how many cases of the stream, after how many CPU seconds of the tool, with which code."""

    cases: int
    seconds: float
    code: str


@dataclass
class Seen:
    """What a stream consisted of. ``pure``: refused calls for which the prediction names one demand; ``alone``: those that
    break one demand of all, also behind the first refusal. ``words``: factor words of accepted calls with their place."""

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    pure: int = 0
    alone: int = 0
    making: float = 0.0
    working: float = 0.0
    alarms: list[str] = field(default_factory=list)
    words: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class _Kept:
    """What the sound kernel's run of a case leaves for the others."""

    tensors: Tensors
    outputs: Arrays
    judged: Optional[Judged] = None
    expected: Any = None


class _Sound(Executor):
    """The sound kernel; what a case was made of is kept."""

    kept: _Kept

    def _tensors(self, case: Case, valid: bool, info: Any) -> Tensors:
        tensors = super()._tensors(case, valid, info)
        self.kept = _Kept(tensors, {})
        return tensors

    def _judge(self, case: Case, scene: Scene, tensors: Tensors, buffers: Arrays, got: Arrays, spent: Seconds) -> Any:
        judged, expected, spent = super()._judge(case, scene, tensors, buffers, got, spent)
        self.kept = _Kept(tensors, got, judged, expected)
        return judged, expected, spent


class _Planted(Executor):
    """Kernels with a fault, on what the sound one has left."""

    kept: _Kept

    def _tensors(self, case: Case, valid: bool, info: Any) -> Tensors:
        return self.kept.tensors

    def _judge(self, case: Case, scene: Scene, tensors: Tensors, buffers: Arrays, got: Arrays, spent: Seconds) -> Any:
        from oracles.precision import judge_outputs

        kept = self.kept
        wrong = wrong_form(buffers, got)
        if wrong:
            return Judged(False, "F103", MAX_RATIO, text=wrong), None, spent
        if kept.expected is None or all(same_bits(kept.outputs[name], got[name], None) for name in buffers):
            return kept.judged, kept.expected, spent
        return compact(judge_outputs(case, scene, kept.expected, got, self.standard)), kept.expected, spent


class Hunt:
    """Faults of one profile, hunted by one stream of at most ``limit`` cases. ``least``: so many cases are taken even when all faults
    are found, since the stream is measured too. ``scoped``: a fault gets only cases that have the words it needs.

    ``over`` tells when the stream has done its part. Relations are left out (their turns would need second calls), repeated runs
    are not: nothing else finds kernels whose results change from run to run.
    """

    def __init__(self, profile: str, faults: Sequence[Fault], limit: int, *, least: int = 0, scoped: bool = True) -> None:
        self.profile, self.limit, self.least, self.scoped = profile, limit, least, scoped
        self.hidden = {fault.name: fault for fault in faults}
        self.found: dict[str, Find] = {}
        self.seen = Seen()
        setup = Setup("cpu", profile, repeat_every=_DEFAULTS.repeat_every, giant=GIANT_SHARE * _DEFAULTS.time_limit)
        self.sound = _Sound(get_backend("cpu", profile), "", profile=profile, setup=setup)
        self.planted = _Planted(self.sound.backend, "", get=_get, profile=profile)
        self._faulty = {fault.name: faulty_backend(fault.name, profile) for fault in faults}
        self._since = process_time()

    @property
    def over(self) -> bool:
        """Whether no further case is wanted."""
        return self.seen.cases >= self.limit or not (self.hidden or self.seen.cases < self.least)

    @property
    def seconds(self) -> float:
        """CPU seconds that the tool would have spent so far: making cases, and working on them."""
        return self.seen.making + self.seen.working

    def start(self) -> None:
        """The tool's clock runs from now on."""
        self._since = process_time()

    def take(self, case: Case, number: int = 0) -> Result:
        """Try one case on the sound kernel and on all faults that it can touch; gives the sound kernel's result."""
        began = process_time()
        self.seen.making += began - self._since
        self.sound.kept = _Kept(Tensors(), {})
        result = self.sound.execute(Job(number, case, foresee=True))
        self.seen.working += process_time() - began
        self.seen.cases += 1
        assert result.about is not None, f"{self.profile}: {result.message}"
        self._count(case, result)
        verdict = decide(result.about.foreseen, result)
        if verdict.failed:
            self.seen.alarms.append(f"{verdict.code} {verdict.text}"[:200])
        else:
            self._try_all(case, result)
        self._since = process_time()
        return result

    def _count(self, case: Case, result: Result) -> None:
        seen, about = self.seen, result.about
        assert about is not None
        if about.foreseen.verdict == "accept":
            seen.accepted += 1
            seen.words.append((seen.cases, about.factors))
        elif about.foreseen.verdict == "reject":
            seen.refused += 1
            seen.pure += len(about.foreseen.rules) == 1
            seen.alone += len(broken_rules(Scene(case), self.profile)[0]) == 1

    def _try_all(self, case: Case, result: Result) -> None:
        assert result.about is not None
        words = dict(zip(FACTORS, result.about.factors.split("|")))
        for name, fault in list(self.hidden.items()):
            if self.scoped and not in_scope(fault, words):
                continue
            verdict = self._try(fault, case, result)
            if verdict is not None and verdict.failed:
                self.found[name] = Find(self.seen.cases, round(self.seconds, 6), verdict.code or "")
                del self.hidden[name]

    def _try(self, fault: Fault, case: Case, result: Result) -> Optional[Verdict]:
        """The verdict on one fault's answer to a case; None where it is bound to be the sound kernel's."""
        about, backend = result.about, self._faulty[fault.name]
        assert about is not None
        if fault.kind == "check":
            scene = Scene(case)
            answer = backend.front.answer(case, scene)
            if (answer.kind, answer.code) == (result.kind, result.code) if answer is not None else result.kind == "ok":
                return None
        elif result.kind != "ok":
            return None  # the front has answered: no kernel was reached
        elif fault.kind == "process":
            return decide(about.foreseen, in_child(backend, case, self.sound.kept.tensors))
        elif result.judged is None:
            return None
        self.planted.kept = self.sound.kept
        # Only a fault that changes from run to run can differ in the second run of a case.
        runs = about.runs if fault.expect == "F105" else 1
        job = Job(0, case, judge=about.judged, runs=runs, backend=f"faulty:{fault.name}", profile=self.profile)
        return decide(about.foreseen, self.planted.execute(job))


def in_scope(fault: Fault, words: dict[str, str]) -> bool:
    """Whether a call with these factor words has all that the fault is declared to need."""
    return all(words[factor] in ((needed,) if isinstance(needed, str) else needed) for factor, needed in fault.needs.items())


def _get(name: str, profile: Optional[str]) -> FaultyBackend:
    return faulty_backend(name.removeprefix("faulty:"), profile)


_KINDS = ("ok", "error", "oom", "unsupported", "reject")


def in_child(backend: FaultyBackend, case: Case, tensors: Tensors, limit: float = HANG_SECONDS) -> Result:
    """Run a call in a child process, as a worker would, and tell how that ended: the kind of the outcome, crash or hang."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            _small()
            outcome = run_guarded(backend, case, Scene(case), tensors, poisoned(case))
            code = _KINDS.index(outcome.kind)
        finally:
            os._exit(code)
    began = time.monotonic()
    pause = 0.001
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() - began - _waited(child) > limit:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Result("hang")
        time.sleep(pause)
        pause = min(0.05, 2 * pause)
    if os.WIFSIGNALED(status):
        return Result("crash", signal=os.WTERMSIG(status))
    code = os.waitstatus_to_exitcode(status)
    assert code < len(_KINDS), f"a child ended with {code}"
    return Result(_KINDS[code])


def _waited(pid: int) -> float:
    """Seconds for which a process was ready to run, but had no core; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _small() -> None:
    """Little memory, no core file, no last words."""
    faulthandler.disable()
    with open("/proc/self/statm", encoding="ascii") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + CHILD_MEMORY, size + CHILD_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def as_line(hunt: Hunt) -> dict[str, Any]:
    """A finished hunt as plain data, without the words."""
    seen = hunt.seen
    return {
        "cases": seen.cases,
        "accepted": seen.accepted,
        "refused": seen.refused,
        "pure": seen.pure,
        "alone": seen.alone,
        "making": round(seen.making, 4),
        "working": round(seen.working, 4),
        "alarms": seen.alarms,
        "found": {name: [f.cases, f.seconds, f.code] for name, f in hunt.found.items()},
        "hidden": sorted(hunt.hidden),
    }


__all__ = ["Find", "Hunt", "Seen", "as_line", "in_child", "in_scope"]
