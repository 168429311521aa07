"""The configuration file: what it may say, how it is read, how it is refused."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from fiafuzz.cli.config import Config, all_keys, commands_of, find_config, options_of, read_config, settings_of
from fiafuzz.cli.config_schema import as_text, config_schema
from fiafuzz.cli.main import VERBS, UserError, shown_instead, verb_command
from reports.schemas import text

FUZZ = ("fuzz",)


def config(tmp_path: Path, content: str, name: str = "fiafuzz.toml") -> Config:
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    return read_config(file)


def values(c: Config) -> dict[str, object]:
    return {name: s.value for name, s in settings_of(c, FUZZ, verb_command("fuzz")).items()}


def test_every_option_of_every_verb_can_be_set(tmp_path: Path) -> None:
    for verb in VERBS:
        for words, command in commands_of(verb).items():
            for key, option in options_of(command).items():
                value = "true" if option.is_flag else "3" if "int" in option.type.name else "0.5" if "float" in option.type.name else '"x"'
                c = config(tmp_path, f"[{'.'.join(words)}]\n{key} = {value}\n")
                found = settings_of(c, words, command)
                assert list(found) == [option.name], (words, key)
                assert found[str(option.name)].place.endswith(":2")


def test_a_table_of_the_verb_wins_over_the_top(tmp_path: Path) -> None:
    c = config(tmp_path, 'mode = "valid"\nseed = 3\n[fuzz]\nmode = "invalid"\n')
    assert values(c) == {"mode": "invalid", "seed": 3}


def test_names_with_underscores_and_lists(tmp_path: Path) -> None:
    c = config(tmp_path, '[fuzz]\nmax_time = "5m"\nphases = ["sweep", "bulk"]\nprofile = "a2-v3"\nbackend = ["cpu", "torch-sdpa"]\n')
    assert values(c) == {"max_time": "5m", "phases": "sweep,bulk", "profiles": ("a2-v3",), "backends": ("cpu", "torch-sdpa")}


def test_the_nearest_file_upwards_counts_and_the_own_file_wins(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.fiafuzz]\nseed = 1\n")
    (inner.parent / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert find_config(inner) == tmp_path / "pyproject.toml"
    assert values(read_config(tmp_path / "pyproject.toml")) == {"seed": 1}
    (tmp_path / "fiafuzz.toml").write_text("seed = 2\n")
    assert find_config(inner) == tmp_path / "fiafuzz.toml"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("seed = = 3\n", "not TOML"),
        ("[fuzz]\nseed = '3'\n", "fiafuzz.toml:2: fuzz.seed is a text, not a whole number"),
        ("seed = true\n", "fiafuzz.toml:1: seed is a boolean, not a whole number"),
        ("[fuzz]\nno-shrink = 1\n", "fuzz.no-shrink is a whole number, not true or false"),
        ("[fuzz]\nmode = ['valid']\n", "fuzz.mode is a list"),
        ("[fuzz]\nprofile = [['a']]\n", "fuzz.profile is a list, not a text"),
        ("fuzz = 3\n", "fuzz is a whole number, not a table"),
        ("seed = 2026-11-01\n", "seed is a date or time, not a whole number"),
    ],
    ids=["syntax", "text", "boolean", "flag", "list", "nested", "table", "date"],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, content: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        values(config(tmp_path, content))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_the_published_schema_is_current_and_agrees_with_the_reader(tmp_path: Path) -> None:
    assert text("config") == as_text(), "run: python -m fiafuzz.cli.config_schema"
    check = jsonschema.Draft202012Validator(config_schema())
    fuzz = {"max-time": "5m", "phases": ["bulk"], "no-shrink": True}
    assert check.is_valid({"seed": 3, "fuzz": fuzz, "constraints": {"list": {"json": True}}})
    for wrong in ({"fuzz": {"seed": "3"}}, {"fuz": {}}, {"fuzz": {"max-tme": 3}}, {"fuzz": {"mode": "odd"}}):
        assert not check.is_valid(wrong), wrong
    assert json.loads(as_text())["properties"].keys() >= all_keys()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["fuzz", "-n", "3"], ["fuzz", "-n", "3"]),
        (["fuzz", "-n", "3", "--show-config"], ["config", "fuzz", "-n", "3"]),
        (["--show-config"], ["config"]),
        (["--config", "fuzz", "fuzz", "--show-config"], ["--config", "fuzz", "config", "fuzz"]),
        (["predict", "--", "--show-config"], ["predict", "--", "--show-config"]),
    ],
    ids=["without", "after", "alone", "file called fuzz", "behind the dashes"],
)
def test_show_config_may_stand_anywhere(given: list[str], wanted: list[str]) -> None:
    assert shown_instead(given) == wanted
