"""Attention itself: softmax(scale * Q K^T [+ bias, masked]) V in float64, blocked over query rows.

Shapes: query (batches, KV_N, G, rows, D), key (batches, KV_N, columns, D), value (batches, KV_N, columns, V_D).
Order of operations as in spec/numerics.md 2: scale, bias, mask, row maximum, exponentials, sink, product, one
division. A row without any kept column gives 0 and an lse of +inf whatever the sink (spec/numerics.md 6.2, 8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from .attention_mask import RowMask
from .expected import F64, Bool
from .pse import RowBias

BLOCK = 1 << 20
"""Score elements of one block; 8 MiB: large enough for the matrix product, small enough for memory."""

WHOLE = 1 << 17
"""Score elements up to which a run is computed in one piece."""


@dataclass
class Rows:
    """Result of a run: ``out`` (batches, KV_N, G, rows, V_D), ``lse`` and ``dead`` (batches, KV_N, G, rows).

    ``dead`` marks rows without a kept column (None when there is none).
    """

    out: F64
    lse: F64
    dead: Optional[Bool]


@dataclass(frozen=True)
class Block:
    """A piece of a run: batches and key/value heads (slices of the run), query rows [begin, end), columns [first,
    last).
    """

    batch: slice
    head: slice
    begin: int
    end: int
    first: int
    last: int


def blocks_of(shape: tuple[int, int, int, int, int], mask: Optional[RowMask], whole: int = WHOLE) -> list[Block]:
    """Cut a run of shape (batches, KV_N, G, rows, columns) into blocks; columns that a band hides are left out."""
    b, h, g, rows, columns = shape
    if b * h * g * rows * columns <= whole:
        return [Block(slice(0, b), slice(0, h), 0, rows, 0, columns)]
    found = []
    size = max(1, BLOCK // max(1, g * columns))
    ranges = [(i, min(i + size, rows)) for i in range(0, rows, size)]
    for batch in range(b):
        for head in range(h):
            for begin, end in ranges:
                first, last = (0, columns) if mask is None else mask.columns(begin, end, columns)
                found.append(Block(slice(batch, batch + 1), slice(head, head + 1), begin, end, first, last))
    return found


def scores_of(q: F64, k: F64, block: Block, mask: Optional[RowMask], bias: Optional[RowBias], group: int) -> tuple[F64, Optional[Bool]]:
    """Scores of a block, biased and with -inf where masked: (batches, KV_N, G, rows, columns); and the mask."""
    qb = q[block.batch, block.head, :, block.begin : block.end]
    kb = k[block.batch, block.head, block.first : block.last]
    b, h, g, rows, d = qb.shape
    s: F64 = np.matmul(qb.reshape(b, h, g * rows, d), kb.swapaxes(-1, -2)).reshape(b, h, g, rows, kb.shape[2])
    if bias is not None:
        heads = slice(block.head.start * group, block.head.stop * group)
        part = bias.block(block.batch, heads, block.begin, block.end, block.first, block.last)
        s += part.reshape(part.shape[0], h, g, part.shape[2], part.shape[3])
    if mask is None:
        return s, None
    hidden = mask.masked(block.begin, block.end, block.first, block.last)
    if hidden is not None:
        if hidden.shape[0] != 1:
            hidden = hidden[block.batch]
        hidden = hidden[:, None, None]
        np.copyto(s, -np.inf, where=hidden)
    return s, hidden


def softmax_rows(s: F64, sink: Optional[F64], *, gaps: bool = True) -> tuple[F64, F64, Optional[Bool]]:
    """Turn scores into exp(score - maximum) in place; the row maximum, the row sum and the dead rows.

    ``sink`` (KV_N, G) joins maximum and sum. The maximum of a dead row is 0, its sum 0 without the sink. ``gaps``: whether
    columns may be masked at all.
    """
    m = s.max(axis=-1, keepdims=True) if s.shape[-1] else np.full((*s.shape[:-1], 1), -np.inf)
    dead: Optional[Bool] = None
    if (gaps or not s.shape[-1]) and m.size and not np.isfinite(m.min()):
        dead = np.isneginf(m)
        m[dead] = 0.0
        if not dead.any():
            dead = None
    if sink is not None:
        np.maximum(m, sink[:, :, None, None], out=m)
    s -= m
    np.exp(s, out=s)
    total = s.sum(axis=-1, keepdims=True)
    if sink is not None:
        total += np.exp(sink[:, :, None, None] - m)
    return m, total, dead


def attend(q: F64, k: F64, v: F64, mask: Optional[RowMask], bias: Optional[RowBias], sink: Optional[F64]) -> Rows:
    """Output and lse of a run. ``sink`` is (KV_N, G); all arrays float64; memory is bounded by the block size."""
    b, h, g, rows, _ = q.shape
    columns, width = k.shape[2], v.shape[3]
    pieces = blocks_of((b, h, g, rows, columns), mask)
    if len(pieces) == 1:
        return _piece(q, k, v, pieces[0], mask, bias, sink)
    out: F64 = np.empty((b, h, g, rows, width))
    lse: F64 = np.empty((b, h, g, rows))
    dead: Optional[Bool] = None
    for block in pieces:
        part = _piece(q, k, v, block, mask, bias, None if sink is None else sink[block.head])
        where = (block.batch, block.head, slice(None), slice(block.begin, block.end))
        out[where] = part.out
        lse[where] = part.lse
        if part.dead is not None:
            if dead is None:
                dead = np.zeros(lse.shape, np.bool_)
            dead[where] = part.dead
    return Rows(out, lse, dead)


def _piece(q: F64, k: F64, v: F64, block: Block, mask: Optional[RowMask], bias: Optional[RowBias], sink: Optional[F64]) -> Rows:
    s, _ = scores_of(q, k, block, mask, bias, q.shape[2])
    b, h, g, rows, columns = s.shape
    m, total, dead = softmax_rows(s, sink, gaps=mask is not None or bias is not None)
    vb = v[block.batch, block.head, block.first : block.last]
    out: F64 = np.matmul(s.reshape(b, h, g * rows, columns), vb).reshape(b, h, g, rows, vb.shape[3])
    if dead is not None:
        total[dead] = 1.0
    out /= total
    lse: F64 = np.log(total)
    lse += m
    if dead is not None:
        lse[dead] = np.inf
        out[dead[..., 0]] = 0.0
        dead = dead[..., 0]
    return Rows(out, lse[..., 0], dead)
