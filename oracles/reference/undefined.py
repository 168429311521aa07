"""Elements that must not be compared, or may hold one of two numbers (spec/numerics.md 20, 24 and corrections 1, 10,
11).
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from fiafuzz.model.codecs import decode

from .attention_mask import RowMask
from .canvas import COMPUTED, DEAD, NO_KEYS, PADDED, Canvas
from .expected import F64, Bool, Stored
from .problem import Problem, Run

A2_MARKER = -1e11
"""A2 and A3 mark rows without keys by numbers below this (-1e12 + ln(columns), -2e38, -3.4e38)."""

LEGACY_LSE = "lse marker of the old single-token path"
FINITE_LOWEST = float(np.finfo(np.float32).min)


SCANNED = 1 << 24
"""Elements of a cache up to which unused parts are looked at."""

EXP_RANGE = 88.7
"""exp of more than this overflows float32."""


def row_correction(problem: Problem) -> bool:
    """Whether innerPrecise asks for fully masked rows to be 0 (bit 1)."""
    return bool(problem.scene.inner_precise & 2)


def after_run(canvas: Canvas, run: Run, mask: Optional[RowMask], dead: Optional[Bool], value: F64, biased_away: bool) -> None:
    """Apply the rules about rows of one run: disputed rows of mode 0, fully masked rows.

    ``dead`` (batches, KV_N, G, rows) marks fully masked rows, ``biased_away`` says that a bias of -inf may be the
    cause.
    """
    p = canvas.problem
    if mask is not None:
        disputed = mask.disputed(run.rows, run.total)
        if disputed is not None:
            canvas.exclude(canvas.marked(run, disputed[:, None]), "mode 0 mask open outside the tokens")
    if dead is None:
        return
    rows: Bool = dead.reshape(run.count, -1, run.rows)
    if biased_away:
        canvas.exclude(canvas.marked(run, rows), "row fully hidden by a bias of -inf")
        return
    marked = canvas.marked(run, rows)
    if not row_correction(p):
        by_band = np.zeros(run.rows, np.bool_) if mask is None else mask.dead_by_band(run.rows, run.total)
        canvas.exclude(canvas.marked(run, rows & ~by_band), "fully masked row without row correction", lse=False)
        if not p.scene.is_950:
            canvas.allow_lse(marked, "marker of a fully masked row", low=-np.inf, high=A2_MARKER)
    if p.scene.is_950:
        canvas.allow_lse(marked, "marker of a fully masked row when keys are split", low=FINITE_LOWEST, high=-3.3e38)
    if p.scene.quant_kind == "antiquant" and p.scene.single_token and row_correction(p) and not p.scene.post_quant_on:
        mean = value.mean(axis=2)  # (batches, KV_N, V_D)
        spread = np.zeros(canvas.out_rows.shape)
        canvas.window(spread, run)[...] = np.repeat(mean, p.G, axis=1)[:, :, None]
        canvas.allow_out(marked, spread, "antiquant with one query row: mean of the value rows")


def after_sink(canvas: Canvas, run: Run, sink: F64, plain: F64) -> None:
    """A sink far above all scores overflows where the row maximum leaves it out: lse may then be +inf (corrections
    13).

    ``sink`` is (KV_N, G), ``plain`` the lse without it (batches, KV_N, G, rows), which is at most ln(columns) above
    the row maximum.
    """
    lifted = np.isfinite(plain) & (sink[None, :, :, None] - plain + np.log(max(run.total, 1)) > EXP_RANGE)
    canvas.allow_lse(
        canvas.marked(run, lifted.reshape(run.count, -1, run.rows)),
        "sink far above the scores",
        low=np.inf,
        high=np.inf,
    )


def mark_no_keys(canvas: Canvas) -> None:
    """Mark the rows of batches without any key."""
    p = canvas.problem
    for b in range(p.B):
        if p.kv_lens[b] == 0 and p.q_lens[b] > 0 and p.prefix == 0 and not p.overflown(b):
            canvas.batch_rows(canvas.state, b)[...] = NO_KEYS


def after_all(canvas: Canvas, offset: Optional[F64]) -> None:
    """Apply the rules about whole rows and batches, and about inputs for which nothing is defined.

    ``offset`` is that of post-quantisation, None without one.
    """
    p, scene = canvas.problem, canvas.problem.scene
    if p.masking.undefined:
        canvas.exclude_all(p.masking.undefined)
    if not np.isfinite(p.scale):
        canvas.exclude_all("scaleValue is not finite")
    if scene.packed:
        used = sum(p.q_lens)
        if used < p.rows:
            behind = np.zeros(canvas.state.shape, np.bool_)
            behind[:, used:] = True
            canvas.exclude(behind, "row behind the last length of a packed layout")
    if p.legacy:
        canvas.allow_lse(canvas.state != COMPUTED, LEGACY_LSE, low=-np.inf, high=A2_MARKER)
    elif scene.packed and not scene.is_950:
        canvas.allow_lse(canvas.state == NO_KEYS, "lse of a sequence without keys on A2 and A3", low=-np.inf, high=-np.inf)
    if p.prefix and 0 in p.kv_lens:
        _prefix_alone(canvas, offset)
    if any(p.overflown(b) for b in range(p.B) if p.q_lens[b]):
        _overflown(canvas)


def _prefix_alone(canvas: Canvas, offset: Optional[F64]) -> None:
    """A batch without own keys behind a shared prefix: computed over the prefix, or 0 and +inf (corrections 1)."""
    p = canvas.problem
    where = np.zeros(canvas.state.shape, np.bool_)
    for b in range(p.B):
        if p.kv_lens[b] == 0:
            canvas.batch_rows(where, b)[...] = True
    canvas.allow_out(where, np.zeros(1), "batch without own keys behind a prefix")
    if offset is not None:
        canvas.allow_out(where, offset, "batch without own keys behind a prefix")
    canvas.allow_lse(where, "batch without own keys behind a prefix", low=np.inf, high=np.inf)


def _overflown(canvas: Canvas) -> None:
    """Left padding without room: the published reference gives 0 everywhere, kernels only in that batch
    (spec/numerics.md 11).
    """
    why = "left padding without room in some batch"
    canvas.allow_out(canvas.state == COMPUTED, canvas.out_rows.copy(), why)
    canvas.out[...] = 0.0
    canvas.lse[...] = np.inf
    canvas.state[...] = PADDED
    canvas.exclude(np.ones(canvas.state.shape, np.bool_), why, out=False)


def special_inputs(problem: Problem) -> bool:
    """Whether inf or NaN stand where nothing is defined for them (spec/numerics.md 20).

    A bias and a sink may hold -inf. Keys and values that no length reaches are loaded with their tile all the same,
    so they must be finite too; caches are only looked at up to a size.
    """
    p = problem
    if p.bias is not None:
        numbers = p.bias.slopes
        if numbers is None and p.bias.tensor is not None and not all_finite(p.bias.dtype, p.bias.tensor):
            numbers = np.asarray(decode(p.bias.dtype, p.bias.tensor), dtype=np.float64)
        if numbers is not None and not bool((numbers < np.inf).all()):
            return True
    if p.sink is not None and not bool((p.sink < np.inf).all()):
        return True
    partly = p.scene.paged or any(n != p.scene.KV_S for n in p.kv_lens)
    if not partly:
        return False
    for name in ("key", "value"):
        found = p.tensors.get(name)
        for stored in found if isinstance(found, list) else (found,):
            if stored is not None and stored.size <= SCANNED and not all_finite(p.dtype(name), stored):
                return True
    return False


def all_finite(dtype: str, stored: Stored) -> bool:
    """Whether a tensor of a 16-bit or 32-bit float holds neither inf nor NaN; True for other formats."""
    if stored.dtype.kind == "f":
        return bool(np.isfinite(stored).all())
    return dtype != "BFLOAT16" or not bool(((stored & np.uint16(0x7F80)) == 0x7F80).any())


def zero_rows(canvas: Canvas) -> Bool:
    """Rows that hold no result: padding, no keys, fully masked."""
    return canvas.allow_states((PADDED, NO_KEYS, DEAD))
