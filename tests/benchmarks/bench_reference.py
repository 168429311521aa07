"""Speed and memory of the reference, beside three lines of numpy and beside torch in float64, in one run.

Run as ``python tests/benchmarks/bench_reference.py``; the ratios are what matters, times depend on the machine.
Targets: medium shape within 1.5 times torch; tiny shape within a small factor of numpy; long sequences under 2 GiB.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any, Optional

import numpy as np

from fiafuzz.model.case import Case, case_from_dict
from fiafuzz.model.scene import Scene
from oracles.precision import judge_outputs
from oracles.reference import reference

SHAPES = {"tiny": (1, 1, 8, 16, 1000), "small": (2, 8, 128, 64, 12), "medium": (4, 16, 1024, 128, 2)}


def call(
    B: int, N: int, S: int, D: int, *, KV_N: Optional[int] = None, KV_S: Optional[int] = None, mode: int = 0
) -> tuple[Case, dict[str, Any]]:
    """A FLOAT16 call with lse, and its tensors."""
    KV_N, KV_S = KV_N or N, KV_S or S
    q, kv, dtype = [B, N, S, D], [B, KV_N, KV_S, D], "FLOAT16"
    data: dict[str, Any] = {
        "fiafuzz": 1,
        "inputs": {"query": {"shape": q, "dtype": dtype}, "key": [{"shape": kv, "dtype": dtype}], "value": [{"shape": kv, "dtype": dtype}]},
        "attrs": {
            "numHeads": N,
            "numKeyValueHeads": KV_N,
            "inputLayout": "BNSD",
            "scaleValue": D**-0.5,
            "softmaxLseFlag": True,
            "innerPrecise": 0,
            "sparseMode": mode,
        },
        "outputs": {"attentionOut": {"shape": q, "dtype": dtype}, "softmaxLse": {"shape": [B, N, S, 1], "dtype": "FLOAT32"}},
    }
    rng = np.random.default_rng(0)
    tensors: dict[str, Any] = {"query": (rng.integers(-16, 17, q) / 8).astype(np.float16)}
    for name in ("key", "value"):
        tensors[name] = [(rng.integers(-16, 17, kv, dtype=np.int8).astype(np.float16) / np.float16(8))]
    if mode:
        data["inputs"]["attenMask"] = {"shape": [2048, 2048], "dtype": "BOOL"}
        tensors["attenMask"] = np.triu(np.ones((2048, 2048), bool), 1)
        tensors["attenMask"].flags.writeable = False
    return case_from_dict(data), tensors


def three_lines(q: Any, k: Any, v: Any, scale: float) -> Any:
    """Attention without anything."""
    s = q @ k.swapaxes(-1, -2) * scale
    p = np.exp(s - s.max(-1, keepdims=True))
    return p @ v / p.sum(-1, keepdims=True)


def best(run: Callable[[], Any], repeats: int) -> float:
    """Processor seconds of the fastest of some runs (one thread, so that a busy machine does not matter)."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return min(times)


def torch_attention(q: Any, k: Any, v: Any, scale: float) -> Optional[Callable[[], Any]]:
    """The same in torch float64 with one thread, None without torch."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    tq, tk, tv = (torch.from_numpy(x) for x in (q, k, v))
    return lambda: torch.softmax(tq @ tk.transpose(-1, -2) * scale, -1) @ tv


def peak() -> float:
    """Largest resident size of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print one line per shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="also B=1 N=8 Q_S=KV_S=8192 D=128 (half a minute) and its bound")
    args = parser.parse_args()
    # Memory first: the peak of the process must not be that of the shapes beside which the reference is timed.
    case, tensors = call(4, 32, 1, 128, KV_N=8, KV_S=32768)
    begin = time.perf_counter()
    reference(case, tensors)
    print(f"decode  B=4 N=32/8 KV_S=32768 D=128: {time.perf_counter() - begin:.2f} s, peak {peak():.0f} MiB")
    if args.long:
        case, tensors = call(1, 8, 8192, 128)
        begin = time.perf_counter()
        expected = reference(case, tensors)
        print(f"long    B=1 N=8 Q_S=KV_S=8192 D=128: {time.perf_counter() - begin:.1f} s, peak {peak():.0f} MiB")
        begin = time.perf_counter()
        expected.error_bound["attentionOut"].max()
        print(f"        its bound: {time.perf_counter() - begin:.1f} s, peak {peak():.0f} MiB")
    for name, (B, N, S, D, repeats) in SHAPES.items():
        case, tensors = call(B, N, S, D)
        q, k, v = (x.astype(np.float64) for x in (tensors["query"], tensors["key"][0], tensors["value"][0]))
        scene = Scene(case)
        reference(case, tensors, scene=scene)
        mine, bare = best(lambda: reference(case, tensors, scene=scene), repeats), best(lambda: three_lines(q, k, v, D**-0.5), repeats)  # noqa: B023
        other = torch_attention(q, k, v, D**-0.5)
        line = f"{name:7} reference {mine * 1e3:9.3f} ms ({1 / mine:8.0f}/s), numpy {bare * 1e3:9.3f} ms (ratio {mine / bare:5.2f})"
        if other is not None:
            theirs = best(other, repeats)
            line += f", torch {theirs * 1e3:9.3f} ms (ratio {mine / theirs:5.2f})"
        print(line)
        expected = reference(case, tensors, scene=scene)
        outputs = {
            "attentionOut": expected.outputs["attentionOut"].astype(np.float16),
            "softmaxLse": expected.outputs["softmaxLse"].astype(np.float32),
        }
        print(f"        verdict {best(lambda: judge_outputs(case, scene, expected, outputs), max(2, repeats // 4)) * 1e3:.3f} ms")  # noqa: B023


if __name__ == "__main__":
    main()
