"""What the torch-npu backend makes of refusals, late statuses, dead queues, device faults and machines that lack something."""

from __future__ import annotations

from typing import Any

import pytest

from fiafuzz.campaign.triage import plain_case
from fiafuzz.model.case import Case, TensorSpec, case_to_dict
from tests.standin_cann.environment import SOCS

from .test_torch_npu_calls import Environment, ask

pytestmark = pytest.mark.standin


def plain(mark: int = 500) -> Case:
    """A valid call; planted faults choose it by nextTokens, which means nothing without a mask."""
    return plain_case("950", "v5").replace(nextTokens=mark)


BAD = plain().replace(inputLayout="XYZ")
FAULTS = "late-status:nextTokens==501;no-op:nextTokens==502;device-fault:nextTokens==503"


def outcomes(standin_env: Environment, backend: str, cases: list[Case], **settings: Any) -> list[Any]:
    """What the backend makes of the calls, one after the other in one process."""
    found = ask("torch_npu_outcomes", standin_env(soc=SOCS["950"], **settings), backend=backend, cases=[case_to_dict(c) for c in cases])
    assert "unavailable" not in found, found
    answers: list[Any] = found["outcomes"]
    return answers


def parts(outcome: Any) -> tuple[Any, ...]:
    """Kind, code, stage and whether the process is spent."""
    return outcome["kind"], outcome["code"], outcome["stage"], outcome["fatal"]


def test_blocking_launches(standin_env: Environment) -> None:
    cases = [plain(), BAD, plain(501), plain(502), plain(), plain(503), plain()]
    first, refused, late, silent, good, broken, after = outcomes(standin_env, "torch-npu", cases, faults=FAULTS)
    assert first["kind"] == good["kind"] == "ok" and not first["untouched"] and not good["untouched"]
    assert parts(refused) == ("reject", 561002, "tiling", False) and "layout" in refused["message"]
    assert parts(late) == ("reject", 561002, "tiling", False)
    assert silent["kind"] == "ok" and silent["untouched"]
    assert parts(broken) == ("crash", 507015, "device", True)
    assert "507015" in broken["message"] and "\n" not in broken["message"] and len(broken["message"]) < 300
    assert after["kind"] == "error" and after["fatal"] and "spent" in after["message"]


def test_a_queue_of_launches(standin_env: Environment) -> None:
    """A status of the first phase comes at the call; a late one comes without its number and kills the queue."""
    first, refused, late, after = outcomes(standin_env, "torch-npu:queue=1", [plain(), BAD, plain(501), plain()], faults=FAULTS)
    assert first["kind"] == "ok" and parts(refused) == ("reject", 561002, "tiling", False)
    assert parts(late) == ("reject", None, "launch", True)
    # A dead queue drops calls silently: they would pass for calls that wrote nothing.
    assert after["kind"] == "error" and after["fatal"]


def test_a_queue_of_whole_calls_dies_of_a_refusal(standin_env: Environment) -> None:
    first, refused, after = outcomes(standin_env, "torch-npu:v1,queue=2", [plain(), BAD, plain()])
    assert first["kind"] == "ok" and not first["untouched"]
    assert parts(refused) == ("reject", None, "launch", True)
    assert after["kind"] == "error" and after["fatal"]


def test_a_lost_device(standin_env: Environment, tmp_path: Any) -> None:
    settings = {"faults": "device-lost:nextTokens==502", "state": tmp_path / "lost"}
    first, lost = outcomes(standin_env, "torch-npu", [plain(), plain(502)], **settings)
    assert first["kind"] == "ok" and parts(lost) == ("lost", 507899, "device", True)
    found = ask("torch_npu_outcomes", standin_env(soc=SOCS["950"], **settings), backend="torch-npu", cases=[])
    assert "the NPU cannot be used" in found["unavailable"] or "no NPU is visible" in found["unavailable"]


def test_outputs_that_torch_makes(standin_env: Environment) -> None:
    good = plain()
    out = good.outputs.attentionOut
    assert out is not None
    cases = [
        good,
        good.replace(attentionOut=TensorSpec((1, 1, 1, 64), "FLOAT16")),
        good.replace(attentionOut=TensorSpec(out.shape, "BFLOAT16")),
    ]
    first, small, other = outcomes(standin_env, "torch-npu:outputs=torch", cases)
    assert first["kind"] == "ok" and first["flaw"] is None and not first["untouched"]
    # The stand-in's oracle refuses neither: torch_npu hands it outputs of its own making.
    assert small["flaw"][0] == "F103" and "attentionOut" in small["flaw"][1]
    assert other["kind"] == "unsupported" and "BFLOAT16" in other["message"]


@pytest.mark.parametrize(
    ("settings", "words"), [({"soc": "Ascend310P3"}, "no profile covers it"), ({"devices": 0}, "no NPU is visible")], ids=["soc", "none"]
)
def test_what_is_missing_is_said(standin_env: Environment, settings: Any, words: str) -> None:
    found = ask("torch_npu_outcomes", standin_env(**{"soc": SOCS["a2"], **settings}), backend="torch-npu", cases=[])
    assert words in found["unavailable"]


def test_the_device_is_the_one_that_was_asked_for(standin_env: Environment) -> None:
    env = {**standin_env(soc=SOCS["a3"], devices=3), "FIAFUZZ_DEVICE": "2"}
    case = plain_case("a3", "v3")
    found = ask("torch_npu_outcomes", env, backend="torch-npu:v1", cases=[case_to_dict(case), case_to_dict(plain())])
    assert found["device"] == "2" and found["name"] == "torch-npu:v1"
    assert found["outcomes"][0]["kind"] == "ok"
    assert found["outcomes"][1]["kind"] == "unsupported" and "for 950" in found["outcomes"][1]["message"]
