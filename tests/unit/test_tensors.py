"""Case to tensors: determinism, independence, literal values, limits, strides."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fiafuzz.model import tensors
from fiafuzz.model.case import (
    Attrs,
    Band,
    Bernoulli,
    Case,
    CaseError,
    ColumnsFrom,
    Constant,
    Fill,
    Grid,
    Inputs,
    Normal,
    TensorSpec,
    Triu,
    Uniform,
    decode_case,
    encode_case,
)
from fiafuzz.model.codecs import decode
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.tensors import materialize, materialize_one, strided_buffer, strided_view

RANDOM: list[Fill] = [Grid(), Grid(-300, 300), Grid(-100000, 100000), Uniform(), Normal(), Bernoulli(0.4)]
ANY: list[Fill] = [*RANDOM, Constant(1), Triu(1), Band(2, 1), ColumnsFrom((1, 3))]


def case_of(*, seed: int = 7, **inputs: Any) -> Case:
    return Case(seed=seed, inputs=Inputs(**inputs), attrs=Attrs(numHeads=2))


def rich_case(seed: int = 7) -> Case:
    data = TensorSpec((2, 4, 9, 16), "BFLOAT16")
    return case_of(
        seed=seed, query=TensorSpec((2, 4, 9, 16), "FLOAT16"), key=(data, None, data), value=(data, data),
        pseShift=TensorSpec((2, 3), "FLOAT16", fill=Normal()),
        attenMask=TensorSpec((1, 9, 9), "BOOL", fill=Bernoulli()),
        blockTable=TensorSpec((2, 2), "INT32", values=(0, 1, 2, -1)), actualSeqLengths=(3, 4),
        quantScale2=TensorSpec((4,), "FLOAT32"),
    )


def bits(array: np.ndarray) -> bytes:
    return array.tobytes()


# -- determinism ----------------------------------------------------------------------------------------------------

GOLDEN = {
    ("FLOAT16", "Grid"): "32a4b050b07ee83d",
    ("FLOAT16", "Uniform"): "3f41c12117d2a842",
    ("FLOAT16", "Normal"): "70e566e3edd6ef7d",
    ("BFLOAT16", "Grid"): "1d5852e616bf8e70",
    ("BFLOAT16", "Uniform"): "e5df33affa000919",
    ("BFLOAT16", "Normal"): "66d33ae274528c07",
    ("FLOAT32", "Grid"): "84cc0662f3dd70d1",
    ("FLOAT32", "Uniform"): "9a51a6b2e3ba02c3",
    ("FLOAT32", "Normal"): "ce3d42ad159e0819",
    ("INT8", "Grid"): "1a723aaa2c790c1a",
    ("INT8", "Uniform"): "188cfb010e937a02",
    ("INT8", "Normal"): "bdfd6b8ab3a5c9ce",
    ("INT8", "Bernoulli"): "fd3c4692e1bdbd90",
    ("FLOAT8_E4M3FN", "Uniform"): "ec018becd02146c3",
    ("HIFLOAT8", "Normal"): "205b0b53762776b9",
    ("FLOAT4_E2M1", "Uniform"): "601381414cc62c73",
    ("FLOAT8_E8M0", "Grid"): "140fdb0d6f2b3132",
    ("BOOL", "Bernoulli"): "fd3c4692e1bdbd90",
    ("INT64", "Grid"): "4050e4092b4f9975",
}


@pytest.mark.parametrize(("dtype", "kind"), GOLDEN)
def test_the_bits_never_change(dtype: str, kind: str) -> None:
    fill = {"Grid": Grid(), "Uniform": Uniform(), "Normal": Normal(), "Bernoulli": Bernoulli(0.3)}[kind]
    case = case_of(seed=123456789, key=(None, TensorSpec((33, 1031), dtype, fill=fill)))
    digest = hashlib.blake2b(bits(materialize_one(case, "key", 1)), digest_size=8).hexdigest()
    assert digest == GOLDEN[dtype, kind]


def test_the_first_values_never_change() -> None:
    case = case_of(seed=7, query=TensorSpec((8,), "FLOAT16"), key=(TensorSpec((8,), "FLOAT16"),))
    assert materialize_one(case, "query").tolist() == [1.5, -1.375, 1.5, 0.625, 0.0, -0.625, 1.25, 0.875]
    assert materialize_one(case, "key").tolist() == [-0.875, -0.5, -1.5, 0.5, 0.125, 1.75, -1.625, -0.875]


def test_another_process_with_another_hash_seed_makes_the_same_bits() -> None:
    code = ("import sys, hashlib\n"
            "from fiafuzz.model.case import decode_case\nfrom fiafuzz.model.tensors import materialize\n"
            "made = materialize(decode_case(sys.stdin.buffer.read()))\n"
            "flat = [a for x in made.values() for a in (x if isinstance(x, list) else [x]) if a is not None]\n"
            "print(list(made), hashlib.sha256(b''.join(a.tobytes() for a in flat)).hexdigest())")
    results = {
        subprocess.run([sys.executable, "-c", code], input=encode_case(rich_case()), capture_output=True, check=True,
                       env={**os.environ, "PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    }
    assert len(results) == 1


@given(st.integers(0, (1 << 64) - 1))
@settings(max_examples=20, deadline=None)
def test_the_same_case_gives_the_same_tensors(seed: int) -> None:
    one, other = materialize(rich_case(seed)), materialize(decode_case(encode_case(rich_case(seed))))
    assert list(one) == list(other)
    for name in one:
        first, second = one[name], other[name]
        if isinstance(first, list):
            assert [a if a is None else bits(a) for a in first] == [a if a is None else bits(a) for a in second]
        else:
            assert bits(first) == bits(second)  # type: ignore[arg-type]


def test_materialize_one_gives_what_materialize_gives() -> None:
    case = rich_case()
    made = materialize(case)
    for name, index, _, _ in tensors.named_specs(case):
        whole = made.many(name)[index] if name in ("key", "value") else made.one(name)
        assert whole is not None and bits(materialize_one(case, name, index)) == bits(whole)


@pytest.mark.parametrize("fill", RANDOM)
def test_seed_name_and_index_all_matter(fill: Fill) -> None:
    spec = TensorSpec((4, 64), "FLOAT32", fill=fill)
    case = case_of(query=spec, pseShift=spec, key=(spec, spec), value=(spec, spec))
    made = [materialize_one(case, n, i) for n, i in
            (("query", 0), ("pseShift", 0), ("key", 0), ("key", 1), ("value", 0), ("value", 1))]
    made.append(materialize_one(case.replace(seed=8), "query"))
    assert len({bits(a) for a in made}) == 7


@given(st.sampled_from(["query", "pseShift", "attenMask", "blockTable", "quantScale2", "value"]))
@settings(max_examples=12, deadline=None)
def test_a_tensor_does_not_depend_on_the_others(removed: str) -> None:
    case = rich_case()
    without = case.replace(**{removed: None})
    whole, rest = materialize(case), materialize(without)
    assert set(rest) == set(whole) - {removed}
    for name in rest:
        one, other = whole[name], rest[name]
        for a, b in zip(one, other) if isinstance(one, list) else [(one, other)]:
            assert (a is None and b is None) or bits(a) == bits(b)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in ("BOOL", "FLOAT8_E8M0")])
@pytest.mark.parametrize("fill", ANY)
def test_shape_and_storage(dtype: str, fill: Fill) -> None:
    array = materialize_one(case_of(pseShift=TensorSpec((3, 5, 7), dtype, fill=fill)), "pseShift")
    assert array.shape == (3, 5, 7) and array.dtype == DTYPES[dtype].storage and array.flags.c_contiguous
    assert np.isfinite(decode(dtype, array)).all()


# -- the container ----------------------------------------------------------------------------------------------------

def test_null_tensors() -> None:
    made = materialize(rich_case())
    assert "keySharedPrefix" not in made and "actualSeqLengths" not in made
    assert made.many("key")[1] is None and len(made.many("key")) == 3
    assert made.one("keySharedPrefix") is None and materialize(case_of()).many("key") == []
    assert materialize(case_of(key=())).many("key") == []
    with pytest.raises(TypeError, match="key is a list"):
        made.one("key")
    with pytest.raises(TypeError, match="query is one tensor"):
        made.many("query")


def test_asking_for_what_is_not_there() -> None:
    case = rich_case()
    for name in ("keySharedPrefix", "actualSeqLengths", "nonsense", "attentionOut"):
        with pytest.raises(KeyError):
            materialize_one(case, name)
    with pytest.raises(KeyError):
        materialize_one(case, "key", 1)
    for name, index in (("key", 3), ("key", -1), ("query", 1), ("query", -1)):
        with pytest.raises(IndexError):
            materialize_one(case, name, index)


def test_arrays_are_the_callers_own() -> None:
    case = rich_case()
    first = materialize(case)
    for name in ("query", "attenMask", "blockTable", "quantScale2"):
        array = first.one(name)
        assert array is not None and array.flags.writeable
        before = bits(array)
        array[...] = 0
        again = materialize(case).one(name)
        assert again is not None and bits(again) == before


def test_the_causal_triangle_is_shared_and_read_only() -> None:
    case = case_of(attenMask=TensorSpec((1, 1, 2048, 2048), "INT8", fill=Triu(1)))
    one, other = materialize_one(case, "attenMask"), materialize_one(case, "attenMask")
    assert np.shares_memory(one, other) and not one.flags.writeable


# -- literal values ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("FLOAT16", (1, 2.5, "nan", "inf", "-inf", -0.0), [1, 2.5, math.nan, math.inf, -math.inf, -0.0]),
        ("FLOAT16", (65519, 0.1, 1e-8, 2, 3, 4), [65504, 0.0999755859375, 0, 2, 3, 4]),
        ("INT64", (2**63 - 1, -(2**63), 2**53 + 1, 0, 1, 2.0), [2**63 - 1, -(2**63), 2**53 + 1, 0, 1, 2]),
        ("UINT64", (2**64 - 1, 0, 2**63 + 1, 1065353216, 1, 2), [2**64 - 1, 0, 2**63 + 1, 1065353216, 1, 2]),
        ("BOOL", (0, 1, 1, 0, 1.0, 0.0), [False, True, True, False, True, False]),
        ("FLOAT8_E8M0", (1, 2, 0.5, "nan", 3, 1e-300), [1, 2, 0.5, math.nan, 4, 2.0**-127]),
        ("FLOAT4_E2M1", (6, 6.9, -1.5, 0.24, 0.26, 1), [6, 6, -1.5, 0, 0.5, 1]),
        ("HIFLOAT8", (1, 40959, "inf", "nan", -3, 0), [1, 32768, math.inf, math.nan, -3, 0]),
        ("INT4", (-8, 7, 0, 1, 2, 3), [-8, 7, 0, 1, 2, 3]),
        ("COMPLEX64", (1, 0.5, -2, 0, 3, 4), [1, 0.5, -2, 0, 3, 4]),
    ],
)
def test_literal_values_are_row_major_numbers(dtype: str, values: tuple[Any, ...], expected: list[Any]) -> None:
    array = materialize_one(case_of(pseShift=TensorSpec((2, 3), dtype, values=values)), "pseShift")
    assert array.shape == (2, 3) and array.dtype == DTYPES[dtype].storage
    np.testing.assert_array_equal(decode(dtype, array).reshape(-1), np.array(expected))


def test_literal_uint64_scales_are_taken_as_they_are() -> None:
    case = case_of(deqScale1=TensorSpec((1,), "UINT64", values=(0x3F800001,)))
    assert materialize_one(case, "deqScale1").tolist() == [0x3F800001]


@pytest.mark.parametrize(
    ("dtype", "values", "message", "path"),
    [
        ("FLOAT16", (1, 2, 3), "3 values for 4 elements", ".values"),
        ("FLOAT16", (1, 2, 3, 4, 5), "5 values for 4 elements", ".values"),
        ("FLOAT16", (), "0 values for 4 elements", ".values"),
        ("INT8", (1, 2, 200, 4), "INT8 cannot hold 200", ".values[2]"),
        ("INT8", (1, 2.5, 3, 4), "INT8 cannot hold 2.5", ".values[1]"),
        ("INT8", (1, 2, 3, "inf"), "INT8 cannot hold inf", ".values[3]"),
        ("INT64", (1, 2, 3, 2**63), "INT64 cannot hold 9223372036854775808", ".values[3]"),
        ("UINT64", (0, -1, 0, 0), "UINT64 cannot hold -1", ".values[1]"),
        ("UINT64", (0, 0.5, 0, 0), "UINT64 cannot hold 0.5", ".values[1]"),
        ("FLOAT16", (0, 1e5, 0, 0), r"FLOAT16 cannot hold 100000\.0", ".values[1]"),
        ("FLOAT8_E4M3FN", (0, 465, 0, 0), "FLOAT8_E4M3FN cannot hold 465", ".values[1]"),
        ("FLOAT8_E8M0", (1, 0, 1, 1), "FLOAT8_E8M0 cannot hold 0", ".values[1]"),
        ("BOOL", (1, 0, 2, 1), "BOOL cannot hold 2", ".values[2]"),
        ("FLOAT32", (1, 10**400, 2, 3), "FLOAT32 cannot hold an integer of over 128 bits", ".values[1]"),
        ("INT4", (1, 2, 3, 8), "INT4 cannot hold 8", ".values[3]"),
    ],
)
def test_literal_values_that_do_not_fit(dtype: str, values: tuple[Any, ...], message: str, path: str) -> None:
    for inputs, prefix in (({"pseShift": TensorSpec((2, 2), dtype, values=values)}, "$.inputs.pseShift"),
                           ({"key": (None, TensorSpec((2, 2), dtype, values=values))}, "$.inputs.key[1]")):
        with pytest.raises(CaseError, match=message) as caught:
            materialize(case_of(**inputs))
        assert caught.value.path == prefix + path


def test_empty_tensors() -> None:
    for values in (None, ()):
        case = case_of(key=(TensorSpec((2, 0, 16), "FLOAT16", values=values),))
        assert materialize_one(case, "key").shape == (2, 0, 16)
    assert materialize_one(case_of(query=TensorSpec((), "FLOAT16", values=(3,))), "query").tolist() == 3


# -- limits -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(
    ("shape", "message", "path"),
    [
        ((2, -1, 4), "axis of size -1", ".shape[1]"),
        ((-1, -(2**40)), "axis of size -1", ".shape[0]"),
        ((2**14, 2**14, 2), "over the limit of 268435456", ".shape"),
        ((2**62, 4), "over the limit", ".shape"),
        ((10**30,), "over the limit", ".shape"),
        ((0, 10**30), "over the limit", ".shape"),
        ((0, -1), "axis of size -1", ".shape[1]"),
    ],
)
def test_impossible_shapes_are_refused_before_allocation(shape: tuple[int, ...], message: str, path: str) -> None:
    good = TensorSpec((1 << 22,), "FLOAT32")
    for fill in (None, Constant(0), Triu()):
        case = case_of(query=good, value=(TensorSpec(shape, "FLOAT16", fill=fill),))
        tracemalloc.start()
        with pytest.raises(CaseError, match=message) as caught:
            materialize(case)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert caught.value.path == f"$.inputs.value[0]{path}"
        assert peak < 1 << 20
        with pytest.raises(CaseError, match=message):
            materialize_one(case, "value", 0)


def test_many_tensors_together_have_a_limit() -> None:
    spec = TensorSpec((1 << 27,), "INT8")
    tensors.check_sizes(case_of(query=spec, pseShift=spec))
    with pytest.raises(CaseError, match="over the limit") as caught:
        tensors.check_sizes(case_of(query=spec, key=(spec, spec)))
    assert caught.value.path == "$.inputs.key[1]"
    with pytest.raises(CaseError, match="bytes"):
        tensors.check_sizes(case_of(query=TensorSpec((1 << 27,), "COMPLEX128")))


# -- strides ----------------------------------------------------------------------------------------------------------

DTYPE = st.sampled_from(list(DTYPES))


@st.composite
def strided_specs(draw: st.DrawFn) -> TensorSpec:
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    strides = draw(st.one_of(st.none(), st.tuples(*[st.integers(0, 40) for _ in shape])))
    return TensorSpec(shape, draw(DTYPE), strides=strides, offset=draw(st.integers(0, 5)))


@given(strided_specs())
@settings(max_examples=200, deadline=None)
def test_the_view_of_the_buffer_is_the_dense_tensor(spec: TensorSpec) -> None:
    dense = materialize_one(case_of(key=(spec,)), "key")
    assert dense.shape == spec.shape and dense.flags.c_contiguous
    buffer = strided_buffer(spec, dense)
    assert buffer.shape == (tensors.buffer_elements(spec),)
    view = strided_view(spec, buffer)
    assert bits(np.ascontiguousarray(view)) == bits(dense) and view.shape == spec.shape
    if view.size:
        step = buffer.itemsize
        assert np.shares_memory(view, buffer)
        if spec.strides is not None:
            expected = tuple(s * step for s in spec.strides)
            assert all(a == b for a, b, size in zip(view.strides, expected, spec.shape) if size > 1)
        flat = sum(i * s for i, s in zip((n - 1 for n in spec.shape), spec.strides or ()))
        if spec.strides is not None:
            assert bits(buffer[spec.offset + flat]) == bits(dense[tuple(n - 1 for n in spec.shape)])


@given(strided_specs())
@settings(max_examples=100, deadline=None)
def test_gaps_hold_the_gap_and_nothing_else_does(spec: TensorSpec) -> None:
    dense = materialize_one(case_of(key=(spec,)), "key")
    one, other = strided_buffer(spec, dense, 1), strided_buffer(spec, dense, 2 if spec.dtype == "FLOAT8_E8M0" else 0)
    view = strided_view(spec, other)
    used = set()
    for place in np.ndindex(spec.shape):
        strides = spec.strides or tuple(int(s) // other.itemsize for s in view.strides)
        used.add(spec.offset + sum(i * s for i, s in zip(place, strides)))
    same = {i for i in range(one.size) if bits(one[i]) == bits(other[i])}
    assert same == used


def test_default_gaps_are_finite_and_loud() -> None:
    for dtype in DTYPES:
        spec = TensorSpec((2, 2), dtype, strides=(5, 1))
        buffer = strided_buffer(spec, materialize_one(case_of(pseShift=spec), "pseShift"))
        gap = decode(dtype, buffer)[3]
        assert np.isfinite(gap) and abs(gap) >= min(60, float(DTYPES[dtype].max_finite))


def test_strides_leave_dense_values_alone() -> None:
    dense = materialize_one(case_of(query=TensorSpec((6, 2, 64), "FLOAT16")), "query")
    spec = TensorSpec((6, 2, 64), "FLOAT16", strides=(384, 64, 1), offset=128)
    strided = materialize_one(case_of(query=spec), "query")
    assert bits(dense) == bits(strided)


def test_elements_that_share_a_place_share_their_value() -> None:
    expanded = materialize_one(case_of(query=TensorSpec((5, 4), "FLOAT16", strides=(0, 1))), "query")
    dense = materialize_one(case_of(query=TensorSpec((5, 4), "FLOAT16")), "query")
    assert np.array_equal(expanded, np.broadcast_to(dense[4], (5, 4)))
    spec = TensorSpec((3, 4), "INT8", strides=(1, 1), values=tuple(range(12)))
    sliding = materialize_one(case_of(query=spec), "query")
    assert sliding.tolist() == [[0, 4, 8, 9], [4, 8, 9, 10], [8, 9, 10, 11]]
    tensors.MAX_OVERLAPPING, limit = 11, tensors.MAX_OVERLAPPING
    try:
        with pytest.raises(CaseError, match="12 elements share places"):
            materialize(case_of(query=TensorSpec((3, 4), "INT8", strides=(1, 1))))
    finally:
        tensors.MAX_OVERLAPPING = limit


@given(strided_specs())
@settings(max_examples=200, deadline=None)
def test_only_true_overlaps_change_values(spec: TensorSpec) -> None:
    assume(spec.strides is not None and math.prod(spec.shape) > 0)
    places = [sum(i * s for i, s in zip(place, spec.strides or ())) for place in np.ndindex(spec.shape)]
    plain = materialize_one(case_of(key=(TensorSpec(spec.shape, spec.dtype),)), "key").reshape(-1)
    strided = materialize_one(case_of(key=(spec,)), "key").reshape(-1)
    if len(set(places)) == len(places):
        assert bits(plain) == bits(strided)
    by_place: dict[int, bytes] = {}
    for place, element in zip(places, strided):
        assert by_place.setdefault(place, bits(element)) == bits(element)


@pytest.mark.parametrize(
    ("strides", "offset", "message", "path"),
    [
        ((1,), 0, "1 strides for 2 axes", ".strides"),
        ((1, 2, 3), 0, "3 strides for 2 axes", ".strides"),
        ((-4, 1), 0, r"negative stride in \[-4, 1\]", ".strides"),
        ((4, 1), -1, "offset -1 is negative", ".offset"),
        ((2**60, 1), 0, "over the limit", ".strides"),
        ((4, 1), 2**60, "over the limit", ".strides"),
        (None, 2**60, "over the limit", ".strides"),
    ],
)
def test_impossible_strides(strides: tuple[int, ...] | None, offset: int, message: str, path: str) -> None:
    spec = TensorSpec((3, 4), "FLOAT16", strides=strides, offset=offset)
    with pytest.raises(CaseError, match=message) as caught:
        tensors.buffer_elements(spec, "$.inputs.query")
    assert caught.value.path == f"$.inputs.query{path}"
    with pytest.raises(CaseError, match=message):
        strided_buffer(spec, np.zeros((3, 4), np.float16))


def test_wrong_buffers_and_dense_arrays() -> None:
    spec = TensorSpec((3, 4), "FLOAT16", strides=(5, 1))
    with pytest.raises(ValueError, match="does not hold 14 elements"):
        strided_view(spec, np.zeros(13, np.float16))
    with pytest.raises(ValueError, match="is wanted"):
        strided_buffer(spec, np.zeros((3, 4), np.float32))
    with pytest.raises(ValueError, match="is wanted"):
        strided_buffer(spec, np.zeros((4, 3), np.float16))
