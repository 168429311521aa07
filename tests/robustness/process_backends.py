"""More backends that behave badly: slow ones that wait to be released, and ones that start processes. See nasty.py."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from fiafuzz.backends.protocol import Outcome
from fiafuzz.model.case import Case
from fiafuzz.model.scene import Scene

from .nasty import Nasty

DIRECTORY = "FIAFUZZ_TEST_PROCESSES"
BOMB = 400


def _where() -> Path:
    return Path(os.environ[DIRECTORY])


def _wait_for_release(outputs: dict[str, Any]) -> Optional[Outcome]:
    """A long case: it ends when the test says so."""
    while not (_where() / "release").exists():
        time.sleep(0.02)
    return None


def _child(leave: bool) -> int:
    pid = os.fork()
    if pid:
        return pid
    if leave:
        os.setsid()
    with open(_where() / "children", "a", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    while True:
        time.sleep(3600)


class Many(Nasty):
    """Right where the number of key columns is even; 3 columns wait to be released, 5 abort, 7 hang."""

    def run(self, case: Case, scene: Scene, tensors: Any, outputs: dict[str, Any]) -> Outcome:
        deeds = {3: _wait_for_release, 5: lambda outputs: os.abort(), 7: _hang}
        self.deed = deeds.get(scene.KV_S or 0, lambda outputs: None)
        return super().run(case, scene, tensors, outputs)


def _hang(outputs: dict[str, Any]) -> Optional[Outcome]:
    while True:
        time.sleep(3600)


def _die_and_leave_children(outputs: dict[str, Any]) -> Optional[Outcome]:
    """One child in the worker's session, one that has left it; the worker dies once both run."""
    _start_both()
    os.abort()


def _hang_with_children(outputs: dict[str, Any]) -> Optional[Outcome]:
    _start_both()
    while True:
        time.sleep(3600)


def _start_both() -> None:
    before = _lines()
    for leave in (False, True):
        _child(leave)
    while _lines() < before + 2:
        time.sleep(0.02)


def _lines() -> int:
    try:
        return len((_where() / "children").read_text().splitlines())
    except FileNotFoundError:
        return 0


def _bomb(outputs: dict[str, Any]) -> Optional[Outcome]:
    """Start processes without end, as far as a test may go."""
    for _ in range(BOMB):
        if os.fork() == 0:
            while True:
                time.sleep(3600)
    while True:
        time.sleep(3600)


DEEDS: dict[str, Callable[[dict[str, Any]], Optional[Outcome]]] = {
    "slow": _wait_for_release,
    "orphans": _die_and_leave_children,
    "hang-with-children": _hang_with_children,
    "bomb": _bomb,
}


def __getattr__(name: str) -> Any:
    """``make_NAME`` is the factory of a backend, with underscores for its dashes."""
    wanted = name.removeprefix("make_").replace("_", "-")
    if name == "make_many":
        return lambda profile=None: Many("process-many", lambda outputs: None, profile)
    if name.startswith("make_") and wanted in DEEDS:
        return lambda profile=None: Nasty(f"process-{wanted}", DEEDS[wanted], profile)
    raise AttributeError(name)


def install(site: Path) -> None:
    """Write the metadata of a distribution whose entry points are these backends."""
    info = site / "fiafuzz_processes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fiafuzz-processes\nVersion: 1.0\n", encoding="ascii")
    lines = [f"process-{name} = tests.robustness.process_backends:make_{name.replace('-', '_')}" for name in (*DEEDS, "many")]
    (info / "entry_points.txt").write_text("[fiafuzz.backends]\n" + "\n".join(lines) + "\n", encoding="ascii")
