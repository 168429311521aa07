"""How a campaign takes what the aclnn backend can say: calls without tensors, calls that were not launched, damage."""

from __future__ import annotations

from typing import Any

import pytest

from fiafuzz.backends.protocol import BackendInfo, Outcome
from fiafuzz.campaign.codes import CODES
from fiafuzz.campaign.execute import Executor
from fiafuzz.campaign.verdict import NUMERIC_CODES, Foreseen, decide
from fiafuzz.campaign.wire import Job
from fiafuzz.model.case import Case, TensorSpec

from .backend_cases import call, spec

NEGATIVE = call().replace(key=(spec((2, 2, -1, 64), "FLOAT16"),))
ENDLESS_OUT = call().replace(attentionOut=spec((1 << 40, 1), "FLOAT16"))
LARGE = call().replace(pseShift=TensorSpec((1 << 25,), "INT8"))


class Blind:
    """Takes every call as the host's checks would: launched only when there are tensors."""

    def __init__(self, blind: bool = True, **outcome: Any) -> None:
        self.info = BackendInfo("blind", "takes everything", "own", blind=blind)
        self.seen: list[tuple[int, int]] = []
        self.outcome = outcome

    def cannot_express(self, scene: Any) -> None:
        return None

    def run(self, case: Any, scene: Any, tensors: Any, outputs: Any) -> Outcome:
        self.seen.append((len(tensors), len(outputs)))
        return Outcome("ok", launched=bool(tensors), message="the checks take it", **self.outcome)


@pytest.mark.parametrize("case", [NEGATIVE, ENDLESS_OUT, LARGE], ids=["negative", "endless-output", "large"])
def test_calls_whose_tensors_cannot_be_made_are_given_to_a_blind_backend_without_them(case: Case) -> None:
    backend = Blind()
    result = Executor(backend, "").execute(Job(1, case, judge=False))
    assert (result.kind, backend.seen) == ("ok", [(0, 0)])
    assert decide(Foreseen("reject", (161002,), ("a.rule",)), result).code == "F201"
    assert decide(Foreseen("accept"), result).status == "pass"


@pytest.mark.parametrize("case", [NEGATIVE, ENDLESS_OUT], ids=["negative", "endless-output"])
def test_nobody_else_is_given_them(case: Case) -> None:
    backend = Blind(blind=False)
    assert Executor(backend, "").execute(Job(1, case, judge=False)).kind == "unsupported"
    assert Executor(backend, "").execute(Job(1, case, judge=True)).kind == "untestable"
    assert backend.seen == []


def test_a_call_that_is_to_be_judged_but_was_not_launched_cannot_be() -> None:
    class Never(Blind):
        def run(self, case: Any, scene: Any, tensors: Any, outputs: Any) -> Outcome:
            return Outcome("ok", launched=False, message="no memory of the output")

    result = Executor(Never(), "").execute(Job(1, call(), judge=True))
    assert (result.kind, result.message) == ("untestable", "no memory of the output")


@pytest.mark.parametrize("judge", [True, False])
def test_damage_is_a_finding_of_its_own_whatever_the_values(judge: bool) -> None:
    backend = Blind(flaw=("F107", "8 bytes changed\x1b[31m"))
    result = Executor(backend, "").execute(Job(1, call(), judge=judge))
    verdict = decide(Foreseen("accept"), result)
    assert (verdict.status, verdict.code) == ("finding", "F107")
    assert verdict.text.startswith("8 bytes changed") and "\x1b" not in verdict.text
    assert "F107" in CODES and "F107" in NUMERIC_CODES
