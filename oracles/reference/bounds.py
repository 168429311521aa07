"""How far a correct kernel may be from the ideal result, row by row and element by element.

The model is the operator's working precision (spec/numerics.md 2, 14, 19; spec/cpu_backends.md 6): scores in float32,
exponentials rounded to the query dtype before the product with V, sums in float32, one rounding to the output dtype.
With u = 2**-24:

- score j is off by at most d[j] = (D + 2) u sum|q k| scale + 3u |s[j]| + 2u |s[j] - max| + u |bias|. The first term
  is dropped where every partial sum is exact (grid data). Its effect on the row is w[j] = p[j] expm1(d[j]).
- out is off by (sum w |v| + |out| sum w) / (l - sum w) + (rounding of p + error of exp and of the sums) sum p |v| / l
  + |out| times the error of the row sum + underflow of p in FLOAT16 + rounding of the result.
- lse is off by log1p(sum w / l) and the error of the row sum. Worst cases of long sums do not happen in all rows at
  once, so the usual bound is eight times what a plain float32 evaluation of the same scores is off, plus a few units.

A row with sum w > 0.2 l is ill-conditioned: "untestable". FLOAT16 in the high-performance mode of A2 and A3 rounds
scores, exponentials and sums to FLOAT16; its exact steps are not documented, so the terms are generous
(spec/numerics.md 14 and 25 item 7).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

import numpy as np

from .attention import Block, blocks_of, scores_of, softmax_rows
from .attention_mask import RowMask
from .expected import F64, Bool
from .pse import RowBias
from .working_precision import Precision, U

EXP = 2.0**-20
"""Relative error granted to exp and ln of a vector unit."""

UNTESTABLE = 0.2
QUICK = 0.1


@dataclass
class Analysis:
    """Bounds of a run: ``out`` (batches, KV_N, G, rows, V_D), the others (batches, KV_N, G, rows).

    ``lse_worst`` is the worst case of long sums, ``lse`` what a plain float32 evaluation makes likely.
    """

    out: F64
    lse: F64
    lse_worst: F64
    untestable: Bool


def quick_safe(q: F64, k: F64, squares: float, scale: float, precision: Precision) -> bool:
    """Whether a glance at the magnitudes proves that no row of a run is untestable.

    ``squares``: sum of squares of q (scaled by ``scale``) times that of k, which bounds the square of every score.
    """
    D = q.shape[-1]
    unit = (D + 7) * U + 5 * precision.score + precision.k * 4
    reach = precision.range * abs(scale)
    if _harmless(math.sqrt(squares), unit, reach):
        return True
    return _harmless(D * float(np.abs(q).max(initial=0.0)) * float(np.abs(k).max(initial=0.0)), unit, reach)


def _harmless(largest: float, unit: float, reach: float) -> bool:
    return unit * largest < QUICK and (reach == math.inf or largest < reach)


def analyse(
    q: F64,
    k: F64,
    v: F64,
    mask: Optional[RowMask],
    bias: Optional[RowBias],
    sink: Optional[F64],
    precision: Precision,
    *,
    scale: float,
) -> Analysis:
    """Bounds of a run, with the operands of ``attention.attend`` (query scaled by ``scale``)."""
    b, h, g, rows, _ = q.shape
    columns, width = k.shape[2], v.shape[3]
    shape = (b, h, g, rows)
    found = Analysis(np.zeros((*shape, width)), np.zeros(shape), np.zeros(shape), np.zeros(shape, np.bool_))
    exact = _exact_sums(q, k, scale)
    spread = np.abs(v)
    noise = 0.0
    units = np.zeros((b, h, g, rows))
    for block in blocks_of((b, h, g, rows, columns), mask):
        where = (block.batch, block.head, slice(None), slice(block.begin, block.end))
        part = None if sink is None else sink[block.head]
        out, lse, bad, delta, unit = _piece(q, k, v, spread, block, mask, bias, part, precision, exact, scale)
        found.out[where], found.lse_worst[where], found.untestable[where], units[where] = out, lse, bad, unit
        noise = max(noise, delta)
    found.lse = np.minimum(found.lse_worst, 8 * noise + units) if precision.usual else found.lse_worst
    return found


def _piece(
    q: F64,
    k: F64,
    v: F64,
    spread: F64,
    block: Block,
    mask: Optional[RowMask],
    bias: Optional[RowBias],
    sink: Optional[F64],
    precision: Precision,
    exact: bool,
    scale: float,
) -> tuple[F64, F64, Bool, float, F64]:
    s, hidden = scores_of(q, k, block, mask, bias, q.shape[2])
    b, h, g, rows, columns = s.shape
    width = v.shape[3]
    if columns == 0:
        none = np.zeros((b, h, g, rows))
        return np.zeros((b, h, g, rows, width)), none, none.astype(np.bool_), 0.0, none
    qb = q[block.batch, block.head, :, block.begin : block.end].reshape(b, h, g * rows, -1)
    kb = k[block.batch, block.head, block.first : block.last].swapaxes(-1, -2)
    vb = v[block.batch, block.head, block.first : block.last]
    ab = spread[block.batch, block.head, block.first : block.last]
    D = qb.shape[-1]
    magnitude = np.matmul(np.abs(qb), np.abs(kb)).reshape(s.shape)
    norm = np.sqrt(np.matmul(qb * qb, kb * kb)).reshape(s.shape)
    kept = np.isfinite(s)
    size = np.where(kept, np.abs(s), 0.0)
    raw = np.matmul(qb, kb).reshape(s.shape)
    finite = np.where(kept, s, -np.inf)
    p = s.copy()
    m, total, dead = softmax_rows(p, sink)
    if dead is not None:
        total[dead] = 1.0
    # Scores far below the maximum have p = 0 and do not matter; the gap keeps their own error finite.
    gap = np.where(kept, m - finite, 0.0)
    off = 3 * precision.score * size + 2 * precision.score * gap + precision.score * np.abs(raw)
    if not exact:
        off += (D + 2) * U * magnitude
    if precision.k:
        off += precision.k * (np.abs(raw) + 4 * norm)
    if bias is not None:
        off += U * np.where(kept, np.abs(s - raw), 0.0)
    w = p * np.expm1(np.minimum(off, 1.0))
    loss = w.sum(axis=-1, keepdims=True)
    bad = loss > UNTESTABLE * total
    if precision.range < np.inf:
        seen = np.ones(s.shape, np.bool_) if hidden is None else np.broadcast_to(~hidden, s.shape)
        largest = np.where(seen, np.abs(raw), 0.0).max(axis=-1, keepdims=True)
        limit = precision.range * abs(scale) if scale else np.inf
        bad |= largest > limit
    share = np.minimum(loss / total, 0.5)
    count = (min(columns, 512) + columns / 128 + 4) * U
    if precision.sums != U:
        count += (6 + np.log2(columns) + columns / 128) * precision.sums
    flat = (b, h, g * rows, columns)
    out = np.abs(np.matmul(p.reshape(flat), vb)).reshape(b, h, g, rows, width) / total
    mean = np.matmul(p.reshape(flat), ab).reshape(out.shape) / total
    bound = (np.matmul(w.reshape(flat), ab).reshape(out.shape) / total + out * share) / (1 - share)
    bound += (precision.p + EXP + count + precision.v) * mean
    if precision.p_step:
        # Rounding errors of one sign in all columns, and four deviations of independent ones; never more than the sum.
        flags = kept.astype(np.float64).reshape(flat)
        whole = np.matmul(flags, ab).reshape(out.shape)
        common = np.abs(np.matmul(flags, vb)).reshape(out.shape) + 4 * np.sqrt(np.matmul(flags, ab * ab)).reshape(out.shape)
        bound += precision.p_step * np.minimum(whole, common) / total
    bound += (count + EXP + precision.total) * out
    if precision.tiny > 2.0**-100:
        seen_v = np.matmul(kept.astype(np.float64).reshape(flat), ab).reshape(out.shape)
        bound += precision.tiny * seen_v / total
    bound += precision.out * (out + bound) + precision.floor
    lse = np.log(total) + m
    row_error = np.log1p(share) + count + EXP + precision.total + 4 * U * (np.abs(lse) + np.abs(m) + 1)
    if dead is not None:
        bound[dead[..., 0]] = 0.0
        row_error[dead] = 0.0
        bad &= ~dead
    delta, unit = _plain_float32(qb, kb, s, kept, bias is not None, raw, lse, dead, sink, scale, norm, D)
    return bound, row_error[..., 0], bad[..., 0], delta, unit


def _plain_float32(
    qb: F64,
    kb: F64,
    s: F64,
    kept: Bool,
    biased: bool,
    raw: F64,
    lse: F64,
    dead: Optional[Bool],
    sink: Optional[F64],
    scale: float,
    norm: F64,
    D: int,
) -> tuple[float, F64]:
    """Largest error of lse in a plain float32 evaluation of a block, and the unit granted to every row."""
    unit = 2 * U * np.sqrt(D) * np.where(kept, norm, 0.0).max(axis=-1) + 8 * U * (4 + np.abs(lse[..., 0]))
    if not scale or not np.isfinite(scale):
        return 0.0, unit
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        single = np.matmul((qb / scale).astype(np.float32), kb.astype(np.float32)).reshape(s.shape) * np.float32(scale)
        if biased:
            single += np.where(kept, s - raw, 0.0).astype(np.float32)
        single[~kept] = -np.inf
        top = single.max(axis=-1, keepdims=True)
        top[np.isneginf(top)] = 0.0
        if sink is not None:
            np.maximum(top, sink[:, :, None, None].astype(np.float32), out=top)
        total = np.exp(single - top).sum(axis=-1, keepdims=True)
        if sink is not None:
            total += np.exp(sink[:, :, None, None].astype(np.float32) - top)
        plain = np.log(total) + top
        off = np.abs(plain.astype(np.float64) - lse)
    if dead is not None:
        off[dead] = 0.0
    return float(np.nan_to_num(off, nan=0.0, posinf=0.0).max(initial=0.0)), unit


def _exact_sums(q: F64, k: F64, scale: float) -> bool:
    """Whether every partial sum of q * k is exact in float32: multiples of one unit, all below 2**24 units."""
    if not scale or not np.isfinite(scale):
        return False
    plain = q / scale
    steps = 1.0
    for x in (plain, k):
        for e in (0, 3, 4, 6, 8):
            scaled = x * 2.0**e
            # The query carries the scale; dividing it out again leaves an error of one unit of float64.
            if np.abs(scaled - np.rint(scaled)).max(initial=0.0) < 2.0**-20:
                steps *= 2.0**e
                break
        else:
            return False
    largest = float(np.abs(plain).max(initial=0.0)) * float(np.abs(k).max(initial=0.0)) * q.shape[-1]
    return bool(largest * steps < 2.0**24)
