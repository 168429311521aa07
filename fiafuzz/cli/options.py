"""Options and input reading that several verbs share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from fiafuzz.model.profiles import PROFILES
from fiafuzz.model.records import BadRecord, ReadError, Record, read_records

from .main import EXIT_USAGE, UserError, complain

F = TypeVar("F", bound=Callable[..., Any])
MAX_COMPLAINTS = 20


def known_profile(ctx: click.Context | None, param: click.Parameter | None, value: Any) -> Any:
    """Refuse an unknown profile name and name the nearest one."""
    for name in (value,) if isinstance(value, str) else value or ():
        if name not in PROFILES:
            raise click.BadParameter(f"unknown profile {name!r};{nearest(name, PROFILES)} known: {', '.join(PROFILES)}")
    return value


def nearest(word: str, known: Any) -> str:
    """' did you mean X?' when something close is known, else nothing."""
    from difflib import get_close_matches

    found = get_close_matches(word, list(known), n=1)
    return f" did you mean {found[0]!r}?" if found else ""


profile_option = click.option(
    "--profile", metavar="NAME", callback=known_profile, help="Profile to hold for (default: the case's own, or 950-v5)."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable output, one JSON object.")


class Reader:
    """Reads records and complains about bad ones, one line each on stderr; ``failed`` tells whether any was bad."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.bad = 0

    @property
    def failed(self) -> bool:
        """Whether a record could not be read."""
        return self.bad > 0

    def __iter__(self) -> Iterator[Record]:
        try:
            for record in read_records(self.path):
                if isinstance(record, BadRecord):
                    self.bad += 1
                    self._complain(str(record))
                    continue
                if record.profile is not None and record.profile not in PROFILES:
                    self.bad += 1
                    self._complain(f"{record.where}: unknown profile {record.profile!r} (at $.profile)")
                    continue
                yield record
        except ReadError as error:
            raise UserError(str(error)) from None
        if self.bad > MAX_COMPLAINTS:
            click.echo(f"fiafuzz: {self.path}: {self.bad - MAX_COMPLAINTS} more unreadable records", err=True)

    def _complain(self, text: str) -> None:
        if self.bad <= MAX_COMPLAINTS:
            complain(text, 1000)

    def finish(self) -> None:
        """Leave with exit 2 when a record could not be read."""
        if self.failed:
            sys.stdout.flush()
            raise click.exceptions.Exit(EXIT_USAGE)


def one_record(path: str, name: str | None = None) -> Record:
    """The only record of a file, or the one called ``name``. UserError when there is none or a choice."""
    reader = Reader(path)
    found = [r for r in reader if name is None or r.name == name]
    if len(found) == 1:
        return found[0]
    if reader.failed and not found:
        raise click.exceptions.Exit(EXIT_USAGE)
    if not found:
        raise UserError(f"{path}: no case" + (f" called {name!r}" if name else ""))
    raise UserError(f"{path}: {len(found)} cases; choose one with --name (the first is {found[0].name!r})")
