"""Base computation: hand-worked and rational values, every layout, groups, lengths, storage."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from fiafuzz.model.codecs import encode
from fiafuzz.model.layouts import LAYOUTS
from oracles.reference import reference

from .reference_calls import LN2, attention, call, exact_row, placed, plain_order, same, whole

SCALE = float(np.float32(0.3))


def test_two_keys_by_hand():
    """Scores 0 and ln 3 give weights 1/4 and 3/4; lse is ln 4."""
    q = np.array([[[[1.0]]]])
    k = np.array([[[[0.0], [1.0]]]])
    v = np.array([[[[8.0, -4.0], [0.0, 4.0]]]])
    case, tensors = call("BNSD", q, k, v, scale=math.log(3))
    expected = reference(case, tensors)
    assert np.allclose(expected.outputs["attentionOut"], [[[[2.0, 2.0]]]], atol=1e-6)
    assert np.allclose(expected.outputs["softmaxLse"], math.log(4), atol=1e-6)


def test_rows_are_rational_when_the_scale_is_ln_2():
    rng = np.random.default_rng(1)
    q, k, v = whole(rng, 1, 2, 3, 2), whole(rng, 1, 1, 4, 2), whole(rng, 1, 1, 4, 3)
    case, tensors = call("BNSD", q, k, v, scale=LN2)
    expected = reference(case, tensors)
    for n in range(2):
        for i in range(3):
            scores = [int(q[0, n, i] @ k[0, 0, j]) for j in range(4)]
            out, lse = exact_row(scores, [[int(x) for x in v[0, 0, j]] for j in range(4)])
            assert same(expected.outputs["attentionOut"][0, n, i], np.array([float(x) for x in out]))
            assert math.isclose(expected.outputs["softmaxLse"][0, n, i, 0], lse, abs_tol=2e-6)


def test_zero_scores_average_the_values_exactly():
    v = np.array([[[[1.0], [2.0], [6.0], [7.0]]]])
    case, tensors = call("BNSD", np.zeros((1, 1, 1, 4)), np.ones((1, 1, 4, 4)), v)
    expected = reference(case, tensors)
    assert expected.outputs["attentionOut"].item() == float(Fraction(1 + 2 + 6 + 7, 4))
    assert math.isclose(expected.outputs["softmaxLse"].item(), math.log(4), rel_tol=1e-15)


@pytest.mark.parametrize("layout", [n for n in LAYOUTS if "T" not in LAYOUTS[n].inputs])
def test_every_padded_layout(layout):
    rng = np.random.default_rng(2)
    q, k, v = whole(rng, 2, 4, 5, 3), whole(rng, 2, 2, 6, 3), whole(rng, 2, 2, 6, 2)
    q_lens, kv_lens = [5, 2], [4, 6]
    case, tensors = call(layout, q, k, v, scale=SCALE, lists={"actualSeqLengths": q_lens, "actualSeqLengthsKv": kv_lens})
    expected = reference(case, tensors)
    out, lse = attention(q, k, v, SCALE, keep=lambda b, n, i, j: i < q_lens[b] and j < kv_lens[b])
    assert same(plain_order(expected.outputs["attentionOut"], LAYOUTS[layout].output, 4), out)
    assert same(expected.outputs["softmaxLse"][..., 0], lse)
    assert all(marks.all() for marks in expected.compare.values())


@pytest.mark.parametrize("layout", [n for n in LAYOUTS if "T" in LAYOUTS[n].inputs])
def test_every_packed_layout(layout):
    rng = np.random.default_rng(3)
    q_lens, kv_lens = [2, 0, 3, 1], [4, 3, 0, 5]
    q, k, v = whole(rng, 4, 8, 3), whole(rng, 2, 12, 3), whole(rng, 2, 12, 2)
    sums = {"actualSeqLengths": [2, 2, 5, 6], "actualSeqLengthsKv": [4, 7, 7, 12]}
    case, tensors = call(layout, q, k, v, scale=SCALE, lists=sums)
    expected = reference(case, tensors)
    got = plain_order(expected.outputs["attentionOut"], LAYOUTS[layout].output, 4)
    q_at = k_at = 0
    for rows, columns in zip(q_lens, kv_lens):
        part = (slice(None), slice(q_at, q_at + rows))
        keys = (slice(None), slice(k_at, k_at + columns))
        out, lse = attention(q[part][None], k[keys][None], v[keys][None], SCALE)
        assert same(got[part], out[0])
        assert same(expected.outputs["softmaxLse"][q_at : q_at + rows, :, 0], lse[0].T)
        q_at, k_at = q_at + rows, k_at + columns
    compared = plain_order(expected.compare["attentionOut"], LAYOUTS[layout].output, 4)
    assert compared[:, :6].all() and not compared[:, 6:].any(), "tokens behind the last length are untouched memory"
    assert not expected.compare["softmaxLse"][6:].any()


@pytest.mark.parametrize("dtype", ["FLOAT16", "BFLOAT16", "FLOAT32"])
def test_input_dtypes_are_widened_exactly(dtype):
    rng = np.random.default_rng(4)
    q, k, v = (rng.normal(size=s) for s in ((1, 2, 3, 8), (1, 2, 4, 8), (1, 2, 4, 8)))
    case, tensors = call("BNSD", q, k, v, dtype=dtype, scale=SCALE)
    from fiafuzz.model.codecs import decode

    real = [np.asarray(decode(dtype, encode(dtype, a)), float) for a in (q, k, v)]
    out, lse = attention(*real, SCALE)
    expected = reference(case, tensors)
    assert same(expected.outputs["attentionOut"], out, 1e-12)
    assert same(expected.outputs["softmaxLse"][..., 0], lse, 1e-12)


def test_scale_is_taken_as_float32():
    q, k, v = np.full((1, 1, 1, 1), 64.0), np.full((1, 1, 2, 1), 64.0), np.ones((1, 1, 2, 1))
    case, tensors = call("BNSD", q, k, v, scale=0.1)
    got = reference(case, tensors).outputs["softmaxLse"].item()
    assert got == pytest.approx(4096 * float(np.float32(0.1)) + LN2, abs=1e-9)


def test_lists_of_one_length_and_longer_lists():
    rng = np.random.default_rng(5)
    q, k, v = whole(rng, 2, 1, 4, 2), whole(rng, 2, 1, 5, 2), whole(rng, 2, 1, 5, 2)
    want, _ = attention(q, k, v, SCALE, keep=lambda b, n, i, j: i < 3 and j < 4)
    for q_list, kv_list in (([3], [4]), ([3, 3, 9], [4, 4, 1, 0])):
        case, tensors = call("BNSD", q, k, v, scale=SCALE, lists={"actualSeqLengths": q_list, "actualSeqLengthsKv": kv_list})
        assert same(reference(case, tensors).outputs["attentionOut"], want)


def test_tensor_list_takes_one_tensor_per_batch_with_lengths_of_its_own():
    rng = np.random.default_rng(6)
    q = whole(rng, 2, 2, 3, 2)
    ks, vs = [whole(rng, 1, 1, n, 2) for n in (4, 2)], [whole(rng, 1, 1, n, 2) for n in (4, 2)]
    case, tensors = call("BSND", q, ks, vs, scale=SCALE)
    got = plain_order(reference(case, tensors).outputs["attentionOut"], "BSND", 2)
    for b in range(2):
        assert same(got[b : b + 1], attention(q[b : b + 1], ks[b], vs[b], SCALE)[0])


def cache_of(rows: np.ndarray, kind: str, d0: int = 16) -> np.ndarray:
    """(blocks, N, size, D) as BnNBsD, BnBsH or NZ."""
    blocks, n, size, d = rows.shape
    if kind == "BnBsH":
        return np.ascontiguousarray(rows.transpose(0, 2, 1, 3)).reshape(blocks, size, n * d)
    if kind == "NZ":
        return np.ascontiguousarray(rows.reshape(blocks, n, size, d // d0, d0).transpose(0, 1, 3, 2, 4))
    return rows


@pytest.mark.parametrize("kind", ["BnBsH", "BnNBsD", "NZ"])
@pytest.mark.parametrize("layout", ["BSH", "BNSD", "TND"])
def test_paged_caches_hold_what_the_table_says(kind, layout):
    rng = np.random.default_rng(7)
    size, d, kv_lens = 4, 32, [7, 0, 4]
    rows = rng.integers(-2, 3, (6, 2, size, d)) / 8.0
    values = rng.integers(-2, 3, (6, 2, size, d)) / 8.0
    table = np.array([[5, 1, 3], [9, 9, -1], [1, -1, -1]], np.int32)
    q = rng.integers(-2, 3, (3, 4, 2, d)) / 8.0
    given = q if layout != "TND" else q.transpose(1, 0, 2, 3).reshape(4, 6, d)
    lists = {"actualSeqLengthsKv": kv_lens}
    if layout == "TND":
        lists["actualSeqLengths"] = [2, 4, 6]
    case, tensors = call(
        layout,
        given,
        encode("FLOAT16", cache_of(rows, kind)),
        encode("FLOAT16", cache_of(values, kind)),
        stored_kv=True,
        kv_n=2,
        out_d=d,
        scale=SCALE,
        blockSize=size,
        tensors={"blockTable": table},
        lists=lists,
    )
    expected = reference(case, tensors)
    got = plain_order(expected.outputs["attentionOut"], LAYOUTS[layout].output, 4)
    if layout == "TND":
        got = got.reshape(4, 3, 2, d).transpose(1, 0, 2, 3)
    for b, length in enumerate(kv_lens):
        ids = table[b, : -(-length // size)]
        k, v = (np.concatenate([x[t] for t in ids], axis=1)[None, :, :length] if length else x[:1, :, :0] for x in (rows, values))
        assert same(got[b : b + 1], attention(q[b : b + 1], k, v, SCALE)[0])


def test_blocks_of_a_long_call_agree_with_one_piece(monkeypatch):
    from oracles.reference import attention as core

    rng = np.random.default_rng(8)
    q, k, v = whole(rng, 2, 4, 9, 2), whole(rng, 2, 2, 11, 2), whole(rng, 2, 2, 11, 2)
    mask = rng.random((2, 1, 9, 11)) < 0.4
    case, tensors = call("BNSD", q, k, v, scale=SCALE, tensors={"attenMask": mask}, sparseMode=1, innerPrecise=2)
    one = reference(case, tensors)
    monkeypatch.setattr(core, "WHOLE", 0)
    monkeypatch.setattr(core, "BLOCK", 40)
    many = reference(case, tensors)
    for name in one.outputs:
        assert same(one.outputs[name], many.outputs[name], 1e-13)
        assert (one.compare[name] == many.compare[name]).all()
    assert same(one.error_bound["attentionOut"], many.error_bound["attentionOut"], 1e-9)


def test_runs_split_by_heads_and_batches_agree(monkeypatch):
    from oracles.reference import problem

    rng = np.random.default_rng(9)
    q, k, v = whole(rng, 3, 4, 3, 2), whole(rng, 3, 2, 5, 2), whole(rng, 3, 2, 5, 2)
    case, tensors = call("BSH", q, k, v, scale=SCALE, lists={"actualSeqLengthsKv": [5, 5, 2]})
    one = reference(case, tensors).outputs
    for limit in (1, 25, 60):
        monkeypatch.setattr(problem, "RUN_ELEMENTS", limit)
        many = reference(case, tensors).outputs
        assert all(same(one[name], many[name], 1e-13) for name in one)


def test_empty_calls():
    empty = call("BNSD", np.zeros((1, 2, 0, 4)), np.zeros((1, 2, 3, 4)), np.zeros((1, 2, 3, 4)))
    assert reference(*empty).outputs["attentionOut"].shape == (1, 2, 0, 4)
    no_keys = call("BNSD", np.ones((1, 2, 3, 4)), np.zeros((1, 2, 0, 4)), np.zeros((1, 2, 0, 4)))
    expected = reference(*no_keys)
    assert not expected.outputs["attentionOut"].any()
    assert np.isposinf(expected.outputs["softmaxLse"]).all()


def test_lse_is_there_only_when_asked_for():
    case, tensors = call("BNSD", np.ones((1, 1, 1, 2)), np.ones((1, 1, 1, 2)), np.ones((1, 1, 1, 2)), lse=False)
    assert set(reference(case, tensors).outputs) == {"attentionOut"}


def test_placed_and_plain_order_are_inverse():
    array = np.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    for axes in ("BSH", "BSND", "BNSD", "NBSD"):
        assert (plain_order(placed(array, axes), axes, 3) == array).all()
