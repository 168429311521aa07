"""fiafuzz coverage: scene factors, pairs, triples and rules that suites reach, side by side."""

from __future__ import annotations

import os
from typing import Any

import click

from fiafuzz.model.profiles import DEFAULT_PROFILE, PROFILES

from .main import EXIT_NOTHING, EXIT_USAGE, UserError
from .options import Reader, json_option, known_profile


@click.command()
@click.argument("suites", nargs=-1, metavar="RUN|FILE...")
@click.option(
    "--profile",
    metavar="NAME",
    callback=known_profile,
    help="Profile whose combinations and rules are counted. [default: that of the first RUN, else 950-v5]",
)
@click.option("--every", is_flag=True, help="Count every case's words, not only of those that are predicted to be accepted.")
@click.option("--missing", default=0, show_default=True, type=click.IntRange(0), help="Name this many feasible pairs that were not met.")
@click.option("--generate", "count", type=click.IntRange(1), help="Measure this many freshly generated valid cases beside the suites.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**64 - 1), help="Seed for --generate.")
@json_option
def command(suites: tuple[str, ...], profile: str | None, every: bool, missing: int, count: int | None, seed: int, as_json: bool) -> None:
    """Count the scene factor words, pairs and triples, and the rules, that each RUN directory or FILE of cases reaches.

    The denominators are the combinations that a valid call of the profile can have, and the rules of the profile that a call can
    hold to or break. Several suites are printed side by side; cases of another product or API are left out and counted.
    """
    from reports.run_data import RunError
    from reports.suites import Suite, profile_of_run
    from strategies.cases import generate
    from strategies.plan import Infeasible

    if not suites and count is None:
        raise UserError("name a run directory or a file of cases, or use --generate N")
    bad = 0
    found: list[Any] = []
    try:
        name = profile or next((p for s in suites if os.path.isdir(s) for p in (profile_of_run(s),) if p in PROFILES), DEFAULT_PROFILE)
        for path in suites:
            suite = Suite(path, name, every=every)
            if os.path.isdir(path):
                suite.add_run(path)
            else:
                reader = Reader(path)
                for record in reader:
                    suite.add_case(record.case)
                bad += reader.bad
            found.append(suite)
        if count is not None:
            suite = Suite(f"generated, seed {seed}", name, every=every)
            for item in generate(name, "valid", count, seed):
                suite.add_case(item.case)
            found.append(suite)
    except Infeasible as error:
        raise UserError(str(error)) from None
    except RunError as error:
        raise UserError(str(error)) from None
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({"profile": name, "suites": [_data(s, missing) for s in found]}).decode())
    else:
        click.echo(_text(name, found, missing))
    if bad:
        raise click.exceptions.Exit(EXIT_USAGE)
    if not any(s.coverage.cases for s in found):
        raise click.exceptions.Exit(EXIT_NOTHING)


def _data(suite: Any, missing: int) -> dict[str, Any]:
    coverage = suite.coverage
    return {
        "suite": suite.name,
        "cases": coverage.cases,
        "all_cases": suite.cases,
        "other_cases": suite.others,
        "unknown_words": coverage.unknown,
        "ways": [
            {"t": s.t, "covered": s.covered, "feasible": s.feasible, "outside": s.outside, "ratio": round(s.ratio, 6)}
            for s in coverage.shares()
        ],
        "rules": {
            "rules": suite.rules,
            "reached": suite.reached,
            "held": suite.count(suite.held),
            "alone": suite.count(suite.alone),
            "together": suite.count(suite.together),
        },
        "missing_pairs": [[list(a), list(b)] for a, b in coverage.missing_pairs(missing)] if missing else [],
    }


def _text(profile: str, suites: list[Any], missing: int) -> str:
    """A column a suite, a row a figure."""
    from fiafuzz.campaign.results import clean

    rows: list[tuple[str, list[str]]] = [
        ("cases", [str(s.cases) for s in suites]),
        ("  counted for combinations", [str(s.coverage.cases) for s in suites]),
    ]
    if any(s.others for s in suites):
        rows.append(("  left out (other product, API or profile)", [str(s.others) for s in suites]))
    shares = [s.coverage.shares() for s in suites]
    for t in range(3):
        one = shares[0][t]
        rows.append((f"{one.t}-way, of {one.feasible}", [f"{s[t].covered} ({100 * s[t].ratio:.1f} %)" for s in shares]))
        if any(s[t].outside for s in shares):
            rows.append(("  met though no valid call has them", [str(s[t].outside) for s in shares]))
    rows.append((f"rules reached, of {suites[0].rules}", [f"{s.reached} ({100 * s.reached / (s.rules or 1):.1f} %)" for s in suites]))
    for label, part in (("  held by an accepted call", "held"), ("  broken alone", "alone"), ("  broken with others", "together")):
        rows.append((label, [str(s.count(getattr(s, part))) for s in suites]))
    table = [(f"under {profile}", [clean(s.name, 60) for s in suites]), *rows]
    first = max(len(label) for label, _ in table)
    widths = [max(len(cells[i]) for _, cells in table) for i in range(len(suites))]
    lines = [
        "  ".join([label.ljust(first), *(cell.rjust(width) for cell, width in zip(cells, widths))]).rstrip() for label, cells in table
    ]
    for suite in suites if missing else ():
        lines.append(f"{clean(suite.name, 60)}: feasible pairs that were not met")
        lines += [f"  {first} {word} with {second} {other}" for (first, word), (second, other) in suite.coverage.missing_pairs(missing)]
    return "\n".join(lines)
