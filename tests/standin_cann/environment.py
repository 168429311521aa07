"""The environment that makes a child process run on the stand-in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .build import Build

ROOT = Path(__file__).resolve().parents[2]
HOST = "tests.standin_cann.host"

SOCS: dict[str, str] = {"a2": "Ascend910B2", "a3": "Ascend910_9391", "950": "Ascend950PR_9579"}
"""One SoC name for each product."""


def standin_environment(
    build: Build,
    *,
    soc: str = "Ascend910B2",
    devices: int = 1,
    faults: str | Sequence[str] = (),
    log: Path | str | None = None,
    state: Path | str | None = None,
    profile: str | None = None,
    cann: str = "9.1.0",
    memory_mib: int = 4096,
    host: str = HOST,
    preload: bool = False,
    compute: str = "cpu",
) -> dict[str, str]:
    """Variables to put over the environment of a child process, which then finds the stand-in as its CANN.

    ``faults``: planted faults (faults.py), one or several; ``log``: file for one JSON line a call, launch and
    synchronisation; ``state``: file that holds lost devices; ``profile``: the profile that answers (None: the document
    profile of SoC and API); ``host``: the module that answers calls ("" none: STANDIN_STATUS answers); ``preload``: whether a
    process loads what answers its calls when it starts, and not in its first call, whose time may be limited; ``compute``:
    "cpu", or "reference" for outputs by the reference, without torch.
    """
    planted = faults if isinstance(faults, str) else ";".join(faults)
    return {
        "LD_LIBRARY_PATH": _before(str(build.libraries), "LD_LIBRARY_PATH"),
        "PYTHONPATH": _before(str(ROOT), "PYTHONPATH"),
        "ASCEND_HOME_PATH": str(build.root),
        "ASCEND_OPP_PATH": str(build.root / "opp"),
        "ASCEND_CUSTOM_OPP_PATH": "",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "STANDIN_SOC": soc,
        "STANDIN_DEVICES": str(devices),
        "STANDIN_CANN_VERSION": cann,
        "STANDIN_MEMORY_MIB": str(memory_mib),
        "STANDIN_HOST": host,
        "STANDIN_COMPUTE": compute,
        "STANDIN_PRELOAD": str(int(preload)),
        "STANDIN_FAULT": planted,
        "STANDIN_LOG": str(log or ""),
        "STANDIN_STATE": str(state or ""),
        "STANDIN_PROFILE": profile or "",
    }


def _before(first: str, name: str) -> str:
    rest = os.environ.get(name, "")
    return f"{first}{os.pathsep}{rest}" if rest else first
