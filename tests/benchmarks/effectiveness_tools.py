"""The tools that bench_effectiveness.py compares. Each turns a seed into a stream of cases and hands them to a Hunt.

All of them get the same oracle: prediction, sound kernel, reference, judgement and repeated runs. They differ in what they try.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Optional

from fiafuzz.campaign.budget import Budget
from fiafuzz.campaign.engine import Campaign
from fiafuzz.campaign.leg import Leg
from fiafuzz.campaign.plan import Plan as CampaignPlan
from fiafuzz.campaign.plan import phases_of
from fiafuzz.campaign.schedulers.protocol import Completed, Restart
from fiafuzz.campaign.stopping import StopFlag
from fiafuzz.campaign.wire import Hello, Job
from fiafuzz.model.case import Case, TensorSpec, case_from_dict
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.layouts import LAYOUTS
from fiafuzz.model.parameters import ATTRIBUTES, INPUTS, INT_MAX, OUTPUTS
from fiafuzz.model.profiles import profile as profile_of
from strategies import sizes
from strategies.plan import Plan, diagram_of, walk
from strategies.realise import realise
from strategies.source import SeededSource, Weighted
from tests.benchmarks.effectiveness_hunt import Hunt

ROOT = Path(__file__).resolve().parents[2]
Play = Callable[[Hunt, str, int], None]
"""``play(hunt, mode, seed)`` feeds the hunt until it is over or the stream ends."""


class Enough(KeyboardInterrupt):
    """Ends a Hypothesis run: the only kind of exception that it does not take for a failing test."""


# ---- fiafuzz ----------------------------------------------------------------------------------


class _Here:
    """A scheduler that runs each case on the spot, by a hunt."""

    def __init__(self, hunt: Hunt, stop: StopFlag) -> None:
        self.hunt, self.stop = hunt, stop
        self.done: deque[Completed] = deque()
        self.on_room: Optional[Callable[[], None]] = None

    def start(self) -> Hello:
        info = self.hunt.sound.backend.info
        return Hello(info.name, info.title, info.checks, profiles=info.profiles)

    def room(self) -> int:
        return 0 if self.done or self.hunt.over else 1

    @property
    def outstanding(self) -> int:
        return len(self.done)

    def submit(self, job: Job) -> None:
        self.done.append(Completed(job, self.hunt.take(job.case, job.id)))
        if self.hunt.over:
            self.stop.set("caller")

    def poll(self, timeout: float) -> list[Completed]:
        found = list(self.done)
        self.done.clear()
        return found

    def run(self, job: Job, *, fresh: bool = False, time_limit: Optional[float] = None) -> Completed:
        return Completed(job, self.hunt.sound.execute(job))

    def given_up(self, worker: int) -> str:
        return ""

    def restarts(self) -> list[Restart]:
        return []

    def close(self) -> None:
        pass


def play_fiafuzz(hunt: Hunt, mode: str, seed: int) -> None:
    """The phases of ``fiafuzz fuzz --mode MODE -n LIMIT --seed SEED`` by the engine itself, on one worker. What the explore phase
    learns from results is what the sound kernel's teach it."""
    with tempfile.TemporaryDirectory() as directory:
        plan = CampaignPlan(
            profiles=(hunt.profile,), seed=seed, mode=mode, max_time=None, max_cases=hunt.limit, canary=False,
            corpus=f"{directory}/corpus", out=f"{directory}/run",
        )
        stop = StopFlag()
        campaign = Campaign(plan, stop)
        scheduler = _Here(hunt, stop)
        try:
            leg = Leg(campaign, scheduler, scheduler.start(), "cpu", hunt.profile)
            budget = Budget(campaign.tally, None, plan.max_cases)
            for phase in phases_of(plan):
                if stop or budget.used_up:
                    break
                for _ in leg.run_phase(phase, budget):
                    pass
        finally:
            campaign.directory.close()


# ---- plain Hypothesis -------------------------------------------------------------------------


