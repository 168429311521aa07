"""The block table, the lengths that paging needs, and what has to be as wide as the blocks."""

from __future__ import annotations

from typing import Optional

from msgspec.structs import replace

from fiafuzz.model.scene import Scene

from ..changes import add_axis, cast, drop, entries, merge_axes, resize, where, widen
from ..rule import DOC_950, DOC_A2A3_V3, DOC_A2A3_V5, Basis, Boundary, Break, Effect, Level, Rule, Words
from .facts import ALL, GROUP, NO_WIDTHS, PAGED, UNSCALED, V5, caches, newer_route, table_columns, used_blocks

Lens = tuple[int, ...]


def _rows(s: Scene) -> int:
    shape = s.shape("blockTable")
    return shape[0] if shape else 0


def _not_empty_table(s: Scene) -> bool:
    columns = table_columns(s)
    return s.paged and columns is not None and columns > 0 and _rows(s) > 0


def _table_fits(s: Scene) -> bool:
    needed, columns = s.needed_blocks, table_columns(s)
    return needed is None or columns is None or columns >= needed


def _one_token_too_many(s: Scene, lens: Lens) -> Optional[Lens]:
    return None if s.table_span is None else (s.table_span + 1, *lens[1:])


def _to_the_last_block(s: Scene) -> Optional[dict[str, object]]:
    """A length of all that the table reaches, in a table without literal values and a cache of enough blocks."""
    span, blocks, used = s.table_span, s.cache_blocks, used_blocks(s)
    lens, table = s.inputs.actualSeqLengthsKv, s.inputs.blockTable
    if span is None or blocks is None or used is None or not lens or table is None or len(lens) != s.B:
        return None
    if used - -(-lens[0] // s.block_size) + span // s.block_size > blocks:
        return None
    return {"actualSeqLengthsKv": (span, *lens[1:]), "blockTable": replace(table, values=None)}


def _exact(s: Scene, _: int) -> Optional[int]:
    return s.needed_blocks or None


def _one_short(s: Scene, _: int) -> Optional[int]:
    return s.needed_blocks - 1 if s.needed_blocks is not None and s.needed_blocks > 1 else None


def _ids_exist(s: Scene) -> bool:
    """Whether literal table values name existing blocks wherever a length reaches; without values, whether the cache
    has a block for each that the lengths need."""
    table, blocks, columns = s.inputs.blockTable, s.cache_blocks, table_columns(s)
    if table is None or blocks is None or columns is None or s.kv_lens is None or s.block_size <= 0:
        return True
    if table.values is None or len(table.values) != table.numel:
        used = used_blocks(s)
        return used is None or used <= blocks
    for row, length in enumerate(s.kv_lens[: _rows(s)]):
        reached = min(columns, max(0, -(-length // s.block_size)))
        for value in table.values[row * columns: row * columns + reached]:
            if not isinstance(value, int) or not 0 <= value < blocks:
                return False
    return True


def _bad_id(s: Scene) -> Optional[dict[str, object]]:
    table, blocks = s.inputs.blockTable, s.cache_blocks
    if table is None or blocks is None or not s.kv_lens or s.kv_lens[0] <= 0 or not 0 < table.numel <= 4096:
        return None
    others = tuple(i % blocks for i in range(1, table.numel))
    return {"blockTable": replace(table, values=(blocks, *others), fill=None)}


def _last_id(s: Scene) -> Optional[dict[str, object]]:
    table, blocks = s.inputs.blockTable, s.cache_blocks
    if table is None or not blocks or not 0 < table.numel <= 4096:
        return None
    return {"blockTable": replace(table, values=(blocks - 1,) * table.numel, fill=None)}


def _too_few_blocks(s: Scene) -> Optional[dict[str, object]]:
    used, table = used_blocks(s), s.inputs.blockTable
    if table is None or table.values is not None or used is None or used < 2:
        return None
    found = resize(caches(s), "Bn", used - 1)(s)
    return None if found is None else dict(found)


def _wide_enough(s: Scene) -> bool:
    mask = s.shape("attenMask")
    return mask is None or s.paged_columns is None or (len(mask) > 0 and mask[-1] >= s.paged_columns)


def _exact_mask(s: Scene) -> Optional[dict[str, object]]:
    """A mask of the smallest width, and a table of no more columns than the lengths need."""
    mask, table, columns = s.inputs.attenMask, s.inputs.blockTable, s.needed_blocks
    if mask is None or table is None or not columns:
        return None
    return {"attenMask": replace(mask, shape=(*mask.shape[:-1], columns * s.block_size), values=None, strides=None),
            "blockTable": replace(table, shape=(*table.shape[:1], columns), values=None)}


def _span(s: Scene, _: int) -> Optional[int]:
    return s.paged_columns or None


def _span_less_one(s: Scene, _: int) -> Optional[int]:
    return s.paged_columns - 1 if s.paged_columns is not None and s.paged_columns > 1 else None


_NEWER: Words = {**UNSCALED, "layout": ("BSH", "BSND", "BNSD", "BNSD_BSND")}
_MASKED: Words = {**PAGED, "sparse_mode": ("0", "1"), "mask_shape": ("3d", "4d"), "prefix": "none"}

RULES: tuple[Rule, ...] = (
    Rule("FIA-PA-001", "block table is INT32", GROUP, Level.SINGLE, ALL,
         ("v5.paged_attention.single.block_table_dtype", "v3.paged_attention.single.block_table_table"),
         lambda s: s.paged and newer_route(s), lambda s: s.dtype("blockTable") == "INT32",
         enforced_by="CheckBlockTableDtype",
         limit="INT32",
         note="measured: 561002 from tiling; an optional tensor takes no part in the dtype match",
         breaks=(Break("dtype", cast("INT64", "blockTable"), _NEWER),
                 Break("dtype", cast("FLOAT16", "blockTable"), _NEWER))),
    Rule("FIA-PA-010", "block table is INT32", GROUP, Level.SINGLE, DOC_A2A3_V5 | DOC_A2A3_V3,
         ("v5.paged_attention.single.block_table_dtype", "v3.paged_attention.single.block_table_table"),
         lambda s: s.paged and not newer_route(s), lambda s: s.dtype("blockTable") == "INT32", basis=Basis.DOCUMENTED,
         limit="INT32", note="the older routes do not look",
         breaks=(Break("dtype", cast("INT64", "blockTable"), {**PAGED,
                                                              "scenario": ("antiquant", "full_decode_mla")}),)),
    Rule("FIA-PA-002", "block table has two axes", GROUP, Level.SINGLE, ALL,
         ("v5.paged_attention.single.block_table_rank", "v3.paged_attention.single.block_table_table",
          "v3.paged_attention.single.qs_gt1_block_table_2d", "v3.paged_attention.single.qs_eq1_block_table_2d"),
         lambda s: s.paged, lambda s: table_columns(s) is not None, enforced_by="GetBlockTableDim2", limit="rank 2",
         note="read by the parser, but after it has let an empty call go",
         breaks=(Break("rank", add_axis("blockTable", 2), PAGED), Break("rank", merge_axes("blockTable"), PAGED))),
    Rule("FIA-PA-003", "block table is not empty", GROUP, Level.SINGLE, V5,
         ("v5.paged_attention.single.block_table_no_zero_dim", "v5.interface.single.empty_block_table"),
         lambda s: s.paged and table_columns(s) is not None, _not_empty_table, enforced_by="CheckBlockTableShapeSize",
         limit="every axis >= 1",
         breaks=(Break("below", resize("blockTable", 0, 0), PAGED),
                 Break("below", resize("blockTable", 1, 0), {**UNSCALED, **NO_WIDTHS})),
         boundaries=(Boundary(resize("blockTable", 1, _exact), resize("blockTable", 1, 0), {**UNSCALED, **NO_WIDTHS},
                              limit="1 column"),)),
    Rule("FIA-PA-004", "block table has one row a batch", GROUP, Level.SINGLE, V5,
         ("v5.paged_attention.single.block_table_dim0",),
         lambda s: s.B is not None and _not_empty_table(s), lambda s: _rows(s) == s.B,
         enforced_by="CheckBlockTableShape",
         limit="rows == B", note="B of the TND and NTD families is the number of sequences",
         breaks=(Break("above", widen("blockTable", 0), PAGED),
                 Break("below", where(lambda s: s.B is not None and s.B > 1, widen("blockTable", 0, -1)), PAGED))),
    Rule("FIA-PA-005", "block table has one row a batch", GROUP, Level.SINGLE, DOC_A2A3_V3,
         ("v3.paged_attention.consistency.qs_gt1_block_table_dim0", "v3.paged_attention.single.block_table_table",
          "v3.paged_attention.consistency.qs_eq1_block_table_dim0"),
         lambda s: s.B is not None and _not_empty_table(s), lambda s: _rows(s) == s.B, basis=Basis.DOCUMENTED,
         limit="rows == B", note="the fast TND route and the decode route do not compare the rows",
         breaks=(Break("above", widen("blockTable", 0), PAGED),
                 Break("below", where(lambda s: s.B is not None and s.B > 1, widen("blockTable", 0, -1)), PAGED))),
    Rule("FIA-PA-006", "block table is wide enough for the longest sequence", GROUP, Level.SINGLE, ALL,
         ("v5.paged_attention.single.block_table_dim1", "v3.paged_attention.single.block_table_table",
          "v3.paged_attention.consistency.qs_gt1_block_table_dim1",
          "v3.paged_attention.consistency.qs_eq1_block_table_dim1"),
         _not_empty_table, _table_fits, enforced_by="CheckBlockTableShape",
         limit="columns >= max ceil(actualSeqLengthsKv / blockSize)",
         breaks=(Break("below", resize("blockTable", 1, _one_short), UNSCALED),
                 Break("above", entries("actualSeqLengthsKv", _one_token_too_many), {**UNSCALED, **NO_WIDTHS},
                       entails=("FIA-PA-008",), note="one token more than the table reaches")),
         boundaries=(Boundary(resize("blockTable", 1, _exact), resize("blockTable", 1, _one_short), UNSCALED,
                              limit="columns == max ceil(actualSeqLengthsKv / blockSize)"),
                     Boundary(_to_the_last_block,
                              entries("actualSeqLengthsKv", _one_token_too_many), {**UNSCALED, **NO_WIDTHS},
                              entails=("FIA-PA-008",), limit="columns x blockSize tokens"))),
    Rule("FIA-PA-007", "paging needs the key lengths", GROUP, Level.EXISTENCE, ALL,
         ("v5.paged_attention.existence.actual_seq_lengths_kv", "v5.actual_seq_len.existence.kv_pa_required",
          "v3.paged_attention.existence.qs_gt1_kv_lengths", "v3.paged_attention.existence.qs_eq1_kv_lengths"),
         lambda s: s.paged, lambda s: s.inputs.actualSeqLengthsKv is not None, enforced_by="CheckSeqLengthKVExistence",
         breaks=(Break("absent", drop("actualSeqLengthsKv"), PAGED),)),
    Rule("FIA-PA-008", "used block ids exist in the cache", GROUP, Level.SINGLE, DOC_950 | DOC_A2A3_V5 | DOC_A2A3_V3,
         ("v5.paged_attention.single.block_table_values", "v5.paged_attention.single.block_count",
          "v3.paged_attention.single.qs_gt1_block_ids_unchecked", "v3.paged_attention.consistency.qs_gt1_block_num",
          "v3.paged_attention.consistency.qs_eq1_block_num"),
         lambda s: s.paged and bool(s.inputs.actualSeqLengthsKv), _ids_exist, effect=Effect.UNSPECIFIED,
         basis=Basis.DOCUMENTED,
         limit="0 <= id < blocks where a length reaches; without values: blocks >= sum of ceil(length / blockSize)",
         note="nothing checks it; an id out of range reads foreign memory",
         breaks=(Break("value", _bad_id, PAGED), Break("below", _too_few_blocks, UNSCALED)),
         boundaries=(Boundary(_last_id, _bad_id, PAGED, limit="id == blocks - 1"),)),
    Rule("FIA-PA-009", "mask is as wide as the blocks", GROUP, Level.CROSS, ALL,
         ("v5.paged_attention.cross.mask_width", "v5.attention_mask.consistency.antiquant_decode_kv_pa",
          "v3.paged_attention.cross.qs_gt1_mask_kv_s"),
         lambda s: s.paged and s.inputs.attenMask is not None and s.sparse_mode in (0, 1), _wide_enough,
         enforced_by="CheckMaskShape",
         limit="last axis >= max ceil(length / blockSize) x blockSize; with antiquant >= table columns x blockSize",
         note="sparseMode 2, 3 and 4 want 2048 x 2048 whatever the width; an empty mask counts as too narrow here",
         breaks=(Break("below", resize("attenMask", -1, _span_less_one), _MASKED),),
         boundaries=(Boundary(_exact_mask,
                              resize("attenMask", -1, _span_less_one), _MASKED,
                              limit="last axis == blocks x blockSize"),)),
)
