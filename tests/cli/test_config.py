"""Whole command lines under a configuration file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from .conftest import Ran

Run = Callable[..., Ran]


def write(tmp_path: Path, content: str, name: str = "fiafuzz.toml") -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")


def shown(ran: Ran) -> dict[str, tuple[object, str]]:
    assert ran.code == 0, ran.err
    return {line["option"]: (line["value"], line["origin"]) for line in json.loads(ran.out)["options"]}


def test_flag_over_environment_over_file_over_default(fiafuzz: Run, tmp_path: Path) -> None:
    write(tmp_path, 'seed = 1\n[generate]\nseed = 2\nmode = "valid"\n')
    environment = {"FIAFUZZ_GENERATE_MODE": "invalid", "FIAFUZZ_GENERATE_SEED": "3"}
    got = shown(fiafuzz("config", "--json", "generate", "--seed", "4", env=environment))
    assert got["seed"] == (4, "command line")
    assert got["mode"] == ("invalid", "environment FIAFUZZ_GENERATE_MODE")
    got = shown(fiafuzz("config", "--json", "generate"))
    assert got["seed"] == (2, "fiafuzz.toml:3") and got["mode"] == ("valid", "fiafuzz.toml:4")
    assert shown(fiafuzz("--no-config", "config", "--json", "generate"))["mode"][1] == "default"


def test_what_is_shown_is_what_runs(fiafuzz: Run, tmp_path: Path) -> None:
    write(tmp_path, "[tool.fiafuzz.generate]\nseed = 11\nbare = true\n", "pyproject.toml")
    by_file = fiafuzz("generate", "-n", "2")
    by_flag = fiafuzz("--no-config", "generate", "-n", "2", "--seed", "11", "--bare")
    assert by_file.code == 0 and by_file.out == by_flag.out and by_file.out.count("\n") == 2
    told = fiafuzz("generate", "-n", "2", "--show-config")
    assert "seed = 11  # pyproject.toml:2" in told.out and "bare = true  # pyproject.toml:3" in told.out


def test_unknown_keys_are_refused_with_the_nearest(fiafuzz: Run, tmp_path: Path) -> None:
    write(tmp_path, '[fuzz]\nmax-tim = "5m"\n')
    ran = fiafuzz("fuzz", "-n", "1")
    assert ran.code == 2 and ran.complaint == "fiafuzz: fiafuzz.toml:2: unknown key 'max-tim' in fuzz; did you mean 'max-time'?"
    write(tmp_path, '[fuz]\nmax-time = "5m"\n')
    ran = fiafuzz("predict")
    assert ran.code == 2 and "fiafuzz.toml:1: unknown table 'fuz'; did you mean 'fuzz'?" in ran.complaint
    write(tmp_path, "sede = 3\n")
    ran = fiafuzz("explain", "F101")
    assert ran.code == 2 and "fiafuzz.toml:1: unknown key 'sede'; did you mean 'seed'?" in ran.complaint


def test_values_that_an_option_refuses_name_their_place(fiafuzz: Run, tmp_path: Path) -> None:
    write(tmp_path, '[fuzz]\nprofile = "950-v6"\n')
    ran = fiafuzz("fuzz", "-n", "1")
    assert ran.code == 2 and "unknown profile '950-v6'" in ran.complaint and ran.complaint.endswith("(from fiafuzz.toml:2)")
    ran = fiafuzz("--no-config", "fuzz", "-n", "1", env={"FIAFUZZ_FUZZ_MODE": "odd"})
    assert ran.code == 2 and ran.complaint.endswith("(from the environment: FIAFUZZ_FUZZ_MODE)")


def test_a_missing_or_unreadable_file_is_one_line(fiafuzz: Run, tmp_path: Path) -> None:
    ran = fiafuzz("--config", "none.toml", "explain", "F101")
    assert ran.code == 2 and ran.complaint == "fiafuzz: none.toml: No such file or directory"
    (tmp_path / "odd.toml").write_bytes(b"\xff\xfe")
    ran = fiafuzz("--config", "odd.toml", "explain", "F101")
    assert ran.code == 2 and ran.complaint.startswith("fiafuzz: odd.toml: not TOML:")
