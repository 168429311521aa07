"""A third-party distribution in a directory: what an installed package with backends looks like to fiafuzz."""

from __future__ import annotations

from pathlib import Path

from .nasty import NAMES


def install(directory: Path) -> None:
    """Write the metadata of a distribution whose entry points are the backends of nasty.py."""
    info = directory / "fiafuzz_nasty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fiafuzz-nasty\nVersion: 1.0\n", encoding="ascii")
    lines = [f"nasty-{name} = tests.robustness.nasty:make_{name.replace('-', '_')}" for name in NAMES]
    (info / "entry_points.txt").write_text("[fiafuzz.backends]\n" + "\n".join(lines) + "\n", encoding="ascii")
