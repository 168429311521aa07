"""fiafuzz import: the vendor's case files as cases."""

from __future__ import annotations

import csv
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import click

from fiafuzz.model.profiles import DEFAULT_PROFILE, PROFILES

from .main import EXIT_NOTHING, UserError, complain
from .options import Reader, profile_option


@click.command()
@click.argument("file")
@click.option(
    "--from",
    "form",
    required=True,
    type=click.Choice(["ut-csv", "atk", "rdv", "jsonl"]),
    help="ut-csv: unit-test table; atk: ATK case file; rdv: tiny_rdv case; jsonl: records with a case field.",
)
@profile_option
@click.option("-o", "--output", "target", metavar="OUT.jsonl", help="Write here instead of standard output.")
def command(file: str, form: str, profile: str | None, target: str | None) -> None:
    """Turn FILE into cases, one JSON object a line. What could not be mapped is named row by row on stderr."""
    import msgspec

    chosen = PROFILES[profile or DEFAULT_PROFILE]
    mapped = unmapped = 0
    lines: list[bytes] = []
    for record, complaint in _jsonl(file, profile) if form == "jsonl" else _vendor(file, form, chosen):
        if complaint is not None:
            unmapped += 1
            complain(complaint, 1000)
            continue
        mapped += 1
        line = msgspec.json.encode(record) + b"\n"
        if target is None:
            sys.stdout.buffer.write(line)
        else:
            lines.append(line)
    if target is not None:
        _write(target, lines)
    click.echo(f"{mapped} cases, {unmapped} rows not mapped", err=True)
    if not mapped:
        raise click.exceptions.Exit(EXIT_NOTHING)


def _vendor(file: str, form: str, chosen: Any) -> Iterator[tuple[dict[str, Any], str | None]]:
    import msgspec

    from fiafuzz.campaign.imports import FORMATS, Unmapped
    from fiafuzz.model.case import encode_case

    try:
        for item in FORMATS[form](file, chosen.api, chosen.product):
            if isinstance(item, Unmapped):
                yield {}, f"{item.where}: {item.name}: {item.reason}"
                continue
            record: dict[str, Any] = {
                "name": item.name,
                "where": item.where,
                "profile": chosen.name,
                "case": msgspec.Raw(encode_case(item.case)),
            }
            if item.case.api != chosen.api:
                del record["profile"]
            if item.expects:
                record["expected"] = {"verdict": item.expects}
            if item.remarks:
                record["remarks"] = list(item.remarks)
            yield record, None
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        text = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(text if text.startswith(file) else f"{file}: {text}") from None


def _jsonl(file: str, profile: str | None) -> Iterator[tuple[dict[str, Any], str | None]]:
    import msgspec

    from fiafuzz.model.case import encode_case

    reader = Reader(file)
    for record in reader:
        found = {**record.extra, "name": record.name, "case": msgspec.Raw(encode_case(record.case))}
        if profile is not None:
            found["profile"] = profile
        yield found, None
    reader.finish()


def _write(target: str, lines: list[bytes]) -> None:
    folder = os.path.dirname(os.path.abspath(target))
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".fiafuzz-")
        with os.fdopen(handle, "wb") as out:
            out.writelines(lines)
        os.replace(temporary, target)
    except OSError as error:
        raise UserError(f"{target}: {error.strerror or error}") from None
