"""A child process on the stand-in: reads cases as JSON lines, makes the calls, prints one JSON line for each.

``same`` says whether the outputs are those of the cpu backend on the same tensors, bit for bit (None: it cannot compute the call).
"""

from __future__ import annotations

import json
import sys

import numpy as np

from fiafuzz.model.case import Case, CaseError, decode_case
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import Tensors, materialize
from oracles.precision import poison
from tests.standin.client import Array, Device, DeviceGone


def poisoned(case: Case) -> dict[str, Array]:
    """Output buffers that show what was not written. CaseError when a shape is impossible."""
    wanted = ("attentionOut", "softmaxLse") if case.attrs.softmaxLseFlag else ("attentionOut",)
    specs = {name: spec for name in wanted if (spec := getattr(case.outputs, name)) is not None}
    if any(n < 0 or n > 1 << 24 for spec in specs.values() for n in spec.shape):
        raise CaseError("no such buffer")
    return {name: poison(spec.dtype, spec.shape) for name, spec in specs.items()}


def compare(case: Case, tensors: Tensors, outputs: dict[str, Array], got: dict[str, Array]) -> bool | None:
    """Whether the cpu backend gives the same bits. Imported late: most calls of the fault tests need no torch."""
    from fiafuzz.backends.cpu import CpuBackend
    from fiafuzz.backends.cpu_problem import CannotRun

    try:
        CpuBackend().compute(Scene(case), tensors, outputs)
    except CannotRun:
        return None
    return all(np.array_equal(got[n].view(np.uint8), outputs[n].view(np.uint8)) for n in outputs)


def main() -> None:
    """Serve standard input."""
    device = Device()
    print(json.dumps({"soc": device.rt.aclrtGetSocName().decode(), "device": device.status, "live": device.live()}), flush=True)
    for line in sys.stdin:
        case = decode_case(line)
        try:
            tensors = materialize(case)
            outputs = poisoned(case)
        except CaseError:
            print(json.dumps({"skipped": True}), flush=True)
            continue
        try:
            answer = device.run(case, tensors, dict(outputs))
        except DeviceGone as error:
            print(json.dumps({"gone": str(error)}), flush=True)
            continue
        untouched = bool(outputs) and all(np.array_equal(a.view(np.uint8), outputs[n].view(np.uint8)) for n, a in answer.outputs.items())
        same = compare(case, tensors, outputs, answer.outputs) if answer.sync == 0 else None
        statuses = {"first": answer.first, "second": answer.second, "sync": answer.sync}
        seen = {"same": same, "untouched": untouched, "overrun": answer.overrun, "live": device.live()}
        print(json.dumps({**statuses, "text": answer.text, **seen}), flush=True)
    device.close()
    print(json.dumps({"live": device.live()}), flush=True)


if __name__ == "__main__":
    main()
