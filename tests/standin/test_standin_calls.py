"""The stand-in by itself: what it records, answers and computes, through a plain caller of the C API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fiafuzz.model.case import Case, encode_case
from fiafuzz.model.profiles import PROFILES
from oracles.constraints.predict import predict
from strategies.cases import generate
from tests.standin_cann import records
from tests.standin_cann.environment import SOCS

pytestmark = pytest.mark.standin
Environment = Callable[..., dict[str, str]]
PROFILES_ASKED = ("950-v5", "a2-v3", "a3-v3", "a2-v5")


def run_child(env: dict[str, str], cases: Sequence[Case], timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """own_child with these cases on its standard input."""
    return subprocess.run(
        [sys.executable, "-m", "tests.standin.own_child"],
        input="".join(encode_case(case).decode() + "\n" for case in cases),
        capture_output=True,
        text=True,
        env=env,
        timeout=timeout,
        check=False,
    )


def talk(env: dict[str, str], cases: Sequence[Case], timeout: float = 300) -> list[dict[str, Any]]:
    """The lines that own_child prints for these cases: a greeting, one a case, a farewell."""
    done = run_child(env, cases, timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def calls(log: Path) -> list[dict[str, Any]]:
    """The recorded calls of a log."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line for line in lines if line["event"] == "workspace"]


@pytest.mark.parametrize("profile", PROFILES_ASKED)
def test_valid_calls_are_recorded_taken_and_computed(standin_env: Environment, tmp_path: Path, profile: str) -> None:
    product = PROFILES[profile].product
    cases = [item.case for item in generate(profile, "valid", 60, seed=5)]
    log = tmp_path / "calls.ndjson"
    hello, *answers, bye = talk(standin_env(soc=SOCS[product], log=log), cases)
    assert hello["soc"] == SOCS[product]
    refused = [(case.digest, a) for case, a in zip(cases, answers) if a.get("first") or a.get("second") or a.get("sync")]
    assert not refused
    wrong = [case.digest for case, a in zip(cases, answers) if a.get("same") is False]
    assert not wrong
    assert sum(a.get("same") is True for a in answers) > 40
    made = [case for case, a in zip(cases, answers) if not a.get("skipped")]
    recorded = [records.case_of(records.parse(json.dumps(line)), SOCS[product], with_values=False) for line in calls(log)]
    assert len(recorded) == len(made)
    for case, found in zip(made, recorded):
        assert same_call(records.as_recorded(case), found) == ""
    gone = dict.fromkeys(bye["live"], 0)
    assert bye["live"] == gone
    assert all(a["live"] == {**gone, "streams": 1} for a in answers if not a.get("skipped"))


@pytest.mark.parametrize("profile", PROFILES_ASKED)
def test_invalid_calls_are_refused_with_the_predicted_status(standin_env: Environment, tmp_path: Path, profile: str) -> None:
    product = PROFILES[profile].product
    cases = [item.case for item in generate(profile, "invalid", 80, seed=9)]
    _, *answers, bye = talk(standin_env(soc=SOCS[product]), cases)
    asked = 0
    for case, answer in zip(cases, answers):
        if answer.get("skipped"):
            continue
        expected = predict(case, profile)
        assert answer["first"] in expected.codes, (case.digest, answer, expected.rule_ids)
        assert ("EZ1001" if answer["first"] < 200000 else "E89999") in answer["text"]
        asked += 1
    assert asked > 50
    assert not any(bye["live"].values())


def same_call(wanted: Case, found: Case) -> str:
    """The first parameter that differs, "" when none does."""
    for part in (wanted.inputs, wanted.attrs, wanted.outputs):
        for name in part.__struct_fields__:
            one, other = wanted.get(name), found.get(name)
            if one != other:
                return f"{name}: {one} became {other}"
    return ""


def test_profile_950_v3_is_refused_outright(standin_env: Environment) -> None:
    cases = [item.case.replace(api="v3") for item in generate("950-v5", "valid", 3, seed=1)]
    _, *answers, _ = talk(standin_env(soc=SOCS["950"]), cases)
    assert [a["first"] for a in answers] == [361001] * 3


