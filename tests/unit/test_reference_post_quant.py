"""Post-quantisation: scale, offset, rounding, saturation, and rows without a result."""

from __future__ import annotations

import numpy as np
import pytest

from fiafuzz.model.codecs import decode, encode
from oracles.reference import ReferenceError, reference

from .reference_calls import attention, call, same, whole

SCALE = 0.5
TRIANGLE = np.triu(np.ones((2048, 2048), np.int8), 1)


def quantised(q, k, v, scale, offset=None, *, out="INT8", layout="BNSD", kind="FLOAT32", tensors=None, dtypes=None, **more):
    given = {"quantScale2": scale} | ({} if offset is None else {"quantOffset2": offset})
    return call(
        layout,
        q,
        k,
        v,
        out=out,
        lse=False,
        scale=SCALE,
        tensors={**given, **(tensors or {})},
        dtypes={**dict.fromkeys(given, kind), **(dtypes or {})},
        **more,
    )


def one(value, scale, offset, form="ideal", **more):
    """Post-quantisation of a single known number: one key, so that the output is its value."""
    ones = np.ones((1, 1, 1, 1))
    case, tensors = quantised(ones, ones, value * ones, np.array([scale]), None if offset is None else np.array([offset]), **more)
    return reference(case, tensors, form=form)


def test_multiplied_then_added_and_clamped():
    assert one(3.0, 10.0, 2.5).outputs["attentionOut"].item() == 32.5
    assert one(-2.0, 10.0, None).outputs["attentionOut"].item() == -20
    assert one(50.0, 10.0, 2.0).outputs["attentionOut"].item() == 127
    assert one(-50.0, 10.0, 2.0).outputs["attentionOut"].item() == -128


@pytest.mark.parametrize("value, want", [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (40.0, 40), (400.0, 127)])
def test_stage_wise_rounds_halves_to_even_and_saturates(value, want):
    assert one(value, 1.0, None, "stagewise").outputs["attentionOut"].item() == want


def test_stage_wise_works_in_float16():
    """1.0009765625 * 100 is 100.09765625, in FLOAT16 100.125; plus 0.4 (FLOAT16: 0.39990234375) gives 100.5 and rounds to 100."""
    got = one(1.0009765625, 100.0, 0.4, "stagewise").outputs["attentionOut"].item()
    product = np.float16(np.float16(1.0009765625) * np.float16(100.0))
    assert float(product) == 100.125 and float(product + np.float16(0.4)) == 100.5
    assert got == 100


SHAPES = [(8,), (1, 8), (2, 4), (2, 1, 4), (1, 2, 4), (1, 2, 1, 4), (1, 1, 2, 4), (1, 1, 8)]


@pytest.mark.parametrize("layout", ["BNSD", "BSH", "BSND", "BNSD_BSND"])
@pytest.mark.parametrize("shape", SHAPES)
def test_per_channel_parameters_go_by_head_then_element(layout, shape):
    from fiafuzz.model.layouts import LAYOUTS

    from .reference_calls import plain_order

    rng = np.random.default_rng(110)
    q, k, v = whole(rng, 2, 2, 3, 4), whole(rng, 2, 1, 5, 4), whole(rng, 2, 1, 5, 4)
    scale, offset = rng.integers(1, 20, shape) / 2.0, rng.integers(-9, 9, shape) / 2.0
    case, tensors = quantised(q, k, v, scale, offset, layout=layout)
    out, _ = attention(q, k, v, SCALE)
    want = np.clip(out * scale.reshape(1, 2, 1, 4) + offset.reshape(1, 2, 1, 4), -128, 127)
    got = reference(case, tensors).outputs["attentionOut"]
    assert same(plain_order(got, LAYOUTS[layout].output, 2), want, 1e-9)


def test_bf16_parameters_and_packed_layout():
    rng = np.random.default_rng(111)
    q, k, v = whole(rng, 2, 3, 4), whole(rng, 1, 5, 4), whole(rng, 1, 5, 4)
    scale = rng.integers(1, 9, (2, 4)) * 1.0
    case, tensors = quantised(
        q, k, v, scale, layout="TND", kind="BFLOAT16", dtype="BFLOAT16", lists={"actualSeqLengths": [3], "actualSeqLengthsKv": [5]}
    )
    out, _ = attention(q[None], k[None], v[None], SCALE)
    assert same(reference(case, tensors).outputs["attentionOut"].transpose(1, 0, 2), (out * scale[None, :, None])[0], 1e-9)


