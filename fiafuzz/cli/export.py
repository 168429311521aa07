"""fiafuzz export: cases as programs, tests and case files for people without fiafuzz."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fiafuzz.model.profiles import PROFILES

from .main import EXIT_CLEAN, EXIT_NOTHING, EXIT_USAGE, UserError, complain
from .options import Reader, profile_option

if TYPE_CHECKING:
    from fiafuzz.campaign.exports import Exported, Item

FORMS = ("python", "cpp", "pytest", "atk", "ut-csv")


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="ID|FILE...")
@click.option(
    "--as",
    "form",
    default="python",
    show_default=True,
    type=click.Choice(FORMS),
    help="python: a standalone torch_npu script; cpp: a standalone aclnn program; pytest: a test file that uses fiafuzz; "
    "atk: an ATK case file; ut-csv: a table of the operator's unit tests.",
)
@click.option("-o", "--output", "target", metavar="PATH", help="Write to this file, or, for several programs, into this directory.")
@click.option("--name", help="Which record of the files, when they hold several.")
@click.option("--corpus", default="corpus", show_default=True, metavar="DIR", help="The corpus that IDs are looked up in.")
@profile_option
def command(what: tuple[str, ...], form: str, target: str | None, name: str | None, corpus: str, profile: str | None) -> None:
    """Hand over kept entries (by ID or file) or cases of files ("-" is standard input) in a form that needs no fiafuzz.

    Scripts and programs make the call with the very same tensors, print what the operator answered and compare it with what it must
    answer: exit code 0 when it does that, 1 when not, 2 when it cannot be told. python, cpp and pytest give one file a case; atk and
    ut-csv take all cases into one. What a form cannot say is told on stderr, and refused with exit code 2 where leaving it out would
    change the call. Tensors that are too large for a script alone go to a file beside it, for which -o is needed.
    """
    from fiafuzz.campaign.exports import TABLES

    problems: list[str] = []
    items = [item for item in _items(what, corpus, profile, problems) if name is None or item.name == name]
    for text in problems[:20]:
        complain(text)
    if not items:
        if problems:
            raise click.exceptions.Exit(EXIT_USAGE)
        click.echo("fiafuzz: no case to export" + (f" is called {name!r}" if name else ""), err=True)
        raise click.exceptions.Exit(EXIT_NOTHING)
    alone = [item for item in items if not _takes_others(item, form)]
    refused = len(items) - len(alone)
    if alone:
        refused += _tables(alone, form, target) if form in TABLES else _programs(alone, form, target)
    raise click.exceptions.Exit(EXIT_USAGE if refused or problems else EXIT_CLEAN)


def _items(what: tuple[str, ...], corpus: str, profile: str | None, problems: list[str]) -> Iterator[Item]:
    from fiafuzz.campaign.corpus import BadEntry, Corpus, CorpusError, Entry, read_entry
    from fiafuzz.campaign.exports import Item
    from fiafuzz.model.profiles import profile_for

    def of_entry(entry: Entry, where: str) -> Item:
        if profile is None and entry.profile not in PROFILES:
            raise UserError(f"{where}: unknown profile {entry.profile!r:.60} (at $.profile)")
        return Item(entry.id, entry.case, profile or entry.profile, entry)

    for word in what:
        if word != "-" and not os.path.exists(word):
            try:
                entry = Corpus(corpus).find(word)
            except CorpusError as error:
                raise UserError(str(error)) from None
            if entry is None:
                raise UserError(f"{word}: neither a file nor an entry of {corpus}")
            yield of_entry(entry, word)
            continue
        if word.endswith(".json"):
            kept = read_entry(Path(word))
            if not isinstance(kept, BadEntry):
                yield of_entry(kept, word)
                continue
        reader = Reader(word)
        for record in reader:
            called = os.path.basename(record.name) if record.name == record.where else record.name
            yield Item(called, record.case, profile or record.profile or profile_for(record.case.api, record.case.product).name)
        if reader.failed:
            problems.append(f"{word}: {reader.bad} unreadable record{'s' * (reader.bad != 1)}")


def _takes_others(item: Item, form: str) -> bool:
    """Whether a finding shows only after other calls in the same process, which no form can say; it is told."""
    from fiafuzz.campaign.results import clean

    entry = item.entry
    if entry is None or not entry.before:
        return False
    calls = f"{len(entry.before)} other call{'s' * (len(entry.before) != 1)}"
    text = f"it shows only after {calls} in the same process, and {form} makes the call alone; to run them all: {entry.reproduce}"
    click.echo(f"fiafuzz: {clean(item.title, 80)}: {clean(text)}", err=True)
    return True


# ---- one file for all cases -----------------------------------------------------------------------


def _tables(items: list[Item], form: str, target: str | None) -> int:
    """Write all cases into one file; returns how many were refused."""
    from fiafuzz.campaign.exports import export_table
    from fiafuzz.campaign.results import clean

    text, written, refused, remarks = export_table(form, items)
    for line in remarks:
        click.echo(f"note: {clean(line)}", err=True)
    for item, line in refused:
        click.echo(f"fiafuzz: {clean(item.title, 80)}: {clean(line)}", err=True)
    if not written:
        return len(refused)
    if target is None:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
    else:
        if os.path.isdir(target):
            raise UserError(f"{target}: is a directory; {form} makes one file")
        _write(Path(target), text.encode())
    click.echo(f"{written} cases, {len(refused)} refused", err=True)
    return len(refused)


# ---- one file a case ------------------------------------------------------------------------------


def _programs(items: list[Item], form: str, target: str | None) -> int:
    """Write one file a case; returns how many were refused."""
    from fiafuzz.campaign.exports import PROGRAMS, CannotExport
    from fiafuzz.campaign.results import clean

    program, folder = PROGRAMS[form], _folder(items, form, target)
    refused = 0
    names: set[str] = set()
    for item in items:
        if folder is not None:
            path = folder / _unused(program.file_of(item), item, names)
        else:
            path = Path(target) if target is not None else Path(program.file_of(item))
        try:
            found = program.export(item, path.name, beside=target is not None)
        except CannotExport as error:
            refused += 1
            click.echo(f"fiafuzz: {clean(item.title, 80)}: {clean(error)}", err=True)
            continue
        for line in found.remarks:
            click.echo(f"note: {clean(item.title, 80)}: {clean(line)}", err=True)
        if target is None:
            click.echo(found.text, nl=False)
        else:
            _write_program(path, found)
    if folder is not None:
        click.echo(f"{len(items) - refused} cases in {folder}, {refused} refused", err=True)
    return refused


def _folder(items: list[Item], form: str, target: str | None) -> Path | None:
    """The directory that the files go to, made if need be; None for a single file."""
    if target is None:
        if len(items) > 1:
            raise UserError(f"{len(items)} cases: {form} makes one file for each; give -o DIRECTORY, or choose one with --name")
        return None
    if len(items) == 1 and not target.endswith(os.sep) and not os.path.isdir(target):
        return None
    try:
        Path(target).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{target}: {'not a directory' if os.path.exists(target) else error.strerror or error}") from None
    return Path(target)


def _unused(file: str, item: Any, names: set[str]) -> str:
    """A file name that no earlier case of this run has."""
    stem, extension = os.path.splitext(file)
    found, number = file, 1
    while found in names:
        found = f"{stem}_{item.case.digest}{f'_{number}' if number > 1 else ''}{extension}"
        number += 1
    names.add(found)
    return found


def _write_program(path: Path, found: Exported) -> None:
    if found.side_name:
        _write(path.with_name(found.side_name), found.side)
    _write(path, found.text.encode())
    click.echo(f"{path}" + (f" with {path.with_name(found.side_name)} beside it" if found.side_name else ""), err=True)


def _write(path: Path, data: bytes) -> None:
    from fiafuzz.campaign.whole_files import write_whole

    try:
        write_whole(path, data)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
