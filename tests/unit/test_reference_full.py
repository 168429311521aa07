"""Full quantisation: ideal forms against dequantised attention, stage-wise forms step by step on numbers small enough to follow."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fiafuzz.model.codecs import decode, encode, uint64_scale
from oracles.reference import reference

from .reference_calls import attention, call, same, whole

ONE = np.ones(1)
E4M3, E8M0 = "FLOAT8_E4M3FN", "FLOAT8_E8M0"
TRIANGLE = np.triu(np.ones((2048, 2048), np.int8), 1)


def eighths(seed, *shape):
    """Numbers that E4M3 holds exactly."""
    return np.random.default_rng(seed).integers(-15, 16, shape) / 8.0


# ---- per tensor ------------------------------------------------------------------------------------


def int8_call(q, k, v, *, deq1, p_scale, deq2, dtypes=None, **more):
    given = {"deqScale1": deq1, "quantScale1": p_scale, "deqScale2": deq2}
    kinds = dict.fromkeys(given, "FLOAT32") | (dtypes or {})
    return call(
        "BNSD", q, k, v, dtype="INT8", out=more.pop("out", "FLOAT16"), tensors=given | more.pop("tensors", {}), dtypes=kinds, **more
    )


def test_int8_ideal_is_dequantised_attention():
    rng = np.random.default_rng(80)
    q, k, v = (whole(rng, *s, low=-90, high=90) for s in ((2, 4, 3, 16), (2, 2, 5, 16), (2, 2, 5, 16)))
    case, tensors = int8_call(q, k, v, deq1=np.array([2.0**-10]), p_scale=np.array([127.0]), deq2=np.array([2.0**-8 / 127]), scale=0.5)
    expected = reference(case, tensors, form="ideal")
    deq2 = float(np.float32(2.0**-8 / 127)) * 127
    out, lse = attention(q * 2.0**-10, k, v * deq2, 0.5)
    assert same(expected.outputs["attentionOut"], out) and same(expected.outputs["softmaxLse"][..., 0], lse)
    assert expected.form == "ideal" and reference(case, tensors).form == "stagewise"


def test_int8_stage_wise_by_hand():
    """Two keys, scores 0 and -1: p is 1 and exp(-1), 127 p rounds to 127 and 47, and the row sum to FLOAT16."""
    q, k, v = np.array([[[[1.0]]]]), np.array([[[[0.0], [-4.0]]]]), np.array([[[[100.0], [-50.0]]]])
    case, tensors = int8_call(q, k, v, deq1=np.array([0.5]), p_scale=np.array([127.0]), deq2=np.array([1.0 / 127]), scale=0.5)
    expected = reference(case, tensors)
    p = np.exp(np.float32(-1.0))
    code = round(float(np.float16(np.float16(p) * np.float16(127))))
    assert code == 47
    u = np.float32(127 * 100 - 50 * code) * np.float32(1.0 / 127)
    total = np.float32(1) + p
    want = np.float16(u / np.float32(np.float16(total)))
    assert expected.outputs["attentionOut"].item() == float(want)
    assert expected.outputs["softmaxLse"].item() == float(np.log(total))


def test_int8_scores_pass_through_float16_and_saturate():
    """A raw score of 127 * 127 * 64 dequantised by 1 is beyond FLOAT16: it is clamped, and both keys tie."""
    q, k = np.full((1, 1, 1, 64), 127.0), np.full((1, 1, 2, 64), 127.0)
    k[0, 0, 1] = 100.0
    v = np.array([1.0, 3.0]).reshape(1, 1, 2, 1) * np.ones((1, 1, 2, 64))
    case, tensors = int8_call(q, k, v, deq1=ONE, p_scale=np.array([127.0]), deq2=np.array([1.0 / 127]), scale=2.0**-10)
    assert reference(case, tensors).outputs["attentionOut"][0, 0, 0, 0] == 2.0
    assert reference(case, tensors, form="ideal").outputs["attentionOut"][0, 0, 0, 0] == pytest.approx(1.0)


def test_int8_later_tiles_are_kept_in_float16():
    """1024 keys of score 0 and value 1, then one of the same kind: the second tile alone is 127 * 3 / 127 = 3 exactly."""
    q, k = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1025, 1))
    v = np.ones((1, 1, 1025, 1))
    v[0, 0, 1024] = 3.0
    case, tensors = int8_call(q, k, v, deq1=ONE, p_scale=np.array([127.0]), deq2=np.array([1.0 / 127]))
    u = np.float32(127 * 1024) * np.float32(1.0 / 127) + np.float32(np.float16(np.float32(381) * np.float32(1.0 / 127)))
    assert reference(case, tensors).outputs["attentionOut"].item() == float(np.float16(u / np.float32(np.float16(1025))))


def test_uint64_scales_are_float32_patterns_without_13_bits():
    rng = np.random.default_rng(81)
    q, k, v = (whole(rng, *s, low=-9, high=9) for s in ((1, 1, 2, 4), (1, 1, 3, 4), (1, 1, 3, 4)))
    exact, odd = np.float32(0.25), np.float32(0.2500005)
    as_bits = np.array([odd]).view(np.uint32).astype(np.uint64)
    got = []
    for deq1, kind in (
        (np.array([float(exact)]), "FLOAT32"),
        (uint64_scale(exact).reshape(1), "UINT64"),
        (as_bits, "UINT64"),
        (np.array([float(odd)]), "FLOAT32"),
    ):
        case, tensors = int8_call(
            q, k, v, deq1=deq1, p_scale=np.array([127.0]), deq2=np.array([0.01]), dtypes={"deqScale1": kind}, scale=0.1
        )
        got.append(reference(case, tensors, form="ideal").outputs["attentionOut"])
    assert all((g == got[0]).all() for g in got[1:])


@pytest.mark.parametrize("dtype", [E4M3, "FLOAT8_E5M2", "HIFLOAT8"])
@pytest.mark.parametrize("form", ["ideal", "stagewise"])
def test_eight_bit_floats_per_tensor(dtype, form):
    rng = np.random.default_rng(82)
    q, k, v = (rng.choice([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0], s) for s in ((1, 2, 2, 16), (1, 1, 140, 16), (1, 1, 140, 16)))
    given = {"deqScale1": np.array([0.25]), "quantScale1": np.array([64.0]), "deqScale2": np.array([1 / 64])}
    case, tensors = call("BNSD", q, k, v, dtype=dtype, out="FLOAT16", scale=0.25, tensors=given, dtypes=dict.fromkeys(given, "FLOAT32"))
    out, lse = attention(q * 0.25, k, v, 0.25)
    expected = reference(case, tensors, form=form)
    distance = np.abs(expected.outputs["attentionOut"] - out).max()
    assert distance < (1e-6 if form == "ideal" else 0.25)
    assert form == "ideal" or distance > 1e-5, "the stage-wise form rounds"
    assert same(expected.outputs["softmaxLse"][..., 0], lse, 2e-6)


# ---- Decode MLA ------------------------------------------------------------------------------------


def mla_call(layout, dtype, seed=83, rows=2, columns=5, heads=4, k_scale=0.5):
    rng = np.random.default_rng(seed)
    low, high = (-30, 30) if dtype == "INT8" else (-4, 4)
    step = 1.0 if dtype == "INT8" else 0.25
    q, k = whole(rng, 1, heads, rows, 512, low=low, high=high) * step, whole(rng, 1, 1, columns, 512, low=low, high=high) * step
    qr, kr = rng.integers(-2, 3, (1, heads, rows, 64)) / 8.0, rng.integers(-2, 3, (1, 1, columns, 64)) / 8.0
    sq = rng.integers(1, 5, (1, heads, rows)) / 256.0
    axes = layout.split("_")[0]
    scales = {"BNSD": sq, "BSND": sq.transpose(0, 2, 1), "BSH": sq.transpose(0, 2, 1)}[axes]
    from .reference_calls import placed

    given = {
        "queryRope": placed(qr, axes),
        "keyRope": placed(kr, axes),
        "dequantScaleQuery": np.ascontiguousarray(scales),
        "keyAntiquantScale": np.array([k_scale]),
        "valueAntiquantScale": np.array([k_scale]),
    }
    kinds = {"queryRope": "BFLOAT16", "keyRope": "BFLOAT16"}
    case, tensors = call(
        layout,
        q,
        k,
        np.full_like(k, 3.0 * step),
        dtype=dtype,
        out="BFLOAT16",
        scale=0.0625,
        tensors=given,
        dtypes={name: kinds.get(name, "FLOAT32") for name in given},
        queryQuantMode=3,
    )
    real_q, real_k = np.concatenate([q, qr], -1) * sq[..., None], np.concatenate([k, kr], -1) * k_scale
    return case, tensors, attention(real_q, real_k, k * k_scale, 0.0625)


@pytest.mark.parametrize("dtype", ["INT8", E4M3, "HIFLOAT8"])
@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "BSH_NBSD", "BNSD_NBSD"])
def test_decode_mla_scales_nope_and_rope_together_and_reads_no_value(layout, dtype):
    from fiafuzz.model.layouts import LAYOUTS

    from .reference_calls import plain_order

    case, tensors, (out, lse) = mla_call(layout, dtype)
    ideal = reference(case, tensors, form="ideal").outputs
    staged = reference(case, tensors).outputs
    axes = LAYOUTS[layout].output
    assert same(plain_order(ideal["attentionOut"], axes, 4), out)
    assert same(ideal["softmaxLse"][..., 0], lse) and same(staged["softmaxLse"][..., 0], lse, 2e-5)
    off = np.abs(plain_order(staged["attentionOut"], axes, 4) - out).max() / np.abs(out).max()
    assert off < {"INT8": 0.01, E4M3: 0.06, "HIFLOAT8": 0.2}[dtype]


def test_decode_mla_of_one_key_is_that_key():
    """One key: p is 1 in every format, so the result is the dequantised key."""
    for dtype in ("INT8", E4M3, "HIFLOAT8"):
        case, tensors, _ = mla_call("BNSD", dtype, columns=1)
        key = np.asarray(decode(dtype, tensors["key"][0]), float) * 0.5
        got = reference(case, tensors).outputs["attentionOut"]
        assert (got == np.broadcast_to(np.asarray(decode("BFLOAT16", encode("BFLOAT16", key)), float), got.shape)).all()


# ---- GQA FP8 and per block -------------------------------------------------------------------------


def gqa_call(p_scale, seed=84, columns=9, **more):
    rng = np.random.default_rng(seed)
    q, k, v = eighths(seed, 4, 5, 128), eighths(seed + 1, 2, 2, 128, 128), eighths(seed + 2, 2, 2, 128, 128)
    sq, sk, sv = (rng.integers(1, 9, s) / 64.0 for s in ((4, 5), (2, 2, 128), (2,)))
    given = {"dequantScaleQuery": sq, "keyAntiquantScale": sk, "valueAntiquantScale": sv, "quantScale1": np.array([p_scale])}
    table = np.array([[1], [0]], np.int32)
    lens = [columns, 4]
    case, tensors = call(
        "NTD_TND",
        q,
        encode(E4M3, k),
        encode(E4M3, v),
        dtype=E4M3,
        stored_kv=True,
        kv_n=2,
        out="FLOAT16",
        out_d=128,
        scale=0.125,
        blockSize=128,
        tensors={**given, "blockTable": table},
        dtypes=dict.fromkeys(given, "FLOAT32"),
        queryQuantMode=3,
        keyAntiquantMode=3,
        valueAntiquantMode=2,
        lists={"actualSeqLengths": [3, 5], "actualSeqLengthsKv": lens},
        **more,
    )
    outs, lses = [], []
    for b, (tokens, length) in enumerate(((slice(0, 3), lens[0]), (slice(3, 5), lens[1]))):
        t = table[b, 0]
        real_q = (q[:, tokens] * sq[:, tokens, None])[None]
        real_k = (k[t] * sk[t][..., None])[None, :, :length]
        real_v = (v[t] * sv[:, None, None])[None, :, :length]
        out, lse = attention(real_q, real_k, real_v, 0.125)
        outs.append(out[0].transpose(1, 0, 2))
        lses.append(lse[0].T)
    return case, tensors, np.concatenate(outs), np.concatenate(lses)


@pytest.mark.parametrize("p_scale", [1.0, 64.0, 448.0])
def test_gqa_fp8_scales_by_token_head_and_block_and_p_scale_cancels(p_scale):
    case, tensors, out, lse = gqa_call(p_scale)
    ideal, staged = reference(case, tensors, form="ideal").outputs, reference(case, tensors).outputs
    assert same(ideal["attentionOut"], out) and same(ideal["softmaxLse"][..., 0], lse)
    assert np.abs(staged["attentionOut"] - out).max() < 0.07 * np.abs(out).max()
    assert same(staged["softmaxLse"][..., 0], lse)


def test_fp8_exponentials_by_hand():
    """Scores 0 and ln(0.7) with pScale 2: p is 2 and 1.4, which E4M3 rounds to 2 and 1.375; the sum stays 3.4."""
    q, k = np.zeros((1, 1, 128)), np.zeros((1, 1, 128, 128))
    q[0, 0, 0], k[0, 0, 1, 0] = 1.0, 1.0
    v = np.zeros((1, 1, 128, 128))
    v[0, 0, 0], v[0, 0, 1] = 1.0, -1.0
    given = {
        "dequantScaleQuery": np.ones((1, 1)),
        "keyAntiquantScale": np.ones((1, 1, 128)),
        "valueAntiquantScale": np.array([0.5]),
        "quantScale1": np.array([2.0]),
    }
    case, tensors = call(
        "NTD_TND",
        q,
        encode(E4M3, k),
        encode(E4M3, v),
        dtype=E4M3,
        stored_kv=True,
        kv_n=1,
        out="FLOAT16",
        out_d=128,
        scale=math.log(0.7),
        blockSize=128,
        tensors={**given, "blockTable": np.zeros((1, 1), np.int32)},
        dtypes=dict.fromkeys(given, "FLOAT32"),
        queryQuantMode=3,
        keyAntiquantMode=3,
        valueAntiquantMode=2,
        lists={"actualSeqLengths": [1], "actualSeqLengthsKv": [2]},
    )
    expected = reference(case, tensors)
    assert expected.outputs["attentionOut"][0, 0, 0] == float(np.float16(0.5 * (2 - 1.375) / 3.4))
    assert expected.outputs["softmaxLse"].item() == pytest.approx(math.log(1.7), abs=1e-6)


def test_per_block_scales_cover_128_rows_and_256_columns():
    q, k, v = eighths(85, 1, 2, 130, 16), eighths(86, 1, 1, 260, 16), eighths(87, 1, 1, 260, 16)
    sq, sk, sv = (
        np.array([0.5, 0.25, 1.0, 2.0]).reshape(1, 1, 2, 2, 1),
        np.array([0.5, 1.0]).reshape(1, 1, 2, 1),
        np.array([2.0, 0.5]).reshape(1, 1, 2, 1),
    )
    given = {"dequantScaleQuery": sq, "keyAntiquantScale": sk, "valueAntiquantScale": sv}
    case, tensors = call(
        "BNSD",
        q,
        k,
        v,
        dtype=E4M3,
        out="FLOAT16",
        scale=0.125,
        tensors=given,
        dtypes=dict.fromkeys(given, "FLOAT32"),
        queryQuantMode=7,
        keyAntiquantMode=7,
        valueAntiquantMode=7,
    )
    real_q = q * np.repeat(sq[:, 0], 128, axis=2)[:, :, :130]
    real_k, real_v = k * np.repeat(sk, 256, axis=2)[:, :, :260], v * np.repeat(sv, 256, axis=2)[:, :, :260]
    rows = [0, 127, 128, 129]
    out, lse = attention(real_q[:, :, rows], real_k, real_v, 0.125)
    expected = reference(case, tensors, form="ideal").outputs
    assert same(expected["attentionOut"][:, :, rows], out) and same(expected["softmaxLse"][:, :, rows, 0], lse)
    staged = reference(case, tensors).outputs
    assert np.abs(staged["attentionOut"][:, :, rows] - out).max() < 0.07 * np.abs(real_v).max()
    assert 1e-7 < np.abs(staged["softmaxLse"][:, :, rows, 0] - lse).max() < 0.02, "scores pass through FLOAT16"


# ---- MXFP8 -----------------------------------------------------------------------------------------


def mx_scales(seed, *shape):
    return np.random.default_rng(seed).integers(125, 130, shape).astype(np.uint8)


def mx_value(codes):
    return 2.0 ** (codes.astype(float) - 127)


@pytest.mark.parametrize("form", ["T,N", "N,T,G"])
@pytest.mark.parametrize("p_scale", [1.0, 128.0])
def test_mxfp8_packed(form, p_scale):
    q, k, v = eighths(88, 4, 5, 64), eighths(89, 2, 70, 64), eighths(90, 2, 70, 64)
    lens, kv_lens = [2, 3], [33, 37]
    sq, sk = mx_scales(91, 5, 4, 1, 2), mx_scales(92, 70, 2, 1, 2)
    sv = mx_scales(93, 2, 2, 64, 2)  # one pair of groups for each sequence of up to 64 tokens
    stored = sq if form == "T,N" else np.ascontiguousarray(sq.reshape(5, 2, 2, 1, 2).transpose(1, 0, 2, 3, 4))
    given = {"dequantScaleQuery": stored, "keyAntiquantScale": sk, "valueAntiquantScale": sv, "quantScale1": np.array([p_scale])}
    case, tensors = call(
        "TND",
        q,
        k,
        v,
        dtype=E4M3,
        out="FLOAT16",
        scale=0.125,
        tensors=given,
        dtypes={**dict.fromkeys(given, E8M0), "quantScale1": "FLOAT32"},
        queryQuantMode=6,
        keyAntiquantMode=6,
        valueAntiquantMode=8,
        lists={"actualSeqLengths": [2, 5], "actualSeqLengthsKv": [33, 70]},
    )
    ideal, staged = reference(case, tensors, form="ideal").outputs, reference(case, tensors).outputs
    q_at = k_at = 0
    for b, (rows, columns) in enumerate(zip(lens, kv_lens)):
        real_q = np.stack([[q[n, q_at + i] * np.repeat(mx_value(sq[q_at + i, n].reshape(-1)), 32) for i in range(rows)] for n in range(4)])
        real_k = np.stack(
            [[k[h, k_at + j] * np.repeat(mx_value(sk[k_at + j, h].reshape(-1)), 32) for j in range(columns)] for h in range(2)]
        )
        real_v = np.stack([[v[h, k_at + j] * mx_value(sv[b, h, :, j // 32]) for j in range(columns)] for h in range(2)])
        out, lse = attention(real_q[None], real_k[None], real_v[None], 0.125)
        part = slice(q_at, q_at + rows)
        assert same(ideal["attentionOut"][part].transpose(1, 0, 2), out[0])
        assert same(ideal["softmaxLse"][part, :, 0].T, lse[0] + math.log(p_scale)), "lse keeps ln(pScale)"
        assert same(staged["softmaxLse"][part, :, 0].T, lse[0] + math.log(p_scale))
        assert np.abs(staged["attentionOut"][part].transpose(1, 0, 2) - out[0]).max() < 0.07 * np.abs(real_v).max()
        q_at, k_at = q_at + rows, k_at + columns


@pytest.mark.parametrize("cache", ["BnNBsD", "NZ"])
def test_mxfp8_paged_with_rope(cache):
    blocks, size, d = 3, 64, 128
    q, k, v = eighths(94, 2, 3, d), eighths(95, blocks, 1, size, d), eighths(96, blocks, 1, size, d)
    qr, kr = eighths(97, 2, 3, 64), eighths(98, blocks, 1, size, 64)
    sq, sk, sv = mx_scales(99, 3, 2, 2, 2), mx_scales(100, blocks, 1, size, 2, 2), mx_scales(101, blocks, 1, 1, d, 2)
    table, length = np.array([[2, 0]], np.int32), 70
    given = {"dequantScaleQuery": sq, "keyAntiquantScale": sk, "valueAntiquantScale": sv, "queryRope": qr.transpose(1, 0, 2), "keyRope": kr}
    caches = [k, v]
    if cache == "NZ":
        nz = lambda x, d0: np.ascontiguousarray(x.reshape(blocks, 1, size, -1, d0).transpose(0, 1, 3, 2, 4))  # noqa: E731
        caches, given["keyRope"] = [nz(k, 32), nz(v, 32)], nz(kr, 16)
        given["keyAntiquantScale"] = np.ascontiguousarray(sk.reshape(blocks, 1, size // 16, 16, 2, 2).swapaxes(3, 4))
        given["valueAntiquantScale"] = np.ascontiguousarray(sv.reshape(blocks, 1, 1, d // 16, 16, 2).swapaxes(2, 3))
    kinds = {name: "BFLOAT16" if "Rope" in name else E8M0 for name in given}
    case, tensors = call(
        "TND",
        q,
        *(encode(E4M3, x) for x in caches),
        dtype=E4M3,
        stored_kv=True,
        kv_n=1,
        out="BFLOAT16",
        out_d=d,
        scale=0.0625,
        blockSize=size,
        tensors={**given, "blockTable": table},
        dtypes=kinds,
        queryQuantMode=6,
        keyAntiquantMode=6,
        valueAntiquantMode=8,
        sparseMode=0,
        lists={"actualSeqLengths": [3], "actualSeqLengthsKv": [length]},
    )
    real_q = np.stack(
        [[np.concatenate([q[n, i] * np.repeat(mx_value(sq[i, n].reshape(-1)), 32), qr[n, i]]) for i in range(3)] for n in range(2)]
    )
    real_k, real_v = [], []
    for j in range(length):
        t, r = table[0, j // size], j % size
        real_k.append(np.concatenate([k[t, 0, r] * np.repeat(mx_value(sk[t, 0, r].reshape(-1)), 32), kr[t, 0, r]]))
        real_v.append(v[t, 0, r] * mx_value(sv[t, 0, 0, :, r // 32]))
    out, lse = attention(real_q[None], np.array(real_k)[None, None], np.array(real_v)[None, None], 0.0625)
    expected = reference(case, tensors, form="ideal").outputs
    assert same(expected["attentionOut"].transpose(1, 0, 2), out[0]) and same(expected["softmaxLse"][..., 0].T, lse[0])


def test_mxfp8_maximum_is_rounded_up_to_a_multiple_of_ln_2():
    """Scores 0.5 and 0.25: the maximum becomes ln 2, so p = exp(0.5 - ln 2) = 0.824 rounds to 0.8125, exp(0.25 - ln 2) = 0.642 to 0.625."""
    q = np.zeros((1, 1, 64))
    q[0, 0, 0] = 1.0
    k, v = np.zeros((1, 2, 64)), np.zeros((1, 2, 64))
    k[0, 0, 0], k[0, 1, 0] = 0.5, 0.25
    v[0, 0], v[0, 1] = 1.0, -1.0
    unit = np.full((1, 1, 1, 2), 127, np.uint8)
    given = {
        "dequantScaleQuery": unit,
        "keyAntiquantScale": np.repeat(unit, 2, 0),
        "valueAntiquantScale": np.full((1, 1, 64, 2), 127, np.uint8),
    }
    case, tensors = call(
        "TND",
        q,
        k,
        v,
        dtype=E4M3,
        out="FLOAT16",
        tensors=given,
        dtypes=dict.fromkeys(given, E8M0),
        queryQuantMode=6,
        keyAntiquantMode=6,
        valueAntiquantMode=8,
        lists={"actualSeqLengths": [1], "actualSeqLengthsKv": [2]},
    )
    total = math.exp(0.5 - math.log(2)) + math.exp(0.25 - math.log(2))
    expected = reference(case, tensors)
    assert expected.outputs["attentionOut"][0, 0, 0] == float(np.float16((0.8125 - 0.625) / total))
    assert expected.outputs["softmaxLse"].item() == pytest.approx(math.log(math.exp(0.5) + math.exp(0.25)), abs=1e-6)


# ---- common ----------------------------------------------------------------------------------------


def test_masked_rows_of_the_stage_wise_forms_are_empty():
    q, k, v = np.ones((1, 1, 3, 16)), np.ones((1, 1, 2, 16)), np.ones((1, 1, 2, 16))
    case, tensors = int8_call(
        q, k, v, deq1=ONE, p_scale=np.array([127.0]), deq2=np.array([1 / 127]), sparseMode=3, tensors={"attenMask": TRIANGLE}
    )
    expected = reference(case, tensors)
    assert not expected.outputs["attentionOut"][0, 0, 0].any() and np.isposinf(expected.outputs["softmaxLse"][0, 0, 0])
    assert expected.compare["attentionOut"].all()


def test_row_blocks_of_the_stage_wise_loop_agree(monkeypatch):
    from oracles.reference import tiled

    case, tensors, _, _ = gqa_call(64.0, columns=100)
    one = reference(case, tensors).outputs
    monkeypatch.setattr(tiled, "ROW_ELEMENTS", 1)
    many = reference(case, tensors).outputs
    assert all((one[name] == many[name]).all() for name in one)


def test_both_forms_are_offered_as_arithmetics_of_each_other():
    case, tensors, _, _ = gqa_call(64.0)
    staged, ideal = reference(case, tensors), reference(case, tensors, form="ideal")
    assert staged.arithmetics == ("ideal",) and ideal.arithmetics == ("stagewise",)
    assert (staged.by("ideal")["attentionOut"] == ideal.outputs["attentionOut"]).all()
    assert (ideal.by("stagewise")["attentionOut"] == staged.outputs["attentionOut"]).all()
    assert (np.abs(staged.outputs["attentionOut"] - ideal.outputs["attentionOut"]) <= ideal.error_bound["attentionOut"]).all()
