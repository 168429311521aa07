"""How soon four tools find each planted fault: python tests/benchmarks/bench_effectiveness.py --seeds 20 --out effectiveness.md

The tools are fiafuzz (the phases of a campaign), uniform random draws, plain Hypothesis on fiafuzz's strategies, and the operator's
published test tables (from $FIAFUZZ_SHARED or ../shared; left out where they are not). They share the oracle. Each is told which mode of
calls reaches a fault (valid, invalid or disputed), as a user tells ``fuzz --mode``; the tables have no mode and no seed and are run
once. ``fiafuzz-all`` and ``hypothesis-all`` are the first and the third without that hint (``fuzz`` without a mode).

Cases are counted up to and with the first that shows a fault; a run that does not find it within ``--limit`` cases counts as later
than all that do. Seconds are CPU seconds that the tool alone would have spent by then: making the cases (the driver and Hypothesis
included), predicting, running the sound kernel once for each, the reference and the judgement, measured; a kernel with a fault is
taken to cost what the sound one costs. Each (tool, seed) runs in a process of its own, with cold caches, and becomes one line of the
store as soon as it is done: an interrupted bench goes on where it stopped, and ``--report`` prints what there is. A seed takes about
100 seconds of CPU for three tools, the tables take two minutes once.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from time import process_time
from typing import Any, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fiafuzz import __version__
from fiafuzz.backends.faults import Fault, all_faults
from fiafuzz.model.profiles import DEFAULT_PROFILE
from tests.benchmarks.effectiveness_hunt import Hunt, as_line
from tests.benchmarks.effectiveness_report import collect, details, duels, overview
from tests.benchmarks.effectiveness_tools import TOOLS, table_cases

FORMAT = 1
LEAST = 300
"""Calls of the default profile that a stream has at least, for what is said of the calls themselves."""
MARKS = (100, LEAST)
"""Numbers of cases after which coverage is counted."""
MAIN = ("fiafuzz", "random", "hypothesis", "tables")


def streams(tool: str, faults: Sequence[Fault]) -> Iterator[tuple[str, str, list[Fault]]]:
    """Profile, mode and faults of each stream that a tool needs."""
    told = TOOLS[tool][1]
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.profile, fault.mode if told else "all"), []).append(fault)
    for (profile, mode), group in groups.items():
        yield profile, mode, group


def run(tool: str, seed: int, limit: int, faults: Sequence[Fault]) -> dict[str, Any]:
    """One tool with one seed, through all its streams, as plain data."""
    began, done = process_time(), []
    for profile, mode, group in streams(tool, faults):
        hunt = Hunt(profile, group, limit, least=LEAST if profile == DEFAULT_PROFILE and mode != "disputed" else 0)
        hunt.sound.warm_up()
        hunt.start()
        TOOLS[tool][0](hunt, mode, seed)
        line = {"profile": profile, "mode": mode, **as_line(hunt)}
        if profile == DEFAULT_PROFILE and mode in ("valid", "all"):
            line["coverage"] = coverage(hunt)
        done.append(line)
    spent = round(process_time() - began, 2)
    return {"format": FORMAT, "tool": tool, "seed": seed, "limit": limit, "streams": done, "cpu": spent, **here()}


def coverage(hunt: Hunt) -> dict[str, list[float]]:
    """1-, 2- and 3-way coverage of the accepted calls among the first so many, for each mark that the stream has reached."""
    from fiafuzz.model.factors import FACTORS
    from reports.tway import Coverage

    met, found, left = Coverage(hunt.profile), {}, iter([*hunt.seen.words, (hunt.seen.cases + 1, "")])
    place, words = next(left)
    for mark in MARKS:
        while place <= min(mark, hunt.seen.cases):
            met.add(dict(zip(FACTORS, words.split("|"))))
            place, words = next(left)
        if hunt.seen.cases >= mark:
            found[str(mark)] = [round(share.ratio, 5) for share in met.shares()]
    return found


def here() -> dict[str, str]:
    """Machine and versions."""
    names = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    machine = f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"
    libraries = [f"{name} {version(name)}" for name in ("torch", "numpy", "hypothesis")]
    return {"machine": machine, "versions": ", ".join([f"fiafuzz {__version__}", f"Python {platform.python_version()}", *libraries])}


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


# ---- the store --------------------------------------------------------------------------------


def read_store(path: Path, limit: int, faults: Sequence[Fault]) -> list[dict[str, Any]]:
    """Finished runs with this limit on these faults, each once; a line cut off by an interruption is passed over."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    names = {f.name for f in faults}
    for text in _lines(str(path)):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        met = {name for stream in line["streams"] for name in (*stream["found"], *stream["hidden"])}
        if line["format"] == FORMAT and line["limit"] == limit and met == names:
            found[line["tool"], line["seed"]] = line
    return list(found.values())


