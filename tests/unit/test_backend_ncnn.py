"""ncnn's SDPA layer: what is refused, that all else agrees with the cpu kernel however it is said, and that batches, strides and
the cache are really used."""

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

wheel("ncnn", "ncnn")

from fiafuzz.backends import ncnn_sdpa
from fiafuzz.backends.ncnn_sdpa import Form, Given, NcnnBackend, net, values

NCNN = NcnnBackend()


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (call(lse=True), "softmaxLse"),
        (sink(), "learnableSink"),
        (post(), "another dtype"),
        (channel(), "quantised"),
        (call(K=0), "empty"),
        (call(scale=0.0), "scale 0"),
        (call(scale=1e-60), "scale 0"),
    ],
)
def test_what_cannot_be_said_is_not_run(case, reason):
    found = NCNN.cannot_express(Scene(case))
    assert found is not None and reason in found
    held = buffers(case)
    before = {name: array.copy() for name, array in held.items()}
    assert NCNN.run(case, Scene(case), materialize(case), held).kind == "unsupported"
    assert all(np.array_equal(held[n].view(np.uint8), before[n].view(np.uint8)) for n in held)


def causal(mode: int, **more: object) -> Case:
    return call(sparseMode=mode, attenMask=CAUSAL, **more)  # type: ignore[arg-type]


RUN = {
    "plain": call(),
    "one head": call(KN=1),
    "equal heads": call(KN=4, scale=0.3),
    "mask": call(attenMask=mask(2, 1, 5, 24)),
    "shared mask": call(attenMask=mask(5, 24)),
    "top left": causal(2, Q=9, K=9),
    "bottom right": causal(3),
    "few keys": causal(3, Q=9, K=5),
    "band": call("TND", sparseMode=4, preTokens=5, nextTokens=1, attenMask=CAUSAL),
    "bias": bias(attenMask=mask(5, 24)),
    "bias for each batch": bias(2, 4, 5, 24),
    "alibi": alibi(3),
    "paged": call("TND", cache="NZ"),
    "list": call("BSH", lists=(5, 9)),
    "prefix": call(prefix=6),
    "padding": padded(q=1, kv=2),
    "short": call(q_lens=(3, 0), kv_lens=(0, 9)),
    "bf16": call(dtype="BFLOAT16", attenMask=mask(2, 1, 5, 24)),
    "odd head": call(D=17, scale=0.3),
    "one of all": call(N=1, KN=1, Q=1, K=1, D=1),
    "rope": split(),
    "mla": mla("BSH_NBSD"),
    "unequal": call(DV=48),
    "long": call(K=130, Q=3),
    "negative scale": call(scale=-0.3),
    "dead rows": dead_rows(),
}


def close(case: Case) -> None:
    assert NCNN.cannot_express(Scene(case)) is None
    tensors, got, want = materialize(case), buffers(case), buffers(case)
    outcome = NCNN.run(case, Scene(case), tensors, got)
    assert outcome.kind == "ok" and outcome.flaw is None, (outcome.message, outcome.flaw)
    assert CpuBackend().compute(Scene(case), tensors, want).kind == "ok"
    dtype = case.outputs.attentionOut.dtype
    a, b = decode(dtype, got["attentionOut"]), decode(dtype, want["attentionOut"])
    allowed = {"FLOAT16": 2.0**-9, "BFLOAT16": 2.0**-6}[dtype]
    assert (np.abs(a - b) <= allowed * (1 + np.abs(b))).all()


@pytest.fixture
def ways(monkeypatch):
    """Takes the first, second, ... way wherever a call can be said in several; gives what was then asked for."""
    asked: list[str] = []

    def take(which: int) -> list[str]:
        def choice(self: DenseCall, about: str, ways: int) -> int:
            asked.append(about)
            return which % ways

        monkeypatch.setattr(DenseCall, "choice", choice)
        return asked

    return take


@pytest.mark.parametrize("which", range(6))
def test_it_agrees_with_the_cpu_kernel_whatever_way_is_taken(which, ways):
    asked = ways(which)
    failed = []
    for name, case in RUN.items():
        try:
            close(case)
        except AssertionError as error:
            failed.append((name, error))
    assert not failed
    assert {"batches", "rank", "strides"} <= set(asked)


