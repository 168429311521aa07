"""Quantised keys and values: (code + offset) * scale by every index rule, every format, and the documented orders of rounding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fiafuzz.model.codecs import decode, encode, pack_int4
from oracles.reference import reference

from .reference_calls import LN2, attention, call, exact_row, placed, same, whole

SCALE = 0.25
B, N, S, D = 2, 2, 6, 32


def parameters(seed, *shape):
    """Scales that are small binary fractions: exact in every format."""
    return np.random.default_rng(seed).integers(1, 9, shape) / 64.0


def offsets(seed, *shape):
    return np.random.default_rng(seed).integers(-4, 5, shape) / 2.0


def kv_codes(seed, low=-9, high=9):
    rng = np.random.default_rng(seed)
    return whole(rng, B, N, S, D, low=low, high=high), whole(rng, B, N, S, D, low=low, high=high)


def query(seed, rows=1):
    return np.random.default_rng(seed).integers(-4, 5, (B, 4, rows, D)) / 8.0


SHAPES = {
    (0, "tensor"): ((1,), lambda p, b, h, j, d: p[0]),
    (0, "H"): ((N * D,), lambda p, b, h, j, d: p[h * D + d]),
    (0, "1,H"): ((1, N * D), lambda p, b, h, j, d: p[0, h * D + d]),
    (0, "N,D"): ((N, D), lambda p, b, h, j, d: p[h, d]),
    (0, "1,N,D"): ((1, N, D), lambda p, b, h, j, d: p[0, h, d]),
    (0, "N,1,D"): ((N, 1, D), lambda p, b, h, j, d: p[h, 0, d]),
    (0, "1,N,1,D"): ((1, N, 1, D), lambda p, b, h, j, d: p[0, h, 0, d]),
    (0, "1,1,N,D"): ((1, 1, N, D), lambda p, b, h, j, d: p[0, 0, h, d]),
    (1, "B,S"): ((B, S), lambda p, b, h, j, d: p[b, j]),
    (1, "1,B,longer"): ((1, B, S + 3), lambda p, b, h, j, d: p[0, b, j]),
    (2, "N"): ((N,), lambda p, b, h, j, d: p[h]),
    (3, "B,N,S"): ((B, N, S), lambda p, b, h, j, d: p[b, h, j]),
    (3, "B,N,longer"): ((B, N, S + 2), lambda p, b, h, j, d: p[b, h, j]),
}


def spread(index, parameter):
    found = np.empty((B, N, S, D))
    for b, h, j, d in np.ndindex(B, N, S, D):
        found[b, h, j, d] = index(parameter, b, h, j, d)
    return found


@pytest.mark.parametrize("layout", ["BNSD", "BSH"])
@pytest.mark.parametrize("rule", SHAPES, ids=lambda r: f"mode{r[0]}-{r[1]}")
def test_every_mode_indexes_as_documented(layout, rule):
    shape, index = SHAPES[rule]
    k, v = kv_codes(40)
    given = {
        "keyAntiquantScale": parameters(41, *shape),
        "valueAntiquantScale": parameters(42, *shape),
        "keyAntiquantOffset": offsets(43, *shape),
        "valueAntiquantOffset": offsets(44, *shape),
    }
    dtype = "FLOAT32" if rule[0] in (1, 3) else "FLOAT16"
    q = query(45)
    case, tensors = call(
        layout,
        q,
        k,
        v,
        kv="INT8",
        scale=SCALE,
        tensors=given,
        dtypes=dict.fromkeys(given, dtype),
        keyAntiquantMode=rule[0],
        valueAntiquantMode=rule[0],
        lists={"actualSeqLengthsKv": [6, 4]},
    )
    real_k = (k + spread(index, given["keyAntiquantOffset"])) * spread(index, given["keyAntiquantScale"])
    real_v = (v + spread(index, given["valueAntiquantOffset"])) * spread(index, given["valueAntiquantScale"])
    out, lse = attention(q, real_k, real_v, SCALE, keep=lambda b, n, i, j: j < (6, 4)[b])
    expected = reference(case, tensors)
    got = expected.outputs["attentionOut"]
    assert same(got if layout == "BNSD" else got.reshape(B, 1, 4, D).transpose(0, 2, 1, 3), out)
    assert same(expected.outputs["softmaxLse"][..., 0], lse)


def test_channel_keys_with_token_values():
    k, v = kv_codes(46)
    ks, vs = parameters(47, N, D), parameters(48, B, S)
    q = query(49)
    case, tensors = call(
        "BNSD",
        q,
        k,
        v,
        kv="INT8",
        scale=SCALE,
        tensors={"keyAntiquantScale": ks, "valueAntiquantScale": vs},
        dtypes={"valueAntiquantScale": "FLOAT32"},
        keyAntiquantMode=0,
        valueAntiquantMode=1,
    )
    out, _ = attention(q, k * ks[None, :, None], v * vs[:, None, :, None], SCALE)
    assert same(reference(case, tensors).outputs["attentionOut"], out)


def test_offset_before_scale_by_rational_arithmetic():
    """Key codes 1 and 3, offset -1, scale 1/2 give scores 0 and 1; values (code + 2) / 4 are 1/2 and 2."""
    given = {
        "keyAntiquantScale": np.array([0.5]),
        "keyAntiquantOffset": np.array([-1.0]),
        "valueAntiquantScale": np.array([0.25]),
        "valueAntiquantOffset": np.array([2.0]),
    }
    k, v = np.array([[[[1.0], [3.0]]]]), np.array([[[[0.0], [6.0]]]])
    case, tensors = call("BNSD", np.ones((1, 1, 1, 1)), k, v, kv="INT8", scale=LN2, tensors=given)
    out, lse = exact_row([0, 1], [[Fraction(1, 2)], [Fraction(2)]])
    expected = reference(case, tensors)
    assert same(expected.outputs["attentionOut"].reshape(1), np.array([float(out[0])]))
    assert same(expected.outputs["softmaxLse"].reshape(1), np.array([lse]))


@pytest.mark.parametrize("carrier", ["INT32", "INT4"])
def test_int4_lowest_nibble_first_and_signed(carrier):
    k, v = kv_codes(50, -8, 7)
    ks = parameters(51, N, D)
    q = query(52)
    if carrier == "INT32":
        stored = [pack_int4(placed(x, "BSH").astype(np.int8)) for x in (k, v)]
        case, tensors = call(
            "BSH",
            q,
            *stored,
            kv="INT32",
            stored_kv=True,
            kv_n=N,
            out_d=D,
            scale=SCALE,
            tensors={"keyAntiquantScale": ks, "valueAntiquantScale": ks},
        )
    else:
        case, tensors = call("BSH", q, k, v, kv="INT4", scale=SCALE, tensors={"keyAntiquantScale": ks, "valueAntiquantScale": ks})
    out, _ = attention(q, k * ks[None, :, None], v * ks[None, :, None], SCALE)
    got = reference(case, tensors).outputs["attentionOut"].reshape(B, 1, 4, D).transpose(0, 2, 1, 3)
    assert same(got, out)


def test_int4_word_by_hand():
    """0x87654321 as a word of keys: nibbles 1, 2, .. 7, then -8."""
    word = np.array([0x87654321], np.uint32).view(np.int32).reshape(1, 1, 1)
    ones = np.array([0x11111111], np.int32).reshape(1, 1, 1)
    q = np.zeros((1, 1, 1, 8))
    case, tensors = call(
        "BSH",
        q,
        ones,
        word,
        kv="INT32",
        stored_kv=True,
        kv_n=1,
        out_d=8,
        tensors={"keyAntiquantScale": np.ones(1), "valueAntiquantScale": np.ones(1)},
    )
    assert reference(case, tensors).outputs["attentionOut"].reshape(8).tolist() == [1, 2, 3, 4, 5, 6, 7, -8]


@pytest.mark.parametrize("kv", ["FLOAT8_E4M3FN", "HIFLOAT8", "FLOAT8_E5M2"])
def test_eight_bit_floats_are_code_times_scale(kv):
    rng = np.random.default_rng(53)
    k, v = (rng.integers(-15, 16, (B, N, S, D)) / 8.0 for _ in range(2))
    real = [np.asarray(decode(kv, encode(kv, x)), float) for x in (k, v)]
    scales = parameters(54, N, D)
    q = query(55)
    case, tensors = call("BNSD", q, k, v, kv=kv, scale=SCALE, tensors={"keyAntiquantScale": scales, "valueAntiquantScale": scales})
    out, lse = attention(q, real[0] * scales[None, :, None], real[1] * scales[None, :, None], SCALE)
    expected = reference(case, tensors)
    assert same(expected.outputs["attentionOut"], out) and same(expected.outputs["softmaxLse"][..., 0], lse)


def test_fp4_groups_of_32_with_e8m0_exponents():
    rng = np.random.default_rng(56)
    codes = rng.integers(0, 16, (2, B, N, S, 64)).astype(np.uint8)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    k, v = (np.where(c > 7, -1, 1) * table[c & 7] for c in codes)
    exponents = rng.integers(124, 130, (2, 1, B, N, S, 2)).astype(np.uint8)
    q = rng.integers(-4, 5, (B, 4, 1, 64)) / 8.0
    case, tensors = call(
        "BNSD",
        q,
        codes[0],
        codes[1],
        kv="FLOAT4_E2M1",
        stored_kv=True,
        scale=SCALE,
        keyAntiquantMode=6,
        valueAntiquantMode=6,
        tensors={"keyAntiquantScale": exponents[0], "valueAntiquantScale": exponents[1]},
        dtypes={"keyAntiquantScale": "FLOAT8_E8M0", "valueAntiquantScale": "FLOAT8_E8M0"},
    )
    scales = [np.repeat(2.0 ** (e[0].astype(float) - 127), 32, axis=-1) for e in exponents]
    out, _ = attention(q, k * scales[0], v * scales[1], SCALE)
    assert same(reference(case, tensors).outputs["attentionOut"], out)


@pytest.mark.parametrize("shape", [(2,), (2, N, 1, D), (2, N, D), (2, N * D)])
def test_old_combined_parameters_hold_key_then_value(shape):
    k, v = kv_codes(57)
    scale, offset = parameters(58, *shape), offsets(59, *shape)
    q = query(60)
    case, tensors = call(
        "BNSD", q, k, v, kv="INT8", scale=SCALE, product="a2", api="v3", tensors={"antiquantScale": scale, "antiquantOffset": offset}
    )
    part = [x.reshape(2, -1) for x in (scale, offset)]
    shaped = [[p[row].reshape((1, 1, 1, 1) if p.shape[1] == 1 else (1, N, 1, D)) for row in (0, 1)] for p in part]
    out, _ = attention(q, (k + shaped[1][0]) * shaped[0][0], (v + shaped[1][1]) * shaped[0][1], SCALE)
    assert same(reference(case, tensors).outputs["attentionOut"], out)


def test_old_per_token_parameters_and_separate_ones_win():
    k, v = kv_codes(61)
    old = parameters(62, 2, B, S)
    q = query(63)
    given = {"antiquantScale": old}
    case, tensors = call("BNSD", q, k, v, kv="INT8", scale=SCALE, antiquantMode=1, tensors=given, dtypes={"antiquantScale": "FLOAT32"})
    out, _ = attention(q, k * old[0][:, None, :, None], v * old[1][:, None, :, None], SCALE)
    assert same(reference(case, tensors).outputs["attentionOut"], out)
    given |= {"keyAntiquantScale": np.array([0.5]), "valueAntiquantScale": np.array([0.125])}
    case, tensors = call("BNSD", q, k, v, kv="INT8", scale=SCALE, antiquantMode=1, tensors=given, dtypes={"antiquantScale": "FLOAT32"})
    out, _ = attention(q, k * 0.5, v * 0.125, SCALE)
    assert same(reference(case, tensors).outputs["attentionOut"], out)


def test_per_token_parameters_run_over_prefix_then_keys():
    k, v = kv_codes(64)
    rng = np.random.default_rng(65)
    pk, pv = whole(rng, 1, N, 2, D, low=-9, high=9), whole(rng, 1, N, 2, D, low=-9, high=9)
    scale = parameters(66, B, 2 + S)
    q = query(67)
    given = {
        "keySharedPrefix": encode("INT8", pk),
        "valueSharedPrefix": encode("INT8", pv),
        "keyAntiquantScale": scale,
        "valueAntiquantScale": scale,
    }
    case, tensors = call(
        "BNSD",
        q,
        k,
        v,
        kv="INT8",
        scale=SCALE,
        keyAntiquantMode=1,
        valueAntiquantMode=1,
        tensors=given,
        dtypes={"keyAntiquantScale": "FLOAT32", "valueAntiquantScale": "FLOAT32"},
    )
    keys, values = (np.concatenate([np.repeat(p, B, 0), x], 2) * scale[:, None, :, None] for p, x in ((pk, k), (pv, v)))
    expected = reference(case, tensors)
    assert same(expected.outputs["attentionOut"], attention(q, keys, values, SCALE)[0]) and expected.compare["attentionOut"].all()
    longer = dict(given, keyAntiquantScale=parameters(66, B, 3 + S), valueAntiquantScale=parameters(66, B, 3 + S))
    case, tensors = call(
        "BNSD",
        q,
        k,
        v,
        kv="INT8",
        scale=SCALE,
        keyAntiquantMode=1,
        valueAntiquantMode=1,
        tensors=longer,
        dtypes={"keyAntiquantScale": "FLOAT32", "valueAntiquantScale": "FLOAT32"},
    )
    assert not reference(case, tensors).compare["attentionOut"].any(), "sources index a longer axis differently"


def test_per_token_parameters_follow_left_padding():
    k, v = kv_codes(68)
    scale = parameters(69, B, N, S)
    q = query(70)
    case, tensors = call(
        "BNSD",
        q,
        k,
        v,
        kv="INT8",
        scale=SCALE,
        keyAntiquantMode=3,
        valueAntiquantMode=3,
        lists={"actualSeqLengthsKv": [3, 4]},
        tensors={"keyAntiquantScale": scale, "valueAntiquantScale": scale, "kvPaddingSize": np.array([1])},
        dtypes={"keyAntiquantScale": "FLOAT32", "valueAntiquantScale": "FLOAT32"},
    )
    out, _ = attention(q, k * scale[..., None], v * scale[..., None], SCALE, keep=lambda b, n, i, j: S - 1 - (3, 4)[b] <= j < S - 1)
    assert same(reference(case, tensors).outputs["attentionOut"], out)


@pytest.mark.parametrize("mode", [1, 3, 4, 5])
def test_paged_caches_with_parameters_by_token_or_by_block(mode):
    rng = np.random.default_rng(71)
    blocks, size = 4, 3
    k, v = (whole(rng, blocks, N, size, D, low=-9, high=9) for _ in range(2))
    table = np.array([[2, 0], [3, 1]], np.int32)
    shape = {1: (B, 2 * size), 3: (B, N, 2 * size), 4: (blocks, size), 5: (blocks, N, size)}[mode]
    scale, offset = parameters(72, *shape), offsets(73, *shape)
    q = query(74)
    names = ("keyAntiquantScale", "valueAntiquantScale", "keyAntiquantOffset", "valueAntiquantOffset")
    case, tensors = call(
        "BNSD",
        q,
        encode("INT8", k),
        encode("INT8", v),
        kv="INT8",
        stored_kv=True,
        kv_n=N,
        scale=SCALE,
        blockSize=size,
        keyAntiquantMode=mode,
        valueAntiquantMode=mode,
        lists={"actualSeqLengthsKv": [5, 2]},
        tensors={"blockTable": table, **dict(zip(names, (scale, scale, offset, offset)))},
        dtypes=dict.fromkeys(names, "FLOAT32"),
    )

    def at(parameter, b, h, j):
        t, r = table[b, j // size], j % size
        return {1: lambda: parameter[b, j], 3: lambda: parameter[b, h, j], 4: lambda: parameter[t, r], 5: lambda: parameter[t, h, r]}[
            mode
        ]()

    dense = np.zeros((2, B, N, 2 * size, D))
    for which, codes in enumerate((k, v)):
        for b, h, j in np.ndindex(B, N, 2 * size):
            dense[which, b, h, j] = (codes[table[b, j // size], h, j % size] + at(offset, b, h, j)) * at(scale, b, h, j)
    out, _ = attention(q, dense[0], dense[1], SCALE, keep=lambda b, n, i, j: j < (5, 2)[b])
    assert same(reference(case, tensors).outputs["attentionOut"], out)


def test_orders_of_rounding_differ_where_they_should():
    """bf16 query, code 100, offset 0.28, scale 0.01: every order by hand."""
    given = {
        "keyAntiquantScale": np.ones(1),
        "valueAntiquantScale": np.array([0.01]),
        "keyAntiquantOffset": np.zeros(1),
        "valueAntiquantOffset": np.array([0.28]),
    }
    one = np.ones((1, 1, 1, 1))
    case, tensors = call("BNSD", one, one, 100 * one, kv="INT8", dtype="BFLOAT16", tensors=given, dtypes=dict.fromkeys(given, "BFLOAT16"))
    expected = reference(case, tensors)
    scale, offset = 0.010009765625, 0.279296875  # bf16 neighbours of 0.01 and 0.28
    assert expected.outputs["attentionOut"].item() == (100 + offset) * scale
    assert expected.by("once")["attentionOut"].item() == 1.0  # 1.00377.. is below the middle of 1 and 1.0078125
    assert expected.by("steps")["attentionOut"].item() == 1.0078125  # the sum becomes 100.5 first
    assert expected.by("reference")["attentionOut"].item() == pytest.approx((100 + offset) * scale, rel=1e-7)


def test_int4_reference_rounds_every_step_to_float16():
    given = {
        "keyAntiquantScale": np.ones(1),
        "valueAntiquantScale": np.array([0.1]),
        "keyAntiquantOffset": np.zeros(1),
        "valueAntiquantOffset": np.array([0.1]),
    }
    word = np.full((1, 1, 1), 0x33333333, np.int32)
    case, tensors = call(
        "BSH",
        np.zeros((1, 1, 1, 8)),
        word,
        word,
        kv="INT32",
        stored_kv=True,
        kv_n=1,
        out_d=8,
        dtype="BFLOAT16",
        tensors=given,
        dtypes=dict.fromkeys(given, "FLOAT16"),
    )
    tenth = np.float16(0.1)
    want = (np.float16(3) + tenth) * tenth
    assert reference(case, tensors).by("reference")["attentionOut"][0, 0, 0] == float(want)
    assert reference(case, tensors).outputs["attentionOut"][0, 0, 0] == (3 + float(tenth)) * float(tenth)


def test_masked_single_row_with_correction_may_hold_the_mean():
    k, v = kv_codes(75)
    q = query(76)
    mask = np.zeros((B, 1, 1, S), bool)
    mask[1] = True
    case, tensors = call(
        "BNSD",
        q,
        k,
        v,
        kv="INT8",
        scale=SCALE,
        innerPrecise=2,
        tensors={"keyAntiquantScale": np.ones(1), "valueAntiquantScale": np.ones(1), "attenMask": mask},
    )
    expected = reference(case, tensors)
    (allowed,) = expected.alternatives["attentionOut"]
    assert not expected.outputs["attentionOut"][1].any() and not allowed.where[0].any() and allowed.where[1].all()
    assert same(allowed.values[1, :, 0], np.repeat(v[1].mean(axis=1), 2, axis=0))
