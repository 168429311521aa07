"""Texts and numbers of failed NPU calls become kind, code, stage and a short message that speaks of this operator only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiafuzz.backends.npu_errors import (
    CRASHES,
    HANGS,
    LOST,
    MAX_MESSAGE,
    OUT_OF_MEMORY,
    STATUSES,
    Failure,
    of_status,
    of_text,
    relevant,
)

STAMP = "\n[ERROR] 2026-11-30-12:00:00 (PID:4711, Device:0, RankID:-1) "
SITE = "npu_fused_infer_attention_score_out_symint:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:51 "
OURS = (
    "E89999: Inner Error!\nE89999: [PID: 4711] 2026-11-30-12:00:00.001.002 When layout is TND, queryT(8) must be equal to the last "
    "element of actualSequenceLengthQ(5)[FUNC:CheckFAISeqlenDataInTND][FILE:fused_infer_attention_score_tiling.cpp][LINE:811]\n"
    "        TraceBack (most recent call last):\n       FusedInferAttentionScore do tiling failed, ret is -1.[FUNC:X][FILE:y.cpp][LINE:1]\n"
)
PARAMETER = "AclNN_Parameter_Error(EZ1001): [PID: 4711] 2026-11-30-12:00:00.001.002 the dtype of query is not supported\n"
OTHER = "EZ9999: Inner Error!\nEZ9999: [PID: 4711] 2026-11-30-11:59:59.001.002 aclnnMatmul: sizes do not fit[FUNC:A][FILE:b][LINE:2]\n"


def aclnn(code: int, said: str = "", name: str = "aclnnFusedInferAttentionScoreV3") -> str:
    """The text of torch_npu around a status."""
    return f"{SITE}NPU function error: call {name} failed, error code is {code}{STAMP}ERR00100 PTA call acl api failed.\n{said}"


def sync(code: int, meaning: str, said: str = "") -> str:
    """The text of torch_npu around a number of the runtime."""
    return (
        f"npuSynchronizeDevice:build/x.ts:563 NPU function error: AclrtSynchronizeDeviceWithTimeout, error code is {code}{STAMP}"
        f"ERR00100 PTA call acl api failed.\n[Error]: {meaning}\n        Rectify the fault based on the error information.\n{said}"
    )


CASES: dict[str, tuple[str, str, Failure]] = {
    "tiling": (
        aclnn(561002, OURS),
        "RuntimeError",
        Failure("reject", 561002, "tiling", "When layout is TND, queryT(8) must be equal to the last element of actualSequenceLengthQ(5)"),
    ),
    "parameter": (aclnn(161002, PARAMETER), "RuntimeError", Failure("reject", 161002, "dtypes", "the dtype of query is not supported")),
    "null": (aclnn(161001), "RuntimeError", Failure("reject", 161001, "entry", "161001: null pointer")),
    "runtime": (aclnn(361001), "RuntimeError", Failure("reject", 361001, "entry", "361001: a runtime call failed")),
    "inner null": (aclnn(561103), "RuntimeError", Failure("reject", 561103, "tiling", "561103: inner null pointer")),
    "no kernel": (aclnn(561003), "RuntimeError", Failure("reject", 561003, "kernel", "561003: kernel not found")),
    "later attribute": (aclnn(561107), "RuntimeError", Failure("reject", 561107, "tiling", "561107: refused")),
    "another op": (aclnn(561002, OTHER), "RuntimeError", Failure("reject", 561002, "tiling", "561002: tiling failed")),
    "several": (
        aclnn(561002, OTHER + OURS),
        "RuntimeError",
        Failure("reject", 561002, "tiling", "When layout is TND, queryT(8) must be equal to the last element of actualSequenceLengthQ(5)"),
    ),
    "aicore": (
        sync(507015, "The aicore execution is abnormal."),
        "RuntimeError",
        Failure("crash", 507015, "device", "507015: AI Core exception; The aicore execution is abnormal.", True),
    ),
    "detail": (
        sync(
            507015,
            "The aicore execution is abnormal.",
            "EZ9999: Inner Error!\nEZ9999: [PID: 1] The error from device(chipId:0, dieId:0), "
            "serial number is 6, there is an exception of aivec error, core id is 12, error code = 0x20000, dump info: pc start: 0x1, "
            "errorStr: VEC instruction error: the ub address out of bounds.[FUNC:P][FILE:d][LINE:3]",
        ),
        "RuntimeError",
        Failure(
            "crash",
            507015,
            "device",
            "507015: AI Core exception; aivec error on core 12, 0x20000: VEC instruction error: the ub address out of bounds",
            True,
        ),
    ),
    "copy": (
        "ACL stream synchronize failed, error code:507046",
        "RuntimeError",
        Failure("hang", 507046, "device", "507046: stream synchronisation timed out", True),
    ),
    "index": (
        sync(107001, "Invalid device ID."),
        "RuntimeError",
        Failure("lost", 107001, "device", "107001: no such device; Invalid device ID.", True),
    ),
    "dead queue": (
        "The Inner error is reported as above. The process exits for this inner error, and the current working operator name is "
        "aclnnFusedInferAttentionScoreV3.\nSince the operator is called asynchronously, the stacktrace may be inaccurate."
        + STAMP
        + "ERR00005 PTA internal error",
        "RuntimeError",
        Failure(
            "reject", None, "launch", "the task queue died at aclnnFusedInferAttentionScoreV3: a status came late, without its number", True
        ),
    ),
    "exit status": (
        "Inner error happened with CAN_EXIT status, detail: EZ9999",
        "RuntimeError",
        Failure("reject", None, "launch", "the task queue died: a status came late, without its number", True),
    ),
    "older": (
        "call aclnnFusedInferAttentionScoreV3 failed, detail:EZ9999: Inner Error!\nEZ9999: attenMask shape is wrong",
        "RuntimeError",
        Failure("reject", None, "tiling", "attenMask shape is wrong"),
    ),
    "compact": ("CANN error: EZ1001: query is null", "RuntimeError", Failure("reject", None, "dtypes", "query is null")),
    "heads": (
        "num_heads should be greater than 0, but the actual value is0" + STAMP + "ERR01003 OPS invalid value",
        "RuntimeError",
        Failure("reject", None, "torch", "num_heads should be greater than 0, but the actual value is0"),
    ),
    "itemsize": (
        "Tensor dtype:c10::Half itemsize:2, is not compatible with tensor_dtype:torch_npu.hifloat8 itemsize:1"
        + STAMP
        + "ERR01001 OPS invalid parameter",
        "RuntimeError",
        Failure(
            "reject", None, "torch", "Tensor dtype:c10::Half itemsize:2, is not compatible with tensor_dtype:torch_npu.hifloat8 itemsize:1"
        ),
    ),
    "no word": (
        "UNKNOWN_SCALAR has not been supported" + STAMP + "ERR01007 OPS feature not supported",
        "RuntimeError",
        Failure("unsupported", None, "torch", "UNKNOWN_SCALAR has not been supported"),
    ),
    "no function": (
        "aclnnFusedInferAttentionScoreV4 or aclnnFusedInferAttentionScoreV4GetWorkspaceSize not in libopapi.so, or libopapi.so not "
        "found." + STAMP + "ERR01004 OPS invalid pointer",
        "RuntimeError",
        Failure(
            "unsupported",
            None,
            "torch",
            "aclnnFusedInferAttentionScoreV4 or aclnnFusedInferAttentionScoreV4GetWorkspaceSize not in libopapi.so, or libopapi.so "
            "not found.",
        ),
    ),
    "schema": (
        "npu::npu_fused_infer_attention_score() Expected a value of type 'int' for argument 'num_heads' but instead found type 'float'.\n"
        "Position: 3",
        "RuntimeError",
        Failure(
            "reject",
            None,
            "torch",
            "npu::npu_fused_infer_attention_score() Expected a value of type "
            "'int' for argument 'num_heads' but instead found type 'float'.",
        ),
    ),
    "no device": (
        "No NPUs are available" + STAMP + "ERR00009 PTA resource unavailable",
        "RuntimeError",
        Failure("lost", None, "device", "No NPUs are available", True),
    ),
    "memory": (
        "NPU out of memory. Tried to allocate 9.00 GiB (NPU 0; 32.00 GiB total capacity)",
        "OutOfMemoryError",
        Failure("oom", None, "device", "NPU out of memory. Tried to allocate 9.00 GiB (NPU 0; 32.00 GiB total capacity)"),
    ),
    "time-out of torch": (
        "wait failed" + STAMP + "ERR00011 PTA operation timed out",
        "RuntimeError",
        Failure("hang", None, "torch", "wait failed", True),
    ),
    "something else": ("no such key", "KeyError", Failure("error", None, None, "KeyError: no such key")),
}


@pytest.mark.parametrize("name", CASES)
def test_known_texts(name: str) -> None:
    text, kind, expected = CASES[name]
    assert of_text(text, kind) == expected


def test_every_number_has_one_meaning() -> None:
    tables = [STATUSES, CRASHES, HANGS, LOST, OUT_OF_MEMORY]
    numbers = [code for table in tables for code in table]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize(
    ("codes", "kind"),
    [
        ((507015, 507016, 507018, 507035, 507036, 507042, 507045, 507049, 507050), "crash"),
        ((507014, 507017, 507034, 507046, 507048), "hang"),
        ((107022, 507899, 507053, 507056, 107001), "lost"),
    ],
    ids=["crash", "hang", "lost"],
)
def test_numbers_of_the_device(codes: tuple[int, ...], kind: str) -> None:
    for code in codes:
        found = of_status(code)
        assert (found.kind, found.code, found.stage, found.fatal) == (kind, code, "device", True)
        assert of_text(sync(code, "whatever")) == of_status(code, "[Error]: whatever")


noise = st.text(st.characters(blacklist_categories=("Cs",)), max_size=200)


@given(st.sampled_from(sorted({*STATUSES, *CRASHES, *HANGS, *LOST, *OUT_OF_MEMORY})), noise, st.sampled_from(["", OURS, OTHER, PARAMETER]))
def test_noise_does_not_change_what_a_number_means(code: int, text: str, said: str) -> None:
    alone = of_status(code)
    found = of_text(aclnn(code, said + text.replace("CAN_EXIT", "")))
    assert (found.kind, found.code, found.stage, found.fatal) == (alone.kind, code, alone.stage, alone.fatal)


@given(noise, st.sampled_from(["RuntimeError", "ValueError", "KeyError", "OutOfMemoryError", "Odd"]))
def test_any_text_gives_a_short_clean_failure(text: str, type_name: str) -> None:
    found = of_text(text, type_name)
    assert found.kind in ("reject", "unsupported", "crash", "hang", "oom", "lost", "error")
    assert len(found.message) <= MAX_MESSAGE + 20
    assert all(c.isprintable() for c in found.message)


@given(st.integers(0, 1_000_000))
def test_any_number_is_answered(code: int) -> None:
    found = of_status(code)
    assert found.code == code
    own = code // 1000 in (161, 361, 561)
    assert (found.kind == "reject") == own
    assert found.fatal or own or found.kind == "oom"


@given(
    st.lists(st.sampled_from([OTHER, "\n", "   \n", "EE9999: Inner Error!\nEE9999: rtSetDevice failed[FUNC:A][FILE:b][LINE:2]\n"])),
    st.booleans(),
)
def test_our_block_is_found_among_others(before: list[str], last: bool) -> None:
    text = "".join(before) + OURS + ("" if last else OTHER)
    assert relevant(text).startswith("When layout is TND")
    assert "Matmul" not in relevant(OTHER * 3)


def test_an_outcome_carries_everything() -> None:
    outcome: Any = Failure("crash", 507015, "device", "x", True).outcome(1.5)
    assert (outcome.kind, outcome.code, outcome.stage, outcome.message, outcome.fatal, outcome.seconds) == (
        "crash",
        507015,
        "device",
        "x",
        True,
        1.5,
    )
