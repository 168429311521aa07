"""Case: strict about form, lenient about content; JSON both ways; hash by content."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiafuzz.model.case import (
    MAX_RANK,
    Attrs,
    Case,
    CaseError,
    Constant,
    Inputs,
    Outputs,
    Patch,
    Patched,
    TensorSpec,
    case_from_dict,
    case_to_dict,
    decode_case,
    encode_case,
)
from fiafuzz.model.parameters import ATTRIBUTES, BY_NAME, INPUTS, OUTPUTS

PLAIN = {
    "fiafuzz": 1, "api": "v5", "product": "950", "seed": 7,
    "inputs": {
        "query": {"shape": [2, 8, 16, 128], "dtype": "FLOAT16", "format": "ND", "fill": {"kind": "grid", "low": -2, "high": 2}},
        "key": [{"shape": [8, 8, 32, 128], "dtype": "FLOAT16"}],
        "value": [{"shape": [8, 8, 32, 128], "dtype": "FLOAT16"}],
        "actualSeqLengthsKv": [100, 37],
        "blockTable": {"shape": [2, 4], "dtype": "INT32", "values": [0, 1, 2, 3, 4, 5, 6, 7]},
    },
    "attrs": {"numHeads": 8, "scaleValue": 0.0884, "inputLayout": "BNSD", "sparseMode": 0},
    "outputs": {"attentionOut": {"shape": [2, 8, 16, 128], "dtype": "FLOAT16"}, "softmaxLse": None},
}


def changed(path: str, value: object) -> bytes:
    data = json.loads(json.dumps(PLAIN))
    *way, last = path.split(".")
    place = data
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    place[last] = value
    return json.dumps(data).encode()


def test_counts_are_the_operators() -> None:
    assert (len(INPUTS), len(ATTRIBUTES), len(OUTPUTS)) == (31, 15, 2)
    assert [p.name for p in INPUTS] == list(Inputs.__struct_fields__)
    assert [p.name for p in ATTRIBUTES] == list(Attrs.__struct_fields__)
    assert [p.name for p in OUTPUTS] == list(Outputs.__struct_fields__)
    first = {v: sum(p.since == v for p in (*INPUTS, *ATTRIBUTES)) for v in (1, 2, 3, 4, 5)}
    assert first == {1: 17 + 11, 2: 7 + 2, 3: 3, 4: 2 + 1, 5: 2 + 1}


def test_attribute_defaults_are_the_model_defaults() -> None:
    attrs = Attrs(numHeads=1)
    for parameter in ATTRIBUTES:
        if not parameter.required:
            assert getattr(attrs, parameter.name) == parameter.default


def test_round_trip_and_digest() -> None:
    case = decode_case(json.dumps(PLAIN))
    assert decode_case(encode_case(case)) == case
    assert case_from_dict(case_to_dict(case)) == case
    assert case.digest == decode_case(encode_case(case)).digest
    assert case.digest != case.replace(seed=8).digest
    assert hash(case) == hash(decode_case(encode_case(case)))
    assert len(encode_case(case)) < 3000


def test_replace_reaches_every_section() -> None:
    case = decode_case(json.dumps(PLAIN))
    other = case.replace(numHeads=4, query=None, softmaxLse=TensorSpec((1,), "FLOAT32"), seed=1)
    assert (other.attrs.numHeads, other.inputs.query, other.seed) == (4, None, 1)
    assert other.outputs.softmaxLse is not None
    assert other.get("numHeads") == 4
    with pytest.raises(KeyError):
        case.replace(nosuch=1)
    with pytest.raises(KeyError):
        case.get("nosuch")


def test_product_is_folded_to_lower_case() -> None:
    assert decode_case(changed("product", "A2")).product == "a2"


@pytest.mark.parametrize(
    ("data", "path", "says"),
    [
        (b'{"fiafuzz": 1, "inputs": {}', "$", "truncated"),
        (b"[1, 2]", "$", "Expected `object`"),
        (b"\xff\xfe", "$", ""),
        (b"", "$", "truncated"),
        (b"[" * 200_000, "$", ""),
        (changed("fiafuzz", 2), "$.fiafuzz", "schema version 2"),
        (changed("nosuch", 1), "$", "unknown field `nosuch`"),
        (changed("inputs.nosuch", None), "$.inputs", "unknown field `nosuch`"),
        (changed("attrs.nosuch", 1), "$.attrs", "unknown field `nosuch`"),
        (changed("attrs.numHeads", "8"), "$.attrs.numHeads", "Expected `int`"),
        (changed("attrs.numHeads", 1.5), "$.attrs.numHeads", "Expected `int`"),
        (changed("attrs.scaleValue", "big"), "$.attrs.scaleValue", "Invalid enum value"),
        (changed("inputs.query.shape", "2x3"), "$.inputs.query.shape", "Expected `array`"),
        (changed("inputs.query.shape", [1, None]), "$.inputs.query.shape[1]", "Expected `int`"),
        (changed("inputs.query.shape", [1] * (MAX_RANK + 1)), "$.inputs.query.shape", "over the limit"),
        (changed("inputs.query.shape", [1, 10**30]), "$.inputs.query.shape[1]", "does not fit into 64 bits"),
        (changed("inputs.actualSeqLengthsKv", [-(2**63) - 1]), "$.inputs.actualSeqLengthsKv[0]", "does not fit into 64 bits"),
        (changed("attrs.preTokens", 2**63), "$.attrs.preTokens", "does not fit into 64 bits"),
        (changed("inputs.query.dtype", "FLOAT17"), "$.inputs.query.dtype", "unknown dtype 'FLOAT17'"),
        (changed("inputs.key.0.dtype", "float16"), "$.inputs.key[0].dtype", "unknown dtype"),
        (changed("inputs.query.format", "XY"), "$.inputs.query.format", "unknown format"),
        (changed("inputs.query.fill.kind", "rand"), "$.inputs.query.fill", "Invalid value"),
        (changed("inputs.query.fill.mean", 1), "$.inputs.query.fill", "unknown field"),
        (changed("inputs.key", {"shape": [1], "dtype": "INT8"}), "$.inputs.key", "Expected `array"),
        (changed("inputs.blockTable.fill", {"kind": "grid"}), "$.inputs.blockTable", "exclude each other"),
        (changed("product", "910"), "$.product", "unknown product"),
        (changed("seed", -1), "$.seed", "seed is outside"),
        (changed("api", "v6"), "$.api", "Invalid enum value"),
    ],
)
def test_malformed_cases_name_the_place(data: bytes, path: str, says: str) -> None:
    with pytest.raises(CaseError) as caught:
        decode_case(data)
    assert caught.value.path.startswith(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nested_patches_are_limited() -> None:
    fill: object = Constant(0)
    for _ in range(20):
        fill = Patched(fill, (Patch((None,), 1),))  # type: ignore[arg-type]
    case = decode_case(json.dumps(PLAIN)).replace(query=TensorSpec((1,), "FLOAT16", fill=fill))  # type: ignore[arg-type]
    with pytest.raises(CaseError, match="nested over"):
        decode_case(encode_case(case))


def test_wrong_content_is_a_case() -> None:
    for path, value in [("inputs.query", None), ("inputs.query.shape", [-1, 0, 10**12]), ("attrs.inputLayout", "XYZ"),
                        ("attrs.inputLayout", None), ("attrs.numHeads", 2**40), ("inputs.key", []), ("inputs.key", [None]),
                        ("attrs.scaleValue", "nan"), ("inputs.query.strides", [1])]:
        assert isinstance(decode_case(changed(path, value)), Case)


numbers = st.one_of(st.integers(-(2**40), 2**40), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["nan", "inf", "-inf"]))
specs = st.builds(
    TensorSpec,
    shape=st.lists(st.integers(-2, 5), max_size=5).map(tuple),
    dtype=st.sampled_from(["FLOAT16", "INT8", "HIFLOAT8"]),
    format=st.sampled_from(["ND", "NCHW"]),
    strides=st.none() | st.lists(st.integers(-2, 5), max_size=5).map(tuple),
    values=st.none() | st.lists(numbers, max_size=5).map(tuple),
)


@given(st.fixed_dictionaries({}, optional={
    **{p.name: st.lists(st.integers(-5, 2**40), max_size=4).map(tuple) if p.kind.value == "int array"
       else st.lists(specs | st.none(), max_size=3).map(tuple) if p.kind.value == "tensor list" else specs for p in INPUTS}}),
    st.integers(-(2**63), 2**63 - 1))
def test_any_case_round_trips(inputs: dict[str, object], heads: int) -> None:
    case = Case(inputs=Inputs(**inputs), attrs=Attrs(numHeads=heads))  # type: ignore[arg-type]
    assert decode_case(encode_case(case)) == case
    assert json.loads(encode_case(case))["fiafuzz"] == 1


@given(st.binary(max_size=200))
def test_any_bytes_give_a_case_or_one_line(data: bytes) -> None:
    try:
        decode_case(data)
    except CaseError as error:
        assert "\n" not in str(error)


def test_names_are_unique() -> None:
    assert len(BY_NAME) == 31 + 15 + 2
    assert msgspec.json.decode(encode_case(decode_case(json.dumps(PLAIN))))["attrs"]["numHeads"] == 8
