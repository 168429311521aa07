"""Where the tensors of a call lie in device memory, and that writes to any other byte are seen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fiafuzz.backends.aclnn import strides_of
from fiafuzz.backends.aclnn_layout import (
    ALIGNMENT,
    GUARD,
    GUARD_BYTE,
    UNIT,
    WHOLE,
    Layout,
    Place,
    from_memory,
    is_packed,
    slack,
    to_memory,
)
from fiafuzz.model.case import Case, TensorSpec
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.tensors import Tensors, materialize
from oracles.poison import poison

from .backend_cases import call, spec

DTYPE = st.sampled_from(list(DTYPES))


@st.composite
def specs(draw: Any) -> TensorSpec:
    """Small tensors of every dtype, dense, strided (also overlapping) and with an offset."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    strides = None
    if draw(st.booleans()):
        steps = draw(st.lists(st.integers(0, 9), min_size=len(shape), max_size=len(shape)))
        strides = tuple(steps)
    return TensorSpec(shape, draw(DTYPE), strides=strides, offset=draw(st.sampled_from((0, 0, 1, 7))))


@st.composite
def calls(draw: Any) -> Case:
    """Calls that make no sense but have tensors of all kinds."""
    base = call(B=1, N=1, KN=1, Q=1, K=1, D=16)
    return base.replace(
        query=draw(specs()),
        key=tuple(draw(st.lists(st.one_of(st.none(), specs()), max_size=3))),
        value=None,
        attenMask=draw(st.one_of(st.none(), specs())),
        attentionOut=draw(specs()),
        softmaxLse=draw(st.one_of(st.none(), specs())),
        softmaxLseFlag=draw(st.booleans()),
    )


def outputs_of(case: Case) -> dict[str, Any]:
    wanted = [("attentionOut", case.outputs.attentionOut)]
    if case.attrs.softmaxLseFlag:
        wanted.append(("softmaxLse", case.outputs.softmaxLse))
    return {name: poison(s.dtype, s.shape) for name, s in wanted if s is not None}


def laid_out(case: Case) -> tuple[Layout, Any, dict[str, Any]]:
    outputs = outputs_of(case)
    layout = Layout(case, materialize(case), outputs)
    block = np.full(layout.total, 0x77, np.uint8)
    layout.fill(block)
    tail = np.full(layout.total - layout.outputs_begin, 0x77, np.uint8)
    layout.fill(tail, layout.outputs_begin)
    assert np.array_equal(tail, block[layout.outputs_begin :])
    pieces = [piece for _, piece in layout.pieces(0, layout.outputs_begin)]
    assert np.array_equal(np.concatenate([*pieces, tail]), block)
    return layout, block, outputs


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_memory_gives_back_what_was_put_in(data: Any) -> None:
    dtype = data.draw(DTYPE)
    fmt = DTYPES[dtype]
    count = data.draw(st.integers(0, 40))
    raw = np.frombuffer(data.draw(st.binary(min_size=count * fmt.itemsize, max_size=count * fmt.itemsize)), np.uint8)
    if fmt.kind == "bool":
        raw = raw & 1
    stored = raw.view(fmt.storage)
    if is_packed(dtype):
        codes = raw & 15
        stored = ((codes ^ 8).view(np.int8) - 8).astype(fmt.storage) if fmt.storage == "int8" else codes
    memory = to_memory(dtype, stored)
    assert memory.size == math.ceil(count * fmt.bits / 8)
    assert np.array_equal(from_memory(dtype, memory, count).view(np.uint8), stored.view(np.uint8))


def test_four_bit_elements_are_packed_low_half_first() -> None:
    assert to_memory("INT4", np.array([-1, 3, -8], np.int8)).tolist() == [0x3F, 0x08]
    assert to_memory("FLOAT4_E2M1", np.array([0x1, 0xA], np.uint8)).tolist() == [0xA1]


@given(calls())
@settings(max_examples=150, deadline=None)
def test_places_are_aligned_and_apart_and_everything_between_is_guard(case: Case) -> None:
    layout, block, _ = laid_out(case)
    places = list(layout.places.values())
    assert layout.complete and len(places) == sum(
        s is not None for s in (case.inputs.query, *case.inputs.key, case.inputs.attenMask, *vars_of(case))  # type: ignore[misc]
    )
    free = np.ones(layout.total, bool)
    for place in places:
        assert place.begin % ALIGNMENT == 0 and place.begin >= GUARD
        assert place.begin + place.size + slack(place.size) + GUARD <= layout.total
        around = free[place.begin - GUARD : place.begin + place.size + slack(place.size) + GUARD]
        assert around.all() or around.size == 0, "tensors overlap"
        free[place.begin : place.begin + place.size] = False
    assert (block[free] == GUARD_BYTE).all()
    assert all(place.begin >= layout.outputs_begin for place in layout.outputs)


def vars_of(case: Case) -> tuple[Any, Any]:
    return case.outputs.attentionOut, case.outputs.softmaxLse


@given(calls())
@settings(max_examples=100, deadline=None)
def test_a_run_that_writes_nothing_changes_nothing(case: Case) -> None:
    layout, block, outputs = laid_out(case)
    before = {name: array.copy() for name, array in outputs.items()}
    start, stop = layout.window()
    assert layout.take(block[start:stop], block[start:stop].copy(), outputs) == ""
    for name, array in outputs.items():
        assert array.tobytes() == before[name].tobytes()


