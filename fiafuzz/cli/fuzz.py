"""fiafuzz fuzz: a campaign."""

from __future__ import annotations

import os
import sys
from typing import Any

import click
from click.core import ParameterSource

from fiafuzz.model.profiles import DEFAULT_PROFILE
from reports.formats import FORMATS

from .durations import Duration
from .main import (
    EXIT_CLEAN,
    EXIT_FINDINGS,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_NOTHING,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    Unavailable,
    UserError,
    complain,
)
from .options import known_profile
from .resuming import check_examples, memory_options, past_of, plan_of
from .streams import drop
from .worker_options import check_ray, worker_options, workers_of

PHASES = ("replay", "sweep", "pairwise", "explore", "sequences", "bulk")
REPORTS = tuple(FORMATS)
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
    help=f"Profile to hold for; may be repeated. [default: {DEFAULT_PROFILE}, or that of the device or of a planted fault]",
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
    "--sequences",
    type=click.IntRange(2, 32),
    metavar="N",
    help="Make calls in groups of N, each group one after the other in one process: the phase sequences, which takes what the phases "
    "before it leave. What goes wrong only after other calls is a finding (F304).",
)
@click.option(
    "--select", multiple=True, metavar="GROUP|RULE", help="Only faults and boundaries of this parameter group or rule; may be repeated."
)
@click.option("--ignore", multiple=True, metavar="GROUP|RULE", help="Leave this parameter group or rule out; may be repeated.")
@worker_options
@click.option("--corpus", default="corpus", show_default=True, metavar="DIR", help="Where old findings are read and new ones are kept.")
@click.option("--build", default="", metavar="NAME", help="Name of the build that is tested, for 'fiafuzz history'.")
@click.option("--out", metavar="DIR", help="Run directory. [default: .fiafuzz/runs/<start>-<seed>]")
@click.option(
    "--report",
    "reports",
    metavar="LIST",
    callback=comma_list(REPORTS),
    help=f"Comma-separated reports to write into the run directory: {', '.join(REPORTS)}. github is printed on standard output as well.",
)
@click.option(
    "--events",
    "events_to",
    metavar="FILE|-",
    help='Also write each event to FILE as it comes, one JSON object a line; "-" is standard output. [see: fiafuzz schema events]',
)
@click.option("--standard", default="", metavar="NAME", help="Precision standard by its pinned name. [default: the fuzzer's own gate]")
@click.option("--time-limit", type=Duration(), default="10s", show_default=True, help="Time that one case may take.")
@click.option("--no-shrink", is_flag=True, help="Keep findings as they were found.")
@memory_options
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
    sequences: int | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    workers: int | None,
    devices: tuple[str, ...],
    ray: str | None,
    corpus: str,
    build: str,
    out: str | None,
    reports: tuple[str, ...] | None,
    events_to: str | None,
    standard: str,
    time_limit: float,
    no_shrink: bool,
    resume: str | None,
    examples: str,
    baseline: str | None,
    baseline_update: bool,
    baseline_prune: bool,
    as_json: bool,
) -> None:
    """Generate calls, predict what must happen, run a backend, judge, shrink what fails, and keep it in the corpus.

    Exit code 0: clean, 1: findings, 130: interrupted (what was found so far is kept; --resume goes on). Findings that corpus/known.toml or
    the baseline covers are told and do not fail the run.
    """
    from fiafuzz.campaign.plan import Plan, PlanError, check, new_seed

    from .backends import usable_backends

    check_standard(standard)
    check_reports(reports or (), events_to, as_json)
    check_ray(ray)
    if resume is not None:
        raise click.exceptions.Exit(go_on(context, resume, reports or (), as_json, events_to))
    check_examples(examples)
    chosen = usable_backends(backends or ("cpu",))
    own_profile = not profiles
    profiles, mode = where_faults_show(
        chosen, profiles, mode, mode_given=context.get_parameter_source("mode") is not ParameterSource.DEFAULT
    )
    plan = Plan(
        backends=chosen,
        profiles=profiles or (DEFAULT_PROFILE,),
        seed=new_seed() if seed is None else seed,
        mode=mode,
        phases=phases or PHASES,
        sequences=sequences or 0,
        select=select,
        ignore=ignore,
        max_time=max_time if max_time or max_cases else 60.0,
        max_cases=max_cases,
        workers=workers_of(workers, devices, ray),
        devices=devices,
        ray=ray,
        own_profile=own_profile,
        corpus=corpus,
        build=build,
        out=out,
        standard=standard,
        time_limit=time_limit,
        shrink=not no_shrink,
        examples=examples,
        baseline=baseline,
        baseline_update=baseline_update,
        baseline_prune=baseline_prune,
    )
    try:
        check(plan)
    except PlanError as error:
        raise UserError(str(error)) from None
    raise click.exceptions.Exit(run(plan, reports or (), as_json, events_to))


