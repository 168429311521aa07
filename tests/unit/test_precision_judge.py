"""The verdict on outputs: what passes, what fails, with which code, and which elements are named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fiafuzz.model.codecs import decode, encode
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.scene import Scene
from oracles.precision import STANDARDS, holds_poison, judge_outputs, poison, poisoned_outputs
from oracles.reference import reference

from .reference_calls import call, whole


def prepared(dtype="FLOAT16", v_size=1.0, out=None, seed=140, rows=6, tensors=None, dtypes=None, **more):
    """A call, its expectation, and outputs as a correct kernel gives them."""
    rng = np.random.default_rng(seed)
    q, k, v = whole(rng, 2, 2, rows, 4), whole(rng, 2, 1, 9, 4), rng.normal(size=(2, 1, 9, 4)) * v_size
    case, stored = call("BNSD", q, k, v, dtype=dtype, out=out, scale=0.25, tensors=tensors, dtypes=dtypes, **more)
    scene = Scene(case)
    expected = reference(case, stored, scene=scene)
    exact = reference(case, stored, scene=scene, form="stagewise").outputs
    outputs = {"attentionOut": encode(out or dtype, exact["attentionOut"])}
    if "softmaxLse" in exact:
        outputs["softmaxLse"] = exact["softmaxLse"].astype(np.float32)
    return case, scene, expected, outputs


def verdict(prepared_, standard="mixed-2026-09", **more):
    case, scene, expected, outputs = prepared_
    return judge_outputs(case, scene, expected, outputs, standard, **more)


@pytest.mark.parametrize("dtype", ["FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("size", [1e-4, 1.0, 500.0])
def test_a_correct_kernel_passes_whatever_the_magnitude(dtype, size):
    for seed in range(5):
        found = verdict(prepared(dtype, size, seed=seed))
        assert found.passed and found.code is None and found.gate_passed, found.summary
        assert found.error_ratio <= 1


@pytest.mark.parametrize("standard", STANDARDS)
def test_every_standard_can_pass_and_fail(standard):
    given_ = prepared()
    if standard != "mere-mare":
        assert verdict(given_, standard).passed
    given_[3]["attentionOut"][...] = given_[3]["attentionOut"] * np.float16(1.5)
    found = verdict(given_, standard)
    assert not found.passed and found.code == "F101" and not found.standard_passed


def test_one_wrong_row_of_many_is_seen_though_the_standard_allows_it():
    given_ = prepared(rows=200)
    given_[3]["attentionOut"][1, 1, 77] += np.float16(0.02)
    found = verdict(given_)
    assert found.standard_passed and not found.gate_passed and not found.passed and found.code == "F101"
    record = found.outputs[0]
    assert record.failing == 4 and [w.index[:3] for w in record.worst] == [(1, 1, 77)] * 4


def test_small_values_do_not_hide_behind_the_absolute_tolerance():
    given_ = prepared(v_size=1e-4)
    given_[3]["attentionOut"][0, 0] = 0
    found = verdict(given_)
    assert found.standard_passed and not found.passed


def test_worst_elements_come_first_with_what_was_expected_and_got():
    given_ = prepared()
    out = given_[3]["attentionOut"]
    out[0, 0, 0, 0] += np.float16(0.5)
    out[1, 1, 5, 3] += np.float16(2.0)
    found = verdict(given_)
    assert [w.index for w in found.outputs[0].worst] == [(1, 1, 5, 3), (0, 0, 0, 0)]
    worst = found.outputs[0].worst[0]
    assert worst.got == float(out[1, 1, 5, 3]) and worst.expected == given_[2].outputs["attentionOut"][1, 1, 5, 3]
    assert 0 < worst.allowed < 0.01 and "2 of 96 elements off" in found.summary
    json.dumps(found.to_dict())


def test_elements_that_must_not_be_compared_may_hold_anything():
    rng = np.random.default_rng(141)
    q, k, v = whole(rng, 2, 5, 2), whole(rng, 1, 4, 2), whole(rng, 1, 4, 2)
    case, stored = call("TND", q, k, v, lists={"actualSeqLengths": [3], "actualSeqLengthsKv": [4]})
    scene, expected = Scene(case), reference(case, stored)
    outputs = {
        "attentionOut": expected.outputs["attentionOut"].astype(np.float16),
        "softmaxLse": expected.outputs["softmaxLse"].astype(np.float32),
    }
    for name in outputs:
        outputs[name][3:] = np.nan
    found = judge_outputs(case, scene, expected, outputs)
    assert found.passed and found.excluded == 2 * 2 * 2 + 2 * 2 and found.compared == 3 * 2 * 2 + 3 * 2
    outputs["attentionOut"][2, 0, 0] = np.nan
    assert judge_outputs(case, scene, expected, outputs).code == "F102"


def test_padded_rows_must_be_exactly_zero():
    given_ = prepared(lists={"actualSeqLengths": [4, 6]})
    assert verdict(given_).passed
    given_[3]["attentionOut"][0, 1, 5, 2] = 1e-6
    found = verdict(given_)
    assert found.code == "F101" and found.outputs[0].worst[0].index == (0, 1, 5, 2)


@pytest.mark.parametrize("value, code", [(np.nan, "F102"), (np.inf, "F102"), (3.0, "F101")])
def test_codes_of_wrong_elements(value, code):
    for name in ("attentionOut", "softmaxLse"):
        given_ = prepared()
        given_[3][name].reshape(-1)[5] = value + (9 if name == "softmaxLse" else 0)
        assert verdict(given_).code == code


def test_missing_outputs_wrong_shapes_and_wrong_storage():
    for change, words in (
        (lambda o: o.pop("softmaxLse"), "missing"),
        (lambda o: o.update(attentionOut=o["attentionOut"][:1]), "shape"),
        (lambda o: o.update(attentionOut=o["attentionOut"].astype(np.float32)), "stored as float32"),
    ):
        given_ = prepared()
        change(given_[3])
        found = verdict(given_)
        assert found.code == "F103" and words in found.summary and not found.passed


@pytest.mark.parametrize("dtype", ["FLOAT16", "BFLOAT16"])
def test_unwritten_rows_are_told_from_wrong_ones(dtype):
    given_ = prepared(dtype)
    buffers = poisoned_outputs(given_[0])
    assert set(buffers) == {"attentionOut", "softmaxLse"}
    given_[3]["attentionOut"][1, 0, 2] = buffers["attentionOut"][1, 0, 2]
    found = verdict(given_)
    assert found.code == "F104" and found.outputs[0].unwritten == 4
    assert not verdict((*given_[:3], buffers)).passed


def test_unwritten_bytes_need_more_than_one_witness():
    scale = {"quantScale2": np.array([10.0])}
    given_ = prepared(out="INT8", tensors=scale, dtypes={"quantScale2": "FLOAT32"}, lse=False)
    assert verdict(given_).passed
    pattern = poison("INT8", (1,))[0]
    given_[3]["attentionOut"][0, 0, 0, 0] = pattern
    assert verdict(given_).code == "F101"
    given_[3]["attentionOut"][0, 0, 1] = pattern
    assert verdict(given_).code == "F104"


@pytest.mark.parametrize("name", DTYPES)
def test_poison_is_recognised_and_ordinary_numbers_are_not(name):
    buffer = poison(name, (2, 3))
    storage = np.dtype(DTYPES[name].storage)
    assert buffer.shape == (2, 3) and buffer.dtype == storage
    if storage.kind in "bc":
        return
    assert holds_poison(name, buffer).all()
    assert not holds_poison(name, np.zeros((2, 3), storage)).any()
    if storage.kind == "f" or name == "BFLOAT16":
        assert np.isnan(np.asarray(decode(name, buffer))).all()


def test_int8_one_code_and_offset_rows():
    given2 = {"quantScale2": np.array([20.0]), "quantOffset2": np.array([5.0])}
    case, scene, expected, outputs = prepared(
        out="INT8", tensors=given2, dtypes=dict.fromkeys(given2, "FLOAT32"), lse=False, lists={"actualSeqLengths": [3, 6]}
    )
    assert judge_outputs(case, scene, expected, outputs).passed
    near = {"attentionOut": np.clip(np.rint(expected.outputs["attentionOut"]), -128, 127).astype(np.int8)}
    assert judge_outputs(case, scene, expected, near).passed
    shifted = {"attentionOut": near["attentionOut"].copy()}
    shifted["attentionOut"][0, :, 3:] = 5
    assert judge_outputs(case, scene, expected, shifted).passed, "padded rows may hold the offset"
    shifted["attentionOut"][0, 0, 4, 0] = 1
    assert not judge_outputs(case, scene, expected, shifted).passed, "but nothing between"
    off = {"attentionOut": near["attentionOut"].copy()}
    off["attentionOut"][1, 1, 1, 1] += 2 if off["attentionOut"][1, 1, 1, 1] < 100 else -2
    found = judge_outputs(case, scene, expected, off)
    assert found.code == "F101" and found.outputs[0].failing == 1


@pytest.mark.parametrize("out", ["FLOAT8_E4M3FN", "HIFLOAT8"])
def test_eight_bit_float_outputs(out):
    scale = {"quantScale2": np.array([4.0])}
    given_ = prepared(out=out, tensors=scale, dtypes={"quantScale2": "FLOAT32"}, lse=False)
    case, scene, expected, _ = given_
    assert verdict(given_).passed
    ordinary = encode(out, expected.outputs["attentionOut"])
    assert judge_outputs(case, scene, expected, {"attentionOut": ordinary}).passed
    wrong = ordinary.copy()
    wrong[0, 0, 0, 0] = encode(out, expected.outputs["attentionOut"][0, 0, 0, :1] * 2)[0]
    assert judge_outputs(case, scene, expected, {"attentionOut": wrong}).code == "F101"


def test_lse_by_class_and_within_float32():
    given_ = prepared(lists={"actualSeqLengths": [4, 6]})
    lse = given_[3]["softmaxLse"]
    lse[0, 0, 5] = -np.inf
    assert verdict(given_).code == "F101"
    lse[0, 0, 5] = np.inf
    lse[1, 0, 0] *= 1.0001
    assert verdict(given_).passed
    lse[1, 0, 0] *= 1.002
    assert verdict(given_).code == "F101"


def test_a_lone_lse_is_reported_on_request_only():
    given_ = prepared()
    given_[3]["softmaxLse"][1, 1, 2] += 3e-5
    assert verdict(given_).passed
    found = verdict(given_, lone=True)
    assert found.code == "F101" and found.outputs[1].worst[0].index == (1, 1, 2, 0)
    noisy = prepared()
    noisy[3]["softmaxLse"][...] += np.where(np.random.default_rng(1).random(noisy[3]["softmaxLse"].shape) < 0.5, 3e-5, 1e-5).astype(
        np.float32
    )
    assert verdict(noisy, lone=True).passed, "a kernel that is off everywhere is not a wrong row"


def antiquant(order=None, offset=3.0):
    rng = np.random.default_rng(150)
    q, k, v = whole(rng, 1, 2, 4, 64), whole(rng, 1, 1, 12, 64, low=-99, high=99), whole(rng, 1, 1, 12, 64, low=-99, high=99)
    given_ = {
        "keyAntiquantScale": rng.uniform(0.002, 0.02, (1, 64)),
        "valueAntiquantScale": rng.uniform(0.002, 0.02, (1, 64)),
        "keyAntiquantOffset": np.full((1, 64), offset),
        "valueAntiquantOffset": np.full((1, 64), offset),
    }
    case, stored = call("BNSD", q, k, v, kv="INT8", dtype="BFLOAT16", scale=0.25, tensors=given_, dtypes=dict.fromkeys(given_, "BFLOAT16"))
    expected = reference(case, stored)
    outputs = expected.outputs if order is None else expected.by(order)
    return (
        case,
        Scene(case),
        expected,
        {"attentionOut": encode("BFLOAT16", outputs["attentionOut"]), "softmaxLse": outputs["softmaxLse"].astype(np.float32)},
    )


@pytest.mark.parametrize("order", [None, "reference", "steps", "once"])
def test_every_documented_order_of_rounding_passes(order):
    assert verdict(antiquant(order)).passed


def test_an_offset_of_the_wrong_sign_is_no_order_of_rounding():
    good, bad = antiquant(), antiquant(offset=-3.0)
    assert not verdict((*good[:3], bad[3])).passed


def test_eight_bit_exponentials_of_either_form_pass_and_a_dropped_tile_does_not():
    rng = np.random.default_rng(151)
    q, k, v = (whole(rng, 1, 2, n, 16, low=-60, high=60) for n in (3, 300, 300))
    given_ = {"deqScale1": np.array([2.0**-8]), "quantScale1": np.array([127.0]), "deqScale2": np.array([2.0**-6 / 127])}
    case, stored = call("BNSD", q, k, v, dtype="INT8", out="FLOAT16", scale=0.0625, tensors=given_, dtypes=dict.fromkeys(given_, "FLOAT32"))
    expected, scene = reference(case, stored), Scene(case)

    def pack(outputs):
        return {"attentionOut": outputs["attentionOut"].astype(np.float16), "softmaxLse": outputs["softmaxLse"].astype(np.float32)}

    assert judge_outputs(case, scene, expected, pack(expected.outputs)).passed
    assert judge_outputs(case, scene, expected, pack(expected.by("ideal"))).passed
    short = case.replace(actualSeqLengthsKv=(256,))
    assert not judge_outputs(case, scene, expected, pack(reference(short, stored).outputs)).passed


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), dtype=st.sampled_from(["FLOAT16", "BFLOAT16"]), missing=st.integers(1, 4))
def test_dropped_keys_are_always_seen(seed, dtype, missing):
    """The last keys of a row left out, over ordinary data."""
    rng = np.random.default_rng(seed)
    q, k, v = rng.integers(-16, 17, (1, 2, 8, 32)) / 8, rng.integers(-16, 17, (1, 1, 40, 32)) / 8, rng.integers(-16, 17, (1, 1, 40, 32)) / 8
    case, stored = call("BNSD", q, k, v, dtype=dtype, scale=0.177)
    expected, scene = reference(case, stored), Scene(case)
    wrong = reference(case.replace(actualSeqLengthsKv=(40 - missing,)), stored).outputs
    outputs = {"attentionOut": encode(dtype, wrong["attentionOut"]), "softmaxLse": wrong["softmaxLse"].astype(np.float32)}
    assert not judge_outputs(case, scene, expected, outputs).passed


def test_unknown_standard_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown precision standard 'mixed'; known: mixed-2026-09, "):
        verdict(prepared(), "mixed")
