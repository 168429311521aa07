"""Moving operands between layouts and caches loses nothing, and outputs are read where they stand."""

from __future__ import annotations

import numpy as np
import pytest

from fiafuzz.model.layouts import CACHE_LAYOUTS
from fiafuzz.model.tensors import materialize
from oracles.metamorphic import RELATIONS, Call, relation_by_name
from oracles.metamorphic.call import batches, cache_blocks, from_heads, gathered, heads_first, joined, rows_of, to_cache
from oracles.metamorphic.conditions import kept

from .backend_cases import call


def numbers(*shape: int) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=np.float64).reshape(shape)


@pytest.mark.parametrize("axes", ["BSH", "BSND", "BNSD", "NBSD"])
def test_batch_layouts_there_and_back(axes: str) -> None:
    whole = numbers(2, 3, 5, 4)  # (B, N, S, D)
    array = from_heads(axes, whole)
    assert array.shape == {"BSH": (2, 5, 12), "BSND": (2, 5, 3, 4), "BNSD": (2, 3, 5, 4), "NBSD": (3, 2, 5, 4)}[axes]
    np.testing.assert_array_equal(heads_first(axes, array, 3), whole)
    if axes == "BSH":
        assert array[1, 2, 1 * 4 + 3] == whole[1, 1, 2, 3]


@pytest.mark.parametrize("axes", ["TND", "NTD"])
def test_packed_layouts_are_cut_at_the_lengths(axes: str) -> None:
    whole = numbers(3, 7, 4)  # (N, T, D)
    array = from_heads(axes, whole)
    parts = batches(axes, array, 3, (2, 0, 5))
    assert [p.shape for p in parts] == [(3, 2, 4), (3, 0, 4), (3, 5, 4)]
    np.testing.assert_array_equal(parts[2], whole[:, 2:])
    np.testing.assert_array_equal(joined(axes, parts, 99), array)


@pytest.mark.parametrize("cache", CACHE_LAYOUTS)
def test_caches_there_and_back(cache: str) -> None:
    blocks = numbers(3, 2, 4, 32)  # (blocks, N, blockSize, D)
    array = to_cache(cache, blocks, 16)
    np.testing.assert_array_equal(cache_blocks(cache, array, 2), blocks)
    at = {"BnBsH": (1, 3, 1 * 32 + 17), "BnNBsD": (1, 1, 3, 17), "NZ": (1, 1, 1, 3, 1)}[cache]  # numerics 10
    assert array[at] == blocks[1, 1, 3, 17]


def test_keys_are_gathered_through_the_table() -> None:
    case = call(cache="BnBsH", kv_lens=(24, 20))
    first = Call(case, materialize(case))
    table, cache = first.one("blockTable"), first.tensors.many("key")[0]
    assert cache is not None
    size, heads = first.scene.block_size, first.scene.KV_N
    rows = gathered(first, "key")
    assert [r.shape[1] for r in rows] == [24, 20]
    block, row = divmod(19, size)
    np.testing.assert_array_equal(rows[1][heads - 1, 19], cache[table[1, block], row].reshape(heads, -1)[heads - 1])


def test_rows_of_left_padded_calls_begin_behind_the_padding() -> None:
    from .fault_cases import padded

    case = padded(q=1)
    first = Call(case, materialize(case))
    assert first.q_begins == tuple((first.scene.Q_S or 0) - n - 1 for n in first.q_lens)
    out = numbers(*first.scene.shape("attentionOut") or ())
    rows = rows_of(first, "attentionOut", out)
    begin = first.q_begins[0]
    whole = heads_first(first.layout.output, out, first.scene.Q_N)
    np.testing.assert_array_equal(rows[0], whole[0, :, begin : begin + first.q_lens[0]])


def test_kept_columns_by_hand() -> None:
    from .fault_cases import masked

    causal = masked(3, B=1, Q=3, K=5)
    np.testing.assert_array_equal(kept(Call(causal, materialize(causal)), 0), [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    left = masked(2, B=1, Q=3, K=5)
    np.testing.assert_array_equal(kept(Call(left, materialize(left)), 0), [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]])
    band = masked(4, B=1, Q=3, K=5, preTokens=1, nextTokens=-1)
    np.testing.assert_array_equal(kept(Call(band, materialize(band)), 0), [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]])


def test_names_and_titles() -> None:
    names = [r.name for r in RELATIONS]
    assert len(set(names)) == len(names)
    assert all(r.title and r.cites for r in RELATIONS)
    assert relation_by_name("layout") is RELATIONS[0]
    with pytest.raises(ValueError, match="known: layout"):
        relation_by_name("lay-out")
