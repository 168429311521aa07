"""Shrinking: small, valid in the same way, deterministic, within its budget."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import pytest

from fiafuzz.campaign.plain_starts import PlainSource, plain_faults
from fiafuzz.campaign.shrink import MAX_RUNS, shrink, stripped
from fiafuzz.campaign.triage import features_of, plain_case
from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import predict
from strategies.cases import build_valid, generate

PROFILE = "950-v5"
CASES = [g.case for g in generate(PROFILE, "valid", 400, 11)]

Fails = Callable[[Scene], object]

FAULTS: list[tuple[str, Fails, int]] = [
    ("everywhere", lambda s: True, 0),
    ("grouped heads", lambda s: s.G is not None and s.G > 1, 1),
    ("lse", lambda s: s.lse_on, 1),
    ("sink", lambda s: s.sink_on, 1),
    ("bias", lambda s: s.pse_on, 1),
    ("mode 3", lambda s: s.sparse_mode == 3, 1),
    ("paged", lambda s: s.paged, 1),
    ("NZ with lse", lambda s: s.cache_layout == "NZ" and s.lse_on, 2),
    ("packed grouped", lambda s: s.packed and s.G is not None and s.G > 1, 2),
    ("bfloat and mask", lambda s: s.q_dtype == "BFLOAT16" and s.mask_on, 2),
    ("a tail of keys", lambda s: s.kv_lens and max(s.kv_lens) > 70, 1),
    ("an odd number of keys", lambda s: s.kv_lens and max(s.kv_lens) % 2, 1),
    ("batches of different length", lambda s: s.kv_lens and len(set(s.kv_lens)) > 1, 2),
    ("per-channel antiquant", lambda s: s.antiquant_kind == "per_channel", 1),
    ("post-quantisation", lambda s: s.post_quant_on, 1),
]


@pytest.mark.parametrize("name, fails, interaction", FAULTS, ids=[f[0] for f in FAULTS])
def test_shrunk_cases_are_small_and_still_valid(name: str, fails: Fails, interaction: int) -> None:
    found = [shrink(c, lambda k: bool(fails(Scene(k))), PROFILE) for c in CASES if fails(Scene(c))][:8]
    assert found, "no generated case shows it"
    for one in found:
        assert fails(Scene(one.case))
        assert predict(one.case, PROFILE).verdict == "accept"
        assert one.runs <= MAX_RUNS
    assert median(len(one.differences) for one in found) <= interaction + 2, [one.differences for one in found]


def test_the_same_case_shrinks_to_the_same_case() -> None:
    case = next(c for c in CASES if Scene(c).lse_on)
    results = [shrink(case, lambda k: Scene(k).lse_on, PROFILE) for _ in range(2)]
    assert results[0].case == results[1].case and results[0].steps == results[1].steps and results[0].runs == results[1].runs


def test_budgets_end_it_with_what_was_reached() -> None:
    case = next(c for c in CASES if Scene(c).kv_lens and len(set(Scene(c).kv_lens or ())) > 2)
    seen: list[Case] = []

    def fails(k: Case) -> bool:
        seen.append(k)
        return len(set(Scene(k).kv_lens or ())) > 1

    found = shrink(case, fails, PROFILE, max_runs=5)
    assert found.runs == len(seen) == 5 and found.cut_short
    assert len(set(Scene(found.case).kv_lens or ())) > 1
    assert shrink(case, fails, PROFILE, stop=lambda: True).case == case
    assert shrink(case, fails, PROFILE, max_seconds=0.0).case == case


def test_no_case_is_run_twice() -> None:
    seen: list[str] = []

    def fails(k: Case) -> bool:
        seen.append(k.digest)
        return Scene(k).paged

    shrink(next(c for c in CASES if Scene(c).paged), fails, PROFILE)
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("mode", ["invalid"])
def test_an_invalid_case_still_breaks_the_same_rule(mode: str) -> None:
    for item in list(generate(PROFILE, mode, 80, 3))[::4]:
        before = predict(item.case, PROFILE)
        found = shrink(item.case, lambda k: True, PROFILE)
        after = predict(found.case, PROFILE)
        assert after.verdict == before.verdict == "reject"
        assert after.rule_ids[0] == before.rule_ids[0] and set(after.rule_ids) <= set(before.rule_ids)
        assert found.runs <= MAX_RUNS


def test_plain_calls_that_break_a_rule_are_tried_first() -> None:
    item = next(g for g in generate(PROFILE, "invalid", 60, 3) if predict(g.case, PROFILE).rule_ids == (g.rule,))
    assert item.rule is not None
    found = shrink(item.case, lambda k: True, PROFILE, starts=plain_faults(PROFILE, item.rule))
    assert predict(found.case, PROFILE).rule_ids == (item.rule,)
    assert len(found.differences) <= len(shrink(item.case, lambda k: True, PROFILE).differences)


def test_the_plain_source_takes_the_plainest() -> None:
    case = build_valid(PlainSource(), PROFILE)
    assert predict(case, PROFILE).verdict == "accept"
    assert case.seed == 0
    assert len(features_of(case)) <= 6


def test_what_is_stripped_keeps_the_wanted_features_and_the_sizes() -> None:
    case = next(c for c in CASES if Scene(c).lse_on and Scene(c).mask_on and Scene(c).quant_kind == "none")
    bare = stripped(case, {"lse": "on"}, lambda c: predict(c, PROFILE).verdict == "accept")
    assert bare is not None
    scene = Scene(bare)
    assert scene.lse_on and not scene.mask_on
    assert (scene.Q_N, scene.Q_S) == (Scene(case).Q_N, Scene(case).Q_S)


def test_nothing_to_shrink() -> None:
    case = plain_case("950", "v5")
    found = shrink(case, lambda k: True, PROFILE)
    assert found.case == case and found.differences == ()
