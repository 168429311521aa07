"""Configuration: fiafuzz.toml or [tool.fiafuzz] in pyproject.toml, read as defaults of the options.

The nearest file upwards from the working directory counts; beside each other, fiafuzz.toml wins. Every option of every
verb can be set by its long name: at the top for all verbs that have it, or in a table of the verb's name. A flag wins
over an environment variable (FIAFUZZ_FUZZ_MAX_TIME), that over the file, the file over the built-in default.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from .main import VERBS, UserError, verb_command
from .options import nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OWN, SHARED = "fiafuzz.toml", "pyproject.toml"
MAX_BYTES = 1 << 20
ENVIRONMENT = "FIAFUZZ"
"""Prefix of the environment variables: FIAFUZZ_<VERB>_<OPTION>."""
UNSETTABLE = frozenset({"help", "version", "config", "no_config", "show_config"})
Path_ = tuple[str, ...]


@dataclass(frozen=True)
class Config:
    """What a configuration file says. ``table``: its content; ``lines``: where each key stands; ``prefix``: the table
    that it all stands in, as written."""

    path: Path | None = None
    table: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[Path_, int] = field(default_factory=dict)
    prefix: Path_ = ()

    def place(self, keys: Path_) -> str:
        """Where a key stands: "fiafuzz.toml:3", or the file alone."""
        line = self.lines.get((*self.prefix, *keys))
        return f"{self.path}:{line}" if line else str(self.path)


def find_config(start: Path) -> Path | None:
    """The configuration file that holds in a directory: the nearest one upwards. Directories that may not be looked into have none."""
    for folder in (start, *start.parents):
        if os.path.isfile(folder / OWN):
            return folder / OWN
        if os.path.isfile(folder / SHARED) and _document(folder / SHARED).get("tool", {}).get("fiafuzz") is not None:
            return folder / SHARED
    return None


def read_config(path: Path) -> Config:
    """Read a configuration file. UserError, in one line, when it is none."""
    document = _document(path)
    lines = dict(_key_lines(path.read_text(encoding="utf-8")))
    shown = _near(path)
    if path.name != SHARED:
        return Config(shown, document, lines)
    table = document.get("tool", {}).get("fiafuzz", {})
    if not isinstance(table, dict):
        raise UserError(f"{shown}: tool.fiafuzz is {_kind(table)}, not a table")
    return Config(shown, table, lines, ("tool", "fiafuzz"))


def _document(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{_near(path)}: over {MAX_BYTES} bytes, that is no configuration")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{_near(path)}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{_near(path)}: not TOML: {' '.join(str(error).split())}") from None


def _near(path: Path) -> Path:
    """The path as people would write it here."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except (ValueError, OSError):
        return path


_HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_KEY = re.compile(r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*=")


def _key_lines(text: str) -> Iterator[tuple[Path_, int]]:
    """Keys and the lines they stand in; good enough to point at a line, the values come from the real reader."""
    table: Path_ = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header:
            table = _split(header[1])
            yield table, number
        else:
            key = _KEY.match(line)
            if key:
                yield (*table, *_split(key[1])), number


def _split(dotted: str) -> Path_:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _kind(value: object) -> str:
    names = {bool: "a boolean", int: "a whole number", float: "a number", str: "a text", list: "a list", dict: "a table"}
    return names.get(type(value), "a date or time")


# ---- from the file to the options ------------------------------------------------------------------------------------


def key_of(option: click.Option) -> str:
    """The name of an option in a configuration file: its long flag without dashes, or its own name when it has none."""
    longs = [name[2:] for name in option.opts if name.startswith("--")]
    return longs[0] if longs else (option.name or "").replace("_", "-")


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a command that can be configured, by key."""
    return {key_of(p): p for p in command.params if isinstance(p, click.Option) and p.name not in UNSETTABLE}


def commands_of(verb: str) -> dict[Path_, click.Command]:
    """A verb and its sub-verbs, by their words."""
    found: dict[Path_, click.Command] = {}

    def walk(words: Path_, command: click.Command) -> None:
        found[words] = command
        if isinstance(command, click.Group):
            for name, sub in command.commands.items():
                walk((*words, name), sub)

    walk((verb,), verb_command(verb))
    return found


def all_keys() -> set[str]:
    """Every key that some verb has."""
    return {key for verb in VERBS for command in commands_of(verb).values() for key in options_of(command)}


@dataclass(frozen=True)
class Setting:
    """A value from the file, in the form that the option takes, and where it stands."""

    value: Any
    place: str


def settings_of(config: Config, words: Path_, command: click.Command) -> dict[str, Setting]:
    """What the file says for one command, by parameter name: its own table over the top. UserError for unknown keys and
    wrong types."""
    options = options_of(command)
    found: dict[str, Setting] = {}
    for keys, key, value in _entries(config, words, command):
        option = options.get(key.replace("_", "-"))
        if option is None:
            continue
        where = config.place(keys)
        found[str(option.name)] = Setting(_value(option, value, where, ".".join(keys)), where)
    return found


def _entries(config: Config, words: Path_, command: click.Command) -> Iterator[tuple[Path_, str, Any]]:
    """Keys that may concern a command: those at the top first, then those of its tables, outer to inner."""
    for key, value in config.table.items():
        if not isinstance(value, dict):
            yield (key,), key, value
    table: Any = config.table
    for depth, word in enumerate(words, 1):
        table = table.get(word)
        if table is None:
            return
        if not isinstance(table, dict):
            raise UserError(f"{config.place(words[:depth])}: {'.'.join(words[:depth])} is {_kind(table)}, not a table")
        for key, value in table.items():
            if not isinstance(value, dict):
                yield (*words[:depth], key), key, value


def _value(option: click.Option, value: Any, where: str, name: str) -> Any:
    """A value of the file as the option takes it."""
    if option.multiple:
        items = value if isinstance(value, list) else [value]
        return tuple(_single(option, item, where, name) for item in items)
    if isinstance(value, list):
        if any(isinstance(item, (list, dict)) for item in value) or not _takes_list(option):
            raise UserError(f"{where}: {name} is a list, but the option takes one value")
        return ",".join(str(item) for item in value)
    return _single(option, value, where, name)


def _takes_list(option: click.Option) -> bool:
    return "LIST" in (option.metavar or "") or option.type.name == "LIST"


def _single(option: click.Option, value: Any, where: str, name: str) -> Any:
    wanted: tuple[type, ...]
    if option.is_flag and isinstance(option.type, click.types.BoolParamType):
        wanted, word = (bool,), "true or false"
    elif isinstance(option.type, click.types.IntParamType):
        wanted, word = (int,), "a whole number"
    elif isinstance(option.type, click.types.FloatParamType):
        wanted, word = (int, float), "a number"
    else:
        wanted, word = (str, int, float), "a text or a number"
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise UserError(f"{where}: {name} is {_kind(value)}, not {word}")
    return str(value) if wanted[0] is str and not isinstance(value, str) else value


def check_keys(config: Config, verb: str | None) -> None:
    """UserError for a key that nobody knows: at the top, and in the table of a verb (None: of every verb)."""
    known: set[str] | None = None
    mine = {k for c in commands_of(verb).values() for k in options_of(c)} if verb in VERBS else set()
    for key, value in config.table.items():
        if isinstance(value, dict):
            if key not in VERBS:
                raise UserError(f"{config.place((key,))}: unknown table {key!r};{nearest(key, VERBS)} known: {', '.join(VERBS)}")
            if verb in (None, key):
                _check_table(config, (key,), value)
            continue
        if key in VERBS:
            raise UserError(f"{config.place((key,))}: {key} is {_kind(value)}, not a table")
        if key.replace("_", "-") in mine:
            continue
        if known is None:
            known = all_keys()
        if key.replace("_", "-") not in known:
            near = nearest(key, known) or " known are the long names of the options."
            raise UserError(f"{config.place((key,))}: unknown key {key!r};{near}")


def _check_table(config: Config, words: Path_, table: Mapping[str, Any]) -> None:
    commands = commands_of(words[0])
    here = commands[words]
    subs = {w[len(words)] for w in commands if len(w) == len(words) + 1 and w[: len(words)] == words}
    keys = {k for w, c in commands.items() if w[: len(words)] == words for k in options_of(c)}
    for key, value in table.items():
        path = (*words, key)
        if isinstance(value, dict):
            if key not in subs:
                raise UserError(f"{config.place(path)}: unknown table {'.'.join(path)};{nearest(key, subs)} {words[0]} has no such part")
            _check_table(config, path, value)
        elif key.replace("_", "-") not in keys:
            near = nearest(key, keys) or f" {here.name} has {', '.join(sorted(keys))}"
            raise UserError(f"{config.place(path)}: unknown key {key!r} in {'.'.join(words)};{near}")


def apply(ctx: click.Context, verb: str | None) -> None:
    """Make the file's values the defaults of the verb that is about to run. The parameters of the group decide on the
    file: --config FILE, --no-config, else the nearest one."""
    given = ctx.params.get("config")
    if ctx.params.get("no_config"):
        if given:
            raise UserError("--config and --no-config exclude each other")
        return
    path = Path(given) if given else find_config(Path.cwd())
    if path is None:
        return
    config = read_config(path)
    check_keys(config, verb)
    ctx.meta["fiafuzz.config"] = config
    if verb in VERBS:
        ctx.default_map = {verb: _map_of(config, (str(verb),), verb_command(str(verb)))}


def _map_of(config: Config, words: Path_, command: click.Command) -> dict[str, Any]:
    found: dict[str, Any] = {name: setting.value for name, setting in settings_of(config, words, command).items()}
    if isinstance(command, click.Group):
        for name, sub in command.commands.items():
            found[name] = _map_of(config, (*words, name), sub)
    return found


def blame(error: click.UsageError) -> str:
    """Where a value that an option refuses comes from, when it is from the file or the environment; else ""."""
    ctx, param = error.ctx, getattr(error, "param", None)
    if ctx is None or param is None or param.name is None:
        return ""
    source = ctx.get_parameter_source(param.name)
    config = ctx.meta.get("fiafuzz.config")
    if source == click.core.ParameterSource.DEFAULT_MAP and isinstance(config, Config):
        setting = settings_of(config, words_of(ctx), ctx.command).get(param.name)
        return f" (from {setting.place})" if setting else f" (from {config.path})"
    if source == click.core.ParameterSource.ENVIRONMENT:
        return f" (from the environment: {ctx.auto_envvar_prefix}_{param.name.upper()})"
    return ""


def words_of(ctx: click.Context) -> Path_:
    """The verb and sub-verbs of a context."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, str(ctx.info_name))
        ctx = ctx.parent
    return tuple(words)
