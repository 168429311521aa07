"""What the reference refuses, error bounds, untestable rows, and malformed cases of every kind."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fiafuzz.model.case import TensorSpec
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from oracles.reference import ReferenceError, reference

from .reference_calls import call, whole


def plain(seed=120, dtype="FLOAT16", scale=0.5, **more):
    rng = np.random.default_rng(seed)
    return call("BNSD", whole(rng, 2, 2, 3, 4), whole(rng, 2, 1, 5, 4), whole(rng, 2, 1, 5, 4), dtype=dtype, scale=scale, **more)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"lists": {"actualSeqLengths": [4]}}, "actualSeqLengths are not all in 0 .. 3"),
        ({"lists": {"actualSeqLengthsKv": [-1]}}, "actualSeqLengthsKv are not all in 0 .. 5"),
        ({"lists": {"actualSeqLengthsKv": [1, 6]}}, "actualSeqLengthsKv are not all in 0 .. 5"),
        ({"sparseMode": 3}, "sparseMode 3 without attenMask"),
        ({"sparseMode": 9, "tensors": {"attenMask": np.zeros((2, 3, 5), bool)}}, "sparseMode 9 is not computed"),
        ({"tensors": {"attenMask": np.zeros((2, 2, 5), bool)}}, "smaller than 3 rows"),
        ({"tensors": {"attenMask": np.zeros((3, 3, 5), bool)}}, "does not fit"),
        ({"tensors": {"pseShift": np.zeros((1, 2, 2, 5))}}, "smaller than the scores"),
        ({"tensors": {"pseShift": np.zeros((1, 3, 3, 5))}}, "does not fit"),
        ({"tensors": {"learnableSink": np.zeros(3)}}, "learnableSink"),
        ({"pseType": 2}, "pseType 2 without pseShift"),
        ({"numKeyValueHeads": 2}, "heads"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(change, words):
    if "numKeyValueHeads" in change:
        case, tensors = plain()
        case = case.replace(**change)
    else:
        case, tensors = plain(**change)
    with pytest.raises(ReferenceError, match=words) as error:
        reference(case, tensors)
    assert "\n" not in str(error.value)


def test_sizes_over_the_limit_are_refused_before_any_work():
    case, tensors = plain()
    big = TensorSpec((4, 64, 2**22, 128), "FLOAT16")
    huge = case.replace(query=big, key=(big,), value=(big,), attentionOut=big, numHeads=64, numKeyValueHeads=64)
    with pytest.raises(ReferenceError, match="over the limits"):
        reference(huge, tensors)


def test_unknown_form_is_an_error_of_the_caller():
    with pytest.raises(ValueError, match="unknown form"):
        reference(*plain(), form="exact")


def test_missing_tensors_are_refused():
    case, tensors = plain()
    for name in ("query", "key", "value"):
        with pytest.raises(ReferenceError):
            reference(case, {k: v for k, v in tensors.items() if k != name})


PARTS = [
    "query",
    "key",
    "value",
    "attenMask",
    "pseShift",
    "blockTable",
    "learnableSink",
    "keyAntiquantScale",
    "queryRope",
    "keyRope",
    "attentionOut",
    "quantScale2",
]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_malformed_cases_give_numbers_or_a_reference_error(data):
    case, _ = plain()
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from([*PARTS, "attrs", "lengths"]))
        shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=5)))
        spec = TensorSpec(shape, data.draw(st.sampled_from(["FLOAT16", "INT8", "INT32", "BOOL", "FLOAT8_E4M3FN", "INT64", "FLOAT8_E8M0"])))
        if name == "attrs":
            field = data.draw(
                st.sampled_from(
                    ["numHeads", "numKeyValueHeads", "sparseMode", "pseType", "blockSize", "keyAntiquantMode", "queryQuantMode"]
                )
            )
            case = case.replace(**{field: data.draw(st.integers(-2, 9))})
        elif name == "lengths":
            field = data.draw(st.sampled_from(["actualSeqLengths", "actualSeqLengthsKv", "actualSharedPrefixLen"]))
            case = case.replace(**{field: tuple(data.draw(st.lists(st.integers(-2, 7), max_size=4)))})
        elif name in ("key", "value"):
            case = case.replace(**{name: data.draw(st.sampled_from([(spec,), (spec, spec), (), None]))})
        else:
            case = case.replace(**{name: data.draw(st.sampled_from([spec, None]))})
    layout = data.draw(st.sampled_from(["BNSD", "BSH", "TND", "NTD_TND", "BSND_NBSD", None, "what"]))
    case = case.replace(inputLayout=layout)
    try:
        tensors = materialize(case)
    except ValueError:
        return
    try:
        expected = reference(case, tensors, scene=Scene(case))
    except ReferenceError as error:
        assert "\n" not in str(error)
        return
    for name, numbers in expected.outputs.items():
        assert numbers.shape == expected.compare[name].shape


def rounded_kernel(q, k, v, scale, dtype):
    """A kernel in the working precision: float32 scores summed in blocks, exponentials rounded, one division, result rounded."""
    from fiafuzz.model.codecs import decode, encode

    single = [x.astype(np.float32) for x in (q, k, v)]
    s = np.zeros((*q.shape[:3], k.shape[2]), np.float32)
    for d in range(0, q.shape[3], 16):
        s += np.matmul(single[0][..., d : d + 16], single[1][..., d : d + 16].swapaxes(-1, -2))
    s *= np.float32(scale)
    m = s.max(-1, keepdims=True)
    p = np.exp(s - m)
    total = p.sum(-1, keepdims=True)
    out = np.matmul(decode(dtype, encode(dtype, p)).astype(np.float32), single[2]) / total
    return np.asarray(decode(dtype, encode(dtype, out)), float), (m + np.log(total))[..., 0]


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(["FLOAT16", "BFLOAT16"]),
    seed=st.integers(0, 10**6),
    d=st.sampled_from([1, 16, 80]),
    columns=st.integers(1, 70),
    size=st.sampled_from([1e-6, 0.01, 1.0, 8.0]),
    spread=st.sampled_from([1e-5, 1.0, 300.0]),
    scale=st.sampled_from([0.05, 0.5, 1.0]),
)
def test_the_bound_holds_for_a_kernel_in_the_working_precision(dtype, seed, d, columns, size, spread, scale):
    rng = np.random.default_rng(seed)
    q, k, v = size * rng.normal(size=(1, 2, 3, d)), size * rng.normal(size=(1, 2, columns, d)), spread * rng.normal(size=(1, 2, columns, 4))
    from fiafuzz.model.codecs import decode, encode

    q, k, v = (np.asarray(decode(dtype, encode(dtype, x)), float) for x in (q, k, v))
    case, tensors = call("BNSD", q, k, v, dtype=dtype, scale=scale)
    expected = reference(case, tensors)
    out, lse = rounded_kernel(q, k, v, scale, dtype)
    compared = expected.compare["attentionOut"]
    assert (np.abs(out - expected.outputs["attentionOut"]) <= expected.error_bound["attentionOut"])[compared].all()
    compared = expected.compare["softmaxLse"][..., 0]
    off = np.abs(lse - expected.outputs["softmaxLse"][..., 0])
    assert (off <= expected.error_bound["softmaxLse"][..., 0])[compared].all()
    assert (expected.limits.worst_lse >= expected.error_bound["softmaxLse"]).all()


def test_bounds_are_tight_where_nothing_is_hard():
    """Unit values, even weights: rounding of p and of the result leave about 1.5 units of FLOAT16."""
    rng = np.random.default_rng(121)
    q, k, v = rng.integers(-8, 9, (1, 1, 4, 16)) / 8, rng.integers(-8, 9, (1, 1, 32, 16)) / 8, rng.choice([-1.0, 1.0], (1, 1, 32, 4))
    case, tensors = call("BNSD", q, k, v, scale=0.25)
    bound = reference(case, tensors).error_bound
    assert 2.0**-11 <= bound["attentionOut"].max() < 2.0**-10
    assert bound["softmaxLse"].max() < 2e-5


def test_ill_conditioned_rows_are_untestable_and_counted():
    rng = np.random.default_rng(122)
    q, k, v = rng.normal(size=(1, 1, 2, 64)), 200 * rng.normal(size=(1, 1, 9, 64)), rng.normal(size=(1, 1, 9, 4))
    q[0, 0, 1] *= 300
    case, tensors = call("BNSD", q, k, v, scale=1.0, dtype="BFLOAT16")
    expected = reference(case, tensors)
    assert expected.compare["attentionOut"][0, 0, 0].all() and not expected.compare["attentionOut"][0, 0, 1].any()
    assert expected.untestable == 4 + 1 == expected.reasons["untestable"]


def test_exact_sums_are_not_ill_conditioned_however_large():
    """Every product and partial sum is a whole number below 2**24."""
    case, tensors = call("BNSD", np.full((1, 1, 1, 64), 32.0), np.full((1, 1, 40, 64), -32.0), np.ones((1, 1, 40, 4)))
    expected = reference(case, tensors)
    assert expected.untestable == 0
    assert expected.outputs["softmaxLse"].item() == pytest.approx(-65536 + math.log(40), abs=1e-9)


def test_scores_beyond_float16_are_not_promised_in_performance_mode():
    for inner, compared in ((0, True), (1, False)):
        case, tensors = call(
            "BNSD", np.full((1, 1, 1, 64), 64.0), np.full((1, 1, 4, 64), 64.0), np.ones((1, 1, 4, 4)), scale=2.0**-12, innerPrecise=inner
        )
        assert reference(case, tensors).compare["attentionOut"].all() == compared


def test_performance_mode_of_a2_is_granted_more():
    bounds = []
    for product, inner in (("950", 1), ("a2", 0), ("a2", 1)):
        case, tensors = plain(product=product, api="v3" if product == "a2" else "v5", innerPrecise=inner)
        bounds.append(reference(case, tensors).error_bound["attentionOut"].max())
    assert bounds[0] == bounds[1] < bounds[2] / 2


def test_the_benchmark_rounds_as_the_operator_does():
    case, tensors = plain(dtype="BFLOAT16")
    expected = reference(case, tensors)
    t = expected.benchmark["attentionOut"]
    from fiafuzz.model.codecs import decode, encode

    assert (np.asarray(decode("BFLOAT16", encode("BFLOAT16", t)), float) == t).all()
    assert 0 < np.abs(t - expected.outputs["attentionOut"]).max() <= expected.error_bound["attentionOut"].max()
    assert (reference(case, tensors, form="stagewise").outputs["attentionOut"] == t).all()
