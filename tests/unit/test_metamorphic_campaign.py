"""Relations in a campaign: tried in turn, told as F106 with both sides, shrunk by the relation that broke."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Optional

import pytest

from fiafuzz.backends.cpu import CpuBackend
from fiafuzz.backends.protocol import Outcome
from fiafuzz.campaign.corpus import Corpus
from fiafuzz.campaign.execute import Executor
from fiafuzz.campaign.failures import Failure, Kept
from fiafuzz.campaign.investigate import Investigator
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.relations import relations_for
from fiafuzz.campaign.schedulers.protocol import Completed
from fiafuzz.campaign.verdict import Foreseen, decide
from fiafuzz.campaign.wire import Job
from fiafuzz.model.case import Case
from fiafuzz.model.tensors import Tensors
from oracles.metamorphic import RELATIONS
from strategies.cases import generate

from .backend_cases import call

ACCEPT = Foreseen("accept", (0,))


class WrongInBsnd(CpuBackend):
    """The heads change places where the layout is BSND, which the calls below do not have: only their other side meets it."""

    def run(self, case: Case, scene: Any, tensors: Tensors, outputs: Any) -> Any:
        outcome = super().run(case, scene, tensors, outputs)
        if scene.layout_name == "BSND":
            outcome.outputs["attentionOut"][...] = outcome.outputs["attentionOut"][:, :, ::-1].copy()
        return outcome


def executor() -> Executor:
    return Executor(WrongInBsnd("950-v5"), "", profile="950-v5")


def test_a_broken_relation_is_f106_and_shows_both_sides() -> None:
    result = executor().execute(Job(1, call(), relations=True, relation="layout"))
    assert result.judged is not None and result.judged.passed and result.related == "layout"
    verdict = decide(ACCEPT, result)
    assert (verdict.code, verdict.rule) == ("F106", "layout")
    assert " here, " in verdict.text and " there, " in verdict.text and "another layout" in verdict.text


def test_a_relation_that_holds_or_does_not_apply_is_no_finding() -> None:
    for name, related in (("rerun", "rerun"), ("rope-appended", None)):
        result = executor().execute(Job(1, call(), relations=True, relation=name))
        assert (result.related, result.broken) == (related, None)
        assert decide(ACCEPT, result).status == "pass"


def test_an_other_side_that_dies_is_told() -> None:
    class Raises(CpuBackend):
        def run(self, case: Case, scene: Any, tensors: Tensors, outputs: Any) -> Any:
            if scene.layout_name == "BSND":
                raise ArithmeticError("no such stride")
            return super().run(case, scene, tensors, outputs)

    result = Executor(Raises("950-v5"), "", profile="950-v5").execute(Job(1, call(), relations=True, relation="layout"))
    assert result.broken is not None and "no such stride" in result.broken.text


@pytest.mark.parametrize(("bend", "told"), [
    (lambda out: Outcome("ok", {"attentionOut": out.reshape(-1)}), "instead of float16"),
    (lambda out: Outcome("ok", {"attentionOut": out}, flaw=("F107", "4 bytes that belong to no output changed")), "4 bytes"),
])
def test_an_other_side_of_wrong_form_is_told(bend: Any, told: str) -> None:
    class Bends(CpuBackend):
        def run(self, case: Case, scene: Any, tensors: Tensors, outputs: Any) -> Any:
            outcome = super().run(case, scene, tensors, outputs)
            return bend(outputs["attentionOut"]) if scene.layout_name == "BSND" else outcome

    result = Executor(Bends("950-v5"), "", profile="950-v5").execute(Job(1, call(), relations=True, relation="layout"))
    assert result.kind == "ok" and result.broken is not None and told in result.broken.text


def test_every_relation_gets_its_turn() -> None:
    first = {relations_for(item.case)[0].name for item in generate("950-v5", "valid", 400, 2)}
    assert first == {r.name for r in RELATIONS} - {"rerun"}
    assert [r.name for r in relations_for(call(), "layout")] == ["layout"]
    assert relations_for(call()) == relations_for(call())


class InProcess:
    """A scheduler without processes."""

    def __init__(self) -> None:
        self.executor = executor()
        self.tried: list[Optional[str]] = []

    def run(self, job: Job, **_: Any) -> Completed:
        self.tried.append(job.relation)
        return Completed(job, self.executor.execute(job))


def kept_entries(case: Case, tmp_path: Any) -> Iterator[Kept]:
    scheduler = InProcess()
    result = scheduler.executor.execute(Job(1, case, relations=True, relation="layout"))
    failure = Failure(case, ACCEPT, decide(ACCEPT, result), result)
    investigator = Investigator(
        scheduler, "wrong", "950-v5", Plan(), Corpus(str(tmp_path)), {}, lambda: False, lambda: "now"  # type: ignore[arg-type]
    )
    steps: Sequence[Any] = list(investigator.look_into(failure))
    assert set(scheduler.tried) == {"layout"}
    return (s for s in steps if isinstance(s, Kept))


def test_shrinking_keeps_to_the_relation(tmp_path: Any) -> None:
    (kept,) = kept_entries(call(attenMask=None, kv_lens=(20, 11)), tmp_path)
    assert (kept.entry.signature.code, kept.entry.signature.rule) == ("F106", "layout")
    assert len(kept.entry.differences) <= 2, kept.entry.differences  # more than one head


@pytest.mark.parametrize("relate_every, expected", [(1, True), (0, False)])
def test_the_plan_says_how_often(relate_every: int, expected: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fiafuzz.campaign.engine import run_campaign
    from fiafuzz.campaign.schedulers.local import LocalScheduler

    seen: list[bool] = []
    poll = LocalScheduler.poll

    def watched(self: LocalScheduler, timeout: float) -> Any:
        found = poll(self, timeout)
        seen.extend(done.result.related is not None for done in found)
        return found

    monkeypatch.setattr(LocalScheduler, "poll", watched)
    plan = Plan(seed=1, mode="valid", phases=("bulk",), max_cases=8, max_time=None, canary=False, relate_every=relate_every,
                corpus=str(tmp_path / "c"), out=str(tmp_path / "o"))
    list(run_campaign(plan))
    assert seen and any(seen) is expected
