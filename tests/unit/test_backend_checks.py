"""Planted faults of the parameter checks: wrong code, demand not checked, valid call rejected."""

from __future__ import annotations

import pytest

from fiafuzz.backends.cpu import CpuBackend
from fiafuzz.backends.faults import all_faults
from fiafuzz.backends.faulty import faulty_backend
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from tests.unit.backend_cases import CAUSAL, buffers, call, spec

PROFILE = "950-v5-2026.08"
TOKENS = call(sparseMode=4, attenMask=CAUSAL, preTokens=1, nextTokens=-3)
HEADS = call(N=4, KN=3)
SINK = {"learnableSink": spec((4,), "FLOAT16")}

UNCHECKED = {
    "tokens-unchecked": TOKENS,
    "block-size-unchecked": call(cache="BnBsH", block=24),
    "inner-precise-unchecked": call(innerPrecise=7),
}
CODES = {
    "heads-code": (HEADS, 161002),
    "null-code": (call().replace(query=None), 561002),
    "tokens-code": (TOKENS, 161002),
}
REJECTS = {
    "rejects-packed-sink": (call("TND", **SINK), call(**SINK)),
    "rejects-nz-lse": (call(cache="NZ", lse=True), call(cache="NZ")),
    "rejects-packed-band": (call("TND", sparseMode=4, attenMask=CAUSAL), call(sparseMode=4, attenMask=CAUSAL)),
    "rejects-long-list": (call(kv_lens=(20, 9, 4)), call(kv_lens=(20, 9))),
}


def answer(backend, case):
    outcome = backend.run(case, Scene(case), materialize(case), buffers(case))
    return outcome.kind, outcome.code


def test_every_check_fault_is_tried_here():
    assert {f.name for f in all_faults() if f.kind == "check"} == {*UNCHECKED, *CODES, *REJECTS}


@pytest.mark.parametrize("name", UNCHECKED)
def test_unchecked_demand_lets_its_own_calls_through_and_no_others(name):
    faulty, right = faulty_backend(name, PROFILE), CpuBackend(PROFILE)
    assert answer(right, UNCHECKED[name])[0] == "reject"
    assert answer(faulty, UNCHECKED[name])[0] == "ok"
    for other in (*(c for n, c in UNCHECKED.items() if n != name), HEADS, UNCHECKED[name].replace(query=None), call()):
        assert answer(faulty, other) == answer(right, other)


@pytest.mark.parametrize("name", CODES)
def test_wrong_code_for_one_demand_only(name):
    faulty, right = faulty_backend(name, PROFILE), CpuBackend(PROFILE)
    case, code = CODES[name]
    assert answer(faulty, case) == ("reject", code) != answer(right, case)
    for other in (*(c for n, (c, _) in CODES.items() if n != name and c is not case), call()):
        assert answer(faulty, other) == answer(right, other)


@pytest.mark.parametrize("name", REJECTS)
def test_rejects_one_kind_of_valid_call_only(name):
    faulty, right = faulty_backend(name, PROFILE), CpuBackend(PROFILE)
    showing, quiet = REJECTS[name]
    assert answer(right, showing)[0] == "ok" and answer(faulty, showing) == ("reject", 561002)
    assert answer(faulty, quiet)[0] == answer(right, quiet)[0] == "ok"


def test_demand_that_nothing_can_be_computed_without_counts_as_accepted_when_unchecked():
    from fiafuzz.backends.faults.interface import _unchecked
    from fiafuzz.backends.faults.record import Fault
    from fiafuzz.backends.faulty import FaultyBackend

    fault = Fault(
        "heads",
        "",
        "interface",
        {"front.answer": _unchecked("v5.interface.consistency.num_heads_divisible")},
        kind="check",
    )
    assert answer(FaultyBackend(fault, PROFILE), HEADS)[0] == "ok"
