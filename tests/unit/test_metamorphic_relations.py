"""Every relation is kept by the cpu backend over generated calls, and broken by a fault that it is about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from fiafuzz.backends.cpu import CpuBackend
from fiafuzz.backends.faulty import faulty_backend
from fiafuzz.campaign.cost import estimated_seconds
from fiafuzz.campaign.execute import poisoned
from fiafuzz.model.case import Case
from fiafuzz.model.tensors import materialize
from oracles.constraints.predict import predict
from oracles.metamorphic import RELATIONS, Call, Ran, Relation, other_calls, relation_by_name
from oracles.metamorphic.relation import outside
from strategies.cases import build_valid, generate, valid_cases
from strategies.source import SeededSource

from .backend_cases import call
from .fault_cases import CASES

PROFILE = "950-v5"
BY_SOURCE = "950-v5-2026.08"
SLOW = 0.3
"""Seconds of work above which a generated call is left to campaigns."""


def run(backend: CpuBackend, one: Call) -> Ran:
    """The outputs of a call that must be computed."""
    outcome = backend.run(one.case, one.scene, one.tensors, poisoned(one.case))
    assert outcome.kind == "ok" and outcome.outputs is not None, outcome
    return Ran(one, dict(outcome.outputs))


def sides(relation: Relation, case: Case, backend: CpuBackend, profile: str, here: Ran | None = None) -> tuple[Ran, list[Ran]] | None:
    """Both sides as the backend computes them; None when the relation has no other side for this call. ``here``: the call's own side,
    where it has been computed, as campaigns do it for all relations at once."""

    def usable(other: Call) -> bool:
        return predict(other.case, profile, scene=other.scene).verdict == "accept" and backend.cannot_express(other.scene) is None

    first = Call(case, materialize(case)) if here is None else here.call
    others = other_calls(relation, first, usable)
    return None if others is None else (here or run(backend, first), [run(backend, o) for o in others])


def broken(relation: Relation, case: Case, backend: CpuBackend, profile: str = PROFILE) -> str | None:
    """How the relation is broken; the call must offer another side."""
    found = sides(relation, case, backend, profile)
    assert found is not None, f"{relation.name} does not apply"
    return relation.compare(*found)


# ---- kept -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", [PROFILE, BY_SOURCE, "a2-v3", "a2-v5"])
def test_a_correct_backend_keeps_all_relations(profile: str) -> None:
    backend, tried = CpuBackend(profile), Counter[str]()
    for item in generate(profile, "valid", 60, 11):
        one = Call(item.case, materialize(item.case))
        if estimated_seconds(one.scene) > SLOW:
            continue
        here = run(backend, one)
        for relation in RELATIONS:
            found = sides(relation, item.case, backend, profile, here)
            if found is None:
                continue
            tried[relation.name] += 1
            assert relation.compare(*found) is None, (relation.name, item.case)
    assert len(tried) >= 14, tried
    assert sum(tried.values()) >= 200


FEATURES: dict[str, dict[str, str | tuple[str, ...]]] = {
    "tensor-list": {"storage": "tensor_list", "scenario": "gqa"},
    "causal-by-hand": {"mask": "none", "scenario": "gqa", "q_s": "2-16", "length_relation": "q_shorter"},
    "prefix-in-front": {"prefix": ("full", "actual"), "scenario": "gqa"},
    "right-padding": {"left_padding": ("query", "kv", "both")},
    "key-split": {"mask": "none", "scenario": "gqa", "storage": "contiguous", "sink": "off"},
    "sink-as-key": {"sink": "on", "mask": "none", "storage": "contiguous"},
    "rope-appended": {"scenario": "mla_prefill_split", "storage": "contiguous"},
    "open-mask": {"mask": "none"},
    "query-split": {"q_s": ("2-16", "17+"), "mask": ("none", "BOOL"), "sparse_mode": ("0", "1")},
    "shared-blocks": {"storage": ("BnBsH", "BnNBsD"), "scenario": "gqa", "batch": ("2", "3+")},
}
"""Relations that few calls offer a place for, and the words of calls that do."""


@pytest.mark.parametrize("name", FEATURES)
def test_a_correct_backend_keeps_the_rarer_relations(name: str) -> None:
    relation, backend, source = relation_by_name(name), CpuBackend(PROFILE), SeededSource(name)
    tried = 0
    for _ in range(40):
        case = build_valid(source, PROFILE, FEATURES[name])
        if estimated_seconds(Call(case, materialize(case)).scene) > SLOW:
            continue
        found = sides(relation, case, backend, PROFILE)
        if found is not None:
            tried += 1
            assert relation.compare(*found) is None, case
    assert tried >= 5, tried


def test_a_correct_backend_keeps_strided_caches() -> None:
    backend, tried = CpuBackend(BY_SOURCE), 0
    for item in generate(BY_SOURCE, "valid", 30, 3, needs={"storage": ("BnBsH", "BnNBsD", "NZ"), "scenario": "gqa"}):
        found = sides(relation_by_name("strided-cache"), item.case, backend, BY_SOURCE)
        if found is not None:
            tried += 1
            assert found[1][0].call.scene.keys[0].strides is not None  # type: ignore[union-attr]
            assert relation_by_name("strided-cache").compare(*found) is None
    assert tried >= 5


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(valid_cases(PROFILE))
def test_drawn_calls_keep_all_relations(case: Case) -> None:
    one, backend = Call(case, materialize(case)), CpuBackend(PROFILE)
    if estimated_seconds(one.scene) > SLOW:
        return
    here = run(backend, one)
    for relation in RELATIONS:
        found = sides(relation, case, backend, PROFILE, here)
        assert found is None or relation.compare(*found) is None, relation.name


# ---- broken ---------------------------------------------------------------------------------------

BREAKERS: dict[str, str] = {
    "layout": "bsnd-out-as-bnsd",
    "padded-packed": "last-packed-key",
    "batch-order": "bias-of-batch-zero",
    "batch-slice": "lse-of-batch-zero",
    "head-order": "first-key-head",
    "repeated-heads": "gqa-tiled",
    "paged-contiguous": "tail-block-dropped",
    "contiguous-paged": "one-key-more",
    "block-order": "table-ignored",
    "shared-blocks": "table-ignored",
    "poison": "mla-value-used",
    "tensor-list": "value-of-first-item",
    "compressed-mask": "band-origin",
    "causal-by-hand": "prefix-not-in-diagonal",
    "open-mask": "uniform-without-mask",
    "prefix-in-front": "prefix-values-late",
    "right-padding": "key-padding-gap",
    "mask-probe": "causal-one-too-many",
    "key-split": "last-sum-only",
    "query-split": "bias-of-row-zero",
    "scaled-query": "scale-twice",
    "rope-appended": "rope-left-out",
    "sink-as-key": "sink-scaled",
    "rerun": "nondeterministic-sum",
}
"""Relation -> a planted fault that it sees."""

INSTEAD = {"causal-by-hand": lambda: call(prefix=6)}
"""Calls on which a fault shows by the relation, where that is not the call on which it shows by itself."""


@pytest.mark.parametrize("name", BREAKERS)
def test_a_fault_breaks_the_relation(name: str) -> None:
    relation, fault = relation_by_name(name), BREAKERS[name]
    case = INSTEAD.get(name, CASES[fault][0])()
    text = broken(relation, case, faulty_backend(fault, PROFILE))
    assert text is not None
    assert " here, " in text and " there, " in text and relation.title in text
    assert broken(relation, case, CpuBackend(PROFILE)) is None


def test_every_relation_but_the_strided_one_has_a_breaker() -> None:
    # The cpu backend gets strided tensors dense, so no fault of its can be about strides; see the next test.
    assert {r.name for r in RELATIONS} - set(BREAKERS) == {"strided-cache"}


class IgnoresStrides(CpuBackend):
    """Reads a strided cache as if it were dense: the elements that a dense walk over its buffer meets."""

    def run(self, case, scene, tensors, outputs):  # type: ignore[no-untyped-def]
        from fiafuzz.model.tensors import Tensors, strided_buffer

        seen = Tensors(tensors)
        for name in ("key", "value"):
            spec = scene.tensor(name)
            if spec.strides is not None:
                dense = tensors.many(name)[0]
                seen[name] = [strided_buffer(spec, dense)[: dense.size].reshape(dense.shape)]
        return super().run(case, scene, seen, outputs)


def test_ignored_strides_break_the_relation() -> None:
    relation = relation_by_name("strided-cache")
    case = call(cache="BnBsH", kv_lens=(24, 20))
    assert broken(relation, case, IgnoresStrides(BY_SOURCE), BY_SOURCE) is not None
    assert broken(relation, case, CpuBackend(BY_SOURCE), BY_SOURCE) is None


# ---- comparison -----------------------------------------------------------------------------------


@cache
def rerun_sides() -> tuple[Ran, Ran]:
    case = call(lse=True)
    one = run(CpuBackend(PROFILE), Call(case, materialize(case)))
    return one, run(CpuBackend(PROFILE), Call(case, materialize(case)))


def nudged(ran: Ran, output: str, steps: int) -> Ran:
    """One element of an output moved by so many units in the last place."""
    array = ran.outputs[output].copy()
    flat = array.reshape(-1)
    words = flat.view(f"u{array.itemsize}")
    words[3] += steps
    return Ran(ran.call, {**ran.outputs, output: array})


@pytest.mark.parametrize("output", ["attentionOut", "softmaxLse"])
def test_exact_relations_see_one_bit(output: str) -> None:
    first, again = rerun_sides()
    assert relation_by_name("rerun").compare(first, [again]) is None
    text = relation_by_name("rerun").compare(first, [nudged(again, output, 1)])
    assert text is not None and text.startswith(f"{output} of batch 0")


def test_other_relations_allow_what_rounding_does_and_no_more() -> None:
    first, again = rerun_sides()
    relation = relation_by_name("scaled-query")
    assert relation.compare(first, [nudged(again, "attentionOut", 1)]) is None
    assert relation.compare(first, [nudged(again, "attentionOut", 64)]) is not None


def test_undefined_elements_are_not_compared() -> None:
    case = call("TND", q_lens=(2, 3), kv_lens=(9, 12))
    one = run(CpuBackend(PROFILE), Call(case, materialize(case)))
    one.call.expected.compare["attentionOut"][...] = False
    assert relation_by_name("rerun").compare(one, [nudged(one, "attentionOut", 900)]) is None


def test_two_nans_are_equal_and_infinities_have_signs() -> None:
    one, other = np.array([np.nan, np.inf, np.inf, 1.0]), np.array([np.nan, np.inf, -np.inf, np.nan])
    assert outside(one, other, np.full(4, np.inf)).tolist() == [False, False, True, True]


def test_no_other_side_without_an_accepted_one() -> None:
    case = call()
    one = Call(case, materialize(case))

    def nothing(other: Call) -> bool:
        return False

    found: Sequence[object] = [other_calls(r, one, nothing) for r in RELATIONS]
    assert all(f is None for f in found)
