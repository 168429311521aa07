"""torch_npu itself on the stand-in, driven by hand: it loads, copies, calls, and shows errors where it would on a device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.standin.test_standin_calls import Environment, calls
from tests.standin_cann.environment import SOCS

pytestmark = [pytest.mark.standin, pytest.mark.slow]
BLOCKING = {"ASCEND_LAUNCH_BLOCKING": "1"}


def run(env: dict[str, str], scenario: str) -> tuple[dict[str, Any], str]:
    """What the child prints as JSON, and its stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.standin.torch_child", scenario], capture_output=True, text=True, env=env, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize(("product", "entries"), [("a3", ["V3", "V4"]), ("950", ["V5", "V5"])])
def test_torch_npu_runs(standin_env: Environment, tmp_path: Path, product: str, entries: list[str]) -> None:
    log = tmp_path / "calls.ndjson"
    found, _ = run({**standin_env(soc=SOCS[product], log=log), **BLOCKING}, "good")
    assert found["name"] == SOCS[product]
    assert max(found["errors"]) < 0.01
    assert found["lse"] == [2, 8, 3, 1]
    assert found["strided"]
    assert found["filled"] == [-1.5] * 3
    assert found["zeros"] == [0.0] * 3
    assert found["codes"] == [255 * 128]
    recorded = calls(log)
    assert [line["fn"].removeprefix("aclnnFusedInferAttentionScore")[:2] for line in recorded[1:3]] == entries
    view = recorded[4]["args"]["query"]
    assert (view["dims"], view["strides"]) == ([2, 3, 8, 64], [8 * 3 * 64, 64, 3 * 64, 1])


@pytest.mark.parametrize("mode", [BLOCKING, {"TASK_QUEUE_ENABLE": "1"}], ids=["blocking", "queue 1"])
def test_a_refusal_carries_its_status_and_text(standin_env: Environment, mode: dict[str, str]) -> None:
    found, _ = run({**standin_env(), **mode}, "refused")
    assert "call aclnnFusedInferAttentionScoreV3 failed, error code is 56" in found["error"]
    assert "E89999: Inner Error!" in found["error"]
    assert found["after"] == ""


@pytest.mark.parametrize("queue", ["1", "2"])
def test_a_failed_launch_kills_the_task_queue(standin_env: Environment, tmp_path: Path, queue: str) -> None:
    log = tmp_path / "calls.ndjson"
    env = {**standin_env(faults="dead-queue:call==2", log=log), "TASK_QUEUE_ENABLE": queue}
    found, stderr = run(env, "launch")
    assert found["first"] == ""
    assert "The Inner error is reported as above" in found["hit"] + stderr
    assert "error code is 561000" not in found["hit"]
    # Dropped in silence: the third call comes back and was never launched.
    assert found["after"] == ""
    launched = [line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "launch"]
    assert len(launched) == 2


def test_a_failed_launch_under_blocking_carries_its_status(standin_env: Environment) -> None:
    found, _ = run({**standin_env(faults="late-status:call==2"), **BLOCKING}, "launch")
    assert "error code is 561002" in found["hit"]
    assert (found["first"], found["after"]) == ("", "")


@pytest.mark.parametrize("mode", [BLOCKING, {"TASK_QUEUE_ENABLE": "1"}], ids=["blocking", "queue 1"])
def test_a_device_fault_shows_at_synchronisation_and_stays(standin_env: Environment, mode: dict[str, str]) -> None:
    found, _ = run({**standin_env(faults="device-fault:call==2"), **mode}, "launch")
    assert found["first"] == ""
    assert "507015" in found["hit"]
    assert "507015" in found["after"]


def test_memory_runs_out(standin_env: Environment) -> None:
    found, _ = run({**standin_env(memory_mib=256), **BLOCKING}, "memory")
    assert "NPU out of memory" in found["error"]
    assert found["after"] == ""
