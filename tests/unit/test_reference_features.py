"""Bias, sink, left padding, shared prefix, rope and both kinds of MLA."""

from __future__ import annotations

import math

import numpy as np
import pytest

from oracles.reference import reference

from .reference_calls import LN2, attention, call, exact_row, same, whole

SCALE = 0.5
TRIANGLE = np.triu(np.ones((2048, 2048), np.int8), 1)


def trio(seed, q=(1, 2, 3, 2), k=(1, 1, 4, 2), d=2):
    rng = np.random.default_rng(seed)
    return whole(rng, *q), whole(rng, *k), whole(rng, *k[:3], d)


@pytest.mark.parametrize("batches", [1, 2])
def test_bias_is_added_after_the_scale(batches):
    q, k, v = trio(21, (2, 2, 3, 2), (2, 1, 4, 2))
    bias = whole(np.random.default_rng(1), batches, 2, 5, 6)
    case, tensors = call("BNSD", q, k, v, scale=SCALE, tensors={"pseShift": bias})
    out, lse = attention(q, k, v, SCALE, add=lambda b, n, i, j: bias[b % batches, n, i, j])
    expected = reference(case, tensors)
    assert same(expected.outputs["attentionOut"], out) and same(expected.outputs["softmaxLse"][..., 0], lse)


def test_bias_of_one_row_serves_all_rows():
    q, k, v = trio(22)
    bias = whole(np.random.default_rng(2), 1, 2, 1, 4)
    case, tensors = call("BNSD", q, k, v, scale=SCALE, tensors={"pseShift": bias})
    assert same(reference(case, tensors).outputs["attentionOut"], attention(q, k, v, SCALE, add=lambda b, n, i, j: bias[0, n, 0, j])[0])


def test_bias_before_mask_and_rational_weights():
    q, k, v = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 3, 1)), np.array([[[[1.0], [2.0], [4.0]]]])
    bias = np.array([[[[1.0, 0.0, 7.0]]]]) * float(np.float16(LN2))
    case, tensors = call("BNSD", q, k, v, tensors={"pseShift": bias, "attenMask": np.array([[[0, 0, 1]]], bool)})
    out, lse = exact_row([1, 0], [[1], [2]])
    expected = reference(case, tensors)
    assert expected.outputs["attentionOut"].item() == pytest.approx(float(out[0]), abs=2e-4)
    assert expected.outputs["softmaxLse"].item() == pytest.approx(lse, abs=2e-4)


@pytest.mark.parametrize("kind", [2, 3])
@pytest.mark.parametrize("starts", [None, (3, 1), (-2, 5)])
def test_slopes_are_penalties_on_the_shifted_distance(kind, starts):
    q, k, v = trio(23, (1, 4, 4, 2), (1, 2, 4, 2))
    slopes = np.array([0.5, 0.25, 1.0, 0.0])
    lists = {} if starts is None else {"qStartIdx": [starts[0]], "kvStartIdx": [starts[1], 99]}
    case, tensors = call(
        "BNSD", q, k, v, scale=SCALE, pseType=kind, tensors={"pseShift": slopes}, dtypes={"pseShift": "FLOAT32"}, lists=lists
    )
    q0, k0 = starts or (0, 0)

    def add(b, n, i, j):
        distance = abs(j + k0 - i - q0)
        return -slopes[n] * (math.sqrt(distance) if kind == 3 else distance)

    out, lse = attention(q, k, v, SCALE, add=add)
    expected = reference(case, tensors)
    assert same(expected.outputs["attentionOut"], out) and same(expected.outputs["softmaxLse"][..., 0], lse)


