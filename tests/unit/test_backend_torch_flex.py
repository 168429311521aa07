"""The two FlexAttention backends: what they refuse, that they agree with the cpu kernel, and that nothing is compiled."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fiafuzz.backends import torch_flex, torch_flex_load, torch_flex_paged
from fiafuzz.backends.cpu import CpuBackend
from fiafuzz.backends.cpu_problem import read_problem
from fiafuzz.backends.protocol import BackendUnavailable
from fiafuzz.backends.registry import find_record, get_backend
from fiafuzz.backends.torch_flex import FlexBackend, FlexCall
from fiafuzz.backends.torch_flex_paged import PagedBackend, PagedCall
from fiafuzz.model.codecs import decode
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from tests.unit.backend_cases import CAUSAL, buffers, call, mask, spec
from tests.unit.fault_cases import alibi, bias, channel, int8_full, mla, padded, post, sink, split

DENSE, PAGED = FlexBackend(), PagedBackend()
BOTH = pytest.mark.parametrize("backend", [DENSE, PAGED], ids=["dense", "paged"])

REFUSED = [
    (post(), "another dtype"),
    (channel(), "quantised"),
    (int8_full(), "quantised"),
    (call(K=0), "empty"),
    (call(Q=1024, K=1024, B=1), "scores"),
    (call(K=40000, Q=1), "keys and values"),
    (call().replace(query=None), ""),
]


@BOTH
@pytest.mark.parametrize(("case", "reason"), REFUSED)
def test_what_cannot_be_said_is_not_run(backend, case, reason):
    found = backend.cannot_express(Scene(case))
    assert found is not None and (reason in found or (backend is PAGED and "all pages" in found))
    held = buffers(case)
    before = {name: array.copy() for name, array in held.items()}
    outcome = backend.run(case, Scene(case), materialize(case), held)
    assert outcome.kind == "unsupported" and outcome.message == found
    assert all(np.array_equal(held[n].view(np.uint8), before[n].view(np.uint8)) for n in held)


RUN = {
    "plain": call(),
    "one head": call(N=1, KN=1, B=1, D=7),
    "mask": call(attenMask=mask(2, 1, 5, 24)),
    "one mask for all, larger than the data": call(attenMask=mask(9, 40)),
    "causal": call(sparseMode=3, attenMask=CAUSAL, Q=9, K=5, lse=True),
    "causal top left": call("BSND", sparseMode=2, attenMask=CAUSAL, Q=9, K=5),
    "band": call("TND", sparseMode=4, preTokens=5, nextTokens=1, attenMask=CAUSAL),
    "band off the keys": call("BSH", sparseMode=4, preTokens=-3, nextTokens=2, attenMask=CAUSAL, q_lens=(3, 5), lse=True),
    "tokens beside a mask": call(attenMask=mask(5, 24), preTokens=2, nextTokens=9),
    "bias": bias(attenMask=mask(5, 24)),
    "bias and logarithms": bias(lse=True),
    "alibi": alibi(3),
    "alibi without root": alibi(2),
    "list": call("BSH", lists=(5, 9)),
    "prefix": call(prefix=6, sparseMode=3, attenMask=CAUSAL, kv_lens=(24, 7)),
    "padding": padded(q=1, kv=2, lse=True),
    "short": call(q_lens=(3, 0), kv_lens=(0, 9), lse=True),
    "packed, a batch without keys": call("TND", q_lens=(3, 4), kv_lens=(0, 9), lse=True),
    "packed, rows behind the last length": call("TND", q_lens=(3, 4), lse=True).replace(
        query=spec((9, 4, 64), "FLOAT16"), attentionOut=spec((9, 4, 64), "FLOAT16"), softmaxLse=spec((9, 4, 1))
    ),
    "packed rows of different length": call("NTD", q_lens=(1, 6), kv_lens=(20, 9), sparseMode=3, attenMask=CAUSAL, dtype="BFLOAT16"),
    "bf16": call(dtype="BFLOAT16", lse=True),
    "negative scale": call(scale=-0.3),
    "zero scale": call(scale=0.0, lse=True),
    "sink": sink(lse=True, attenMask=mask(2, 1, 5, 24)),
    "rope": split(),
    "mla": mla("BSH_NBSD"),
    "unequal": call(DV=48, lse=True),
    "paged": call(cache="BnNBsD", kv_lens=(24, 3), q_lens=(5, 2), lse=True),
    "paged, packed, NZ": call("TND", cache="NZ", kv_lens=(33, 0), lse=True),
    "paged, rows of heads": call("BSH", cache="BnBsH", sparseMode=3, attenMask=CAUSAL),
    "paged, a block for two batches": call(cache="BnNBsD", table=(1, 2, 1, 0), blocks=3),
    "paged, a block twice in a batch": call(cache="BnNBsD", table=(1, 1, 2, 0), blocks=3),
    "paged, bias": bias(cache="BnNBsD"),
    "paged, rope, NZ": mla("BSND", cache="NZ", lse=True),
}


def agree(case, backend, seed, tensors=None):
    case = case.replace(seed=seed)
    assert backend.cannot_express(Scene(case)) is None
    tensors = materialize(case) if tensors is None else tensors
    got, want = buffers(case), buffers(case)
    outcome = backend.run(case, Scene(case), tensors, got)
    assert outcome.kind == "ok" and outcome.flaw is None, outcome
    assert CpuBackend().compute(Scene(case), tensors, want).kind == "ok"
    for name in want:
        dtype = getattr(case.outputs, name).dtype
        a, b = decode(dtype, got[name]), decode(dtype, want[name])
        allowed = {"FLOAT16": 2.0**-9, "BFLOAT16": 2.0**-6, "FLOAT32": 3e-4}[dtype]
        with np.errstate(invalid="ignore"):
            near = np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) <= allowed * (1 + np.abs(b)))
        # Infinities have no distance: they must be the same.
        assert (near | (got[name] == want[name])).all(), name


@BOTH
@pytest.mark.parametrize("at", range(len(RUN)), ids=list(RUN))
def test_agrees_with_the_cpu_kernel(at, backend):
    # The seed chooses the way (whole or in spans, precision, whose pages): neighbours in the table go different ways.
    agree(list(RUN.values())[at], backend, at)


RICH = call("BSND", cache="BnNBsD", kv_lens=(24, 3), q_lens=(5, 2), lse=True, attenMask=mask(2, 1, 5, 32))
DENSE_RICH = padded(q=1, kv=2, lse=True, attenMask=mask(2, 1, 5, 24), layout="BSND")


def chosen(monkeypatch, cls, **answers):
    """Fix the answers to some choices (spaces as underscores); the others are 0."""
    monkeypatch.setattr(cls, "choice", lambda self, name, count: answers.get(name.replace(" ", "_"), 0))


def test_seeds_reach_every_precision_and_block_size():
    scenes = [Scene(DENSE_RICH.replace(seed=seed)) for seed in range(40)]
    calls = [DENSE.translate(read_problem(scene), materialize(scene.case)) for scene in scenes]
    assert {c.precision for c in calls} == set(torch_flex.PRECISIONS) and {c.block_size for c in calls} == set(torch_flex.BLOCK_SIZES)


BOTH_WAYS = ["short", "packed, rows behind the last length", "packed, a batch without keys", "padding", "prefix", "mla", "alibi", "band"]


@pytest.mark.parametrize("name", [*BOTH_WAYS, "tokens beside a mask", "bias and logarithms", "causal"])
@pytest.mark.parametrize("whole", [0, 1])
def test_whole_and_in_spans(monkeypatch, whole, name):
    chosen(monkeypatch, FlexCall, whole=whole)
    agree(RUN[name], DENSE, 3)


@pytest.mark.parametrize(("whole", "block_size"), [(0, 0), (1, 1), (0, 2), (1, 3)])
def test_every_way_of_the_dense_backend(monkeypatch, whole, block_size):
    chosen(monkeypatch, FlexCall, whole=whole, block_size=block_size)
    agree(DENSE_RICH, DENSE, 3)


WAYS = [
    {"fill": 1},
    {"fill": 1, "reserve": 1, "lengths": 1},
    {},
    {"lengths": 1, "page_size": 1},
    {"page_size": 1, "page_order": 1, "halves": 1},
    {"lengths": 1, "spare_pages": 2, "page_order": 1, "halves": 1},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_way_of_the_paged_backend(monkeypatch, way):
    chosen(monkeypatch, PagedCall, **way)
    agree(RICH, PAGED, 3)


@pytest.fixture
def kernel_calls(monkeypatch):
    """Arguments of each call of flex_attention."""
    found, real = [], torch_flex.flex.flex_attention

    def spy(*args, **more):
        found.append(args)
        return real(*args, **more)

    monkeypatch.setattr(torch_flex.flex, "flex_attention", spy)
    return found


def test_whole_calls_take_the_tensors_as_they_lie(monkeypatch, kernel_calls):
    chosen(monkeypatch, FlexCall, whole=1)
    agree(call("BSND", q_lens=(3, 5), kv_lens=(24, 9)), DENSE, 3)
    agree(call("TND", q_lens=(3, 5), kv_lens=(24, 9)), DENSE, 3)
    (q, k, *_), (packed_q, packed_k, *_) = kernel_calls
    assert q.shape == (2, 4, 5, 64) and q.stride() == (5 * 4 * 64, 64, 4 * 64, 1) and k.stride() == (24 * 2 * 64, 64, 2 * 64, 1)
    assert packed_q.shape == (1, 4, 8, 64) and packed_k.shape == (1, 2, 33, 64) and packed_k.stride()[1:] == (64, 2 * 64, 1)


def test_heads_and_scale_are_the_kernels_own(monkeypatch, kernel_calls):
    chosen(monkeypatch, FlexCall)
    agree(call(scale=0.0), DENSE, 3)
    agree(call(KN=4, scale=-1.5), DENSE, 3)
    (_, k, _, score, block_mask, scale, gqa), (_, _, _, _, _, other_scale, no_gqa) = kernel_calls
    assert k.shape[1] == 2 and score is None and block_mask is None and scale == 0.0 and gqa
    assert other_scale == -1.5 and not no_gqa


@pytest.mark.parametrize(
    ("precision", "dtypes"), [(0, "f16 f16"), (4, "f32 f32"), (6, "f64 f64"), (7, "f32 f16")], ids=["own", "f32", "f64", "low keys"]
)
def test_the_precision_is_the_chosen_one(monkeypatch, kernel_calls, precision, dtypes):
    chosen(monkeypatch, FlexCall, precision=precision)
    agree(call(), DENSE, 3)
    names = {torch.float16: "f16", torch.float32: "f32", torch.float64: "f64"}
    assert " ".join(names[x.dtype] for x in kernel_calls[0][:2]) == dtypes


def test_a_whole_call_that_would_be_too_large_goes_span_by_span(monkeypatch, kernel_calls):
    chosen(monkeypatch, FlexCall, whole=1)
    case = call("TND", B=3, N=1, KN=1, D=16, q_lens=(5, 5, 5), kv_lens=(9, 9, 9))
    monkeypatch.setattr(torch_flex, "MAX_SCORES", 15 * 27)
    agree(case, DENSE, 3)
    monkeypatch.setattr(torch_flex, "MAX_SCORES", 15 * 27 - 1)
    agree(case, DENSE, 3)
    assert [args[0].shape[2] for args in kernel_calls] == [15, 5, 5, 5]


def test_row_blocks_agree(monkeypatch, kernel_calls):
    chosen(monkeypatch, FlexCall)
    monkeypatch.setattr("fiafuzz.backends.dense.MASK_BUDGET", 500)
    agree(call(Q=33, B=1, N=2, KN=1, sparseMode=3, attenMask=CAUSAL, lse=True), DENSE, 3)
    agree(bias(1, 4, 5, 24, B=1), DENSE, 3)
    assert len(kernel_calls) > 3


@BOTH
def test_nothing_is_compiled_and_the_switch_is_put_back(monkeypatch, backend):
    def refuse(*args, **more):
        raise AssertionError("compiled")

    monkeypatch.setattr(torch, "compile", refuse)
    held = []

    def look(*args, **more):
        held.append(torch_flex.flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG)
        return real(*args, **more)

    real = torch_flex.flex.flex_attention
    monkeypatch.setattr(torch_flex.flex, "flex_attention", look)
    agree(RUN["bias and logarithms"], backend, 3)
    assert held == [True] and torch_flex.flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG is False


@BOTH
def test_the_switch_is_put_back_after_a_failure(monkeypatch, backend):
    def trip(*args, **more):
        raise RuntimeError("the kernel trips\nover two lines")

    monkeypatch.setattr(torch_flex.flex, "flex_attention", trip)
    case = call()
    outcome = backend.run(case, Scene(case), materialize(case), buffers(case))
    assert outcome.kind == "error" and outcome.message == "RuntimeError: the kernel trips"
    assert torch_flex.flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG is False


DEAD = call(sparseMode=3, attenMask=CAUSAL, Q=9, K=5, lse=True)


@BOTH
@pytest.mark.parametrize(("spoilt", "words"), [("out", "0 that is declared"), ("lse", "-inf that is declared")])
def test_a_broken_policy_for_rows_without_keys_is_seen(monkeypatch, backend, spoilt, words):
    real = torch_flex.flex.flex_attention

    def spoil(*args, **more):
        o, aux = real(*args, **more)
        if spoilt == "out":
            o[:, :, 0] = 0.5
        else:
            aux.lse[:, :, 0] = 0.0
        return o, aux

    monkeypatch.setattr(torch_flex.flex, "flex_attention", spoil)
    outcome = backend.run(DEAD, Scene(DEAD), materialize(DEAD), buffers(DEAD))
    assert outcome.kind == "ok" and outcome.flaw is not None and outcome.flaw[0] == "F101" and words in outcome.flaw[1]


def spoilt(case, name, index, value=np.nan):
    """Tensors with some elements of keys or values not finite."""
    tensors = materialize(case)
    tensors[name][0][index] = value
    return tensors


def half(columns):
    """A mask that shows the first 12 columns."""
    return spec((1, 1, 5, columns), "BOOL", [j >= 12 for _ in range(5) for j in range(columns)])


HALF = call(B=1, attenMask=half(24))
HALF_PAGED = call(B=1, cache="BnNBsD", table=(1, 0), blocks=3, attenMask=half(32))


@BOTH
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("case", [HALF, HALF_PAGED], ids=["dense", "paged"])
def test_what_is_not_finite_leaks_from_masked_values_and_not_from_keys_as_declared(case, backend, value):
    assert "leaks" in backend.info.policies["masked_nan"] and "in a masked key it does not" in backend.info.policies["masked_nan"]
    at = (0, slice(None), 4 if case is HALF_PAGED else 20)  # column 20, which is row 4 of the second block
    agree(case, backend, 3, spoilt(case, "key", at, value))
    held = buffers(case)
    assert backend.run(case, Scene(case), spoilt(case, "value", at, value), held).kind == "ok"
    assert np.isnan(decode("FLOAT16", held["attentionOut"])).all()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_not_finite_in_padding_and_unused_blocks_takes_no_part(seed):
    short = call(kv_lens=(20, 11))
    agree(short, DENSE, seed, spoilt(short, "value", (slice(None), slice(None), slice(20, None))))
    packed = call("TND", kv_lens=(9, 9))
    longer = packed.replace(key=(spec((20, 2, 64), "FLOAT16"),), value=(spec((20, 2, 64), "FLOAT16"),))
    agree(longer, DENSE, seed, spoilt(longer, "value", slice(18, None)))
    for backend in (DENSE, PAGED):
        agree(short, backend, seed, spoilt(short, "value", (slice(None), slice(None), slice(20, None))))
        cached = call(cache="BnNBsD", blocks=6)
        agree(cached, backend, seed, spoilt(cached, "value", 0))


def followed(monkeypatch, name):
    """The calls whose method of this name is run."""
    found, real = [], getattr(PagedCall, name)

    def method(self):
        found.append(self)
        real(self)

    monkeypatch.setattr(PagedCall, name, method)
    return found


@pytest.mark.parametrize("reserve", [0, 1])
def test_a_lent_cache_is_reserved_in_the_order_of_the_block_table(monkeypatch, reserve):
    chosen(monkeypatch, PagedCall, fill=1, reserve=reserve)
    lent = followed(monkeypatch, "lend")
    agree(call(cache="BnNBsD", K=33, table=(4, 1, 3, 0, 2, 1), blocks=5), PAGED, 3)
    assert [row[:3] for row in lent[0].pages.page_table.tolist()] == [[4, 1, 3], [0, 2, 1]]


def test_a_cache_is_lent_when_the_helper_can_take_it(monkeypatch):
    chosen(monkeypatch, PagedCall, fill=1)
    filled = followed(monkeypatch, "fill")
    for name in ("paged", "paged, packed, NZ", "paged, rows of heads", "paged, a block for two batches", "paged, bias", "paged, rope, NZ"):
        agree(RUN[name], PAGED, 3)
    assert not filled
    agree(RUN["paged, a block twice in a batch"], PAGED, 3)
    agree(call(), PAGED, 3)
    assert len(filled) == 2


def test_the_helper_writes_the_pages_and_is_asked_for_the_mask(monkeypatch):
    chosen(monkeypatch, PagedCall, lengths=1, halves=1)
    seen = []

    class Spy(torch_flex_paged.PagedAttention):
        def assign(self, *args):
            seen.append(("assign", args[1].shape))
            super().assign(*args)

        def convert_logical_block_mask(self, *args, kv_len):
            seen.append(("mask", kv_len.tolist()))
            return super().convert_logical_block_mask(*args, kv_len=kv_len)

        def get_score_mod(self, score, kv_len):
            seen.append(("score", kv_len.tolist()))
            return super().get_score_mod(score, kv_len)

    monkeypatch.setattr(torch_flex_paged, "PagedAttention", Spy)
    agree(bias(kv_lens=(24, 9)), PAGED, 3)
    agree(call(), PAGED, 3)
    assert seen == [
        ("assign", (1, 12)),
        ("assign", (1, 4)),
        ("assign", (1, 12)),
        ("assign", (1, 5)),
        ("mask", [24, 9]),
        ("score", [24, 9]),
        ("assign", (2, 12)),
        ("assign", (2, 12)),
        ("mask", [24, 24]),
    ]


def test_too_old_a_torch_is_told(monkeypatch):
    assert torch_flex_load.missing() == ""
    assert get_backend("torch-flex").info.name == "torch-flex" and get_backend("torch-flex:paged").info.name == "torch-flex:paged"
    monkeypatch.setattr(torch_flex_load, "version", lambda name: "2.8.1+cpu")
    assert "needs torch 2.9" in find_record("torch-flex").reason and not find_record("torch-flex:paged").available
    for name in ("torch-flex", "torch-flex:paged"):
        with pytest.raises(BackendUnavailable, match=f"{name} needs torch 2.9 or later, torch 2.8.1"):
            get_backend(name)


@BOTH
def test_what_is_declared(backend):
    info = backend.info
    assert info.checks == "none" and info.policies["masked_row"] == "zero" and "-inf" in info.policies["masked_row_lse"]
    assert set(info.versions) == {"torch", "cpu"} and find_record(info.name).title == info.title
