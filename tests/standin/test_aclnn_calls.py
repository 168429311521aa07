"""Every argument of every call that the aclnn backend makes equals the case: recorded by the stand-in, all versions, three SoCs."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fiafuzz.model.case import FORMATS, INT64_MAX, INT64_MIN, Case, TensorSpec, encode_case
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.tensors import named_specs
from strategies.cases import generate
from tests.standin_cann.environment import SOCS
from tests.standin_cann.signatures import BOOL, DOUBLE, ENTRIES, INT, INTS, LIST, STR, TENSOR
from tests.unit.backend_cases import call, spec

from .aclnn_child import Child

pytestmark = pytest.mark.standin

PROFILES = {"a2": ("a2-v3", "a2-v5"), "a3": ("a3-v3", "a3-v5"), "950": ("950-v5",)}
LARGE = 1 << 20
"""Elements above which a call is sent without data, as one that may be refused is in a campaign from 16 times as many on."""
BASE = call(B=1, N=2, KN=1, Q=3, K=8, D=16, product="a2")
VERSIONS = {"v1": "", "v2": "V2", "v3": "V3", "v4": "V4", "v5": "V5"}


@pytest.fixture(scope="module", params=list(SOCS))
def child(request: pytest.FixtureRequest, standin: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A process on one SoC whose operator takes every call and computes nothing; with the product's name."""
    from tests.standin_cann.environment import standin_environment

    log = tmp_path_factory.mktemp("aclnn") / "calls.jsonl"
    made = Child(standin_environment(standin, soc=SOCS[request.param], log=log, host=""), log)
    yield request.param, made
    assert made.close() == 0


