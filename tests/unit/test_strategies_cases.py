"""The public Hypothesis strategy for valid calls."""

from __future__ import annotations

import pytest
from hypothesis import find, given, settings

from fiafuzz.model.case import Case
from fiafuzz.model.factors import factors_of
from fiafuzz.model.scene import Scene
from strategies.cases import build_valid, generate, pairwise_cases, valid_cases
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