class Watched:
    """A net whose inputs are looked at."""

    def __init__(self, form: Form, seen: list[tuple[Form, str, tuple[int, ...]]]) -> None:
        self.form, self.seen, self.net = form, seen, net(form)

    def create_extractor(self):
        extractor, outer = self.net.create_extractor(), self

        class Extractor:
            def input(self, name, mat):
                outer.seen.append((outer.form, name, (mat.dims, mat.n, mat.h, mat.cstep // max(1, mat.w))))
                return extractor.input(name, mat)

            def __getattr__(self, name):
                return getattr(extractor, name)

        return Extractor()


def inputs_of(case: Case, monkeypatch, **chosen: int) -> list[tuple[Form, str, tuple[int, ...]]]:
    """(form, input, (rank, batches, rows, rows from head to head)) of all inputs of a call said in that way."""
    seen: list[tuple[Form, str, tuple[int, ...]]] = []
    monkeypatch.setattr(ncnn_sdpa, "net", lambda form: Watched(form, seen))
    monkeypatch.setattr(DenseCall, "choice", lambda self, about, ways: chosen.get(about, 0) % ways)
    close(case)
    return seen


def test_batches_go_together_and_key_heads_are_not_repeated(monkeypatch):
    case = call(Q=5, K=24, attenMask=mask(2, 1, 5, 24))
    seen = inputs_of(case, monkeypatch, batches=1, strides=1)
    keys = (3, 2, 24, 24)
    assert [(name, about) for _, name, about in seen] == [("q", (3, 2, 5, 5)), ("k", keys), ("v", keys), ("m", (3, 2, 5, 5))]


def test_a_shared_mask_is_given_once(monkeypatch):
    seen = inputs_of(call(attenMask=mask(5, 24)), monkeypatch, batches=1, strides=1, rank=1)
    assert [about[:2] for _, name, about in seen if name == "m"] == [(2, 1)]


def test_heads_may_lie_apart(monkeypatch):
    seen = inputs_of(call(K=24), monkeypatch, batches=1, strides=0)
    assert [about for _, name, about in seen if name == "k"] == [(3, 2, 24, 27)]


def test_the_cache_is_used_and_grows(monkeypatch):
    seen = inputs_of(call(B=1, K=24), monkeypatch, cache=1, strides=1, **{"cut 0": 7, "cut 1": 20})
    assert all(form.cached for form, _, _ in seen)
    assert [about[2] for _, name, about in seen if name == "k"] == [7, 13, 4]
    assert [about[2] for _, name, about in seen if name == "past_k"] == [0, 7, 20]


def test_a_form_has_one_net_and_the_oldest_goes(monkeypatch):
    monkeypatch.setattr(ncnn_sdpa, "NETS", 2)
    monkeypatch.setattr(ncnn_sdpa, "_kept", type(ncnn_sdpa._kept)())
    forms = [Form(s, False, False) for s in (1.0, 2.0, 3.0)]
    first = net(forms[0])
    assert net(forms[0]) is first
    net(forms[1])
    net(forms[0])
    net(forms[2])
    assert list(ncnn_sdpa._kept) == [forms[0], forms[2]]


@pytest.mark.parametrize("scale", [0.1, -0.3, 1 / 3, 7e-5, 123.456])
def test_the_layer_reads_the_scale_that_it_is_given(scale):
    given = Given(False, 0)
    extractor = net(Form(float(np.float32(scale)), False, False)).create_extractor()
    q, k = torch.full((1, 1, 1), 0.5 / scale), torch.tensor([[[0.0], [1.0]]])
    for name, x in (("q", q), ("k", k), ("v", k)):
        extractor.input(name, given.mat(x))
    got = float(values(extractor.extract("o")[1], (1, 1, 1, 1)))
    assert abs(got - 1 / (1 + np.exp(-0.5))) < 1e-6


def test_policies_are_declared_and_real():
    info = NCNN.info
    assert info.policies["masked_row"] == "zero" and info.checks == "none" and info.versions["ncnn"]
    assert "leaks" in info.policies["masked_nan"]
    given = Given(False, 0)
    k = torch.tensor([[[0.0], [1.0]]])
    hidden, dead, seen = (torch.tensor([m]) for m in ([0.0, -torch.inf], [-torch.inf, -torch.inf], [0.0, 0.0]))
    found = {}
    for about, v, m, scale in (("leak", k / 0, hidden, 1.0), ("dead", k + 1, dead, 1.0), ("default", k, seen, 0.0)):
        extractor = net(Form(scale, True, False)).create_extractor()
        for name, x in (("q", torch.ones(1, 1, 1)), ("k", k), ("v", v), ("m", m)):
            extractor.input(name, given.mat(x))
        found[about] = float(values(extractor.extract("o")[1], (1, 1, 1, 1)))
    assert np.isnan(found["leak"])
    assert found["dead"] == 0
    assert abs(found["default"] - 1 / (1 + np.exp(-1))) < 1e-6


def test_what_ncnn_refuses_is_an_error_and_not_a_value(monkeypatch):
    class Refusing:
        def create_extractor(self):
            return self

        def input(self, name, mat):
            return -1

    monkeypatch.setattr(ncnn_sdpa, "net", lambda form: Refusing())
    case = call()
    outcome = NCNN.run(case, Scene(case), materialize(case), buffers(case))
    assert outcome.kind == "error" and "refuses input q with status -1" in outcome.message


def test_an_output_of_another_shape_is_an_error():
    with pytest.raises(RuntimeError, match="has shape"):
        values(Given(False, 0).mat(torch.zeros(2, 3, 4)), (1, 2, 3, 5))
