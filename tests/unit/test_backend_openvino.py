"""OpenVINO with and without a key-value cache: what is refused, that all else agrees with the cpu kernel however it is said, and
that the declared policies and the declared kernels are the real ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fiafuzz.backends.cpu import CpuBackend
from fiafuzz.backends.dense import DenseCall
from fiafuzz.model.case import Case
from fiafuzz.model.codecs import decode
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from tests.unit.backend_cases import CAUSAL, buffers, call, mask
from tests.unit.fault_cases import alibi, bias, channel, dead_rows, mla, padded, post, sink, split
from tests.unit.wheels import wheel

# Never `import openvino` itself before this: it would send a message to a statistics service.
models = wheel("fiafuzz.backends.openvino_models", "openvino")

from fiafuzz.backends import openvino_sdpa
from fiafuzz.backends.openvino_sdpa import CacheBackend, OpenvinoBackend

PLAIN, CACHE = OpenvinoBackend(), CacheBackend()
BOTH = pytest.mark.parametrize("backend", [PLAIN, CACHE], ids=["plain", "stateful"])


@pytest.mark.parametrize(
    ("case", "reason"),
    [(call(lse=True), "softmaxLse"), (post(), "another dtype"), (channel(), "quantised"), (call(K=0), "empty")],
)
@BOTH
def test_what_cannot_be_said_is_not_run(backend, case, reason):
    found = backend.cannot_express(Scene(case))
    assert found is not None and reason in found
    held = buffers(case)
    before = {name: array.copy() for name, array in held.items()}
    assert backend.run(case, Scene(case), materialize(case), held).kind == "unsupported"
    assert all(np.array_equal(held[n].view(np.uint8), before[n].view(np.uint8)) for n in held)


def causal(mode: int, **more: object) -> Case:
    return call(sparseMode=mode, attenMask=CAUSAL, **more)  # type: ignore[arg-type]


RUN = {
    "plain": call(),
    "three batches": call(B=3, K=40),
    "one head": call(KN=1),
    "equal heads": call(KN=4, scale=0.3),
    "mask": call(attenMask=mask(2, 1, 5, 24)),
    "shared mask": call(attenMask=mask(5, 24)),
    "top left": causal(2, Q=9, K=9),
    "bottom right": causal(3),
    "bottom right, few keys": causal(3, Q=9, K=5),
    "band": call("TND", sparseMode=4, preTokens=5, nextTokens=1, attenMask=CAUSAL),
    "bias": bias(attenMask=mask(5, 24)),
    "bias for each batch, one head": bias(2, 1, 5, 24, N=1, KN=1),
    "alibi": alibi(3),
    "sink": sink(attenMask=mask(2, 1, 5, 24)),
    "paged": call("TND", cache="NZ"),
    "list": call("BSH", lists=(5, 9)),
    "prefix": call(prefix=6),
    "padding": padded(q=1, kv=2),
    "short": call(q_lens=(3, 0), kv_lens=(0, 9)),
    "bf16": call(dtype="BFLOAT16", attenMask=mask(2, 1, 5, 24)),
    "odd head": call(D=17, scale=0.3),
    "rope": split(),
    "mla": mla("BSH_NBSD"),
    "unequal": call(DV=48),
    "long": call(K=130, Q=3),
    "negative scale": call(scale=-0.3),
    "dead rows": dead_rows(),
    "dead rows, bf16": dead_rows(dtype="BFLOAT16"),
    "dead rows beside a sink": sink(attenMask=dead_rows().inputs.attenMask),
}
ONLY_PLAIN = {"zero scale": call(scale=0.0)}
"""Beside a cache a scale of 0 is taken for the default scale (2026.4.1, corpus/regressions/scripts)."""


def close(case: Case, backend: OpenvinoBackend) -> None:
    assert backend.cannot_express(Scene(case)) is None
    tensors, got, want = materialize(case), buffers(case), buffers(case)
    outcome = backend.run(case, Scene(case), tensors, got)
    assert outcome.kind == "ok" and outcome.flaw is None, (outcome.message, outcome.flaw)
    assert CpuBackend().compute(Scene(case), tensors, want).kind == "ok"
    dtype = case.outputs.attentionOut.dtype
    a, b = decode(dtype, got["attentionOut"]), decode(dtype, want["attentionOut"])
    allowed = {"FLOAT16": 2.0**-9, "BFLOAT16": 2.0**-6}[dtype]
    with np.errstate(invalid="ignore"):
        assert ((a == b) | (np.abs(a - b) <= allowed * (1 + np.abs(b)))).all()


@pytest.fixture
def ways(monkeypatch):
    """Takes the first, second or third way wherever a call can be said in several; gives what was then asked for."""
    asked: list[str] = []

    def take(which: int) -> list[str]:
        def choice(self: DenseCall, about: str, ways: int) -> int:
            asked.append(about)
            return which % ways

        monkeypatch.setattr(DenseCall, "choice", choice)
        return asked

    return take


@pytest.mark.parametrize("which", [0, 1, 2])
@BOTH
def test_it_agrees_with_the_cpu_kernel_whatever_way_is_taken(backend, which, ways):
    asked = ways(which)
    failed = []
    for name, case in {**RUN, **(ONLY_PLAIN if backend is PLAIN else {})}.items():
        try:
            close(case, backend)
        except AssertionError as error:
            failed.append((name, error))
    assert not failed
    assert {"axes", "mask", "rank", "strides", "causal"} <= set(asked)


def forms_of(case: Case, backend: OpenvinoBackend, monkeypatch, **chosen: int) -> list[models.Form]:
    """The forms of model that a call is run on, said in that way."""
    seen: list[models.Form] = []

    def watched(form: models.Form) -> models.Session:
        seen.append(form)
        return models.session(form)

    monkeypatch.setattr(openvino_sdpa, "session", watched)
    monkeypatch.setattr(DenseCall, "choice", lambda self, about, ways: chosen.get(about, 0) % ways)
    close(case, backend)
    return seen


@pytest.mark.parametrize(
    ("backend", "case", "native"),
    [
        (PLAIN, causal(2, Q=9, K=9), True),
        (PLAIN, causal(2), True),
        (PLAIN, causal(3), False),
        (CACHE, causal(2), False),
        (CACHE, causal(3), True),
        (CACHE, causal(3, Q=9, K=5), False),
        (CACHE, causal(4, nextTokens=0, preTokens=30), True),
        (PLAIN, causal(4, nextTokens=0, preTokens=3), False),
        (PLAIN, bias(sparseMode=2, attenMask=CAUSAL), False),
    ],
)
def test_the_causal_flag_is_used_where_it_means_the_same(backend, case, native, monkeypatch):
    (form,) = set(forms_of(case, backend, monkeypatch, causal=1))
    assert form.causal is native and bool(form.mask) is not native
    assert not any(form.causal for form in forms_of(case, backend, monkeypatch, causal=0))


def test_a_cache_is_fused_and_filled_before_the_queries(monkeypatch):
    case = call(B=3, K=24, Q=5)
    due: list[tuple[int, ...]] = []
    run = models.Session.run
    monkeypatch.setattr(models.Session, "run", lambda self, feeds, shape: (due.append(shape), run(self, feeds, shape))[1])
    (form,) = set(forms_of(case, CACHE, monkeypatch, fill=1, cut=8, order=1, cache=1))
    assert [shape[2] for shape in due] == [8, 11, 5]
    assert form.cache == "f16" and form.group == 2 and models.FUSED in models.session(form).layers()


def test_a_model_with_a_cache_that_is_not_fused_is_refused(monkeypatch):
    monkeypatch.setattr(models.Session, "layers", lambda self: ["MatMul", "Softmax"])
    with pytest.raises(RuntimeError, match="not fused"):
        models.Session(models.Form("f32", cache="f32", heads=(1, 8, 8)))


def test_key_heads_are_handed_over_once_or_repeated_in_the_model(monkeypatch):
    assert {form.group for form in forms_of(call(KN=1), PLAIN, monkeypatch, repeat=1)} == {1}
    assert {form.group for form in forms_of(call(), PLAIN, monkeypatch, repeat=1)} == {2}
    assert {form.group for form in forms_of(call(), PLAIN, monkeypatch, repeat=0)} == {1}


def test_types_axes_and_strides_are_the_callers(monkeypatch):
    (form,) = forms_of(call(dtype="BFLOAT16"), PLAIN, monkeypatch, type=1, axes=1, strides=0)
    assert (form.dtype, form.axes, form.strided) == ("bf16", "BSND", True)
    (form,) = forms_of(call(scale=0.1), PLAIN, monkeypatch, type=1, strides=1)
    assert form.dtype == "f32" and not form.strided  # 0.1 is not a number of FLOAT16
    (form,) = forms_of(call(D=64, scale=0.125), PLAIN, monkeypatch, scale=1)
    assert not form.scaled


def test_strided_inputs_are_strided_and_dense_ones_are_not():
    x = torch.arange(24.0).reshape(1, 2, 3, 4)
    _, region = models.handed(x, 2)
    assert np.array_equal(region.data, x.numpy()) and tuple(region.strides) == (4 * 120, 4 * 30, 4 * 6, 4)
    _, dense = models.handed(x)
    assert tuple(dense.strides) == (96, 48, 16, 4)


@pytest.mark.parametrize(
    ("backend", "case", "ways", "declared"),
    [
        (PLAIN, dead_rows(), {"mask": 0}, "nan"),
        (PLAIN, dead_rows(), {"mask": 1}, "nan"),
        (PLAIN, dead_rows(dtype="BFLOAT16"), {"mask": 0, "type": 1}, "mean"),
        (PLAIN, dead_rows(dtype="BFLOAT16"), {"mask": 1, "type": 1}, "nan"),
        (CACHE, dead_rows(), {"mask": 0}, "mean"),
        (CACHE, dead_rows(), {"mask": 1}, "zero"),
    ],
)
def test_a_row_without_keys_holds_what_is_declared(backend, case, ways, declared, monkeypatch):
    """And a kernel that gives anything else is a finding."""
    forms_of(case, backend, monkeypatch, **ways)
    run = models.Session.run
    for wrong in (0.25, torch.nan, 0.0):
        if {"nan": wrong != wrong, "zero": wrong == 0.0, "mean": False}[declared]:
            continue

        def other(self, feeds, due, wrong=wrong):
            found = run(self, feeds, due)
            found[0, 1, 1] = wrong  # one of the rows that see nothing
            return found

        monkeypatch.setattr(models.Session, "run", other)
        with pytest.raises(AssertionError):
            close(case, backend)


def test_an_output_of_another_shape_is_an_error():
    """What goes wrong on one thread may come back as an output of no elements."""
    session = models.session(models.Form("f32", scaled=False))
    x = torch.zeros(1, 2, 3, 4)
    with pytest.raises(RuntimeError, match="shape"):
        session.run({"q": x, "k": x, "v": x}, (1, 2, 3, 5))


def test_what_openvino_says_fits_on_a_line():
    with pytest.raises(RuntimeError) as caught, models.in_one_line():
        raise RuntimeError("Exception from a.cpp:1:\nException from b.cpp:2:\nshapes differ\n\n")
    assert str(caught.value) == "shapes differ"


def test_a_form_has_one_session_and_the_oldest_goes(monkeypatch):
    monkeypatch.setattr(models, "MODELS", 2)
    monkeypatch.setattr(models, "_kept", type(models._kept)())
    forms = [models.Form("f32", rank=rank, mask=mask) for rank, mask in ((4, ""), (4, "bool"), (2, "bool"))]
    first = models.session(forms[0])
    assert models.session(forms[0]) is first
    models.session(forms[1])
    models.session(forms[0])
    models.session(forms[2])
    assert list(models._kept) == [forms[0], forms[2]]


def test_policies_are_declared():
    for backend in (PLAIN, CACHE):
        info = backend.info
        assert "leaks" in info.policies["masked_nan"] and info.policies["causal"] and info.checks == "none"
        assert info.versions["openvino"] and "FP32" in info.versions["openvino_cpu"]


def test_nothing_is_sent_on_import():
    import sys

    assert sys.modules.get("openvino_telemetry", "") is None
