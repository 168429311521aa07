"""Backends on pretended devices, for tests of what a run does with devices that fail.

A device is a number from ASCEND_RT_VISIBLE_DEVICES (else 0). It is dead while a file ``dead-NUMBER`` lies in the directory
FIAFUZZ_TEST_DEVICES names; in its file ``log`` each run leaves a line: device, process, digest of the case. As in nasty.py,
bad things happen to cases with an odd number of key columns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from fiafuzz.backends.protocol import BackendInfo, BackendUnavailable, Outcome
from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import predict

from .nasty import _computed

DIRECTORY = "FIAFUZZ_TEST_DEVICES"
COUNT = 3
Deed = Callable[[Path], Optional[Outcome]]


def device() -> str:
    """The device of this process."""
    return os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "0").split(",")[0]


def directory() -> Path:
    """Where the devices' state lies."""
    return Path(os.environ[DIRECTORY])


class OnDevice:
    """Right, except for what ``deed`` does when the key axis is odd, and on a dead device."""

    def __init__(self, name: str, deed: Deed, versions: dict[str, str], profiles: tuple[str, ...], profile: Optional[str]) -> None:
        self.name, self.deed, self.profile = name, deed, profile
        self._versions, self._profiles = versions, profiles
        if (directory() / f"refuses-{device()}").exists():
            raise BackendUnavailable(f"device {device()} is taken")

    @property
    def info(self) -> BackendInfo:
        versions = {"soc": "Pretended910", "device": device(), **self._versions}
        return BackendInfo(self.name, "on pretended devices", "own", versions, profiles=self._profiles, device="npu", devices=COUNT)

    def cannot_express(self, scene: Scene) -> Optional[str]:
        return None

    def run(self, case: Case, scene: Scene, tensors: Any, outputs: dict[str, Any]) -> Outcome:
        with open(directory() / "log", "a", encoding="ascii") as log:
            log.write(f"{device()} {os.getpid()} {case.digest}\n")
        if (directory() / f"dead-{device()}").exists():
            return Outcome("lost", message=f"device {device()} does not answer", fatal=True)
        found = predict(case, self.profile, scene=scene)
        if found.verdict == "reject":
            return Outcome("reject", code=min(found.codes), stage=found.stage)
        if (scene.KV_S or 0) % 2:
            outcome = self.deed(directory())
            if outcome is not None:
                return outcome
        _computed(case, scene, tensors, outputs)
        return Outcome("ok", outputs)


def _exception(where: Path) -> Optional[Outcome]:
    return Outcome("crash", code=507015, stage="device", message="The aicore execution is abnormal.", fatal=True)


def _dead_queue(where: Path) -> Optional[Outcome]:
    return Outcome("reject", stage="launch", message="The Inner error is reported as above.", fatal=True)


def _kill_device(where: Path) -> Optional[Outcome]:
    (where / f"dead-{device()}").touch()
    return Outcome("crash", code=507015, stage="device", message="The aicore execution is abnormal.", fatal=True)


def _kill_device_and_die(where: Path) -> Optional[Outcome]:
    (where / f"dead-{device()}").touch()
    os.abort()


def _hang(where: Path) -> Optional[Outcome]:
    time.sleep(3600)
    return None


DEEDS: dict[str, Deed] = {
    "good": lambda where: None,
    "exception": _exception,
    "dead-queue": _dead_queue,
    "killer": _kill_device,
    "dying-killer": _kill_device_and_die,
    "hang": _hang,
    "mixed": lambda where: None,
    "a2": lambda where: None,
}


def _factory(name: str) -> Callable[[Optional[str]], OnDevice]:
    def make(profile: Optional[str] = None) -> OnDevice:
        versions = {"driver": device()} if name == "mixed" else {"driver": "1"}
        return OnDevice(f"device-{name}", DEEDS[name], versions, ("a2-v3",) if name == "a2" else (), profile)

    return make


def __getattr__(name: str) -> Any:
    """``make_NAME`` is the factory of a backend, with underscores for its dashes."""
    wanted = name.removeprefix("make_").replace("_", "-")
    if name.startswith("make_") and wanted in DEEDS:
        return _factory(wanted)
    raise AttributeError(name)


def install(site: Path) -> None:
    """Write the metadata of a distribution whose entry points are these backends."""
    info = site / "fiafuzz_devices-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fiafuzz-devices\nVersion: 1.0\n", encoding="ascii")
    lines = [f"device-{name} = tests.robustness.device_backends:make_{name.replace('-', '_')}" for name in DEEDS]
    (info / "entry_points.txt").write_text("[fiafuzz.backends]\n" + "\n".join(lines) + "\n", encoding="ascii")
