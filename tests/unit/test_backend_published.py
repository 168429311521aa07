"""The cpu backend against the numbers published with the operator's own reference computations."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fiafuzz.backends.cpu import CpuBackend
from fiafuzz.model.case import case_from_dict
from fiafuzz.model.codecs import decode
from fiafuzz.model.dumps import inputs_from_dump, load_dump, outputs_from_dump
from fiafuzz.model.scene import Scene
from tests.unit.backend_cases import buffers

BACKEND = CpuBackend()
SHARED = Path(os.environ.get("FIAFUZZ_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data" / "numeric"
SOURCE = SHARED / "cases.jsonl"
LINES = [json.loads(line) for line in SOURCE.read_text().splitlines()] if SOURCE.exists() else []

PARTS = {
    "len_tnd_zero_kv_fast": (
        "softmaxLse",
        "the reference marks a batch without keys with -inf, the documents with +inf",
    )
}


@pytest.mark.skipif(not LINES, reason="the numeric truth set is not there (FIAFUZZ_SHARED or ../shared)")
@pytest.mark.parametrize("record", LINES, ids=lambda r: r["name"])
def test_published_values(record):
    case = case_from_dict(record["case"])
    dump = load_dump(SHARED / record["npz"])
    held = buffers(case)
    outcome = BACKEND.compute(Scene(case), inputs_from_dump(case, dump), held)
    assert outcome.kind == "ok", outcome.message
    for name, stored in outputs_from_dump(case, dump).items():
        dtype = getattr(case.outputs, name).dtype
        got, want = np.asarray(decode(dtype, held[name]), float), np.asarray(decode(dtype, stored), float)
        hint = record["tolerance_hint"][name]
        if "max_code_difference" in hint:
            allowed = np.full(want.shape, float(hint["max_code_difference"]))
        else:
            # The hint is for exact arithmetic: one unit of the output type comes on top.
            finite = np.where(np.isfinite(want), np.abs(want), 0)
            unit = np.ldexp(
                1.0, np.maximum(np.frexp(finite)[1] - 1 - {"FLOAT16": 10, "BFLOAT16": 7, "FLOAT32": 22}[dtype], -24)
            )
            allowed = hint["atol"] + hint["rtol"] * finite + unit
        with np.errstate(invalid="ignore"):
            bad = ~((got == want) | (np.abs(got - want) <= allowed))
        if record["name"] in PARTS and PARTS[record["name"]][0] == name:
            bad &= ~np.isinf(want)
        assert not bad.any(), (
            f"{name}: {int(bad.sum())} elements, worst {np.nanmax(np.where(bad, np.abs(got - want), 0))}"
        )
