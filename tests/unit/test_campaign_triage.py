"""Signatures: what makes two findings the same."""

from __future__ import annotations

import pytest

from fiafuzz.campaign.blueprint import PLAIN, put_together, with_fields
from fiafuzz.campaign.triage import Signature, describe, family, features_of, may_explain, plain_case, signature_of
from fiafuzz.campaign.verdict import FINDING, Verdict

WORDS = (("layout", "TND"), ("lse", "on"))


def test_ids_are_stable_and_tell_signatures_apart() -> None:
    one = Signature("cpu", "F101", None, WORDS)
    assert one.id == Signature("cpu", "F101", None, WORDS).id == "F101-" + one.id[5:]
    others = [Signature("npu", "F101", None, WORDS), Signature("cpu", "F102", None, WORDS), Signature("cpu", "F101", "R", WORDS),
              Signature("cpu", "F101", None, WORDS[:1]), Signature("cpu", "F101", None, WORDS, "x")]
    assert len({one.id, *(o.id for o in others)}) == 6


def test_features_are_what_the_plainest_call_does_not_have() -> None:
    assert features_of(plain_case("950", "v5")) == ()
    case = put_together(with_fields(PLAIN, softmaxLseFlag=True, Q_N=4, KV_N=2, scaleValue=1.0), "v5", "950")
    assert features_of(case) == (("group", "gqa"), ("key_heads", "many"), ("lse", "on"), ("scale", "other"))
    assert describe(case) == ("Q_N: 4 (plain: 1)", "KV_N: 2 (plain: 1)", "scaleValue: 1.0 (plain: 0.125)",
                              "softmaxLseFlag: True (plain: False)")


@pytest.mark.parametrize("code, rule, with_features", [
    ("F101", None, True), ("F202", None, True), ("F301", None, True), ("F201", "FIA-PA-001", False), ("F203", "FIA-PA-001", False),
    ("F106", "layout", False)])
def test_findings_about_a_rule_are_told_apart_by_it(code: str, rule: str | None, with_features: bool) -> None:
    case = put_together(with_fields(PLAIN, softmaxLseFlag=True), "v5", "950")
    found = signature_of("cpu", Verdict(FINDING, code, rule), "561002", case)
    assert found.rule == rule
    assert bool(found.features) == with_features


@pytest.mark.parametrize("known, code, rule, error, features, explained", [
    (Signature("b", "F101", None, (("lse", "on"),)), "F101", None, "", WORDS, True),
    (Signature("b", "F101", None, (("lse", "on"),)), "F102", None, "", WORDS, True),
    (Signature("b", "F101", None, (("lse", "on"),)), "F105", None, "", WORDS, False),
    (Signature("b", "F101", None, (("lse", "on"),)), "F101", None, "", WORDS[:1], False),
    (Signature("b", "F101", None, ()), "F101", None, "", (), True),
    (Signature("b", "F301", None, (("lse", "on"),), "signal 11"), "F301", None, "signal 6", WORDS, False),
    (Signature("b", "F301", None, (("lse", "on"),), "signal 11"), "F301", None, "signal 11", WORDS, True),
    (Signature("b", "F201", "R1"), "F201", "R1", "", WORDS, True),
    (Signature("b", "F201", "R1"), "F201", "R2", "", WORDS, False),
    (Signature("b", "F203", "R1", (), "1"), "F203", "R1", "2", WORDS, False),
    (Signature("b", "F202", None, (("lse", "on"),), "561002"), "F202", None, "561002", WORDS, True),
    (Signature("b", "F106", "layout"), "F106", "layout", "", WORDS, True),
])
def test_what_a_known_finding_may_explain(known: Signature, code: str, rule: str | None, error: str,
                                          features: tuple[tuple[str, str], ...], explained: bool) -> None:
    assert may_explain(known, code, rule, error, features) == explained


def test_faces_of_one_fault_are_a_family() -> None:
    assert family("F101") == family("F102") == family("F104") != family("F105")


def test_a_broken_relation_is_the_fault_of_a_known_wrong_value_whose_features_it_has() -> None:
    known = Signature("b", "F101", features=(("sparse_mode", "3"),))
    assert may_explain(known, "F106", "layout", "", (("batch", "2"), ("sparse_mode", "3")))
    assert not may_explain(known, "F106", "layout", "", (("batch", "2"),))
    assert not may_explain(Signature("b", "F101"), "F106", "layout", "", (("batch", "2"),))
