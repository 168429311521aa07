"""How fast the aclnn backend calls, and whether anything piles up: ``python tests/benchmarks/bench_aclnn.py [CALLS]``.

On the stand-in CANN, whose operator takes every call and computes nothing, so the time is that of the backend: handles, layout, copies. The
calls are valid and invalid ones of A2; every third is refused. Compared are device memory that is kept for the next call and memory that is
taken anew for each.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.standin.aclnn_child import Child
from tests.standin.test_aclnn_outcomes import mixed_cases
from tests.standin_cann.build import build
from tests.standin_cann.environment import standin_environment


def main() -> None:
    """Run and print."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    settings = {**os.environ, **standin_environment(build(), soc="Ascend910B2", host=""), "STANDIN_LOG": ""}
    with TemporaryDirectory() as folder:
        cases = mixed_cases(Path(folder) / "cases.jsonl", 60)
        for title, keep in (("kept", True), ("anew", False)):
            child = Child(settings, Path(folder) / "none")
            child.ask(op="live")
            start = perf_counter()
            found = child.ask(op="leak", cases=str(cases), rounds=calls, every=max(1, calls // 5), keep=keep)
            spent = perf_counter() - start
            child.close()
            print(f"device memory {title}: {calls / spent:.0f} calls/s, {found['kinds']}")
            for mark in found["marks"]:
                print("  ", "  ".join(f"{name} {value}" for name, value in mark.items() if value))


if __name__ == "__main__":
    main()