def test_minus_infinity_in_a_bias_hides_columns_and_whole_rows_are_left_out():
    q, k, v = trio(24, (1, 1, 2, 2), (1, 1, 3, 2))
    bias = np.array([[[[0.0, -np.inf, 0.0], [-np.inf] * 3]]])
    case, tensors = call("BNSD", q, k, v, scale=SCALE, tensors={"pseShift": bias})
    expected = reference(case, tensors)
    out, _ = attention(q, k, v, SCALE, keep=lambda b, n, i, j: np.isfinite(bias[0, 0, i, j]))
    assert same(expected.outputs["attentionOut"], out)
    assert expected.compare["attentionOut"][0, 0, 0].all() and not expected.compare["attentionOut"][0, 0, 1].any()
    assert not expected.compare["softmaxLse"][0, 0, 1].any()


def test_sink_joins_the_sum_only():
    q, k, v = trio(25, (1, 4, 3, 2), (1, 2, 4, 2))
    sink = np.array([0.5, -3.0, 2.0, 0.0])
    case, tensors = call("BNSD", q, k, v, scale=SCALE, tensors={"learnableSink": sink})
    out, lse = attention(q, k, v, SCALE, sink=sink)
    expected = reference(case, tensors)
    assert same(expected.outputs["attentionOut"], out) and same(expected.outputs["softmaxLse"][..., 0], lse)


def test_sink_of_a_hand_worked_row():
    """Two zero scores and a sink of ln 2: weights 1/4 each, the sink takes the other half and gives nothing."""
    case, tensors = call(
        "BNSD", np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 2, 1)), np.array([[[[4.0], [8.0]]]]), tensors={"learnableSink": np.array([LN2])}
    )
    expected = reference(case, tensors)
    assert expected.outputs["attentionOut"].item() == pytest.approx(3.0, abs=1e-3)
    assert expected.outputs["softmaxLse"].item() == pytest.approx(math.log(4), abs=1e-3)


def test_sink_does_not_rescue_masked_rows_and_may_lie_far_above():
    q, k, v = np.ones((1, 1, 2, 1)), np.ones((1, 1, 2, 1)), np.ones((1, 1, 2, 1))
    mask = np.array([[[0, 0], [1, 1]]], bool)
    case, tensors = call("BNSD", q, k, v, tensors={"learnableSink": np.array([500.0]), "attenMask": mask}, innerPrecise=2)
    expected = reference(case, tensors)
    assert not expected.outputs["attentionOut"][0, 0, 1].any() and np.isposinf(expected.outputs["softmaxLse"][0, 0, 1])
    assert expected.outputs["softmaxLse"][0, 0, 0].item() == pytest.approx(500.0)
    assert expected.outputs["attentionOut"][0, 0, 0].item() == pytest.approx(0.0, abs=1e-200)
    allowed = expected.alternatives["softmaxLse"]
    assert any(a.where[0, 0, 0] and a.low == np.inf for a in allowed), "the sum overflows where the maximum leaves the sink out"


def test_left_padding_of_query_and_key():
    q, k, v = trio(26, (2, 2, 6, 2), (2, 1, 7, 2))
    q_lens, kv_lens, q_pad, k_pad = [3, 4], [5, 2], 2, 1
    mask = np.random.default_rng(3).random((2, 6, 7)) < 0.3
    case, tensors = call(
        "BNSD",
        q,
        k,
        v,
        scale=SCALE,
        sparseMode=1,
        innerPrecise=2,
        lists={"actualSeqLengths": q_lens, "actualSeqLengthsKv": kv_lens},
        tensors={"queryPaddingSize": np.array([q_pad]), "kvPaddingSize": np.array([k_pad]), "attenMask": mask},
    )

    def keep(b, n, i, j):
        rows = 6 - q_lens[b] - q_pad <= i < 6 - q_pad
        columns = 7 - kv_lens[b] - k_pad <= j < 7 - k_pad
        return rows and columns and not mask[b, i, j]

    out, lse = attention(q, k, v, SCALE, keep)
    expected = reference(case, tensors)
    assert same(expected.outputs["attentionOut"], out) and same(expected.outputs["softmaxLse"][..., 0], lse)