@given(calls(), st.data())
@settings(max_examples=200, deadline=None)
def test_one_changed_byte_is_either_of_an_output_or_told(case: Case, data: Any) -> None:
    layout, block, outputs = laid_out(case)
    at = data.draw(st.integers(0, layout.total - 1))
    after = block.copy()
    after[at] ^= 0x11
    text = layout.take(block, after, outputs)
    inside = [p for p in layout.outputs if p.begin <= at < p.begin + p.size + slack(p.size)]
    if not inside:
        assert text.startswith("1 byte that belongs to no output changed, the first ")
    elif at >= inside[0].begin + inside[0].size:
        assert text == "", "the rest of the last unit"
    elif inside[0].spec.strides is None and not inside[0].spec.offset:
        assert text == ""
        if inside[0].name in outputs and DTYPES[inside[0].spec.dtype].kind != "bool":
            written = to_memory(inside[0].spec.dtype, outputs[inside[0].name])
            assert written[at - inside[0].begin] == after[at] or DTYPES[inside[0].spec.dtype].bits == 4


@pytest.mark.parametrize(
    ("place", "offset", "words"),
    [
        (("attentionOut", 0), -1, "1 byte before the start of attentionOut"),
        (("attentionOut", 0), 16, "17 bytes behind the end of attentionOut"),
        (("query", 0), 5, "in the input query, byte 5"),
        (("key", 1), 0, "in the input key[1], byte 0"),
    ],
)
def test_damage_is_told_by_its_nearest_tensor(place: Any, offset: int, words: str) -> None:
    case = call("BSH", B=1, N=1, KN=1, Q=1, K=4, D=24).replace(key=(spec((1, 4, 24), "FLOAT16"), spec((1, 4, 24), "FLOAT16")))
    layout, block, outputs = laid_out(case)
    found = layout.places[place]
    end = found.size if offset > 0 and place[0] == "attentionOut" else 0
    after = block.copy()
    after[found.begin + end + offset] ^= 1
    assert layout.take(block, after, outputs).endswith(words)


def test_the_rest_of_the_last_unit_may_be_written_and_no_byte_more() -> None:
    case = call("BSH", B=1, N=1, KN=1, Q=1, K=4, D=24)
    layout, block, outputs = laid_out(case)
    out = layout.places["attentionOut", 0]
    assert (out.size, slack(out.size)) == (48, 16)
    after = block.copy()
    after[out.begin : out.begin + 64] = 0
    assert layout.take(block, after, outputs) == ""
    after[out.begin + 64] = 0
    assert "17 bytes behind the end" in layout.take(block, after, outputs)
    assert [slack(n) for n in (0, 1, 31, 32, 33)] == [0, UNIT - 1, 1, 0, UNIT - 1]


def test_gaps_of_a_strided_output_are_guarded_and_gaps_of_inputs_hold_a_number() -> None:
    case = call().replace(
        attentionOut=TensorSpec((2, 3), "FLOAT16", strides=(5, 1), offset=2), query=TensorSpec((2, 3), "FLOAT16", strides=(5, 1))
    )
    layout, block, outputs = laid_out(case)
    out, query = layout.places["attentionOut", 0], layout.places["query", 0]
    assert block[query.begin : query.begin + query.size].view(np.float16)[[3, 4]].tolist() == [77, 77]
    for element, told in ((0, True), (1, True), (2, False), (4, False), (5, True), (6, True), (7, False)):
        after = block.copy()
        after[out.begin + 2 * element] ^= 1
        text = layout.take(block, after, outputs)
        assert ("in a gap between the elements of attentionOut" in text) is told


def test_a_large_call_is_read_back_from_its_outputs_on() -> None:
    case = call().replace(pseShift=TensorSpec((WHOLE + 1,), "INT8"))
    layout, block, outputs = laid_out(case)
    start, stop = layout.window()
    assert start == layout.outputs_begin > WHOLE and stop == layout.total
    after = block[start:stop].copy()
    out = layout.places["attentionOut", 0]
    after[out.begin - start : out.begin - start + 2] = (1, 0x3C)
    assert layout.take(block[start:stop], after, outputs) == ""
    assert outputs["attentionOut"].reshape(-1)[0] == np.float16(1.001)


@pytest.mark.parametrize(
    "change",
    [
        {"query": spec((2, -1))},
        {"query": TensorSpec((2, 2), "FLOAT16", strides=(-2, 1))},
        {"attentionOut": spec((-1,))},
        {"attentionOut": TensorSpec((2, 2), "FLOAT16", strides=(1 << 60, 1))},
        {"softmaxLse": spec((1 << 40,))},
    ],
    ids=["negative", "negative-stride", "negative-output", "endless-output", "enormous-unasked-lse"],
)
def test_what_cannot_be_made_makes_a_call_incomplete(change: Any) -> None:
    case = call()
    assert Layout(case, materialize(case), outputs_of(case)).complete
    changed = case.replace(**change)
    outputs = {} if "attentionOut" in change else outputs_of(case)
    layout = Layout(changed, Tensors() if "query" in change else materialize(case), outputs)
    assert not layout.complete
    assert layout.total < 1 << 20


@given(specs())
@settings(max_examples=100, deadline=None)
def test_dense_strides_are_products_that_fit_64_bits(made: TensorSpec) -> None:
    found = strides_of(made)
    assert len(found) == len(made.shape)
    if made.strides is None:
        assert found == tuple(math.prod(made.shape[i + 1 :]) for i in range(len(made.shape)))
    huge = strides_of(TensorSpec((1 << 40,) * 4, "INT8"))
    assert all(-(1 << 63) <= n < 1 << 63 for n in huge) and huge[-2:] == (1 << 40, 1)
    assert Place("key", 1, made).title == "key[1]"
