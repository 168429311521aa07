"""fiafuzz history: nightly runs compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .main import EXIT_CLEAN, EXIT_NOTHING, EXIT_USAGE, UserError, complain
from .options import json_option

RUNS = Path(".fiafuzz") / "runs"
EVENTS = "events.ndjson"
COLUMNS = ("new", "back", "known", "fixed", "flaky", "unseen")
MAX_LINES = 20


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN|FOLDER]...")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="RUN=BUILD",
    help="Name of the build that a run tested; may be repeated. [default: its --build, else versions of CANN, operators, torch_npu]",
)
@click.option("--last", type=click.IntRange(1), help="Show the last so many runs only; the earlier ones still count for what is new.")
@click.option("--html", "page", metavar="FILE", help="Also write a page with the trends.")
@json_option
def command(runs: tuple[str, ...], labels: tuple[str, ...], last: int | None, page: str | None, as_json: bool) -> None:
    """Compare RUN directories in the order of their start: findings that are new, back, known, fixed, flaky or not seen again,
    rules that changed sides, rules and pairs reached, cases a second.

    A FOLDER stands for all runs in it. [default: .fiafuzz/runs]

    Exit 0; 2 when a run cannot be read (the others are shown); 5 when there is none.
    """
    from reports.history import compare
    from reports.history_leg import read_record
    from reports.run_data import RunError

    records = []
    bad = 0
    for path in _paths(runs):
        try:
            records.append(read_record(path))
        except RunError as error:
            bad += 1
            complain(str(error))
    rows = compare(records, _labels(labels, records))
    if last is not None:
        kept = list(dict.fromkeys(row.run for row in rows))[-last:]
        rows = tuple(row for row in rows if row.run in kept)
    if page is not None:
        _write_page(page, rows)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({"fiafuzz_history": 1, "rows": rows}).decode())
    elif rows:
        click.echo(_table(rows))
    raise click.exceptions.Exit(EXIT_USAGE if bad else EXIT_CLEAN if rows else EXIT_NOTHING)


def _labels(given: Sequence[str], records: Sequence[Any]) -> dict[str, str]:
    """Build names by the path of the run."""
    found = {}
    for text in given:
        run, _, build = text.partition("=")
        if not run or not build:
            raise UserError(f"--label {text!r} is not of the form RUN=BUILD")
        meant = [r for r in records if r.name == run or r.path.resolve() == Path(run).resolve()]
        if not meant:
            raise UserError(f"--label names {run}, which is not among the runs")
        found.update({str(r.path): build for r in meant})
    return found


def _paths(given: Sequence[str]) -> list[Path]:
    """The run directories meant: given ones, and those in folders of runs; each once."""
    found: dict[Path, Path] = {}
    for text in given or (str(RUNS),):
        path = Path(text)
        inside: list[Path] = []
        if path.is_dir() and not (path / EVENTS).exists():
            try:
                inside = sorted(p for p in path.iterdir() if (p / EVENTS).is_file())
            except OSError as error:
                raise UserError(f"{path}: {error.strerror or error}") from None
        if not given and not inside and not (path / EVENTS).exists():
            continue
        for run in inside or [path]:
            found.setdefault(run.resolve(), run)
    if not found:
        click.echo(f"fiafuzz: no run in {RUNS}", err=True)
    return list(found.values())


def _write_page(page: str, rows: Any) -> None:
    from fiafuzz.campaign.whole_files import write_whole
    from reports.history_page import history_page

    try:
        write_whole(Path(page), history_page(rows).encode())
    except OSError as error:
        raise UserError(f"{page}: {error.strerror or error}") from None
    click.echo(f"report {page}", err=True)


def _table(rows: Any) -> str:
    """The history for people: a table, and below it what changed in each run."""
    from fiafuzz.campaign.results import clean

    head = ["build", "started", "backend", "profile", "status", *COLUMNS, "flips", "rules", "pairs", "cases", "a second"]
    body = [
        [
            clean(row.build, 48),
            row.started[:16].replace("T", " "),
            clean(row.backend, 40),
            clean(row.profile, 20),
            clean(row.status, 20),
            *(str(len(getattr(row, mark))) for mark in COLUMNS),
            str(len(row.flips)),
            f"{row.rules_reached}/{row.rules}",
            f"{100 * row.pairs_met / row.pairs:.1f} %" if row.pairs else "-",
            str(row.cases),
            f"{row.rate:.1f}",
        ]
        for row in rows
    ]
    text = [clean(line).replace("\n", " ") for line in _aligned(head, body, left=5)]
    for row in rows:
        changes = _changes(row)
        if changes:
            text += ["", clean(f"{row.build} ({row.run}, {row.backend}, {row.profile})").replace("\n", " "), *changes]
    return "\n".join(text)


def _changes(row: Any) -> list[str]:
    from fiafuzz.campaign.results import clean

    lines = []
    for mark in COLUMNS:
        found = getattr(row, mark)
        for line in found[:MAX_LINES]:
            told = f" ({line.rule})" if line.rule else ""
            issue = f", {line.issue}" if line.issue else ""
            lines.append(f"  {mark:<7} {line.id} {line.title}{told}{issue}")
            if mark in ("new", "back") and line.reproduce:
                lines.append(f"          {line.reproduce}")
        if len(found) > MAX_LINES:
            lines.append(f"  {mark:<7} and {len(found) - MAX_LINES} more (--json lists all)")
    for flip in row.flips[:MAX_LINES]:
        lines.append(f"  flip    {flip.rule} {flip.title}: {flip.before} in {flip.since}, now {flip.after}")
    if len(row.flips) > MAX_LINES:
        lines.append(f"  flip    and {len(row.flips) - MAX_LINES} more (--json lists all)")
    return [clean(line).replace("\n", " ") for line in lines]


def _aligned(head: list[str], body: list[list[str]], left: int) -> list[str]:
    """Columns under each other: the first ``left`` flush left, numbers flush right."""
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    return [
        "  ".join(cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths))).rstrip()
        for line in (head, *body)
    ]