@pytest.mark.parametrize("mode", [2, 3, 4])
def test_left_padding_with_a_diagonal_counts_from_the_first_valid_row(mode):
    q, k, v = trio(27, (1, 1, 5, 2), (1, 1, 6, 2))
    case, tensors = call(
        "BNSD",
        q,
        k,
        v,
        scale=SCALE,
        sparseMode=mode,
        preTokens=1,
        nextTokens=0,
        lists={"actualSeqLengths": [3], "actualSeqLengthsKv": [4]},
        tensors={"queryPaddingSize": np.array([1]), "kvPaddingSize": np.array([1]), "attenMask": TRIANGLE},
    )

    def keep(b, n, i, j):
        i, j = i - 1, j - 1
        shift = 0 if mode == 2 else 1
        return 0 <= i < 3 and 0 <= j < 4 and j <= i + shift and (mode != 4 or j >= i + shift - 1)

    assert same(reference(case, tensors).outputs["attentionOut"], attention(q, k, v, SCALE, keep)[0])


def test_negative_padding_counts_as_zero():
    q, k, v = trio(28, (1, 1, 4, 2), (1, 1, 4, 2))
    want = [
        reference(
            *call(
                "BNSD",
                q,
                k,
                v,
                scale=SCALE,
                lists={"actualSeqLengths": [2], "actualSeqLengthsKv": [3]},
                tensors={"queryPaddingSize": np.array([p]), "kvPaddingSize": np.array([p])},
            )
        ).outputs["attentionOut"]
        for p in (0, -5)
    ]
    assert (want[0] == want[1]).all() and not want[0][0, 0, :2].any() and want[0][0, 0, 2:].any()


def test_padding_without_room_empties_its_batch_and_either_answer_of_the_others_is_allowed():
    q, k, v = trio(29, (2, 1, 4, 2), (2, 1, 4, 2))
    case, tensors = call(
        "BNSD",
        q,
        k,
        v,
        scale=SCALE,
        lists={"actualSeqLengths": [4, 3], "actualSeqLengthsKv": [4, 4]},
        tensors={"queryPaddingSize": np.array([1])},
    )
    expected = reference(case, tensors)
    assert not expected.outputs["attentionOut"].any() and not expected.compare["softmaxLse"].any()
    (allowed,) = expected.alternatives["attentionOut"]
    assert not allowed.where[0].any() and allowed.where[1, 0, :3].all()
    want, _ = attention(q, k, v, SCALE, keep=lambda b, n, i, j: i < 3)
    assert same(allowed.values[1], want[1])


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD", "BNSD_BSND"])
@pytest.mark.parametrize("given", [None, 2])
def test_shared_prefix_stands_before_the_keys_of_every_batch(layout, given):
    from fiafuzz.model.layouts import LAYOUTS

    from .reference_calls import placed, plain_order

    q, k, v = trio(30, (2, 2, 3, 2), (2, 1, 4, 2))
    pk, pv = whole(np.random.default_rng(4), 1, 1, 3, 2), whole(np.random.default_rng(5), 1, 1, 3, 2)
    length = 3 if given is None else given
    kv_lens = [4, 2]
    axes = LAYOUTS[layout]
    case, tensors = call(
        layout,
        q,
        k,
        v,
        scale=SCALE,
        sparseMode=3,
        tensors={"keySharedPrefix": placed(pk, axes.inputs), "valueSharedPrefix": placed(pv, axes.inputs), "attenMask": TRIANGLE},
        lists={"actualSeqLengthsKv": kv_lens, **({} if given is None else {"actualSharedPrefixLen": [given]})},
    )
    keys = np.concatenate([np.repeat(pk[:, :, :length], 2, 0), k], axis=2)
    values = np.concatenate([np.repeat(pv[:, :, :length], 2, 0), v], axis=2)

    def keep(b, n, i, j):
        total = length + kv_lens[b]
        return j < total and j <= i + total - 3

    out, lse = attention(q, keys, values, SCALE, keep)
    expected = reference(case, tensors)
    assert same(plain_order(expected.outputs["attentionOut"], axes.output, 2), out)
    assert same(expected.outputs["softmaxLse"][..., 0], lse)


