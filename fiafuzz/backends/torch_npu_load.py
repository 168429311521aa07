"""Importing torch_npu in this process, with what it prints kept off stdout and what goes wrong said in words.

It is imported once a process and its settings (blocking launches or a task queue) are read then, so they are set here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Optional

from . import ascend, null_cann
from .protocol import BackendUnavailable

BLOCKING = "ASCEND_LAUNCH_BLOCKING"
QUEUE = "TASK_QUEUE_ENABLE"
COMPACT = "TORCH_NPU_COMPACT_ERROR_OUTPUT"
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


@dataclass
class _Process:
    """What torch_npu rests on in this process, and the launch mode that it was given (None: none yet)."""

    rests_on: str = ""
    queue: Optional[str] = None


_process = _Process()


def launch_settings(queue: str) -> Mapping[str, str]:
    """The variables for a launch mode: "" waits for every operator, so that whatever goes wrong shows at its own call; "0", "1"
    and "2" are torch_npu's task queue modes (no queue, a queue of launches, a queue of whole calls)."""
    return {BLOCKING: "0", QUEUE: queue} if queue else {BLOCKING: "1"}


def load(queue: str = "") -> ModuleType:
    """torch_npu for a device. BackendUnavailable with the next step when it is not there, does not fit torch, or when CANN is
    missing or half there."""
    check_packages()
    found = ascend.trouble(ascend.look())
    if found is not None:
        raise BackendUnavailable(str(found))
    if _process.rests_on == "stand-in":
        raise BackendUnavailable("this process has torch_npu on a stand-in for CANN already: run devices in another one")
    if _process.queue not in (None, queue):
        raise BackendUnavailable("torch_npu takes one launch mode a process, and this one has another: run them one after the other")
    os.environ.update(launch_settings(queue))
    module = _import()
    _process.rests_on, _process.queue = "installed", queue
    return module


def load_for_meta() -> tuple[ModuleType, str]:
    """torch_npu for meta tensors alone, and what CANN it rests on: the installed one, or a stand-in that is compiled here."""
    check_packages()
    if _process.rests_on:
        return _import(), _process.rests_on
    if ascend.trouble(ascend.look()) is None:
        module, _process.rests_on = _import(), "installed"
        return module, _process.rests_on
    # Half a CANN would be in the way of the import; this process does without it altogether.
    for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ASCEND_TOOLKIT_HOME"):
        os.environ.pop(name, None)
    os.environ[AUTOLOAD] = "0"
    import torch  # noqa: F401  (the stand-in is cut to what torch leaves open)

    null_cann.load()
    module, _process.rests_on = _import(), "stand-in"
    return module, _process.rests_on


def check_packages() -> None:
    """BackendUnavailable unless torch and torch_npu are installed in versions that belong together."""
    versions = {name: _version(name) for name in ("torch", "torch_npu")}
    missing = [name for name, version in versions.items() if not version]
    if missing:
        raise BackendUnavailable(f"{' and '.join(missing)} not installed: pip install {' '.join(missing)}")
    wrong = mismatch(versions["torch"], versions["torch_npu"])
    if wrong:
        raise BackendUnavailable(wrong)


def mismatch(torch: str, torch_npu: str) -> str:
    """What is wrong with a pair of versions, with the next step; "" when they belong together: torch_npu A.B.C is built for
    torch A.B."""
    wanted, there = (".".join(v.partition("+")[0].split(".")[:2]) for v in (torch_npu, torch))
    if wanted == there:
        return ""
    return (
        f"torch_npu {torch_npu} is built for torch {wanted}, but torch {torch} is installed: pip install 'torch=={wanted}.*', or the "
        f"torch_npu for torch {there}: pip install 'torch_npu=={there}.*'"
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what native code and Python print on stdout to stderr for a while: it must not get between machine-readable lines."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # no stdout at all
        yield
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _import() -> ModuleType:
    os.environ[AUTOLOAD] = "0"
    os.environ.pop(COMPACT, None)  # it would leave out the status numbers
    try:
        with stdout_to_stderr():
            import torch_npu
    except BackendUnavailable:
        raise
    except BaseException as error:
        text = " ".join(str(error).split())[:300]
        raise BackendUnavailable(f"torch_npu cannot be imported ({type(error).__name__}: {text}): {next_step(text)}") from error
    found: ModuleType = torch_npu
    return found


def next_step(text: str) -> str:
    """What to do about an import error of torch_npu."""
    if "cannot open shared object file" in text:
        return "a library of CANN is missing; 'source .../set_env.sh' of the installation, and see 'fiafuzz doctor'"
    if "undefined symbol" in text:
        return "torch_npu does not fit this torch or this CANN; 'fiafuzz doctor' compares the versions"
    if "ASCEND" in text:
        return "'source .../set_env.sh' of the CANN installation sets these variables"
    return "'fiafuzz doctor' shows what is there"
