"""What the doctor says about the NPU, for machines that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fiafuzz.backends import ascend, npu_probe
from fiafuzz.cli import doctor

from .test_ascend import machine

FINE = {"torch": "2.13.0+cpu", "torch_npu": "2.13.0", "imported": "installed", "devices": 8, "soc": "Ascend910B2", "cann": "9.1.0"}

MACHINES: dict[str, tuple[dict[str, Any], dict[str, str], str, str]] = {
    "ready": ({}, {}, "ready", ""),
    "no torch_npu": ({"torch_npu": ""}, {}, "no torch_npu", "pip install torch_npu"),
    "pair": ({"torch": "2.12.0"}, {}, "mismatched torch", "pip install"),
    "broken": (
        {"error": "torch_npu cannot be imported (ImportError: libx.so: undefined symbol: y): it does not fit"},
        {},
        "broken",
        "does not fit",
    ),
    "killed": ({"error": "importing torch_npu ended the process with signal 11"}, {}, "broken", "import torch_npu"),
    "no device": ({"devices": 0, "soc": ""}, {}, "no device", "npu-smi"),
    "uncovered": ({"soc": "Ascend310P3"}, {}, "soc not covered", "another device"),
    "hidden": ({}, {"ASCEND_RT_VISIBLE_DEVICES": "1,0"}, "devices misread", "ascending order"),
    "half": ({}, {"ASCEND_HOME_PATH": "/no/where"}, "half a cann", "set_env.sh"),
    "nothing": ({}, {"ASCEND_HOME_PATH": "", "LD_LIBRARY_PATH": "", "ROOT": "bare"}, "no cann", "install"),
}


def look_at(monkeypatch: pytest.MonkeyPatch, root: Path, answer: dict[str, Any], variables: dict[str, str]) -> None:
    """Make this the machine that the doctor sees."""
    env = {**machine(root / "whole"), **variables}
    where = root / env.pop("ROOT", "whole")
    where.mkdir(exist_ok=True)
    found = ascend.look({k: v for k, v in env.items() if v}, where)
    monkeypatch.setattr(ascend, "look", lambda *a, **k: found)
    monkeypatch.setattr(npu_probe, "ask", lambda seconds: {**FINE, **answer})


@pytest.mark.parametrize("name", MACHINES)
def test_states(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer, variables, state, step = MACHINES[name]
    look_at(monkeypatch, tmp_path, answer, variables)
    found = doctor.npu_data(1.0)
    assert found["state"] == state and step in found["next"]
    assert bool(found["text"]) == bool(found["next"]) == (state != "ready")
    ran = CliRunner().invoke(doctor.command, [])
    assert ran.exit_code == 0, ran.output
    if state == "ready":
        assert "NPU Ascend910B2, 8 visible; profiles a2-v3" in ran.output and "driver 26.0.rc1" in ran.output
    else:
        assert f"no  NPU - {found['text']}" in ran.output and f"next: {found['next']}" in ran.output


def test_control_characters_do_not_reach_the_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    look_at(monkeypatch, tmp_path, {"error": "torch_npu cannot be imported (X: \x1b[31mred\x07): \x1b[0m"}, {})
    assert "\x1b" not in CliRunner().invoke(doctor.command, []).output
