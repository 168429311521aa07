"""The backends of CONTRIBUTING.md, as a package that is made from nothing but what stands there."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import ROOT, Ran, fiafuzz_in

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"<!-- file (\S+) -->\n\n```\w+\n(.+?)```", TEXT, re.DOTALL))
MODULE = "fiafuzz_example.py"
PROJECT = tomllib.loads(FILES["pyproject.toml"])
ENTRIES: dict[str, str] = PROJECT["project"]["entry-points"]["fiafuzz.backends"]
SCALE = {"example-dense": " * self.p.scale\n", "example-bare": " * scene.scale\n"}
"""The line that is broken: without it scores are not scaled."""


def installed(where: Path, source: str) -> Callable[..., Ran]:
    """Runs fiafuzz beside the package: its modules, and the metadata that an installer makes of its pyproject.toml."""
    site = where / "site"
    info = site / "fiafuzz_example-1.0.dist-info"
    info.mkdir(parents=True)
    modules = PROJECT["tool"]["setuptools"]["py-modules"]
    assert [f"{name}.py" for name in modules] == [MODULE]
    (site / MODULE).write_text(source, encoding="utf-8")
    name, version = (PROJECT["project"][key] for key in ("name", "version"))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="ascii")
    lines = [f"{entry} = {value}\n" for entry, value in ENTRIES.items()]
    (info / "entry_points.txt").write_text("[fiafuzz.backends]\n" + "".join(lines), encoding="ascii")
    run = fiafuzz_in(where)
    return lambda *words: run(*words, env={"PYTHONPATH": f"{ROOT}:{site}"})


def test_the_example_is_short() -> None:
    assert set(FILES) == {"pyproject.toml", MODULE}
    assert sum(len(text.splitlines()) for text in FILES.values()) <= 100
    assert set(ENTRIES) == set(SCALE)


def test_the_example_is_listed(tmp_path: Path) -> None:
    listed = installed(tmp_path, FILES[MODULE])("backends")
    assert listed.code == 0, listed.err
    for name in ENTRIES:
        assert f"{name}: from fiafuzz-example\n" in listed.out


@pytest.mark.parametrize("name", ENTRIES)
def test_the_example_is_right_and_is_found_out_when_it_is_not(name: str, tmp_path: Path) -> None:
    words = ("fuzz", "--backend", name, "--mode", "valid", "--seed", "3")
    fiafuzz = installed(tmp_path, FILES[MODULE])
    clean = fiafuzz(*words, "-n", "200")
    assert clean.code == 0, clean.err
    ran = int(re.findall(r"^(\d+) cases in", clean.err, re.MULTILINE)[0])
    assert ran >= 1 and "pass" in clean.err, clean.err
    shutil.rmtree(tmp_path / "site")
    assert FILES[MODULE].count(SCALE[name]) == 1
    broken = installed(tmp_path, FILES[MODULE].replace(SCALE[name], "\n"))(*words, "-n", "40", "--phases", "pairwise,bulk")
    assert broken.code == 1, broken.err
    assert "F101 wrong values" in broken.err
