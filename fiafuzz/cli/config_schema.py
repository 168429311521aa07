"""The JSON schema of the configuration, as it follows from the options. ``python -m fiafuzz.cli.config_schema`` writes it
to where ``fiafuzz schema config`` reads it; a test keeps the two equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .config import commands_of, options_of
from .main import VERBS

VERSION = 1


def config_schema() -> dict[str, Any]:
    """The schema of fiafuzz.toml (or of [tool.fiafuzz]) as JSON Schema 2020-12; editors complete and check with it."""
    shared: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    for verb in VERBS:
        commands = commands_of(verb)
        tables[verb] = _table(commands, (verb,))
        for command in commands.values():
            for key, option in options_of(command).items():
                shared.setdefault(key, {**_option(option), "description": f"Default of --{key} for every verb that has it."})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of fiafuzz: fiafuzz.toml, or the table tool.fiafuzz of pyproject.toml",
        "type": "object",
        "properties": {**dict(sorted(shared.items())), **tables},
        "additionalProperties": False,
    }


def _table(commands: dict[tuple[str, ...], click.Command], words: tuple[str, ...]) -> dict[str, Any]:
    command = commands[words]
    inner = {w[-1]: _table(commands, w) for w in commands if len(w) == len(words) + 1 and w[: len(words)] == words}
    below = {k: _option(o) for w, c in commands.items() if w[: len(words)] == words for k, o in options_of(c).items()}
    return {
        "type": "object",
        "description": (command.help or command.short_help or "").split("\n\n")[0],
        "properties": {**below, **inner},
        "additionalProperties": False,
    }


def _option(option: click.Option) -> dict[str, Any]:
    one: dict[str, Any]
    if option.is_flag and isinstance(option.type, click.types.BoolParamType):
        one = {"type": "boolean"}
    elif isinstance(option.type, click.Choice):
        one = {"enum": list(option.type.choices)}
    elif isinstance(option.type, click.types.IntParamType):
        one = {"type": "integer"}
        for name, key in (("min", "minimum"), ("max", "maximum")):
            limit = getattr(option.type, name, None)
            if limit is not None:
                one[key] = limit
    elif isinstance(option.type, click.types.FloatParamType):
        one = {"type": "number"}
    else:
        one = {"type": ["string", "number"]}
    if option.multiple:
        one = {"anyOf": [one, {"type": "array", "items": one}]}
    elif "LIST" in (option.metavar or "") or option.type.name == "LIST":
        one = {"anyOf": [one, {"type": "array", "items": {"type": ["string", "integer"]}}]}
    return {**one, "description": option.help or ""}


def as_text() -> str:
    """The schema as the text of its file."""
    return json.dumps(config_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    from fiafuzz.campaign.whole_files import write_whole
    from reports import schemas

    target = Path(str(schemas.__file__)).parent / f"config-{VERSION}.json"
    write_whole(target, as_text().encode())
    print(target.name)