def test_packed_and_strided_tensors_arrive(standin_env: Environment, tmp_path: Path) -> None:
    """INT4, FLOAT4 and views with offset, in a child that reads the recorded tensors back."""
    script = (
        "import numpy as np, json\n"
        "from fiafuzz.model.case import TensorSpec\n"
        "from fiafuzz.model.tensors import strided_buffer\n"
        "from tests.standin.client import Device, packed\n"
        "from tests.standin_cann import memory\n"
        "d = Device()\n"
        "formats = (4, 'int8', 'INT4', -8, 8), (4, 'uint8', 'FLOAT4_E2M1', 0, 16), (16, 'uint16', 'BFLOAT16', 0, 999)\n"
        "for bits, storage, dtype, low, high in formats:\n"
        "    dense = np.random.default_rng(1).integers(low, high, (3, 5)).astype(storage)\n"
        "    for strides, offset in (((5, 1), 0), ((7, 1), 3), ((1, 3), 1), ((2, 9), 5)):\n"
        "        spec = TensorSpec((3, 5), dtype, 'ND', strides, offset)\n"
        "        block = d.upload(packed(strided_buffer(spec, dense), bits))\n"
        "        got = memory.read(block.value, (3, 5), strides, offset, bits, storage)\n"
        "        assert (got == dense).all() and got.dtype == dense.dtype, (dtype, strides)\n"
        "        memory.write(block.value, (3, 5), strides, offset, bits, dense[::-1])\n"
        "        assert (memory.read(block.value, (3, 5), strides, offset, bits, storage) == dense[::-1]).all()\n"
        "try:\n"
        "    memory.device_bytes(np.zeros(64, np.uint8).ctypes.data, 64)\n"
        "except memory.OffDevice: print('ok')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=standin_env(), timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


DEVICE_CHECKS = {
    "a copy to host memory said to be a device": ("d.rt.aclrtMemcpy(host, 64, dev, 64, 1)", 107000),
    "a copy from host memory said to be a device": ("d.rt.aclrtMemcpy(dev, 64, host, 64, 2)", 107000),
    "a copy past the end of a block": ("d.rt.aclrtMemcpy(dev, 4096, (ctypes.c_char * 4096)(), 4096, 1)", 107000),
    "an empty block": ("d.malloc(0)[0]", 100000),
    "more memory than there is": ("d.malloc(1 << 40)[0]", 207001),
    "a block freed twice": ("(d.rt.aclrtFree(dev), d.rt.aclrtFree(dev))[1]", 107000),
    "a device that is not there": ("d.rt.aclrtSetDevice(7)", 107001),
    "no context in a new thread": ("thread(lambda: d.malloc(64)[0])", 107002),
}


def test_the_runtime_refuses_what_hardware_would(standin_env: Environment) -> None:
    script = (
        "import ctypes, json, threading\n"
        "from tests.standin.client import Device\n"
        "def thread(f):\n"
        "    found = []\n"
        "    t = threading.Thread(target=lambda: found.append(f())); t.start(); t.join()\n"
        "    return found[0]\n"
        "def blocks():\n"
        "    return d.malloc(64)[1], (ctypes.c_char * 64)()\n"
        "d = Device(); found = []\n"
        + "".join(f"dev, host = blocks(); found.append({code})\n" for code, _ in DEVICE_CHECKS.values())
        + "print(json.dumps(found))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=standin_env(), timeout=120, check=False)
    assert dict(zip(DEVICE_CHECKS, json.loads(done.stdout))) == {what: status for what, (_, status) in DEVICE_CHECKS.items()}, done.stderr


@pytest.mark.parametrize(
    ("visible", "physical"),
    [(None, [0, 1, 2, 3]), ("2", [2]), ("1,3", [1, 3]), ("3,1", [3]), ("0, 1", [0]), ("0,9", [0]), ("", []), ("x", []), ("1,1", [1])],
    ids=str,
)
def test_visible_devices_are_renumbered(standin_env: Environment, tmp_path: Path, visible: str | None, physical: list[int]) -> None:
    script = (
        "import ctypes\n"
        "rt = ctypes.CDLL('libascendcl.so'); n = ctypes.c_uint32(); rt.aclrtGetDeviceCount(ctypes.byref(n))\n"
        "print([(rt.aclrtSetDevice(i), rt.standin_physical_device())[1] for i in range(n.value)])\n"
    )
    env = standin_env(devices=4)
    if visible is not None:
        env["ASCEND_RT_VISIBLE_DEVICES"] = visible
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.stdout.strip() == str(physical), done.stderr


def test_a_host_module_that_breaks_is_loud(standin_env: Environment) -> None:
    case = next(iter(generate("a2-v3", "valid", 1, seed=1))).case
    env = standin_env(host="tests.standin.no_such_module")
    done = run_child(env, [case])
    assert json.loads(done.stdout.splitlines()[1])["first"] == 561000
    assert "no_such_module" in done.stderr


def test_the_log_survives_many_processes(standin_env: Environment, tmp_path: Path) -> None:
    log = tmp_path / "calls.ndjson"
    cases = [item.case for item in generate("a2-v3", "invalid", 20, seed=3)]
    text = "".join(encode_case(case).decode() + "\n" for case in cases)
    env = standin_env(log=log)
    command = [sys.executable, "-m", "tests.standin.own_child"]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env) for _ in range(2)]
    for child in children:
        child.communicate(text, timeout=120)
    found = calls(log)
    pids = {line["pid"] for line in found}
    assert len(pids) == 2
    assert os.getpid() not in pids
    one, other = ([line["args"]["numHeads"] for line in found if line["pid"] == pid] for pid in sorted(pids))
    assert one == other


def test_greatest_workspace_and_executors_that_are_not_launched(standin_env: Environment) -> None:
    case = next(iter(generate("950-v5", "valid", 1, seed=1))).case
    script = (
        "import json, sys\n"
        "from fiafuzz.model.case import decode_case\n"
        "from fiafuzz.model.tensors import materialize\n"
        "from tests.standin.client import Device\n"
        "from tests.standin.own_child import poisoned\n"
        "case = decode_case(sys.stdin.read()); d = Device(); before = d.live()\n"
        "found = [d.run(case, materialize(case), poisoned(case), **how).first for how in ({'longest': True}, {'keep': False})]\n"
        "print(json.dumps([found, before == d.live(), d.rt.standin_live(b'calls'), d.rt.standin_live(b'launches')]))\n"
    )
    env = standin_env(soc=SOCS["950"])
    done = subprocess.run(
        [sys.executable, "-c", script], input=encode_case(case).decode(), capture_output=True, text=True, env=env, timeout=120, check=False
    )
    assert json.loads(done.stdout) == [[0, 0], True, 2, 0], done.stderr
