"""Rule and pair coverage of the report against a small script of its own that reads nothing but the lines of the log."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import pytest

from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import CaseDone, LegStarted
from fiafuzz.campaign.held import Held, can_hold
from fiafuzz.campaign.results import Result
from fiafuzz.campaign.verdict import Verdict
from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import predict
from oracles.constraints.rule import Effect, never
from reports.coverage import DISAGREED, EXERCISED, NEVER, PARTLY, RuleCoverage, RuleUse, facts_of, rule_coverage
from reports.html_data import RunView, view_run
from reports.html_rules import rule_map
from reports.run_data import read_events
from strategies.cases import generate

from .quick_runs import make_quick, nothing_is_wrong, plan_in

PROFILE = "950-v5"


def refuses_sinks(case: Case) -> Optional[Result]:
    """A fault: valid calls with a sink are refused."""
    return Result("reject", code=561002, stage="checker") if case.inputs.learnableSink is not None else None


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run with every kind of case, on two backends, one of them wrong."""
    folder = tmp_path_factory.mktemp("coverage")
    with pytest.MonkeyPatch.context() as patch:
        made = make_quick(patch)(nothing_is_wrong)
        plan = plan_in(folder, backends=("right", "wrong"), max_cases=1600, phases=("sweep", "pairwise", "bulk"))
        for event in run_campaign(plan):
            if isinstance(event, LegStarted) and event.backend == "wrong":
                made[-1].wrong = refuses_sinks
    yield folder / "run"


