"""Taking calls apart and putting them together."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fiafuzz.campaign.blueprint import PLAIN, Literal, differences, put_together, with_fields
from fiafuzz.campaign.bundles import BUNDLES
from fiafuzz.campaign.dissect import take_apart
from fiafuzz.campaign.forms import axis_size, cropped, shape_of
from fiafuzz.campaign.plainness import weight_of
from fiafuzz.campaign.shrink import DESCRIBES_NOTHING
from fiafuzz.campaign.steps import steps
from fiafuzz.campaign.triage import describe, plain_case
from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.parameters import ATTRIBUTES, BY_NAME, INPUTS, OUTPUTS, Kind
from fiafuzz.model.profiles import PROFILES
from oracles.constraints.predict import predict
from strategies.cases import generate
from tests.unit.plain_calls import call

NAMES = [p.name for p in (*INPUTS, *ATTRIBUTES, *OUTPUTS)]
GENERATED = [g.case for profile in ("950-v5", "a2-v3") for mode in ("valid", "invalid") for g in generate(profile, mode, 60, 5)]


def whole(case: Case) -> Case:
    return put_together(take_apart(case), case.api, case.product)


@pytest.mark.parametrize("profile", [p for p in PROFILES if p != "950-v3"])
def test_the_plainest_call_is_valid_everywhere(profile: str) -> None:
    p = PROFILES[profile]
    found = predict(plain_case(p.product, p.api), profile)
    assert found.verdict == "accept", found.rule_ids


def test_the_plainest_call_differs_in_nothing() -> None:
    assert differences(take_apart(plain_case("950", "v5"))) == ()
    assert describe(plain_case("950", "v5")) == ()


def test_generated_calls_come_back_as_they_were() -> None:
    for case in GENERATED:
        assert whole(case) == case


@pytest.mark.parametrize("layout", ["BSH", "BNSD", "TND", "NTD", "NTD_TND", "BNSD_BSND"])
@pytest.mark.parametrize("storage", ["contiguous", "BnBsH", "BnNBsD", "NZ", "tensor_list"])
def test_layouts_and_storages_need_no_overrides(layout: str, storage: str) -> None:
    if storage == "tensor_list" and "T" in layout:
        pytest.skip("packed layouts have no tensor lists")
    case = call(layout, storage=storage, lse=True)
    fields = take_apart(case)
    assert put_together(fields, case.api, case.product) == case
    assert not [n for n in fields if n.startswith("=")], fields


TENSORS = [None, TensorSpec((), "FLOAT16"), TensorSpec((0, -3), "INT8"), TensorSpec((2,) * 6, "INT32", values=(1,)),
           TensorSpec((1 << 40, 3), "FLOAT16", strides=(1,)), TensorSpec((4, 5, 6), "BFLOAT16", format="NCHW")]
VALUES: dict[Kind, list[Any]] = {
    Kind.TENSOR: TENSORS, Kind.OUTPUT: TENSORS, Kind.TENSOR_LIST: [None, (), tuple(TENSORS), (TENSORS[1],)],
    Kind.INT_ARRAY: [None, (), (0,), (5, 3, -2), (1 << 40,) * 3],
}
ATTRS: list[Any] = [0, -1, 3, 1 << 40, -(1 << 62)]
LAYOUTS: list[Any] = [None, "", "TND", "BSH", "XYZ"]


def values_of(name: str) -> list[Any]:
    if name == "inputLayout":
        return LAYOUTS
    return [True, False] if name == "softmaxLseFlag" else VALUES.get(BY_NAME[name].kind, ATTRS)


CHANGES = st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(values_of(name))))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(GENERATED), st.lists(CHANGES, max_size=4))
def test_malformed_calls_come_back_too(case: Case, changes: list[tuple[str, Any]]) -> None:
    broken = case.replace(**dict(changes))
    assert whole(broken) == broken
    describe(broken)
    weight_of(broken)
    for _, found in steps(take_apart(broken)):
        with contextlib.suppress(*DESCRIBES_NOTHING):
            put_together(found, "v5", "950")


def test_every_reduction_gives_fields_that_describe_a_call() -> None:
    for case in GENERATED[::3]:
        fields = take_apart(case)
        made = [(name, reduce(fields)) for name, reduce in BUNDLES]
        for name, found in [*made, *steps(fields)]:
            if found is not None:
                assert found != fields, name
                put_together(found, case.api, case.product)


def test_an_override_is_a_difference_and_told() -> None:
    case = call().replace(numHeads=3)
    fields = take_apart(case)
    assert "=query" in fields or "=numHeads" in fields or "Q_N" in differences(fields)
    lost = plain_case("950", "v5").replace(query=None)
    assert differences(take_apart(lost)) == ("=query",)
    assert describe(lost) == ("query as given: none",)


def test_sizes_make_all_shapes() -> None:
    case = put_together(with_fields(PLAIN, B=2, Q_N=4, KV_N=2, Q_S=3, KV_S=5, D=128, layout="TND", softmaxLseFlag=True), "v5", "950")
    assert case.inputs.query == TensorSpec((6, 4, 128), "FLOAT16")
    assert case.inputs.key == (TensorSpec((10, 2, 128), "FLOAT16"),)
    assert case.inputs.actualSeqLengths == (3, 6) and case.inputs.actualSeqLengthsKv == (5, 10)
    assert case.outputs.softmaxLse == TensorSpec((6, 4, 1), "FLOAT32")
    assert predict(case, "950-v5").verdict == "accept"


@pytest.mark.parametrize("axis, size", [(3, 3), ("D", 64), ("K*D", 128), ("D/32", 2), ("D^48", 2), ("Bs^16", 2)])
def test_axis_expressions(axis: Any, size: int) -> None:
    sizes = {"D": 64, "K": 2, "Bs": 17}
    assert axis_size(axis, sizes) == size
    assert shape_of((axis,), sizes) == (size,)


def test_literal_values_are_cut_by_axis() -> None:
    values = tuple(range(12))
    assert cropped(values, (3, 4), (2, 3)) == (0, 1, 2, 4, 5, 6)
    assert cropped(values, (3, 4), (3, 4)) == values
    assert cropped(values, (3, 4), (4, 4)) is None
    assert cropped(values, (3, 4), (2,)) is None
    assert cropped(None, (3,), (2,)) is None


def test_literals_compare_by_value() -> None:
    assert Literal((1, 2)) == Literal((1, 2)) != Literal(None)
