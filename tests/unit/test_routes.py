"""Routes of A2 and A3: which part of the host answers a call, and how rules are kept to routes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from oracles.constraints.catalogue import all_rules, rule_by_id
from oracles.constraints.changes import put
from oracles.constraints.predict import rules_for
from oracles.constraints.routes import (
    DECODE,
    FAST,
    NEWER,
    NEWER_ROUTE,
    PREFILL,
    PREFILL_ROUTE,
    also_on,
    enforced_on,
    route,
)
from oracles.constraints.rule import DOC_A2A3_V3, SRC_A2A3, Basis, Break, Level, Rule, Stage, always
from tests.unit.plain_calls import antiquant, call, full_mla, mla, old, per_tensor
from tests.unit.rule_checks import mangled, spec

BASES = (old(call()), old(call("TND")), old(antiquant()), old(antiquant(S=4)), old(per_tensor()), old(full_mla()))


def _route(case: Case) -> str:
    return route(Scene(case))


@pytest.mark.parametrize(("case", "wanted"), [
    (call(), NEWER),
    (call("TND"), FAST),
    (call("TND", D=288), NEWER),
    (call("TND", D=192, V_D=128), NEWER),
    (call("TND", sparseMode=2, attenMask=spec("BOOL", 2048, 2048)), NEWER),
    (call("TND", innerPrecise=1), NEWER),
    (call("TND", KV_N=4, innerPrecise=1), FAST),
    (call("TND", KV_N=4, innerPrecise=1, dtype="BFLOAT16"), NEWER),
    (call("TND", quantScale2=spec("FLOAT32", 1)), NEWER),
    (call("TND", storage="BnBsH"), FAST),
    (call("TND", storage="BnNBsD"), NEWER),
    (call("TND", storage="NZ"), NEWER),
    (call("TND", storage="NZ", D=96), FAST),
    (mla("TND"), NEWER),
    (call(S=1, KV_N=4, D=256), DECODE),
    (call(S=1, KV_N=2, D=256), NEWER),
    (call(S=2, KV_N=4, D=256), NEWER),
    (antiquant(), DECODE),
    (antiquant(S=4), PREFILL),
    (per_tensor(), PREFILL),
    (full_mla("TND", dtype="INT8", S=4), DECODE),
])
def test_route_of_old_products(case: Case, wanted: str) -> None:
    assert _route(old(case)) == wanted
    assert _route(case) == NEWER  # Ascend 950 knows one route


def test_a_rule_off_its_route_does_not_speak_for_the_host() -> None:
    found = {r.id for r in rules_for("a2-v3-2026.08")}
    assert "FIA-QU-501" in found
    rule = rule_by_id()["FIA-QU-501"]
    assert rule.routes == PREFILL_ROUTE


def _rule(**more: object) -> Rule:
    fields: dict[str, object] = {"profiles": SRC_A2A3, "stage": Stage.CHECKER, "basis": Basis.SOURCE}
    fields.update(more)
    return Rule(id="FIA-XX-001", title="", group="quant", level=Level.SINGLE, cites=(), when=always, requires=always,
                breaks=(Break("value", put(innerPrecise=7)),), **fields)  # type: ignore[arg-type]


def test_faults_keep_to_the_routes() -> None:
    (kept,) = enforced_on(PREFILL_ROUTE, (_rule(),))
    change = kept.breaks[0].change
    assert kept.routes == PREFILL_ROUTE
    assert change(Scene(old(antiquant(S=4)))) == {"innerPrecise": 7}
    assert change(Scene(old(antiquant()))) is None
    assert change(Scene(antiquant())) == {"innerPrecise": 7}  # Ascend 950


@pytest.mark.parametrize("stage", [Stage.ENTRY, Stage.DTYPES, Stage.OUTPUT])
def test_what_entry_or_output_answers_holds_on_all_routes(stage: Stage) -> None:
    (kept,) = enforced_on(PREFILL_ROUTE, (_rule(stage=stage),))
    assert kept.routes == frozenset()


@pytest.mark.parametrize(("basis", "profiles", "routes", "after"), [
    (Basis.SOURCE, SRC_A2A3, frozenset(), NEWER_ROUTE | PREFILL_ROUTE),
    (Basis.SOURCE, SRC_A2A3, PREFILL_ROUTE, PREFILL_ROUTE),
    (Basis.BOTH, DOC_A2A3_V3, frozenset(), NEWER_ROUTE | PREFILL_ROUTE),
    (Basis.DOCUMENTED, DOC_A2A3_V3, frozenset(), PREFILL_ROUTE),
])
def test_rules_are_widened_to_older_routes(basis: Basis, profiles: frozenset[str], routes: frozenset[str],
                                           after: frozenset[str]) -> None:
    (wide,) = also_on((_rule(basis=basis, profiles=profiles, routes=routes),), {PREFILL: "001"})
    assert wide.routes == after and wide.profiles >= SRC_A2A3
    assert wide.basis is (Basis.BOTH if basis is Basis.DOCUMENTED else basis)
    assert also_on((_rule(),), {PREFILL: "002"})[0].routes == frozenset()


def test_every_number_in_the_tables_is_a_rule() -> None:
    from oracles.constraints import (
        actual_seq_len,
        attention_mask,
        common,
        left_padding,
        paged_attention,
        post_quant,
        pse,
        quant,
        rope,
        shared_prefix,
    )

    for room in (actual_seq_len, attention_mask, common, left_padding, paged_attention, post_quant, pse, quant, rope,
                 shared_prefix):
        numbers = {r.id[-3:] for r in room.RULES}
        for table in (room.older_routes.ALSO, getattr(room.older_routes, "ALSO_MLA", {})):
            for listed in table.values():
                assert set(listed.split()) <= numbers, room.__name__


def test_rules_of_older_routes_name_their_routes() -> None:
    for rule in all_rules():
        if rule.profiles & SRC_A2A3 and rule.basis is Basis.SOURCE and Stage.PARSER <= rule.stage < Stage.OUTPUT \
                and not rule.profiles - SRC_A2A3 - DOC_A2A3_V3 and rule.id not in ("FIA-CO-211", "FIA-CO-212"):
            assert rule.routes, rule.id


@given(case=mangled(BASES))
@settings(max_examples=300, deadline=None)
def test_route_is_total(case: Case) -> None:
    assert _route(case) in (NEWER, FAST, PREFILL, DECODE)
