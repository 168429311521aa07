"""The nightly recipes: what they would run is run here, with little time and the CPU backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / ".ci" / "recipes"
FAULT = "faulty:causal-one-too-many"


@pytest.fixture
def night(tmp_path: Path) -> dict[str, str]:
    """An environment in which ``fiafuzz`` is this checkout's; a run is bounded by cases, so that a slow machine changes nothing."""
    tools = tmp_path / "bin"
    tools.mkdir()
    bound = 'case "$*" in *--resume*) ;; fuzz*) set -- "$@" -n 100 --seed 7 ;; esac'
    (tools / "fiafuzz").write_text(f'#!/bin/sh\n{bound}\nexec "{sys.executable}" -m fiafuzz.cli.main "$@"\n')
    (tools / "fiafuzz").chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "FIA_TIME": "30m", "FIA_BACKEND": "cpu"}


def shell(command: str, where: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", command], cwd=where, env=env, capture_output=True, text=True, timeout=300, check=False
    )


def runs(home: Path) -> list[Path]:
    return sorted(p.parent for p in (home / "runs").glob("*/run.json"))


def test_cron(tmp_path: Path, night: dict[str, str]) -> None:
    home = tmp_path / "fia"
    env = {**night, "FIA_HOME": str(home), "FIA_BACKEND": FAULT, "FIA_KEEP": "1"}
    first = shell(f"'{RECIPES / 'nightly.sh'}'", tmp_path, env)
    assert first.returncode == 1, first.stdout + first.stderr
    (run,) = runs(home)
    assert {"report.html", "junit.xml", "report.sarif", "events.ndjson"} <= {p.name for p in run.iterdir()}
    assert list((home / "corpus" / "found").glob("F101-*.json")) and (home / "runs" / "history.html").exists()
    assert f"status 1, report {run}/report.html" in first.stdout

    # A night that was killed is finished by the next one, in the same directory.
    record = json.loads((run / "run.json").read_text())
    log = (run / "events.ndjson").read_bytes().splitlines(keepends=True)
    (run / "events.ndjson").write_bytes(b"".join(log[: len(log) // 2]))
    (run / "run.json").write_text(json.dumps({**record, "status": "running", "summary": None}, indent=2))
    again = shell(f"'{RECIPES / 'nightly.sh'}'", tmp_path, env)
    assert f"goes on with runs/{run.name}" in again.stdout, again.stdout + again.stderr
    assert again.returncode == 1 and runs(home) == [run]
    assert json.loads((run / "run.json").read_text())["status"] == "findings"


def test_cron_keeps_out_of_its_own_way(tmp_path: Path, night: dict[str, str]) -> None:
    home = tmp_path / "fia"
    home.mkdir()
    locked = f"exec 8>'{home}/nightly.lock'; flock 8; '{RECIPES / 'nightly.sh'}' 8>&-"
    ran = shell(locked, tmp_path, {**night, "FIA_HOME": str(home)})
    assert ran.returncode == 0 and "still at work" in ran.stdout and not runs(home)


def commands(name: str) -> tuple[dict[str, str], list[str]]:
    """Variables and command lines of a recipe, without those that install."""
    data: Any = yaml.safe_load((RECIPES / name).read_text(encoding="utf-8"))
    if name == "gitlab.yml":
        job = data["fia-nightly"]
        return job["variables"], job["script"]
    job = data["jobs"]["fuzz"]
    return job["env"], [s["run"] for s in job["steps"] if "run" in s and s.get("name") != "Install"]


@pytest.mark.parametrize("name", ["github.yml", "gitlab.yml"])
def test_pipelines(name: str, tmp_path: Path, night: dict[str, str]) -> None:
    variables, lines = commands(name)
    assert set(variables) == {"FIA_BACKEND", "FIA_TIME"} and any("fiafuzz fuzz" in line for line in lines)
    where = tmp_path / "checkout"
    where.mkdir()
    for line in lines:
        ran = shell(line, where, {**variables, **night})
        assert ran.returncode == 0, line + ran.stdout + ran.stderr
    data: Any = yaml.safe_load((RECIPES / name).read_text(encoding="utf-8"))
    if name == "gitlab.yml":
        wanted = [data["fia-nightly"]["artifacts"]["reports"]["junit"]]
    else:
        wanted = [s["with"]["sarif_file"] for s in data["jobs"]["fuzz"]["steps"] if "sarif_file" in s.get("with", {})]
    assert wanted and all((where / file).is_file() for file in wanted), sorted(p.name for p in (where / "run").iterdir())


def test_findings_fail_the_pipeline(tmp_path: Path, night: dict[str, str]) -> None:
    (fuzz,) = [line for line in commands("github.yml")[1] if "fiafuzz fuzz" in line]
    ran = shell(fuzz, tmp_path, {**night, "FIA_BACKEND": FAULT})
    assert ran.returncode == 1 and "::error" in ran.stdout, ran.stdout + ran.stderr
