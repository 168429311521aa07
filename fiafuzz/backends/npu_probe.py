"""What torch_npu says about this machine: ``python -m fiafuzz.backends.npu_probe`` prints one JSON object on stdout.

A process of its own, since a broken install can kill or block whoever imports it. Exit code 0 whatever it finds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PROBE_SECONDS = 90.0


def probe(meta_only: bool = False) -> dict[str, Any]:
    """Import torch_npu and ask it. Keys: ``torch``, ``torch_npu``, ``imported`` ("installed" or "stand-in": what CANN it rests on),
    ``devices``, ``soc``, ``cann`` and ``error`` (what went wrong, in one line)."""
    from . import ascend, torch_npu_load
    from .protocol import BackendUnavailable

    found: dict[str, Any] = {"torch": _version("torch"), "torch_npu": _version("torch_npu")}
    try:
        if meta_only or ascend.trouble(ascend.look()) is not None:
            module, found["imported"] = torch_npu_load.load_for_meta()
        else:
            module = torch_npu_load.load()
            found["imported"] = "installed"
        if found["imported"] == "installed" and not meta_only:
            with torch_npu_load.stdout_to_stderr():
                found["devices"] = int(module.npu.device_count())
                if found["devices"]:
                    found["soc"] = str(module.npu.get_device_name(0))
                found["cann"] = str(module.npu.utils.get_cann_version("CANN") or "")
    except BackendUnavailable as error:
        found["error"] = str(error)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return found


def ask(seconds: float = PROBE_SECONDS) -> dict[str, Any]:
    """The probe's answer from a child process with a time limit; when it dies or hangs, what is known and why (``error``)."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    known: dict[str, Any] = {"torch": _version("torch"), "torch_npu": _version("torch_npu")}
    if not known["torch_npu"]:
        return {**known, "error": "torch_npu is not installed: pip install torch_npu"}
    command = [sys.executable, "-m", "fiafuzz.backends.npu_probe"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        return {**known, "error": f"importing torch_npu did not end within {seconds:.0f} s: see whether a device or its driver hangs"}
    except OSError as error:
        return {**known, "error": f"no child process could be started: {error}"}
    if done.returncode:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        said = " ".join(done.stderr.split())[-200:]
        return {**known, "error": f"importing torch_npu ended the process with {how}{f': {said}' if said else ''}"}
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return {**known, "error": "the process that imports torch_npu gave no answer"}
    return answer if isinstance(answer, dict) else known


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    text = json.dumps(probe())
    print(text, flush=True)
    os._exit(0)  # the orderly shutdown of a device runtime can hang, and nothing is left to be saved
