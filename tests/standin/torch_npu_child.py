"""Runs generated cases through the torch-npu backends on a recording stand-in and compares every argument with the case.

``python -m tests.standin.torch_npu_child`` with a JSON object {"backends", "profiles", "count", "seed", "cases"} on stdin
prints one on stdout; ``given`` there tells for each of ``cases`` and each backend the operator that was called, or why none was.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import Any

import msgspec
import numpy as np

from fiafuzz.backends.registry import get_backend
from fiafuzz.model.case import Case, CaseError, TensorSpec, case_from_dict, case_to_dict
from fiafuzz.model.parameters import BY_NAME, TENSOR_INPUTS, TENSOR_LISTS
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from oracles.poison import poison
from strategies.cases import generate

from . import torch_npu_recorder as recorder

LARGE = 5_000_000


def bare(spec: TensorSpec | None) -> TensorSpec | None:
    """A tensor without its values; the format that torch puts on plain memory counts as ND, as do needless strides."""
    if spec is None:
        return None
    form = "ND" if spec.format in ("NCL", "NCHW", "NCDHW") else spec.format
    dense = spec.strides is None or spec.contiguous or spec.empty
    return TensorSpec(spec.shape, spec.dtype, form, None if dense else spec.strides, 0 if spec.empty else spec.offset)


def expected(case: Case, api: str) -> Case:
    """The case as the C function should see it."""
    changes: dict[str, Any] = {name: bare(case.get(name)) for name in TENSOR_INPUTS}  # type: ignore[arg-type]
    for name in TENSOR_LISTS:
        changes[name] = tuple(bare(item) for item in case.get(name) or ())  # type: ignore[union-attr]
    lse = case.outputs.softmaxLse
    changes["attentionOut"] = bare(case.outputs.attentionOut)
    changes["softmaxLse"] = bare(lse) if lse is not None else TensorSpec((0,), "FLOAT32")
    scale = case.attrs.scaleValue
    changes["scaleValue"] = float(scale) if not isinstance(scale, str) else scale
    return case.replace(seed=0, api=api, **changes)


def bits(array: Any) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def differences(case: Case, tensors: Any, buffers: dict[str, Any], poisoned: dict[str, Any], api: str) -> list[str]:
    """What the recorded call has otherwise than the case; what the outputs hold otherwise than was written."""
    want, got = expected(case, api), recorder.last["case"]
    wrong = [f"{name}: {want.get(name)!r} became {got.get(name)!r}" for name in BY_NAME if want.get(name) != got.get(name)]
    if (want.api, want.product) != (got.api, got.product):
        wrong.append(f"{want.api} {want.product} became {got.api} {got.product}")
    for name, made in tensors.items():
        there = recorder.last["tensors"].get(name)
        if isinstance(made, list):
            pairs = list(zip(made, there or [None]))
        else:
            pairs = [(made, there)]
        if any((a is None) != (b is None) or (a is not None and bits(a) != bits(b)) for a, b in pairs):
            wrong.append(f"{name}: other values")
    for name, buffer in buffers.items():
        if bits(recorder.last["before"][name]) != bits(poisoned[name]):
            wrong.append(f"{name}: the operator did not find the poison")
        if bits(recorder.last["after"][name]) != bits(buffer):
            wrong.append(f"{name}: what the operator wrote did not come back")
    return wrong


def outputs_of(case: Case) -> dict[str, Any]:
    """The buffers that a campaign hands over."""
    wanted = {"attentionOut": case.outputs.attentionOut, "softmaxLse": case.outputs.softmaxLse if case.attrs.softmaxLseFlag else None}
    return {name: poison(spec.dtype, spec.shape) for name, spec in wanted.items() if spec is not None}


def main() -> None:
    """Run what is asked for."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    wanted = json.load(sys.stdin)
    seen: Counter[str] = Counter()
    reasons: set[str] = set()
    wrong: list[dict[str, Any]] = []
    backends = {name: get_backend(name) for name in wanted["backends"]}
    cases = [case_from_dict(c) for c in wanted.get("cases", ())]
    given: list[dict[str, str]] = [{} for _ in cases]
    for profile in wanted.get("profiles", ()):
        cases += [item.case for item in generate(profile, "all", wanted["count"], wanted["seed"])]
    for i, case in enumerate(cases):
        said: dict[str, str] = given[i] if i < len(given) else {}
        scene = Scene(case)
        for name, backend in backends.items():
            reason = backend.cannot_express(scene)
            if reason is not None:
                seen[f"{name} unsupported"] += 1
                reasons.add(reason)
                said[name] = reason
                continue
            try:
                if sum(t.size for x in materialize(case).values() for t in (x if isinstance(x, list) else [x]) if t is not None) > LARGE:
                    seen[f"{name} large"] += 1
                    continue
                tensors, buffers, before = materialize(case), outputs_of(case), outputs_of(case)
            except (CaseError, ValueError):
                seen[f"{name} no tensors"] += 1
                continue
            recorder.last.clear()
            outcome = backend.run(case, scene, tensors, buffers)
            call = backend.plan(scene)
            seen[f"{name} {call.operator} {outcome.kind}"] += 1
            said[name] = call.operator
            found = (
                [f"{outcome.kind}: {outcome.message}"]
                if outcome.kind != "ok"
                else differences(case, tensors, buffers, before, call.function)
            )
            if found:
                wrong.append({"backend": name, "case": case_to_dict(case), "wrong": found})
    infos = {
        name: {
            "versions": dict(b.info.versions),
            "profiles": b.info.profiles,
            "name": b.info.name,
            "device": b.info.device,
            "checks": b.info.checks,
        }
        for name, b in backends.items()
    }
    out.write(
        msgspec.json.encode({"seen": seen, "wrong": wrong, "reasons": sorted(reasons), "given": given, "info": infos}).decode() + "\n"
    )
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
