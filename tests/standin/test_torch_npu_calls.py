"""Every argument of every call that the torch-npu backends make equals the case, and what comes back is what was written."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fiafuzz.backends.torch_npu_words import WORDS
from fiafuzz.model.case import INT64_MAX, INT64_MIN, Case, TensorSpec, case_to_dict
from fiafuzz.model.parameters import BY_NAME, INT_ARRAYS, TENSOR_INPUTS
from tests.standin_cann.environment import SOCS
from tests.unit.backend_cases import call, spec

pytestmark = pytest.mark.standin

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("torch-npu", "torch-npu:v1", "torch-npu:v2")
Environment = Callable[..., dict[str, str]]


def ask(module: str, env: dict[str, str], **question: Any) -> Any:
    """The answer of a child process to one JSON question."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.standin.{module}"],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        env=env,
        cwd=ROOT,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def recorded(standin_env: Environment, product: str, **question: Any) -> Any:
    """What the recording child saw on the SoC of a product."""
    return ask("torch_npu_child", standin_env(soc=SOCS[product], host="tests.standin.torch_npu_recorder"), **question)


def everything(operator: str, api: str, product: str) -> Case:
    """A call in which every parameter that an operator has is given and no two are alike, so that none can stand for another."""
    changes: dict[str, Any] = {}
    for i, name in enumerate(sorted(WORDS[operator])):
        parameter = BY_NAME[name]
        if parameter.since > int(api[1:]) or (name == "quantScale1" and operator == "v2" and product != "950"):
            continue
        if name in TENSOR_INPUTS and name != "query":
            changes[name] = spec((i + 1, 3), "FLOAT16" if i % 2 else "FLOAT32")
        elif name in INT_ARRAYS:
            changes[name] = (i, i + 1)
        elif name not in ("query", "key", "value", "scaleValue", "inputLayout", "softmaxLseFlag"):
            changes[name] = 100 + i
    return call(lse=True, product=product).replace(api=api, **changes)


def odd_calls(product: str, api: str) -> list[Case]:
    """Calls with what generated ones seldom have."""
    plain = call(product=product).replace(api=api)
    query, key = plain.inputs.query, plain.inputs.key[0]  # type: ignore[index]
    assert query is not None and key is not None
    out = plain.outputs.attentionOut
    assert out is not None
    return [
        everything("v1", api, product),
        plain.replace(query=None),
        plain.replace(key=(None,)),
        plain.replace(value=(None,)),
        plain.replace(actualSeqLengths=(), actualSeqLengthsKv=(INT64_MAX, -(1 << 62), -3)),
        plain.replace(preTokens=INT64_MIN, nextTokens=INT64_MAX, numHeads=1 << 40, sparseMode=-7, blockSize=-1, innerPrecise=9),
        plain.replace(scaleValue="nan"),
        plain.replace(scaleValue="-inf", inputLayout="NO SUCH LAYOUT"),
        plain.replace(numHeads=0, inputLayout=""),
        plain.replace(query=TensorSpec((2, 4, 0, 64), "FLOAT16"), attentionOut=TensorSpec((2, 4, 0, 64), "FLOAT16")),
        plain.replace(pseShift=spec((), "FLOAT16"), attenMask=spec((1,) * 9, "BOOL")),
        plain.replace(key=(TensorSpec(key.shape, "FLOAT16", strides=(9000, 4000, 130, 2), offset=5),)),
        plain.replace(value=(TensorSpec(key.shape, "FLOAT16", strides=(0, 64, 128, 1)),)),
        plain.replace(attentionOut=TensorSpec(out.shape, "FLOAT16", strides=(3000, 700, 130, 2), offset=7)),
        plain.replace(softmaxLseFlag=True, softmaxLse=spec((7, 3), "INT32")),
        plain.replace(softmaxLse=spec((2, 4, 5, 1))),
        plain.replace(query=TensorSpec(query.shape, "FLOAT16", "NCHW")),
        *(
            plain.replace(pseShift=spec((2, 3, 4), dtype))
            for dtype in (
                "UINT8",
                "INT16",
                "UINT16",
                "UINT32",
                "INT64",
                "UINT64",
                "DOUBLE",
                "COMPLEX64",
                "COMPLEX128",
                "BFLOAT16",
                "FLOAT8_E5M2",
                "FLOAT8_E8M0",
                "FLOAT4_E2M1",
            )
        ),
        plain.replace(deqScale1=spec((1,), "UINT64"), quantScale1=spec((1,)), antiquantScale=spec((2, 1)), antiquantMode=3),
        plain.replace(queryPaddingSize=spec((1,), "INT64", [3]), keySharedPrefix=key, actualSharedPrefixLen=(9,)),
        plain.replace(keyRopeAntiquantScale=spec((3,)), keyAntiquantMode=5, valueAntiquantMode=6),
    ]


