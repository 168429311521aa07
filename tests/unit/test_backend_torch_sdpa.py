"""The two SDPA backends: what they refuse, and that what they run agrees with the cpu kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fiafuzz.backends.cpu import CpuBackend
from fiafuzz.backends.dense import DenseBackend
from fiafuzz.backends.torch_sdpa import FlashBackend, MathBackend
from fiafuzz.model.codecs import decode
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from tests.unit.backend_cases import CAUSAL, buffers, call, mask
from tests.unit.fault_cases import alibi, bias, channel, int8_full, mla, padded, post, sink, split

MATH, FLASH = MathBackend(), FlashBackend()

REFUSED = [
    (MATH, call(lse=True), "softmaxLse"),
    (MATH, sink(), "learnableSink"),
    (MATH, post(), "another dtype"),
    (MATH, channel(), "quantised"),
    (MATH, int8_full(), "quantised"),
    (MATH, call(K=0), "empty"),
    (FLASH, split(), "rope"),
    (FLASH, call(DV=48), "different size"),
    (FLASH, bias(lse=True), "bias"),
    (FLASH, call().replace(query=None), ""),
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


RUN = {
    "plain": call(),
    "mask": call(attenMask=mask(2, 1, 5, 24)),
    "causal": call(sparseMode=3, attenMask=CAUSAL, Q=9, K=5),
    "band": call("TND", sparseMode=4, preTokens=5, nextTokens=1, attenMask=CAUSAL),
    "bias": bias(attenMask=mask(5, 24)),
    "alibi": alibi(3),
    "paged": call("TND", cache="NZ"),
    "list": call("BSH", lists=(5, 9)),
    "prefix": call(prefix=6),
    "padding": padded(q=1, kv=2),
    "short": call(q_lens=(3, 0), kv_lens=(0, 9)),
    "bf16": call(dtype="BFLOAT16"),
    "negative scale": call(scale=-0.3),
    "zero scale": call(scale=0.0),
}
ONLY_MATH = {"rope": split(), "mla": mla("BSH_NBSD"), "unequal": call(DV=48)}
WITH_LSE = {
    "lse": call(lse=True, attenMask=mask(2, 1, 5, 24), q_lens=(3, 5)),
    "lse bf16": call("NTD", lse=True, dtype="BFLOAT16"),
}


def close(case, backend):
    assert backend.cannot_express(Scene(case)) is None
    tensors, got, want = materialize(case), buffers(case), buffers(case)
    outcome = backend.run(case, Scene(case), tensors, got)
    assert outcome.kind == "ok", outcome.message
    assert CpuBackend().compute(Scene(case), tensors, want).kind == "ok"
    for name in want:
        dtype = getattr(case.outputs, name).dtype
        a, b = decode(dtype, got[name]), decode(dtype, want[name])
        allowed = {"FLOAT16": 2.0**-9, "BFLOAT16": 2.0**-6, "FLOAT32": 3e-4}[dtype]
        with np.errstate(invalid="ignore"):
            near = np.isfinite(b) & (np.abs(a - b) <= allowed * (1 + np.abs(b)))
        assert ((a == b) | near).all(), name


@pytest.mark.parametrize("name", [*RUN, *ONLY_MATH])
def test_math_agrees_with_the_cpu_kernel(name):
    close({**RUN, **ONLY_MATH}[name], MATH)


@pytest.mark.parametrize("name", [*RUN, *WITH_LSE])
def test_flash_agrees_with_the_cpu_kernel(name):
    close({**RUN, **WITH_LSE}[name], FLASH)


def test_the_forced_kernel_is_the_one_that_runs():
    from torch.profiler import ProfilerActivity, profile

    case = call()
    names = {}
    for backend in (MATH, FLASH):
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            assert backend.run(case, Scene(case), materialize(case), buffers(case)).kind == "ok"
        names[backend.name] = {event.key for event in seen.key_averages()}
    assert any("flash" in n for n in names["torch-sdpa-flash"]) and not any("flash" in n for n in names["torch-sdpa-math"])


@pytest.mark.parametrize("inner_precise", [0, 2])
def test_a_row_without_keys_is_looked_at_whatever_the_reference_says(monkeypatch, inner_precise):
    case = call(attenMask=mask(5, 24, p=1.0), innerPrecise=inner_precise)
    assert MATH.run(case, Scene(case), materialize(case), buffers(case)).flaw is None
    plain = "fiafuzz.backends.torch_sdpa.scaled_dot_product_attention"
    monkeypatch.setattr(plain, lambda q, k, v, **more: torch.full((*q.shape[:-1], v.shape[-1]), 0.5))
    flaw = MATH.run(case, Scene(case), materialize(case), buffers(case)).flaw
    assert flaw is not None and flaw[0] == "F101" and "holds 0.5 where 0 is declared" in flaw[1]


def test_policies_are_declared():
    for backend in (MATH, FLASH):
        assert isinstance(backend, DenseBackend)
        assert backend.info.policies["masked_row"] == "zero" and "leaks" in backend.info.policies["masked_nan"]
        assert backend.info.checks == "none" and backend.info.versions["torch"]


def test_row_blocks_agree(monkeypatch):
    case = call(Q=33, attenMask=mask(33, 24))
    tensors, whole, parts = materialize(case), buffers(case), buffers(case)
    MATH.run(case, Scene(case), tensors, whole)
    monkeypatch.setattr("fiafuzz.backends.dense.MASK_BUDGET", 500)
    MATH.run(case, Scene(case), tensors, parts)
    assert np.abs(whole["attentionOut"].astype(float) - parts["attentionOut"].astype(float)).max() < 2e-3