def _strategy(profile: str, mode: str) -> Any:
    from hypothesis import strategies as st

    from strategies.cases import disputed_cases, invalid_cases, valid_cases
    from strategies.plan import disputed_words

    def case_of(item: Any) -> Case:
        case: Case = item.case
        return case

    valid, invalid = valid_cases(profile), invalid_cases(profile).map(case_of)
    if mode == "all":
        return st.one_of(valid, invalid)
    if mode != "disputed":
        return valid if mode == "valid" else invalid
    on_words = st.sampled_from(disputed_words(profile)).flatmap(lambda word: valid_cases(profile, dict([word])))
    return st.one_of(disputed_cases(profile).map(case_of), on_words)


def play_hypothesis(hunt: Hunt, mode: str, seed: int) -> None:
    """The strategies alone under ``@given``, as somebody uses them in a test of their own: no pairwise, no boundary phase, no
    target, no weights of phases."""
    from hypothesis import HealthCheck, Phase, Verbosity, given, settings
    from hypothesis import seed as seeded

    @settings(
        max_examples=hunt.limit, phases=(Phase.generate,), database=None, deadline=None, derandomize=False,
        verbosity=Verbosity.quiet, suppress_health_check=list(HealthCheck),
    )
    @seeded(seed)
    @given(_strategy(hunt.profile, mode))
    def tried(case: Case) -> None:
        if hunt.over:
            raise Enough
        hunt.take(case)

    with contextlib.suppress(Enough):
        tried()


# ---- uniform random ---------------------------------------------------------------------------


class EvenSource(SeededSource):
    """A seeded source without weights: all options are equally likely. How large a call may become is no parameter; that keeps
    its weights, so that no tool has larger calls than the others."""

    def pick(self, table: Weighted) -> int:
        if table is sizes._BUDGETS:
            return super().pick(table)
        return self.integer(0, len(table.options) - 1)

    def chance(self, percent: int) -> bool:
        return percent >= 100 or (percent > 0 and self.integer(0, 1) == 1)

    def path(self, node: Any) -> list[str]:
        words = []
        while node.options:
            i = self.integer(0, len(node.options) - 1)
            words.append(node.options[i])
            node = node.next[i]
        return words


COLUMN = ("scenario", "q_dtype", "kv_dtype", "out_dtype", "post_quant")
"""Drawn together: dtypes drawn one by one are next to never those of a registered column, and nobody would test like that."""
WALKS = 4000
_ABSENT = ("none", "absent", "off")
_NUMBERS_OF: dict[str, dict[str, int]] = {
    "q_s": {"2-16": 9, "17+": 12},
    "batch": {"3+": 5},
    "head_size": {"16k": 10, "odd": 14},
    "empty": {"none": 20},
}
"""How many sizes stand behind a word. Sizes are drawn as numbers: their words come as often as that, and emptiness, which is a size
of 0, as rarely."""


@dataclass(frozen=True)
class Domains:
    """What each parameter may be, in words: columns by scenario, words that make a parameter absent, and the others."""

    columns: dict[str, tuple[tuple[str, ...], ...]]
    absent: dict[str, str]
    present: dict[str, tuple[str, ...]]


@cache
def domains(profile: str, wide: bool) -> Domains:
    """The words that each scene factor has in some plan of the profile (``wide``: also on disputed ground)."""
    diagram = diagram_of(profile, wide)
    absent, present = {}, {}
    for factor, nodes in zip(diagram.factors, diagram.levels):
        numbers = _NUMBERS_OF.get(factor, {})
        words = dict.fromkeys(word for node in nodes for word in node.options)
        gone = next((word for word in words if word in _ABSENT), None)
        if gone is not None and factor not in ("empty", "block_size", "antiquant", "antiquant_offset") and len(words) > 1:
            absent[factor] = gone
            del words[gone]
        present[factor] = tuple(word for word in words for _ in range(numbers.get(word, 1)))
    source, columns = EvenSource("columns"), {}
    assert diagram.root is not None
    for _ in range(WALKS):
        plan = walk(source, diagram.root).words
        columns[tuple(plan[factor] for factor in COLUMN)] = None
    scenarios = sorted({column[0] for column in columns})
    return Domains({one: tuple(sorted(c for c in columns if c[0] == one)) for one in scenarios}, absent, present)


