"""Reduction of a long series to a bounded one that keeps every extreme.

Steps are grouped, ``k`` consecutive rows a bucket. A bucket keeps the sums, the smallest and the largest value of what
is asked for, so that a stall of a single step can never vanish.
"""

from __future__ import annotations

import numpy as np

from cbtrace.traces.columns import Ints

PYRAMID_FACTOR = 4
"""Each level of zoom has this many times fewer rows than the one below it."""


def bucket_starts(rows: int, k: int) -> Ints:
    """First row of each bucket of ``k`` rows (the last may be shorter)."""
    return np.arange(0, rows, k, dtype=np.int64)


def bucket_sizes(rows: int, k: int) -> Ints:
    """How many rows each bucket holds."""
    starts = bucket_starts(rows, k)
    return np.diff(np.append(starts, rows))


def smallest(values: Ints, k: int) -> Ints:
    """The least value of each bucket."""
    return np.minimum.reduceat(values, bucket_starts(len(values), k)) if len(values) else values


def largest(values: Ints, k: int) -> Ints:
    """The greatest value of each bucket."""
    return np.maximum.reduceat(values, bucket_starts(len(values), k)) if len(values) else values


def total(values: Ints, k: int) -> Ints:
    """The sum of each bucket."""
    return np.add.reduceat(values, bucket_starts(len(values), k)) if len(values) else values


def row_of_largest(values: Ints, k: int) -> Ints:
    """The row in which each bucket has its greatest value (the first one of equals)."""
    starts = bucket_starts(len(values), k)
    padded = np.full(len(starts) * k, np.iinfo(np.int64).min)
    padded[: len(values)] = values
    rows: Ints = starts + padded.reshape(-1, k).argmax(axis=1)
    return rows


def levels(rows: int, limit: int) -> list[int]:
    """Bucket sizes of a pyramid over ``rows`` rows, coarsest first.

    The first fits into ``limit`` buckets, the last is 1; each is :data:`PYRAMID_FACTOR` times finer than that before.
    """
    k = 1
    sizes = [k]
    while -(-rows // k) > limit:
        k *= PYRAMID_FACTOR
        sizes.append(k)
    return sizes[::-1]