def missing(tools: Sequence[str], seeds: Sequence[int], done: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    """What is left to run, seed by seed, so that an interrupted bench has as many runs of each tool."""
    have = {(line["tool"], line["seed"]) for line in done}
    wanted = [(tool, seed) for seed in (0, *seeds) for tool in tools if (tool == "tables") == (seed == 0)]
    return [item for item in wanted if item not in have]


def _task(item: tuple[str, int, int, tuple[str, ...]]) -> dict[str, Any]:
    tool, seed, limit, names = item
    return run(tool, seed, limit, [f for f in all_faults() if f.name in names])


def fill_store(path: Path, tools: Sequence[str], seeds: Sequence[int], limit: int, faults: Sequence[Fault], workers: int) -> None:
    """Run what is missing and add it to the store."""
    left = missing(tools, seeds, read_store(path, limit, faults))
    names = tuple(f.name for f in faults)
    _warm()
    with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=1) as pool, path.open("a", encoding="utf-8") as store:
        for line in pool.imap_unordered(_task, [(tool, seed, limit, names) for tool, seed in left], chunksize=1):
            store.write(json.dumps(line) + "\n")
            store.flush()
            found = sum(len(stream["found"]) for stream in line["streams"])
            text = f"{line['tool']} seed {line['seed']}: {found} of {len(names)} found, {line['cpu']:.0f} CPU s"
            print(text, file=sys.stderr, flush=True)


def _warm() -> None:
    """Load what all runs share, before they are forked off: modules, rules, kernels; nothing that belongs to a stream."""
    import strategies.cases  # noqa: F401
    from reports.tway import Coverage  # noqa: F401

    Hunt(DEFAULT_PROFILE, (), 1).sound.warm_up()


# ---- the report -------------------------------------------------------------------------------


def report(lines: Sequence[dict[str, Any]], faults: Sequence[Fault], limit: int, order: Sequence[str]) -> tuple[str, str]:
    """The summary, and the table of all faults."""
    runs = collect(lines)
    tools = {tool: runs[tool] for tool in order if tool in runs}
    seeds = sorted({seed for tool, r in tools.items() for seed in r.seeds if tool != "tables"})
    facts = " | ".join(sorted({f"{line['machine']}; {line['versions']}" for line in lines}))
    which = f"seeds {seeds[0]} to {seeds[-1]}" if seeds else "no seed"
    about = f"{len(faults)} planted faults, at most {limit} cases a stream, {which}. {facts}."
    dash = "A dash: not found, or no median within the limit."
    summary = "\n\n".join((f"{about} {dash}", overview(tools, faults, MARKS, DEFAULT_PROFILE), duels(tools, faults)))
    return summary, details(tools, faults)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Run what is missing, print the summary, write all tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--limit", type=int, default=500, help="cases of a stream at most")
    parser.add_argument("--faults", default="*", help="pattern of names")
    parser.add_argument("--tools", default=",".join(MAIN), help=f"of {', '.join(TOOLS)}")
    parser.add_argument("--out", type=Path, default=Path("effectiveness.md"), help="the tables; the store lies beside it")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    tools = options.tools.split(",")
    unknown = [tool for tool in tools if tool not in TOOLS]
    faults = [f for f in all_faults() if fnmatch(f.name, options.faults)]
    if unknown or not faults:
        parser.error(f"no tool {unknown[0]!r}" if unknown else f"no fault is called {options.faults!r}")
    if "tables" in tools and not options.report:
        try:
            next(table_cases(DEFAULT_PROFILE))
        except FileNotFoundError as error:
            print(f"without the tables: {error}", file=sys.stderr)
            tools.remove("tables")
    store: Path = options.out.with_suffix(".jsonl")
    store.parent.mkdir(parents=True, exist_ok=True)
    seeds = range(options.first, options.first + options.seeds)
    try:
        if not options.report:
            fill_store(store, tools, seeds, options.limit, faults, options.workers)
    finally:
        lines = [line for line in read_store(store, options.limit, faults) if line["tool"] in tools]
        if lines:
            summary, rows = report(lines, faults, options.limit, tools)
            options.out.write_text(f"# Cases to find planted faults\n\n{summary}\n\n## Every fault\n\n{rows}\n", encoding="utf-8")
            print(summary)


if __name__ == "__main__":
    main()
