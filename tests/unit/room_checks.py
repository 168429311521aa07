"""What the tests of a rule room check alike: allowances, single rejections, proofs of faults, malformed calls."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.parameters import INT_ARRAYS, TENSOR_INPUTS
from fiafuzz.model.profiles import PROFILES
from fiafuzz.model.scene import Scene
from oracles.constraints.catalogue import all_rules
from oracles.constraints.predict import Prediction, predict
from oracles.constraints.statements import statements, untestable
from tests.quality.prove_faults import unproven

Allowances = Mapping[str, "tuple[str, Case]"]
"""Statement of kind accepted_behaviour -> a profile and a call that it must accept."""

NUMBERS = (-1, 0, 1, 2, 3, 5, 7, 9, 16, 128, 2**31, 2**32 + 3, -(2**40))
LAYOUT_NAMES = ("BSH", "BNSD", "TND", "NTD_TND", "BNSD_NBSD", "BSH_BNSD", "XX", "", None)
ATTRIBUTES = ("numHeads", "numKeyValueHeads", "sparseMode", "innerPrecise", "blockSize", "preTokens", "nextTokens",
              "keyAntiquantMode", "valueAntiquantMode", "queryQuantMode", "pseType")
TENSORS = ("key", "value", *TENSOR_INPUTS, "attentionOut", "softmaxLse")


def untested_allowances(group: str, allowances: Allowances) -> list[str]:
    """Statements of kind accepted_behaviour of a group that no call stands for, and calls for no such statement."""
    wanted = {s.id for s in statements().values() if s.kind == "accepted_behaviour" and s.group == group}
    return sorted((wanted - set(untestable()) - set(allowances)) | (set(allowances) - wanted))


def check_total(group: str, case: Case) -> None:
    """No rule of the group raises on the call."""
    scene = Scene(case)
    for rule in all_rules():
        if rule.group == group and rule.when(scene):
            rule.requires(scene)


def malformed(case: Case, seed: int) -> Case:
    """The call with one to four parameters made wrong at random: dropped, retyped, reshaped, emptied, renamed."""
    pick = random.Random(seed)
    for _ in range(pick.randint(1, 4)):
        case = _spoil(case, pick)
    return case


def _spoil(case: Case, pick: random.Random) -> Case:
    what, name = pick.randrange(8), pick.choice(TENSORS)
    if what == 0:
        return case.replace(**{pick.choice((*TENSORS, *INT_ARRAYS)): None})
    if what == 1:
        return case.replace(inputLayout=pick.choice(LAYOUT_NAMES))
    if what == 2:
        return case.replace(**{pick.choice(ATTRIBUTES): pick.choice(NUMBERS)})
    if what == 3:
        return case.replace(**{pick.choice(INT_ARRAYS): tuple(pick.choice(NUMBERS) for _ in range(pick.randrange(5)))})
    if what == 4:
        return case.replace(softmaxLseFlag=not case.attrs.softmaxLseFlag)
    if what == 5:
        shape = tuple(pick.choice((-1, 0, 1, 2, 3, 16, 64)) for _ in range(pick.randrange(6)))
        spec = TensorSpec(shape, pick.choice(tuple(DTYPES)))
        return case.replace(**{name: (spec,) * pick.randrange(3) if name in ("key", "value") else spec})
    found = case.get(name)
    if isinstance(found, tuple):
        items = (*found, *(None,) * pick.randrange(2))
        return case.replace(**{name: tuple(_spoiled(t, pick) if t is not None else t for t in items)})
    return case.replace(**{name: _spoiled(found, pick)}) if isinstance(found, TensorSpec) else case


def _spoiled(spec: TensorSpec, pick: random.Random) -> TensorSpec:
    what = pick.randrange(4)
    if what == 0:
        return msgspec.structs.replace(spec, dtype=pick.choice(tuple(DTYPES)))
    if what == 1:
        return msgspec.structs.replace(spec, strides=tuple(pick.choice((0, 1, 7)) for _ in spec.shape[1:]))
    if what == 2 and spec.shape:
        at = pick.randrange(len(spec.shape))
        return msgspec.structs.replace(spec, shape=(*spec.shape[:at], pick.choice(NUMBERS), *spec.shape[at + 1:]))
    return msgspec.structs.replace(spec, shape=spec.shape[:-1] if pick.random() < 0.5 else (*spec.shape, 1))


def profiles_of(group: str) -> list[str]:
    """Profiles for which the group has rules; of A2 and A3, which are alike, one stands for both."""
    found = (p for p in PROFILES if any(r.group == group and p in r.profiles for r in all_rules()))
    return [p for p in found if not p.startswith("a3-")]


def seen(found: Prediction) -> set[str]:
    """The broken rules that count: an answer of the entry, of the lists or of the dtypes ends the call."""
    final = found.stage in ("entry", "lists", "dtypes")
    return {r.id for r in found.rules if not final or r.stage.key == found.stage}


class RoomTests:
    """Tests of one rule room; a subclass names the group and gives the calls."""

    group: str
    allowed: Allowances
    accepted: tuple[tuple[str, Case], ...]
    """Profile and call: what stands just inside."""
    refused: tuple[tuple[str, Case, str], ...]
    """Profile, call, and the one rule that the call breaks."""

    def bases(self) -> list[Case]:
        """Calls to spoil."""
        return [case for _, case in (*self.allowed.values(), *self.accepted)]

    def test_every_allowance_is_tested(self):
        assert untested_allowances(self.group, self.allowed) == []

    def test_allowed(self):
        found = {n: predict(case, profile) for n, (profile, case) in self.allowed.items()}
        assert {n: p.rule_ids for n, p in found.items() if p.verdict != "accept"} == {}

    def test_accepted(self):
        found = [predict(case, profile) for profile, case in self.accepted]
        assert [(i, p.rule_ids) for i, p in enumerate(found) if p.verdict != "accept"] == []

    def test_refused_by_one_rule_alone(self):
        found = [(rule, predict(case, profile)) for profile, case, rule in self.refused]
        wrong = [(rule, p.verdict, p.rule_ids) for rule, p in found if p.verdict != "reject" or seen(p) != {rule}]
        assert wrong == []

    def test_rejections_carry_the_codes_of_their_stage(self):
        for profile, case, _ in self.refused:
            found = predict(case, profile)
            assert found.codes and found.codes <= PROFILES[profile].statuses[found.stage or ""]

    @pytest.mark.slow
    def test_every_fault_breaks_its_rule_alone(self):
        assert [line for profile in profiles_of(self.group) for line in unproven(self.group, profile)] == []

    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(data=st.data())
    def test_no_rule_raises_on_malformed_calls(self, data: st.DataObject):
        base = data.draw(st.sampled_from(self.bases()))
        check_total(self.group, malformed(base, data.draw(st.integers(0, 1 << 30))))
