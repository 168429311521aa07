"""What comes back through the aclnn backend: statuses of every phase, damage, and that nothing is left behind."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fiafuzz.model.case import Case, Constant, TensorSpec, encode_case
from oracles.poison import poison
from strategies.cases import generate
from tests.unit.backend_cases import call, spec

from .aclnn_child import Child

pytestmark = pytest.mark.standin

PLAIN = call(B=1, N=2, KN=1, Q=3, K=8, D=16, product="a2")
OTHERS = "EZ1001: [PID: 7] 2026-11-30 aclnnAdd: the shapes of self and other do not broadcast.\n"
OURS = "E89999: [PID: 7] 2026-11-30 FusedInferAttentionScore: block size 17 is not a multiple of 16.[FUNC:Check][FILE:x.cpp][LINE:7]\n"

Start = Callable[..., Child]


@pytest.fixture
def start(standin_env: Callable[..., dict[str, str]], tmp_path: Path) -> Iterator[Start]:
    """Starts a process on the stand-in (settings as for ``standin_environment``, variables by ``more``); all end well."""
    children: list[Child] = []

    def child(more: dict[str, str] | None = None, **settings: Any) -> Child:
        log = tmp_path / f"calls{len(children)}.jsonl"
        children.append(Child({**standin_env(**{"log": log, "host": "", **settings}), **(more or {})}, log))
        return children[-1]

    yield child
    for made in children:
        assert made.close() == 0


def live(child: Child) -> dict[str, int]:
    found: dict[str, int] = child.ask(op="live")
    return found


def test_refusals_keep_number_and_stage_and_the_part_of_the_text_that_is_about_the_operator(start: Start) -> None:
    child = start()
    for status, stage in ((161001, "entry"), (161002, "dtypes"), (561001, "shape_inference"), (561002, "tiling"), (361001, "entry")):
        child.ask(op="env", STANDIN_STATUS=str(status), STANDIN_MESSAGE=OTHERS + OURS)
        outcome = child.run(PLAIN)
        assert (outcome["kind"], outcome["code"], outcome["stage"], outcome["fatal"]) == ("reject", status, stage, False)
        assert "block size 17" in outcome["message"] and "broadcast" not in outcome["message"]
    child.ask(op="env", STANDIN_STATUS="561002", STANDIN_MESSAGE=OTHERS)
    assert "broadcast" not in child.run(PLAIN)["message"]
    child.ask(op="env", STANDIN_STATUS="0")
    assert child.run(PLAIN)["kind"] == "ok"


def test_the_text_of_one_refusal_is_not_told_of_the_next(start: Start) -> None:
    child = start()
    child.ask(op="env", STANDIN_STATUS="561002", STANDIN_MESSAGE=OURS)
    assert "block size 17" in child.run(PLAIN)["message"]
    child.ask(op="env", STANDIN_STATUS="161001", STANDIN_MESSAGE="\n")
    assert "block size" not in child.run(PLAIN)["message"]


def test_a_launch_that_fails_is_a_refusal_at_the_launch_and_the_next_call_works(start: Start) -> None:
    child = start()
    child.ask(op="env", STANDIN_LAUNCH_STATUS="561002")
    outcome = child.run(PLAIN)
    assert (outcome["kind"], outcome["code"], outcome["stage"], outcome["fatal"]) == ("reject", 561002, "launch", False)
    child.ask(op="env", STANDIN_LAUNCH_STATUS="0")
    assert child.run(PLAIN)["kind"] == "ok"


@pytest.mark.parametrize(("status", "kind"), [(507015, "crash"), (507035, "crash"), (507014, "hang"), (507046, "hang"), (507899, "lost")])
def test_a_fault_of_the_device_condemns_the_process(start: Start, status: int, kind: str) -> None:
    child = start({"STANDIN_SYNC_STATUS": str(status)})
    outcome = child.run(PLAIN)
    assert (outcome["kind"], outcome["code"], outcome["stage"], outcome["fatal"]) == (kind, status, "device", True)
    child.ask(op="env", STANDIN_SYNC_STATUS="0")
    after = child.run(PLAIN)
    assert (after["kind"], after["fatal"]) == ("lost", True)
    assert str(status) in after["message"]
    assert len(child.calls()) == 1, "nothing is called any more"


def test_a_workspace_that_the_device_does_not_have_is_out_of_memory(start: Start) -> None:
    child = start()
    child.ask(op="env", STANDIN_WORKSPACE=str(1 << 46))
    outcome = child.run(PLAIN)
    assert (outcome["kind"], outcome["fatal"]) == ("oom", False)
    assert str(1 << 46) in outcome["message"]
    assert live(child)["executors"] == 0
    for size in ("0", "1", "65537"):
        child.ask(op="env", STANDIN_WORKSPACE=size)
        assert child.run(PLAIN)["kind"] == "ok"


def test_tensors_that_the_device_has_no_room_for_are_not_the_operators_fault(start: Start) -> None:
    child = start(memory_mib=8)
    large = PLAIN.replace(attenMask=TensorSpec((4096, 4096), "BOOL"))
    outcome = child.run(large)
    assert outcome["kind"] == "unsupported" and "no " in outcome["message"]
    assert child.run(PLAIN)["kind"] == "ok"


# ---- outputs ---------------------------------------------------------------------------------------------------------


def written(outcome: Any, name: str) -> bytes:
    return base64.b64decode(outcome["outputs"][name])


def test_outputs_are_what_the_operator_wrote(start: Start) -> None:
    """The stand-in without a host module writes 3C 3D 3C 3D ..."""
    child = start()
    outcome = child.run(PLAIN.replace(softmaxLseFlag=True, softmaxLse=spec((1, 2, 3, 1), "FLOAT32")), outputs=True)
    assert (outcome["kind"], outcome["flaw"]) == ("ok", None)
    assert written(outcome, "attentionOut") == b"\x3c\x3d" * 96
    assert written(outcome, "softmaxLse") == b"\x3c\x3d" * 12


def test_outputs_with_offset_and_strides_come_back_dense(start: Start) -> None:
    child = start()
    outcome = child.run(PLAIN.replace(attentionOut=TensorSpec((3, 4), "FLOAT16", offset=5)), outputs=True)
    assert (outcome["flaw"], written(outcome, "attentionOut")) == (None, b"\x3c\x3d" * 12)
    across = child.run(PLAIN.replace(attentionOut=TensorSpec((3, 4), "INT8", strides=(1, 3))), outputs=True)
    assert across["flaw"] is None
    found = np.frombuffer(written(across, "attentionOut"), np.uint8).reshape(3, 4)
    assert found.tolist() == [[0x3C ^ ((i + 3 * j) & 1) for j in range(4)] for i in range(3)]


def test_four_bit_outputs_come_back_one_code_an_element(start: Start) -> None:
    child = start()
    for dtype, codes in (("FLOAT4_E2M1", [0xC, 3, 0xD]), ("INT4", [0xFC, 3, 0xFD])):
        outcome = child.run(PLAIN.replace(attentionOut=spec((3,), dtype)), outputs=True)
        assert list(written(outcome, "attentionOut")) == codes


def test_gaps_of_an_output_that_are_written_are_seen(start: Start) -> None:
    """The stand-in without a host module writes from the first to the last element, whatever lies between."""
    outcome = start().run(PLAIN.replace(attentionOut=TensorSpec((3, 4), "FLOAT16", strides=(8, 1))))
    code, words = outcome["flaw"]
    assert (outcome["kind"], code) == ("ok", "F107")
    assert words == "16 bytes that belong to no output changed, the first in a gap between the elements of attentionOut, byte 8"


def test_an_output_that_nobody_writes_comes_back_poisoned(start: Start) -> None:
    child = start(host="tests.standin_cann.host", faults="no-op")
    outcome = child.run(valid(), outputs=True)
    assert (outcome["kind"], outcome["flaw"]) == ("ok", None)
    out = valid().outputs.attentionOut
    assert out is not None
    assert written(outcome, "attentionOut") == poison(out.dtype, out.shape).tobytes()


def test_bytes_behind_an_output_that_are_written_are_seen(start: Start) -> None:
    outcome = start(host="tests.standin_cann.host", faults="overrun").run(valid())
    code, words = outcome["flaw"]
    assert (outcome["kind"], code) == ("ok", "F107")
    assert words.startswith("32 bytes that belong to no output changed, the first 1 byte behind the end of attentionOut")


def valid() -> Case:
    """A valid call on A2, the size of whose output is a multiple of 32 bytes."""
    return call("BSH", B=1, N=2, KN=2, Q=1, K=64, D=64, product="a2").replace(api="v3")


# ---- nothing is left behind ------------------------------------------------------------------------------------------


def mixed_cases(path: Path, count: int) -> Path:
    """Valid and invalid calls of A2, a line each."""
    with open(path, "wb") as file:
        for mode in ("valid", "invalid"):
            for generated in generate("a2-v3", mode, count, seed=3):
                sizes = [n for s in (generated.case.inputs.query, generated.case.inputs.attenMask) if s is not None for n in s.shape]
                if max(sizes, default=0) <= 512:
                    file.write(encode_case(generated.case) + b"\n")
    return path


OBJECTS = ("tensors", "lists", "int_arrays", "scalars", "executors", "host_blocks", "events")


def test_nothing_leaks_over_valid_and_refused_calls(start: Start, tmp_path: Path) -> None:
    child = start({"STANDIN_LOG": ""})
    found = child.ask(op="leak", cases=str(mixed_cases(tmp_path / "cases.jsonl", 30)), rounds=2000, every=500)
    assert found["kinds"]["ok"] > 500 and found["kinds"]["reject"] > 500
    first, *later = found["marks"]
    for mark in found["marks"]:
        assert {name: mark[name] for name in OBJECTS} == dict.fromkeys(OBJECTS, 0)
        assert mark["streams"] == 1
    assert [mark["blocks"] for mark in later] == [first["blocks"]] * 3 and first["blocks"] <= 3
    assert [mark["bytes"] for mark in later] == [first["bytes"]] * 3
    assert later[-1]["mallocs"] == first["mallocs"], "device memory is kept for the next call"
    assert later[-1]["rss"] - first["rss"] < 4096, [mark["rss"] for mark in found["marks"]]


@pytest.mark.parametrize("maker", ["tensor", "tensor_list", "int_array"])
def test_handles_that_the_library_does_not_make_leave_nothing_behind(start: Start, maker: str) -> None:
    child = start()
    case = PLAIN.replace(key=PLAIN.inputs.key * 3, actualSeqLengths=(1,), actualSeqLengthsKv=(1,))  # type: ignore[operator]
    for after in (0, 1):
        outcome = child.run(case, refuse=[maker, after])
        assert outcome["kind"] == "unsupported" and "the C interface makes no " in outcome["message"]
        assert {name: live(child)[name] for name in OBJECTS} == dict.fromkeys(OBJECTS, 0)
    assert child.calls() == []
    assert child.run(case)["kind"] == "ok"


def test_large_memory_is_given_back_and_small_memory_is_kept(start: Start) -> None:
    child = start()
    child.run(PLAIN)
    small = live(child)
    assert small["blocks"] == 2 and small["bytes"] <= 1 << 19
    child.run(PLAIN.replace(pseShift=TensorSpec((9 << 20,), "DOUBLE", fill=Constant(0))))
    assert live(child)["bytes"] <= small["bytes"]
    child.run(PLAIN)
    assert live(child) == small


def test_calls_from_another_thread_find_the_device(start: Start) -> None:
    child = start()
    assert [child.run(PLAIN, thread=thread)["kind"] for thread in (False, True, False)] == ["ok"] * 3
