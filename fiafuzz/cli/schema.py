"""fiafuzz schema: the published JSON schemas."""

from __future__ import annotations

import click

from .main import UserError
from .options import nearest


@click.command()
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--list", "only_list", is_flag=True, help="List the names.")
def command(name: str | None, only_list: bool) -> None:
    """Print a published JSON schema: of the events of a run, of a case, of a corpus entry, ...

    "tables" describes the columns of the data frames and of the CSV and Parquet files.
    """
    from reports.schemas import published, text

    known = published()
    if only_list or name is None:
        for one, (version, _) in known.items():
            click.echo(f"{one:<8} version {version}")
        return
    if name not in known:
        raise UserError(f"unknown schema {name!r};{nearest(name, known)} known: {', '.join(known)}")
    click.echo(text(name), nl=False)
