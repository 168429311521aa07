"""Rows of a call as requests: the sequences that a kernel of a serving engine takes, each with its rows and its keys.

Such a kernel has no mask. A request's rows stand at the end of its keys, and see all of them, or up to their own position
(causal), or a window around or before it. What the rows of a call see is cut into requests of that kind: rows whose last key
moves on one by one are a causal request over as many keys, rows that see the same leading keys are one without a limit, and
what lies scattered becomes a request of one row with the keys picked out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

OPEN_WINDOW = -1
"""The kernel's word for no window."""


@dataclass(frozen=True)
class Request:
    """Rows [first, first + rows) of batch entry ``batch`` as a sequence of their own.

    Its keys are the columns [0, keys), or the ``picked`` ones. Row r of it stands at position keys - rows + r: with ``causal``
    it sees the ``window`` last keys up to there, without it those less than ``window`` away (OPEN_WINDOW: any number)."""

    batch: int
    first: int
    rows: int
    keys: int
    causal: bool
    window: int = OPEN_WINDOW
    picked: Optional[Tensor] = None


@dataclass(frozen=True)
class Seen:
    """What rows see of their columns: [lo, hi), or, where ``scattered``, only some of these. hi == lo: nothing."""

    lo: list[int]
    hi: list[int]
    scattered: list[bool]

    @staticmethod
    def of_band(rows: int, columns: int, low: Optional[int], high: Optional[int]) -> Seen:
        """Rows that see the differences column - row from ``low`` to ``high`` (None: no limit)."""
        lo = [0 if low is None else max(0, i + low) for i in range(rows)]
        hi = [columns if high is None else max(0, min(columns, i + high + 1)) for i in range(rows)]
        return Seen([min(a, b) for a, b in zip(lo, hi)], hi, [False] * rows)

    @staticmethod
    def of_mask(seen: Tensor) -> Seen:
        """Rows of a mask (rows, columns), True where seen."""
        columns = seen.shape[1]
        count = seen.sum(-1)
        lo = seen.int().argmax(-1)
        hi = columns - seen.flip(-1).int().argmax(-1)
        hi = torch.where(count > 0, hi, lo)
        return Seen(lo.tolist(), hi.tolist(), (count != hi - lo).tolist())


@dataclass(frozen=True)
class Cutting:
    """How rows are cut where there is a choice. ``most`` rows in a request; ``wide``: whether a request without a limit may have
    more rows than keys; ``single_causal``: what a row alone is called."""

    most: int
    wide: bool
    single_causal: bool


def cut(seen: Seen, how: Cutting) -> Iterator[tuple[int, int, bool, int]]:
    """(first row, rows, causal, window) of requests over the columns [0, hi of the last row) that show each row what it sees.

    Rows that see nothing are in none. A row whose keys are scattered comes alone, with the window 0: its keys are to be picked."""
    i, n = 0, len(seen.hi)
    while i < n:
        if seen.hi[i] == seen.lo[i]:
            i += 1
            continue
        if seen.scattered[i]:
            yield i, 1, False, 0
            i += 1
            continue
        slope, window = _slope(seen, i, min(n, i + how.most))
        level = _level(seen, i, min(n, i + (how.most if how.wide else min(how.most, seen.hi[i]))))
        if level > slope or (level == slope == 1 and not how.single_causal):
            yield i, level, False, OPEN_WINDOW
            i += level
        else:
            yield i, slope, True, window
            i += slope


def _slope(seen: Seen, i: int, end: int) -> tuple[int, int]:
    """How many rows from i on a causal request can hold, and its window."""
    window, n = OPEN_WINDOW, 0
    while i + n < end:
        lo, hi = seen.lo[i + n], seen.hi[i + n]
        if hi != seen.hi[i] + n or hi == lo or seen.scattered[i + n]:
            break
        if lo > 0:
            # The rows before see all of their keys, and one of them no more keys than this one: the window cuts none of them.
            if n and window == OPEN_WINDOW and hi - lo < hi - 1:
                break
            if window not in (OPEN_WINDOW, hi - lo):
                break
            window = hi - lo
        elif window != OPEN_WINDOW:
            break
        n += 1
    return n, window


def _level(seen: Seen, i: int, end: int) -> int:
    """How many rows from i on see the same leading keys; 0 when row i does not see the first one."""
    n = 0
    while i + n < end and seen.lo[i + n] == 0 and seen.hi[i + n] == seen.hi[i] and not seen.scattered[i + n]:
        n += 1
    return n
