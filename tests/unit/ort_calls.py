"""What the tests of the ONNX Runtime adapters share: calls that reach every word, agreement, and a look at what is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from fiafuzz.backends.cpu import CpuBackend
from fiafuzz.model.case import Case
from fiafuzz.model.codecs import decode
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from tests.unit.backend_cases import CAUSAL, buffers, call, mask
from tests.unit.fault_cases import alibi, bias, dead_rows, mla, padded, split

RUN: dict[str, Case] = {
    "plain": call(),
    "mask": call(attenMask=mask(2, 1, 5, 24)),
    "shared mask": call(attenMask=mask(5, 24)),
    "more queries": call(sparseMode=3, attenMask=CAUSAL, Q=9, K=5),
    "fewer queries": call(sparseMode=3, attenMask=CAUSAL, Q=5, K=15, kv_lens=(7, 15)),
    "square": call(sparseMode=2, attenMask=CAUSAL, Q=9, K=9),
    "band": call("TND", sparseMode=4, preTokens=5, nextTokens=1, attenMask=CAUSAL),
    "ragged band": call("TND", sparseMode=4, preTokens=5, nextTokens=1, attenMask=CAUSAL, q_lens=(3, 7), kv_lens=(5, 12)),
    "bias": bias(attenMask=mask(5, 24)),
    "alibi": alibi(3),
    "causal alibi": alibi(2, sparseMode=3, attenMask=CAUSAL),
    "paged": call("TND", cache="NZ"),
    "list": call("BSH", lists=(5, 9)),
    "prefix": call(prefix=6),
    "padding": padded(q=1, kv=2),
    "short": call(q_lens=(3, 0), kv_lens=(0, 9)),
    "ragged mask": call(q_lens=(3, 4), kv_lens=(20, 9), attenMask=mask(2, 1, 5, 24)),
    "ragged bias": bias(q_lens=(3, 5), kv_lens=(24, 9)),
    "no keys": call(q_lens=(3, 4), kv_lens=(0, 9)),
    "no packed keys": call("TND", B=3, q_lens=(3, 4, 2), kv_lens=(0, 9, 5)),
    "dead rows": dead_rows(),
    "ragged dead rows": dead_rows(q_lens=(3, 5), kv_lens=(20, 9)),
    "bf16": call(dtype="BFLOAT16"),
    "negative scale": call(scale=-0.3),
    "rope": split(),
    "mla": mla("BSH_NBSD"),
    "unequal": call(DV=48),
    "lse": call(lse=True, attenMask=mask(2, 1, 5, 24), q_lens=(3, 5)),
    "lse bf16": call("NTD", lse=True, dtype="BFLOAT16"),
    "lse bias": bias(lse=True, attenMask=mask(5, 24)),
}


def run(backend: Any, case: Case) -> Any:
    """The outcome of one run."""
    return backend.run(case, Scene(case), materialize(case), buffers(case))


def close(backend: Any, case: Case) -> None:
    """Run a call here and on the cpu backend, and compare."""
    assert backend.cannot_express(Scene(case)) is None
    tensors, got, want = materialize(case), buffers(case), buffers(case)
    outcome = backend.run(case, Scene(case), tensors, got)
    assert outcome.kind == "ok" and outcome.flaw is None, (outcome.message, outcome.flaw)
    assert CpuBackend().compute(Scene(case), tensors, want).kind == "ok"
    for name in want:
        dtype = getattr(case.outputs, name).dtype
        a, b = decode(dtype, got[name]), decode(dtype, want[name])
        allowed = {"FLOAT16": 2.0**-9, "BFLOAT16": 2.0**-6, "FLOAT32": 3e-4}[dtype]
        with np.errstate(invalid="ignore"):
            assert ((a == b) | (np.abs(a - b) <= allowed * (1 + np.abs(b)))).all(), name


class Spy:
    """Stands for ``ort.run_node``, keeps what is asked for, and may bend what comes back."""

    def __init__(self, real: Any, bend: Any = None) -> None:
        self.real, self.bend = real, bend
        self.asked: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = []

    def __call__(self, op: str, inputs: Any, outputs: Any, attributes: Any, **more: Any) -> Any:
        given = {name: x for name, x in inputs if x is not None}
        self.asked.append((given, dict(attributes), [n for n in outputs if n]))
        found = self.real(op, inputs, outputs, attributes, **more)
        if self.bend is not None:
            self.bend(given, found)
        return found
