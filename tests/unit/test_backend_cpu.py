"""The cpu backend: front, robustness, empty calls, hand-worked values, published numbers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fiafuzz.backends.cpu import CpuBackend
from fiafuzz.backends.cpu_kernel import Kernel
from fiafuzz.model.case import Case, CaseError, Constant, Inputs, case_from_dict, case_to_dict
from fiafuzz.model.codecs import decode, encode, pack_int4
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.parameters import TENSOR_INPUTS
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from tests.unit.backend_cases import CAUSAL, buffers, call, compute, mask, spec
from tests.unit.fault_cases import alibi, channel, gqa_fp8, group, int8_full, mla, mla_full, mx, padded, per_token, post

BACKEND = CpuBackend("950-v5-2026.08")


def run(case, tensors=None):
    held = buffers(case)
    outcome = BACKEND.compute(Scene(case), tensors or materialize(case), held)
    assert outcome.kind == "ok", outcome.message
    return {name: decode(getattr(case.outputs, name).dtype, array) for name, array in held.items()}


# ---- values worked out by hand -----------------------------------------------------------------------------------


def fixed(shape, values, dtype="FLOAT16"):
    return spec(shape, dtype, values)


def tiny(keys, values, query=(1.0,), **more):
    """One head of size 1: scores are query x key."""
    K = len(keys)
    case = call(B=1, N=1, KN=1, Q=len(query), K=K, D=1, scale=1.0, lse=True, **more)
    return case.replace(
        query=fixed((1, 1, len(query), 1), query),
        key=(fixed((1, 1, K, 1), keys),),
        value=(fixed((1, 1, K, 1), values),),
    )


def test_two_keys_by_hand():
    # exp(0) = 1 and exp(-1): 3 * 1/(1 + 1/e) + 5 * (1/e)/(1 + 1/e); probabilities are rounded to 11 bits.
    out = run(tiny((1.0, 0.0), (3.0, 5.0)))
    weight = 1 / (1 + math.exp(-1))
    assert abs(out["attentionOut"].item() - (3 * weight + 5 * (1 - weight))) < 2e-3
    assert abs(out["softmaxLse"].item() - math.log(math.e + 1)) < 1e-6


def test_zero_scores_average_what_is_seen():
    # Values are powers of two, so that the mean of a subset names the subset.
    case = tiny((0.0,) * 4, (1.0, 2.0, 4.0, 8.0), (1.0,) * 4, sparseMode=2, attenMask=CAUSAL)
    assert run(case)["attentionOut"].ravel().tolist() == pytest.approx([1, 1.5, 7 / 3, 3.75], rel=1e-3)
    case = tiny((0.0,) * 4, (1.0, 2.0, 4.0, 8.0), (1.0,) * 2, sparseMode=3, attenMask=CAUSAL)
    assert run(case)["attentionOut"].ravel().tolist() == pytest.approx([7 / 3, 3.75], rel=1e-3)
    case = tiny((0.0,) * 4, (1.0, 2.0, 4.0, 8.0), (1.0,) * 2, sparseMode=4, preTokens=1, nextTokens=0, attenMask=CAUSAL)
    assert run(case)["attentionOut"].ravel().tolist() == pytest.approx([3, 6], rel=1e-3)


def test_sink_adds_to_the_sum_only():
    out = run(tiny((0.0, 0.0), (4.0, 4.0), learnableSink=fixed((1,), (math.log(2),))))
    assert out["attentionOut"].item() == pytest.approx(2.0, rel=1e-3)
    assert out["softmaxLse"].item() == pytest.approx(math.log(4), abs=1e-3)


def test_sink_far_above_the_scores_stays_finite():
    out = run(tiny((0.0, 0.0), (4.0, 4.0), learnableSink=fixed((1,), (1000.0,))))
    assert out["attentionOut"].item() == 0.0
    assert out["softmaxLse"].item() == pytest.approx(1000.0)


def test_alibi_penalises_distance():
    case = tiny((0.0, 0.0), (1.0, 0.0), pseType=2, pseShift=spec((1,), "FLOAT32", [1.0]), kvStartIdx=(1,))
    weight = 1 / (1 + math.exp(-1))
    assert run(case)["attentionOut"].item() == pytest.approx(weight, rel=1e-3)
    case = tiny((0.0, 0.0), (1.0, 0.0), pseType=3, pseShift=spec((1,), "FLOAT32", [1.0]), kvStartIdx=(3,))
    away = math.exp(-math.sqrt(3)), math.exp(-2)
    assert run(case)["attentionOut"].item() == pytest.approx(away[0] / sum(away), rel=1e-3)


def test_row_without_keys_is_zero_and_infinite_even_with_a_sink():
    case = tiny((0.0,), (4.0,), (1.0, 1.0), sparseMode=3, attenMask=CAUSAL, learnableSink=fixed((1,), (1.0,)))
    out = run(case)
    assert out["attentionOut"].ravel()[0] == 0 and out["softmaxLse"].ravel()[0] == math.inf
    assert out["attentionOut"].ravel()[1] != 0 and math.isfinite(out["softmaxLse"].ravel()[1])


def test_late_first_key_after_very_negative_scores():
    # The first 64 columns are masked, the rest score about -2000: no factor may overflow on the way.
    blocked = mask(1, 128).shape
    case = tiny((-2000.0,) * 128, (2.0,) * 128)
    case = case.replace(attenMask=spec(blocked, "BOOL", [1] * 64 + [0] * 64))
    out = run(case)
    assert out["attentionOut"].item() == 2.0
    assert out["softmaxLse"].item() == pytest.approx(-2000 + math.log(64), abs=1e-3)


def test_int4_offset_comes_before_the_scale_and_the_lowest_nibble_first():
    # Values are the nibbles 1, -2, 3, ... of one word; key codes are 0, so that all 1 columns weigh the same.
    nibbles = np.array([1, -2, 3, -4, 5, -6, 7, -8], np.int8)
    case = call(
        B=1,
        N=1,
        KN=1,
        Q=1,
        K=1,
        D=8,
        kv="INT32",
        keyAntiquantScale=fixed((1, 8), [1.0] * 8),
        keyAntiquantOffset=fixed((1, 8), [0.0] * 8),
        valueAntiquantScale=fixed((1, 8), [2.0] * 8),
        valueAntiquantOffset=fixed((1, 8), [0.5] * 8),
    )
    tensors = materialize(case)
    tensors["key"] = [np.zeros((1, 1, 1, 1), np.int32)]
    tensors["value"] = [pack_int4(nibbles).reshape(1, 1, 1, 1)]
    assert run(case, tensors)["attentionOut"].ravel().tolist() == [(n + 0.5) * 2 for n in nibbles.tolist()]


def test_mxfp8_lse_keeps_p_scale_and_fp8_gqa_does_not():
    plain, scaled = run(mx(p_scale=1, lse=True)), run(mx(p_scale=64, lse=True))
    assert np.abs(scaled["softmaxLse"] - plain["softmaxLse"] - math.log(64)).max() < 1e-5
    plain, scaled = run(gqa_fp8(1, lse=True)), run(gqa_fp8(64, lse=True))
    assert np.abs(scaled["softmaxLse"] - plain["softmaxLse"]).max() < 1e-5


def test_post_quantisation_saturates_and_rounds_ties_to_even():
    case = tiny((0.0,), (4.0,), out="INT8").replace(softmaxLseFlag=False)
    codes = [
        run(case.replace(quantScale2=spec((1,), "FLOAT32", [s])))["attentionOut"].item()
        for s in (0.125, 0.375, 100.0, -100.0)
    ]
    assert codes == [0, 2, 127, -128]


def test_decode_mla_does_not_read_its_value():
    case = mla()
    assert np.array_equal(
        run(case)["attentionOut"],
        run(case.replace(value=(spec(case.inputs.value[0].shape, "BFLOAT16", fill=Constant("nan")),)))["attentionOut"],
    )


# ---- structure ---------------------------------------------------------------------------------------------------


def test_packed_rows_behind_the_last_length_stay_untouched():
    case = call("TND", q_lens=(3, 2), kv_lens=(9, 9))
    case = case.replace(query=spec((8, 4, 64), "FLOAT16"), attentionOut=spec((8, 4, 64), "FLOAT16"))
    held = buffers(case)
    before = held["attentionOut"].copy()
    assert BACKEND.compute(Scene(case), materialize(case), held).kind == "ok"
    assert np.array_equal(held["attentionOut"][5:], before[5:]) and not np.array_equal(
        held["attentionOut"][:5], before[:5]
    )


def test_lse_buffer_is_left_alone_without_the_flag():
    case = call(lse=True)
    held = buffers(case)
    before = held["softmaxLse"].copy()
    assert BACKEND.compute(Scene(case.replace(softmaxLseFlag=False)), materialize(case), held).kind == "ok"
    assert np.array_equal(held["softmaxLse"], before)


def test_empty_calls():
    case = call(K=0, lse=True)
    held = buffers(case)
    assert BACKEND.compute(Scene(case), materialize(case), held).kind == "ok"
    assert not held["attentionOut"].any() and (held["softmaxLse"] == np.inf).all()
    case = call(Q=0)
    assert BACKEND.compute(Scene(case), materialize(case), buffers(case)).kind == "ok"


def test_row_blocks_do_not_change_a_bit(monkeypatch):
    case = call(Q=33, K=150, lse=True, pseShift=spec((1, 4, 33, 150), "FLOAT16"), sparseMode=3, attenMask=CAUSAL)
    tensors, whole, parts = materialize(case), buffers(case), buffers(case)
    BACKEND.compute(Scene(case), tensors, whole)
    monkeypatch.setattr("fiafuzz.backends.cpu_kernel.SCORE_BUDGET", 4096)
    BACKEND.compute(Scene(case), tensors, parts)
    for name in whole:
        assert np.allclose(whole[name].astype(float), parts[name].astype(float), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("tile", [16, 32, 100, 1000])
def test_tile_width_changes_rounding_only(tile, monkeypatch):
    case = call(Q=9, K=150, lse=True)
    tensors, usual, other = materialize(case), buffers(case), buffers(case)
    BACKEND.compute(Scene(case), tensors, usual)
    monkeypatch.setattr(Kernel, "tile", tile)
    BACKEND.compute(Scene(case), tensors, other)
    assert np.abs(usual["attentionOut"].astype(float) - other["attentionOut"].astype(float)).max() < 2e-3
    assert np.abs(usual["softmaxLse"] - other["softmaxLse"]).max() < 1e-5


def test_equal_batches_computed_together_equal_batches_alone():
    case = call(B=3, lse=True, cache="NZ", attenMask=mask(3, 5, 32))
    together = run(case)
    uneven = case.replace(actualSeqLengths=(5, 4, 5))
    apart = run(uneven)
    for name in together:
        assert np.array_equal(together[name][::2], apart[name][::2])


def test_runs_are_bitwise_equal():
    case = call(Q=33, K=150, lse=True)
    tensors, first, second = materialize(case), buffers(case), buffers(case, 0)
    BACKEND.compute(Scene(case), tensors, first)
    BACKEND.compute(Scene(case), tensors, second)
    assert all(np.array_equal(first[n], second[n], equal_nan=True) for n in first)


def test_inputs_are_not_written():
    for case in (call(sparseMode=3, attenMask=CAUSAL), int8_full(), mla_full(), group()):
        tensors = materialize(case)
        before = {n: [np.array(x) for x in (t if isinstance(t, list) else [t])] for n, t in tensors.items()}
        compute(BACKEND, case, tensors)
        for name, kept in before.items():
            now = tensors[name] if isinstance(tensors[name], list) else [tensors[name]]
            assert all(np.array_equal(a, b) for a, b in zip(kept, now)), name


# ---- front -------------------------------------------------------------------------------------------------------


def test_front_answers_invalid_calls_with_the_smallest_code():
    case = call(sparseMode=4, attenMask=CAUSAL, preTokens=1, nextTokens=-3)
    outcome = BACKEND.run(case, Scene(case), materialize(case), buffers(case))
    assert (outcome.kind, outcome.code, outcome.stage) == ("reject", 561002, "checker")
    null = call().replace(query=None)
    outcome = BACKEND.run(null, Scene(null), materialize(null), buffers(null))
    assert (outcome.kind, outcome.code, outcome.stage) == ("reject", 161001, "entry")


def test_valid_call_goes_through_and_takes_time():
    case = call()
    outcome = BACKEND.run(case, Scene(case), materialize(case), buffers(case))
    assert outcome.kind == "ok" and outcome.seconds > 0


def test_front_does_not_act_out_crashes(monkeypatch):
    from dataclasses import replace

    case = call()
    found = replace(BACKEND.front.predict(case, Scene(case)), verdict="crash")
    monkeypatch.setattr(BACKEND.front, "predict", lambda case, scene: found)
    assert BACKEND.run(case, Scene(case), materialize(case), buffers(case)).kind == "unsupported"


def test_cannot_express_names_the_reason_and_leaves_rejections_to_the_front():
    assert BACKEND.cannot_express(Scene(call())) is None
    assert BACKEND.cannot_express(Scene(call().replace(query=None))) is None
    odd = call("TND", q_lens=(3, 2)).replace(query=spec((4, 4, 64), "FLOAT16"))
    reason = BACKEND.cannot_express(Scene(odd))
    assert reason is None or "length" in reason


def test_block_outside_the_cache_is_unsupported(monkeypatch):
    monkeypatch.setattr(BACKEND.front, "answer", lambda case, scene: None)
    case = call(cache="BnBsH", table=(0, 99, 1, 2))
    outcome = BACKEND.run(case, Scene(case), materialize(case), buffers(case))
    assert outcome.kind == "unsupported" and "outside the cache" in outcome.message


# ---- robustness --------------------------------------------------------------------------------------------------

BASES = [
    call(lse=True),
    call("TND", cache="NZ", lse=True),
    call("BSH", lists=(5, 9)),
    call(prefix=6, attenMask=mask(5, 30)),
    mla(),
    padded(q=1, kv=2),
    alibi(),
    channel(),
    per_token(4, (5, 16), cache="BnBsH", kv_lens=(24, 20)),
    group(),
    int8_full(),
    mla_full(),
    gqa_fp8(),
    mx(),
    post(shape=(4, 64), offset=True),
]

CHANGES = st.one_of(
    st.tuples(st.just("drop"), st.integers(0, 40), st.just(0)),
    st.tuples(st.just("axis"), st.integers(0, 200), st.sampled_from([-1, 0, 1, 2, 3, 7, 33, 64, 2048])),
    st.tuples(st.just("dtype"), st.integers(0, 40), st.sampled_from(sorted(DTYPES))),
    st.tuples(st.just("rank"), st.integers(0, 40), st.sampled_from([-1, 1])),
    st.tuples(st.just("attr"), st.integers(0, 40), st.sampled_from([-7, -1, 0, 1, 2, 3, 4, 5, 6, 16, 2**31, 2**40])),
    st.tuples(
        st.just("lengths"),
        st.integers(0, 5),
        st.sampled_from([(), (0,), (-1,), (3, 9), (9, 3), (1, 2, 3), (10**9, 10**9)]),
    ),
)


def changed(data, change):
    kind, place, value = change
    inputs, attrs, outputs = data["inputs"], data["attrs"], data["outputs"]
    tensors = [(inputs, n) for n in (*TENSOR_INPUTS, "key", "value") if inputs.get(n)] + [
        (outputs, n) for n in outputs if outputs.get(n)
    ]
    if kind == "drop":
        holder, name = tensors[place % len(tensors)]
        holder[name] = None
    elif kind == "attr":
        names = [n for n in attrs if isinstance(attrs[n], int) and not isinstance(attrs[n], bool)]
        attrs[names[place % len(names)]] = value
    elif kind == "lengths":
        inputs[
            ("actualSeqLengths", "actualSeqLengthsKv", "actualSharedPrefixLen", "qStartIdx", "kvStartIdx")[place % 5]
        ] = list(value)
    else:
        holder, name = tensors[place % len(tensors)]
        item = holder[name][0] if isinstance(holder[name], list) else holder[name]
        item.pop("values", None)
        if kind == "dtype":
            item["dtype"] = value
        elif kind == "rank":
            item["shape"] = item["shape"][1:] if value < 0 else [1, *item["shape"]]
        elif item["shape"]:
            item["shape"][place % len(item["shape"])] = value


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, len(BASES) - 1), st.lists(CHANGES, min_size=1, max_size=3))
def test_no_malformed_call_makes_the_kernel_trip(base, changes):
    data = json.loads(json.dumps(case_to_dict(BASES[base])))
    for change in changes:
        changed(data, change)
    try:
        case = case_from_dict(data)
        tensors = materialize(case)
        held = buffers(case)
    except (CaseError, ValueError):
        return
    backend = CpuBackend()
    backend.front.answer = lambda case, scene: None
    outcome = backend.run(case, Scene(case), tensors, held)
    assert outcome.kind in ("ok", "unsupported"), outcome.message
    assert backend.cannot_express(Scene(case)) is None or outcome.kind == "unsupported"


def test_nothing_at_all():
    case = Case(inputs=Inputs(), attrs=call().attrs)
    backend = CpuBackend()
    backend.front.answer = lambda case, scene: None
    assert backend.run(case, Scene(case), materialize(case), {}).kind == "unsupported"


def test_every_8_bit_code_of_p_survives_a_round_trip():
    from fiafuzz.backends.cpu_numbers import code_table, to_fp8, to_hif8

    for dtype, rounding in (("FLOAT8_E4M3FN", lambda x: to_fp8(x, "FLOAT8_E4M3FN")), ("HIFLOAT8", to_hif8)):
        table = code_table(dtype)
        finite = table[table.isfinite()]
        assert (rounding(finite) == finite).all()


@settings(max_examples=300, deadline=None)
@given(st.floats(-1e6, 1e6, width=32))
def test_hif8_rounding_is_that_of_the_codec(x):
    import torch

    from fiafuzz.backends.cpu_numbers import to_hif8

    want = decode("HIFLOAT8", encode("HIFLOAT8", np.array([x]), overflow="saturate"))
    assert to_hif8(torch.tensor([x])).item() == want.item()