def even_words(source: SeededSource, known: Domains) -> dict[str, str]:
    """A word for every factor, each drawn for itself: optional parameters are there or not with even odds, and all words (or sizes)
    are equally likely; the dtypes come as a column of a scenario."""
    words = {}
    for factor, options in known.present.items():
        if factor in known.absent and source.integer(0, 1):
            words[factor] = known.absent[factor]
        else:
            words[factor] = source.choice(options)
    column = source.choice(known.columns[source.choice(tuple(known.columns))])
    return {**words, **dict(zip(COLUMN, column))}


def even_case(source: SeededSource, profile: str, mode: str) -> Case:
    """A call of even words. Shapes, dtypes and values are made from the words by the same rooms that fiafuzz uses, so that tensors fit
    together wherever the words do; words from which no tensors can be made at all are drawn anew."""
    known = domains(profile, mode == "disputed")
    while True:
        try:
            return realise(Plan(even_words(source, known)), source, profile)
        except (ArithmeticError, LookupError, ValueError):
            continue


_NUMBERS = (-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 128, INT_MAX)


def changed(case: Case, source: SeededSource) -> Case:
    """A call with one parameter, any of all, set to something else of its type."""
    while True:
        parameter = source.choice((*INPUTS, *ATTRIBUTES, *OUTPUTS))
        value = _other(case.get(parameter.name), source)
        other = case.replace(**{parameter.name: value})
        if other != case:
            return other


def _other(value: Any, source: SeededSource) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return source.choice(_NUMBERS)
    if isinstance(value, str):
        return source.choice(tuple(LAYOUTS))
    if value is None or source.chance(50):
        return None
    if isinstance(value, TensorSpec):
        return _other_tensor(value, source)
    at = source.integer(0, len(value) - 1) if value else 0
    items = list(value)
    if items:
        items[at] = _other_tensor(items[at], source) if isinstance(items[at], TensorSpec) else source.choice(_NUMBERS)
    return tuple(items)


def _other_tensor(spec: TensorSpec, source: SeededSource) -> TensorSpec:
    from msgspec.structs import replace

    if source.chance(50) or not spec.shape:
        return replace(spec, dtype=source.choice(tuple(DTYPES)), fill=None)
    shape = list(spec.shape)
    axis = source.integer(0, len(shape) - 1)
    shape[axis] = max(0, shape[axis] + source.choice((-1, 1)))
    return replace(spec, shape=tuple(shape), values=None)


def play_random(hunt: Hunt, mode: str, seed: int) -> None:
    """Even and independent draws; in search of invalid calls every second one gets one more change."""
    source = EvenSource(f"{hunt.profile}/even/{mode}/{seed}")
    while not hunt.over:
        case = even_case(source, hunt.profile, mode)
        hunt.take(changed(case, source) if mode == "invalid" and hunt.seen.cases % 2 else case)


# ---- vendor tables ----------------------------------------------------------------------------


def table_cases(profile: str) -> Iterator[Case]:
    """The rows of the operator's published unit-test tables for the product and API of a profile, in their order.
    FileNotFoundError without the reference data."""
    wanted = profile_of(profile)
    path = Path(os.environ.get("FIAFUZZ_SHARED", ROOT.parent / "shared")) / "data" / "host_verdicts_dev.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["origin"] == "table":
                case = case_from_dict(row["case"])
                if (case.api, case.product) == (wanted.api, wanted.product):
                    yield case


def play_tables(hunt: Hunt, mode: str, seed: int) -> None:
    """The tables as a suite. The seed changes the values alone."""
    for case in table_cases(hunt.profile):
        if hunt.over:
            return
        hunt.take(case.replace(seed=seed))


TOOLS: dict[str, tuple[Play, bool]] = {
    "fiafuzz": (play_fiafuzz, True),
    "random": (play_random, True),
    "hypothesis": (play_hypothesis, True),
    "tables": (play_tables, False),
    "fiafuzz-all": (play_fiafuzz, False),
    "hypothesis-all": (play_hypothesis, False),
}
"""Name -> how it plays, and whether it is told which mode of calls (valid, invalid, disputed) reaches a fault. Those that are not
told run once for all faults of a profile."""

__all__ = ["TOOLS", "Enough", "EvenSource", "changed", "domains", "even_case", "even_words", "table_cases"]
