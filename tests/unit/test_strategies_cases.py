"""The public Hypothesis strategy for valid calls."""

from __future__ import annotations

import pytest
from hypothesis import find, given, settings

from fiafuzz.model.case import Case
from fiafuzz.model.factors import factors_of
from fiafuzz.model.parameters import INT_MAX
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import predict
from strategies.cases import boundary_cases, build_valid, generate, pairwise_cases, sweep, valid_cases
from strategies.faults import Generated
from strategies.plan import Infeasible, disputed_words
from strategies.source import SeededSource


def test_the_plainest_call() -> None:
    case = find(valid_cases("950-v5"), lambda _: True)
    s = Scene(case)
    words = factors_of(s)
    assert (words["scenario"], words["layout"], words["storage"], words["empty"]) == ("gqa", "BNSD", "contiguous", "none")
    assert (s.B, s.Q_N, s.KV_N, s.Q_S, s.Q_D, case.seed) == (1, 1, 1, 1, 64, 0)
    assert s.present == {"query", "key", "value"}


def test_shrinking_keeps_what_matters_and_drops_the_rest() -> None:
    case = find(valid_cases("950-v5"), lambda c: Scene(c).paged and Scene(c).sparse_mode == 3)
    s = Scene(case)
    assert (s.B, s.Q_D, s.k_dtype) == (1, 64, "FLOAT16")
    assert s.present == {"query", "key", "value", "attenMask", "actualSeqLengthsKv", "blockTable"}


@settings(max_examples=60, deadline=None, database=None)
@given(valid_cases("a2-v3", {"scenario": "antiquant", "storage": "BnBsH"}))
def test_needs_hold_under_hypothesis(case: Case) -> None:
    words = factors_of(Scene(case))
    assert (words["scenario"], words["storage"], case.product, case.api) == ("antiquant", "BnBsH", "a2", "v3")


def test_impossible_needs_are_told_at_once() -> None:
    with pytest.raises(Infeasible):
        valid_cases("950-v5", {"scenario": "unequal_d", "lse": "on"})
    with pytest.raises(Infeasible):
        valid_cases("950-v3")


def test_words_come_back_under_hypothesis_too() -> None:
    met = set()

    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    @given(valid_cases("950-v5-2026.08"))
    def body(case: Case) -> None:
        words = factors_of(Scene(case))
        assert "other" not in {words[f] for f in ("scenario", "layout", "storage", "q_s", "group", "head_size", "mask_shape")}
        met.add(words["scenario"])

    body()
    assert len(met) >= 7


def test_pairwise_calls_are_valid_calls_of_their_plans() -> None:
    from strategies.pairwise import pairwise_plans

    rows = pairwise_plans("a2-v3", 3)
    for row, item in zip(rows, pairwise_cases("a2-v3", 3)):
        assert factors_of(Scene(item.case)) == row.words and item.mode == "valid"


def test_build_valid_is_the_generators_one_door() -> None:
    assert Scene(build_valid(SeededSource(1), "a3-v3")).product == "a3"


def test_disputed_ground_has_words_of_its_own() -> None:
    """Beside broken rules of one side: calls that break none but have a word that one side alone accepts."""
    words = disputed_words("950-v5")
    assert {("pse", "alibi2"), ("kv_lengths", "one"), ("scenario", "full_mxfp8")} <= set(words)
    own = [g for g in generate("950-v5", "disputed", 4 * len(words), 1) if g.rule is None]
    met = [factors_of(Scene(g.case)) for g in own]
    assert len(own) == 2 * len(words) and {g.mode for g in own} == {"disputed"}
    assert all(any(m[factor] == word for m in met) for factor, word in words)
    assert disputed_words("950-v5-2026.08") == ()


@pytest.mark.parametrize("mode, made", [("valid", 120), ("boundary", 120), ("all", 120), ("invalid", 0), ("disputed", 0)])
def test_calls_that_must_be_accepted(mode: str, made: int) -> None:
    """For kernels without checks of their own: nothing else is made, whatever the mode."""
    found = list(generate("950-v5", mode, 120, 3, accepted=True))
    assert len(found) == made and all(predict(item.case, "950-v5").verdict == "accept" for item in found)
    assert {item.mode for item in found} <= {"valid", "boundary"} and {item.edge for item in found} <= {None, "inside"}
    if mode == "all":
        assert sum(item.mode == "boundary" for item in found) == 20


def test_edges_that_must_be_accepted() -> None:
    whole = [item for item in sweep("950-v5", 3) if isinstance(item, Generated)]
    inside = [item for item in sweep("950-v5", 3, accepted=True) if isinstance(item, Generated)]
    edges = {(item.rule, item.side) for item in whole if item.edge == "inside"}
    assert len(edges) > 50 and {(item.rule, item.side) for item in inside} == edges
    assert all(predict(item.case, "950-v5").verdict == "accept" for item in inside)


@settings(max_examples=40, deadline=None, database=None)
@given(boundary_cases("950-v5", accepted=True))
def test_edges_that_must_be_accepted_under_hypothesis(item: Generated) -> None:
    assert item.edge == "inside" and predict(item.case, "950-v5").verdict == "accept"


def test_tokens_go_to_their_limit_and_one_below() -> None:
    """INT_MAX stands for no limit; one less is a limit, of which a sum with a length leaves 32 bits."""
    far = {t for item in generate("950-v5", "valid", 1500, 5) for t in Scene(item.case).tokens if t > INT_MAX - 100}
    assert far == {INT_MAX - 1, INT_MAX}
