"""The reference and the verdict against outputs of the operator's published reference computations.

A part of the set lies beside this file; the whole of it is read from FIAFUZZ_SHARED or ../shared where it exists.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fiafuzz.model.case import case_from_dict
from fiafuzz.model.codecs import decode, encode
from fiafuzz.model.dumps import inputs_from_dump, load_dump, outputs_from_dump
from fiafuzz.model.scene import Scene
from oracles.precision import judge_outputs
from oracles.reference import reference

OWN = Path(__file__).parent / "published"
SHARED = Path(os.environ.get("FIAFUZZ_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data" / "numeric"
FORMS = ("auto", "ideal")
EIGHT_BITS = ("INT8", "HIFLOAT8", "FLOAT8_E4M3FN")


def records():
    found = {}
    for folder in (OWN, SHARED):
        source = folder / "cases.jsonl"
        if source.exists():
            for line in source.read_text().splitlines():
                record = json.loads(line)
                found.setdefault(record["name"], (folder, record))
    return list(found.values())


RECORDS = records()


@pytest.fixture(params=RECORDS, ids=lambda r: r[1]["name"])
def published(request):
    folder, record = request.param
    case = case_from_dict(record["case"])
    dump = load_dump(folder / record["npz"])
    return record, case, Scene(case), inputs_from_dump(case, dump), outputs_from_dump(case, dump)


def numbers(case, name, stored):
    return np.asarray(decode(getattr(case.outputs, name).dtype, stored), dtype=float)


def hinted(hint, got):
    if "max_code_difference" in hint:
        return np.full(got.shape, float(hint["max_code_difference"]))
    return hint["atol"] + hint["rtol"] * np.where(np.isfinite(got), np.abs(got), 0.0)


@pytest.mark.parametrize("form", FORMS)
def test_reference_is_inside_the_tolerance_hints(published, form):
    record, case, scene, tensors, outputs = published
    expected = reference(case, tensors, scene=scene, form=form)
    assert set(expected.outputs) == set(outputs)
    for name, stored in outputs.items():
        got, want = expected.outputs[name], numbers(case, name, stored)
        with np.errstate(invalid="ignore"):
            inside = (got == want) | (np.abs(got - want) <= hinted(record["tolerance_hint"][name], got))
        if record["differs_from_float64"]:
            # The reference parts from plain mathematics on purpose: those elements are alternatives.
            for alternative in expected.alternatives.get(name, ()):
                inside |= alternative.where
        assert inside.all(), f"{name}: {int((~inside).sum())} elements outside"


def test_stored_outputs_pass(published):
    _, case, scene, tensors, outputs = published
    verdict = judge_outputs(case, scene, reference(case, tensors, scene=scene), outputs, lone=True)
    assert verdict.passed and verdict.standard_passed, verdict.summary
    assert verdict.compared > 0 and verdict.untestable == 0


@pytest.mark.parametrize(
    "standard", ["mixed-2026-06", "double-benchmark-L0", "double-benchmark-L1", "double-benchmark-L2", "half-percent", "fiafuzz"]
)
def test_stored_outputs_pass_the_other_standards(published, standard):
    _, case, scene, tensors, outputs = published
    assert judge_outputs(case, scene, reference(case, tensors, scene=scene), outputs, standard).passed


def test_one_element_moved_by_ten_tolerances_fails(published):
    record, case, scene, tensors, outputs = published
    expected = reference(case, tensors, scene=scene)
    rng = np.random.default_rng(0)
    for name, stored in outputs.items():
        hint, dtype = record["tolerance_hint"][name], getattr(case.outputs, name).dtype
        want = numbers(case, name, stored)
        compared = np.flatnonzero((expected.compare[name] & np.isfinite(want)).reshape(-1))
        for at in rng.choice(compared, 8):
            moved = want.copy().reshape(-1)
            step = 10 * hinted(hint, want).reshape(-1)[at]
            moved[at] += step if dtype != "INT8" or moved[at] + step <= 127 else -step
            wrong = {**outputs, name: encode(dtype, moved.reshape(want.shape))}
            verdict = judge_outputs(case, scene, expected, wrong, lone=True)
            assert not verdict.passed, f"{name}[{at}] moved by {step}"
            record_ = next(r for r in verdict.outputs if r.name == name)
            assert record_.worst[0].index == tuple(np.unravel_index(at, want.shape))


@pytest.mark.skipif(not (SHARED / "cases.jsonl").exists(), reason="the numeric truth set is not there (FIAFUZZ_SHARED or ../shared)")
def test_the_whole_set_was_read():
    assert len(RECORDS) == len((SHARED / "cases.jsonl").read_text().splitlines())


@pytest.mark.parametrize(
    "published", [r for r in RECORDS if r[1]["case"]["inputs"]["query"]["dtype"] in EIGHT_BITS], ids=lambda r: r[1]["name"], indirect=True
)
def test_stage_wise_forms_equal_the_published_ones_to_a_unit(published):
    """Full quantisation, step by step: within a unit of the output dtype, nearly everywhere equal."""
    _, case, scene, tensors, outputs = published
    got = reference(case, tensors, scene=scene).outputs["attentionOut"]
    want = numbers(case, "attentionOut", outputs["attentionOut"])
    unit = np.ones(want.shape)
    if scene.out_dtype != "INT8":
        unit = np.spacing(np.abs(want).astype(np.float16)).astype(float) * (8 if scene.out_dtype == "BFLOAT16" else 1)
    assert (np.abs(got - want) <= unit).all()
    assert (got == want).mean() > 0.99
