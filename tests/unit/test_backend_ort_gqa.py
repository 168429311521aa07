"""GroupQueryAttention of ONNX Runtime: what it refuses, that it agrees with the cpu kernel in every form, and that what it
declares is looked at."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fiafuzz.backends.catalogue import ONNXRUNTIME
from fiafuzz.backends.cpu import CpuBackend
from fiafuzz.backends.cpu_problem import read_problem
from fiafuzz.model.case import Case, Constant, Uniform
from fiafuzz.model.codecs import decode
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from tests.unit.backend_cases import CAUSAL, buffers, call, mask, spec
from tests.unit.fault_cases import alibi, bias, channel, dead_rows, int8_full, mla, offsets, padded, per_token, post, sink, split
from tests.unit.wheels import wheel

wheel("onnx", "onnx")
wheel("onnxruntime", ONNXRUNTIME)

from fiafuzz.backends import ort, ort_gqa, ort_gqa_node
from fiafuzz.backends.ort_gqa_node import APPEND, CHUNK, EVICT, PROMPT, SHARED, Entry, Form, Quantised, Setting, attend

GQA = ort_gqa.GqaBackend()
ONE = spec((1,), "FLOAT32", fill=Uniform(0.01, 0.05))
HEAD = spec((2,), "FLOAT32", fill=Uniform(0.01, 0.05))
BY_HEAD = {"keyAntiquantMode": 2, "valueAntiquantMode": 2}


def scales(key=ONE, value=ONE, **more):
    return {"keyAntiquantScale": key, "valueAntiquantScale": value, **more}


REFUSED = {
    "another dtype": post(),
    "quantised": int8_full(),
    "FLOAT8_E4M3FN": channel("FLOAT8_E4M3FN"),
    "offsets": offsets(),
    "antiquant modes (1, 1)": per_token(1, (2, 24)),
    "empty": call(K=0),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_said_is_not_run(reason):
    case = REFUSED[reason]
    found = GQA.cannot_express(Scene(case))
    assert found is not None and reason in found
    held = buffers(case)
    before = {name: array.copy() for name, array in held.items()}
    outcome = GQA.run(case, Scene(case), materialize(case), held)
    assert outcome.kind == "unsupported" and outcome.message == found
    assert all(np.array_equal(held[n].view(np.uint8), before[n].view(np.uint8)) for n in held)


RUN = {
    "plain": call(),
    "mask": call(attenMask=mask(2, 1, 5, 24)),
    "causal": call(sparseMode=3, attenMask=CAUSAL),
    "causal rows without keys": call(sparseMode=3, attenMask=CAUSAL, Q=9, K=5),
    "left top": call(sparseMode=2, attenMask=CAUSAL, Q=9, K=5),
    "square": call("BSH", sparseMode=3, attenMask=CAUSAL, Q=9, K=9),
    "ragged": call(sparseMode=3, attenMask=CAUSAL, q_lens=(3, 5), kv_lens=(7, 24)),
    "packed": call("TND", sparseMode=3, attenMask=CAUSAL, B=3, q_lens=(3, 1, 4), kv_lens=(9, 20, 4)),
    "band": call("TND", sparseMode=4, preTokens=5, nextTokens=0, attenMask=CAUSAL),
    "band ahead": call(sparseMode=4, preTokens=5, nextTokens=2, attenMask=CAUSAL),
    "band behind": call(sparseMode=4, preTokens=9, nextTokens=-2, attenMask=CAUSAL),
    "band of tokens": call(sparseMode=0, preTokens=2, nextTokens=1, attenMask=spec((5, 24), "BOOL", fill=Constant(0))),
    "band of tokens and mask": call(sparseMode=0, preTokens=4, nextTokens=1, attenMask=mask(2, 1, 5, 24)),
    "more rows than keys": call(Q=23, K=5),
    "decode": call(Q=1, B=3, kv_lens=(9, 24, 1)),
    "bias": bias(attenMask=mask(5, 24)),
    "causal bias": bias(sparseMode=3, attenMask=CAUSAL),
    "alibi": alibi(3),
    "paged": call("TND", cache="NZ"),
    "list": call("BSH", lists=(5, 9)),
    "prefix": call(prefix=6),
    "padding": padded(q=1, kv=2),
    "short": call(q_lens=(3, 0, 2), kv_lens=(0, 9, 4), B=3),
    "bf16": call(dtype="BFLOAT16"),
    "negative scale": call(scale=-0.3),
    "zero scale": call(scale=0.0),
    "sink": sink(),
    "sink bf16": call(learnableSink=spec((4,), "BFLOAT16"), sparseMode=3, attenMask=CAUSAL, Q=1),
    "sink of zeros": call(learnableSink=spec((4,), "FLOAT16", fill=Constant(0))),
    "rope": split(),
    "mla": mla("BSH_NBSD"),
    "unequal": call(DV=48),
    "odd head": call(D=20),
    "rows without keys": dead_rows(),
    "rows without keys beside a sink": dead_rows(learnableSink=spec((4,), "FLOAT16")),
    "lse": call(lse=True, attenMask=mask(2, 1, 5, 24), q_lens=(3, 5)),
    "lse causal": call("NTD", lse=True, dtype="BFLOAT16", sparseMode=3, attenMask=CAUSAL),
    "lse sink": sink(lse=True),
    "lse high sink": call(lse=True, learnableSink=spec((4,), "FLOAT16", [200.0, 95.0, 0.0, -50.0]), sparseMode=3, attenMask=CAUSAL),
    "lse bias": bias(lse=True),
    "lse rows without keys": dead_rows(lse=True),
    "int8 by tensor": call(kv="INT8", **scales()),
    "int8 by head": call(kv="INT8", sparseMode=3, attenMask=CAUSAL, **scales(HEAD, HEAD, **BY_HEAD)),
    "int8 by channel": channel("INT8", dtype="BFLOAT16"),
    "int8 by tensor and channel": channel("INT8", keyAntiquantScale=ONE),
    "int8 combined": call(kv="INT8", antiquantScale=spec((2, 2, 1, 64), "FLOAT16", fill=Uniform(0.01, 0.05))),
    "int4 by tensor": call(kv="INT4", sparseMode=3, attenMask=CAUSAL, **scales()),
    "int4 by channel": channel("INT4", KN=1),
    "int4 in words": channel("INT32"),
    "int4 lse": channel("INT4", lse=True),
}


def close(case):
    assert GQA.cannot_express(Scene(case)) is None
    tensors, got, want = materialize(case), buffers(case), buffers(case)
    outcome = GQA.run(case, Scene(case), tensors, got)
    assert outcome.kind == "ok" and outcome.flaw is None, (outcome.message, outcome.flaw)
    assert CpuBackend().compute(Scene(case), tensors, want).kind == "ok"
    for name in want:
        dtype = getattr(case.outputs, name).dtype
        a, b = decode(dtype, got[name]), decode(dtype, want[name])
        allowed = {"FLOAT16": 2.0**-9, "BFLOAT16": 2.0**-6, "FLOAT32": 3e-4}[dtype]
        with np.errstate(invalid="ignore"):
            assert ((a == b) | (np.abs(a - b) <= allowed * (1 + np.abs(b)))).all(), name


@pytest.fixture
def steps(monkeypatch):
    """What is handed to the node: (inputs given, attributes, outputs asked for, form) of every run."""
    seen = []
    real = ort_gqa_node.Step.through

    def spy(self, names, attributes):
        seen.append((set(self.feeds), dict(attributes), [n for n in names if n], self.form, self))
        return real(self, names, attributes)

    monkeypatch.setattr(ort_gqa_node.Step, "through", spy)
    return seen


@pytest.mark.parametrize("name", RUN)
def test_agrees_with_the_cpu_kernel(name, steps):
    # Of the forms, dtypes and ways to say a band that a call can take, the seed chooses: 0 the band itself, 3 a mask.
    for seed in (0, 3):
        close(RUN[name].replace(seed=seed))
    assert steps


def test_every_form_and_native_feature_is_reached(steps):
    for name in ("causal", "square", "packed", "ragged", "band", "decode", "causal bias", "sink of zeros", "lse", "int8 by tensor"):
        for seed in range(12):
            close(RUN[name].replace(seed=seed))
    forms = Counter(form.name for *_, form, _ in steps)
    assert set(forms) == {SHARED, APPEND, PROMPT, CHUNK, EVICT}
    assert any("local_window_size" in a for _, a, *_ in steps) and any("sliding_window_cache" in a for _, a, *_ in steps)
    assert any(a["causal"] and "attention_bias" in g for g, a, *_ in steps)
    assert any("query_seqlens" in g and len(step.entries) > 1 and len({e.rows for e in step.entries}) > 1 for g, *_, step in steps)
    assert any(len(step.entries) > 1 and step.form.name == SHARED for *_, step in steps)
    assert any("query" in g and "key" not in g for g, *_ in steps), "query, key and value in one input"
    assert any("smooth_softmax" in a and "head_sink" not in g for g, a, *_ in steps)
    assert any("head_sink" in g for g, *_ in steps)
    assert {step.T.name for *_, step in steps} == {"float16", "float32"}
    assert {form.flash for *_, form, _ in steps} == {True, False} == {form.in_place for *_, form, _ in steps}
    assert {a.get("qk_output", 0) for _, a, *_ in steps} == {0, 1, 2}
    assert any(a.get("kv_cache_bit_width") == 8 and form.name == APPEND for _, a, _, form, _ in steps)
    assert any("present_key" not in o for _, _, o, *_ in steps)


def entry(R=3, L=9, N=4, KN=2, D=16, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(shape).astype(dtype) for shape in ((N, R, D), (KN, L, D), (KN, L, D)))
    return Entry(q, k, v)


def plain(e, scale=0.25, window=0):
    """Causal attention of an entry by the formula, float64."""
    R, L, G = e.rows, e.keys, e.q.shape[0] // e.k.shape[0]
    k, v = np.repeat(e.k, G, 0).astype(float), np.repeat(e.v, G, 0).astype(float)
    i, j = np.arange(R)[:, None] + L - R, np.arange(L)
    s = np.where((j <= i) & ((j > i - window) | (window == 0)), e.q.astype(float) @ k.swapaxes(1, 2) * scale, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("name", [SHARED, APPEND, CHUNK, EVICT])
@pytest.mark.parametrize("slack", [0, 1, 5])
@pytest.mark.parametrize("window", [1, 3, 8, 9, 12])
def test_every_form_says_the_same(name, slack, window):
    for R in (1, 3, 9):
        e = entry(R)
        for in_place in (False, True):
            found = attend([e], Setting(0.25, True, window), Form(name, slack=slack, padding=2, in_place=in_place), lse=False)
            assert found.flaw is None and np.abs(found.out[0] - plain(e, window=window)).max() < 1e-5


def test_lengths_of_their_own():
    entries = [entry(R, L, seed=R) for R, L in ((1, 1), (3, 9), (5, 20), (1, 12), (7, 7))]
    for name in (CHUNK, EVICT):
        window = 4 if name == EVICT else 0
        found = attend(entries, Setting(0.25, True, window), Form(name, slack=1, padding=2), lse=False)
        assert found.flaw is None
        for e, out in zip(entries, found.out):
            assert out.shape == e.q.shape and np.abs(out - plain(e, window=window)).max() < 1e-5


def test_a_wrong_present_cache_is_a_flaw(monkeypatch):
    real = ort_gqa_node.Step.through

    def spoil(self, names, attributes):
        found = real(self, names, attributes)
        if "present_value" in found:
            found["present_value"] = found["present_value"].copy()
            found["present_value"][0, 0, 0, 0] += 1
        return found

    monkeypatch.setattr(ort_gqa_node.Step, "through", spoil)
    for case in (RUN["causal"], RUN["int8 by tensor"]):
        flaws = set()
        for seed in range(8):
            case = case.replace(seed=seed)
            outcome = GQA.run(case, Scene(case), materialize(case), buffers(case))
            flaws.add(outcome.flaw and outcome.flaw[0])
        assert "F101" in flaws


def test_quantised_keys_enter_as_the_codes_they_are():
    codes = np.tile(np.arange(-128, 128, dtype=np.int8).reshape(1, 16, 16), (2, 1, 1))
    rng = np.random.default_rng(1)
    per_channel = rng.uniform(0.001, 0.1, (1, 2, 1, 16)).astype(np.float32)
    for dtype in (np.float32, np.float16):
        q = rng.standard_normal((4, 8, 16)).astype(dtype)
        for quantised in (Quantised(8, per_channel, per_channel), Quantised(8, np.float32([0.02]), np.float32([0.03]))):
            e = Entry(q, codes, codes)
            setting = Setting(0.1, True, quantised=quantised)
            assert APPEND in ort_gqa_node.forms([e], setting, scores=False)
            real = Entry(q.astype(np.float32), codes * quantised.k_scale.reshape(-1, 1, quantised.k_scale.shape[-1]),
                         codes * quantised.v_scale.reshape(-1, 1, quantised.v_scale.shape[-1]))
            for name in (SHARED, APPEND, CHUNK):
                found = attend([e], setting, Form(name), lse=False)
                assert found.flaw is None
                assert np.abs(found.out[0] - plain(real, 0.1)).max() < (1e-5 if dtype == np.float32 else 5e-3)


def test_codes_that_no_number_gives_are_only_cached():
    e = Entry(np.ones((2, 1, 16), np.float16), np.ones((1, 2, 16), np.int8), np.ones((1, 2, 16), np.int8))
    tiny = Quantised(8, np.float32([1e-9]), np.float32([1.0]))
    assert ort_gqa_node.forms([e], Setting(1.0, True, 1, quantised=tiny), scores=False) == [SHARED]
    assert EVICT not in ort_gqa_node.forms([e], Setting(1.0, True, 1, quantised=Quantised(4, *([np.float32([1.0])] * 2))), scores=False)


def test_four_bits_a_nibble():
    codes = np.array([[[-8, 7, 0, -1]]], np.int8)
    assert Quantised(4, np.ones(1), np.ones(1)).stored(codes).tolist() == [[[0xF0, 0x78]]]


def test_a_broken_policy_is_seen(monkeypatch):
    real = ort_gqa.attend
    for value, flaw in ((np.nan, None), (0.0, None), (2.0, ("F101", "a row without keys holds 2 where NaN or 0 is declared"))):

        def spoil(entries, setting, form, *, lse, value=value):
            found = real(entries, setting, form, lse=lse)
            return replace(found, out=[np.where(np.isnan(o) | (o == 0), np.float32(value), o) for o in found.out])

        monkeypatch.setattr(ort_gqa, "attend", spoil)
        case = dead_rows()
        assert GQA.run(case, Scene(case), materialize(case), buffers(case)).flaw == flaw


def test_a_scale_of_zero_is_said_by_a_query_of_zeros(steps, monkeypatch):
    close(RUN["zero scale"])
    assert ort_gqa_node.zero_means_default() and all(a["scale"] != 0 for _, a, *_ in steps[-1:])
    monkeypatch.setattr(ort_gqa, "zero_means_default", lambda: False)
    case: Case = RUN["zero scale"]
    GQA.run(case, Scene(case), materialize(case), buffers(case))
    assert steps[-1][1]["scale"] == 0


def test_the_blockwise_kernel_can_be_left_out(monkeypatch):
    monkeypatch.setenv(ort_gqa_node.NO_FLASH, "as before")
    e = entry(64, 200, D=64)
    with_it, without = (attend([e], Setting(0.125, True), Form(APPEND, flash=flash), lse=False).out[0] for flash in (True, False))
    assert np.abs(with_it - without).max() < 1e-5 and (with_it != without).any()
    import os

    assert os.environ[ort_gqa_node.NO_FLASH] == "as before"


def test_sessions_are_kept_for_other_shapes():
    attend([entry(3, 9)], Setting(0.25, True), Form(APPEND), lse=False)
    before = list(ort._kept.values())
    attend([entry(2, 30, N=4)], Setting(0.25, True), Form(APPEND), lse=False)
    assert list(ort._kept.values()) == before


def test_what_is_declared():
    info = GQA.info
    assert info.checks == "none" and info.versions["onnxruntime"]
    assert {"masked_row", "masked_nan", "scale_zero", "head_size"} <= set(info.policies)


def test_a_masked_nan_leaks_as_declared():
    e = entry(2, 6)
    hidden = np.zeros((1, 2, 6), np.float32)
    hidden[..., 5] = -np.inf
    e.v[:, 5] = np.nan
    for flash, causal, added in ((True, True, None), (False, True, None), (False, False, hidden)):
        setting, form = Setting(0.25, causal), Form(APPEND, flash=flash)
        out = attend([replace(e, bias=added)], setting, form, lse=False).out[0]
        assert np.isnan(out[:, -1]).all() if added is None else np.isnan(out).all()


def test_present_and_past_share_their_memory_in_place():
    step = ort_gqa_node.Step([entry(2, 6)], Setting(0.25, True), Form(APPEND, in_place=True))
    assert np.isnan(step.feeds["past_key"][:, :, 4:]).all()
    step.run()
    assert step.flaw is None and np.array_equal(step.feeds["past_key"][0], entry(2, 6).k)


def test_a_sink_that_float16_cannot_hold_is_computed_in_float32():
    def single(case):
        return {ort_gqa.GqaCall(read_problem(Scene(c)), materialize(c)).single for c in (case.replace(seed=n) for n in range(8))}

    assert single(call(learnableSink=spec((4,), "FLOAT32", [0.1, 0.2, 0.3, 0.4]))) == {True}
    assert single(sink()) == {True, False}


def test_a_query_that_lies_rows_first_is_not_copied():
    laid = np.zeros((3, 4, 16), np.float32)
    step = ort_gqa_node.Step([replace(entry(), q=laid.transpose(1, 0, 2))], Setting(0.25, True), Form(APPEND))
    assert np.shares_memory(step.feeds["query"], laid)


def test_row_blocks_agree(monkeypatch):
    monkeypatch.setattr(ort_gqa, "MASK_BUDGET", 500)
    close(call(Q=33, attenMask=mask(33, 24)))
    close(bias(1, 4, 33, 24, Q=33, sparseMode=3, attenMask=CAUSAL))
