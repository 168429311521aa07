"""Options of fuzz that are about what a run takes over: from its own log, from a baseline, from an example database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from .main import Unavailable, UserError

F = TypeVar("F", bound=Callable[..., Any])

FREE = ("resume", "reports", "events_to", "as_json")
"""Options that are about this call, and not about the run."""
HOW = ("workers", "devices", "ray")
"""Options that say how a run is run; they change neither its cases nor its findings."""


def memory_options(command: F) -> F:
    """Add --resume, --examples and the --baseline options."""
    for option in reversed(
        (
            click.option(
                "--resume",
                metavar="RUN",
                help="Go on with the killed or interrupted run in this run directory, as it was planned; nothing recorded is run again.",
            ),
            click.option(
                "--examples",
                default="",
                metavar="DIR|URL|none",
                help="Where the explore phase remembers failing examples: a directory or redis://HOST/DB?prefix=TEXT shares them between "
                "runs (the same seed may then give other cases in that phase; a password is read from FIAFUZZ_REDIS_PASSWORD). "
                "[default: the run directory]",
            ),
            click.option(
                "--baseline",
                metavar="FILE",
                help="Findings whose signatures are in this file are accepted as they are: told as known, no failure.",
            ),
            click.option("--baseline-update", is_flag=True, help="Accept what this run finds: add it to the baseline file."),
            click.option(
                "--baseline-prune", is_flag=True, help="Drop signatures from the baseline file that were run again and no longer fail."
            ),
        )
    ):
        command = option(command)
    return command


def check_examples(where: str) -> None:
    """Unavailable, with the line that installs it, when a database needs a package that is missing."""
    from importlib.util import find_spec

    if where.startswith(("redis://", "rediss://")) and find_spec("redis") is None:
        raise Unavailable("--examples redis://... needs the package redis: pip install 'fiafuzz[redis]'")


def past_of(directory: str) -> Any:
    """The past of a run; UserError when it cannot be resumed."""
    from fiafuzz.campaign.resume import ResumeError, read_past

    try:
        return read_past(Path(directory))
    except ResumeError as error:
        raise UserError(f"--resume {error}") from None


def plan_of(context: click.Context, past: Any) -> Any:
    """The plan of a resumed run: that of its log, with the present way to run it. UserError when an option on the command line says
    otherwise than the log."""
    import msgspec

    plan = past.plan
    changes: dict[str, Any] = {}
    for name, given in context.params.items():
        if name in FREE or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        field, value = _as_planned(name, given)
        if not hasattr(plan, field):
            continue
        if name in HOW:
            changes[field] = value
        elif name == "out":
            if Path(value).resolve() != past.directory.resolve():
                raise UserError(f"--out {value} is not the run that is resumed ({past.directory})")
        elif getattr(plan, field) != value:
            option = next((p.opts[0] for p in context.command.params if p.name == name), name)
            raise UserError(
                f"{option} is {_shown(value)} here and {_shown(getattr(plan, field))} in the run that is resumed; "
                "leave it away, or start a new run"
            )
    return msgspec.structs.replace(plan, **changes)


def _as_planned(name: str, given: Any) -> tuple[str, Any]:
    """A parameter of the command as the field of a plan that it sets."""
    if name == "no_shrink":
        return "shrink", not given
    if name == "backends":
        from .backends import usable_backends

        return name, usable_backends(given)
    return name, given


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(str(v) for v in value) or "nothing"
    return "not given" if value is None else str(value)
