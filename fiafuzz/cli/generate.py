"""fiafuzz generate: cases as NDJSON on standard output."""

from __future__ import annotations

import secrets
import sys

import click

from fiafuzz.model.profiles import DEFAULT_PROFILE

from .main import EXIT_NOTHING, UserError
from .options import profile_option


@click.command()
@profile_option
@click.option("-n", "count", default=10, show_default=True, type=click.IntRange(min=0), help="How many cases.")
@click.option(
    "--mode",
    default="valid",
    show_default=True,
    type=click.Choice(["valid", "invalid", "boundary", "disputed", "all"]),
    help="valid calls; calls with a single fault; calls at the edge of a limit; calls on which documents and source disagree.",
)
@click.option("--rule", metavar="ID", help="Only faults or boundaries of this rule.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Seed (drawn and printed when left out).")
@click.option("--bare", is_flag=True, help="Print bare cases instead of records with mode, rule and fault.")
def command(profile: str | None, count: int, mode: str, rule: str | None, seed: int | None, bare: bool) -> None:
    """Print generated cases, one JSON object a line. The same seed gives the same cases."""
    import msgspec

    from fiafuzz.model.case import encode_case
    from oracles.constraints.catalogue import rule_by_id
    from strategies.cases import generate
    from strategies.plan import Infeasible

    if seed is None:
        seed = secrets.randbits(32)
        click.echo(f"seed {seed}", err=True)
    if rule is not None and rule not in rule_by_id():
        raise UserError(f"unknown rule {rule!r} (fiafuzz constraints list names them)")
    name = profile or DEFAULT_PROFILE
    written = 0
    try:
        for item in generate(name, mode, count, seed, rule=rule):
            if bare:
                sys.stdout.write(encode_case(item.case).decode() + "\n")
            else:
                record = {
                    "name": f"{name}-{mode}-{seed}-{written}",
                    "profile": name,
                    "mode": item.mode,
                    "rule": item.rule,
                    "side": item.side,
                    "fault": item.fault,
                    "case": msgspec.Raw(encode_case(item.case)),
                }
                sys.stdout.write(msgspec.json.encode({k: v for k, v in record.items() if v is not None}).decode() + "\n")
            written += 1
    except Infeasible as error:
        raise UserError(str(error)) from None
    if count and not written:
        raise click.exceptions.Exit(EXIT_NOTHING)
