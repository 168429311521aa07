"""fiafuzz fuzz: where the work is done, on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.robustness import device_backends

from .conftest import ROOT, Ran

QUICK = ("--seed", "1", "--mode", "valid", "--phases", "bulk", "-n", "6")
Fiafuzz = Callable[..., Ran]


@pytest.fixture
def devices(tmp_path: Path) -> dict[str, str]:
    """The environment in which the pretended devices of the robustness tests can be used."""
    site = tmp_path / "site"
    site.mkdir()
    device_backends.install(site)
    return {"PYTHONPATH": f"{site}:{ROOT}", device_backends.DIRECTORY: str(tmp_path)}


@pytest.mark.parametrize("arguments, words", [
    (("-w", "0"), "'0' is neither auto nor a number from 1"),
    (("-w", "many"), "'many' is neither auto nor a number"),
    (("--devices", "0,x"), "'x' is neither a device number nor a range"),
    (("--devices", "3-1"), "'3-1' is neither a device number nor a range"),
    (("--devices", "1,0-2"), "device 1 stands twice"),
    (("--devices", "0", "--ray", "auto"), "devices cannot be chosen under Ray"),
], ids=["none", "word", "letter", "backwards", "twice", "both"])
def test_what_makes_no_sense_is_refused(fiafuzz: Fiafuzz, arguments: tuple[str, ...], words: str) -> None:
    ran = fiafuzz("fuzz", *QUICK, *arguments)
    assert ran.code == 2 and words in " ".join(ran.err.split()), ran.err
    assert ran.out == "" and "Traceback" not in ran.err


def test_each_device_of_the_list_is_used(fiafuzz: Fiafuzz, devices: dict[str, str], tmp_path: Path) -> None:
    ran = fiafuzz("fuzz", *QUICK, "--backend", "device-good", "--devices", "2-3", "--json", "--out", "run", env=devices)
    assert ran.code == 0, ran.err
    plan = json.loads((tmp_path / "run" / "run.json").read_text())["plan"]
    assert plan["devices"] == ["2", "3"] and plan["workers"] == 0
    assert {line.split()[0] for line in (tmp_path / "log").read_text().splitlines()} <= {"2", "3"}
    assert json.loads(ran.out)["cases"] == 6


def test_a_backend_for_other_profiles(fiafuzz: Fiafuzz, devices: dict[str, str]) -> None:
    refused = fiafuzz("fuzz", *QUICK, "--backend", "device-a2", "--profile", "950-v5", env=devices)
    assert refused.code == 4
    assert "Pretended910 does not stand for 950-v5; it does for a2-v3" in refused.err and "fiafuzz itself failed" not in refused.err
    own = fiafuzz("fuzz", *QUICK, "--backend", "device-a2", env=devices)
    assert own.code == 0 and "profile a2-v3" in own.err, own.err


def test_devices_for_a_backend_that_has_none(fiafuzz: Fiafuzz) -> None:
    ran = fiafuzz("fuzz", *QUICK, "--devices", "0")
    assert ran.code == 4 and "backend cpu uses none" in ran.err, ran.err


def test_ray_that_is_not_installed(fiafuzz: Fiafuzz, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\nfound = u.find_spec\nu.find_spec = lambda name, *a: None if name == 'ray' else found(name, *a)\n"
    )
    ran = fiafuzz("fuzz", *QUICK, "--ray", "auto", env={"PYTHONPATH": f"{hidden}:{ROOT}"})
    assert ran.code == 4
    assert ran.complaint == "fiafuzz: --ray needs the package ray: pip install 'fiafuzz[ray]'"


def test_auto_is_taken(fiafuzz: Fiafuzz, tmp_path: Path) -> None:
    ran = fiafuzz("fuzz", *QUICK, "-w", "auto", "--out", "run")
    assert ran.code == 0, ran.err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["plan"]["workers"] == 0
