"""The candidate of the soak: right, but for faults of several kinds that depend on the call alone.

It needs no torch, so that workers start in no time and are killed often.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any, Optional

from fiafuzz.backends.protocol import BackendInfo, Outcome
from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import predict
from tests.robustness.nasty import _computed

NAME = "soak"


class Soak:
    """Wrong values, a wrong shape, an exception, an abort, and other statuses than those that are due."""

    def __init__(self, profile: Optional[str]) -> None:
        self.profile = profile

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(NAME, "right, but for planted faults", "own", {"soak": "1"})

    def cannot_express(self, scene: Scene) -> Optional[str]:
        return None

    def run(self, case: Case, scene: Scene, tensors: Any, outputs: dict[str, Any]) -> Outcome:
        found = predict(case, self.profile, scene=scene)
        if found.verdict == "reject":
            wrong = zlib.crc32(found.rule_ids[0].encode()) % 7 == 0
            return Outcome("reject", code=min(found.codes) + wrong, stage=found.stage)
        keys, rows = scene.KV_S or 0, scene.Q_S or 0
        if keys % 16 == 7:
            os.abort()
        if keys % 8 == 5:
            return Outcome("ok", {name: array.reshape(-1) for name, array in outputs.items()})
        if rows % 8 == 3:
            raise ArithmeticError("rows come in eights, or so")
        _computed(case, scene, tensors, outputs)
        if rows % 4 == 2:
            first = next(iter(outputs.values()))
            first.view("u1").reshape(-1)[0:4] ^= 0x40
        return Outcome("ok", outputs)


def make_backend(profile: Optional[str] = None) -> Soak:
    """The factory that the entry point names."""
    return Soak(profile)


def install(site: Path) -> None:
    """Write the metadata of a distribution that offers the backend."""
    info = site / "fiafuzz_soak-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fiafuzz-soak\nVersion: 1.0\n", encoding="ascii")
    (info / "entry_points.txt").write_text(f"[fiafuzz.backends]\n{NAME} = tests.benchmarks.soak_backend:make_backend\n", encoding="ascii")
