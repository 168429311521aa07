"""Lengths, tables and paddings of generated calls: what they promise, and the scenes that bugs like."""

from __future__ import annotations

from collections import Counter

import pytest

from fiafuzz.model.scene import Scene
from strategies.cases import build_valid
from strategies.source import SeededSource

PROFILE = "950-v5-2026.08"


def scenes(profile: str, count: int, seed: int, **needs: str | tuple[str, ...]) -> list[Scene]:
    source = SeededSource(seed)
    return [Scene(build_valid(source, profile, {"empty": "none", **needs})) for _ in range(count)]


@pytest.mark.parametrize("profile", [PROFILE, "a2-v3-2026.08"])
def test_lengths_lie_inside_their_axes(profile: str) -> None:
    for s in scenes(profile, 1500, 1):
        assert s.q_lens is not None and s.kv_lens is not None and s.Q_S is not None and s.KV_S is not None
        assert len(s.q_lens) == len(s.kv_lens) == s.B
        assert min(s.q_lens) >= 0 and max(s.q_lens) <= s.Q_S
        assert min(s.kv_lens) >= 0 and max(s.kv_lens) <= s.KV_S
        if s.packed:
            assert sum(s.q_lens) == s.T and (s.paged or sum(s.kv_lens) == s.KV_T)
        for name, spec in (("queryPaddingSize", s.Q_S), ("kvPaddingSize", s.KV_S)):
            given = s.tensor(name)
            if given is not None:
                lens = s.q_lens if name.startswith("query") else s.kv_lens
                assert given.values is not None and spec - max(lens) - int(given.values[0]) >= 0


def test_tables_name_blocks_that_exist_and_cover_the_keys() -> None:
    shared = tails = wide = unnamed = 0
    for s in scenes(PROFILE, 1200, 2, storage=("BnBsH", "BnNBsD", "NZ")):
        table = s.inputs.blockTable
        assert table is not None and s.kv_lens is not None and s.cache_blocks is not None
        columns = table.shape[1]
        if table.values is None:
            assert table.fill is None, "the default numbers the blocks that exist"
            unnamed += 1
            continue
        used: list[int] = []
        for b, n in enumerate(s.kv_lens):
            row = [int(v) for v in table.values[b * columns:(b + 1) * columns]]
            needed = -(-n // s.block_size)
            assert needed <= columns and all(0 <= v < s.cache_blocks for v in row[:needed])
            used += row[:needed]
            tails += -1 in row[needed:]
        assert len(used) <= s.cache_blocks
        shared += len(set(used)) < len(used)
        wide += max(-(-n // s.block_size) for n in s.kv_lens) < columns
    assert shared > 20 and tails > 60 and wide > 200 and unnamed > 20


def test_scenes_worth_a_bug_are_likely() -> None:
    """Shares of all generated calls: zero-length batches first, Q_S > KV_S, block edges, one-element lists, ..."""
    met: Counter[str] = Counter()
    count = 4000
    for s in scenes(PROFILE, count, 3):
        q, kv = s.q_lens or (), s.kv_lens or ()
        met["zero queries before others"] += any(q[b] == 0 and any(q[b + 1:]) for b in range(len(q)))
        met["zero keys before others"] += any(kv[b] == 0 and any(kv[b + 1:]) for b in range(len(kv)))
        met["more query tokens than keys"] += any(a > b + s.prefix_len for a, b in zip(q, kv))
        met["uneven Q_S x G"] += bool(s.G and s.Q_S and s.G * s.Q_S % 16)
        met["block edge"] += bool(s.paged and any(n % s.block_size in (0, 1, s.block_size - 1) for n in kv))
        met["one-element list"] += any(n is not None and len(n) == 1 and s.B not in (0, 1)
                                       for n in (s.inputs.actualSeqLengths, s.inputs.actualSeqLengthsKv))
        met["D no power of two"] += bool(s.Q_D and s.Q_D & (s.Q_D - 1))
        met["negative tokens"] += min(s.attrs.preTokens, s.attrs.nextTokens) < 0
        met["odd scale"] += s.scale <= 0 or s.scale == 1.0
        met["rows without keys, masked"] += bool(s.mask_on and s.sparse_mode in (3, 4) and any(a > b for a, b in zip(q, kv)))
        mask = s.tensor("attenMask")
        met["mask larger than the data"] += bool(
            mask is not None and s.sparse_mode in (0, 1) and s.Q_S and mask.shape[-2] > s.Q_S)
        met["outlier or other data"] += s.query is not None and s.query.fill is not None
    assert {name: n for name, n in met.items() if n < count * 0.004} == {}, met
    assert met["more query tokens than keys"] > count * 0.15 and met["uneven Q_S x G"] > count * 0.4


def test_calls_are_small() -> None:
    costs = []
    for s in scenes(PROFILE, 3000, 4):
        assert s.Q_D is not None and s.V_D is not None and s.Q_S is not None and s.kv_lens is not None
        costs.append((s.B or 0) * s.Q_N * s.Q_S * max(s.kv_lens, default=0) * (s.Q_D + s.V_D))
    costs.sort()
    assert costs[len(costs) * 3 // 4] < 1_000_000 and costs[-1] < 200_000_000


def test_masks_of_mode_0_are_closed_outside_their_band() -> None:
    """Otherwise the result depends on the kernel's blocks (spec/numerics.md 6)."""
    banded = 0
    for s in scenes(PROFILE, 800, 5, sparse_mode="0", mask=("BOOL", "INT8", "UINT8")):
        mask = s.tensor("attenMask")
        pre, following = s.attrs.preTokens, s.attrs.nextTokens
        assert mask is not None and mask.fill is not None
        if pre < 2147483647 or following < 2147483647:
            banded += 1
            assert type(mask.fill).__name__ in ("Band", "Triu")
            if type(mask.fill).__name__ == "Band":
                assert (mask.fill.pre, mask.fill.next) == (pre, following)
            else:
                assert (pre, following) == (2147483647, 0) and mask.fill.diagonal == 1
    assert banded > 200


def test_no_row_loses_its_keys_beside_an_offset() -> None:
    """Such rows hold 0 or the rounded offset, by path (numerics corrections 9)."""
    for s in scenes(PROFILE, 400, 6, post_quant=("tensor+offset", "channel+offset")):
        assert min(s.q_lens or (0,)) > 0 and min(s.kv_lens or (0,)) > 0 and s.sparse_mode != 4
        assert s.sparse_mode != 3 or all(a <= b + s.prefix_len for a, b in zip(s.q_lens or (), s.kv_lens or ()))
