"""fiafuzz explain: what a verdict code or a rule means and what to do."""

from __future__ import annotations

import click

from .main import UserError
from .options import nearest


@click.command()
@click.argument("code", required=False)
def command(code: str | None) -> None:
    """Tell what a verdict code (F201) or a rule (FIA-PA-007) means and what to do. Without CODE: list the verdict codes."""
    from fiafuzz.campaign.codes import CODES

    if code is None:
        for name, record in CODES.items():
            click.echo(f"{name}  {record.title}")
        return
    wanted = code.upper()
    if wanted in CODES:
        record = CODES[wanted]
        click.echo(f"{wanted}  {record.title}\n\nMeaning: {record.meaning}\n\nWhat to do: {record.advice}")
        return
    from oracles.constraints.catalogue import rule_by_id

    from .constraints import full_data, rule_text

    if wanted in rule_by_id():
        click.echo(rule_text(full_data(rule_by_id()[wanted])))
        return
    raise UserError(f"unknown code {code!r};{nearest(wanted, [*CODES, *rule_by_id()])} 'fiafuzz explain' lists the verdict codes")