@pytest.fixture(scope="module")
def one(standin: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """The same, on one SoC only, for what does not depend on it."""
    from tests.standin_cann.environment import standin_environment

    log = tmp_path_factory.mktemp("aclnn") / "calls.jsonl"
    made = Child(standin_environment(standin, soc=SOCS["a2"], log=log, host=""), log)
    yield made
    assert made.close() == 0


@pytest.fixture(scope="module")
def codes() -> Callable[[str, str], int]:
    """Number of a name in the enums of the public headers that torch_npu carries: ("aclDataType" | "aclFormat", name)."""
    found = _enums()
    aliases = {"FLOAT32": "FLOAT", "BFLOAT16": "BF16", "FLOAT8_E8M0": "FLOAT8_E8M0", "UNDEFINED": "UNDEFINED"}

    def number(kind: str, name: str) -> int:
        if kind == "aclDataType":
            return found[f"ACL_{aliases.get(name, name)}"]
        for spelled in (f"ACL_FORMAT_{name}", f"ACL_{name}", f"C_FORMAT_{name}"):
            if spelled in found:
                return found[spelled]
        raise KeyError(name)

    return number


def _enums() -> dict[str, int]:
    import importlib.util

    package = importlib.util.find_spec("torch_npu")
    assert package is not None and package.origin is not None
    include = Path(package.origin).parent / "include"
    found: dict[str, int] = {}
    for file in ("acl/acl_base_rt.h", "third_party/acl/inc/graph/c_types.h"):
        for body in re.findall(r"typedef enum[^{]*\{(.*?)\}", (include / file).read_text(encoding="utf-8"), re.DOTALL):
            value = -1
            for name, number in re.findall(r"^\s*(\w+)\s*(?:=\s*(-?\w+))?\s*,?", re.sub(r"//.*|/\*.*?\*/", "", body), re.MULTILINE):
                try:
                    value = int(number, 0) if number else value + 1
                except ValueError:
                    break
                found.setdefault(name, value)
    return found


# ---- what the record of a call must hold -----------------------------------------------------------------------------


def differences(case: Case, api: str, record: Any, codes: Callable[[str, str], int]) -> list[str]:
    """Arguments of a recorded call that are not those of the case."""
    entry = "aclnnFusedInferAttentionScore" + VERSIONS[api]
    wrong = [] if record["fn"] == entry + "GetWorkspaceSize" else [f"{record['fn']} was called"]
    if list(record["args"]) != [name for name, _ in ENTRIES[entry]]:
        wrong.append("other arguments")
    for name, kind in ENTRIES[entry]:
        want, got = case.get(name), record["args"][name]
        if kind == TENSOR:
            wrong += tensor_differences(name, want, got, codes)
        elif kind == LIST and isinstance(want, tuple) and isinstance(got, list) and len(want) == len(got):
            for i, (a, b) in enumerate(zip(want, got)):
                wrong += tensor_differences(f"{name}[{i}]", a, b, codes)
        elif kind == INTS and want is not None:
            wrong += [] if got == list(want) else [f"{name}: {got} instead of {want}"]
        elif kind == DOUBLE:
            wrong += [] if same_number(float(want), float(got)) else [f"{name}: {got} instead of {want}"]
        elif kind == STR and want is not None:
            wrong += [] if got.encode("latin-1") == want.encode() else [f"{name}: {got!r} instead of {want!r}"]
        elif not (got == want and type(got) is type(want)) or kind not in (LIST, INTS, INT, BOOL, STR):
            wrong.append(f"{name}: {got} instead of {want}")
    return wrong


def tensor_differences(name: str, want: Any, got: Any, codes: Callable[[str, str], int]) -> list[str]:
    if want is None or got is None:
        return [] if want is got else [f"{name}: {got} instead of {want}"]
    told = {
        "dtype": codes("aclDataType", want.dtype),
        "format": codes("aclFormat", want.format),
        "dims": list(want.shape),
        "strides": list(want.strides) if want.strides is not None else dense(want.shape),
        "offset": want.offset,
    }
    if want.strides is None and not want.offset:
        told["storage"] = list(want.shape)
    elif min((*want.shape, *told["strides"], want.offset)) >= 0:
        size = want.offset + (0 if 0 in want.shape else sum((n - 1) * step for n, step in zip(want.shape, told["strides"])) + 1)
        if size < 1 << 28:  # otherwise no memory can be made
            told["storage"] = [size]
    wrong = [f"{name}.{key}: {got[key]} instead of {value}" for key, value in told.items() if got[key] != value]
    if got["addr"] % 32:
        wrong.append(f"{name}: the address {got['addr']:#x} is not aligned")
    return wrong


def dense(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def same_number(a: float, b: float) -> bool:
    return (a != a and b != b) or a == b


# ---- generated calls -------------------------------------------------------------------------------------------------


def apis_of(case: Case) -> list[str]:
    """The versions that a generated case is sent through: its own, and those that it is not too new for."""
    return [case.api, *(["v1", "v2", "v4", "v5"] if case.api == "v3" else [])]


def check(child: Child, case: Case, backend: str, api: str, codes: Callable[[str, str], int], **more: Any) -> dict[str, Any]:
    outcome: dict[str, Any] = child.run(case, backend, **more)
    calls = child.calls()
    if outcome["kind"] == "unsupported":
        assert "has no parameter for" in outcome["message"] and api in ("v1", "v2", "v3", "v4")
        assert not calls
        return outcome
    assert outcome["kind"] == "ok", outcome
    assert len(calls) == 1
    assert differences(case, api, calls[0], codes) == []
    assert outcome.get("wrong", []) == []
    return outcome


@pytest.mark.parametrize("mode", ["valid", "invalid", "boundary"])
def test_generated_calls_arrive_as_they_are(child: Any, mode: str, codes: Any) -> None:
    product, process = child
    sent = dict.fromkeys(VERSIONS, 0)
    for profile in PROFILES[product]:
        for i, generated in enumerate(generate(profile, mode, 40, seed=11)):
            case = generated.case
            shapes = [spec.shape for _, _, spec, _ in named_specs(case)]
            large = sum(map(math.prod, shapes)) > LARGE or any(n < 0 for shape in shapes for n in shape)
            try:
                outcome = check(process, case, "aclnn", case.api, codes, values=not large, blind=large)
                sent[case.api] += outcome["kind"] == "ok"
                for api in apis_of(case)[1 + i % 2 :: 2]:
                    sent[api] += check(process, case, f"aclnn:{api}", api, codes, blind=True)["kind"] == "ok"
            except Exception as error:
                raise AssertionError(f"{profile} {mode} {i}: {encode_case(case).decode()}") from error
    assert sent["v5"] > 20
    if product != "950":
        assert sent["v3"] > 20 and sent["v4"] > 10 and sent["v2"] > 5 and sent["v1"] > 2


@pytest.mark.parametrize("api", list(VERSIONS))
def test_a_call_with_every_parameter_of_a_version_arrives(child: Any, api: str, codes: Any) -> None:
    product, process = child
    case = full_call(api).replace(product=product)
    outcome = check(process, case, "aclnn", api, codes, values=True)
    assert outcome["kind"] == "ok"


def full_call(api: str) -> Case:
    """A call in which every parameter of a version holds something of its own (and makes no sense at all)."""
    base = call(B=1, N=2, KN=1, Q=3, K=5, D=16, lse=True).replace(api=api)
    numbers = iter(range(3, 99))
    changes: dict[str, Any] = {}
    for name, kind in ENTRIES["aclnnFusedInferAttentionScore" + VERSIONS[api]]:
        n = next(numbers)
        if name in ("attentionOut", "softmaxLse", "query"):
            continue
        changes[name] = {
            TENSOR: spec((n, 2), "INT32", values=[n] * (2 * n)),
            LIST: (spec((1, n), "FLOAT16"), None, spec((n, 3, 1), "FLOAT32")),
            INTS: (n, -n),
            INT: n * 10**9 + 1,
            DOUBLE: n + 0.1,
            BOOL: True,
            STR: f"LAYOUT_{n}",
        }[kind]
    return base.replace(**changes)


# ---- any call at all -------------------------------------------------------------------------------------------------

INTEGERS = st.one_of(st.integers(-3, 70), st.integers(INT64_MIN, INT64_MAX))


@st.composite
def tensors(draw: Any) -> TensorSpec:
    """Small tensors of every dtype and format, dense or strided, with and without offset."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=6)))
    strides = draw(st.one_of(st.none(), st.tuples(*[st.integers(0, 30)] * len(shape))))
    return TensorSpec(shape, draw(st.sampled_from(list(DTYPES))), draw(st.sampled_from(sorted(FORMATS))), strides, draw(st.integers(0, 5)))


@st.composite
def any_calls(draw: Any) -> Case:
    """Calls of any version in which every parameter is null, empty or anything."""
    api = draw(st.sampled_from(list(VERSIONS)))
    numbers = st.lists(INTEGERS, max_size=5).map(tuple)
    values = {
        TENSOR: st.one_of(st.none(), st.none(), tensors()),
        LIST: st.one_of(st.none(), st.lists(st.one_of(st.none(), tensors()), max_size=4).map(tuple)),
        INTS: st.one_of(st.none(), numbers),
        INT: INTEGERS,
        DOUBLE: st.one_of(st.floats(allow_nan=False, allow_infinity=False).filter(bool), st.sampled_from(["nan", "inf", "-inf"])),
        BOOL: st.booleans(),
        STR: st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)),
    }
    entry = ENTRIES["aclnnFusedInferAttentionScore" + VERSIONS[api]]
    return BASE.replace(api=api, **{name: draw(values[kind]) for name, kind in entry})


def test_any_call_arrives_as_it_is(one: Child, codes: Any) -> None:
    sent = dict.fromkeys(VERSIONS, 0)

    @given(any_calls())
    @settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    def holds(case: Case) -> None:
        assert check(one, case, "aclnn", case.api, codes, values=True)["kind"] == "ok"
        sent[case.api] += 1

    holds()
    assert min(sent.values()) > 5


# ---- odd calls -------------------------------------------------------------------------------------------------------

KEY = BASE.inputs.key[0]  # type: ignore[index]
ODD: dict[str, Case] = {
    "null-query": BASE.replace(query=None),
    "null-key": BASE.replace(key=None),
    "null-value": BASE.replace(value=None),
    "null-out": BASE.replace(attentionOut=None),
    "null-lse": BASE.replace(softmaxLse=None, softmaxLseFlag=True),
    "null-layout": BASE.replace(inputLayout=None),
    "all-null": BASE.replace(query=None, key=None, value=None, attentionOut=None, softmaxLse=None, inputLayout=None),
    "empty-lists": BASE.replace(key=(), value=()),
    "list-of-null": BASE.replace(key=(None,), value=(None, None)),
    "list-with-null": BASE.replace(key=(KEY, None, KEY), value=(None, KEY)),
    "list-of-many": BASE.replace(key=(KEY,) * 300, value=(KEY,) * 299),
    "unequal-list": BASE.replace(key=tuple(spec((1, 1, n, 16), "FLOAT16") for n in (1, 9, 4))),
    "empty-ints": BASE.replace(actualSeqLengths=(), actualSeqLengthsKv=()),
    "many-ints": BASE.replace(actualSeqLengths=tuple(range(1000)), actualSeqLengthsKv=(INT64_MIN, INT64_MAX, -1)),
    "lse-unasked": BASE.replace(softmaxLse=spec((5, 7), "INT8")),
    "lse-odd": BASE.replace(softmaxLseFlag=True, softmaxLse=spec((2, 2), "FLOAT16")),
    "scalar": BASE.replace(query=spec((), "FLOAT32")),
    "rank-9": BASE.replace(query=spec((1,) * 8 + (3,), "FLOAT16")),
    "no-elements": BASE.replace(query=spec((0, 2, 3, 16), "FLOAT16"), attentionOut=spec((0, 2, 3, 16), "FLOAT16")),
    "transposed": BASE.replace(query=TensorSpec((1, 2, 3, 16), "FLOAT16", strides=(96, 16, 32, 1))),
    "gaps": BASE.replace(key=(TensorSpec((1, 1, 8, 16), "FLOAT16", strides=(999, 999, 20, 1), offset=7),)),
    "expanded": BASE.replace(query=TensorSpec((1, 2, 3, 16), "FLOAT16", strides=(0, 0, 16, 1))),
    "offset": BASE.replace(attenMask=TensorSpec((3, 8), "BOOL", offset=5)),
    "strided-int4": BASE.replace(keyAntiquantScale=TensorSpec((3, 5), "INT4", strides=(7, 1), offset=3)),
    "odd-fp4": BASE.replace(keyAntiquantScale=spec((3, 5), "FLOAT4_E2M1")),
    "words": BASE.replace(pseShift=spec((2, 3), "INT32", values=[-1, 2**31 - 1, -(2**31), 5, 6, 7])),
    "smallest": BASE.replace(numHeads=INT64_MIN, preTokens=INT64_MIN, nextTokens=INT64_MIN, blockSize=INT64_MIN, innerPrecise=INT64_MIN),
    "largest": BASE.replace(numHeads=INT64_MAX, preTokens=INT64_MAX, sparseMode=INT64_MAX, pseType=INT64_MAX, queryQuantMode=INT64_MAX),
    "nan": BASE.replace(scaleValue="nan"),
    "inf": BASE.replace(scaleValue="inf"),
    "minus-inf": BASE.replace(scaleValue="-inf"),
    "tiny": BASE.replace(scaleValue=5e-324),
    "whole-scale": BASE.replace(scaleValue=3),
    "no-layout": BASE.replace(inputLayout=""),
    "long-layout": BASE.replace(inputLayout="BSH" * 4000),
    "foreign-layout": BASE.replace(inputLayout='B"S\\ß\n令'),
    **{f"format-{name}": BASE.replace(query=TensorSpec((1, 2, 3, 16), "FLOAT16", name)) for name in sorted(FORMATS)},
    **{f"dtype-{name}": BASE.replace(query=spec((1, 2, 3, 16), name), attentionOut=spec((3, 5), name)) for name in DTYPES},
}


@pytest.mark.parametrize("name", list(ODD))
def test_odd_calls_arrive_as_they_are(one: Child, name: str, codes: Any) -> None:
    assert check(one, ODD[name], "aclnn", "v5", codes, values=True)["kind"] == "ok"


@pytest.mark.parametrize("name", ["gaps", "list-with-null", "odd-fp4", "no-elements", "lse-unasked"])
def test_large_calls_are_sent_piece_by_piece(one: Child, name: str, codes: Any) -> None:
    large = TensorSpec((1 << 20, 2), "INT8")  # only outputs are read back from here on
    for case in (ODD[name], ODD[name].replace(pseShift=large)):
        outcome = check(one, case, "aclnn", "v5", codes, values=True, outputs=True, keep=0)
        assert (outcome["kind"], outcome["flaw"]) == ("ok", None)
        out = base64.b64decode(outcome["outputs"]["attentionOut"])
        assert out == (b"\x3c\x3d" * len(out))[: len(out)]


BLIND: dict[str, Case] = {
    "negative": BASE.replace(query=spec((1, -2, 3, 16), "FLOAT16")),
    "enormous": BASE.replace(query=spec((1 << 31, 1 << 31, 3, 16), "FLOAT16")),
    "most-negative": BASE.replace(query=spec((INT64_MIN, 4), "FLOAT16")),
    "negative-strides": BASE.replace(key=(TensorSpec((1, 1, 8, 16), "FLOAT16", strides=(128, 128, -16, 1)),)),
    "negative-offset": BASE.replace(key=(TensorSpec((1, 1, 8, 16), "FLOAT16", offset=-4),)),
    "wide-strides": BASE.replace(query=TensorSpec((1, 2, 3, 16), "FLOAT16", strides=(1 << 62, 1 << 62, 1 << 62, 1))),
    "negative-out": BASE.replace(attentionOut=spec((1, 2, -3, 16), "FLOAT16")),
    "enormous-lse": BASE.replace(softmaxLse=spec((1 << 40,), "FLOAT32")),
}


@pytest.mark.parametrize("name", list(BLIND))
def test_calls_whose_tensors_cannot_be_made_meet_the_checks_and_are_not_launched(one: Child, name: str, codes: Any) -> None:
    case = BLIND[name]
    if name in ("most-negative", "enormous"):  # a dense stride that 64 bits cannot hold is cut to them
        case = case.replace(query=TensorSpec(case.inputs.query.shape, "FLOAT16", strides=(5, 4, 3, 2)[: case.inputs.query.rank]))  # type: ignore[union-attr]
    outcome = check(one, case, "aclnn", "v5", codes, blind=True)
    assert (outcome["kind"], outcome["launched"]) == ("ok", False)
    assert "not launched" in outcome["message"]
    one.ask(op="env", STANDIN_STATUS="161002")
    refused = one.run(case, blind=True)
    one.ask(op="env", STANDIN_STATUS="0")
    one.calls()
    assert (refused["kind"], refused["code"]) == ("reject", 161002)


def test_what_c_cannot_say_is_said_in_words(one: Child) -> None:
    for change, words in (
        ({"inputLayout": "BN\0SD"}, "C string"),
        ({"query": TensorSpec((1, 2, 3, 16), "FLOAT16", strides=(16, 1))}, "query: an aclTensor has one stride for each axis, not 2 for 4"),
        ({"key": (KEY, TensorSpec((4,), "FLOAT16", offset=1 << 63))}, "key[1]: the offset does not fit into 64 bits"),
    ):
        outcome = one.run(BASE.replace(**change), blind=True)
        assert outcome["kind"] == "unsupported" and words in outcome["message"]
    assert one.calls() == []


def test_a_case_for_another_product_is_not_called(child: Any) -> None:
    product, process = child
    for other in ("a2", "a3", "950"):
        outcome = process.run(BASE.replace(product=other))
        assert (outcome["kind"] == "ok") == (other == product)
        assert other == product or outcome["message"] == f"the case is for {other}, this device is {SOCS[product]}"
    assert len(process.calls()) == 1


def test_a_forced_version_says_what_it_has_no_parameter_for(one: Child) -> None:
    case = BASE.replace(pseType=2, qStartIdx=(1,), learnableSink=spec((2,), "FLOAT32"))
    for api, words in (
        ("v4", "aclnnFusedInferAttentionScoreV4 has no parameter for qStartIdx, pseType"),
        ("v3", "aclnnFusedInferAttentionScoreV3 has no parameter for learnableSink, qStartIdx, pseType"),
        ("v1", "aclnnFusedInferAttentionScore has no parameter for learnableSink, qStartIdx, pseType"),
    ):
        assert one.run(case, f"aclnn:{api}") == {"kind": "unsupported", "message": words}
    assert one.calls() == []
    assert one.run(case, "aclnn:v5")["kind"] == "ok"
    assert one.calls()[0]["args"]["qStartIdx"] == [1]
