"""fiafuzz doctor: what this machine has, what is missing, and the next step."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata

import click

from fiafuzz import __version__

from .backends import backend_data
from .main import EXIT_CLEAN, EXIT_UNAVAILABLE
from .options import json_option

PACKAGES = ("numpy", "torch", "hypothesis", "msgspec", "ml-dtypes", "pandas", "click", "rich", "jinja2", "pytest", "torch-npu")
OPTIONAL = {"pytest": "only the test suite needs it", "torch-npu": "only the torch-npu backend needs it"}


def package_version(name: str) -> str | None:
    """Installed version of a distribution, None when it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Check this machine: versions, backends, writable folders. Exit 4 when the default backend cannot run."""
    packages = {name: package_version(name) for name in PACKAGES}
    backends = [b for b in backend_data() if not b["name"].startswith("faulty:")]
    folder = os.path.join(os.getcwd(), ".fiafuzz")
    writable = os.access(folder if os.path.isdir(folder) else os.getcwd(), os.W_OK)
    usable = any(b["name"] == "cpu" and b["available"] for b in backends)
    report = {
        "fiafuzz": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": packages,
        "backends": backends,
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
            click.echo(f"  {'ok' if version else 'no':<3} {name} {version or '- ' + missing}")
        for backend in backends:
            click.echo(
                f"  {'ok' if backend['available'] else 'no':<3} backend {backend['name']}"
                + ("" if backend["available"] else f" - {backend['reason']}")
            )
        click.echo(f"  {'ok' if writable else 'no':<3} run folder {folder}" + ("" if writable else " - not writable: use --out DIR"))
    raise click.exceptions.Exit(EXIT_CLEAN if usable else EXIT_UNAVAILABLE)