def test_prefix_alone_may_be_computed_or_empty():
    q, k, v = trio(31, (1, 1, 2, 2), (1, 1, 3, 2))
    pk, pv = whole(np.random.default_rng(6), 1, 1, 2, 2), whole(np.random.default_rng(7), 1, 1, 2, 2)
    case, tensors = call(
        "BNSD", q, k, v, scale=SCALE, tensors={"keySharedPrefix": pk, "valueSharedPrefix": pv}, lists={"actualSeqLengthsKv": [0]}
    )
    expected = reference(case, tensors)
    assert same(expected.outputs["attentionOut"], attention(q, pk, pv, SCALE)[0])
    assert all(a.where.all() for name in expected.outputs for a in expected.alternatives[name])
    assert not expected.alternatives["attentionOut"][0].values.any()


def rope_call(layout, mla_d, heads, seed):
    rng = np.random.default_rng(seed)
    kv = 1 if mla_d == 512 else heads
    q, k, v = (rng.integers(-2, 3, s) / 8.0 for s in ((1, heads, 3, mla_d), (1, kv, 4, mla_d), (1, kv, 4, mla_d)))
    qr, kr = rng.integers(-2, 3, (1, heads, 3, 64)) / 8.0, rng.integers(-2, 3, (1, kv, 4, 64)) / 8.0
    return q, k, v, qr, kr


def test_rope_halves_join_the_dot_product_and_are_scaled_once():
    q, k, v, qr, kr = rope_call("BNSD", 128, 2, 32)
    case, tensors = call("BNSD", q, k, v, scale=SCALE, tensors={"queryRope": qr, "keyRope": kr})
    out, lse = attention(np.concatenate([q, qr], -1), np.concatenate([k, kr], -1), v, SCALE)
    expected = reference(case, tensors)
    assert same(expected.outputs["attentionOut"], out) and same(expected.outputs["softmaxLse"][..., 0], lse)


def test_decode_mla_takes_its_value_from_the_key():
    q, k, v, qr, kr = rope_call("BNSD", 512, 4, 33)
    case, tensors = call("BNSD", q, k, v, scale=SCALE, tensors={"queryRope": qr, "keyRope": kr})
    out, _ = attention(np.concatenate([q, qr], -1), np.concatenate([k, kr], -1), k, SCALE)
    assert same(reference(case, tensors).outputs["attentionOut"], out)
    tensors["value"] = [np.full_like(tensors["value"][0], np.nan)]
    assert same(reference(case, tensors).outputs["attentionOut"], out), "the value tensor is never read"


def test_nan_and_infinity_among_the_inputs_define_nothing():
    q, k, v = trio(34)
    for name in ("query", "key", "value"):
        for special in (np.nan, np.inf):
            case, tensors = call("BNSD", q, k, v, scale=SCALE)
            target = tensors[name] if name == "query" else tensors[name][0]
            target[0, 0, 0, 0] = special
            expected = reference(case, tensors)
            assert not any(marks.any() for marks in expected.compare.values())
            assert list(expected.reasons) == ["inf or NaN among the inputs"]


def test_special_values_behind_the_lengths_define_nothing_but_finite_garbage_is_harmless():
    q, k, v = trio(35)
    case, tensors = call("BNSD", q, k, v, scale=SCALE, lists={"actualSeqLengthsKv": [3]})
    want = reference(case, tensors).outputs["attentionOut"].copy()
    tensors["value"][0][0, 0, 3] = 60000
    expected = reference(case, tensors)
    assert (expected.outputs["attentionOut"] == want).all() and expected.compare["attentionOut"].all()
    tensors["value"][0][0, 0, 3] = np.nan
    assert not reference(case, tensors).compare["attentionOut"].any()
