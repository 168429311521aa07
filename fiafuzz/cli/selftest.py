"""fiafuzz selftest: hunt the planted faults and print the kill table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .durations import Duration, in_words
from .main import EXIT_CLEAN, EXIT_FINDINGS, EXIT_INTERRUPTED, Unavailable, UserError
from .options import json_option, nearest

if TYPE_CHECKING:
    from fiafuzz.backends.faults import Fault
    from fiafuzz.campaign.selftest import Kill, Totals


@click.command()
@click.option("--fault", "names", multiple=True, metavar="NAME", help="Planted fault to hunt (repeatable); all without it.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, (1 << 64) - 1), help="Seed of every hunt.")
@click.option("--max-time", type=Duration(), default="60s", show_default=True, help="Time to find one fault in.")
@json_option
def command(names: tuple[str, ...], seed: int, max_time: float, as_json: bool) -> None:
    """Hunt each planted fault with a short campaign and print which were found, how soon and how small they became.

    Exit 0 when every fault is found, 1 when one survives. 'fiafuzz backends --all' lists the faults.
    """
    from fiafuzz.campaign.schedulers.protocol import BackendRefused, SchedulerError
    from fiafuzz.campaign.selftest import SelfTest, totals
    from fiafuzz.campaign.stopping import StopFlag, signals_stop

    faults = _faults(names)
    stop = StopFlag()
    kills: list[Kill] = []
    width = max(len(f.name) for f in faults)
    if not as_json:
        click.echo(f"{'fault':<{width}}  found  code   cases  seconds  shrunk  needs  runs")
    try:
        with signals_stop(stop), SelfTest(seed, max_time, stop=lambda: bool(stop)) as test:
            for kill in test.hunts(faults):
                kills.append(kill)
                if not as_json:
                    click.echo(_row(kill, width))
    except BackendRefused as error:
        reason = " ".join(str(error).split())
        raise Unavailable(f"the cpu backend cannot run here: {reason}; 'fiafuzz doctor' tells the next step") from None
    except SchedulerError as error:
        raise click.ClickException(" ".join(str(error).split())) from None
    result = totals(kills)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({"seed": seed, "faults": [_data(k) for k in kills]}).decode())
    else:
        click.echo(_summary(result))
    if stop:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
    raise click.exceptions.Exit(EXIT_FINDINGS if result.survivors else EXIT_CLEAN)


def _faults(names: tuple[str, ...]) -> tuple[Fault, ...]:
    from fiafuzz.backends.faults import all_faults
    from fiafuzz.campaign.selftest import chosen_faults

    known = [f.name for f in all_faults()]
    for name in names:
        if name.removeprefix("faulty:") not in known:
            raise UserError(f"unknown fault {name!r};{nearest(name, known)} 'fiafuzz backends --all' lists them")
    return chosen_faults(names)


def _row(kill: Kill, width: int) -> str:
    found = "yes" if kill.confirmed else "flaky" if kill.found else "NO"
    shrunk = "-" if kill.shrunk is None else str(kill.shrunk)
    return (
        f"{kill.name:<{width}}  {found:<5}  {kill.code or '-':<5} {kill.cases:>6} {kill.seconds:>8.2f} {shrunk:>7} "
        f"{kill.interaction:>6} {kill.shrink_runs:>5}"
    )


def _summary(result: Totals) -> str:
    lines = [f"{result.found} of {result.faults} planted faults found"]
    if result.found and result.median_seconds is not None:
        lines.append(
            f"median: {result.median_cases:g} cases and {in_words(result.median_seconds)} to find, {result.median_shrunk:g} fields "
            f"in the shrunk case ({result.excess:+g} beyond what the fault needs); at most {result.most_runs} shrink runs"
        )
    if result.survivors:
        lines.append(f"survivors: {', '.join(result.survivors)}")
    return "\n".join(lines)


def _data(kill: Kill) -> dict[str, Any]:
    """A kill as JSON data. ``found`` means found and confirmed; ``shrunk`` is the number of fields."""
    from fiafuzz.model.case import case_to_dict

    return {
        "name": kill.name,
        "title": kill.title,
        "group": kill.room,
        "kind": kill.kind,
        "found": kill.found and kill.confirmed,
        "code": kill.code,
        "expected_code": kill.expect,
        "cases": kill.cases,
        "seconds": kill.seconds,
        "shrunk": kill.shrunk,
        "interaction": kill.interaction,
        "shrink_runs": kill.shrink_runs,
        "shrink_seconds": kill.shrink_seconds,
        "differs": list(kill.differs),
        "case": None if kill.case is None else case_to_dict(kill.case),
        "text": kill.text,
    }
