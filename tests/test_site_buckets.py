"""Reduction keeps every extreme and every sum, at any size."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cbtrace.site.analysis import buckets

VALUES = st.lists(st.integers(-(10**15), 10**15), min_size=1, max_size=80)


@given(VALUES, st.integers(1, 90))
def test_no_extreme_and_no_sum_is_lost(values: list[int], k: int) -> None:
    column = np.array(values, dtype=np.int64)
    parts = [values[i : i + k] for i in range(0, len(values), k)]
    assert buckets.largest(column, k).tolist() == [max(part) for part in parts]
    assert buckets.smallest(column, k).tolist() == [min(part) for part in parts]
    assert buckets.total(column, k).tolist() == [sum(part) for part in parts]
    assert buckets.bucket_sizes(len(values), k).tolist() == [len(part) for part in parts]
    rows = buckets.row_of_largest(column, k)
    assert column[rows].tolist() == [max(part) for part in parts]
    assert (rows // k).tolist() == list(range(len(parts)))


@given(st.integers(0, 10**7), st.integers(1, 2000))
def test_levels_end_with_single_rows_and_begin_within_the_limit(rows: int, limit: int) -> None:
    sizes = buckets.levels(rows, limit)
    assert sizes[-1] == 1
    assert -(-rows // sizes[0]) <= limit
    assert all(coarse == fine * buckets.PYRAMID_FACTOR for coarse, fine in pairwise(sizes))


def test_an_empty_column_stays_empty() -> None:
    empty = np.array([], dtype=np.int64)
    for reduce in (buckets.largest, buckets.smallest, buckets.total, buckets.row_of_largest):
        assert reduce(empty, 4).tolist() == []
