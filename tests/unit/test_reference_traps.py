"""The places where a naive reference differs from the operator: each shows the naive answer to be another one.

Numbers are those of spec/numerics_traps.md.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from fiafuzz.model.codecs import code_rank, decode, encode, pack_int4
from fiafuzz.model.scene import Scene
from oracles.precision import judge_outputs
from oracles.reference import reference

from .reference_calls import LN2, attention, call, plain_order, same, whole

TRIANGLE = np.triu(np.ones((2048, 2048), np.int8), 1)


def trio(seed, q=(2, 2, 3, 2), k=(2, 1, 5, 2)):
    rng = np.random.default_rng(seed)
    return whole(rng, *q), whole(rng, *k), whole(rng, *k)


def told_apart(case, tensors, right, naive, axes="BNSD", heads=2, form="auto"):
    """The reference agrees with ``right`` and not with ``naive``."""
    got = plain_order(reference(case, tensors, form=form).outputs["attentionOut"], axes, heads)
    assert same(got, right)
    assert np.nan_to_num(np.abs(got - naive), nan=9.0).max() > 0.01


def test_01_default_scale_is_one():
    q, k, v = trio(1)
    case, tensors = call("BNSD", q, k, v)
    case = case.replace(scaleValue=1.0)
    told_apart(case, tensors, attention(q, k, v, 1.0)[0], attention(q, k, v, 1 / math.sqrt(2))[0])


def test_02_exponentials_are_rounded_before_the_division():
    """bf16: scores 0 and ln(0.65): p is 1 and 0.6484375, the sum 1.65. Normalised first, 0.39394 is rounded instead."""
    q, k, v = np.ones((1, 1, 1, 1)), np.array([[[[0.0], [1.0]]]]), np.array([[[[0.0], [256.0]]]])
    case, tensors = call("BNSD", q, k, v, dtype="BFLOAT16", scale=math.log(0.65))
    staged = reference(case, tensors, form="stagewise").outputs["attentionOut"].item()

    def bf16(x):
        return float(np.asarray(decode("BFLOAT16", encode("BFLOAT16", np.array([x]))))[0])

    right = bf16(bf16(0.65) * 256 / 1.65)
    naive = bf16(bf16(0.65 / 1.65) * 256)
    assert right != naive
    assert staged == right


def test_03_masked_row_is_zero_not_nan_and_not_the_mean():
    q, k, v = np.ones((1, 1, 2, 2)), np.ones((1, 1, 2, 2)), np.full((1, 1, 2, 2), 3.0)
    case, tensors = call("BNSD", q, k, v, innerPrecise=2, tensors={"attenMask": np.array([[[1, 1], [0, 0]]], bool)})
    got = reference(case, tensors).outputs["attentionOut"]
    assert got[0, 0, 0].tolist() == [0, 0] and got[0, 0, 1].tolist() == [3, 3]


@pytest.mark.parametrize(
    "product, layout, marks",
    [
        ("950", "BNSD", {"inf"}),
        ("a2", "BNSD", {"inf", "lowest"}),
        ("a2", "TND", {"inf", "-inf"}),
        ("950", "TND", {"inf"}),
    ],
)
def test_04_lse_of_a_batch_without_keys(product, layout, marks):
    """+inf marks it; A2 has two markers of its own; -inf or 0 elsewhere is wrong."""
    ones = np.ones((1, 1, 1, 2)) if layout == "BNSD" else np.ones((1, 1, 2))
    case, tensors = call(
        layout,
        ones,
        ones,
        ones,
        product=product,
        api="v5" if product == "950" else "v3",
        dtype="BFLOAT16",
        lists={"actualSeqLengthsKv": [0], **({"actualSeqLengths": [1]} if layout == "TND" else {})},
    )
    expected, scene = reference(case, tensors), Scene(case)
    assert np.isposinf(expected.outputs["softmaxLse"]).all()
    zeros = np.zeros(expected.outputs["attentionOut"].shape, np.uint16)
    shape = expected.outputs["softmaxLse"].shape
    for name, value in (("inf", np.inf), ("-inf", -np.inf), ("lowest", np.float32(-3.4e38)), ("zero", 0.0)):
        verdict = judge_outputs(case, scene, expected, {"attentionOut": zeros, "softmaxLse": np.full(shape, value, np.float32)})
        assert verdict.passed == (name in marks or (name == "-inf" and "lowest" in marks)), name


def test_05_rows_past_the_length_are_zero_in_padded_layouts_and_untouched_in_packed_ones():
    q, k, v = trio(5)
    case, tensors = call("BNSD", q, k, v, lists={"actualSeqLengths": [1, 3]})
    naive, _ = attention(q, k, v, 1.0)
    told_apart(case, tensors, attention(q, k, v, 1.0, keep=lambda b, n, i, j: i < (1, 3)[b])[0], naive)
    case, tensors = call("TND", q[0], k[0], v[0], lists={"actualSeqLengths": [2], "actualSeqLengthsKv": [5]})
    assert not reference(case, tensors).compare["attentionOut"][2].any()


def test_06_diagonal_from_actual_lengths_with_the_prefix():
    q, k, v = trio(6)
    lens, kv = (2, 3), (3, 5)
    case, tensors = call(
        "BNSD", q, k, v, sparseMode=3, tensors={"attenMask": TRIANGLE}, lists={"actualSeqLengths": lens, "actualSeqLengthsKv": kv}
    )

    def keep(shift):
        return lambda b, n, i, j: i < lens[b] and j < kv[b] and j <= i + shift(b)

    told_apart(
        case, tensors, attention(q, k, v, 1.0, keep(lambda b: kv[b] - lens[b]))[0], attention(q, k, v, 1.0, keep(lambda b: 5 - 3))[0]
    )
    case, tensors = call(
        "BNSD", q, k, v, sparseMode=3, tensors={"attenMask": TRIANGLE, "keySharedPrefix": k[:1, :, :2], "valueSharedPrefix": v[:1, :, :2]}
    )
    keys, values = (np.concatenate([np.repeat(x[:1, :, :2], 2, 0), x], 2) for x in (k, v))
    told_apart(
        case,
        tensors,
        attention(q, keys, values, 1.0, keep=lambda b, n, i, j: j <= i + 4)[0],
        attention(q, keys, values, 1.0, keep=lambda b, n, i, j: j < 2 or j - 2 <= i + 2 - 2)[0],
    )


def test_07_tokens_without_a_mask_do_nothing_and_with_an_open_mask_define_nothing():
    q, k, v = trio(7)
    case, tensors = call("BNSD", q, k, v, preTokens=0, nextTokens=0)
    told_apart(case, tensors, attention(q, k, v, 1.0)[0], attention(q, k, v, 1.0, keep=lambda b, n, i, j: i == j)[0])
    case, tensors = call("BNSD", q, k, v, preTokens=0, nextTokens=0, tensors={"attenMask": np.zeros((1, 3, 5), bool)})
    assert not reference(case, tensors).compare["attentionOut"].any()


def test_08_compressed_mask_is_not_read():
    q, k, v = trio(8)
    case, tensors = call("BNSD", q, k, v, sparseMode=3, tensors={"attenMask": TRIANGLE})
    as_given = attention(q, k, v, 1.0, keep=lambda b, n, i, j: not TRIANGLE[i, j])[0]
    told_apart(case, tensors, attention(q, k, v, 1.0, keep=lambda b, n, i, j: j <= i + 2)[0], as_given)
    case, tensors = call("BNSD", q, k, v, sparseMode=3, tensors={"attenMask": np.zeros_like(TRIANGLE)})
    assert not reference(case, tensors).compare["attentionOut"].any()


def test_09_mask_contract_is_zero_and_one():
    q, k, v = trio(9)
    mask = np.zeros((1, 3, 5), np.uint8)
    mask[0, :, 2] = 1
    case, tensors = call("BNSD", q, k, v, tensors={"attenMask": mask})
    told_apart(case, tensors, attention(q, k, v, 1.0, keep=lambda b, n, i, j: j != 2)[0], attention(q, k, v, 1.0)[0])
    mask[0, :, 2] = 2  # "non-zero is masked" and "the low bit decides" differ here
    case, tensors = call("BNSD", q, k, v, tensors={"attenMask": mask})
    assert not reference(case, tensors).compare["attentionOut"].any()


def test_10_old_single_token_path_ignores_mode_and_tokens():
    q, k, v = trio(10, (2, 2, 1, 2))
    mask = np.zeros((2, 1, 1, 5), bool)
    given = {"sparseMode": 0, "preTokens": 0, "nextTokens": 0, "tensors": {"attenMask": mask}, "innerPrecise": 2}
    case, tensors = call("BNSD", q, k, v, product="a2", api="v3", **given)
    told_apart(case, tensors, attention(q, k, v, 1.0)[0], attention(q, k, v, 1.0, keep=lambda b, n, i, j: j == 0)[0])
    assert reference(case, tensors).compare["attentionOut"].all()


def test_11_paged_key_lengths_are_per_batch_under_a_packed_query():
    rng = np.random.default_rng(11)
    q, k, v = whole(rng, 2, 3, 2), whole(rng, 3, 1, 4, 2), whole(rng, 3, 1, 4, 2)
    table = np.array([[0, -1], [2, 1]], np.int32)
    case, tensors = call(
        "TND",
        q,
        encode("FLOAT16", k),
        encode("FLOAT16", v),
        stored_kv=True,
        kv_n=1,
        blockSize=4,
        tensors={"blockTable": table},
        lists={"actualSeqLengths": [1, 3], "actualSeqLengthsKv": [3, 5]},
    )
    keys, values = (np.concatenate([x[2], x[1]], 1)[None] for x in (k, v))
    right = np.concatenate(
        [
            attention(q[None, :, :1], k[:1, :, :3], v[:1, :, :3], 1.0)[0][0],
            attention(q[None, :, 1:], keys[:, :, :5], values[:, :, :5], 1.0)[0][0],
        ],
        1,
    )
    naive = np.concatenate([right[:, :1], attention(q[None, :, 1:], keys[:, :, :2], values[:, :, :2], 1.0)[0][0]], 1)
    told_apart(case, tensors, right, naive, "TND")


def test_12_groups_are_consecutive_heads():
    q, k, v = trio(12, (1, 4, 2, 2), (1, 2, 3, 2))
    case, tensors = call("BNSD", q, k, v)
    told_apart(case, tensors, attention(q, k, v, 1.0)[0], attention(q, np.tile(k, (1, 2, 1, 1)), np.tile(v, (1, 2, 1, 1)), 1.0)[0], heads=4)


def test_13_decode_mla_ignores_value():
    rng = np.random.default_rng(13)
    q, k, v, qr, kr = (rng.integers(-2, 3, s) / 8 for s in ((1, 2, 1, 512), (1, 1, 3, 512), (1, 1, 3, 512), (1, 2, 1, 64), (1, 1, 3, 64)))
    case, tensors = call("BNSD", q, k, v, tensors={"queryRope": qr, "keyRope": kr})
    q2, k2 = np.concatenate([q, qr], -1), np.concatenate([k, kr], -1)
    told_apart(case, tensors, attention(q2, k2, k, 1.0)[0], attention(q2, k2, v, 1.0)[0])


@pytest.mark.parametrize("kind", [2, 3])
def test_14_slopes_are_penalties_and_the_root_comes_first(kind):
    q, k, v = trio(14, (1, 2, 4, 2), (1, 1, 4, 2))
    slopes = np.array([4.0, 0.25])
    case, tensors = call(
        "BNSD", q, k, v, pseType=kind, tensors={"pseShift": slopes}, dtypes={"pseShift": "FLOAT32"}, lists={"kvStartIdx": [2]}
    )

    def bias(rule):
        return attention(q, k, v, 1.0, add=lambda b, n, i, j: rule(slopes[n], abs(j + 2 - i)))[0]

    if kind == 2:
        right, naive = (
            bias(lambda s, d: -s * d),
            [bias(lambda s, d: s * d), attention(q, k, v, 1.0, add=lambda b, n, i, j: -slopes[n] * abs(j - i))[0]],
        )
    else:
        right, naive = bias(lambda s, d: -s * math.sqrt(d)), [bias(lambda s, d: -math.sqrt(s * d))]
    for wrong in naive:
        told_apart(case, tensors, right, wrong)


def test_15_sink_only_enlarges_the_sum():
    q, k, v = trio(15)
    sink = np.array([1.0, 30.0])
    case, tensors = call("BNSD", q, k, v, scale=0.25, tensors={"learnableSink": sink})
    told_apart(case, tensors, attention(q, k, v, 0.25, sink=sink)[0], attention(q, k, v, 0.25)[0])
    lse = reference(case, tensors).outputs["softmaxLse"][..., 0]
    assert same(lse, attention(q, k, v, 0.25, sink=sink)[1]) and (lse[:, 1] >= 30).all()


def test_16_offset_is_added_before_the_scale():
    q, k, v = trio(16)
    scale, offset = np.array([0.25]), np.array([8.0])
    given = {"keyAntiquantScale": scale, "keyAntiquantOffset": offset, "valueAntiquantScale": scale, "valueAntiquantOffset": offset}
    case, tensors = call("BNSD", q, k, v, kv="INT8", tensors=given)

    def apply(rule):
        return attention(q, rule(k), rule(v), 1.0)[0]

    for wrong in (lambda x: x * 0.25 + 8, lambda x: (x - 8) * 0.25):
        told_apart(case, tensors, apply(lambda x: (x + 8) * 0.25), apply(wrong))


def test_17_int4_lowest_nibble_first_and_signed():
    codes = np.array([1, -2, 3, -4, 5, -6, 7, -8], np.int8).reshape(1, 1, 8)
    word = pack_int4(codes)
    ones = {"keyAntiquantScale": np.ones(1), "valueAntiquantScale": np.ones(1)}
    case, tensors = call("BSH", np.zeros((1, 1, 1, 8)), word, word, kv="INT32", stored_kv=True, kv_n=1, out_d=8, tensors=ones)
    got = reference(case, tensors).outputs["attentionOut"].reshape(8).tolist()
    raw = word.view(np.uint8).reshape(4)
    assert got == codes.reshape(8).tolist()
    assert got != [int(n) for b in raw for n in (b >> 4, b & 15)] and got != [int(n) for b in raw for n in (b & 15, b >> 4)]


def test_18_token_parameters_count_the_prefix_first():
    q, k, v = trio(18, (1, 2, 1, 2), (1, 1, 3, 2))
    scale = np.array([[0.25, 0.5, 1.0, 2.0]])
    given = {
        "keyAntiquantScale": scale,
        "valueAntiquantScale": scale,
        "keySharedPrefix": encode("INT8", k[:, :, :1]),
        "valueSharedPrefix": encode("INT8", v[:, :, :1]),
    }
    case, tensors = call(
        "BNSD",
        q,
        k,
        v,
        kv="INT8",
        keyAntiquantMode=1,
        valueAntiquantMode=1,
        tensors=given,
        dtypes={"keyAntiquantScale": "FLOAT32", "valueAntiquantScale": "FLOAT32"},
    )
    keys, values = (np.concatenate([x[:, :, :1], x], 2) for x in (k, v))
    naive = np.array([1.0, 0.25, 0.5, 1.0])
    told_apart(
        case,
        tensors,
        attention(q, keys * scale[0][:, None], values * scale[0][:, None], 1.0)[0],
        attention(q, keys * naive[:, None], values * naive[:, None], 1.0)[0],
    )


def test_19_uint64_scale_is_a_float32_pattern_in_the_low_half():
    ones = np.ones((1, 1, 1, 1))
    two = np.array([[[[1.0], [3.0]]]])
    pattern = np.array([np.float32(0.5)]).view(np.uint32).astype(np.uint64)
    given = {"deqScale1": pattern, "quantScale1": np.array([127.0]), "deqScale2": np.array([1 / 127])}
    case, tensors = call(
        "BNSD",
        ones,
        two,
        two,
        dtype="INT8",
        out="FLOAT16",
        tensors=given,
        dtypes={**dict.fromkeys(given, "FLOAT32"), "deqScale1": "UINT64"},
    )
    deq2 = float(np.float32(1 / 127)) * 127
    right = attention(ones, two * 0.5, two * deq2, 1.0)[0]
    for wrong in (float(pattern[0]), float(pattern.view(np.float64)[0])):
        told_apart(case, tensors, right, attention(ones, two * wrong, two * deq2, 1.0)[0], heads=1, form="ideal")


def test_20_int8_full_quantisation_is_not_float32_throughout():
    rng = np.random.default_rng(20)
    q, k, v = (whole(rng, 1, 1, n, 32, low=-60, high=60) for n in (1, 40, 40))
    given = {"deqScale1": np.array([2.0**-8]), "quantScale1": np.array([127.0]), "deqScale2": np.array([1 / 127])}
    case, tensors = call("BNSD", q, k, v, dtype="INT8", out="FLOAT16", scale=0.03125, tensors=given, dtypes=dict.fromkeys(given, "FLOAT32"))
    s = ((q[0, 0] @ k[0, 0].T).astype(np.float32) * np.float32(2.0**-8)).astype(np.float16) * np.float16(0.03125)
    p = np.exp(s.astype(np.float32) - s.max().astype(np.float32))
    codes = np.clip(np.rint((p.astype(np.float16) * np.float16(127)).astype(float)), -128, 127)
    right = (codes @ v[0, 0]).astype(np.float32) * np.float32(1 / 127) / np.float32(np.float16(p.sum()))
    got = reference(case, tensors).outputs["attentionOut"]
    assert same(got[0, 0], right.astype(np.float16).astype(float), 1e-6)
    assert np.abs(got - attention(q * 2.0**-8, k, v, 0.03125)[0]).max() > 0.01


def test_21_mla_rope_is_scaled_with_the_rest():
    q, k = np.zeros((1, 1, 1, 512)), np.zeros((1, 1, 2, 512))
    k[0, 0, 0], k[0, 0, 1] = 4.0, -4.0
    qr, kr = np.zeros((1, 1, 1, 64)), np.zeros((1, 1, 2, 64))
    qr[..., 0], kr[0, 0, 0, 0] = 16.0, 1.0
    given = {
        "queryRope": qr,
        "keyRope": kr,
        "dequantScaleQuery": np.full((1, 1, 1), 0.25),
        "keyAntiquantScale": np.array([0.5]),
        "valueAntiquantScale": np.array([0.5]),
    }
    kinds = {name: "BFLOAT16" if "Rope" in name else "FLOAT32" for name in given}
    case, tensors = call("BNSD", q, k, k, dtype="FLOAT8_E4M3FN", out="BFLOAT16", tensors=given, dtypes=kinds, queryQuantMode=3)
    weight = math.exp(16 * 0.25 * 0.5)
    naive = math.exp(16)
    right = np.full((1, 1, 1, 512), 2 * (weight - 1) / (weight + 1))
    told_apart(case, tensors, right, np.full((1, 1, 1, 512), 2 * (naive - 1) / (naive + 1)), heads=1, form="ideal")


def test_22_p_scale_cancels_but_for_the_lse_of_mxfp8():
    q, k = np.zeros((1, 1, 64)), np.zeros((1, 2, 64))
    unit = np.full((1, 1, 1, 2), 127, np.uint8)
    given = {
        "dequantScaleQuery": unit,
        "keyAntiquantScale": np.repeat(unit, 2, 0),
        "valueAntiquantScale": np.full((1, 1, 64, 2), 127, np.uint8),
        "quantScale1": np.array([128.0]),
    }
    case, tensors = call(
        "TND",
        q,
        k,
        k,
        dtype="FLOAT8_E4M3FN",
        out="FLOAT16",
        tensors=given,
        dtypes={**dict.fromkeys(given, "FLOAT8_E8M0"), "quantScale1": "FLOAT32"},
        queryQuantMode=6,
        keyAntiquantMode=6,
        valueAntiquantMode=8,
        lists={"actualSeqLengths": [1], "actualSeqLengthsKv": [2]},
    )
    for form in ("ideal", "stagewise"):
        assert reference(case, tensors, form=form).outputs["softmaxLse"].item() == pytest.approx(LN2 + math.log(128), abs=1e-6)


def test_23_post_quantisation_multiplies_and_rounds_half_to_even():
    ones = np.ones((1, 1, 1, 1))
    given = {"quantScale2": np.array([2.0]), "quantOffset2": np.array([3.0])}
    case, tensors = call("BNSD", ones, ones, 5.25 * ones, out="INT8", lse=False, tensors=given, dtypes=dict.fromkeys(given, "FLOAT32"))
    told_apart(case, tensors, 13.5 * ones, (5.25 / 2 + 3) * ones, heads=1)
    assert reference(case, tensors, form="stagewise").outputs["attentionOut"].item() == 14, "13.5 goes to the even 14, 12.5 would go to 12"


def test_24_hifloat8_codes_have_no_order_and_overflow_is_no_number():
    one, half, two = 0x08, 0x18, 0x10
    ranks = code_rank("HIFLOAT8", np.array([half, one, two], np.uint8))
    assert ranks[0] < ranks[1] < ranks[2], "by value, not by code"
    ones = np.ones((1, 1, 1, 4))
    given = {"quantScale2": np.ones(1)}
    case, tensors = call("BNSD", ones, ones, ones, out="HIFLOAT8", lse=False, tensors=given, dtypes=dict.fromkeys(given, "FLOAT32"))
    expected, scene = reference(case, tensors), Scene(case)
    beside = np.full((1, 1, 1, 4), 0x1F, np.uint8)  # 0.9375: the next value, sixteen codes off
    naive = np.full((1, 1, 1, 4), one + 2, np.uint8)  # 1.25: two places, two codes
    assert judge_outputs(case, scene, expected, {"attentionOut": beside}).passed
    assert not judge_outputs(case, scene, expected, {"attentionOut": naive}).passed


def test_25_no_keys_at_all_is_a_success_and_block_tails_are_not_read():
    ones = np.ones((1, 1, 2, 4))
    case, tensors = call("BNSD", ones, ones[:, :, :0], ones[:, :, :0])
    expected = reference(case, tensors)
    assert not expected.outputs["attentionOut"].any() and np.isposinf(expected.outputs["softmaxLse"]).all()
    rng = np.random.default_rng(25)
    k, v = whole(rng, 2, 1, 4, 4), whole(rng, 2, 1, 4, 4)
    k[1, :, 2:], v[1, :, 2:] = 900.0, -900.0
    table = np.array([[1, -1, 77]], np.int32)
    case, tensors = call(
        "BNSD",
        ones,
        encode("FLOAT16", k),
        encode("FLOAT16", v),
        stored_kv=True,
        kv_n=1,
        blockSize=4,
        tensors={"blockTable": table},
        lists={"actualSeqLengthsKv": [2]},
    )
    told_apart(case, tensors, attention(ones, k[1:, :, :2], v[1:, :, :2], 1.0)[0], attention(ones, k[1:], v[1:], 1.0)[0], heads=1)
