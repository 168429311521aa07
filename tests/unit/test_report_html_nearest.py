"""The valid call that a failing one is compared with, and what the comparison says."""

from __future__ import annotations

import pytest

from fiafuzz.campaign.plain_starts import plain_faults
from fiafuzz.campaign.triage import plain_case
from fiafuzz.model.case import Case, TensorSpec
from oracles.constraints.predict import predict
from reports.nearest import neighbour
from strategies.cases import generate

PROFILE = "950-v5"


def changed(**values: object) -> Case:
    """The plainest call with parameters changed."""
    return plain_case("950", "v5").replace(**values)


def test_one_wrong_attribute_is_the_only_change() -> None:
    near = neighbour(changed(innerPrecise=7), PROFILE)
    assert predict(changed(innerPrecise=7), PROFILE).verdict == "reject"
    assert [(c.parameter, c.what, c.valid, c.failing) for c in near.changes] == [("innerPrecise", "value", "0", "7")]
    assert predict(near.case, PROFILE).verdict == "accept"


def test_features_that_are_right_stay() -> None:
    """Of a call with a sink and a wrong innerPrecise, only the latter is set back."""
    plain = plain_case("950", "v5")
    heads = plain.attrs.numHeads
    good = plain.replace(learnableSink=TensorSpec((heads,), plain.inputs.query.dtype if plain.inputs.query else "FLOAT16"))
    assert predict(good, PROFILE).verdict == "accept"
    near = neighbour(good.replace(innerPrecise=7), PROFILE)
    assert near.case == good and not near.plainest
    assert [c.parameter for c in near.changes] == ["innerPrecise"]


def test_wrong_dtype_says_both() -> None:
    plain = plain_case("950", "v5")
    assert plain.inputs.query is not None
    case = plain.replace(query=TensorSpec(plain.inputs.query.shape, "INT32"))
    (change,) = [c for c in neighbour(case, PROFILE).changes if c.parameter == "query"]
    assert (change.what, change.failing) == ("dtype", "INT32")


def test_missing_tensor_is_absent() -> None:
    case = changed(query=None)
    (change,) = [c for c in neighbour(case, PROFILE).changes if c.parameter == "query"]
    assert change.failing == "absent" and "FLOAT16" in change.valid


def test_valid_call_is_compared_with_the_plainest() -> None:
    case = next(iter(generate(PROFILE, "valid", 1, 3))).case
    near = neighbour(case, PROFILE)
    assert near.plainest and near.case == plain_case(case.product, case.api)
    assert neighbour(near.case, PROFILE).changes == ()


@pytest.mark.parametrize("profile", ["950-v5", "a2-v3"])
def test_generated_faults_have_a_valid_neighbour(profile: str) -> None:
    """The change back is never more than the whole way to the plainest call, and what is found is valid."""
    for item in generate(profile, "invalid", 12, 4):
        near = neighbour(item.case, profile)
        assert predict(near.case, profile).verdict == "accept"
        assert near.changes


def test_plain_faults_are_told_in_few_changes() -> None:
    counts = [len(neighbour(case, PROFILE).changes) for case in plain_faults(PROFILE, "FIA-IP-001")]
    assert counts and min(counts) == 1


def test_unknown_profile() -> None:
    with pytest.raises(ValueError):
        neighbour(changed(innerPrecise=7), "no-such")