def second_only() -> list[Case]:
    """Calls that only the second operator has words for."""
    plain = call(product="950")
    key = plain.inputs.key[0]  # type: ignore[index]
    assert key is not None
    packed = [TensorSpec(key.shape, dtype) for dtype in ("FLOAT4_E1M2", "INT4")]
    wide = TensorSpec(key.shape, "FLOAT4_E1M2", strides=(9216, 4608, 128, 1))
    return [
        everything("v2", "v5", "950").replace(learnableSink=spec((9,), "FLOAT16")),
        plain.replace(dequantScaleQuery=spec((2, 4, 5)), learnableSink=spec((4,), "FLOAT16"), queryQuantMode=7),
        call(dtype="HIFLOAT8", out="HIFLOAT8", product="950"),
        *(plain.replace(key=(item,), value=(item,)) for item in (*packed, wide)),
    ]


def check_generated(found: Any, profile: str) -> None:
    """Nothing differs, both operators were called often, and the device stands for profiles of its own."""
    assert found["wrong"] == []
    seen = found["seen"]
    assert seen["torch-npu:v1 v1 ok"] > 20 and seen["torch-npu:v2 v2 ok"] > 20
    assert not [key for key in seen if key.split()[-1] not in ("ok", "unsupported", "large", "tensors")]
    profiles = found["info"]["torch-npu"]["profiles"]
    assert profile in profiles and all(p.startswith(profile.partition("-")[0]) for p in profiles)


def test_calls_arrive_on_950(standin_env: Environment) -> None:
    odd, second = odd_calls("950", "v5"), second_only()
    cases = [case_to_dict(case) for case in (*odd, *second)]
    found = recorded(standin_env, "950", backends=BACKENDS, profiles=["950-v5"], count=50, seed=17, cases=cases)
    check_generated(found, "950-v5")
    assert [said["torch-npu:v1"] for said in found["given"][: len(odd)]] == ["v1"] * len(odd)
    assert [said["torch-npu"] for said in found["given"][len(odd) :]] == ["v2"] * len(second)
    assert all(len(said["torch-npu:v1"]) > 2 for said in found["given"][len(odd) :])


def test_calls_arrive_on_a2(standin_env: Environment) -> None:
    odd = odd_calls("a2", "v3")
    cases = [case_to_dict(case) for case in odd]
    found = recorded(standin_env, "a2", backends=BACKENDS, profiles=["a2-v3"], count=50, seed=17, cases=cases)
    check_generated(found, "a2-v3")
    assert [said["torch-npu"] for said in found["given"]] == ["v1"] * len(odd)


def test_calls_arrive_on_a3(standin_env: Environment) -> None:
    """V4 goes through the second operator; V1, V2 and V5 cannot be reached on A3."""
    sink = call(product="a3").replace(api="v4", learnableSink=spec((4,), "FLOAT16"), queryQuantMode=3)
    dropped = call(product="a3").replace(api="v4", quantScale1=spec((1,)))
    low = call(product="a3").replace(api="v3", actualSeqLengths=(INT64_MIN, 1))
    cases = [sink, dropped, low, everything("v2", "v4", "a3"), *(call(product="a3").replace(api=api) for api in ("v1", "v2", "v5"))]
    found = recorded(
        standin_env, "a3", backends=BACKENDS, profiles=["a3-v3-2026.08"], count=50, seed=17, cases=[case_to_dict(case) for case in cases]
    )
    check_generated(found, "a3-v3-2026.08")
    said = [answer["torch-npu"] for answer in found["given"]]
    assert said[0] == "v2" and "drops quantScale1" in said[1] and "below -2**62" in said[2]
    assert said[3] == "v2"
    assert ["does not reach V1" in said[4], "does not reach V2" in said[5], "does not reach V5" in said[6]] == [True] * 3


def test_an_old_cann_ends_in_v2(standin_env: Environment) -> None:
    case = call(product="a2").replace(api="v2")
    env = standin_env(soc=SOCS["a2"], host="tests.standin.torch_npu_recorder", cann="8.0.1")
    found = ask("torch_npu_child", env, backends=["torch-npu"], cases=[case_to_dict(case)])
    assert found["wrong"] == [] and found["given"] == [{"torch-npu": "v1"}]
