"""Sparse modes, full masks, and which fully masked rows may be compared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fiafuzz.model.parameters import INT_MAX
from oracles.reference import reference

from .reference_calls import attention, call, same, whole

SCALE = 0.5
TRIANGLE = np.triu(np.ones((2048, 2048), np.int8), 1)


def masked_by(mode, i, j, s1, s2, pre, following):
    """The rule of spec/numerics.md 6, one element."""
    if mode == 2:
        return j > i
    if mode == 3:
        return j > i + s2 - s1
    if mode == 4:
        return j > i + s2 - s1 + following or j < i + s2 - s1 - pre
    return False


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from([2, 3, 4]),
    q_lens=st.lists(st.integers(0, 5), min_size=2, max_size=2),
    kv_lens=st.lists(st.integers(0, 6), min_size=2, max_size=2),
    pre=st.integers(-3, 6),
    following=st.integers(-3, 6),
)
def test_compressed_modes_follow_the_formulas_per_batch(mode, q_lens, kv_lens, pre, following):
    rng = np.random.default_rng(11)
    q, k, v = whole(rng, 2, 2, 5, 2), whole(rng, 2, 1, 6, 2), whole(rng, 2, 1, 6, 2)
    case, tensors = call(
        "BNSD",
        q,
        k,
        v,
        scale=SCALE,
        sparseMode=mode,
        preTokens=pre,
        nextTokens=following,
        tensors={"attenMask": TRIANGLE},
        lists={"actualSeqLengths": q_lens, "actualSeqLengthsKv": kv_lens},
    )
    expected = reference(case, tensors)

    def keep(b, n, i, j):
        inside = i < q_lens[b] and j < kv_lens[b]
        return inside and not masked_by(mode, i, j, q_lens[b], kv_lens[b], pre, following)

    out, lse = attention(q, k, v, SCALE, keep)
    assert same(expected.outputs["attentionOut"], out)
    assert same(expected.outputs["softmaxLse"][..., 0], lse)
    # Tokens and lengths prove these rows empty: the operator corrects them by itself, so they are compared.
    assert expected.compare["attentionOut"].all()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8"])
@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("rank", [3, 4])
def test_full_mask_broadcasts_over_batches_and_may_be_larger(dtype, batches, rank):
    rng = np.random.default_rng(12)
    q, k, v = whole(rng, 2, 2, 3, 2), whole(rng, 2, 2, 4, 2), whole(rng, 2, 2, 4, 2)
    mask = (rng.random((batches, 5, 7)) < 0.4).astype(dtype)
    mask[:, :, 0] = 0
    case, tensors = call("BSND", q, k, v, scale=SCALE, sparseMode=1, tensors={"attenMask": mask if rank == 3 else mask[:, None]})
    out, lse = attention(q, k, v, SCALE, keep=lambda b, n, i, j: not mask[b % batches, i, j])
    expected = reference(case, tensors)
    assert same(expected.outputs["attentionOut"].transpose(0, 2, 1, 3), out)
    assert same(expected.outputs["softmaxLse"][..., 0], lse)


def test_mask_of_two_axes_is_rows_by_columns_and_for_one_row_on_a2_batches_by_columns():
    rng = np.random.default_rng(13)
    k, v = whole(rng, 2, 1, 4, 2), whole(rng, 2, 1, 4, 2)
    mask = np.array([[0, 1, 0, 1], [0, 0, 1, 0]], bool)
    q = whole(rng, 2, 1, 2, 2)
    case, tensors = call("BNSD", q, k, v, scale=SCALE, tensors={"attenMask": mask})
    want, _ = attention(q, k, v, SCALE, keep=lambda b, n, i, j: not mask[i, j])
    assert same(reference(case, tensors).outputs["attentionOut"], want)
    one = q[:, :, :1]
    case, tensors = call("BNSD", one, k, v, scale=SCALE, tensors={"attenMask": mask}, product="a2", api="v3")
    want, _ = attention(one, k, v, SCALE, keep=lambda b, n, i, j: not mask[b, j])
    assert same(reference(case, tensors).outputs["attentionOut"], want)


def test_mask_of_a_packed_call_counts_inside_each_sequence():
    rng = np.random.default_rng(14)
    q, k, v = whole(rng, 1, 5, 2), whole(rng, 1, 7, 2), whole(rng, 1, 7, 2)
    mask = rng.random((2, 1, 3, 4)) < 0.5
    mask[..., 0] = False
    case, tensors = call(
        "TND",
        q,
        k,
        v,
        scale=SCALE,
        sparseMode=1,
        tensors={"attenMask": mask},
        lists={"actualSeqLengths": [3, 5], "actualSeqLengthsKv": [3, 7]},
    )
    got = reference(case, tensors).outputs["attentionOut"].transpose(1, 0, 2)
    first, _ = attention(q[None, :, :3], k[None, :, :3], v[None, :, :3], SCALE, keep=lambda b, n, i, j: not mask[0, 0, i, j])
    second, _ = attention(q[None, :, 3:], k[None, :, 3:], v[None, :, 3:], SCALE, keep=lambda b, n, i, j: not mask[1, 0, i, j])
    assert same(got, np.concatenate([first[0], second[0]], axis=1))


def test_mode_0_with_a_mask_closed_outside_the_tokens():
    rng = np.random.default_rng(15)
    q, k, v = whole(rng, 1, 1, 5, 2), whole(rng, 1, 1, 6, 2), whole(rng, 1, 1, 6, 2)
    i, j = np.arange(5)[:, None], np.arange(6)
    outside = (j > i + 2) | (j < i - 1)
    mask = outside | (rng.random((5, 6)) < 0.3)
    case, tensors = call("BNSD", q, k, v, scale=SCALE, preTokens=1, nextTokens=2, innerPrecise=2, tensors={"attenMask": mask[None]})
    expected = reference(case, tensors)
    out, lse = attention(q, k, v, SCALE, keep=lambda b, n, i, j: not mask[i, j])
    assert same(expected.outputs["attentionOut"], out) and same(expected.outputs["softmaxLse"][..., 0], lse)
    assert not expected.reasons


def test_mode_0_rows_open_outside_the_tokens_are_not_compared():
    rng = np.random.default_rng(16)
    q, k, v = whole(rng, 1, 2, 4, 2), whole(rng, 1, 2, 4, 2), whole(rng, 1, 2, 4, 2)
    mask = np.tril(np.ones((4, 4), bool), -2) | np.triu(np.ones((4, 4), bool), 2)
    mask[3, 0] = False  # outside preTokens 1, yet open
    case, tensors = call("BNSD", q, k, v, scale=SCALE, preTokens=1, nextTokens=1, tensors={"attenMask": mask[None]})
    expected = reference(case, tensors)
    compared = expected.compare["attentionOut"]
    assert compared[:, :, :3].all() and not compared[:, :, 3].any()
    assert not expected.compare["softmaxLse"][:, :, 3].any()
    assert expected.reasons == {"mode 0 mask open outside the tokens": 2 * 2 + 2}


def test_without_a_mask_the_tokens_do_nothing():
    rng = np.random.default_rng(17)
    q, k, v = whole(rng, 1, 1, 4, 2), whole(rng, 1, 1, 4, 2), whole(rng, 1, 1, 4, 2)
    open_, tensors = call("BNSD", q, k, v, scale=SCALE)
    closed, _ = call("BNSD", q, k, v, scale=SCALE, preTokens=0, nextTokens=0)
    assert (reference(open_, tensors).outputs["attentionOut"] == reference(closed, tensors).outputs["attentionOut"]).all()


def test_user_masked_rows_are_compared_only_with_row_correction():
    q, k, v = np.ones((1, 1, 3, 2)), np.ones((1, 1, 2, 2)), np.ones((1, 1, 2, 2))
    mask = np.array([[[0, 0], [1, 1], [0, 1]]], bool)
    for inner, compared in ((0, False), (1, False), (2, True), (3, True)):
        case, tensors = call("BNSD", q, k, v, tensors={"attenMask": mask}, innerPrecise=inner, dtype="BFLOAT16")
        expected = reference(case, tensors)
        assert not expected.outputs["attentionOut"][0, 0, 1].any()
        assert np.isposinf(expected.outputs["softmaxLse"][0, 0, 1])
        assert expected.compare["attentionOut"][0, 0, 1].all() == compared
        assert expected.compare["softmaxLse"].all()


def test_old_single_token_path_of_a2_ignores_mode_and_tokens():
    rng = np.random.default_rng(18)
    q, k, v = whole(rng, 2, 1, 1, 2), whole(rng, 2, 1, 5, 2), whole(rng, 2, 1, 5, 2)
    mask = rng.random((2, 1, 1, 5)) < 0.4
    mask[..., 0] = False
    given = {"tensors": {"attenMask": mask}, "scale": SCALE, "sparseMode": 1, "preTokens": 0, "nextTokens": 0}
    want, _ = attention(q, k, v, SCALE, keep=lambda b, n, i, j: not mask[b, 0, 0, j])
    case, tensors = call("BNSD", q, k, v, product="a2", api="v3", lists={"actualSeqLengths": [0, 1]}, **given)
    assert same(reference(case, tensors).outputs["attentionOut"], want), "lengths of the query are ignored there too"
    case, tensors = call("BNSD", q, k, v, lists={"actualSeqLengths": [0, 1]}, **given)
    want[0] = 0
    assert same(reference(case, tensors).outputs["attentionOut"], want), "Ascend 950 has no such path"


@pytest.mark.parametrize("value", [2, 255])
def test_mask_values_beyond_one_define_nothing(value):
    mask = np.zeros((1, 1, 2), np.uint8)
    mask[0, 0, 1] = value
    case, tensors = call("BNSD", np.ones((1, 1, 1, 2)), np.ones((1, 1, 2, 2)), np.ones((1, 1, 2, 2)), tensors={"attenMask": mask})
    expected = reference(case, tensors)
    assert not any(marks.any() for marks in expected.compare.values())
    assert expected.reasons == {"mask values outside 0 and 1": 3}


def test_compressed_mask_with_other_content_defines_nothing_and_is_not_read():
    rng = np.random.default_rng(19)
    q, k, v = whole(rng, 1, 1, 3, 2), whole(rng, 1, 1, 3, 2), whole(rng, 1, 1, 3, 2)
    for content, compared in ((TRIANGLE, True), (np.zeros_like(TRIANGLE), False)):
        case, tensors = call("BNSD", q, k, v, scale=SCALE, sparseMode=2, tensors={"attenMask": content})
        expected = reference(case, tensors)
        assert expected.compare["attentionOut"].all() == compared
        assert same(expected.outputs["attentionOut"], attention(q, k, v, SCALE, keep=lambda b, n, i, j: j <= i)[0])


def test_a_read_only_triangle_is_looked_at_once_and_writable_ones_always():
    q = np.ones((1, 1, 2, 2))
    frozen = TRIANGLE.copy()
    frozen.flags.writeable = False
    case, tensors = call("BNSD", q, q, q, sparseMode=3, tensors={"attenMask": frozen})
    assert reference(case, tensors).compare["attentionOut"].all()
    assert reference(case, tensors).compare["attentionOut"].all()
    tensors["attenMask"] = TRIANGLE.copy()
    assert reference(case, tensors).compare["attentionOut"].all()
    tensors["attenMask"][0, 1] = 0
    assert not reference(case, tensors).compare["attentionOut"].any()


def test_open_tokens_of_a_band_are_no_limit():
    rng = np.random.default_rng(20)
    q, k, v = whole(rng, 1, 1, 3, 2), whole(rng, 1, 1, 5, 2), whole(rng, 1, 1, 5, 2)
    case, tensors = call("BNSD", q, k, v, scale=SCALE, sparseMode=4, preTokens=INT_MAX, nextTokens=INT_MAX, tensors={"attenMask": TRIANGLE})
    assert same(reference(case, tensors).outputs["attentionOut"], attention(q, k, v, SCALE)[0])
