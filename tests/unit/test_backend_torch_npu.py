"""The torch-npu backends as far as neither a device nor torch_npu itself is needed: words, tensors, loading, what is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fiafuzz.backends import ascend, npu_probe, null_cann, torch_npu_family, torch_npu_load
from fiafuzz.backends.protocol import BackendUnavailable
from fiafuzz.backends.torch_npu_arguments import Call, TensorUse, Vocabulary, choose, express, functions, made_dtype
from fiafuzz.backends.torch_npu_tensors import download, geometry, pack_halves, unpack_halves, upload
from fiafuzz.backends.torch_npu_words import DTYPE_NUMBERS, TORCH_DTYPES, WORDS
from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from strategies.cases import generate

from .backend_cases import call, spec

# The two operators' arguments as torch_npu 2.13 declares them (spec/torch_npu.md 2.1, 2.2).
V1 = [
    "query",
    "key",
    "value",
    "pse_shift",
    "atten_mask",
    "actual_seq_lengths",
    "actual_seq_lengths_kv",
    "dequant_scale1",
    "quant_scale1",
    "dequant_scale2",
    "quant_scale2",
    "quant_offset2",
    "antiquant_scale",
    "antiquant_offset",
    "key_antiquant_scale",
    "key_antiquant_offset",
    "value_antiquant_scale",
    "value_antiquant_offset",
    "block_table",
    "query_padding_size",
    "kv_padding_size",
    "key_shared_prefix",
    "value_shared_prefix",
    "actual_shared_prefix_len",
    "query_rope",
    "key_rope",
    "key_rope_antiquant_scale",
    "num_heads",
    "scale",
    "pre_tokens",
    "next_tokens",
    "input_layout",
    "num_key_value_heads",
    "sparse_mode",
    "inner_precise",
    "block_size",
    "antiquant_mode",
    "key_antiquant_mode",
    "value_antiquant_mode",
    "softmax_lse_flag",
]
V2 = [
    "query",
    "key",
    "value",
    "query_rope",
    "key_rope",
    "pse_shift",
    "atten_mask",
    "actual_seq_qlen",
    "actual_seq_kvlen",
    "block_table",
    "dequant_scale_query",
    "dequant_scale_key",
    "dequant_offset_key",
    "dequant_scale_value",
    "dequant_offset_value",
    "dequant_scale_key_rope",
    "quant_scale_out",
    "quant_offset_out",
    "quant_scale_p",
    "learnable_sink",
    "num_query_heads",
    "num_key_value_heads",
    "softmax_scale",
    "pre_tokens",
    "next_tokens",
    "input_layout",
    "sparse_mode",
    "block_size",
    "query_quant_mode",
    "key_quant_mode",
    "value_quant_mode",
    "inner_precise",
    "return_softmax_lse",
    "query_dtype",
    "key_dtype",
    "value_dtype",
    "query_rope_dtype",
    "key_rope_dtype",
    "key_shared_prefix_dtype",
    "value_shared_prefix_dtype",
    "dequant_scale_query_dtype",
    "dequant_scale_key_dtype",
    "dequant_scale_value_dtype",
    "dequant_scale_key_rope_dtype",
    "out_dtype",
]
ALL = Vocabulary(MappingProxyType({"v1": frozenset(V1), "v2": frozenset(V2)}), frozenset(TORCH_DTYPES.values()), "2.13.0")
OLD = Vocabulary(
    MappingProxyType({"v1": frozenset(V1), "v2": frozenset(V2) - {"quant_scale_p", "out_dtype"}}),
    frozenset(TORCH_DTYPES.values()) - {"float4_e2m1fn_x2", "float8_e8m0fnu"},
    "2.7.1",
)


def test_every_argument_but_the_dtypes_carries_a_parameter() -> None:
    assert set(WORDS["v1"].values()) == set(V1) and len(V1) == 40
    assert set(WORDS["v2"].values()) == {a for a in V2 if not a.endswith("_dtype")} and len(V2) == 45
    for words in WORDS.values():
        assert len(set(words.values())) == len(words)


def test_products_and_operators_end_in_functions() -> None:
    assert functions("a2", "9.1.0") == functions("a3", "8.1.RC1") == functions("a2", "") == {"v1": "v3", "v2": "v4"}
    assert functions("a2", "8.0.1") == functions("a3", "7.0.RC1") == {"v1": "v2", "v2": "v4"}
    assert functions("950", "8.0.0") == {"v1": "v5", "v2": "v5"}


def planned(case: Case, words: Vocabulary = ALL, forced: str | None = None, own: bool = False) -> Any:
    """The call of a case on its own product, or the reason."""
    return choose(Scene(case), functions(case.product, "9.1.0"), words, forced, own)


def test_the_operator_follows_from_what_a_case_needs() -> None:
    on_950, on_a2 = call(product="950"), call(product="a2").replace(api="v3")
    assert (planned(on_950).operator, planned(on_950).function) == ("v2", "v5")
    assert (planned(on_950, forced="v1").operator, planned(on_950, forced="v1").function) == ("v1", "v5")
    assert (planned(on_a2).operator, planned(on_a2).function) == ("v1", "v3")
    assert (planned(on_a2, forced="v2").operator, planned(on_a2, forced="v2").function) == ("v2", "v4")
    assert planned(on_950.replace(queryPaddingSize=spec((1,), "INT64", [0]))).operator == "v1"
    assert planned(on_a2.replace(api="v4")).operator == "v2"
    hif = call(dtype="FLOAT16", kv="HIFLOAT8", product="a2").replace(api="v3")
    assert planned(hif).operator == "v2"


def second(**changes: Any) -> Case:
    return call(product="950").replace(**changes)


KEY = call().inputs.key[0]  # type: ignore[index]
assert KEY is not None
REASONS: dict[str, tuple[Case, str]] = {
    "list": (call(lists=(3, 4)), "takes one tensor for key, not a list of 2"),
    "empty list": (second(value=()), "list of 0"),
    "null list": (second(key=None), "key null"),
    "pseType": (second(pseType=2), "no argument for pseType"),
    "start": (second(qStartIdx=(0,)), "no argument for qStartIdx"),
    "format": (second(query=TensorSpec((2, 4, 5, 64), "FLOAT16", "FRACTAL_NZ")), "format of query itself"),
    "layout": (second(inputLayout=None), "inputLayout null"),
    "out": (second(attentionOut=None), "attentionOut null"),
    "lse": (second(softmaxLseFlag=True), "softmaxLse null"),
    "api": (call(product="a2"), "does not reach V5"),
    "old api": (call(product="950").replace(api="v3"), "does not reach V3"),
    "both": (second(queryPaddingSize=spec((1,), "INT64", [0]), learnableSink=spec((4,), "FLOAT16")), "queryPaddingSize"),
    "dtype": (second(pseShift=spec((1, 4, 5, 24), "HIFLOAT8")), "no dtype HIFLOAT8"),
    "negative": (second(key=(TensorSpec((2, -1, 24, 64), "FLOAT16"),)), "negative size"),
    "stride": (second(key=(TensorSpec(KEY.shape, "FLOAT16", strides=(1, 2, 3, -1)),)), "negative stride"),
    "strides": (second(key=(TensorSpec(KEY.shape, "FLOAT16", strides=(1, 2)),)), "2 strides for 4 axes"),
    "half a byte": (second(key=(TensorSpec((2, 2, 24, 63), "FLOAT4_E2M1"),)), "two 4-bit elements a byte"),
    "odd strides": (second(key=(TensorSpec(KEY.shape, "INT4", strides=(9999, 4000, 65, 1)),)), "two 4-bit elements a byte"),
    "packed offset": (second(key=(TensorSpec(KEY.shape, "INT4", offset=2),)), "in bytes"),
    "v3 lacks": (call(product="a2").replace(api="v3", learnableSink=spec((4,), "FLOAT16")), "V3 has no learnableSink"),
    "dropped": (call(product="a2").replace(api="v4", quantScale1=spec((1,))), "drops quantScale1"),
    "item": (second(actualSeqLengths=(-(1 << 62) - 1,)), "below -2**62"),
    "null query": (second(query=None, learnableSink=spec((4,), "FLOAT16")), "cannot be null"),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_has_no_word_is_said(name: str) -> None:
    case, words = REASONS[name]
    found = planned(case)
    assert isinstance(found, str) and words in found and "\n" not in found


def test_an_older_version_has_fewer_words() -> None:
    scaled = second(quantScale1=spec((1,)), learnableSink=spec((4,), "FLOAT16"))
    assert isinstance(planned(scaled), Call)
    assert "quantScale1 in torch_npu 2.7.1" in planned(scaled, OLD)
    packed = second(key=(TensorSpec(KEY.shape, "FLOAT4_E2M1"),))
    assert "key_dtype" not in planned(packed).plain
    assert planned(packed, OLD).plain["key_dtype"] == 296
    assert "FLOAT4_E2M1" in planned(packed, OLD, "v1")


def test_numbers_beside_tensors_are_those_of_the_c_interface() -> None:
    numbers = {"INT4": 29, "HIFLOAT8": 34, "FLOAT8_E5M2": 35, "FLOAT8_E4M3FN": 36, "FLOAT8_E8M0": 37, "FLOAT4_E2M1": 40, "FLOAT4_E1M2": 41}
    assert {name: 256 + number for name, number in numbers.items()} == dict(DTYPE_NUMBERS)
    case = call(dtype="HIFLOAT8", out="HIFLOAT8")
    found = planned(case)
    assert {k: v for k, v in found.plain.items() if k.endswith("_dtype")} == {
        "query_dtype": 290,
        "key_dtype": 290,
        "value_dtype": 290,
        "out_dtype": 290,
    }
    assert {use.dtype for use in (*found.tensors, found.out)} == {"uint8"}


@pytest.mark.parametrize(
    ("changes", "operator", "made", "asked"),
    [
        ({}, "v2", "FLOAT16", None),
        ({"quantScale2": spec((1,))}, "v2", "INT8", 5),
        ({"quantScale2": spec((1,))}, "v1", "INT8", "cannot be asked"),
        ({"attentionOut": TensorSpec((2, 4, 5, 64), "BFLOAT16")}, "v2", "FLOAT16", "cannot be asked"),
        ({"query": TensorSpec((2, 4, 5, 64), "INT8"), "attentionOut": TensorSpec((2, 4, 5, 64), "BFLOAT16")}, "v2", "FLOAT16", 15),
        ({"query": TensorSpec((2, 4, 5, 64), "INT8"), "queryRope": spec((2, 4, 5, 64), "BFLOAT16")}, "v1", "BFLOAT16", "cannot be asked"),
        (
            {
                "query": TensorSpec((2, 4, 5, 64), "HIFLOAT8"),
                "quantScale2": spec((1,)),
                "attentionOut": TensorSpec((2, 4, 5, 64), "HIFLOAT8"),
            },
            "v2",
            "INT8",
            290,
        ),
    ],
    ids=["query's", "post v2", "post v1", "not to be had", "int8", "rope v1", "hifloat8"],
)
def test_the_dtype_of_outputs_that_torch_makes(changes: Any, operator: str, made: str, asked: Any) -> None:
    scene = Scene(second(**changes))
    assert made_dtype(scene, operator) == made
    found = express(scene, operator, "v5", ALL, True)
    if isinstance(asked, str):
        assert isinstance(found, str) and asked in found
    else:
        assert isinstance(found, Call) and found.plain.get("out_dtype") == asked


# ---- tensors ------------------------------------------------------------------------------------


@given(hnp.arrays(np.uint8, st.integers(0, 33).map(lambda n: 2 * n), elements=st.integers(0, 15)))
def test_halves_come_back(codes: Any) -> None:
    packed = pack_halves(codes)
    assert packed.size == codes.size // 2 and (unpack_halves(packed, signed=False) == codes).all()
    if codes.size:
        assert packed[0] & 15 == codes[0] and packed[0] >> 4 == codes[1]
    signed = ((codes ^ 8).astype(np.int8) - 8).astype(np.int8)
    assert (unpack_halves(pack_halves(signed), signed=True) == signed).all()


TENSORS = [
    TensorSpec((3, 4), name, strides=strides, offset=offset)
    for name in DTYPES
    for strides, offset in ((None, 0), ((12, 1), 0), ((8, 2), 6), ((0, 1), 0))
    if DTYPES[name].bits != 4 or ((strides is None or strides[-1] == 1) and not offset)
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}-{t.strides}-{t.offset}".replace(" ", ""))
def test_tensors_go_up_and_come_down(tensor: TensorSpec) -> None:
    """On the CPU, where every step but the copy is the same."""
    import torch

    dtype = TORCH_DTYPES.get(tensor.dtype, "uint8")
    use = TensorUse("value", "value", tensor, dtype, DTYPES[tensor.dtype].bits == 4)
    dense = materialize(call(product="950").replace(value=(tensor,), pseShift=None)).many("value")[0]
    assert dense is not None
    there = upload(use, dense, torch.device("cpu"))
    assert (tuple(there.shape), tuple(there.stride()), there.storage_offset()) == geometry(use)
    assert download(use, there).tobytes() == dense.tobytes()


@pytest.mark.parametrize("profile", ["950-v5", "a2-v3"])
def test_generated_calls_are_said_or_refused_in_words(profile: str) -> None:
    said = 0
    for item in generate(profile, "all", 300, seed=23):
        scene = Scene(item.case)
        for own in (False, True):
            found = planned(item.case, own=own)
            if isinstance(found, str):
                assert found and "\n" not in found
                continue
            said += 1
            arguments = {use.argument for use in found.tensors} | set(found.plain)
            assert arguments <= set(V1 if found.operator == "v1" else V2)
            assert {"query", "key", "value"} <= arguments
            for use in found.tensors:
                assert use.spec == scene.tensor(use.parameter)
    assert said > 300


def test_the_form_of_outputs_that_torch_makes_is_compared() -> None:
    import torch

    from fiafuzz.backends.torch_npu import form_of_outputs

    found = planned(call(lse=True), own=True)
    out, lse = torch.empty((2, 4, 5, 64), dtype=torch.float16), torch.empty((2, 4, 5, 1))
    assert form_of_outputs(found, (out, lse)) == ""
    assert form_of_outputs(found, (out.bfloat16(), lse)) == (
        "torch_npu makes attentionOut bfloat16 [2, 4, 5, 64] instead of float16 [2, 4, 5, 64]"
    )
    assert "attentionOut float16 [2, 5, 4, 64]" in form_of_outputs(found, (out.transpose(1, 2), lse))
    assert "softmaxLse float32 [0]" in form_of_outputs(found, (out, torch.empty(0)))
    # Formats that torch holds as bytes are told apart from other bytes by what was asked for, not by the array.
    assert form_of_outputs(planned(call(), own=True), (out, torch.empty(0))) == ""
    eight = planned(call(dtype="FLOAT8_E4M3FN"), own=True)
    assert "float8_e5m2" in form_of_outputs(eight, (out.to(torch.float8_e5m2), lse))


# ---- loading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "torch_npu", "good"),
    [("2.13.0+cpu", "2.13.0", True), ("2.13.1", "2.13.0.post3", True), ("2.12.1", "2.13.0", False), ("2.13.0", "2.7.1.post11", False)],
)
def test_torch_and_torch_npu_belong_together(torch: str, torch_npu: str, good: bool) -> None:
    found = torch_npu_load.mismatch(torch, torch_npu)
    assert bool(found) != good
    if not good:
        assert torch in found and torch_npu in found and "pip install" in found


def test_launch_modes() -> None:
    assert torch_npu_load.launch_settings("") == {"ASCEND_LAUNCH_BLOCKING": "1"}
    # Blocking launches override the queue, so they are switched off.
    assert torch_npu_load.launch_settings("2") == {"ASCEND_LAUNCH_BLOCKING": "0", "TASK_QUEUE_ENABLE": "2"}


def test_a_machine_without_cann_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_npu_load, "_version", lambda name: "2.13.0")
    monkeypatch.setattr(ascend, "look", lambda *a, **k: ascend.Environment())
    with pytest.raises(BackendUnavailable, match=r"no CANN here.*install"):
        torch_npu_load.load()
    assert "no CANN here" in torch_npu_family.why_no_device()
    monkeypatch.setattr(null_cann.shutil, "which", lambda tool: None)
    assert "C compiler" in torch_npu_family.why_no_meta() and "gcc" in torch_npu_family.why_no_meta()
    monkeypatch.setattr(torch_npu_load, "_version", lambda name: "2.13.0" if name == "torch" else "")
    assert "pip install torch_npu" in torch_npu_family.why_no_meta()
    monkeypatch.setattr(torch_npu_load, "_version", lambda name: "2.12.0" if name == "torch" else "2.13.0")
    with pytest.raises(BackendUnavailable, match=r"built for torch 2\.13"):
        torch_npu_load.load()


def test_one_process_has_one_launch_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_npu_load, "_version", lambda name: "2.13.0")
    monkeypatch.setattr(ascend, "trouble", lambda env: None)
    monkeypatch.setattr(torch_npu_load, "_import", lambda: sys)
    monkeypatch.setattr(torch_npu_load, "_process", torch_npu_load._Process())
    for name in ("ASCEND_LAUNCH_BLOCKING", "TASK_QUEUE_ENABLE"):
        monkeypatch.setenv(name, "")
    assert torch_npu_load.load("1") is torch_npu_load.load("1") is sys
    assert os.environ["TASK_QUEUE_ENABLE"] == "1" and torch_npu_load.load_for_meta() == (sys, "installed")
    with pytest.raises(BackendUnavailable, match="one launch mode"):
        torch_npu_load.load()
    monkeypatch.setattr(torch_npu_load, "_process", torch_npu_load._Process("stand-in"))
    assert torch_npu_load.load_for_meta() == (sys, "stand-in")
    with pytest.raises(BackendUnavailable, match="stand-in"):
        torch_npu_load.load()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("libascendcl.so: cannot open shared object file", "set_env.sh"),
        ("x.so: undefined symbol: aclrtFoo", "does not fit"),
        ("ASCEND_OPP_PATH environment variable is not set", "set_env.sh"),
        ("whatever", "doctor"),
    ],
)
def test_import_errors_have_a_next_step(text: str, words: str) -> None:
    assert words in torch_npu_load.next_step(text)


def test_stdout_is_kept_clean() -> None:
    script = (
        "import os, sys\nfrom fiafuzz.backends.torch_npu_load import stdout_to_stderr\nprint('first')\n"
        "with stdout_to_stderr():\n    print('python'); os.write(1, b'native\\n'); os.system('echo child')\nprint('last')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=60, check=True
    )
    assert done.stdout == "first\nlast\n" and sorted(done.stderr.split()) == ["child", "native", "python"]


def test_compiled_files_lie_in_a_private_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = null_cann.cache_folder()
    assert folder == tmp_path / "cache/fiafuzz" and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(BackendUnavailable, match="only you can write"):
        null_cann.cache_folder()
    folder.chmod(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(BackendUnavailable, match="only you can write"):
        null_cann.cache_folder()
    folder.unlink()
    folder.touch()
    with pytest.raises(BackendUnavailable):
        null_cann.cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    with pytest.raises(BackendUnavailable, match="XDG_CACHE_HOME"):
        null_cann.cache_folder()


# ---- the probe --------------------------------------------------------------------------------------

BROKEN = {
    "dies": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", r"ended the process with signal 9"),
    "leaves": ("raise SystemExit(7)", r"cannot be imported \(SystemExit"),
    "hangs": ("import time; time.sleep(600)", r"did not end within"),
    "raises": ("raise ImportError('libhccl.so: cannot open shared object file')", r"ImportError.*set_env.sh"),
    "chatters": ("print('noise on stdout'); raise ImportError('undefined symbol: aclrtX')", r"does not fit"),
    "quits": ("import os; os._exit(0)", r"gave no answer"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_torch_npu_cannot_take_the_doctor_along(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, words = BROKEN[name]
    (tmp_path / "torch_npu.py").write_text(code)
    (tmp_path / "torch_npu-2.13.0.dist-info").mkdir()
    (tmp_path / "torch_npu-2.13.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.13.0\n")
    (tmp_path / "torch-2.13.0.dist-info").mkdir()
    (tmp_path / "torch-2.13.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
    for folder in ("runtime", "compiler", "opp"):
        (tmp_path / folder).mkdir()
    (tmp_path / "libascendcl.so").touch()
    for key, value in {
        "PYTHONPATH": tmp_path,
        "ASCEND_HOME_PATH": tmp_path,
        "ASCEND_OPP_PATH": tmp_path / "opp",
        "LD_LIBRARY_PATH": tmp_path,
    }.items():
        monkeypatch.setenv(key, str(value))
    monkeypatch.delenv(ascend.VISIBLE_VARIABLE, raising=False)
    monkeypatch.setattr(npu_probe, "_version", lambda name: "2.13.0")
    answer = npu_probe.ask(3.0 if name == "hangs" else 120.0)
    assert re.search(words, answer["error"]), answer
    json.dumps(answer)
    assert os.environ["PYTHONPATH"] == str(tmp_path)
