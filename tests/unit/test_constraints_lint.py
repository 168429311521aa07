"""The catalogue has no gap, and the lint finds every kind of gap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oracles.constraints import lint as module
from oracles.constraints.catalogue import rule_by_id
from oracles.constraints.lint import has_limit, lint
from oracles.constraints.rule import Effect
from oracles.constraints.statements import statements, untestable


def test_no_gap():
    assert lint() == []


def gaps(monkeypatch, change) -> list[str]:
    """What the lint says about a catalogue in which one rule is changed."""
    rules = rule_by_id()
    old = rules["FIA-CO-071"]
    new = change(old)
    monkeypatch.setattr(module, "all_rules", lambda: tuple(new if r is old else r for r in rules.values()))
    return [line for line in lint() if line.startswith(new.id) or line in _EXPECTED]


_EXPECTED = {"v5.common.consistency.batch_limit: no rule cites this demand"}


@pytest.mark.parametrize(("change", "words"), [
    ({"cites": ()}, "cites nothing"),
    ({"cites": ("v5.common.consistency.no_such_thing",)}, "does not exist"),
    ({"breaks": ()}, "has no fault"),
    ({"boundaries": ()}, "no boundary case"),
    ({"profiles": frozenset()}, "holds for no profile"),
    ({"profiles": frozenset({"950-v9"})}, "unknown profile 950-v9"),
    ({"group": "heads"}, "unknown group heads"),
    ({"id": "CO-71"}, "not of the form"),
    ({"title": " "}, "no title"),
])
def test_a_gap_is_found(monkeypatch, change, words):
    assert any(words in line for line in gaps(monkeypatch, lambda r: replace(r, **change)))


def test_an_uncited_demand_is_found(monkeypatch):
    assert set(gaps(monkeypatch, lambda r: replace(r, cites=("v3.common.single.qs_gt1_b_max",)))) >= _EXPECTED


def test_an_unknown_side_is_found(monkeypatch):
    found = gaps(monkeypatch, lambda r: replace(r, breaks=tuple(replace(b, side="left") for b in r.breaks)))
    assert "FIA-CO-071: unknown side left" in found


def test_a_rule_that_only_kills_the_host_needs_no_cite(monkeypatch):
    assert not any("cites nothing" in g for g in gaps(monkeypatch, lambda r: replace(r, cites=(), effect=Effect.HANG)))


def test_two_rules_of_one_id_are_found(monkeypatch):
    def twice():
        raise ValueError("two rules are called FIA-CO-001")

    monkeypatch.setattr(module, "all_rules", twice)
    assert lint() == ["two rules are called FIA-CO-001"]


def test_only_ordered_limits_need_boundaries():
    rules = rule_by_id()
    assert has_limit(rules["FIA-CO-071"]) and not has_limit(rules["FIA-IF-021"])


def test_the_index_of_statements():
    found = statements()["v5.attention_mask.consistency.mode234_shape"]
    assert (found.kind, found.products, found.lines) == ("rule", ("950", "A3", "A2"), (195, 72))
    assert statements()["v5.sparse_semantics.single.token_clamp"].group == "attention_mask"
    assert statements()["v3.common.cross.tnd512_layout"].document == "v3"
    assert untestable()["v5.interface.existence.executor_not_null"]
    assert set(untestable()) <= set(statements())
