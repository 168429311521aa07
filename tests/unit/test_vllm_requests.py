"""Rows cut into requests: every row is in one request at most, and sees there what it sees in the call."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fiafuzz.backends.vllm_requests import OPEN_WINDOW, Cutting, Seen, cut

CUTTINGS = st.builds(Cutting, st.sampled_from((1, 2, 3, 7, 1 << 30)), st.booleans(), st.booleans())


def shown(rows: int, columns: int, seen: Seen, how: Cutting) -> list[set[int]]:
    """What requests show each row by the kernel's rules, written down once more: rows stand at the end of the keys."""
    found: list[set[int]] = [set() for _ in range(rows)]
    for first, count, causal, window in cut(seen, how):
        assert count <= how.most or count == 1
        keys = seen.hi[first + count - 1]
        assert 0 < keys <= columns
        assert causal or how.wide or count <= keys
        for r in range(count):
            assert not found[first + r]
            if window == 0:
                assert count == 1 and seen.scattered[first]
                found[first] = {-1}
                continue
            at = keys - count + r
            assert not causal or at >= 0
            back, ahead = (window, 1 if causal else window) if window != OPEN_WINDOW else (10**9, 1 if causal else 10**9)
            found[first + r] = {j for j in range(keys) if at - back < j < at + ahead}
    return found


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.none() | st.integers(-14, 14), st.none() | st.integers(-14, 14), CUTTINGS)
def test_a_band_is_shown_as_it_is(rows, columns, low, high, how):
    want = [{j for j in range(columns) if (low is None or j - i >= low) and (high is None or j - i <= high)} for i in range(rows)]
    assert shown(rows, columns, Seen.of_band(rows, columns, low, high), how) == want


@settings(deadline=None)
@given(st.data(), st.integers(1, 9), st.integers(1, 9), CUTTINGS)
def test_a_mask_is_shown_as_it_is(data, rows, columns, how):
    mask = torch.tensor(data.draw(st.lists(st.lists(st.booleans(), min_size=columns, max_size=columns), min_size=rows, max_size=rows)))
    want = [set(row.nonzero().flatten().tolist()) for row in mask]
    got = shown(rows, columns, Seen.of_mask(mask), how)
    for have, due in zip(got, want):
        whole = not due or due == set(range(min(due), max(due) + 1))
        assert have == (due if whole else {-1})


WHOLE = Cutting(1 << 30, True, True)


@pytest.mark.parametrize(
    ("rows", "columns", "low", "high", "requests"),
    [
        (5, 9, None, 4, [(0, 5, True, OPEN_WINDOW)]),
        (5, 9, 2, 4, [(0, 5, True, 3)]),
        (5, 9, None, None, [(0, 5, False, OPEN_WINDOW)]),
        (5, 9, None, 0, [(0, 5, True, OPEN_WINDOW)]),
        (5, 9, None, 6, [(0, 3, True, OPEN_WINDOW), (3, 2, False, OPEN_WINDOW)]),
        (9, 5, None, -4, [(4, 5, True, OPEN_WINDOW)]),
        (3, 9, 7, None, [(0, 1, True, 2), (1, 1, True, 1)]),
    ],
    ids=["bottom right", "window", "all", "top left", "reaching ahead", "rows without keys", "no limit ahead"],
)
def test_a_band_is_few_requests(rows, columns, low, high, requests):
    assert list(cut(Seen.of_band(rows, columns, low, high), WHOLE)) == requests


def test_chunks_are_small_and_wide_requests_only_where_allowed():
    seen = Seen.of_band(7, 3, None, None)
    assert [r[:2] for r in cut(seen, Cutting(1 << 30, False, False))] == [(0, 3), (3, 3), (6, 1)]
    assert [r[:2] for r in cut(seen, Cutting(2, True, False))] == [(0, 2), (2, 2), (4, 2), (6, 1)]
    assert list(cut(Seen.of_band(1, 3, None, None), Cutting(1 << 30, False, True))) == [(0, 1, True, OPEN_WINDOW)]


def test_a_window_that_would_cut_the_rows_before_it_begins_a_request():
    rows = Seen([0, 0, 2, 3, 0], [2, 3, 4, 5, 6], [False] * 5)
    assert list(cut(rows, WHOLE)) == [(0, 2, True, OPEN_WINDOW), (2, 2, True, 2), (4, 1, True, OPEN_WINDOW)]
    assert list(cut(Seen([1, 1], [3, 4], [False] * 2), WHOLE)) == [(0, 1, True, 2), (1, 1, True, 3)]
