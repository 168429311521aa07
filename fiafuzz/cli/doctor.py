"""fiafuzz doctor: what this machine has, what is missing, and the next step."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

import click

from fiafuzz import __version__

from .backends import backend_data
from .main import EXIT_CLEAN, EXIT_UNAVAILABLE
from .options import json_option

PACKAGES = ("numpy", "torch", "hypothesis", "msgspec", "ml-dtypes", "pandas", "click", "rich", "jinja2", "pytest", "torch-npu")
OPTIONAL = {"pytest": "only the test suite needs it", "torch-npu": "only the torch-npu backends need it"}


def package_version(name: str) -> str | None:
    """Installed version of a distribution, None when it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def npu_data(seconds: float) -> dict[str, Any]:
    """What there is for running on an NPU, as JSON data.

    ``state`` is "ready", "no device", "no cann", "half a cann", "devices misread", "mismatched torch", "soc not covered", "no torch_npu"
    or "broken"; ``text`` says it and ``next`` what to do. ``torch_npu`` is asked in a process of its own, for at most ``seconds``.
    """
    from fiafuzz.backends import ascend, npu_probe, torch_npu_load

    env = ascend.look()
    trouble = ascend.trouble(env)
    answer = npu_probe.ask(seconds)
    soc = answer.get("soc") or ""
    profiles = ascend.profiles_of(soc)
    state, text, step = "ready", "", ""
    wrong = ""
    if answer.get("torch") and answer.get("torch_npu"):
        wrong = torch_npu_load.mismatch(answer["torch"], answer["torch_npu"])
    if wrong:
        state, (text, _, step) = "mismatched torch", wrong.partition(": ")
    elif trouble is not None:
        half = "half a cann" if env.home or env.installed else "no cann"
        state, text, step = "devices misread" if trouble.what.startswith(ascend.VISIBLE_VARIABLE) else half, trouble.what, trouble.next_step
    elif not answer.get("torch_npu"):
        state, text, step = "no torch_npu", "torch_npu is not installed", "pip install torch_npu (the backend aclnn does without)"
    elif answer.get("error"):
        text, _, step = answer["error"].partition("): ")
        state, text, step = "broken", text + (")" if step else ""), step or "run 'python -c \"import torch_npu\"' to see it whole"
    elif not answer.get("devices"):
        hidden = env.visible is not None
        state, text = "no device", "no NPU is visible" + (f" (ASCEND_RT_VISIBLE_DEVICES={env.visible})" if hidden else "")
        step = "'npu-smi info' lists the devices; /dev/davinci* must be readable for this user (and passed into a container)"
    elif not profiles:
        state, text, step = "soc not covered", ascend.about_soc(soc), "run on another device, or write a profile for this one"
    return {
        "state": state,
        "text": text,
        "next": step,
        "soc": soc,
        "profiles": list(profiles),
        "device_nodes": list(env.devices),
        "visible_devices": env.visible,
        "cann_home": env.home or (env.installed[0] if env.installed else ""),
        "versions": dict(env.versions),
        "torch_npu": answer,
    }


@click.command()
@click.option(
    "--probe-seconds",
    type=click.FloatRange(min=1.0),
    default=90.0,
    show_default=True,
    metavar="S",
    help="How long torch_npu may take to be imported by a child process.",
)
@json_option
def command(probe_seconds: float, as_json: bool) -> None:
    """Check this machine: versions, backends, NPU, writable folders. Exit 4 when the default backend cannot run."""
    packages = {name: package_version(name) for name in PACKAGES}
    backends = [b for b in backend_data() if not b["name"].startswith("faulty:")]
    folder = os.path.join(os.getcwd(), ".fiafuzz")
    writable = os.access(folder if os.path.isdir(folder) else os.getcwd(), os.W_OK)
    usable = any(b["name"] == "cpu" and b["available"] for b in backends)
    npu = npu_data(probe_seconds)
    report = {
        "fiafuzz": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": packages,
        "backends": backends,
        "npu": npu,
        "run_folder_writable": writable,
        "default_backend_usable": usable,
    }
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(report).decode())
    else:
        click.echo(f"fiafuzz {__version__} on Python {platform.python_version()} ({sys.executable})")
        click.echo(f"{platform.platform()}, {os.cpu_count()} cores")
        for name, version in packages.items():
            missing = OPTIONAL.get(name) or f"install it: pip install {name}"
            _line(bool(version), f"{name} {version or '- ' + missing}")
        _backend_lines(backends)
        _npu_lines(npu)
        _line(writable, f"run folder {folder}" + ("" if writable else " - not writable: use --out DIR"))
    raise click.exceptions.Exit(EXIT_CLEAN if usable else EXIT_UNAVAILABLE)


def _line(good: bool, text: str) -> None:
    from fiafuzz.campaign.results import clean

    click.echo(f"  {'ok' if good else 'no':<3} {clean(text, 600)}")


def _backend_lines(backends: list[dict[str, Any]]) -> None:
    """One line a backend, or one for several that the same thing keeps from running."""
    together: dict[str, list[str]] = {}
    for backend in backends:
        together.setdefault(f"={backend['name']}" if backend["available"] else backend["reason"], []).append(backend["name"])
    for reason, names in together.items():
        good = reason.startswith("=")
        _line(good, f"backend {', '.join(names)}" + ("" if good else f" - {reason}"))


def _npu_lines(npu: dict[str, Any]) -> None:
    """The NPU in words: what it is, what can be run on it, and what is in the way."""
    from fiafuzz.campaign.results import clean

    good = npu["state"] == "ready"
    if good:
        count = npu["torch_npu"].get("devices", 0)
        _line(True, f"NPU {npu['soc']}, {count} visible; profiles {', '.join(npu['profiles'])}")
    else:
        _line(False, f"NPU - {npu['text']}")
        click.echo(f"      next: {clean(npu['next'], 600)}")
    cann = npu["torch_npu"].get("cann")
    for name, version in {**({"cann": cann} if cann else {}), **npu["versions"]}.items():
        _line(True, f"    {name} {version}")
    if npu["torch_npu"].get("imported") == "stand-in":
        _line(True, "torch_npu's shape inference, on a stand-in for CANN that was compiled here (torch-npu:meta)")
    elif npu["torch_npu"].get("error") and npu["state"] not in ("broken", "mismatched torch", "no torch_npu"):
        _line(False, f"    torch_npu: {npu['torch_npu']['error']}")