# ---- the script: JSON lines in, counts out; it shares no code with the report ----------------------------------------


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    with open(path / "events.ndjson", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def counted(path: Path) -> tuple[dict[str, dict[str, Counter[str]]], Counter[frozenset[tuple[str, str]]], int]:
    """By backend: counter of rules by what happened to them; how many accepted cases had each pair of words; and how many
    accepted cases there were."""
    rules: dict[str, dict[str, Counter[str]]] = {}
    pairs: Counter[frozenset[tuple[str, str]]] = Counter()
    names, here, accepted = [], {}, 0
    for event in lines_of(path):
        if event["event"] == "RunStarted":
            names = event["factors"]
        elif event["event"] == "LegStarted":
            kinds = ("held", "alone", "together", "disagreed", "inside", "outside", "below", "above")
            here = rules.setdefault(event["backend"], {kind: Counter() for kind in kinds})
        elif event["event"] == "CaseDone" and event["verdict"]["status"] not in ("skipped", "unsupported"):
            broken = event.get("rules", [])
            here["held"].update(event.get("held", []))
            here["alone" if len(broken) == 1 else "together"].update(broken)
            if event.get("side") in here:
                here[event["side"]][event["rule"]] += 1
            about = event["verdict"].get("rule") or event.get("rule")
            if about and event["verdict"]["status"] == "finding" and not event["verdict"]["code"].startswith("F1"):
                here["disagreed"][about] += 1
            if event["foreseen"] == "accept":
                accepted += 1
                words = list(zip(names, event["factors"].split("|")))
                pairs.update(frozenset(pair) for pair in itertools.combinations(words, 2))
    return rules, pairs, accepted


# ---- they agree -----------------------------------------------------------------------------------------------------


def test_rules_agree_with_the_script(log: Path) -> None:
    wanted, _, _ = counted(log)
    found = rule_coverage(read_events(log))
    assert {backend for backend, _ in found.legs} == set(wanted) and len(wanted) == 2
    for (backend, _), leg in found.legs.items():
        mine = wanted[backend]
        ids = set(leg.rules) | {rule for counter in mine.values() for rule in counter}
        for rule in ids:
            use = leg.rules.get(rule) or RuleUse()
            assert bool(use.held) == bool(mine["held"][rule]), rule
            assert use.alone == mine["alone"][rule], rule
            assert use.together == mine["together"][rule], rule
            assert use.disagreed == mine["disagreed"][rule], rule
            for side in ("inside", "outside", "below", "above"):
                assert use.sides[side] == mine[side][rule], (rule, side)
    assert sum(wanted["right"]["alone"].values()) > 200 and len(wanted["right"]["held"]) > 150
    assert wanted["wrong"]["disagreed"] and not wanted["right"]["disagreed"]


def test_heat_map_agrees_with_the_script(log: Path) -> None:
    wanted, _, _ = counted(log)
    shown = rule_map(rule_coverage(read_events(log)))
    for number, leg in enumerate(shown.legs):
        held, alone = set(wanted[leg.backend]["held"]), set(wanted[leg.backend]["alone"])
        cells = [cells[number] for _, cells in shown.rows]
        rows = [row for cell in cells if cell is not None for row in cell.rows]
        assert sum(cell.part("held")[0] for cell in cells if cell) == len(held)
        assert {row.facts.rule.id for row in rows if row.use.alone} == alone
        unreached = {row.facts.rule.id for row in rows if row.state == NEVER}
        together = set(wanted[leg.backend]["together"])
        assert not unreached & (held | alone | together)
        assert {row.facts.rule.id for row in rows if row.state == DISAGREED} == set(wanted[leg.backend]["disagreed"])


def test_pairs_agree_with_the_script(log: Path) -> None:
    _, pairs, accepted = counted(log)
    curve = view_run(log, "run").curves[PROFILE]
    share = curve.coverage.share(2)
    assert curve.coverage.cases == accepted > 100
    known = set(curve.coverage.literals.names)
    assert share.covered + share.outside == sum(all(word in known for word in pair) for pair in pairs)
    rarest, missing = curve.rarest(share.feasible)
    assert len(rarest) == share.feasible and missing == share.feasible - share.covered
    for pair in rarest:
        assert pair.cases == pairs[frozenset((pair.first, pair.second))]
    assert [p.cases for p in rarest] == sorted(p.cases for p in rarest)


def test_curve_rises_to_the_end(log: Path) -> None:
    curve = view_run(log, "run").curves[PROFILE]
    assert curve.points[-1].cases == curve.coverage.cases
    assert curve.points[-1].ratios == tuple(s.ratio for s in curve.coverage.shares())
    for t in range(3):
        ratios = [p.ratios[t] for p in curve.points]
        assert ratios == sorted(ratios) and ratios[0] < ratios[-1]


# ---- what the events say ----------------------------------------------------------------------------------------------


def test_events_say_what_was_due_and_what_came(log: Path) -> None:
    events = [e for e in read_events(log) if isinstance(e, CaseDone)]
    refused = [e for e in events if e.foreseen == "reject" and e.got == "reject"]
    assert refused and all(e.codes and e.rules and e.got_code in e.codes for e in refused if e.verdict.status == "pass")
    accepted = [e for e in events if e.foreseen == "accept" and e.verdict.status == "pass"]
    assert accepted and all(e.got == "ok" and not e.rules and not e.codes for e in accepted)
    wrong = [e for e in events if e.verdict.code == "F202"]
    assert wrong and all((e.got, e.got_code, e.codes) == ("reject", 561002, ()) for e in wrong)


def test_held_is_told_once_a_leg(log: Path) -> None:
    told: Counter[tuple[str, str]] = Counter()
    backend = ""
    for event in read_events(log):
        if isinstance(event, LegStarted):
            backend = event.backend
        elif isinstance(event, CaseDone):
            told.update((backend, rule) for rule in event.held)
    assert told and set(told.values()) == {1}


def test_held_means_condition_met_and_demand_kept() -> None:
    held, cases = Held(PROFILE), [item.case for item in generate(PROFILE, "valid", 60, 3)]
    by_id = {rule.id: rule for rule in can_hold(PROFILE)}
    seen: set[str] = set()
    for case in cases:
        scene = Scene(case)
        now = held.by(scene)
        assert all(by_id[i].when(scene) and by_id[i].requires(scene) for i in now)
        expected = {i for i, rule in by_id.items() if i not in seen and rule.when(scene) and rule.requires(scene)}
        assert set(now) == expected
        seen |= expected
    assert len(seen) > 150
    assert not [r for r in can_hold(PROFILE) if r.requires is never or r.effect is Effect.ACCEPT]
    assert predict(cases[0], PROFILE).verdict == "accept"


# ---- single counts ----------------------------------------------------------------------------------------------------


def case(n: int, verdict: Verdict, **fields: Any) -> CaseDone:
    told = {"phase": "bulk", "mode": "invalid", "digest": f"{n:016x}", "foreseen": "reject", **fields}
    return CaseDone(n=n, verdict=verdict, **told)


def covered(*events: CaseDone) -> dict[str, RuleUse]:
    coverage = RuleCoverage()
    coverage.add(LegStarted(backend="cpu", title="", profile=PROFILE, checks="own", versions={}, policies={}))
    for event in events:
        coverage.add(event)
    return coverage.legs["cpu", PROFILE].rules


def test_what_was_not_run_reaches_nothing() -> None:
    rules = covered(
        case(1, Verdict("skipped"), rule="FIA-PA-007", side="absent", rules=("FIA-PA-007",)),
        case(2, Verdict("unsupported"), rule="FIA-PA-007", side="absent", rules=("FIA-PA-007",)),
    )
    assert not rules["FIA-PA-007"].reached and rules["FIA-PA-007"].not_run == 2


def test_wrong_values_are_no_disagreement_about_a_rule() -> None:
    rules = covered(case(1, Verdict("finding", "F101"), rule="FIA-PA-006", side="inside", foreseen="accept"))
    assert (rules["FIA-PA-006"].agreed, rules["FIA-PA-006"].disagreed) == (1, 0)


@pytest.mark.parametrize("code", ["F202", "F301", "F302"])
def test_refusal_and_death_at_a_limit_are_disagreements(code: str) -> None:
    rules = covered(case(1, Verdict("finding", code), rule="FIA-PA-006", side="inside", foreseen="accept"))
    assert (rules["FIA-PA-006"].agreed, rules["FIA-PA-006"].disagreed) == (0, 1)


def test_broken_alone_and_with_others() -> None:
    rules = covered(
        case(1, Verdict("pass"), rule="FIA-PA-007", side="absent", rules=("FIA-PA-007",)),
        case(2, Verdict("pass"), rule="FIA-PA-007", side="absent", rules=("FIA-PA-007", "FIA-PA-006")),
    )
    assert (rules["FIA-PA-007"].alone, rules["FIA-PA-007"].together, rules["FIA-PA-006"].together) == (1, 1, 1)
    assert rules["FIA-PA-007"].sides == Counter(absent=2)


def test_states() -> None:
    facts = next(f for f in facts_of(PROFILE) if f.holdable and f.breakable)
    assert facts.state(RuleUse()) == NEVER
    assert facts.state(RuleUse(held=3)) == PARTLY
    assert facts.state(RuleUse(alone=1)) == PARTLY
    assert facts.state(RuleUse(together=1)) == PARTLY
    assert facts.state(RuleUse(held=3, alone=1)) == EXERCISED
    assert facts.state(RuleUse(held=3, alone=1, disagreed=1)) == DISAGREED


def test_sides_of_a_limit() -> None:
    for facts in facts_of(PROFILE):
        below, at, above = (facts.count(RuleUse(sides=Counter(facts.sides)), way) for way in ("below", "at", "above"))
        assert (at is None) == ("inside" not in facts.sides)
        assert (below or 0) + (at or 0) + (above or 0) + len(facts.other_sides) == len(facts.sides), facts.rule.id


def test_runs_merge() -> None:
    one, two = RuleCoverage(), RuleCoverage()
    for coverage, backend in ((one, "cpu"), (two, "cpu"), (two, "other")):
        coverage.add(LegStarted(backend=backend, title="", profile=PROFILE, checks="own", versions={}, policies={}))
        coverage.add(case(1, Verdict("pass"), rule="FIA-PA-007", side="absent", rules=("FIA-PA-007",), held=("FIA-PA-001",)))
    one.merge(two)
    assert set(one.legs) == {("cpu", PROFILE), ("other", PROFILE)}
    assert one.legs["cpu", PROFILE].rules["FIA-PA-007"].alone == 2 and one.legs["cpu", PROFILE].cases == 2
    assert one.legs["other", PROFILE].rules["FIA-PA-001"].held == 1


def test_cases_before_any_leg_are_not_counted_for_one() -> None:
    view = RunView("run", "run")
    view.add(case(1, Verdict("pass"), rule="FIA-PA-007", side="absent", rules=("FIA-PA-007",)))
    assert view.data.cases == 1 and not view.data.coverage.legs
