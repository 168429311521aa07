"""MultiHeadAttention of ONNX Runtime: what it refuses, that it agrees with the cpu kernel in whatever words the seed chooses, that
the operator's own words are used, and that what is declared is looked at."""

from __future__ import annotations

import numpy as np
import pytest

from fiafuzz.backends.catalogue import ONNXRUNTIME
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from tests.unit.backend_cases import CAUSAL, buffers, call, mask
from tests.unit.fault_cases import bias, channel, int8_full, post, sink
from tests.unit.ort_calls import RUN, Spy, close, run
from tests.unit.wheels import wheel

wheel("onnx", "onnx")
wheel("onnxruntime", ONNXRUNTIME)

from fiafuzz.backends import ort, ort_mha

MHA = ort_mha.MhaBackend()
SEEDS = range(8)

REFUSED = [
    (sink(), "learnableSink"),
    (post(), "another dtype"),
    (channel(), "quantised"),
    (int8_full(), "quantised"),
    (call(K=0), "empty"),
    (call(scale=0.0), "scale of 0"),
    (call(scale=1e60), "no float32"),
]


@pytest.mark.parametrize(("case", "reason"), REFUSED)
def test_what_cannot_be_said_is_not_run(case, reason):
    found = MHA.cannot_express(Scene(case))
    assert found is not None and reason in found
    held = buffers(case)
    before = {name: array.copy() for name, array in held.items()}
    outcome = MHA.run(case, Scene(case), materialize(case), held)
    assert outcome.kind == "unsupported" and outcome.message == found
    assert all(np.array_equal(held[n].view(np.uint8), before[n].view(np.uint8)) for n in held)


@pytest.mark.parametrize("name", RUN)
def test_it_agrees_with_the_cpu_kernel(name):
    for seed in SEEDS:
        close(MHA, RUN[name].replace(seed=seed))


def test_large_scores_do_not_undo_a_mask():
    for seed in SEEDS:
        close(MHA, call(attenMask=mask(5, 24), scale=4000.0, seed=seed))


def asked(monkeypatch, case, seeds=24):
    spy = Spy(ort.run_node)
    monkeypatch.setattr(ort, "run_node", spy)
    for seed in range(seeds):
        outcome = run(MHA, case.replace(seed=seed))
        assert outcome.kind == "ok" and outcome.flaw is None, outcome
    return spy.asked


def test_a_triangle_is_said_by_the_flag(monkeypatch):
    for case, past in ((call(sparseMode=2, attenMask=CAUSAL, Q=9, K=9), 0), (call(sparseMode=3, attenMask=CAUSAL, Q=5, K=15), 10)):
        found = asked(monkeypatch, case)
        flags = [given for given, words, _ in found if words.get("unidirectional")]
        masks = [given for given, words, _ in found if not words.get("unidirectional")]
        assert flags and masks
        assert all("past_key" in given for given in flags) == (past > 0)
        # Beside the flag there is a padding mask for lengths at most, and all of its rows are the same.
        assert all("attention_bias" not in given for given in flags)
        full = [given["key_padding_mask"] for given in flags if given.get("key_padding_mask", np.empty(0)).ndim == 3]
        assert all((m == m[:, :1]).all() for m in full)


def test_all_batches_go_together_or_one_after_the_other(monkeypatch):
    found = asked(monkeypatch, call(q_lens=(3, 5), kv_lens=(9, 24)))
    assert {len(given["query"]) for given, _, _ in found} == {1, 2}
    assert all("key_padding_mask" in given for given, _, _ in found if len(given["query"]) == 2)


def test_every_form_of_the_operands_is_used(monkeypatch):
    found = asked(monkeypatch, call(), seeds=80)
    masks = [given["key_padding_mask"] for given, _, _ in found if "key_padding_mask" in given]
    assert {m.ndim for m in masks} == {1, 2, 3} and {m.shape for m in masks if m.ndim == 1} == {(2,), (8,)}
    assert any("key_padding_mask" not in given for given, _, _ in found)
    assert {given["key"].ndim for given, _, _ in found} == {3, 4}
    past = [given for given, _, _ in found if "past_key" in given]
    assert past and {"past_sequence_length" in given for given in past} == {True, False}
    assert all("present_key" in outputs for given, _, outputs in found if "past_key" in given)
    assert any("bias" in given for given, _, _ in found) and not any(given["bias"].any() for given, _, _ in found if "bias" in given)


def test_what_hides_is_a_padding_mask_or_a_bias_with_every_filter(monkeypatch):
    found = asked(monkeypatch, call(attenMask=mask(5, 24)), seeds=40)
    assert {"attention_bias" in given for given, _, _ in found} == {True, False}
    assert {words.get("mask_filter_value") for _, words, _ in found} == {None, -10000.0, -np.inf}


def test_logarithms_come_from_the_kernels_scores(monkeypatch):
    def bend(given, found):
        found["qk"] += 1

    monkeypatch.setattr(ort, "run_node", Spy(ort.run_node, bend))
    with pytest.raises(AssertionError, match="softmaxLse"):
        close(MHA, bias(lse=True))


def bent(monkeypatch, case, bend, seeds=12):
    monkeypatch.setattr(ort, "run_node", Spy(ort.run_node, bend))
    return [run(MHA, case.replace(seed=seed)).flaw for seed in range(seeds)]


def test_wrong_present_keys_are_seen(monkeypatch):
    def bend(given, found):
        if "present_key" in found:
            found["present_key"][0, 0, 0, 0] += 1

    flaws = bent(monkeypatch, call(), bend)
    assert None in flaws and ("F101", "present_key does not hold the past and the new columns") in flaws


def test_rows_without_keys_are_looked_at(monkeypatch):
    def other(given, found):
        found["output"][...] = np.where(np.isnan(found["output"]), 1, found["output"])

    assert any(f is not None and "is a number" in f[1] for f in bent(monkeypatch, RUN["dead rows"], other))

    def nan(given, found):
        found["output"][...] = np.nan

    flaws = bent(monkeypatch, RUN["dead rows"], nan)
    assert None in flaws and any(f is not None and "is no number" in f[1] for f in flaws)
    policies = MHA.info.policies
    assert "NaN" in policies["masked_row"] and "leaks" in policies["masked_nan"]


def test_a_shrunk_call_keeps_its_way(monkeypatch):
    # The choices hang on the seed alone, so a smaller call of the same seed is said in the same words.
    words, real = [], ort.run_node
    for case in (call(seed=7), call(seed=7, B=1, Q=3)):
        spy = Spy(real)
        monkeypatch.setattr(ort, "run_node", spy)
        run(MHA, case)
        words.append([sorted(given) for given, _, _ in spy.asked])
    assert words[0] == words[1]
