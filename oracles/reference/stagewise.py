"""The same-precision form of plain and antiquant calls: float32 scores, exponentials rounded before the product.

Steps 1 to 9 of spec/numerics.md 2 relative to the row maximum (the operator works relative to the running maximum of
its tiles, which no document fixes). Results are rounded to the output dtype.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from fiafuzz.model.codecs import decode, encode

from .attention import Block, Rows, blocks_of
from .attention_mask import RowMask
from .expected import F64, Bool
from .pse import RowBias


def attend_rounded(
    q: F64,
    k: F64,
    v: F64,
    mask: Optional[RowMask],
    bias: Optional[RowBias],
    sink: Optional[F64],
    *,
    scale: float,
    dtype: str,
) -> Rows:
    """Output and lse of a run in float32 with exponentials rounded to ``dtype``. ``q`` is not scaled here."""
    b, h, g, rows, _ = q.shape
    columns, width = k.shape[2], v.shape[3]
    out: F64 = np.zeros((b, h, g, rows, width))
    lse: F64 = np.full((b, h, g, rows), np.inf)
    dead: Bool = np.zeros((b, h, g, rows), np.bool_)
    q32, k32, v32 = q.astype(np.float32), k.astype(np.float32), v.astype(np.float32)
    for block in blocks_of((b, h, g, rows, columns), mask):
        where = (block.batch, block.head, slice(None), slice(block.begin, block.end))
        part = None if sink is None else sink[block.head]
        out[where], lse[where], dead[where] = _piece(q32, k32, v32, block, mask, bias, part, np.float32(scale), dtype)
    return Rows(out, lse, dead if dead.any() else None)


def _piece(
    q: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    k: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    v: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    block: Block,
    mask: Optional[RowMask],
    bias: Optional[RowBias],
    sink: Optional[F64],
    scale: np.float32,
    dtype: str,
) -> tuple[F64, F64, Bool]:
    qb = q[block.batch, block.head, :, block.begin : block.end]
    kb = k[block.batch, block.head, block.first : block.last]
    vb = v[block.batch, block.head, block.first : block.last]
    b, h, g, rows, d = qb.shape
    columns = kb.shape[2]
    if not columns:
        shape = (b, h, g, rows)
        return np.zeros((*shape, vb.shape[3])), np.full(shape, np.inf), np.ones(shape, np.bool_)
    s = np.matmul(qb.reshape(b, h, g * rows, d), kb.swapaxes(-1, -2)).reshape(b, h, g, rows, columns)
    s *= scale
    if bias is not None:
        heads = slice(block.head.start * g, block.head.stop * g)
        part = bias.block(block.batch, heads, block.begin, block.end, block.first, block.last).astype(np.float32)
        s += part.reshape(part.shape[0], h, g, part.shape[2], part.shape[3])
    if mask is not None:
        hidden = mask.masked(block.begin, block.end, block.first, block.last)
        if hidden is not None:
            np.copyto(s, -np.inf, where=(hidden if hidden.shape[0] == 1 else hidden[block.batch])[:, None, None])
    m = s.max(axis=-1, keepdims=True)
    dead = np.isneginf(m)
    m[dead] = 0.0
    if sink is not None:
        np.maximum(m, sink[:, :, None, None].astype(np.float32), out=m)
    p = np.exp(s - m)
    total = p.sum(axis=-1, keepdims=True)
    if sink is not None:
        total += np.exp(sink[:, :, None, None].astype(np.float32) - m)
    rounded = decode(dtype, encode(dtype, p)).astype(np.float32)
    total[dead] = 1.0
    out = np.matmul(rounded.reshape(b, h, g * rows, columns), vb).reshape(b, h, g, rows, -1) / total
    lse = (np.log(total) + m).astype(np.float64)
    lse[dead] = np.inf
    out[dead[..., 0]] = 0.0
    return out.astype(np.float64), lse[..., 0], dead[..., 0]
