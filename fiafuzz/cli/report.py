"""fiafuzz report: write a run, or several, down for people and machines."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from reports.formats import FORMATS, Format, MissingExtra

from .fuzz import comma_list
from .main import EXIT_USAGE, Unavailable, UserError


def _formats() -> str:
    return "\n".join(f"  {f.name}  {f.text}" for f in FORMATS.values())


@click.command(epilog="\b\nFormats:\n" + _formats())
@click.argument("runs", nargs=-1, metavar="RUN...")
@click.option(
    "-o", "--output", metavar="FILE|DIR|-", help="Where to write: a file, a directory (for several formats), or - for standard output."
)
@click.option(
    "--format",
    "names",
    default="html",
    show_default=True,
    metavar="LIST",
    callback=comma_list(tuple(FORMATS)),
    help=f"Comma-separated formats: {', '.join(FORMATS)}.",
)
def command(runs: tuple[str, ...], output: str | None, names: tuple[str, ...]) -> None:
    """Write a report of each RUN directory (or event log); several runs make one report together.

    Without -o the report goes into the run directory, or, of several runs, into the working directory. A run that was
    killed, or that is still going on, gives a report of what is there, and the report says so. Writing reports succeeds
    whatever they say: exit code 0, or 2 when a run cannot be read or a file cannot be written.
    """
    if not runs:
        raise UserError("name a run directory, for example the newest of .fiafuzz/runs")
    if not names:
        raise UserError(f"no format; known: {', '.join(FORMATS)}")
    paths = [Path(run) for run in dict.fromkeys(runs)]
    chosen = [FORMATS[name] for name in dict.fromkeys(names)]
    for one in chosen:
        if len(paths) > 1 and not one.several:
            raise UserError(f"{one.name} takes one run, not {len(paths)}; write a report of each")
        try:
            one.check()
        except MissingExtra as error:
            raise Unavailable(str(error)) from None
    targets = [_target(one, paths, output, alone=len(chosen) == 1) for one in chosen]
    failed = False
    for one, target in zip(chosen, targets):
        failed |= not _write(one, paths, target)
    if failed:
        raise click.exceptions.Exit(EXIT_USAGE)


def _target(one: Format, paths: Sequence[Path], output: str | None, *, alone: bool) -> Path | None:
    """Where a format goes; None for standard output."""
    if output == "-":
        if not alone or one.folder:
            raise UserError(f"{one.name} is a folder of files" if one.folder else "standard output takes one format")
        return None
    if output is None:
        if one.shown:
            return None
        if len(paths) > 1:
            return Path(one.file)
        return (paths[0] if paths[0].is_dir() else paths[0].parent) / one.file
    if os.path.isdir(output) or output.endswith(os.sep):
        return Path(output) if one.folder and alone else Path(output) / one.file
    if not alone:
        raise UserError(f"{output} is no directory; several formats need one")
    return Path(output)


def _write(one: Format, paths: Sequence[Path], target: Path | None) -> bool:
    """Make one format and put it where it goes; whether that worked."""
    from fiafuzz.campaign.results import clean
    from reports.run_data import RunError

    try:
        if target is None:
            made = one.make(paths)
            assert isinstance(made, bytes)  # folders never get here
            sys.stdout.buffer.write(made)
            sys.stdout.buffer.flush()
            return True
        target.parent.mkdir(parents=True, exist_ok=True)
        one.save(paths, target)
    except BrokenPipeError:
        raise
    except RunError as error:
        click.echo(f"fiafuzz: {clean(error)}", err=True)
        return False
    except OSError as error:
        click.echo(f"fiafuzz: {clean(target or 'standard output')}: {error.strerror or error}", err=True)
        return False
    click.echo(f"{one.name} report {clean(target)}", err=True)
    return True
