"""torch_npu's shape inference as a candidate, on a machine with torch_npu and a C compiler and nothing of CANN."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fiafuzz.model.case import TensorSpec, case_to_dict
from tests.standin_cann.build import Build
from tests.unit.backend_cases import call, spec

pytestmark = pytest.mark.standin

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bare(standin: Build, tmp_path: Path) -> dict[str, str]:
    """An environment without CANN and with an empty cache (``standin`` skips where torch_npu or a compiler is missing)."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ASCEND_", "STANDIN_")) and k != "LD_LIBRARY_PATH"}
    return {**kept, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"}


def run(env: Mapping[str, str], folder: Path, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], input=stdin, capture_output=True, text=True, cwd=folder, env=dict(env), timeout=600, check=False
    )


CHILD = """
import json, os, sys
from fiafuzz.backends.registry import get_backend
from fiafuzz.campaign.execute import Executor
from fiafuzz.campaign.wire import Job
from fiafuzz.model.case import case_from_dict
out = os.fdopen(os.dup(1), "w")
backend = get_backend(sys.argv[1])
executor = Executor(backend, "")
found = []
for i, data in enumerate(json.load(sys.stdin)):
    result = executor.execute(Job(i, case_from_dict(data), judge=True, runs=2, relations=True))
    judged = result.judged
    found.append([result.kind, result.code, result.stage, result.message, judged and judged.code, judged and judged.text, result.same])
out.write(json.dumps({"found": found, "cann": backend.info.versions["cann"], "computes": backend.info.computes}))
out.flush()
os._exit(0)
"""


def test_what_is_inferred_is_compared(bare: dict[str, str], tmp_path: Path) -> None:
    good = call("BNSD_BSND", lse=True)
    cases: list[Any] = [
        good,
        good.replace(attentionOut=TensorSpec((2, 4, 5, 64), "FLOAT16")),
        good.replace(softmaxLse=spec((2, 5, 4, 1))),
        good.replace(inputLayout="XYZ"),
        good.replace(numHeads=0),
        good.replace(query=TensorSpec((2, 4, 320), "FLOAT16")),
        good.replace(attenMask=spec((3, 3, 3), "FLOAT32")),
        call(lists=(3, 4)),
    ]
    done = run(bare, tmp_path, "-c", CHILD, "torch-npu:meta", stdin=json.dumps([case_to_dict(case) for case in cases]))
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout)
    assert answer["cann"] == "stand-in" and answer["computes"] is False
    fine, shape, lse, layout, heads, rank, mask, lists = answer["found"]
    assert fine[0] == "ok" and fine[4] is None and fine[6] is None, "no values, so nothing to run twice"
    for refused in (layout, heads, rank):
        assert refused[:3] == ["reject", None, "torch"] and refused[3]
    for unseen in (shape, lse, mask):
        assert unseen[0] == "unsupported" and "does not check" in unseen[3]
    assert lists[0] == "unsupported" and "list" in lists[3]


def test_a_campaign_on_a_bare_machine(bare: dict[str, str], tmp_path: Path) -> None:
    """It compiles what it needs, finds what is known of INT4 keys, and prints nothing of torch_npu's on stdout."""
    command = (
        "-m",
        "fiafuzz.cli.main",
        "fuzz",
        "--backend",
        "torch-npu:meta",
        "--phases",
        "bulk",
        "-n",
        "60",
        "--mode",
        "valid",
        "--seed",
        "3",
    )
    done = run(bare, tmp_path, *command)
    assert done.returncode in (0, 1), done.stderr[-2000:]
    assert "Warning" not in done.stdout and "internal" not in done.stderr
    built = list((tmp_path / "cache/fiafuzz").glob("null-cann-*"))
    assert len(built) == 1 and not list((tmp_path / "cache/fiafuzz").glob(".building-*"))
    assert built[0].stat().st_mode & 0o777 == 0o700


def test_without_a_compiler_the_next_step_is_said(bare: dict[str, str], tmp_path: Path) -> None:
    done = run({**bare, "PATH": str(tmp_path)}, tmp_path, "-m", "fiafuzz.cli.main", "fuzz", "--backend", "torch-npu:meta", "-n", "3")
    assert done.returncode == 4
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("fiafuzz: ")]
    assert "C compiler" in line and "install gcc" in line


def test_the_doctor_on_a_bare_machine(bare: dict[str, str], tmp_path: Path) -> None:
    done = run(bare, tmp_path, "-m", "fiafuzz.cli.main", "doctor", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    npu = json.loads(done.stdout)["npu"]
    assert npu["state"] == "no cann" and npu["torch_npu"]["imported"] == "stand-in" and "install" in npu["next"]


def test_the_doctor_with_a_device(standin_env: Any, tmp_path: Path) -> None:
    done = run(standin_env(soc="Ascend910_9391", devices=2), tmp_path, "-m", "fiafuzz.cli.main", "doctor")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "ok  NPU Ascend910_9391, 2 visible; profiles a3-v3, a3-v5, a3-v3-2026.08\n" in done.stdout
    assert "ok      cann 9.1.0\n" in done.stdout and "Warning" not in done.stdout
