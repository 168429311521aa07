"""What the stand-in operator answers: predicted by the constraint oracle, computed by the cpu kernel.

The C side calls ``workspace`` for the first phase of a call and ``launch`` for the second, with the GIL held.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import fiafuzz  # noqa: F401  (keeps torch from loading torch_npu by itself)
from fiafuzz.campaign.cost import estimated_seconds
from fiafuzz.model.case import Case
from fiafuzz.model.dtypes import DTYPES
from fiafuzz.model.profiles import profile_for
from fiafuzz.model.scene import Scene

from . import records, texts
from .faults import Planted, planted, remember

if TYPE_CHECKING:
    from fiafuzz.model.tensors import Tensors
    from oracles.constraints.predict import Prediction

NN_BAD_PARAM, NN_TILING = 161002, 561002
GIANT_SECONDS = float(os.environ.get("STANDIN_GIANT_SECONDS", "") or 4.0)
"""A device is quick with calls that a CPU is slow with: what would take longer gets zeros, since nobody judges it either."""
ONLY_REFERENCE = os.environ.get("STANDIN_COMPUTE", "") == "reference"
Answer = tuple[int, int, str, "Call | None"]
Launched = tuple[int, str, int, str]


@dataclass
class Call:
    """A call between its two phases."""

    record: records.Record
    case: Case
    scene: Scene
    foreseen: Prediction
    fault: Planted | None

    def outputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """The output buffers as they are on the device."""
        names = ("attentionOut", "softmaxLse") if self.case.attrs.softmaxLseFlag else ("attentionOut",)
        return {name: records.array_of(self.record.args[name]) for name in names if self.record.args[name] is not None}


def start() -> None:
    """Import what the first call would import."""
    import oracles.reference  # noqa: F401
    from oracles.constraints.predict import rules_for

    if not ONLY_REFERENCE:
        import fiafuzz.backends.cpu  # noqa: F401
    api = "v5" if soc().startswith("Ascend950") else "v3"
    rules_for(profile_for(api, records.product_of(soc())).name)


def soc() -> str:
    """The name of the SoC that is acted out."""
    return os.environ.get("STANDIN_SOC", "") or "Ascend910B2"


def workspace_size() -> int:
    """The workspace that a call asks for."""
    return int(os.environ.get("STANDIN_WORKSPACE", "") or 65536)


def workspace(text: str) -> Answer:
    """First phase: status, size of the workspace, error text, and what ``launch`` needs."""
    record = records.parse(text)
    try:
        case = records.case_of(record, soc())
    except records.Unreadable as error:
        return NN_BAD_PARAM, 0, texts.refusal(NN_BAD_PARAM, record.entry, str(error)), None
    scene = Scene(case)
    foreseen = _predict(case, scene)
    call = Call(record, case, scene, foreseen, planted(case, foreseen.verdict))
    if call.fault is not None:
        answer = call.fault.refuse(call)
        if answer is not None:
            return answer[0], 0, answer[1], None
        if call.fault.takes_all:
            return 0, workspace_size(), "", call
    if foreseen.verdict == "reject":
        code = min(foreseen.codes)
        return code, 0, texts.refusal(code, record.entry, foreseen.rules[0].title if foreseen.rules else "refused"), None
    if foreseen.verdict in ("crash", "hang"):
        return NN_TILING, 0, texts.refusal(NN_TILING, record.entry, f"a real host would {foreseen.verdict} here"), None
    return 0, call.fault.workspace(workspace_size()) if call.fault else workspace_size(), "", call


def launch(call: Call) -> Launched:
    """Second phase: status and its text, then the fault of the device that shows later (0 none) and its text."""
    if call.fault is not None:
        return call.fault.launch(call, compute)
    compute(call)
    remember(call)
    return 0, "", 0, ""


def compute(call: Call) -> None:
    """Compute a call and write its outputs to device memory."""
    outputs = call.outputs()
    run(call, outputs)
    for name, dense in outputs.items():
        records.put_array(call.record.args[name], dense)


def run(call: Call, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
    """Compute a call into dense arrays: by the cpu kernel, and what that cannot by the reference; by the reference alone
    where STANDIN_COMPUTE says so."""
    if not outputs or call.case.outputs.attentionOut is None or call.case.outputs.attentionOut.empty:
        return
    if estimated_seconds(call.scene) > GIANT_SECONDS:
        for array in outputs.values():
            array.fill(0)
        return
    tensors = records.tensors_of(call.record)
    if ONLY_REFERENCE or not _by_kernel(call, tensors, outputs):
        _by_reference(call, tensors, outputs)


def _by_kernel(call: Call, tensors: Tensors, outputs: dict[str, np.ndarray[Any, Any]]) -> bool:
    """Whether the cpu kernel could compute the call."""
    from fiafuzz.backends.cpu import CpuBackend
    from fiafuzz.backends.cpu_problem import CannotRun

    try:
        CpuBackend().compute(call.scene, tensors, outputs)
    except CannotRun:
        return False
    return True


def _by_reference(call: Call, tensors: Tensors, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
    from fiafuzz.model.codecs import encode
    from oracles.reference import ReferenceError, reference

    try:
        expected = reference(call.case, tensors, scene=call.scene)
    except ReferenceError:
        return  # ground on which nobody says what is right
    for name, values in expected.outputs.items():
        spec = getattr(call.case.outputs, name)
        if name in outputs and spec is not None:
            where = expected.compare[name]
            overflow = "saturate" if DTYPES[spec.dtype].bits <= 8 else "special"
            outputs[name][where] = encode(spec.dtype, values, overflow=overflow)[where]


def _predict(case: Case, scene: Scene) -> Prediction:
    from oracles.constraints.predict import predict

    name = os.environ.get("STANDIN_PROFILE", "") or profile_for(case.api, case.product).name
    return predict(case, name, scene=scene)

