"""fiafuzz fuzz: a campaign."""

from __future__ import annotations

import os
from typing import Any

import click
from click.core import ParameterSource

from fiafuzz.model.profiles import DEFAULT_PROFILE

from .durations import Duration
from .main import EXIT_CLEAN, EXIT_FINDINGS, EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_USAGE, Unavailable, UserError
from .options import known_profile

PHASES = ("replay", "sweep", "pairwise", "explore", "bulk")
REPORTS = ("html", "junit")
EXIT_OF = {
    "clean": EXIT_CLEAN,
    "findings": EXIT_FINDINGS,
    "interrupted": EXIT_INTERRUPTED,
    "nothing": EXIT_NOTHING,
    "broken": EXIT_INTERNAL,
}


def comma_list(known: tuple[str, ...]) -> Any:
    """A callback for options that take a comma-separated list of known words."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
        if value is None:
            return None
        words = tuple(w for w in value.split(",") if w)
        for word in words:
            if word not in known:
                raise click.BadParameter(f"{word!r} is not one of {', '.join(known)}")
        return words

    return check


@click.command()
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="NAME",
    callback=known_profile,
    help=f"Profile to hold for; may be repeated. [default: {DEFAULT_PROFILE}, or the one under which a planted fault shows]",
)
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="NAME",
    help="Backend to run; may be given several times ('fiafuzz backends' lists them). [default: cpu]",
)
@click.option("--max-time", type=Duration(), help="Stop after this time, for example 90s, 10m or 8h. [default: 60s unless -n is given]")
@click.option("-n", "max_cases", type=click.IntRange(1), help="Stop after this many cases.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    help="Seed of everything random. The same seed gives the same cases. [default: drawn and printed]",
)
@click.option(
    "--mode",
    default="all",
    show_default=True,
    type=click.Choice(["valid", "invalid", "boundary", "disputed", "all"]),
    help="Kind of calls.",
)
@click.option("--phases", metavar="LIST", callback=comma_list(PHASES), help=f"Comma-separated phases to run. [default: {','.join(PHASES)}]")
@click.option(
    "--select", multiple=True, metavar="GROUP|RULE", help="Only faults and boundaries of this parameter group or rule; may be repeated."
)
@click.option("--ignore", multiple=True, metavar="GROUP|RULE", help="Leave this parameter group or rule out; may be repeated.")
@click.option("-w", "--workers", default=1, show_default=True, type=click.IntRange(1, 256), help="Worker processes.")
@click.option("--corpus", default="corpus", show_default=True, metavar="DIR", help="Where old findings are read and new ones are kept.")
@click.option("--out", metavar="DIR", help="Run directory. [default: .fiafuzz/runs/<start>-<seed>]")
@click.option(
    "--report",
    "reports",
    metavar="LIST",
    callback=comma_list(REPORTS),
    help=f"Comma-separated reports to write into the run directory: {', '.join(REPORTS)}.",
)
@click.option("--standard", default="", metavar="NAME", help="Precision standard by its pinned name. [default: the fuzzer's own gate]")
@click.option("--time-limit", type=Duration(), default="10s", show_default=True, help="Time that one case may take.")
@click.option("--no-shrink", is_flag=True, help="Keep findings as they were found.")
@click.option("--json", "as_json", is_flag=True, help="Write the summary as one JSON object on standard output.")
@click.pass_context
def command(
    context: click.Context,
    profiles: tuple[str, ...],
    backends: tuple[str, ...],
    max_time: float | None,
    max_cases: int | None,
    seed: int | None,
    mode: str,
    phases: tuple[str, ...] | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    workers: int,
    corpus: str,
    out: str | None,
    reports: tuple[str, ...] | None,
    standard: str,
    time_limit: float,
    no_shrink: bool,
    as_json: bool,
) -> None:
    """Generate calls, predict what must happen, run a backend, judge, shrink what fails, and keep it in the corpus.

    Exit code 0: clean, 1: findings, 130: interrupted (what was found so far is kept).
    """
    from fiafuzz.campaign.plan import Plan, PlanError, check, new_seed

    from .backends import usable_backends

    check_standard(standard)
    chosen = usable_backends(backends or ("cpu",))
    profiles, mode = where_faults_show(
        chosen, profiles, mode, mode_given=context.get_parameter_source("mode") is not ParameterSource.DEFAULT
    )
    plan = Plan(
        backends=chosen,
        profiles=profiles or (DEFAULT_PROFILE,),
        seed=new_seed() if seed is None else seed,
        mode=mode,
        phases=phases or PHASES,
        select=select,
        ignore=ignore,
        max_time=max_time if max_time or max_cases else 60.0,
        max_cases=max_cases,
        workers=workers,
        corpus=corpus,
        out=out,
        standard=standard,
        time_limit=time_limit,
        shrink=not no_shrink,
    )
    try:
        check(plan)
    except PlanError as error:
        raise UserError(str(error)) from None
    raise click.exceptions.Exit(run(plan, reports or (), as_json))


def where_faults_show(backends: tuple[str, ...], profiles: tuple[str, ...], mode: str, *, mode_given: bool) -> tuple[tuple[str, ...], str]:
    """Profiles and mode of a run: what the user gave, else for planted faults those whose calls reach them, else the defaults."""
    from .backends import backend_data

    faults = [b["capabilities"] for b in backend_data() if b["name"] in backends and "room" in b["capabilities"]]
    if not profiles:
        profiles = tuple(dict.fromkeys(f["profile"] for f in faults)) or (DEFAULT_PROFILE,)
    if not mode_given and faults and all(f["mode"] == "disputed" for f in faults):
        mode = "disputed"
    return profiles, mode


def check_standard(name: str) -> None:
    """UserError when a precision standard is not known."""
    if name:
        from oracles.precision import STANDARDS

        if name not in STANDARDS:
            raise UserError(f"unknown standard {name!r}; known: {', '.join(STANDARDS)}")


def run(plan: Any, reports: tuple[str, ...], as_json: bool) -> int:
    """Run a plan, show it, write the reports; returns the exit code."""
    from fiafuzz.backends.protocol import BackendUnavailable
    from fiafuzz.campaign.corpus import CorpusError
    from fiafuzz.campaign.engine import run_campaign
    from fiafuzz.campaign.events import RunFinished
    from fiafuzz.campaign.rundir import RunDirError

    from .display import Display, on_terminal, summary_text

    summary: Any = None
    try:
        with Display(on_terminal(), quiet=False) as display:
            for event in run_campaign(plan):
                display.take(event)
                if isinstance(event, RunFinished):
                    summary = event.summary
    except BackendUnavailable as error:
        raise Unavailable(str(error)) from None
    except (CorpusError, RunDirError) as error:
        raise UserError(str(error)) from None
    if summary is None:
        return EXIT_INTERNAL
    failed = write_reports(summary.directory, reports)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(summary).decode())
    click.echo(summary_text(summary), err=True)
    for problem in failed:
        click.echo(f"fiafuzz: {problem}", err=True)
    return EXIT_USAGE if failed and summary.status == "clean" else EXIT_OF.get(summary.status, EXIT_INTERNAL)


def write_reports(directory: str, names: tuple[str, ...]) -> list[str]:
    """Write the reports of a run into its directory; returns what could not be written, a line each."""
    if not names:
        return []
    from fiafuzz.campaign.corpus import write_whole
    from reports.html import html_page
    from reports.junit import junit_xml
    from reports.run_data import RunError, read_run

    problems = []
    from pathlib import Path

    try:
        data = read_run(directory)
    except RunError as error:
        return [str(error)]
    for name in names:
        target = Path(os.path.join(directory, "report.html" if name == "html" else "junit.xml"))
        try:
            write_whole(target, html_page(data).encode() if name == "html" else junit_xml(data))
            click.echo(f"report {target}", err=True)
        except OSError as error:
            problems.append(f"{target}: {error.strerror or error}")
    return problems
