"""Predictions per second, beside json.loads of the same cases, and start-up of the command line.

Run: python tests/benchmarks/bench_predict.py. Prints a row for each profile: cases read and predicted per second of CPU time on one core,
and the same as a multiple of json.loads. Target: at least 2,000 predictions per second with all rules in place.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from time import process_time

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from fiafuzz.model.case import decode_case, encode_case
from fiafuzz.model.profiles import PROFILES
from oracles.constraints.predict import predict, rules_for
from strategies.cases import generate

COUNT = 1500


def measured(work) -> float:
    """Best of three, CPU seconds."""
    best = float("inf")
    for _ in range(3):
        began = process_time()
        work()
        best = min(best, process_time() - began)
    return best


def start_up(*arguments: str) -> float:
    """User and system seconds of a command line, best of three."""
    import resource

    best = float("inf")
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "fiafuzz.cli.main", *arguments], cwd=ROOT, input=b"", capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def main() -> None:
    print(f"{'profile':<16} {'rules':>5} {'predict/s':>10} {'decode+predict/s':>17} {'json.loads/s':>13} {'ratio':>6}")
    for profile in PROFILES:
        if profile == "950-v3":
            continue
        cases = [g.case for mode in ("valid", "invalid") for g in generate(profile, mode, COUNT // 2, 1)]
        lines = [encode_case(c) for c in cases]
        predict(cases[0], profile)
        alone = measured(lambda cases=cases, profile=profile: [predict(c, profile) for c in cases])
        whole = measured(lambda lines=lines, profile=profile: [predict(decode_case(text), profile) for text in lines])
        loads = measured(lambda lines=lines: [json.loads(text) for text in lines])
        n = len(cases)
        print(f"{profile:<16} {len(rules_for(profile)):>5} {n / alone:>10.0f} {n / whole:>17.0f} {n / loads:>13.0f} {whole / loads:>6.1f}")
    for arguments in (["--help"], ["predict", "-"]):
        print(f"fiafuzz {' '.join(arguments)}: {start_up(*arguments):.2f} s of CPU time")


if __name__ == "__main__":
    main()