@pytest.mark.parametrize("out, largest", [("FLOAT8_E4M3FN", 448.0), ("HIFLOAT8", 32768.0)])
def test_eight_bit_floats_and_what_lies_beyond_them(out, largest):
    inside = one(1.2, 2.0, 0.5, out=out)
    value = float(np.float16(1.2))
    assert inside.outputs["attentionOut"].item() == value * 2 + 0.5 and inside.compare["attentionOut"].all()
    beyond = one(largest / 1024, 1100.0, None, out=out)
    assert not beyond.compare["attentionOut"].any() and beyond.outputs["attentionOut"].item() == largest
    assert beyond.reasons == {f"beyond the range of {out}": 1}


def test_eight_bit_floats_stage_wise():
    value = float(np.float16(1.2))
    single = np.float32(value) * np.float32(2.0) + np.float32(0.5)
    assert one(1.2, 2.0, 0.5, "stagewise", out="FLOAT8_E4M3FN").outputs["attentionOut"].item() == 3.0  # 2.8999 between 2.75 and 3
    hybrid = decode("HIFLOAT8", encode("HIFLOAT8", np.array([float(single)]), rounding="hybrid"))[0]
    assert one(1.2, 2.0, 0.5, "stagewise", out="HIFLOAT8").outputs["attentionOut"].item() == hybrid
    assert one(16.0, 1.0, None, "stagewise", out="HIFLOAT8").outputs["attentionOut"].item() == 20.0, "HYBRID moves even 16"


def dead_call(offset, quant=None, inner=2):
    """Two rows, the first fully masked, a padded third row; batch 1 has no keys."""
    q, k, v = np.ones((2, 1, 3, 2)), np.ones((2, 1, 2, 2)), np.ones((2, 1, 2, 2))
    mask = np.zeros((2, 3, 2), bool)
    mask[:, 0] = True
    more = {"lists": {"actualSeqLengths": [2, 2], "actualSeqLengthsKv": [2, 0]}, "sparseMode": 1, "innerPrecise": inner}
    return quantised(
        q, k, v, np.array([10.0]), None if offset is None else np.array([offset]), tensors={"attenMask": mask, **(quant or {})}, **more
    )


def test_rows_without_a_result_are_zero_without_offset_and_either_with_it():
    plain = reference(*dead_call(None))
    assert plain.outputs["attentionOut"][0, 0, :, 0].tolist() == [0, 10, 0] and not plain.outputs["attentionOut"][1].any()
    assert not plain.alternatives
    shifted = reference(*dead_call(7.0))
    assert shifted.outputs["attentionOut"][0, 0, :, 0].tolist() == [0, 17, 0] and not shifted.outputs["attentionOut"][1].any()
    (allowed,) = shifted.alternatives["attentionOut"]
    assert allowed.where[0, 0, :, 0].tolist() == [True, False, True] and allowed.where[1].all()
    assert (allowed.values[allowed.where] == 7).all()


def test_one_query_row_without_keys_holds_the_offset():
    ones = np.ones((2, 1, 1, 2))
    case, tensors = quantised(
        ones, ones, ones, np.array([10.0]), np.array([7.4]), product="a2", api="v3", lists={"actualSeqLengthsKv": [1, 0]}
    )
    ideal, staged = reference(case, tensors), reference(case, tensors, form="stagewise")
    assert np.allclose(ideal.outputs["attentionOut"][1], 7.4, atol=1e-6) and (staged.outputs["attentionOut"][1] == 7).all()
    assert not ideal.alternatives["attentionOut"][0].values[1].any()


def test_int8_full_quantisation_shifts_masked_rows_but_not_padded_ones():
    q, k, v = np.ones((1, 1, 3, 16)), np.ones((1, 1, 1, 16)), np.ones((1, 1, 1, 16))
    given = {
        "deqScale1": np.ones(1),
        "quantScale1": np.array([127.0]),
        "deqScale2": np.array([1 / 127]),
        "quantScale2": np.array([10.0]),
        "quantOffset2": np.array([4.2]),
    }
    case, tensors = call(
        "BNSD",
        q,
        k,
        v,
        dtype="INT8",
        out="INT8",
        lse=False,
        sparseMode=3,
        tensors={**given, "attenMask": TRIANGLE},
        dtypes=dict.fromkeys(given, "FLOAT32"),
        lists={"actualSeqLengths": [2]},
    )
    expected = reference(case, tensors)
    assert expected.outputs["attentionOut"][0, 0, :, 0].tolist() == [4, 14, 0]


def test_wrong_parameter_sizes_and_missing_ones_are_refused():
    ones = np.ones((1, 1, 1, 4))
    with pytest.raises(ReferenceError, match="quantScale2 has 3 elements"):
        reference(*quantised(ones, ones, ones, np.ones(3)))
    case, tensors = call("BNSD", ones, ones, ones, out="INT8")
    with pytest.raises(ReferenceError, match="quantScale2 is missing"):
        reference(case, tensors)
