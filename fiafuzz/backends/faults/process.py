"""Planted faults of the process: deaths, endless loops, memory, runs that differ. Each waits for a feature, so that
shrinking has something to find."""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

from .record import MASK_GIVEN, Fault

UNIT = {"FLOAT16": 2.0**-11, "BFLOAT16": 2.0**-8}
CHUNK = 64 << 20
MOST = 6 << 30
"""Memory after which faulty:oom gives up even without a limit, so that it does not take the machine down."""


def _segfault(correct: Any, k: Any) -> None:
    if (k.p.scene.KV_S or 0) % 2:
        import ctypes

        sys.stdout.flush()
        ctypes.string_at(0)


def _abort(correct: Any, k: Any) -> None:
    if k.p.lse_on and k.p.G > 1:
        sys.stdout.flush()
        os.abort()


def _hang(correct: Any, k: Any) -> None:
    while k.p.sparse_mode == 3:
        time.sleep(0.05)


def _memory(correct: Any, k: Any) -> None:
    if k.x.mask is not None:
        held: list[bytearray] = []
        while len(held) * CHUNK < MOST:
            held.append(bytearray(CHUNK))
        raise MemoryError(f"{MOST >> 30} GiB taken")


def _raise(correct: Any, k: Any) -> None:
    if k.x.pse is not None:
        raise ArithmeticError("planted: bias not understood")


def _any_order(correct: Any, k: Any, p: Any, v: Any, first: bool) -> Any:
    # Partial sums meet in the output type in whatever order they are done, as with atomic additions.
    columns = v.shape[-2]
    if columns < 8:
        return correct(p, v, first)
    cuts = sorted(random.SystemRandom().sample(range(1, columns), 3))
    total = None
    for low, high in zip((0, *cuts), (*cuts, columns)):
        part = k.to_query_type(correct(p[..., low:high], v[..., low:high, :], first))
        total = part if total is None else k.to_query_type(total + part)
    return total


def _last_row_late(correct: Any, k: Any, span: Any, rows: Any, o: Any, lse: Any) -> None:
    if o.shape[2] > 1 and k.p.Q_N % 2 and k.p.out_dtype in UNIT:
        o = o.clone()
        o[..., -1, :] *= 1 + UNIT[k.p.out_dtype] * random.SystemRandom().random()
    correct(span, rows, o, lse)


FAULTS: tuple[Fault, ...] = (
    Fault(
        "crash",
        "the process dies of a wild read",
        "process",
        {"prepare": _segfault},
        also=("an odd number of key columns",),
        kind="process",
        expect="F301",
    ),
    Fault(
        "abort",
        "the process aborts",
        "process",
        {"prepare": _abort},
        {"lse": "on", "group": ("gqa", "mqa")},
        kind="process",
        expect="F301",
    ),
    Fault(
        "hang",
        "the call does not come back",
        "process",
        {"prepare": _hang},
        {"sparse_mode": "3"},
        kind="process",
        expect="F302",
    ),
    Fault(
        "oom",
        "the call takes memory until there is none",
        "process",
        {"prepare": _memory},
        {"mask": MASK_GIVEN, "sparse_mode": ("0", "1")},
        kind="process",
        expect="F301",
    ),
    Fault(
        "raises",
        "the backend raises an exception",
        "process",
        {"prepare": _raise},
        {"pse": "bias"},
        kind="process",
        expect="F301",
    ),
    Fault(
        "nondeterministic-sum",
        "partial sums meet in an order that changes from run to run",
        "process",
        {"weigh": _any_order},
        also=("8 key columns or more",),
        expect="F105",
    ),
    Fault(
        "nondeterministic-row",
        "the last row of a call with an odd number of heads changes from run to run",
        "process",
        {"store": _last_row_late},
        {"q_s": ("2-16", "17+")},
        ("an odd number of heads", "a float output"),
        expect="F105",
    ),
)
