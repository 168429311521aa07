"""Backends that are right, except for what one call leaves behind for the next (see test_sequence.py). Offered through entry points."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Optional

import numpy as np

from fiafuzz.backends.protocol import BackendInfo, Outcome
from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from fiafuzz.model.tensors import materialize
from oracles.constraints.predict import predict

from .nasty import _computed

MENDED = "FIAFUZZ_TEST_MENDED"
"""Set in the environment of a backend that shall remember nothing."""
SLOW_SECONDS = 1.5


class Stateful:
    """Right in a fresh process; ``kept`` outlives a call."""

    name = "state"

    def __init__(self, profile: Optional[str]) -> None:
        self.profile = profile
        self.kept: dict[Any, Any] = {}

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(self.name, "remembers too much", "own", {"state": "1"})

    def cannot_express(self, scene: Scene) -> Optional[str]:
        return None

    def run(self, case: Case, scene: Scene, tensors: Any, outputs: dict[str, Any]) -> Outcome:
        if MENDED in os.environ:
            self.kept = {}
        found = predict(case, self.profile, scene=scene)
        if found.verdict == "reject":
            self.refused(case)
            return Outcome("reject", code=min(found.codes), stage=found.stage)
        self.compute(case, scene, tensors, outputs)
        return Outcome("ok", outputs)

    def refused(self, case: Case) -> None:
        """A call was refused."""

    def compute(self, case: Case, scene: Scene, tensors: Any, outputs: dict[str, Any]) -> None:
        """Compute it rightly."""
        _computed(case, scene, tensors, outputs)


class OldScale(Stateful):
    """Compiles once for the shapes of a call, and the scale with it."""

    name = "state-old-scale"

    def compute(self, case: Case, scene: Scene, tensors: Any, outputs: dict[str, Any]) -> None:
        shapes = (scene.shape("query"), scene.shape("key"), case.attrs.inputLayout)
        as_compiled = case.replace(scaleValue=self.kept.setdefault(shapes, case.attrs.scaleValue))
        _computed(as_compiled, Scene(as_compiled), tensors, outputs)


class OldValues(Stateful):
    """Keeps the last value tensor where shapes are equal, and forgets it after any other call."""

    name = "state-old-values"

    def compute(self, case: Case, scene: Scene, tensors: Any, outputs: dict[str, Any]) -> None:
        shapes = (scene.shape("query"), scene.shape("key"))
        last, self.kept["last"] = self.kept.get("last"), (shapes, case)
        if last is not None and last[0] == shapes and last[1].inputs == case.inputs:
            _computed(case, scene, materialize(last[1]), outputs)
        else:
            _computed(case, scene, tensors, outputs)


class OldBuffer(Stateful):
    """Uses one output buffer for all calls, and copies one element too many of what a larger call has left in it."""

    name = "state-old-buffer"

    def compute(self, case: Case, scene: Scene, tensors: Any, outputs: dict[str, Any]) -> None:
        _computed(case, scene, tensors, outputs)
        out = outputs["attentionOut"]
        left = self.kept.get("left")
        self.kept["left"] = np.array(out).ravel()
        if left is not None and left.dtype == out.dtype and left.size > out.size > 0:
            out.ravel()[-1:] = left[out.size : out.size + 1]


class AfterTwo(Stateful):
    """Dies at a call with softmaxLse once two calls of different scale came before it."""

    name = "state-after-two"

    def compute(self, case: Case, scene: Scene, tensors: Any, outputs: dict[str, Any]) -> None:
        if case.attrs.softmaxLseFlag and len(self.kept) > 1:
            os._exit(9)
        self.kept[case.attrs.scaleValue] = True
        _computed(case, scene, tensors, outputs)


class AfterRefusal(Stateful):
    """Gives the poison back when the call before was refused."""

    name = "state-after-refusal"

    def refused(self, case: Case) -> None:
        self.kept["refused"] = True

    def compute(self, case: Case, scene: Scene, tensors: Any, outputs: dict[str, Any]) -> None:
        if not self.kept.pop("refused", False):
            _computed(case, scene, tensors, outputs)


BACKENDS: tuple[type[Stateful], ...] = (OldScale, OldValues, OldBuffer, AfterTwo, AfterRefusal)


class Sound(Stateful):
    """Keeps nothing."""

    name = "state-sound"


class Slow(Stateful):
    """Takes its time for each call, and for ever where the seed is 13."""

    name = "state-slow"

    def compute(self, case: Case, scene: Scene, tensors: Any, outputs: dict[str, Any]) -> None:
        time.sleep(SLOW_SECONDS if case.seed != 13 else 3600.0)
        _computed(case, scene, tensors, outputs)


def install(directory: Path) -> None:
    """Write the metadata of a distribution with these backends."""
    info = directory / "fiafuzz_state-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fiafuzz-state\nVersion: 1.0\n", encoding="ascii")
    lines = [f"{backend.name} = {__name__}:{backend.__name__}" for backend in (*BACKENDS, Sound, Slow)]
    (info / "entry_points.txt").write_text("[fiafuzz.backends]\n" + "\n".join(lines) + "\n", encoding="ascii")
