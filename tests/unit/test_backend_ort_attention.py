"""Attention of ONNX Runtime: what each opset refuses, that all agree with the cpu kernel in whatever words the seed chooses, that
the operator's own words are used, and that what is declared is looked at."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fiafuzz.backends.catalogue import ONNXRUNTIME
from fiafuzz.model.case import Uniform
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from tests.unit.backend_cases import CAUSAL, buffers, call, mask, spec
from tests.unit.fault_cases import bias, channel, int8_full, post, sink
from tests.unit.ort_calls import RUN, Spy, close, run
from tests.unit.wheels import wheel

wheel("onnx", "onnx")
wheel("onnxruntime", ONNXRUNTIME)

from fiafuzz.backends import ort, ort_attention
from fiafuzz.backends.ort_attention import Attention23, Attention24, Attention25

BACKENDS = (Attention23(), Attention24(), Attention25())
A23, A24, A25 = BACKENDS
SEEDS = range(3)

REFUSED = [
    (A24, sink(), "learnableSink"),
    (A24, post(), "another dtype"),
    (A25, channel(), "quantised"),
    (A25, int8_full(), "quantised"),
    (A23, call(K=0), "empty"),
    (A23, call(scale=0.0), "scale of 0"),
    (A24, call(scale=1e-60), "scale of 0"),
    (A25, call(scale=1e60), "no float32"),
    (A24, call().replace(query=None), ""),
]


@pytest.mark.parametrize(("backend", "case", "reason"), REFUSED)
def test_what_cannot_be_said_is_not_run(backend, case, reason):
    found = backend.cannot_express(Scene(case))
    assert found is not None and reason in found
    held = buffers(case)
    before = {name: array.copy() for name, array in held.items()}
    outcome = backend.run(case, Scene(case), materialize(case), held)
    assert outcome.kind == "unsupported" and outcome.message == found
    assert all(np.array_equal(held[n].view(np.uint8), before[n].view(np.uint8)) for n in held)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
@pytest.mark.parametrize("name", RUN)
def test_it_agrees_with_the_cpu_kernel(backend, name):
    for seed in SEEDS:
        close(backend, RUN[name].replace(seed=seed))


def test_a_scale_of_zero_is_run_where_it_is_taken():
    close(A25, call(scale=0.0))


def asked(monkeypatch, backend, case, seeds=24):
    spy = Spy(ort.run_node)
    monkeypatch.setattr(ort, "run_node", spy)
    for seed in range(seeds):
        outcome = run(backend, case.replace(seed=seed))
        assert outcome.kind == "ok" and outcome.flaw is None, outcome
    return spy.asked


def test_a_diagonal_is_said_by_flag_past_and_lengths(monkeypatch):
    case = call(sparseMode=3, attenMask=CAUSAL, Q=5, K=15)
    for backend in BACKENDS:
        found = asked(monkeypatch, backend, case)
        causal = [(given, words) for given, words, _ in found if words.get("is_causal") or words.get("right_window_size") is not None]
        plain = [given for given, words, _ in found if not words.get("is_causal") and words.get("right_window_size") is None]
        assert causal and all("attn_mask" not in given for given, _ in causal)
        # The other way is an explicit mask.
        assert plain and all("attn_mask" in given for given in plain)
        moved = [(given["past_key"].shape[2], words) for given, words in causal if "past_key" in given]
        assert moved and all(past + max(0, words.get("right_window_size", 0)) == 10 for past, words in moved)
        assert any("nonpad_kv_seqlen" in given for given, _ in causal) == (backend is not A23)


def test_a_band_is_said_by_the_windows_of_opset_25(monkeypatch):
    case = call("TND", sparseMode=4, preTokens=3, nextTokens=2, attenMask=CAUSAL, q_lens=(4, 7), kv_lens=(9, 12))
    for backend in BACKENDS:
        found = asked(monkeypatch, backend, case)
        windows = [words for _, words, _ in found if "left_window_size" in words]
        assert bool(windows) == (backend is A25)
    together = [(given, words) for given, words, _ in found if len(given["Q"]) == 2 and "left_window_size" in words]
    assert together and all((w["left_window_size"], w["right_window_size"]) == (3, 2) for _, w in together)
    assert all(given["nonpad_kv_seqlen"].tolist() == [9, 12] and "attn_mask" not in given for given, _ in together)
    assert any(words.get("is_causal") for _, words, _ in asked(monkeypatch, A25, case.replace(nextTokens=0)))


def test_all_batches_go_together_or_one_after_the_other(monkeypatch):
    case = call(q_lens=(3, 5), kv_lens=(9, 24), attenMask=mask(2, 1, 5, 24))
    for backend in (A24, A25):
        sizes = {len(given["Q"]) for given, _, _ in asked(monkeypatch, backend, case)}
        assert sizes == {1, 2}
    assert {len(given["Q"]) for given, _, _ in asked(monkeypatch, A23, case)} == {1}


def test_every_form_of_the_operands_is_used(monkeypatch):
    found = asked(monkeypatch, A25, call(attenMask=mask(5, 24)), seeds=60)
    assert {given["Q"].ndim for given, _, _ in found} == {3, 4}
    assert {given["Q"].dtype for given, _, _ in found} == {np.dtype("float16"), np.dtype("float32")}
    masks = [given["attn_mask"] for given, _, _ in found]
    assert {m.dtype.kind for m in masks} == {"b", "f"} and {m.ndim for m in masks} == {2, 3, 4}
    assert {m.shape[1] for m in masks if m.ndim == 4} == {1, 4}
    tails = {given["K"].shape[-2] - given["nonpad_kv_seqlen"].max() for given, _, _ in found if "nonpad_kv_seqlen" in given}
    assert {int(t) for t in tails} == set(ort_attention.TAILS)
    short = [given for given, _, _ in found if "nonpad_kv_seqlen" in given and given["attn_mask"].shape[-1] < given["K"].shape[-2]]
    assert short
    assert any("past_key" in given for given, _, _ in found)
    # Present outputs come with every past, and now and then without.
    assert all("present_key" in outputs for given, _, outputs in found if "past_key" in given)
    assert any("present_key" in outputs for given, _, outputs in found if "past_key" not in given)


def test_logarithms_come_from_scores_and_probabilities(monkeypatch):
    found = asked(monkeypatch, A24, bias(lse=True, attenMask=mask(5, 24)))
    modes = [words["qk_matmul_output_mode"] for _, words, _ in found]
    assert set(modes[::2]) == {0, 1, 2} and set(modes[1::2]) == {3}
    assert {given["Q"].dtype for given, _, _ in found} == {np.dtype("float32")}


def bent(monkeypatch, backend, case, bend, seeds=12):
    monkeypatch.setattr(ort, "run_node", Spy(ort.run_node, bend))
    return [run(backend, case.replace(seed=seed)) for seed in range(seeds)]


def test_wrong_present_keys_are_seen(monkeypatch):
    def bend(given, found):
        if "present_value" in found:
            found["present_value"][0, 0, -1, -1] += 1

    flaws = [o.flaw for o in bent(monkeypatch, A24, call(), bend)]
    assert None in flaws and ("F101", "present_value does not hold the past and the new columns") in flaws


def test_a_wrong_value_in_float16_is_seen(monkeypatch):
    def bend(given, found):
        if given["Q"].dtype == np.float16:
            found["Y"].reshape(-1)[7] += np.float16(0.2)

    flaws = [o.flaw for o in bent(monkeypatch, A23, call(), bend)]
    assert None in flaws and any(f is not None and f[0] == "F101" and "FLOAT16" in f[1] for f in flaws)


@pytest.mark.parametrize("name", ["dead rows", "ragged dead rows"])
def test_a_row_without_keys_must_be_zero(monkeypatch, name):
    def bend(given, found):
        found["Y"][...] = np.where(found["Y"] == 0, np.nan, found["Y"])

    monkeypatch.setattr(ort, "run_node", Spy(ort.run_node, bend))
    for seed in SEEDS:
        with pytest.raises(AssertionError, match=r"attentionOut|a row without keys holds nan"):
            close(A24, RUN[name].replace(seed=seed))
    assert A24.info.policies["masked_row"] == "zero"


def test_an_inexact_bias_is_not_given_in_float16(monkeypatch):
    grid = call(pseShift=spec((1, 4, 5, 24), "BFLOAT16", fill=Uniform(-2e-6, 2e-6)))
    assert {given["Q"].dtype for given, _, _ in asked(monkeypatch, A24, grid)} == {np.dtype("float32")}


def test_large_scores_are_not_looked_at_in_float16(monkeypatch):
    monkeypatch.setattr(ort_attention, "MASK_BUDGET", 2 * 4 * 5 * 24 - 1)
    assert {given["Q"].dtype for given, _, _ in asked(monkeypatch, A24, call(), seeds=8)} == {np.dtype("float32")}
    monkeypatch.setattr(ort_attention, "MASK_BUDGET", 2 * 4 * 5 * 24)
    assert np.dtype("float16") in {given["Q"].dtype for given, _, _ in asked(monkeypatch, A24, call(), seeds=8)}


def test_limits_in_float16():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, s, 16).half() for n, s in ((4, 5), (2, 9), (2, 9)))
    seen = torch.rand(2, 1, 5, 9) < 0.6
    seen[0, 0, 2] = False
    seen[..., 8] = False
    limit = ort.half_limit(q, k, v, 0.25, seen, None)
    assert limit is not None and limit.shape == (2, 4, 5, 16) and limit[0, 0, 2].max() <= 2.0**-24
    # Some units in the last place of values around 1, and no more for loud values behind the mask.
    assert 5 * ort.HALF * 0.1 < limit[1].mean() < 40 * ort.HALF
    loud = v.clone()
    loud[:, :, 8] = 1000
    assert torch.equal(limit, ort.half_limit(q, k, loud, 0.25, seen, None))
    assert ort.half_limit(q * 500, k * 500, v, 1.0, None, None) is None


def test_sessions_are_kept_and_few(monkeypatch):
    case = call()
    run(A24, case)
    before = dict(ort._kept)
    run(A24, call(Q=7, K=11))
    assert list(ort._kept.items())[-1][0] in before
    monkeypatch.setattr(ort, "SESSIONS", 3)
    for n in range(1, 6):
        run(A24, call(scale=n / 8))
    assert len(ort._kept) <= 3
    kept = list(ort._kept.values())[-1].get_session_options()
    assert (kept.intra_op_num_threads, kept.inter_op_num_threads) == (1, 1)


def test_what_is_declared():
    for backend, opset in zip(BACKENDS, (23, 24, 25)):
        assert backend.info.name == f"ort-attention:{opset}" and backend.info.checks == "none"
        assert {"masked_nan", "float16", "scale"} <= backend.info.policies.keys()
        assert {"onnxruntime", "onnx", "cpu"} == backend.info.versions.keys()


def test_exceptions(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("[ONNXRuntimeError] : 6 : Failed to allocate memory for requested buffer of size 9\nmore")

    monkeypatch.setattr(ort, "run_node", fail)
    assert run(A24, call()).kind == "unsupported"

    def trip(*_, **__):
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr(ort, "run_node", trip)
    outcome = run(A24, call())
    assert outcome.kind == "error" and outcome.message == "RuntimeError: first"
