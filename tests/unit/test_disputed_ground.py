"""Calls that one side alone accepts: generated on disputed ground, and judged by their values where the documents accept them."""

from __future__ import annotations

import pytest

from fiafuzz.campaign.results import Judged, Result
from fiafuzz.campaign.verdict import Foreseen, decide, gives_values
from fiafuzz.model.factors import factors_of
from fiafuzz.model.scene import Scene
from strategies.cases import generate
from strategies.plan import disputed_words

WRONG = Result("ok", judged=Judged(False, "F101", text="off"))
RIGHT = Result("ok", judged=Judged(True, compared=1))


def test_every_disputed_word_is_generated_and_no_valid_call_has_one() -> None:
    words = set(disputed_words("950-v5"))
    assert ("pse", "alibi2") in words and ("pse", "bias") not in words
    disputed = [factors_of(Scene(g.case)) for g in generate("950-v5", "disputed", 200, 1)]
    assert words <= {item for found in disputed for item in found.items()}
    valid = [factors_of(Scene(g.case)) for g in generate("950-v5", "valid", 300, 1)]
    assert not words & {item for found in valid for item in found.items()}


def test_a_chosen_rule_gets_its_own_calls_alone() -> None:
    assert {g.rule for g in generate("950-v5", "disputed", 10, 1, rule="FIA-PS-029")} == {"FIA-PS-029"}


@pytest.mark.parametrize("document, judged", [("accept", True), ("reject", False), ("unspecified", False)])
def test_wrong_values_count_where_the_documents_accept(document: str, judged: bool) -> None:
    expected = Foreseen("unspecified", (0,), ("FIA-X",), document=document, source="reject")
    assert gives_values(expected) is judged
    assert decide(expected, WRONG).code == ("F101" if judged else decide(expected, RIGHT).code)
    assert not decide(expected, RIGHT).failed


def test_refusing_on_disputed_ground_is_no_finding() -> None:
    expected = Foreseen("unspecified", (0, 561002), ("FIA-X",), document="accept", source="reject")
    assert not decide(expected, Result("reject", 561002, "checker")).failed
