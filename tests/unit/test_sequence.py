"""Groups of calls in one process: how they are made, run through a worker's executor, and made small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, Optional

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiafuzz.backends.cpu import CpuBackend
from fiafuzz.backends.protocol import Outcome
from fiafuzz.campaign import sequence_shrink
from fiafuzz.campaign.corpus import MAX_BEFORE, decode_entry, encode_entry, variant_name
from fiafuzz.campaign.execute import Executor
from fiafuzz.campaign.plan import Plan, PlanError, check, phases_of
from fiafuzz.campaign.results import Result
from fiafuzz.campaign.schedulers.protocol import Completed
from fiafuzz.campaign.sequence import BLOCK, sequences
from fiafuzz.campaign.sequence_look import as_it_ended
from fiafuzz.campaign.sequence_shrink import Before, describe_before, features_between, fewest, mixed, words_between
from fiafuzz.campaign.triage import plain_case
from fiafuzz.campaign.wire import Job, Setup
from fiafuzz.model.case import Case, case_to_dict
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import predict

from .kept_entries import entry_of

PROFILE = "950-v5"
PLAIN = plain_case("950", "v5")


def plan_with(**changes: Any) -> Plan:
    """A plan with groups of six."""
    return Plan(**{"max_cases": 10, "seed": 3, "sequences": 6, "mode": "valid", **changes})


# ---- how they are made --------------------------------------------------------------------------------


def test_a_seed_and_a_number_decide_a_group() -> None:
    groups = list(islice(sequences(plan_with(), PROFILE), 20))
    assert list(islice(sequences(plan_with(), PROFILE), 20)) == groups
    assert list(islice(sequences(plan_with(), PROFILE, 7), 13)) == groups[7:]
    assert list(islice(sequences(plan_with(seed=4), PROFILE), 20)) != groups
    assert [member.place for group in groups for member in group] == list(range(1, 121))


def test_groups_beyond_a_block_do_not_depend_on_those_before() -> None:
    (late,) = islice(sequences(plan_with(), PROFILE, BLOCK + 1), 1)
    made = sequences(plan_with(), PROFILE, BLOCK - 1)
    assert [next(made)[0].place // 6 for _ in range(2)] == [BLOCK - 1, BLOCK] and next(made) == late


def test_groups_repeat_calls_and_vary_values_attributes_and_sizes() -> None:
    words: set[str] = set()
    repeats = grown = shrunk = 0
    for group in islice(sequences(plan_with(), PROFILE), 120):
        cases = [member.case for member in group]
        assert len(cases) == 6
        repeats += len({case.digest for case in cases}) < 6
        for one, other in pairwise(cases):
            found = {*words_between(one, other).values()}
            words |= found if len(found) == 1 else set()
            if found == {"sizes"}:
                one_size, other_size = (case.inputs.query.numel + case.inputs.key[0].numel for case in (one, other))
                grown, shrunk = grown + (other_size > one_size), shrunk + (other_size < one_size)
    assert {"values", "sizes", "scaleValue"} <= words
    assert repeats > 100 and grown > 5 and shrunk > 5


@pytest.mark.parametrize("mode", ["valid", "invalid"])
def test_groups_are_of_the_kind_that_the_mode_asks_for(mode: str) -> None:
    wanted = {"valid": "accept", "invalid": "reject"}[mode]
    for group in islice(sequences(plan_with(mode=mode), PROFILE), 20):
        for member in group:
            assert member.mode == mode and predict(member.case, PROFILE).verdict == wanted


def test_refused_calls_stand_between_others_when_all_modes_are_asked_for() -> None:
    groups = list(islice(sequences(plan_with(mode="all"), PROFILE), 40))
    verdicts = [[predict(member.case, PROFILE).verdict for member in group] for group in groups]
    assert any("reject" in group[:-1] and group[-1] == "accept" for group in verdicts)


def test_the_phase_runs_when_it_is_asked_for() -> None:
    assert phases_of(plan_with(sequences=0)) == ("replay", "pairwise", "explore", "bulk")
    assert phases_of(plan_with()) == ("replay", "pairwise", "explore", "sequences", "bulk")
    for changes in ({"sequences": 1}, {"sequences": 33}, {"sequences": 0, "phases": ("sequences",)}):
        with pytest.raises(PlanError, match="sequences"):
            check(plan_with(**changes))


# ---- in the worker ------------------------------------------------------------------------------------------


class Counting(CpuBackend):
    """The cpu backend with a log of its calls; from ``spoilt`` calls on it adds a little to one element."""

    def __init__(self, spoilt: int = 1000, fatal: int = 1000) -> None:
        super().__init__(PROFILE)
        self.calls: list[str] = []
        self.spoilt, self.fatal = spoilt, fatal

    def run(self, case: Case, scene: Scene, tensors: Any, outputs: dict[str, np.ndarray[Any, Any]]) -> Outcome:
        outcome = super().run(case, scene, tensors, outputs)
        self.calls.append(case.digest)
        if len(self.calls) >= self.fatal:
            return replace(outcome, fatal=True)
        if len(self.calls) >= self.spoilt and outcome.outputs is not None:
            flat = outcome.outputs["attentionOut"].reshape(-1)
            flat[0] = np.nextafter(flat[0], flat.dtype.type(2))
        return outcome


def ran_through(backend: Counting, *cases: Case, **setup: Any) -> list[Result]:
    """The results of a job with these cases."""
    executor = Executor(backend, "", profile=PROFILE, setup=Setup("cpu", PROFILE, **setup))
    return list(executor.run_through(Job(1, cases[-1], foresee=True, before=cases[:-1], turns=False)))


def test_the_cases_before_are_run_first_and_judged() -> None:
    backend, other = Counting(), PLAIN.replace(scaleValue=0.25)
    refused = PLAIN.replace(numHeads=3)
    results = ran_through(backend, PLAIN, refused, other, PLAIN, repeat_every=1, relate_every=1)
    assert [r.kind for r in results] == ["ok", "reject", "ok", "ok"]
    assert [r.judged.passed for r in results if r.judged] == [True, True, True]
    assert backend.calls == [PLAIN.digest, refused.digest, other.digest, PLAIN.digest]  # no run that is not asked for
    assert [r.same for r in results] == [None, None, None, True]


def test_other_bits_in_a_second_run_of_a_case_are_seen() -> None:
    results = ran_through(Counting(spoilt=3), PLAIN, PLAIN.replace(seed=1), PLAIN)
    assert [r.judged.passed for r in results if r.judged] == [True, True, True] and results[-1].same is False
    alone = ran_through(Counting(spoilt=1), PLAIN)
    assert alone[-1].same is None


def test_nothing_is_run_after_a_fatal_outcome() -> None:
    backend = Counting(fatal=2)
    results = ran_through(backend, PLAIN, PLAIN.replace(seed=1), PLAIN)
    assert [r.fatal for r in results] == [False, True] and len(backend.calls) == 2


def test_a_job_that_ended_early_is_that_of_the_call_that_ended_it() -> None:
    cases = tuple(PLAIN.replace(seed=i) for i in range(4))
    job = Job(1, cases[3], before=cases[:3])
    ended = as_it_ended(Completed(job, Result("crash", before=(Result("ok"),))))
    assert (ended.job.case, ended.job.before) == (cases[1], cases[:1])
    whole = Completed(job, Result("ok", before=(Result("ok"),) * 3))
    assert as_it_ended(whole) is whole


# ---- made small ---------------------------------------------------------------------------------------------


@given(st.lists(st.integers(), min_size=1, max_size=24, unique=True), st.data())
def test_fewest_finds_exactly_the_items_that_it_takes(items: list[int], data: st.DataObject) -> None:
    needed = set(data.draw(st.lists(st.sampled_from(items), min_size=1, unique=True)))

    def fails(part: Sequence[int]) -> bool:
        assert part and set(part) <= set(items) and list(part) == [i for i in items if i in set(part)]
        return needed <= set(part)

    assert set(fewest(items, fails)) == needed


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9, unique=True), st.integers(0, 511))
def test_what_fewest_leaves_is_needed_to_the_last_item(items: list[int], salt: int) -> None:
    asked: list[frozenset[int]] = []

    def fails(part: Sequence[int]) -> bool:
        asked.append(frozenset(part))
        return len(part) == len(items) or bool(salt >> (hash(frozenset(part)) % 9) & 1)

    left = fewest(items, fails)
    assert len(left) == len(items) or fails(left)
    assert len(left) == 1 or all(frozenset(left) - {item} in asked for item in left)


def search(case: Case, before: tuple[Case, ...], check: Any, runs: int = 200) -> Before:
    """A search that is not stopped from outside."""
    return Before(case, before, check, PROFILE, runs, lambda: False)


OTHERS = tuple(case for g in islice(sequences(Plan(max_cases=1, sequences=6, mode="valid", seed=8), PROFILE), 4) for case in (g[0].case,))


def test_one_call_is_left_and_differs_in_nothing_but_what_matters() -> None:
    before = (*OTHERS[:2], OTHERS[2].replace(scaleValue=0.3), OTHERS[3].replace(scaleValue=PLAIN.attrs.scaleValue))
    found = search(PLAIN, before, lambda calls: any(c.attrs.scaleValue == 0.3 for c in calls)).shrink()
    assert found == (PLAIN.replace(scaleValue=0.3),)
    assert features_between(found, PLAIN) == (("after", "1 call"), ("differs", "scaleValue"))
    assert describe_before(found, PLAIN) == ("call 1 of 1: as this one, but scaleValue 0.3 (here: 0.125)",)


def test_two_calls_are_left_where_both_are_needed() -> None:
    first, second = PLAIN.replace(seed=1), PLAIN.replace(seed=2)
    before = (OTHERS[0], first, *OTHERS[1:3], second, OTHERS[3])

    def fails(calls: tuple[Case, ...]) -> bool:
        seeds = [c.seed for c in calls]
        return 1 in seeds and 2 in seeds[seeds.index(1) :]

    found = search(PLAIN, before, fails).shrink()
    assert found == (first, second)
    assert features_between(found, PLAIN) == (("after", "2 calls"), ("differs", "values"))


def test_a_call_that_may_be_the_same_becomes_the_same() -> None:
    assert search(PLAIN, OTHERS, lambda calls: len(calls) >= 1).shrink() == (PLAIN,)
    assert features_between((PLAIN,), PLAIN) == (("after", "1 call"),)
    assert describe_before((PLAIN,), PLAIN) == ("call 1 of 1: this very call",)


def test_a_call_stays_of_its_kind() -> None:
    refused = PLAIN.replace(numHeads=3, seed=7)
    asked: list[Case] = []

    def fails(calls: tuple[Case, ...]) -> bool:
        asked.extend(calls)
        return True

    search(PLAIN, (refused,), fails).shrink()
    assert asked and all(predict(case, PROFILE).verdict == "reject" for case in asked)


@pytest.mark.parametrize("runs", [0, 1, 3])
def test_a_budget_ends_the_search_with_what_fails(runs: int) -> None:
    asked: list[tuple[Case, ...]] = []

    def fails(calls: tuple[Case, ...]) -> Optional[bool]:
        asked.append(calls)
        return OTHERS[0] in calls

    made = search(PLAIN, OTHERS, fails, runs)
    assert OTHERS[0] in made.shrink() and made.cut_short and len(asked) == runs


def test_sizes_values_and_fields_are_told_apart() -> None:
    query = msgspec.structs.replace(PLAIN.inputs.query, shape=(1, 1, 4, 64))
    longer = PLAIN.replace(query=query, attentionOut=msgspec.structs.replace(PLAIN.outputs.attentionOut, shape=(1, 1, 4, 64)))
    assert words_between(longer, PLAIN) == {"Q_S": "sizes"}
    assert words_between(PLAIN.replace(seed=4, scaleValue=1.0), PLAIN) == {"seed": "values", "scaleValue": "scaleValue"}
    assert mixed(PLAIN, longer, ("Q_S",)) == longer
    assert mixed(PLAIN, longer, ()) == PLAIN
    assert sequence_shrink.differing({"a": 1, "b": 2}, {"b": 3}) == ("a", "b")


# ---- kept -------------------------------------------------------------------------------------------------------


def test_an_entry_keeps_the_calls_before() -> None:
    entry = entry_of("F304", before=(PLAIN.replace(seed=1), PLAIN))
    data = encode_entry(entry)
    assert decode_entry(data) == entry
    raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    assert msgspec.json.decode(raw["before"], type=list[Case]) == list(entry.before)
    alone = msgspec.structs.replace(entry, before=())
    assert variant_name(alone) != variant_name(entry)


def test_an_entry_without_calls_before_is_written_as_ever() -> None:
    data = encode_entry(entry_of())
    assert b"before" not in data and decode_entry(data).before == ()
    assert variant_name(entry_of()) == "F101-c871ef7eab.c8e13fa3.json"


@pytest.mark.parametrize(
    "before, text",
    [
        ([{"fiafuzz": 1}], r"before\[0\]: .*inputs"),
        ([case_to_dict(PLAIN), {**case_to_dict(PLAIN), "bogus": 1}], r"before\[1\]: .*bogus"),
        ([{**case_to_dict(PLAIN), "product": "b7"}], r"before\[0\]: unknown product"),
        ("all of them", "array"),
        ([case_to_dict(PLAIN)] * (MAX_BEFORE + 1), "over the limit"),
    ],
)
def test_bad_calls_before_are_refused(before: Any, text: str) -> None:
    data = {**msgspec.json.decode(encode_entry(entry_of("F304"))), "before": before}
    with pytest.raises(ValueError, match=text):
        decode_entry(msgspec.json.encode(data))
