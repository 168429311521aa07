"""fiafuzz coverage: scene factors, pairs and triples that suites reach, side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import click

from fiafuzz.model.profiles import DEFAULT_PROFILE

from .main import EXIT_NOTHING, EXIT_USAGE, UserError
from .options import Reader, json_option, profile_option


@click.command()
@click.argument("suites", nargs=-1, metavar="RUN|FILE...")
@profile_option
@click.option("--every", is_flag=True, help="Count every case, not only those that are predicted to be accepted.")
@click.option("--missing", default=0, show_default=True, type=click.IntRange(0), help="Name this many feasible pairs that were not met.")
@click.option("--generate", "count", type=click.IntRange(1), help="Measure this many freshly generated valid cases beside the suites.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**64 - 1), help="Seed for --generate.")
@json_option
def command(suites: tuple[str, ...], profile: str | None, every: bool, missing: int, count: int | None, seed: int, as_json: bool) -> None:
    """Count the scene factor words, pairs and triples that each RUN directory or FILE of cases reaches.

    The denominators are the combinations that a valid call of the profile can have. Several suites are printed side by side.
    """
    from reports.tway import Coverage
    from strategies.cases import generate
    from strategies.plan import Infeasible

    name = profile or DEFAULT_PROFILE
    if not suites and count is None:
        raise UserError("name a run directory or a file of cases, or use --generate N")
    bad = 0
    found: list[tuple[str, Any]] = []
    try:
        for suite in suites:
            coverage = Coverage(name)
            if os.path.isdir(suite):
                for words in _words_of_run(suite, name, every):
                    coverage.add(words)
            else:
                reader = Reader(suite)
                for words in _words_of_file(reader, name, every):
                    coverage.add(words)
                bad += reader.bad
            found.append((suite, coverage))
        if count is not None:
            coverage = Coverage(name)
            for item in generate(name, "valid", count, seed):
                coverage.add_case(item.case)
            found.append((f"generated, seed {seed}", coverage))
    except Infeasible as error:
        raise UserError(str(error)) from None
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({"profile": name, "suites": [_data(n, c, missing) for n, c in found]}).decode())
    else:
        for suite, coverage in found:
            click.echo(_text(suite, name, coverage, missing))
    if bad:
        raise click.exceptions.Exit(EXIT_USAGE)
    if not any(c.cases for _, c in found):
        raise click.exceptions.Exit(EXIT_NOTHING)


def _words_of_run(directory: str, profile: str, every: bool) -> Iterator[Mapping[str, str]]:
    from fiafuzz.campaign.events import CaseDone, LegStarted, RunStarted
    from reports.run_data import RunError, read_events

    names: tuple[str, ...] = ()
    here = True
    try:
        for event in read_events(directory):
            if isinstance(event, RunStarted):
                names = event.factors
            elif isinstance(event, LegStarted):
                here = event.profile == profile
            elif isinstance(event, CaseDone) and here and event.factors and (every or event.foreseen == "accept"):
                yield dict(zip(names, event.factors.split("|")))
    except RunError as error:
        raise UserError(str(error)) from None


def _words_of_file(reader: Reader, profile: str, every: bool) -> Iterator[Mapping[str, str]]:
    from fiafuzz.model.factors import factors_of
    from fiafuzz.model.scene import Scene
    from oracles.constraints.predict import predict

    for record in reader:
        scene = Scene(record.case)
        if every or predict(record.case, profile, scene=scene).verdict == "accept":
            yield factors_of(scene)


def _data(suite: str, coverage: Any, missing: int) -> dict[str, Any]:
    return {
        "suite": suite,
        "cases": coverage.cases,
        "unknown_words": coverage.unknown,
        "ways": [
            {"t": s.t, "covered": s.covered, "feasible": s.feasible, "outside": s.outside, "ratio": round(s.ratio, 6)}
            for s in coverage.shares()
        ],
        "missing_pairs": [[list(a), list(b)] for a, b in coverage.missing_pairs(missing)] if missing else [],
    }


def _text(suite: str, profile: str, coverage: Any, missing: int) -> str:
    lines = [f"{suite}: {coverage.cases} cases, {profile}"]
    for share in coverage.shares():
        lines.append(
            f"  {share.t}-way  {100 * share.ratio:5.1f} %  {share.covered} of {share.feasible}"
            + (f"  ({share.outside} more that no valid call has)" if share.outside else "")
        )
    if missing:
        for (first, word), (second, other) in coverage.missing_pairs(missing):
            lines.append(f"  not met: {first} {word} with {second} {other}")
    return "\n".join(lines)
