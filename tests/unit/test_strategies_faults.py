"""Faults and edges on a few made-up rules: which are applied where, what is recorded, what has no base."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import find, given, settings
from hypothesis.errors import NoSuchExample, Unsatisfiable

import strategies.cases
import strategies.faults
from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.factors import factors_of
from fiafuzz.model.scene import Scene
from oracles.constraints.changes import drop, put, widen
from oracles.constraints.rule import (
    ALL_950,
    DOC_950,
    Basis,
    Boundary,
    Break,
    Effect,
    Level,
    Rule,
    Stage,
    always,
    never,
)
from strategies.cases import boundary_cases, disputed_cases, generate, invalid_cases, sweep
from strategies.faults import Generated, WithoutBase, difference, recipes


def rule(name: str, *, breaks: tuple[Break, ...] = (), boundaries: tuple[Boundary, ...] = (), basis: Basis = Basis.BOTH,
         effect: Effect = Effect.REJECT, profiles: frozenset[str] = ALL_950, group: str = "common") -> Rule:
    return Rule(name, f"toy {name}", group, Level.SINGLE, profiles, ("toy",), always, never, Stage.CHECKER, basis, effect,
                breaks=breaks, boundaries=boundaries)


def _heads_up(s: Scene) -> dict[str, object]:
    return {"numHeads": s.attrs.numHeads + 1}


TOYS = (
    rule("TOY-1", breaks=(Break("above", _heads_up), Break("absent", drop("blockTable"), {"storage": "NZ"}, ("TOY-2",)))),
    rule("TOY-2", breaks=(Break("axis", widen("key", 0), {"storage": "contiguous"}),), group="paged_attention"),
    rule("TOY-3", boundaries=(Boundary(put(innerPrecise=3), put(innerPrecise=4)),)),
    rule("TOY-4", breaks=(Break("value", lambda s: None),)),
    rule("TOY-5", breaks=(Break("value", put(sparseMode=9), {"scenario": "full_mxfp8"}),), profiles=ALL_950),
    rule("TOY-6", breaks=(Break("value", put(scaleValue=2.0)),), basis=Basis.DOCUMENTED),
    rule("TOY-7", breaks=(Break("value", put(scaleValue=3.0)),), basis=Basis.SOURCE),
    rule("TOY-8", breaks=(Break("value", put(scaleValue=4.0)),), effect=Effect.UNSPECIFIED),
    rule("TOY-9", breaks=(Break("value", put(scaleValue=5.0)),), effect=Effect.CRASH),
    rule("TOY-10", breaks=(Break("value", put(scaleValue=6.0)),), effect=Effect.ACCEPT),
    rule("TOY-11", breaks=(Break("value", put(scaleValue=7.0)),), profiles=frozenset({"a2-v3"})),
    rule("TOY-12", breaks=(Break("value", put(antiquantMode=7), {"empty": "query"}),), profiles=DOC_950),
)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(strategies.faults, "all_rules", lambda: TOYS)
    monkeypatch.setattr(strategies.cases, "rule_by_id", lambda: {r.id: r for r in TOYS})
    recipes.cache_clear()
    yield
    recipes.cache_clear()


def ids(profile: str, mode: str, rule_id: str | None = None) -> list[str]:
    return [r.rule.id for r in recipes(profile, mode, rule_id)]


def test_which_rules_a_mode_breaks() -> None:
    assert ids("950-v5", "invalid") == ["TOY-1", "TOY-1", "TOY-2", "TOY-4", "TOY-5", "TOY-12"]
    assert ids("950-v5", "disputed") == ["TOY-6", "TOY-7", "TOY-8"]
    assert ids("950-v5", "boundary") == ["TOY-3", "TOY-3"]
    assert ids("950-v5-2026.08", "invalid") == ["TOY-1", "TOY-1", "TOY-2", "TOY-4", "TOY-5", "TOY-7"]
    assert ids("950-v5-2026.08", "disputed") == ["TOY-8"]
    assert ids("a2-v3", "invalid") == ["TOY-11"]


def test_a_named_rule_is_broken_whatever_its_effect() -> None:
    assert ids("950-v5", "invalid", "TOY-9") == ["TOY-9"]
    assert ids("950-v5", "invalid", "TOY-6") == ["TOY-6"]
    assert ids("950-v5-2026.08", "invalid", "TOY-6") == []
    with pytest.raises(ValueError, match="unknown rule 'TOY-99'"):
        list(generate("950-v5", "invalid", 1, 0, rule="TOY-99"))


def test_a_fault_is_one_change_of_a_valid_base() -> None:
    lost: list[WithoutBase] = []
    found = list(generate("950-v5", "invalid", 60, 1, without_base=lost.append))
    assert len(found) == 60 and {g.rule for g in found} == {"TOY-1", "TOY-2", "TOY-5", "TOY-12"}
    for g in found:
        assert g.base is not None and g.fault and g.mode == "invalid"
        words = factors_of(Scene(g.base))
        if g.rule == "TOY-12":
            assert words["empty"] == "query"
        else:
            assert words["empty"] == "none", "an empty call skips most checks"
        if (g.rule, g.side) == ("TOY-1", "above"):
            heads = g.base.attrs.numHeads
            assert g.fault == [["set", "numHeads", heads, heads + 1]] and g.entails == ()
        if (g.rule, g.side) == ("TOY-1", "absent"):
            assert words["storage"] == "NZ" and g.entails == ("TOY-2",)
            assert [c[:2] for c in g.fault] == [["drop", "blockTable"]] and g.case.inputs.blockTable is None
        if g.rule == "TOY-2":
            assert [c[:2] for c in g.fault] == [["reshape", "key"]]
        if g.rule == "TOY-5":
            assert words["scenario"] == "full_mxfp8", "reached as disputed ground"
    assert [(w.rule, w.side) for w in lost] == [("TOY-4", "value")]
    assert "offers a place" in lost[0].reason


def test_rules_take_turns_and_run_out() -> None:
    lost: list[WithoutBase] = []
    assert list(generate("950-v5", "invalid", 5, 1, rule="TOY-4", without_base=lost.append)) == []
    assert len(lost) == 1
    sides = [g.side for g in generate("950-v5", "invalid", 10, 2, rule="TOY-1")]
    assert sides.count("above") == sides.count("absent") == 5
    infeasible: list[WithoutBase] = []
    assert not list(generate("a2-v3", "invalid", 3, 1, rule="TOY-11", ignore=["TOY-11"], without_base=infeasible.append))


def test_edges_have_two_sides() -> None:
    found = list(generate("950-v5", "boundary", 40, 3))
    assert {(g.edge, g.case.attrs.innerPrecise) for g in found} == {("inside", 3), ("outside", 4)}
    for g in found:
        assert g.base is not None and g.side == g.edge
        before = g.base.attrs.innerPrecise
        assert g.fault == ([] if before == g.case.attrs.innerPrecise else
                           [["set", "innerPrecise", before, g.case.attrs.innerPrecise]])


def test_select_and_ignore() -> None:
    assert {g.rule for g in generate("950-v5", "invalid", 6, 1, select=["paged_attention"])} == {"TOY-2"}
    assert {g.rule for g in generate("950-v5", "invalid", 8, 1, select=["TOY-1", "TOY-2"], ignore=["common"])} == {"TOY-2"}


def test_all_modes_in_turn() -> None:
    modes = [g.mode for g in generate("950-v5", "all", 60, 5)]
    assert modes.count("valid") == 30 and modes.count("invalid") == 20 and modes.count("boundary") == 10
    assert all(g.base is None and g.rule is None for g in generate("950-v5", "valid", 5, 1))
    with pytest.raises(ValueError, match="unknown mode 'odd'"):
        generate("950-v5", "odd", 1, 1)


def test_same_arguments_same_calls() -> None:
    for mode in ("valid", "invalid", "boundary", "disputed", "all"):
        first, second = (list(generate("950-v5", mode, 20, 9)) for _ in range(2))
        assert first == second
        assert first != list(generate("950-v5", mode, 20, 10))


def test_a_sweep_visits_every_recipe_once() -> None:
    found = list(sweep("950-v5", 1, disputed=True))
    assert [(f.rule, f.side) for f in found] == [
        (r.rule.id, r.side) for mode in ("invalid", "boundary", "disputed") for r in recipes("950-v5", mode)]
    assert [type(f).__name__ for f in found if f.rule == "TOY-4"] == ["WithoutBase"]
    assert not {f.rule for f in sweep("950-v5", 1)} & {"TOY-6", "TOY-7", "TOY-8"}


def test_differences_are_told_as_operations() -> None:
    base = next(iter(generate("950-v5", "valid", 1, 4, needs={
        "storage": "tensor_list", "scenario": "gqa", "q_lengths": "per_batch", "mask": "none", "sink": "off"}))).case
    assert base.inputs.query is not None and base.inputs.key is not None and base.inputs.actualSeqLengths is not None
    query, key = base.inputs.query, base.inputs.key
    shorter = key[:-1]
    bent = (msgspec.structs.replace(key[0], dtype="INT8"), *key[1:])

    def told(**changes: object) -> list[list[object]]:
        return difference(base, base.replace(**changes))

    assert told() == []
    assert told(query=None) == [["drop", "query", [list(query.shape), query.dtype], None]]
    assert told(learnableSink=TensorSpec((3,), "FLOAT16")) == [["add", "learnableSink", None, [[3], "FLOAT16"]]]
    assert told(query=msgspec.structs.replace(query, format="NCHW")) == [["format", "query", "ND", "NCHW"]]
    strides = tuple(range(len(query.shape)))
    assert told(query=msgspec.structs.replace(query, strides=strides)) == [["strides", "query", None, list(strides)]]
    assert told(key=shorter) == [["list", "key", len(key), len(key) - 1]]
    assert told(key=bent) == [["cast", "key[0]", key[0].dtype, "INT8"]]
    lens = base.inputs.actualSeqLengths
    assert told(actualSeqLengths=(*lens, 1)) == [["lengths", "actualSeqLengths", list(lens), [*lens, 1]]]
    assert told(actualSeqLengths=None) == [["drop", "actualSeqLengths", list(lens), None]]
    assert told(sparseMode=7, numHeads=0) == [["set", "numHeads", base.attrs.numHeads, 0], ["set", "sparseMode", 0, 7]]
    assert told(attentionOut=None)[0][:2] == ["drop", "attentionOut"]
    assert told(seed=base.seed + 1) == [["set", "seed", base.seed, base.seed + 1]]


def test_hypothesis_shrinks_to_the_first_rule_on_a_plain_base() -> None:
    found = find(invalid_cases("950-v5"), lambda _: True)
    assert (found.rule, found.side) == ("TOY-1", "above")
    assert found.base is not None
    words = factors_of(Scene(found.base))
    assert (words["scenario"], words["layout"], words["batch"], words["mask"]) == ("gqa", "BNSD", "1", "none")


def test_hypothesis_draws_both_sides_of_an_edge() -> None:
    met = set()

    @settings(max_examples=40, deadline=None, database=None, derandomize=True)
    @given(boundary_cases("950-v5-2026.08"))
    def body(found: Generated) -> None:
        assert found.mode == "boundary"
        met.add((found.edge, found.case.attrs.innerPrecise))

    body()
    assert met == {("inside", 3), ("outside", 4)}


def test_hypothesis_for_one_rule_and_for_disputed_ground() -> None:
    assert find(disputed_cases("950-v5"), lambda g: g.rule == "TOY-8").case.attrs.scaleValue == 4.0
    with pytest.raises((NoSuchExample, Unsatisfiable)):
        find(invalid_cases("950-v5", "TOY-4"), lambda _: True)


def test_changes_see_a_valid_scene_only() -> None:
    seen: list[Case] = []

    def look(s: Scene) -> None:
        seen.append(s.case)

    toy = rule("TOY-20", breaks=(Break("value", look, {"layout": "TND"}),))
    recipe = strategies.faults.Recipe(toy, "value", toy.breaks[0].change, toy.breaks[0].needs, ())
    result = strategies.faults.apply(recipe, strategies.cases.SeededSource(1), "950-v5", "invalid", bases=7)
    assert isinstance(result, WithoutBase) and len(seen) == 7
    assert {c.attrs.inputLayout for c in seen} == {"TND"}
