"""Percentiles against their definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbtrace.site.analysis.distribution import CURVE_PROBABILITIES, curve, describe, describe_with_excluded

NANOSECONDS = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)


def linear(values: list[float], q: float) -> float:
    """The definition, by hand."""
    ordered = sorted(values)
    rank = (len(ordered) - 1) * q / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    if ordered[high] == math.inf:
        return ordered[low] if rank == low else math.inf
    return ordered[low] + (rank - low) * (ordered[high] - ordered[low])


@given(NANOSECONDS)
def test_percentiles_interpolate_linearly_over_all_values(values: list[int]) -> None:
    found = describe(np.array(values, dtype=np.int64))
    assert found.n == len(values)
    assert found.max == max(values) / 1e6
    for q, value in ((50, found.p50), (95, found.p95), (99, found.p99)):
        assert value == pytest.approx(linear([float(v) for v in values], q) / 1e6, rel=1e-12)


@given(NANOSECONDS, st.integers(0, 20))
def test_adjusted_percentiles_count_the_excluded_as_infinite(values: list[int], excluded: int) -> None:
    found = describe_with_excluded(np.array(values, dtype=np.int64), excluded)
    assert found.adjusted is not None
    everything = [float(v) for v in values] + [math.inf] * excluded
    for q, value in ((50, found.adjusted.p50), (95, found.adjusted.p95), (99, found.adjusted.p99)):
        expected = linear(everything, q)
        if expected == math.inf:
            assert value is None
        else:
            assert value == pytest.approx(expected / 1e6, rel=1e-12)


def test_nothing_is_unknown_and_not_zero() -> None:
    found = describe_with_excluded(np.array([], dtype=np.int64), 0)
    assert (found.p50, found.max, found.n) == (None, None, 0)
    assert found.adjusted is not None
    assert found.adjusted.p95 is None
    assert curve(np.array([], dtype=np.int64)) == []


def test_a_curve_has_the_extremes_at_its_ends_and_never_falls() -> None:
    values = np.array([5_000_000, 1_000_000, 9_000_000], dtype=np.int64)
    found = curve(values)
    assert (found[0], found[-1]) == (1.0, 9.0)
    assert len(found) == len(CURVE_PROBABILITIES)
    assert found == sorted(found)
