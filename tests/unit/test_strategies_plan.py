"""Plans and the calls made from them: words come back, everything is reachable, needs are kept."""

from __future__ import annotations

import pytest

from fiafuzz.model.case import decode_case, encode_case
from fiafuzz.model.factors import FACTORS, factors_of
from fiafuzz.model.layouts import LAYOUTS
from fiafuzz.model.profiles import PROFILES
from fiafuzz.model.scene import Scene
from strategies.cases import build_valid
from strategies.plan import Infeasible, plan, root_of
from strategies.realise import realise
from strategies.source import SeededSource
from strategies.tuples import literals_of

WITH_PLANS = [name for name in PROFILES if name != "950-v3"]
SOURCE_950 = "950-v5-2026.08"


def words_of(profile: str, factor: str) -> set[str]:
    return {word for name, word in literals_of(profile).names if name == factor}


@pytest.mark.parametrize("profile", WITH_PLANS)
def test_a_call_has_the_words_of_its_plan(profile: str) -> None:
    source = SeededSource(11)
    for _ in range(700):
        wanted = plan(source, profile)
        assert set(wanted.words) == set(FACTORS)
        case = realise(wanted, source, profile)
        assert factors_of(Scene(case)) == wanted.words, encode_case(case).decode()
        assert (case.api, case.product) == (PROFILES[profile].api, PROFILES[profile].product)


@pytest.mark.parametrize("profile", ["950-v5", SOURCE_950, "a2-v3", "a2-v5", "a2-v5-2026.08"])
def test_every_word_of_the_diagram_can_be_asked_for(profile: str) -> None:
    """Also the rare ones: a plan with each word, and a call that has it."""
    source = SeededSource(5)
    for factor, word in literals_of(profile).names:
        case = build_valid(source, profile, {factor: word})
        assert factors_of(Scene(case))[factor] == word


def test_what_ascend_950_offers() -> None:
    scenarios = {"gqa", "unequal_d", "mla_prefill_split", "mla_prefill_combined", "mla_decode", "antiquant",
                 "full_per_tensor", "full_decode_mla"}
    assert words_of("950-v5", "scenario") == scenarios
    assert words_of(SOURCE_950, "scenario") == scenarios | {"full_gqa_fp8", "full_mxfp8"}
    for profile in ("950-v5", SOURCE_950):
        assert words_of(profile, "layout") == set(LAYOUTS)
        assert words_of(profile, "storage") == {"contiguous", "tensor_list", "BnBsH", "BnNBsD", "NZ"}
        assert words_of(profile, "kv_dtype") == {"FLOAT16", "BFLOAT16", "INT8", "INT4", "HIFLOAT8", "FLOAT8_E4M3FN",
                                                 "FLOAT4_E2M1"}
        assert words_of(profile, "left_padding") == {"none", "query", "kv", "both"}
        assert words_of(profile, "prefix") == {"none", "full", "actual"}
        assert words_of(profile, "post_quant") == {"none", "tensor", "channel", "tensor+offset", "channel+offset"}
        assert words_of(profile, "head_size") == {"64", "128", "192", "512", "16k", "odd"}
        assert words_of(profile, "q_lengths") == {"absent", "per_batch", "zero", "one", "longer"}
        assert words_of(profile, "length_relation") == {"q_shorter", "q_longer", "equal", "mixed", "other"}
        assert words_of(profile, "empty") == {"none", "query", "kv"}
    kinds = {"none", "per_tensor", "per_channel", "per_token", "tensor_head", "token_head", "token_paged", "group"}
    assert words_of("950-v5", "antiquant") == kinds
    assert words_of(SOURCE_950, "antiquant") == kinds | {"mixed", "token_head_paged"}


def test_what_a2_and_a3_offer() -> None:
    for profile in ("a2-v3", "a3-v3", "a2-v3-2026.08", "a3-v3-2026.08"):
        assert words_of(profile, "scenario") == {"gqa", "mla_prefill_split", "mla_prefill_combined", "mla_decode",
                                                 "antiquant", "full_per_tensor"}
        assert words_of(profile, "antiquant") == {"none", "merged", "per_tensor", "per_channel", "per_token", "tensor_head",
                                                  "token_head", "token_paged", "token_head_paged", "mixed"}
        assert words_of(profile, "sink") == {"off"}
    for profile in ("a2-v5", "a3-v5", "a2-v5-2026.08"):
        assert "full_decode_mla" in words_of(profile, "scenario")
        assert words_of(profile, "sink") == {"on", "off"}
    assert "merged" not in words_of("a2-v5", "antiquant")


def test_needs_are_kept() -> None:
    needs = {"scenario": ("gqa", "antiquant"), "storage": "BnNBsD", "sparse_mode": "3", "head_size": ("64", "16k")}
    source = SeededSource(2)
    met = set()
    for _ in range(200):
        words = factors_of(Scene(build_valid(source, "950-v5", needs)))
        assert (words["storage"], words["sparse_mode"]) == ("BnNBsD", "3")
        met.add((words["scenario"], words["head_size"]))
    assert met == {(s, d) for s in ("gqa", "antiquant") for d in ("64", "16k")}


def test_what_does_not_go_together_is_named() -> None:
    with pytest.raises(Infeasible, match="no valid call has kv_dtype INT8 and layout TND"):
        plan(SeededSource(1), "950-v5", {"scenario": "antiquant", "layout": "TND", "kv_dtype": "INT8", "lse": "on"})
    with pytest.raises(Infeasible, match="no valid call has sparse_mode 9"):
        plan(SeededSource(1), "950-v5", {"sparse_mode": "9"})
    with pytest.raises(Infeasible, match="no factor 'colour'"):
        plan(SeededSource(1), "950-v5", {"colour": "red"})


def test_a_profile_without_valid_calls_says_so() -> None:
    with pytest.raises(Infeasible, match="361001"):
        build_valid(SeededSource(1), "950-v3")
    with pytest.raises(ValueError, match="unknown profile"):
        build_valid(SeededSource(1), "950-v6")


def test_disputed_words_are_reached_only_when_asked_for() -> None:
    """pseType 2 and 3 stand in the V5 document, the source refuses them; one key length for all is the other way."""
    for factor, word in (("pse", "alibi2"), ("pse", "alibi3"), ("kv_lengths", "one"), ("kv_lengths", "longer"),
                         ("scenario", "full_mxfp8"), ("antiquant", "mixed")):
        assert word not in words_of("950-v5", factor)
        case = build_valid(SeededSource(3), "950-v5", {factor: word})
        assert factors_of(Scene(case))[factor] == word
    with pytest.raises(Infeasible):
        root_of(SOURCE_950, {"pse": "alibi2"})


def test_alibi_has_equal_lengths_and_float_slopes() -> None:
    source = SeededSource(8)
    for _ in range(50):
        s = Scene(build_valid(source, "950-v5", {"pse": ("alibi2", "alibi3")}))
        assert s.q_lens == s.kv_lens and s.shape("pseShift") == (s.Q_N,) and s.dtype("pseShift") == "FLOAT32"


@pytest.mark.parametrize("profile", ["950-v5", "a2-v3"])
def test_calls_survive_json(profile: str) -> None:
    source = SeededSource(4)
    for _ in range(200):
        case = build_valid(source, profile)
        assert decode_case(encode_case(case)) == case


def test_one_seed_one_call() -> None:
    first, second = SeededSource("x"), SeededSource("x")
    assert [build_valid(first, "950-v5") for _ in range(50)] == [build_valid(second, "950-v5") for _ in range(50)]