def go_on(context: click.Context, directory: str, reports: tuple[str, ...], as_json: bool, events_to: str | None) -> int:
    """Go on with a run that was killed or interrupted; returns the exit code. One that has finished is told, with its result."""
    from .backends import usable_backends

    past = past_of(directory)
    plan = plan_of(context, past)
    if past.complete:
        click.echo(f"{directory}: this run has finished; nothing is left to run", err=True)
        return show_end(past.finished, directory, reports, as_json, events_to)
    check_examples(plan.examples)
    usable_backends(plan.backends)
    return run(plan, reports, as_json, events_to, past)


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


def check_reports(names: tuple[str, ...], events_to: str | None, as_json: bool) -> None:
    """UserError or Unavailable for reports that could not be written: better before the run than after it."""
    from reports.formats import MissingExtra

    if as_json and events_to == "-":
        raise UserError("--json and --events - both write to standard output; the last event has the summary")
    for name in names:
        try:
            FORMATS[name].check()
        except MissingExtra as error:
            raise Unavailable(str(error)) from None


def run(plan: Any, reports: tuple[str, ...], as_json: bool, events_to: str | None = None, past: Any = None) -> int:
    """Run a plan, show it, write the reports; returns the exit code."""
    from fiafuzz.backends.protocol import BackendUnavailable
    from fiafuzz.campaign.baseline import BaselineError
    from fiafuzz.campaign.corpus import CorpusError
    from fiafuzz.campaign.engine import run_campaign
    from fiafuzz.campaign.events import RunFinished
    from fiafuzz.campaign.known import KnownError
    from fiafuzz.campaign.resume import ResumeError
    from fiafuzz.campaign.rundir import RunDirError

    from .display import Display, on_terminal
    from .event_sink import EventSink

    summary: Any = None
    try:
        with Display(on_terminal(), quiet=False) as display, EventSink(events_to) as sink:
            for event in run_campaign(plan, past=past):
                sink.take(event)
                display.take(event)
                if isinstance(event, RunFinished):
                    summary = event.summary
    except BackendUnavailable as error:
        raise Unavailable(str(error)) from None
    except (BaselineError, CorpusError, KnownError, ResumeError, RunDirError) as error:
        raise UserError(str(error)) from None
    if summary is None:
        return EXIT_INTERNAL
    return show_end(summary, summary.directory, reports, as_json, events_to)


def show_end(summary: Any, directory: str, reports: tuple[str, ...], as_json: bool, events_to: str | None) -> int:
    """Write the reports of a run that is over and show its summary; returns the exit code."""
    from .display import summary_text

    failed = write_reports(directory, reports, print_on_stderr=as_json or events_to == "-")
    if as_json:
        import msgspec

        try:
            click.echo(msgspec.json.encode(summary).decode())
        except BrokenPipeError:
            raise
        except OSError as error:
            drop(sys.stdout)
            failed.append(f"the summary cannot be written to standard output: {error.strerror or error}")
    click.echo(summary_text(summary), err=True)
    for problem in failed:
        complain(problem)
    if summary.refused:
        return EXIT_UNAVAILABLE
    return EXIT_USAGE if failed and summary.status == "clean" else EXIT_OF.get(summary.status, EXIT_INTERNAL)


def write_reports(directory: str, names: tuple[str, ...], *, print_on_stderr: bool = False) -> list[str]:
    """Write the reports of a run into its directory, and print those that are meant to be; returns what could not be written, a
    line each. A report that cannot be made never hides the result of the run."""
    from pathlib import Path

    problems = []
    for name in names:
        made = FORMATS[name]
        target = Path(os.path.join(directory, made.file))
        try:
            made.save([Path(directory)], target)
            if made.shown:
                click.echo(target.read_bytes(), nl=False, err=print_on_stderr)
            click.echo(f"report {target}", err=True)
        except OSError as error:
            problems.append(f"{target}: {error.strerror or error}")
        except Exception as error:
            problems.append(f"report {name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return problems
