"""Claims about calls from public reports: each call must equal another one, for the reference and for the cpu kernel.

The calls are reference data and not part of the repository: they are looked for in $FIAFUZZ_SHARED/data or in ../shared/data.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fiafuzz.backends.registry import get_backend
from fiafuzz.model.case import Case, case_from_dict
from fiafuzz.model.codecs import decode, encode
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from oracles.precision import poisoned_outputs
from oracles.reference import reference

from .host_agreement import shared

Tensors = dict[str, Any]
Other = Callable[[Case, Tensors], tuple[Case, Tensors, Any, Any]]
"""Gives the other call, its tensors, and which rows of the first and of the other output must be equal."""
ALL = ...


def spec(case: Case, name: str, **changes: Any) -> Any:
    import msgspec

    found = case.get(name)
    if isinstance(found, tuple):
        return tuple(msgspec.structs.replace(t, **changes) for t in found)
    return msgspec.structs.replace(found, **changes)


def attributes(**changes: Any) -> Other:
    return lambda case, tensors: (case.replace(**changes), tensors, ALL, ALL)


def dense_query(case: Case, tensors: Tensors) -> tuple[Case, Tensors, Any, Any]:
    return case.replace(query=spec(case, "query", strides=None, offset=0)), tensors, ALL, ALL


def causal_without_bias(case: Case, tensors: Tensors) -> tuple[Case, Tensors, Any, Any]:
    from fiafuzz.model.case import TensorSpec

    mask = TensorSpec((2048, 2048), "INT8")
    other = case.replace(pseShift=None, sparseMode=2, attenMask=mask)
    return (
        other,
        {**{k: v for k, v in tensors.items() if k != "pseShift"}, "attenMask": np.triu(np.ones((2048, 2048), np.int8), 1)},
        ALL,
        ALL,
    )


def last_keys(case: Case, tensors: Tensors) -> tuple[Case, Tensors, Any, Any]:
    shape = (*case.inputs.key[0].shape[:2], 128, case.inputs.key[0].shape[3])  # type: ignore[index,union-attr]
    other = case.replace(
        pseShift=None,
        actualSeqLengthsKv=(128,),
        key=spec(case, "key", shape=shape, fill=None),
        value=spec(case, "value", shape=shape, fill=None),
    )
    cut = {n: [np.ascontiguousarray(t[:, :, -128:]) for t in tensors[n]] for n in ("key", "value")}
    return other, {**{k: v for k, v in tensors.items() if k != "pseShift"}, **cut}, ALL, ALL


def sink_away(case: Case, tensors: Tensors) -> tuple[Case, Tensors, Any, Any]:
    far = encode("BFLOAT16", np.full(case.inputs.learnableSink.shape, -1e30))  # type: ignore[union-attr]
    return case.replace(learnableSink=None), {**tensors, "learnableSink": far}, ALL, ALL


def mask_cut(case: Case, tensors: Tensors) -> tuple[Case, Tensors, Any, Any]:
    other = case.replace(attenMask=spec(case, "attenMask", shape=(2, 1, 1, 40), fill=None))
    return other, {**tensors, "attenMask": np.ascontiguousarray(tensors["attenMask"][:, :, :1, :40])}, ALL, ALL


def fewer_queries(case: Case, tensors: Tensors) -> tuple[Case, Tensors, Any, Any]:
    other = case.replace(
        query=spec(case, "query", shape=(1, 2, 64, 64), fill=None), attentionOut=spec(case, "attentionOut", shape=(1, 2, 64, 64))
    )
    return other, {**tensors, "query": np.ascontiguousarray(tensors["query"][:, :, :64])}, np.s_[:, :, :64], ALL


def plain_tail(case: Case, tensors: Tensors) -> tuple[Case, Tensors, Any, Any]:
    table = np.maximum(tensors["blockTable"], 0)
    return (
        case.replace(blockTable=spec(case, "blockTable", values=tuple(int(n) for n in table.ravel()))),
        {**tensors, "blockTable": table},
        ALL,
        ALL,
    )


def second_sequence(case: Case, tensors: Tensors) -> tuple[Case, Tensors, Any, Any]:
    shape = (12, 4, 128)
    changed = {n: spec(case, n, shape=shape, fill=None) for n in ("query", "key", "value")}
    other = case.replace(**changed, attentionOut=spec(case, "attentionOut", shape=shape), actualSeqLengths=(12,), actualSeqLengthsKv=(12,))
    cut = {
        "query": np.ascontiguousarray(tensors["query"][20:]),
        **{n: [np.ascontiguousarray(t[20:]) for t in tensors[n]] for n in ("key", "value")},
    }
    return other, {**tensors, **cut}, np.s_[20:], ALL


def packed_cache(case: Case, tensors: Tensors) -> tuple[Case, Tensors, Any, Any]:
    shape = (4, 2, 64, 128)
    other = case.replace(key=spec(case, "key", shape=shape, fill=None), value=spec(case, "value", shape=shape, fill=None))
    moved = {n: [np.ascontiguousarray(t.transpose(0, 1, 3, 2, 4).reshape(shape)) for t in tensors[n]] for n in ("key", "value")}
    return other, {**tensors, **moved}, ALL, ALL


def last_row_without_next(case: Case, tensors: Tensors) -> tuple[Case, Tensors, Any, Any]:
    return case.replace(nextTokens=0), tensors, np.s_[-1:], np.s_[-1:]


CLAIMS: dict[str, Other] = {
    "b01-vit-tnd-two-sequences": second_sequence,
    "b17-window-without-mask": attributes(preTokens=2147483647, nextTokens=2147483647),
    "b20-band-next-1": last_row_without_next,
    "b22-query-view": dense_query,
    "b34-bias-minus-inf-causal": causal_without_bias,
    "b34-bias-minus-inf-first-tile": last_keys,
    "v13-antiquant-mask-more-rows": mask_cut,
    "v22-q75": fewer_queries,
    "v28-nz-block64": packed_cache,
    "l07-table-tail-minus-one": plain_tail,
}


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, Any]]:
    path = shared() / "data" / "public_reports.jsonl"
    if not path.exists():
        pytest.skip("the public reports are not here (set FIAFUZZ_SHARED)")
    return {r["name"]: r for r in map(json.loads, path.read_text().splitlines())}


def by_reference(case: Case, tensors: Tensors) -> np.ndarray[Any, Any]:
    return reference(case, tensors, form="ideal").outputs["attentionOut"]


def by_cpu(case: Case, tensors: Tensors) -> np.ndarray[Any, Any]:
    outputs = poisoned_outputs(case)
    outcome = get_backend("cpu", None).run(case, Scene(case), tensors, outputs)
    assert outcome.kind == "ok", outcome.message
    return decode(case.outputs.attentionOut.dtype, outputs["attentionOut"])  # type: ignore[union-attr]


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize(("run", "tolerance"), [(by_reference, 1e-12), (by_cpu, 2e-2)], ids=["reference", "cpu"])
def test_claim(reports: dict[str, dict[str, Any]], name: str, run: Any, tolerance: float) -> None:
    case = case_from_dict(reports[name]["case"])
    tensors = dict(materialize(case))
    other, other_tensors, rows, other_rows = CLAIMS[name](case, tensors)
    first, second = run(case, tensors)[rows], run(other, other_tensors)[other_rows]
    assert first.shape == second.shape and first.size
    assert np.abs(first - second).max() <= tolerance


def test_a_far_sink_is_no_sink(reports: dict[str, dict[str, Any]]) -> None:
    case = case_from_dict(reports["v08-sink-band-gqa"]["case"])
    other, tensors, _, _ = sink_away(case, dict(materialize(case)))
    with_sink, without = by_reference(case, tensors), by_reference(other, tensors)
    assert np.abs(with_sink - without).max() < 1e-12
    assert np.abs(by_reference(case, dict(materialize(case))) - without).max() > 1e-3
