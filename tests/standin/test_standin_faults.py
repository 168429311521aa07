"""Every planted fault of the stand-in does what its line in the table says, on the call that its condition picks."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fiafuzz.model.case import Case, encode_case
from oracles.constraints.predict import predict
from strategies.cases import generate
from tests.standin.test_standin_calls import Environment, run_child, talk
from tests.standin_cann.faults import FAULTS, parse

pytestmark = pytest.mark.standin

def suits(case: Case) -> bool:
    out = case.outputs.attentionOut
    return out is not None and out.dtype == "FLOAT16" and not case.attrs.softmaxLseFlag


CASES = {item.case.attrs.numHeads: item.case for item in generate("a2-v3", "valid", 40, seed=11) if suits(item.case)}
SOUND, HIT = (CASES[n] for n in sorted(CASES)[:2])


def outcome(answer: dict[str, Any]) -> tuple[Any, ...]:
    return answer["first"], answer["second"], answer["sync"]


FINE = (0, 0, 0)
ANSWERS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "wrong-status": lambda a: outcome(a) == (561002, None, None),
    "late-status": lambda a: outcome(a) == (0, 561002, 0),
    "dead-queue": lambda a: outcome(a) == (0, 561000, 0),
    "no-op": lambda a: outcome(a) == FINE and a["untouched"],
    "half": lambda a: outcome(a) == FINE and not a["same"] and not a["untouched"],
    "stale": lambda a: outcome(a) == FINE and not a["same"] and not a["untouched"],
    "wrong-dtype": lambda a: outcome(a) == FINE and not a["same"],
    "flip": lambda a: outcome(a) == FINE and not a["same"],
    "overrun": lambda a: outcome(a) == FINE and a["same"] and a["overrun"],
    "huge-workspace": lambda a: outcome(a) == (0, 207001, None),
}
"""Faults after which the process goes on."""
LATCHED = {
    "device-fault": (507015, "aivec"),
    "device-timeout": (507014, "timeout or trap error"),
    "device-lost": (507899, "does not answer"),
}
DEADLY = ("crash", "hang")
ON_INVALID = ("accept-invalid", "other-status")


def test_every_fault_has_a_test() -> None:
    assert {*ANSWERS, *LATCHED, *DEADLY, *ON_INVALID} == set(FAULTS)


def test_each_fault_hits_the_picked_call_alone(standin_env: Environment) -> None:
    """Calls 2, 4, 6 ... each have a fault of their own, those between are sound."""
    faults = [f"{name}:call=={2 * i + 2}" for i, name in enumerate(ANSWERS)]
    _, *answers, bye = talk(standin_env(faults=faults), [case for _ in ANSWERS for case in (SOUND, HIT)])
    for name, hit in zip(ANSWERS, answers[1::2]):
        assert ANSWERS[name](hit), (name, hit)
    for answer in answers[0::2]:
        assert outcome(answer) == FINE
        assert answer["same"]
        assert not answer["overrun"]
    assert not any(bye["live"].values())


def test_faults_of_invalid_calls(standin_env: Environment) -> None:
    bad = next(item.case for item in generate("a2-v3", "invalid", 1, seed=2))
    faults = [f"{name}:call=={i + 2}" for i, name in enumerate(ON_INVALID)]
    _, before, taken, other, _ = talk(standin_env(faults=faults), [bad, bad, bad])
    assert before["first"] in predict(bad, "a2-v3").codes
    assert outcome(taken) == FINE
    assert other["first"] and other["first"] not in predict(bad, "a2-v3").codes


@pytest.mark.parametrize("name", LATCHED)
def test_a_device_fault_stays_until_the_process_ends(standin_env: Environment, name: str) -> None:
    code, words = LATCHED[name]
    env = standin_env(faults=name)
    _, hit, after, _ = talk(env, [HIT, SOUND])
    assert outcome(hit) == (0, 0, code)
    assert words in hit["text"]
    assert after["gone"].startswith(str(code))
    hello, _ = talk(env, [])
    assert hello["device"] == 0


def test_a_lost_device_stays_lost_for_later_processes(standin_env: Environment, tmp_path: Path) -> None:
    state = tmp_path / "lost"
    env = standin_env(faults="device-lost", state=state, devices=2)
    first = {**env, "ASCEND_RT_VISIBLE_DEVICES": "1"}
    _, hit, _ = talk(first, [HIT])
    assert outcome(hit) == (0, 0, 507899)
    assert state.read_text() == "1\n"
    hello, after, _ = talk(first, [SOUND])
    assert hello["device"] == 507899
    assert after["gone"].startswith("507899")
    hello, _ = talk({**env, "ASCEND_RT_VISIBLE_DEVICES": "0"}, [])
    assert hello["device"] == 0
    state.unlink()
    hello, _ = talk(first, [])
    assert hello["device"] == 0


def test_a_crash_kills_the_process(standin_env: Environment) -> None:
    done = run_child(standin_env(faults="crash"), [HIT])
    assert done.returncode == -signal.SIGSEGV


def test_a_hang_does_not_come_back(standin_env: Environment, tmp_path: Path) -> None:
    log = tmp_path / "calls.ndjson"
    command = [sys.executable, "-m", "tests.standin.own_child"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=standin_env(faults="hang", log=log)) as child:
        assert child.stdin is not None
        child.stdin.write(encode_case(HIT) + b"\n")
        child.stdin.close()
        deadline = time.monotonic() + 300
        while not (log.exists() and '"launch"' in log.read_text()):
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(2)
        child.kill()


CONDITIONS = {
    "numHeads==4": True,
    "numHeads!=4": False,
    "numHeads>=4&sparseMode<3": True,
    "numHeads>4": False,
    "query.dtype==BFLOAT16": True,
    "query.dtype!=BFLOAT16": False,
    "query.rank==4": True,
    "query.dim1<8": True,
    "query.dim1>=8": False,
    "query.dim7==1": False,
    "key.count==2": True,
    "attenMask": False,
    "!attenMask": True,
    "actualSeqLengths": True,
    "softmaxLseFlag": True,
    "softmaxLseFlag==true": True,
    "inputLayout==BNSD": True,
    "api==v3": True,
    "verdict==accept": True,
    "verdict==reject": False,
    "call==9": True,
    "scaleValue==0.5": True,
    "pseShift==null": True,
    "query==null": False,
}


@pytest.mark.parametrize("text", CONDITIONS)
def test_conditions(text: str) -> None:
    spec = {"shape": [2, 4, 3, 16], "dtype": "BFLOAT16"}
    from fiafuzz.model.case import case_from_dict

    case: Case = case_from_dict(
        {
            "fiafuzz": SOUND.version,
            "api": "v3",
            "product": "a2",
            "inputs": {"query": spec, "key": [spec, spec], "value": [spec, spec], "actualSeqLengths": [3]},
            "attrs": {"numHeads": 4, "inputLayout": "BNSD", "softmaxLseFlag": True, "scaleValue": 0.5},
        }
    )
    ((fault, condition),) = parse(f"flip:{text}")
    assert fault.name == "flip"
    assert condition(case, "accept", 9) is CONDITIONS[text]


@pytest.mark.parametrize("text", ["no-such-fault", "flip:numHeads=4", "flip:;wrong"])
def test_a_setting_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"unknown fault|not of the form"):
        parse(text)
