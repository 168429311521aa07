"""fiafuzz shrink: make a failing case as small and plain as possible."""

from __future__ import annotations

import sys

import click

from .durations import Duration, in_words
from .main import EXIT_NOTHING, Unavailable, UserError
from .options import one_record, profile_option


@click.command()
@click.argument("file")
@click.option("--backend", default="cpu", show_default=True, metavar="NAME", help="Backend on which the case fails.")
@profile_option
@click.option("--name", help="Which record of FILE, when it holds several.")
@click.option("--runs", default=150, show_default=True, type=click.IntRange(1), help="Runs of the backend that the shrink may take.")
@click.option("--time-limit", type=Duration(), default="10s", show_default=True, help="Time that one case may take.")
def command(file: str, backend: str, profile: str | None, name: str | None, runs: int, time_limit: float) -> None:
    """Shrink the failing case in FILE and print the smallest case that still fails in the same way, as JSON.

    Exit 5 when the case does not fail on this backend.
    """
    from fiafuzz.backends.protocol import BackendUnavailable
    from fiafuzz.campaign.schedulers.local import LocalScheduler
    from fiafuzz.campaign.schedulers.protocol import BackendRefused, SchedulerError
    from fiafuzz.campaign.shrink import shrink
    from fiafuzz.campaign.triage import describe, family
    from fiafuzz.campaign.verdict import decide, error_of, foreseen
    from fiafuzz.campaign.wire import Job, Setup
    from fiafuzz.model.case import Case, encode_case
    from fiafuzz.model.profiles import profile_for
    from oracles.constraints.predict import predict

    from .backends import usable_backends

    backend, *others = usable_backends((backend,))
    if others:
        raise UserError(f"name one backend, not {', '.join((backend, *others))}")
    record = one_record(file, name)
    chosen = profile or record.profile or profile_for(record.case.api, record.case.product).name
    scheduler = LocalScheduler(Setup(backend, chosen), time_limit=time_limit)
    number = 0
    relation: str | None = None

    def outcome(case: Case) -> tuple[str, str | None, str | None, str]:
        nonlocal number
        number += 1
        expected = foreseen(predict(case, chosen))
        job = Job(number, case, judge=expected.verdict == "accept", runs=2, relations=expected.verdict == "accept", relation=relation)
        result = scheduler.run(job, time_limit=time_limit).result
        verdict = decide(expected, result)
        return (family(verdict.code or "") if verdict.failed else "", verdict.rule, verdict.text, error_of(result))

    try:
        scheduler.start()
        wanted = outcome(record.case)
        if not wanted[0]:
            more = f": {wanted[2]}" if wanted[2] else ""
            if record.extra.get("before"):
                more += "; alone, that is: shrink leaves the calls out that its file has before it (replay makes them)"
            click.echo(f"fiafuzz: {record.where}: does not fail on {backend} ({chosen}){more}", err=True)
            raise click.exceptions.Exit(EXIT_NOTHING)
        relation = wanted[1] if wanted[0] == "F106" else None

        def still_fails(case: Case) -> bool:
            found = outcome(case)
            return (found[0], found[1], found[3]) == (wanted[0], wanted[1], wanted[3])

        found = shrink(record.case, still_fails, chosen, max_runs=runs)
    except (BackendUnavailable, BackendRefused) as error:
        raise Unavailable(" ".join(str(error).split())) from None
    except SchedulerError as error:
        raise UserError(" ".join(str(error).split())) from None
    finally:
        scheduler.close()
    sys.stdout.write(encode_case(found.case).decode() + "\n")
    click.echo(f"{wanted[0] if wanted[0] != 'values' else 'wrong values'}: {wanted[2]}", err=True)
    for line in describe(found.case):
        click.echo(f"  differs in {line}", err=True)
    cut = " (cut short by the budget)" if found.cut_short else ""
    click.echo(f"{found.runs} runs in {in_words(found.seconds)}{cut}", err=True)
