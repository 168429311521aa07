"""Runs given cases on one torch-npu backend: JSON {"backend", "cases"} on stdin, outcomes on stdout, or why it cannot run."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from fiafuzz.backends.protocol import BackendUnavailable
from fiafuzz.backends.registry import get_backend
from fiafuzz.model.case import case_from_dict
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from oracles.poison import holds_poison

from .torch_npu_child import outputs_of


def main() -> None:
    """Run what is asked for."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    wanted = json.load(sys.stdin)
    try:
        backend = get_backend(wanted["backend"])
    except BackendUnavailable as error:
        answer: dict[str, Any] = {"unavailable": str(error)}
    else:
        answer = {"name": backend.info.name, "profiles": backend.info.profiles, "device": backend.info.versions["device"], "outcomes": []}
        for data in wanted["cases"]:
            case = case_from_dict(data)
            scene, buffers = Scene(case), outputs_of(case)
            reason = backend.cannot_express(scene)
            if reason is not None:
                answer["outcomes"].append({"kind": "unsupported", "message": reason})
                continue
            outcome = backend.run(case, scene, materialize(case), buffers)
            found = {key: getattr(outcome, key) for key in ("kind", "code", "stage", "message", "fatal", "flaw")}
            found["untouched"] = bool(holds_poison(case.outputs.attentionOut.dtype, buffers["attentionOut"]).all())  # type: ignore[union-attr]
            answer["outcomes"].append(found)
    out.write(json.dumps(answer) + "\n")
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
