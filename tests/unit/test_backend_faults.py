"""Every planted fault changes a call that it concerns, clearly, and no other call by a bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fiafuzz.backends.cpu import CpuBackend
from fiafuzz.backends.faults import ROOMS, all_faults, fault_by_name
from fiafuzz.backends.faulty import faulty_backend
from fiafuzz.model.codecs import code_rank, decode
from fiafuzz.model.factors import FACTORS, factors_of
from fiafuzz.model.parameters import GROUPS
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from tests.unit.backend_cases import buffers, call
from tests.unit.fault_cases import CASES, PROCESS

EXCESS = 5
"""How many tolerances a fault has to leave."""

TOLERANCE = {"FLOAT16": 2.0**-10, "BFLOAT16": 2.0**-7}
NUMERIC = [f for f in all_faults() if f.kind == "numeric"]


def outputs(backend, case, tensors):
    held = buffers(case)
    outcome = backend.compute(Scene(case), tensors, held)
    assert outcome.kind == "ok", outcome.message
    return held


def distance(case, name, got, want):
    """Largest difference in tolerances; infinite where one side is infinite or undefined and the other is not."""
    dtype = getattr(case.outputs, name).dtype
    if dtype == "INT8":
        return float(np.abs(got.astype(int) - want.astype(int)).max())
    if got.dtype == np.uint8:
        return float(np.abs(code_rank(dtype, got).astype(int) - code_rank(dtype, want)).max())
    a, b = decode(dtype, got), decode(dtype, want)
    allowed = 1e-3 if name == "softmaxLse" else TOLERANCE[dtype]
    both = np.isfinite(a) & np.isfinite(b)
    if ((a != b) & ~both & ~(np.isnan(a) & np.isnan(b))).any():
        return np.inf
    return float((np.abs(a - b)[both] / (allowed * (1 + np.abs(b[both])))).max(initial=0))


def test_every_fault_has_its_cases():
    names = {f.name for f in all_faults() if f.kind != "check"}
    assert names == set(CASES) | set(PROCESS)
    assert len(all_faults()) >= 60
    assert {f.room for f in all_faults()} == set(ROOMS) == {*GROUPS, "process"}


def test_no_fault_trips_over_a_call_that_it_does_not_concern():
    case = call()
    for fault in NUMERIC:
        outputs(faulty_backend(fault.name), case, materialize(case))


@pytest.mark.parametrize("fault", NUMERIC, ids=lambda f: f.name)
def test_fault_shows_clearly_and_only_where_it_should(fault):
    faulty, right = faulty_backend(fault.name), CpuBackend()
    case = CASES[fault.name][0]()
    tensors = materialize(case)
    want, got = outputs(right, case, tensors), outputs(faulty, case, tensors)
    if fault.expect == "F105":
        again = outputs(faulty, case, tensors)
        assert any(not np.array_equal(got[n], again[n]) for n in got), "two runs are alike"
    else:
        assert max(distance(case, n, got[n], want[n]) for n in want) > EXCESS

    quiet = CASES[fault.name][1]()
    tensors = materialize(quiet)
    want, got = outputs(right, quiet, tensors), outputs(faulty, quiet, tensors)
    for name in want:
        assert np.array_equal(got[name], want[name], equal_nan=True), f"{name} differs where the fault has no place"


@pytest.mark.parametrize("fault", [f for f in all_faults() if f.kind != "check"], ids=lambda f: f.name)
def test_stated_factor_words_hold_for_the_showing_case(fault):
    case = (CASES.get(fault.name) or PROCESS[fault.name])[0]()
    words = factors_of(Scene(case))
    for factor, wanted in fault.needs.items():
        assert factor in FACTORS
        assert words[factor] in (wanted if isinstance(wanted, tuple) else (wanted,)), f"{factor} is {words[factor]}"


@pytest.mark.parametrize("name", ["crash", "abort"])
def test_deaths_kill_the_process_on_their_feature_only(name):
    script = (
        "from tests.unit.fault_cases import PROCESS\nfrom tests.unit.backend_cases import buffers\n"
        "from fiafuzz.backends.faulty import faulty_backend\nfrom fiafuzz.model.scene import Scene\n"
        "from fiafuzz.model.tensors import materialize\n"
        "for make in reversed(PROCESS[{name!r}]):\n"
        "    case = make()\n"
        "    print(faulty_backend({name!r}).compute(Scene(case), materialize(case), buffers(case)).kind, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script.format(name=name)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout == "ok\n"
    assert done.returncode < 0, "the process was expected to die of a signal"


def test_hang_hangs_on_its_feature_only():
    import signal

    def stop(*_):
        raise TimeoutError

    def attempt(make):
        case = make()
        return faulty_backend("hang").compute(Scene(case), materialize(case), buffers(case)).kind

    showing, quiet = PROCESS["hang"]
    assert attempt(quiet) == "ok"
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(TimeoutError):
            attempt(showing)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_oom_takes_memory_and_is_reported(monkeypatch):
    from fiafuzz.backends.faults import process

    monkeypatch.setattr(process, "MOST", 2 * process.CHUNK)
    backend = faulty_backend("oom")
    monkeypatch.setattr(backend.front, "answer", lambda case, scene: None)
    kinds = []
    for make in PROCESS["oom"]:
        case = make()
        kinds.append(backend.run(case, Scene(case), materialize(case), buffers(case)).kind)
    assert kinds == ["oom", "ok"]


def test_exception_is_an_error_outcome(monkeypatch):
    backend = faulty_backend("raises")
    monkeypatch.setattr(backend.front, "answer", lambda case, scene: None)
    case = PROCESS["raises"][0]()
    outcome = backend.run(case, Scene(case), materialize(case), buffers(case))
    assert (outcome.kind, outcome.message) == ("error", "ArithmeticError: planted: bias not understood")


def test_unknown_fault_is_named():
    with pytest.raises(ValueError, match="unknown fault 'gqa'"):
        fault_by_name("gqa")
