"""The C interface as data: which arguments each version has, in which order, and with which types."""

from __future__ import annotations

import ctypes

import pytest

from fiafuzz.backends.aclnn_signature import (
    APIS,
    DTYPE_CODES,
    FORMAT_CODES,
    argument_types,
    function_name,
    not_in,
    signature,
    workspace_function_name,
)
from fiafuzz.model.case import FORMATS
from fiafuzz.model.dtypes import DTYPES

from .backend_cases import call, spec

V1 = [
    "query", "key", "value", "pseShift", "attenMask", "actualSeqLengths", "actualSeqLengthsKv", "deqScale1", "quantScale1",
    "deqScale2", "quantScale2", "quantOffset2", "antiquantScale", "antiquantOffset", "blockTable", "queryPaddingSize",
    "kvPaddingSize", "numHeads", "scaleValue", "preTokens", "nextTokens", "inputLayout", "numKeyValueHeads", "sparseMode",
    "innerPrecise", "blockSize", "antiquantMode", "softmaxLseFlag", "attentionOut", "softmaxLse",
]  # fmt: skip
NEW = {
    "v2": (
        "keyAntiquantScale keyAntiquantOffset valueAntiquantScale valueAntiquantOffset keySharedPrefix valueSharedPrefix "
        "actualSharedPrefixLen",
        "keyAntiquantMode valueAntiquantMode",
    ),
    "v3": ("queryRope keyRope keyRopeAntiquantScale", ""),
    "v4": ("dequantScaleQuery learnableSink", "queryQuantMode"),
    "v5": ("qStartIdx kvStartIdx", "pseType"),
}
"""What each version put behind the inputs and behind the attributes of the one before."""


def order(api: str) -> list[str]:
    inputs, rest = V1[: V1.index("numHeads")], V1[V1.index("numHeads") : -2]
    for version in APIS[1 : APIS.index(api) + 1]:
        inputs, rest = inputs + NEW[version][0].split(), rest + NEW[version][1].split()
    return [*inputs, *rest, "attentionOut", "softmaxLse"]


@pytest.mark.parametrize("api", APIS)
def test_arguments_stand_in_c_order(api: str) -> None:
    assert [argument.name for argument in signature(api)] == order(api)


@pytest.mark.parametrize(("api", "count"), list(zip(APIS, (30, 39, 42, 45, 48))))
def test_two_results_follow_the_arguments(api: str, count: int) -> None:
    assert len(signature(api)) == count
    assert argument_types(api)[count:] == (ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_void_p))


def test_types_are_those_of_the_headers() -> None:
    types = {argument.name: argument.c_type for argument in signature("v5")}
    assert types["query"] == types["attentionOut"] == "const aclTensor *"
    assert types["key"] == types["value"] == "const aclTensorList *"
    assert types["qStartIdx"] == "const aclIntArray *"
    assert (types["scaleValue"], types["inputLayout"], types["softmaxLseFlag"]) == ("double", "char *", "bool")
    assert {types[n] for n in order("v5") if "Mode" in n or n.startswith("num") or "Tokens" in n} == {"int64_t"}


def test_functions_are_named_by_version() -> None:
    assert function_name("v1") == "aclnnFusedInferAttentionScore"
    assert workspace_function_name("v1") == "aclnnFusedInferAttentionScoreGetWorkspaceSize"
    assert workspace_function_name("v4") == "aclnnFusedInferAttentionScoreV4GetWorkspaceSize"
    with pytest.raises(ValueError, match="unknown api 'v6'"):
        function_name("v6")


def test_what_a_version_lacks_is_told_only_when_it_is_given() -> None:
    assert not_in(call(), "v1") == ()
    case = call().replace(pseType=3, queryQuantMode=0, queryRope=spec((1,)), keyAntiquantMode=1, kvStartIdx=())
    assert not_in(case, "v1") == ("queryRope", "kvStartIdx", "keyAntiquantMode", "pseType")
    assert not_in(case, "v2") == ("queryRope", "kvStartIdx", "pseType")
    assert not_in(case, "v4") == ("kvStartIdx", "pseType")
    assert not_in(case, "v5") == ()


def test_every_dtype_and_format_of_a_case_has_its_number() -> None:
    assert set(DTYPE_CODES) == set(DTYPES) and len(set(DTYPE_CODES.values())) == len(DTYPES)
    assert set(FORMAT_CODES) == set(FORMATS) and len(set(FORMAT_CODES.values())) == len(FORMATS)
