"""The cpu backend: a blockwise attention kernel in the working precision, behind emulated parameter checks.

Every feature of the operator is computed (unquantised, antiquant, full quantisation but per-block, post-quantisation).
Keys, values and caches with strides arrive dense, so honouring strides is not tested here. One thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Optional, cast

import numpy as np
import torch

from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import Tensors

from .cpu_antiquant import AntiquantKernel
from .cpu_front import Front
from .cpu_full import DecodeMla, GqaFp8, PerTensorFloat8, PerTensorInt8
from .cpu_kernel import Kernel
from .cpu_mxfp8 import MxFp8
from .cpu_operands import Arrays, padding_sizes
from .cpu_output import empty_result
from .cpu_problem import CannotRun, read_problem
from .protocol import BackendInfo, Outcome

torch.set_num_threads(1)


def kernel_class(kind: str, dtype: str) -> type[Kernel]:
    """The kernel for a kind of call (Problem.kind) and query dtype."""
    if kind == "full_per_tensor":
        return PerTensorInt8 if dtype == "INT8" else PerTensorFloat8
    kinds: dict[str, type[Kernel]] = {
        "none": Kernel,
        "antiquant": AntiquantKernel,
        "full_decode_mla": DecodeMla,
        "full_gqa_fp8": GqaFp8,
        "full_mxfp8": MxFp8,
    }
    return kinds[kind]


def make_kernel(scene: Scene, tensors: Arrays) -> Kernel:
    """The kernel of one call, operands loaded. CannotRun when the call cannot be computed."""
    p = read_problem(scene, padding_sizes(scene, tensors))
    return kernel_class(p.kind, p.q_dtype)(p, tensors)


class CpuBackend:
    """The cpu backend for one profile (None: the profile that each case names)."""

    name = "cpu"
    title = "blockwise online softmax on torch, working precision"

    def __init__(
        self,
        profile: Optional[str] = None,
        front: Optional[Front] = None,
        plant: Optional[Callable[[Kernel], None]] = None,
    ) -> None:
        self.profile = profile
        self.front = front or Front(profile)
        self.plant = plant

    @property
    def info(self) -> BackendInfo:
        """Name, versions and declared policies."""
        return BackendInfo(
            self.name,
            self.title,
            "emulated",
            versions={
                "torch": torch.__version__,
                "numpy": np.__version__,
                "cpu": torch.backends.cpu.get_cpu_capability(),
            },
            policies={"masked_row": "zero", "strides": "dense", "packed_tail": "untouched"},
            profiles=() if self.profile is None else (self.profile,),
        )

    def cannot_express(self, scene: Scene) -> Optional[str]:
        """Why a call that the front lets through cannot be computed; None otherwise."""
        if scene.empty_case:
            return None
        try:
            read_problem(scene)
        except CannotRun as error:
            return None if self.front.answer(scene.case, scene) is not None else str(error)
        return None

    def run(self, case: Case, scene: Scene, tensors: Tensors, outputs: dict[str, np.ndarray[Any, Any]]) -> Outcome:
        """Run one call, writing into ``outputs``. Never raises: what cannot be computed is "unsupported", a fault of
        the kernel "error", lack of memory "oom"."""
        started = time.perf_counter()
        try:
            outcome = self.front.answer(case, scene) or self.compute(scene, cast(Arrays, tensors), outputs)
        except CannotRun as error:
            outcome = Outcome("unsupported", message=str(error))
        except MemoryError as error:
            outcome = Outcome("oom", message=str(error) or "out of memory")
        except RuntimeError as error:
            kind = "oom" if "allocate" in str(error) and "memory" in str(error) else "error"
            outcome = Outcome(kind, message=f"{type(error).__name__}: {error}".splitlines()[0])
        except Exception as error:  # a candidate that trips is a finding, not the end of the campaign
            outcome = Outcome("error", message=f"{type(error).__name__}: {error}".splitlines()[0])
        return replace(outcome, seconds=time.perf_counter() - started)

    def compute(self, scene: Scene, tensors: Arrays, outputs: dict[str, np.ndarray[Any, Any]]) -> Outcome:
        """The kernel without the front."""
        if scene.empty_case:
            self.compute_empty(scene, outputs)
            return Outcome("ok", outputs)
        kernel = make_kernel(scene, tensors)
        if self.plant is not None:
            self.plant(kernel)
        with torch.no_grad():
            kernel.run(outputs)
        return Outcome("ok", outputs)

    def compute_empty(self, scene: Scene, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
        """The call without query, or without keys: nothing, or zeros and +inf."""
        if "attentionOut" not in outputs:
            raise CannotRun("no buffer for attentionOut")
        if not scene.empty_query:
            empty_result(outputs, scene.lse_on)
