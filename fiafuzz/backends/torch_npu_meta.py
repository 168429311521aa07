"""The torch-npu:meta backend: torch_npu's own inference of output shapes and dtypes, on tensors without values.

It needs no device; without CANN a stand-in is compiled (null_cann). What it infers is compared with the outputs of the case. It
checks little: the layout, ranks of query and value, that there are heads. A call that breaks only other demands and that it lets
through is answered with "unsupported".
"""

from __future__ import annotations

import time
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Optional, Union

import numpy as np

from fiafuzz.model.case import Case
from fiafuzz.model.layouts import LAYOUTS
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import Tensors
from oracles.constraints.predict import predict

from . import npu_errors, torch_npu_load
from .protocol import BackendInfo, Outcome
from .spelling import Chosen
from .torch_npu import cann_version, form_of_outputs, vocabulary
from .torch_npu_arguments import Call, choose
from .torch_npu_words import OPERATORS

NAME = "torch-npu:meta"
REACH = MappingProxyType({"v1": ("v3", "v5"), "v2": ("v4", "v5")})


def checked(scene: Scene) -> Optional[str]:
    """What the meta kernels refuse by their own words; None when they have nothing against a call."""
    query, value = scene.query, scene.values[0] if scene.values else None
    if scene.attrs.numHeads <= 0:
        return "numHeads is not positive"
    if scene.layout_name not in LAYOUTS and scene.layout_name != "NSD":
        return "unknown layout"
    if query is not None and scene.layout is not None and query.rank != len(scene.layout.inputs):
        return "rank of query"
    if query is None or value is None:
        return None
    if scene.inputs.blockTable is None:
        return None if value.rank == query.rank else "rank of value"
    return None if value.rank in (3, 4, 5) else "rank of the value cache"


class TorchNpuMeta:
    """torch_npu's meta kernels. They do not know the SoC, so any profile from V3 on can be tried."""

    def __init__(self, profile: Optional[str] = None, chosen: Optional[Chosen] = None) -> None:
        self.profile = profile
        self.chosen = chosen or Chosen(NAME, frozenset({"meta"}))
        self.forced = next((w for w in OPERATORS if w in self.chosen.words), None)
        self.module, self.rests_on = torch_npu_load.load_for_meta()
        self.words = vocabulary(self.module.__version__)
        self._info = self._describe()

    def _describe(self) -> BackendInfo:
        import torch

        git = str(getattr(self.module.version, "git_version", ""))[:12]
        versions = {
            "torch": str(torch.__version__),
            "torch_npu": str(self.module.__version__) + (f" ({git})" if git else ""),
            "cann": cann_version(self.module) or "unknown" if self.rests_on == "installed" else "stand-in",
        }
        return BackendInfo(
            self.chosen.name,
            "torch_npu's inference of output shapes and dtypes (meta tensors)",
            "partial",
            versions=MappingProxyType(versions),
            computes=False,
        )

    @property
    def info(self) -> BackendInfo:
        """Name and versions; it computes nothing."""
        return self._info

    def plan(self, scene: Scene) -> Union[Call, str]:
        """The case as a call of torch_npu; in words why there is none."""
        at = 1 if scene.case.api == "v5" else 0
        return choose(scene, {op: ends[at] for op, ends in REACH.items()}, self.words, self.forced, True)

    def cannot_express(self, scene: Scene) -> Optional[str]:
        """What torch_npu has no word for; None when the call can be made."""
        found = self.plan(scene)
        if isinstance(found, str):
            return found
        if scene.query is None or scene.values[0] is None:
            return "torch_npu derives its outputs from query and value: neither may be null"
        return None

    def run(self, case: Case, scene: Scene, tensors: Tensors, outputs: dict[str, np.ndarray[Any, Any]]) -> Outcome:
        """Infer the outputs of one call. Never raises."""
        started = time.perf_counter()
        reason = self.cannot_express(scene)
        call = self.plan(scene)
        if reason is not None or isinstance(call, str):
            return Outcome("unsupported", message=reason or str(call))
        try:
            outcome = self._run(call, scene, outputs)
        except Exception as error:
            failure = npu_errors.of_text(str(error), type(error).__name__)
            if not isinstance(error, RuntimeError):
                failure = npu_errors.Failure("error", message=f"{type(error).__name__}: {failure.message}".removeprefix("error: "))
            outcome = failure.outcome()
        return replace(outcome, seconds=time.perf_counter() - started)

    def _run(self, call: Call, scene: Scene, outputs: dict[str, np.ndarray[Any, Any]]) -> Outcome:
        import torch

        from .torch_npu_tensors import on_meta

        arguments = dict(call.plain)
        arguments.update({use.argument: on_meta(use) for use in call.tensors})
        first = [arguments.pop(name) for name in ("query", "key", "value")]
        made = getattr(torch.ops.npu, OPERATORS[call.operator]).default(*first, **arguments)
        if checked(scene) is None and not self._must_be_right(scene):
            return Outcome("unsupported", message="torch_npu's inference does not check what is wrong with this call")
        wrong = form_of_outputs(call, made)
        return Outcome("ok", outputs, flaw=("F103", wrong) if wrong else None)

    def _must_be_right(self, scene: Scene) -> bool:
        """Whether a call is one whose outputs are defined: accepted, or accepted by the documents."""
        found = predict(scene.case, self.profile, scene=scene)
        return found.verdict == "accept" or (found.document is not None and found.document.verdict == "accept")
