"""Planted faults of the room paged_attention: block tables and cache layouts."""

from __future__ import annotations

from typing import Any

from .record import MANY, PAGED, SEVERAL_KV, Fault


def set_table(k: Any, table: Any) -> None:
    """Give every reader of the block table another one."""
    k.x.table = table
    for columns in (k.x.key, k.x.value, k.x.key_rope):
        if columns is not None:
            columns.table = table


def _other_batch(correct: Any, k: Any) -> None:
    if k.x.table is not None:
        rolled = k.x.table[: k.p.B].roll(-1, 0)
        set_table(k, rolled.where(rolled >= 0, k.x.table[: k.p.B]))


def _in_order(correct: Any, k: Any) -> None:
    if k.x.table is not None:
        import torch

        rows, columns = k.x.table.shape
        set_table(k, (torch.arange(rows * columns) % k.x.key.cache.shape[0]).view(rows, columns))


def _no_part_block(correct: Any, k: Any) -> None:
    from dataclasses import replace

    if k.p.storage == "paged":
        size = k.p.block_size
        k.p.spans = [replace(s, kv_len=s.kv_len // size * size if s.kv_len > size else s.kv_len) for s in k.p.spans]


def _whole_last_block(correct: Any, k: Any) -> None:
    from dataclasses import replace

    if k.p.storage == "paged" and k.x.mask is None and k.x.pse is None:
        size = k.p.block_size
        k.p.spans = [replace(s, kv_len=-(-s.kv_len // size) * size) for s in k.p.spans]


def _fractal_swapped(correct: Any, k: Any, span: Any) -> Any:
    found, cache = correct(span), k.x.key.cache
    if cache is None or cache.dim() != 5:
        return found
    return found.unflatten(-1, (cache.shape[2], cache.shape[4])).transpose(-1, -2).flatten(-2)


def _rows_before_heads(correct: Any, k: Any) -> None:
    cache = k.x.key.cache
    if cache is not None and k.p.scene.cache_layout == "BnNBsD" and k.x.value is not k.x.key:
        blocks, heads, size, _ = cache.shape
        k.x.value.cache = k.x.value.cache.reshape(blocks, size, heads, -1).transpose(1, 2)


def _first_row_of_block(correct: Any, k: Any, span: Any) -> Any:
    found = correct(span)
    if k.x.key.cache is None:
        return found
    import torch

    size = k.p.block_size
    return found[:, :, torch.arange(found.shape[2]).div(size, rounding_mode="floor").mul(size)]


FAULTS: tuple[Fault, ...] = (
    Fault(
        "table-of-other-batch",
        "each batch reads the block table of the next",
        "paged_attention",
        {"prepare": _other_batch},
        {"storage": PAGED, "batch": MANY},
        ("tables that differ",),
    ),
    Fault(
        "table-ignored",
        "blocks are read in the order in which they are stored",
        "paged_attention",
        {"prepare": _in_order},
        {"storage": PAGED},
        ("a table that is not the identity",),
    ),
    Fault(
        "tail-block-dropped",
        "a last, partly filled block is not read",
        "paged_attention",
        {"prepare": _no_part_block},
        {"storage": PAGED},
        ("a length over one block and no whole number of blocks",),
    ),
    Fault(
        "whole-last-block",
        "the last block is read to its end",
        "paged_attention",
        {"prepare": _whole_last_block},
        {"storage": PAGED},
        ("a length that is no whole number of blocks",),
    ),
    Fault(
        "nz-swapped",
        "the two parts of the head axis of NZ keys are exchanged",
        "paged_attention",
        {"x.key.fetch": _fractal_swapped},
        {"storage": "NZ"},
    ),
    Fault(
        "bnnbsd-as-bnbsnd",
        "values in BnNBsD are read as if rows came before heads",
        "paged_attention",
        {"prepare": _rows_before_heads},
        {"storage": "BnNBsD", "group": SEVERAL_KV},
        ("more than one key head",),
    ),
    Fault(
        "first-row-of-block",
        "every key of a block is its first row",
        "paged_attention",
        {"x.key.fetch": _first_row_of_block},
        {"storage": PAGED},
        ("a length of more than one key",),
    ),
)
