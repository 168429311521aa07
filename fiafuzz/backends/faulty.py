"""The cpu backend with one planted fault: ``faulty:NAME``. What proves that the tester finds faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Optional

import numpy as np

from fiafuzz.model.scene import Scene

from .cpu import CpuBackend
from .cpu_kernel import Kernel
from .cpu_operands import Arrays
from .cpu_problem import CannotRun
from .faults import Fault, fault_by_name
from .faults.record import Hook
from .protocol import BackendInfo, Outcome


def wrap(owner: Any, hooks: Mapping[str, Hook]) -> None:
    """Put hooks in the place of methods of ``owner`` or of its parts ("x.value.fetch"). A method that this owner does
    not have is passed over: the fault cannot show there."""
    for path, hook in hooks.items():
        target = owner
        *parts, name = path.split(".")
        for part in parts:
            target = getattr(target, part, None)
        method = getattr(target, name, None)
        if method is not None:
            setattr(target, name, partial(hook, method, owner))


class FaultyBackend(CpuBackend):
    """The cpu backend with one fault."""

    def __init__(self, fault: Fault, profile: Optional[str] = None) -> None:
        super().__init__(profile, plant=self.plant_fault)
        self.fault = fault
        own = {"front": {}, "backend": {}}  # type: dict[str, dict[str, Hook]]
        self.kernel_hooks: dict[str, Hook] = {}
        for path, hook in fault.hooks.items():
            head, _, rest = path.partition(".")
            if head in own:
                own[head][rest] = hook
            else:
                self.kernel_hooks[path] = hook
        wrap(self.front, own["front"])
        wrap(self, own["backend"])

    def plant_fault(self, kernel: Kernel) -> None:
        """Spoil one kernel."""
        wrap(kernel, self.kernel_hooks)

    def compute(self, scene: Scene, tensors: Arrays, outputs: dict[str, np.ndarray[Any, Any]]) -> Outcome:
        """The kernel without the front. What a spoilt check lets through counts as accepted, computable or not."""
        if self.fault.kind != "check":
            return super().compute(scene, tensors, outputs)
        try:
            return super().compute(scene, tensors, outputs)
        except CannotRun as error:
            if self.front.predict(scene.case, scene).verdict != "reject":
                raise
            return Outcome("ok", outputs, message=str(error))

    @property
    def info(self) -> BackendInfo:
        """The cpu backend's, under the name of the fault."""
        return replace(
            super().info,
            name=f"faulty:{self.fault.name}",
            title=self.fault.title,
        )


def faulty_backend(name: str, profile: Optional[str] = None) -> FaultyBackend:
    """The cpu backend with the fault of that name; ValueError for an unknown name."""
    return FaultyBackend(fault_by_name(name), profile)
