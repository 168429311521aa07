"""Which columns of a row are masked: the five sparse modes per batch (spec/numerics.md 5 and 6).

A row i and a column j count inside the valid part of a batch, prefix columns first. Modes 2, 3 and 4 follow the
formulas and never read the 2048 x 2048 tensor; modes 0 and 1 index it by absolute padded positions.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Optional

import numpy as np

from fiafuzz.model.layouts import MASK_COMPRESSED
from fiafuzz.model.parameters import INT_MAX
from fiafuzz.model.scene import Scene

from .expected import Bool, ReferenceError, Stored, Tensors

_triangles: weakref.WeakValueDictionary[int, Stored] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class Masking:
    """The masking of one case: sparse mode in force, the full tensor of modes 0 and 1, and the two tokens.

    ``tensor`` is (1 or B, rows, columns) with non-zero for masked; None when no tensor is read.
    ``undefined`` says why the documents define nothing for this mask's content, "" when they do.
    """

    mode: int
    tensor: Optional[Stored]
    pre: int
    next: int
    undefined: str = ""


@dataclass(frozen=True)
class RowMask:
    """The masking of one run of batches (equal lengths), ready to be applied to blocks of scores.

    Row i keeps columns [i + low, i + high]; None stands for an open side. ``tensor`` is (1 or count, rows, cols) cut
    to the run. ``banded`` says that tensor and band are both in force (mode 0), where they must not disagree.
    """

    low: Optional[int]
    high: Optional[int]
    tensor: Optional[Stored]
    banded: bool

    def columns(self, begin: int, end: int, total: int) -> tuple[int, int]:
        """The column range that any of the rows [begin, end) can see, inside [0, total)."""
        first = 0 if self.low is None else min(max(0, begin + self.low), total)
        last = total if self.high is None else min(max(first, end + self.high), total)
        return first, last

    def masked(self, begin: int, end: int, first: int, last: int) -> Optional[Bool]:
        """Masked elements of rows [begin, end) and columns [first, last): (1 or count, rows, columns), or None."""
        found: Optional[Bool] = None
        if self.tensor is not None:
            found = self.tensor[:, begin:end, first:last] != 0
        outside = self.outside(begin, end, first, last)
        if outside is None:
            return found
        return outside[None] if found is None else found | outside

    def outside(self, begin: int, end: int, first: int, last: int) -> Optional[Bool]:
        """Elements (rows, columns) outside the band, None when the band cuts nothing here."""
        found: Optional[Bool] = None
        if self.high is not None and last - 1 > begin + self.high:
            found = np.arange(first, last) > np.arange(begin + self.high, end + self.high)[:, None]
        if self.low is not None and first < end - 1 + self.low:
            left = np.arange(first, last) < np.arange(begin + self.low, end + self.low)[:, None]
            found = left if found is None else found | left
        return found

    def dead_by_band(self, rows: int, total: int) -> Bool:
        """Rows (rows,) that tokens and lengths alone leave without any column of [0, total)."""
        i = np.arange(rows)
        dead = np.zeros(rows, np.bool_)
        if self.high is not None:
            dead |= i + self.high < 0
        if self.low is not None:
            dead |= i + self.low >= total
        if self.high is not None and self.low is not None and self.high < self.low:
            dead[:] = True
        return dead

    def disputed(self, rows: int, total: int) -> Optional[Bool]:
        """Rows (1 or count, rows) where mode 0's tensor keeps a column that the tokens exclude, None when there are
        none.

        Kernels skip whole blocks outside the band and apply only the tensor inside (spec/numerics.md 6, caution).
        """
        if not self.banded or self.tensor is None:
            return None
        outside = self.outside(0, rows, 0, total)
        if outside is None:
            return None
        found: Bool = ((self.tensor[:, :rows, :total] == 0) & outside).any(axis=-1)
        return found if found.any() else None


def masking(scene: Scene, tensors: Tensors, legacy: bool) -> Masking:
    """The masking of a case. ReferenceError for modes and tensors that cannot be applied."""
    mode = 0 if legacy else scene.sparse_mode
    if not scene.mask_on:
        if mode != 0:
            raise ReferenceError(f"sparseMode {mode} without attenMask")
        return Masking(0, None, INT_MAX, INT_MAX)
    stored = tensors.get("attenMask")
    if stored is None or isinstance(stored, list):
        raise ReferenceError("attenMask has no tensor")
    if mode in (2, 3, 4):
        pre, following = (INT_MAX, 0) if mode in (2, 3) else scene.tokens
        return Masking(mode, None, pre, following, _triangle_fault(stored))
    if mode not in (0, 1):
        raise ReferenceError(f"sparseMode {mode} is not computed")
    pre, following = (INT_MAX, INT_MAX) if legacy else scene.tokens
    tensor = _full_mask(scene, stored)
    undefined = ""
    if legacy and scene.sparse_mode in (2, 3, 4):
        undefined = "compressed mask on the old single-token path"
    elif tensor.dtype.kind != "b" and tensor.size and (int(tensor.max()) > 1 or int(tensor.min()) < 0):
        undefined = "mask values outside 0 and 1"
    return Masking(mode, tensor, pre, following, undefined)


def _full_mask(scene: Scene, stored: Stored) -> Stored:
    """The mask as (1 or B, rows, columns). Two axes mean (B, KV_S) for one query row on A2 and A3, else (Q_S, KV_S)."""
    if stored.ndim == 4 and stored.shape[1] == 1:
        stored = stored[:, 0]
    elif stored.ndim == 2:
        by_batch = scene.single_token and not scene.is_950 and stored.shape[0] in (1, scene.B)
        stored = stored[:, None] if by_batch else stored[None]
    if stored.ndim != 3 or stored.shape[0] not in (1, scene.B):
        raise ReferenceError(f"attenMask of shape {stored.shape} does not fit sparseMode 0 or 1")
    return stored


def _triangle_fault(stored: Stored) -> str:
    """What is wrong with the content of a compressed mask; read-only tensors are looked at only once."""
    if _triangles.get(id(stored)) is stored:
        return ""
    edge = MASK_COMPRESSED
    if stored.shape[-2:] != (edge, edge) or stored.size != edge * edge:
        raise ReferenceError(f"attenMask of shape {stored.shape} does not fit sparseMode 2, 3 or 4")
    flat = stored.reshape(edge, edge)
    if not np.array_equal(flat, _triangle()):
        return "compressed mask is not the upper triangle"
    if not stored.flags.writeable:
        _triangles[id(stored)] = stored
    return ""


_triangle_cache: list[Stored] = []


def _triangle() -> Stored:
    if not _triangle_cache:
        _triangle_cache.append(np.triu(np.ones((MASK_COMPRESSED, MASK_COMPRESSED), np.int8), 1))
    return _triangle_cache[0]


def row_mask(rule: Masking, *, first: int, count: int, rows: int, total: int, q_begin: int, k_begin: int) -> Optional[RowMask]:
    """The masking of batches [first, first + count) of ``rows`` rows and ``total`` columns; None when nothing is
    masked.

    ReferenceError when the tensor is smaller than the data.
    """
    if rule.mode == 0 and rule.tensor is None:
        return None
    low: Optional[int] = None
    high: Optional[int] = None
    shift = total - rows if rule.mode in (3, 4) else 0
    if rule.mode != 1:
        low = shift - rule.pre if rule.pre < INT_MAX else None
        high = shift + rule.next if rule.next < INT_MAX else None
    tensor = None
    if rule.tensor is not None:
        part = rule.tensor if rule.tensor.shape[0] == 1 else rule.tensor[first : first + count]
        tensor = part[:, q_begin : q_begin + rows, k_begin : k_begin + total]
        if tensor.shape[1:] != (rows, total):
            raise ReferenceError(f"attenMask of {rule.tensor.shape[1:]} is smaller than {rows} rows and {total} columns")
    return RowMask(low, high, tensor, rule.mode == 0)
