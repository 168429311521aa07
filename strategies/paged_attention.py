"""Paged caches: block sizes and tables."""

from __future__ import annotations

from functools import cache
from typing import Any

from fiafuzz.model import limits
from fiafuzz.model.case import TensorSpec
from fiafuzz.model.limits import BLOCKS_MXFP8, BLOCKS_V3_MLA, BlockSizes, no_quant_blocks

from .diagram import Words, choice, derived
from .draft import Draft
from .ground import Ground
from .source import Source

_WORDS = (16, 32, 64, 128, 256, 512, 1024)
_WEIGHTS = {"16": 6, "32": 6, "64": 5, "128": 4, "256": 2, "512": 1, "1024": 1}


@derived
def block_menu(ground: Ground, scenario: str, form: str, store: str, paged: bool, single: bool,
               kv_dtype: str) -> tuple[str, str]:
    """Allowed words for D 64 or 128, and for another D, each in one string."""
    if not paged:
        return ("none", "none")
    found = []
    for head_size in ("64", "192"):
        allowed = block_sizes(ground, scenario, form, store, single, kv_dtype, head_size)
        other = ["other"] if any(n not in _WORDS for n in allowed) else []
        found.append(" ".join([*(str(n) for n in _WORDS if n in allowed), *other]))
    return (found[0], found[1])


@choice
def block_size(block_menu: tuple[str, str], head_size: str) -> Words:
    words = block_menu[0 if head_size in ("64", "128") else 1].split()
    # Large blocks make large caches: less often.
    return {word: _WEIGHTS.get(word, 3) for word in words}


def block_sizes(ground: Ground, scenario: str, layout: str, storage: str, single: bool, kv_dtype: str,
                head_size: str) -> tuple[int, ...]:
    """The block sizes that a paged call may have, smallest first."""
    if scenario in ("full_decode_mla", "full_gqa_fp8"):
        return (128,)
    if scenario == "full_mxfp8":
        return BLOCKS_MXFP8
    if scenario == "antiquant":
        return _antiquant(kv_dtype, single, ground.is_950).sizes()
    if scenario == "mla_decode":
        if not ground.v3_document:
            return limits.BLOCKS_MLA.sizes()
        return (128,) if storage == "NZ" else BLOCKS_V3_MLA
    if scenario != "gqa":
        return limits.BLOCKS_MLA.sizes()
    fixed = int(head_size) if head_size.isdigit() else 0
    source = no_quant_blocks(fixed, single)
    if ground.is_950:
        return source.sizes()
    return tuple(n for n in source.sizes() if _older_routes(ground, layout, single).allows(n))


def _antiquant(kv_dtype: str, single: bool, is_950: bool) -> BlockSizes:
    if not is_950 and not single:
        return limits.BLOCKS_V3_MULTI
    if kv_dtype in ("INT4", "FLOAT4_E2M1"):
        return limits.BLOCKS_ANTIQUANT_4BIT
    return limits.BLOCKS_ANTIQUANT_8BIT


def _older_routes(ground: Ground, layout: str, single: bool) -> BlockSizes:
    if layout == "TND":
        return limits.BLOCKS_V3_TND if ground.v3_document else limits.BLOCKS_V3_SINGLE
    return limits.BLOCKS_V3_SINGLE if single else limits.BLOCKS_V3_MULTI


# ---- building ---------------------------------------------------------------------------------


def choose_block_size(d: Draft) -> None:
    """Decide blockSize, before the lengths that like to lie at its edges."""
    word = d.words["block_size"]
    if word == "none":
        return
    if word != "other":
        d.block_size = int(word)
        return
    head_size = d.words["head_size"] if d.words["head_size"] in ("64", "128") else "192"
    sizes = _others(d.ground, d.scenario, d.layout.name, d.storage, d.single, d.words["kv_dtype"], head_size)
    # The smaller of two: small caches are made faster.
    last = len(sizes) - 1
    d.block_size = sizes[min(d.source.integer(0, last), d.source.integer(0, last))]


@cache
def _others(*call: Any) -> tuple[int, ...]:
    return tuple(n for n in block_sizes(*call) if n not in _WORDS)


def table(d: Draft) -> None:
    """Decide the cache's blocks and put the block table into the call: wide enough, permuted, with spare entries."""
    if not d.paged:
        return
    source, size = d.source, d.block_size
    used = [-(-n // size) for n in d.kv_lens]
    columns = max(1, max(used, default=1))
    # Masks, biases and scales are measured by the table's width in some places and by the blocks in use in others:
    # all of them are made as wide as the table.
    if source.chance(35):
        columns += source.integer(1, 2)
    d.table_columns = columns
    total = sum(used)
    d.blocks = max(1, total + (source.integer(0, 2) if source.chance(40) else 0))
    d.attrs["blockSize"] = size
    d.KV_S = columns * size
    if source.chance(6):
        # No literal entries: the default numbers the blocks row by row.
        d.tensor("blockTable", (len(used), columns), "INT32")
        return
    ids = _numbered(source, d.blocks)
    spare = source.choice((-1, 0, d.blocks - 1))
    values, at = [], 0
    for n in used:
        values += ids[at:at + n]
        values += [spare] * (columns - n)
        at += n
    first = next((b for b, n in enumerate(used) if n), None)
    if first is not None and source.chance(12):
        # A block that two batches share: every batch with keys begins with the same one.
        for b, n in enumerate(used):
            if n:
                values[b * columns] = values[first * columns]
    d.inputs["blockTable"] = TensorSpec((len(used), columns), "INT32", values=tuple(values))


def _numbered(source: Source, count: int) -> list[int]:
    """Block numbers 0 .. count - 1, turned and perhaps reversed: few draws however many blocks there are."""
    if count < 6:
        return source.order(count)
    shift = source.integer(0, count - 1)
    ids = [*range(shift, count), *range(shift)]
    return ids[::-1] if source.chance(50) else ids
