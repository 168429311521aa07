"""Reading rows of query, key and value out of any layout, list or paged cache, still in storage form.

Every reader gives an array (batches, heads, rows, D) for a run of batches of equal lengths
(spec/numerics.md 1.1, 3, 10, 13).
"""

from __future__ import annotations

import numpy as np

from .expected import ReferenceError, Stored


def heads_first(array: Stored, axes: str, heads: int) -> Stored:
    """A view (B, N, S, D) of a padded tensor or (N, T, D) of a packed one.

    ``axes``: letters of ``model.layouts``; H is split into ``heads`` heads, head n standing at [n*D, (n+1)*D).
    ReferenceError when rank or heads do not fit.
    """
    if array.ndim != len(axes):
        raise ReferenceError(f"a tensor of rank {array.ndim} does not fit the axes {axes}")
    if axes == "BSH":
        B, S, H = array.shape
        if heads <= 0 or H % heads:
            raise ReferenceError(f"axis H of {H} does not divide into {heads} heads")
        return np.asarray(array.reshape(B, S, heads, H // heads).transpose(0, 2, 1, 3))
    if array.shape[axes.index("N")] != heads:
        raise ReferenceError(f"a tensor with {array.shape[axes.index('N')]} heads instead of {heads}")
    order = {"BSND": (0, 2, 1, 3), "NBSD": (1, 0, 2, 3), "TND": (1, 0, 2)}.get(axes)
    return array if order is None else array.transpose(order)


def padded_rows(view: Stored, first: int, count: int, begin: int, rows: int, heads: slice) -> Stored:
    """Rows [begin, begin + rows) of batches [first, first + count) of a (B, N, S, D) view."""
    B, _, S, _ = view.shape
    if first + count > B or begin < 0 or begin + rows > S:
        raise ReferenceError(f"rows {begin} .. {begin + rows} of batch {first + count - 1} are outside the tensor")
    return view[first : first + count, heads, begin : begin + rows]


def packed_rows(view: Stored, offset: int, count: int, rows: int, heads: slice) -> Stored:
    """``count`` batches of ``rows`` tokens each, back to back from token ``offset`` of an (N, T, D) view."""
    end = offset + count * rows
    if end > view.shape[1]:
        raise ReferenceError(f"token {end} is behind the end of a packed tensor of {view.shape[1]}")
    part = view[heads, offset:end]
    return np.asarray(part.reshape(part.shape[0], count, rows, part.shape[2]).transpose(1, 0, 2, 3))


def cache_heads(cache: Stored, heads: int) -> tuple[Stored, int]:
    """A view (blocks, N, blockSize, D1, D0) of a paged cache of any of the three layouts, and its block size."""
    if cache.ndim == 3:
        blocks, size, H = cache.shape
        if heads <= 0 or H % heads:
            raise ReferenceError(f"a cache row of {H} elements does not divide into {heads} heads")
        return cache.reshape(blocks, size, heads, 1, H // heads).transpose(0, 2, 1, 3, 4), size
    if cache.ndim == 4:
        view = cache[:, :, :, None, :]
    elif cache.ndim == 5:
        view = cache.transpose(0, 1, 3, 2, 4)
    else:
        raise ReferenceError(f"a paged cache of rank {cache.ndim}")
    if view.shape[1] != heads:
        raise ReferenceError(f"a cache with {view.shape[1]} heads instead of {heads}")
    return view, view.shape[2]


def block_ids(table: Stored, first: int, count: int, rows: int, size: int, blocks: int) -> NDArrayInt:
    """Blocks (count, ceil(rows / size)) that hold the first ``rows`` columns of the batches.

    ReferenceError for ids outside the cache; entries that are not needed are not looked at.
    """
    if table.ndim != 2 or size <= 0:
        raise ReferenceError("blockTable is not of rank 2, or blockSize is not positive")
    needed = -(-rows // size)
    if first + count > table.shape[0] or needed > table.shape[1]:
        raise ReferenceError(f"blockTable of shape {table.shape} has no {needed} entries for batch {first + count - 1}")
    ids = table[first : first + count, :needed].astype(np.intp)
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < blocks:
        raise ReferenceError(f"blockTable names a block outside 0 .. {blocks - 1}")
    return ids


def paged_rows(cache: Stored, heads: int, ids: NDArrayInt, rows: int, chosen: slice) -> Stored:
    """The first ``rows`` cache rows behind ``ids`` (count, blocks needed), as (count, N, rows, D)."""
    view, size = cache_heads(cache, heads)
    got = view[:, chosen][ids]  # (count, needed, N, size, D1, D0)
    count, needed, N, _, D1, D0 = got.shape
    return np.asarray(got.transpose(0, 2, 1, 3, 4, 5).reshape(count, N, needed * size, D1 * D0)[:, :, :rows])


def paged_per_token(parameter: Stored, ids: NDArrayInt, rows: int) -> Stored:
    """Per-token parameters kept by block: (blocks, size) or (blocks, N, size) -> (count, 1 or N, rows)."""
    view = parameter[:, None] if parameter.ndim == 2 else parameter
    got = view[ids]  # (count, needed, N, size)
    count, needed, N, size = got.shape
    return np.asarray(got.transpose(0, 2, 1, 3).reshape(count, N, needed * size)[:, :, :rows])


NDArrayInt = np.ndarray[tuple[int, ...], np.dtype[np.intp]]
