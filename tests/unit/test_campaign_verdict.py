"""Prediction and result to verdict: the whole table."""

from __future__ import annotations

import pytest

from fiafuzz.campaign.codes import CODES, title
from fiafuzz.campaign.results import Broken, Judged, Result
from fiafuzz.campaign.verdict import STATUSES, Foreseen, decide, error_of, foreseen, reason_not_to_run
from oracles.constraints.predict import Prediction

ACCEPT = Foreseen("accept", (0,))
REJECT = Foreseen("reject", (561002,), ("FIA-PA-001",), "checker")
SPLIT = Foreseen("unspecified", (561002,), ("FIA-QU-001",), None, "both", "reject", "accept")
LOOSE = Foreseen("unspecified", (), ("FIA-QU-002",), None, "both", "unspecified", "unspecified")
KILLS = Foreseen("crash", (), ("FIA-IF-001",), "entry", "source", "reject", "crash")
PASSED = Judged(True, compared=10)
REFUSED = Result("reject", 561002, "checker", "no")


@pytest.mark.parametrize("expected, result, status, code", [
    (ACCEPT, Result("ok", judged=PASSED), "pass", None),
    (ACCEPT, Result("ok"), "pass", None),
    (ACCEPT, Result("ok", judged=Judged(False, "F102", 9.0)), "finding", "F102"),
    (ACCEPT, Result("ok", judged=PASSED, same=False), "finding", "F105"),
    (ACCEPT, Result("ok", judged=PASSED, same=True), "pass", None),
    (ACCEPT, Result("ok", judged=PASSED, broken=Broken("layout", "x")), "finding", "F106"),
    (ACCEPT, Result("ok", judged=Judged(True, text="no reference: too large")), "untestable", None),
    (ACCEPT, Result("ok", judged=Judged(True, untestable=5)), "untestable", None),
    (ACCEPT, Result("ok", judged=Judged(True)), "pass", None),
    (ACCEPT, REFUSED, "finding", "F202"),
    (REJECT, REFUSED, "pass", None),
    (REJECT, Result("reject", None, "checker"), "pass", None),
    (REJECT, Result("reject", 161002, "dtypes"), "finding", "F203"),
    (REJECT, Result("ok"), "finding", "F201"),
    (SPLIT, Result("ok"), "info", "F401"),
    (SPLIT, REFUSED, "info", "F401"),
    (LOOSE, Result("ok"), "pass", None),
    (LOOSE, REFUSED, "pass", None),
    (KILLS, Result("crash", signal=11), "pass", None),
    (KILLS, Result("ok"), "info", "F401"),
    *[(e, Result(kind), "finding", code)
      for e in (ACCEPT, REJECT, SPLIT, LOOSE)
      for kind, code in (("crash", "F301"), ("oom", "F301"), ("error", "F301"), ("hang", "F302"), ("lost", "F303"))],
    *[(e, Result(kind), kind, None) for e in (ACCEPT, REJECT, SPLIT) for kind in ("unsupported", "untestable", "internal")],
])
def test_table(expected: Foreseen, result: Result, status: str, code: str | None) -> None:
    verdict = decide(expected, result)
    assert (verdict.status, verdict.code) == (status, code)
    assert verdict.status in STATUSES
    assert verdict.code is None or verdict.code in CODES


def test_the_rule_is_named_where_a_finding_is_about_one() -> None:
    assert decide(REJECT, Result("ok")).rule == "FIA-PA-001"
    assert decide(ACCEPT, Result("ok", judged=PASSED, broken=Broken("layout", "x"))).rule == "layout"


def test_the_side_taken_on_disputed_ground() -> None:
    assert decide(SPLIT, Result("ok")).side == "source"
    assert decide(SPLIT, REFUSED).side == "document"
    assert decide(KILLS, Result("ok")).side == "neither"


@pytest.mark.parametrize("expected, checks, dare, runs", [
    (ACCEPT, "own", False, True), (ACCEPT, "none", False, True), (REJECT, "own", False, True), (REJECT, "emulated", False, True),
    (REJECT, "none", False, False), (SPLIT, "none", False, False), (KILLS, "own", False, False), (KILLS, "own", True, True),
])
def test_what_is_not_run(expected: Foreseen, checks: str, dare: bool, runs: bool) -> None:
    assert (reason_not_to_run(expected, checks, dare=dare) is None) == runs


@pytest.mark.parametrize("result, error", [
    (REFUSED, "561002"), (Result("crash", signal=11), "signal 11"), (Result("crash"), "exit"), (Result("oom"), "oom"),
    (Result("error", message="ValueError: x"), "ValueError"), (Result("ok"), ""), (Result("hang"), "hang"),
])
def test_what_tells_failures_of_one_code_apart(result: Result, error: str) -> None:
    assert error_of(result) == error


def test_prediction_as_data() -> None:
    found = foreseen(Prediction("950-v5", "reject", frozenset({561002, 161002}), (), "checker", "both"))
    assert found == Foreseen("reject", (161002, 561002), (), "checker", "both")


def test_every_code_says_what_it_means_and_what_to_do() -> None:
    assert list(CODES) == sorted(CODES)
    for code, record in CODES.items():
        assert record.code == code and record.title and len(record.meaning) > 30 and len(record.advice) > 30
    assert title("F101") == "wrong values" and title("F999") == "F999"
    assert [c for c, r in CODES.items() if r.severity == "note"] == ["F401"]
