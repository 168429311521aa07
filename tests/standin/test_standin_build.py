"""Making the stand-in: once for all, by several at a time, with clear words where something is missing; headers and C++."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.standin.test_standin_calls import Environment
from tests.standin_cann import build as making
from tests.standin_cann import signatures
from tests.standin_cann.cpp import compile_program

pytestmark = pytest.mark.standin
ROOT = Path(__file__).resolve().parents[2]
BUILD = "from tests.standin_cann.build import build; print(build(need_torch_npu=False).root)"


def test_builds_at_the_same_time_give_one_result(standin: making.Build, tmp_path: Path) -> None:
    env = {**os.environ, "STANDIN_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    children = [subprocess.Popen([sys.executable, "-c", BUILD], stdout=subprocess.PIPE, text=True, env=env) for _ in range(3)]
    roots = {child.communicate(timeout=300)[0].strip() for child in children}
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(roots) == 1
    assert [str(p) for p in (tmp_path / "cache").iterdir()] == list(roots)
    assert standin.root.name == Path(roots.pop()).name


def test_a_second_build_only_looks(standin: making.Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "_make", lambda *a: pytest.fail("made again"))
    assert making.build() == standin


ADVICE = {"cc": "apt-get install gcc", "nm": "apt-get install binutils", "torch_npu": "pip install torch_npu"}


@pytest.mark.parametrize(("missing", "advice"), ADVICE.items(), ids=ADVICE)
def test_what_is_missing_is_named(standin: making.Build, monkeypatch: pytest.MonkeyPatch, missing: str, advice: str) -> None:
    if missing == "torch_npu":
        monkeypatch.setattr(making, "_torch_npu", lambda: None)
    else:
        real = making.shutil.which
        hidden = {"cc", "gcc", "clang"} if missing == "cc" else {missing}
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(making.shutil, "which", lambda name, **more: None if name in hidden else real(name, **more))
    with pytest.raises(making.StandinUnavailable, match=advice):
        making.build()


def test_a_build_that_fails_leaves_nothing(standin: making.Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(making.signatures, "recorder_source", lambda: "this is no C")
    with pytest.raises(making.StandinUnavailable, match="error"):
        making.build(cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("entry", signatures.ENTRIES)
def test_headers_are_those_of_the_table(entry: str) -> None:
    path = making.INCLUDE / "aclnnop" / signatures.header_name(entry)
    assert path.read_text() == signatures.header_source(entry)


PROGRAM = """
#include <cstdio>
#include "acl/acl.h"
#include "aclnnop/aclnn_fused_infer_attention_score.h"
#include "aclnnop/aclnn_fused_infer_attention_score_v2.h"
#include "aclnnop/aclnn_fused_infer_attention_score_v3.h"
#include "aclnnop/aclnn_fused_infer_attention_score_v4.h"
#include "aclnnop/aclnn_fused_infer_attention_score_v5.h"

int main() {
    if (aclInit(nullptr) || aclrtSetDevice(0)) return 2;
    aclrtStream stream;
    void *data, *workspace;
    if (aclrtCreateStream(&stream) || aclrtMalloc(&data, 4096, ACL_MEM_MALLOC_HUGE_FIRST)) return 3;
    int64_t dims[4] = {1, 1, 1, 16}, lengths[2] = {5, -9};
    char layout[] = "BN\\"SD";
    aclTensor *x = aclCreateTensor(dims, 4, ACL_FLOAT16, nullptr, 0, ACL_FORMAT_ND, dims, 4, data);
    aclIntArray *ints = aclCreateIntArray(lengths, 2);
    uint64_t size = 0;
    aclOpExecutor *executor = nullptr;
    int status = aclnnFusedInferAttentionScoreGetWorkspaceSize(
        x, nullptr, nullptr, nullptr, nullptr, ints, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
        nullptr, nullptr, 1, 0.1, -5, 9223372036854775807LL, layout, 3, 4, 5, 6, 7, true, x, nullptr, &size, &executor);
    std::printf("%d %s", status, aclGetRecentErrMsg());
    if (status) return 1;
    if (aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_HUGE_FIRST)) return 4;
    status = aclnnFusedInferAttentionScore(workspace, size, executor, stream);
    std::printf(" %d %d", status, aclrtSynchronizeStream(stream));
    unsigned char bytes[32];
    if (aclrtMemcpy(bytes, 32, data, 32, ACL_MEMCPY_DEVICE_TO_HOST)) return 5;
    std::printf(" %02x%02x%02x\\n", bytes[0], bytes[1], bytes[31]);
    return 0;
}
"""


def test_a_cpp_program_compiles_and_runs(standin: making.Build, standin_env: Environment, tmp_path: Path) -> None:
    import json

    source, log = tmp_path / "program.cpp", tmp_path / "calls.ndjson"
    source.write_text(PROGRAM)
    program = compile_program(source, standin)

    def run(**more: str) -> tuple[int, str]:
        done = subprocess.run([program], capture_output=True, text=True, env={**standin_env(log=log), **more}, timeout=60, check=False)
        return done.returncode, done.stdout

    assert run() == (0, "0  0 0 3c3d3d\n")
    args = json.loads(log.read_text().splitlines()[0])["args"]
    assert (args["inputLayout"], args["scaleValue"], args["preTokens"], args["nextTokens"]) == ('BN"SD', 0.1, -5, 2**63 - 1)
    in_order = ("numKeyValueHeads", "sparseMode", "innerPrecise", "blockSize", "antiquantMode", "softmaxLseFlag")
    assert [args[name] for name in in_order] == [3, 4, 5, 6, 7, True]
    assert (args["actualSeqLengths"], args["key"], args["softmaxLse"]) == ([5, -9], None, None)
    assert run(STANDIN_STATUS="561002", STANDIN_MESSAGE="planted") == (1, "561002 planted")
    assert run(STANDIN_LAUNCH_STATUS="561003")[1].startswith("0  561003 0 a5")
    assert " 0 507015" in run(STANDIN_SYNC_STATUS="507015")[1]
    (tmp_path / "out.bin").write_bytes(bytes(range(32)))
    assert run(STANDIN_OUTPUT=str(tmp_path / "out.bin")) == (0, "0  0 0 00011f\n")
