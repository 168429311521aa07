"""fiafuzz config: every option with its value, and where the value comes from."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from .config import ENVIRONMENT, Config, check_keys, key_of, options_of, settings_of
from .main import VERBS, UserError, verb_command
from .options import nearest

SOURCES = {
    ParameterSource.COMMANDLINE: "command line",
    ParameterSource.DEFAULT: "default",
    ParameterSource.PROMPT: "prompt",
}


@dataclass(frozen=True)
class Line:
    """One option: verb, key, value and origin."""

    verb: str
    key: str
    value: Any
    origin: str


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output, one JSON object.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[VERB [OPTIONS]...]")
@click.pass_context
def command(ctx: click.Context, as_json: bool, words: tuple[str, ...]) -> None:
    """Show the value of every option and where it comes from: command line, environment, file or default.

    With a verb and its options, exactly what that command line would run with; without one, all verbs. The same as
    --show-config anywhere in a command line.
    """
    config = ctx.meta.get("fiafuzz.config")
    if isinstance(config, Config):
        check_keys(config, None)
    if words and words[0] not in VERBS:
        raise UserError(f"unknown verb {words[0]!r};{nearest(words[0], VERBS)} known: {', '.join(VERBS)}")
    lines: list[Line] = []
    for verb in words[:1] or tuple(VERBS):
        lines += _lines(ctx, config, (verb,), verb_command(verb), list(words[1:]))
    if as_json:
        import msgspec

        data = [{"verb": x.verb, "option": x.key, "value": x.value, "origin": x.origin} for x in lines]
        told = {"file": str(config.path) if isinstance(config, Config) else None, "options": data}
        click.echo(msgspec.json.encode(told, enc_hook=str).decode())
        return
    click.echo(f"# configuration file: {config.path if isinstance(config, Config) else 'none'}")
    last = ""
    for line in lines:
        if line.verb != last:
            click.echo(f"[{line.verb}]")
            last = line.verb
        click.echo(f"{line.key} = {_shown(line.value)}  # {line.origin}")


def _lines(ctx: click.Context, config: Config | None, words: tuple[str, ...], command: click.Command, arguments: list[str]) -> list[Line]:
    """The options of a command (and of its sub-verbs when none is chosen)."""
    settings = settings_of(config, words, command) if config else {}
    parent = click.Context(click.Group(), info_name="fiafuzz", auto_envvar_prefix=ENVIRONMENT)
    for word in words[:-1]:
        parent = click.Context(click.Group(), info_name=word, parent=parent)
    parent.default_map = {words[-1]: {name: s.value for name, s in settings.items()}}
    if isinstance(command, click.Group):
        chosen = [a for a in arguments if a in command.commands][:1]
        found: list[Line] = []
        for name in chosen or command.commands:
            rest = arguments[arguments.index(name) + 1 :] if chosen else []
            found += _lines(ctx, config, (*words, name), command.commands[name], rest)
        return found
    try:
        try:
            inner = command.make_context(words[-1], list(arguments), parent=parent)
        except click.MissingParameter:  # nobody needs a FILE to ask for the configuration
            inner = command.make_context(words[-1], list(arguments), parent=parent, resilient_parsing=True)
    except click.UsageError as error:
        origin = next((f" (from {s.place})" for n, s in settings.items() if n == getattr(getattr(error, "param", None), "name", None)), "")
        raise UserError(f"{shlex.join([*words, *arguments])}: {error.format_message()}{origin}") from None
    lines = []
    for option in options_of(command).values():
        name = str(option.name)
        source = inner.get_parameter_source(name) or ParameterSource.DEFAULT
        origin = SOURCES.get(source, "default")
        if source == ParameterSource.DEFAULT_MAP and name in settings:
            origin = settings[name].place
        elif source == ParameterSource.ENVIRONMENT:
            origin = f"environment {inner.auto_envvar_prefix}_{name.upper()}"
        lines.append(Line(".".join(words), key_of(option), inner.params.get(name), origin))
    return lines


def _shown(value: Any) -> str:
    """A value in the notation of the file."""
    if value is None:
        return "(none)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_shown(v) for v in value) + "]"
    import msgspec

    return msgspec.json.encode(str(value)).decode()
