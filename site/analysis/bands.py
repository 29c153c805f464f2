"""A cut summed over all of its rows, over bands of percentiles, and at single rows that stand for a percentile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.pieces import PIECES
from cbtrace.traces.columns import Ints

BANDS = (("all", 0, 100), ("low", 0, 50), ("middle", 50, 95), ("high", 95, 99), ("top", 99, 100))
"""Bands of the values, by percentiles as in the headline: from above the first to the second one."""
SINGLES = (("p50", 50), ("p95", 95), ("max", 100))


@dataclass(frozen=True)
class Band:
    """The sum of the pieces of all rows of a band."""

    id: str
    n: int
    total_ns: int
    pieces: dict[str, int]
    """Nanoseconds by piece, without those that are zero."""


@dataclass(frozen=True)
class Single:
    """The row that is nearest to a percentile. The percentile itself may lie between two rows."""

    id: str
    row: int
    percentile_ns: float
    total_ns: int
    pieces: dict[str, int]


def pieces_of(values: Ints) -> dict[str, int]:
    """The pieces of one row that are not zero."""
    return {name: int(value) for name, value in zip(PIECES, values.tolist(), strict=True) if value}


def bands(total_ns: Ints, pieces: Ints) -> list[Band]:
    """The bands that have rows. ``pieces`` has the shape (n, len(PIECES)). Above p95 there is always the worst row,
    however few there are, unless it has equals below."""
    if not len(total_ns):
        return []
    found = []
    for name, low, high in BANDS:
        above = -1.0 if low == 0 else float(np.percentile(total_ns, low))
        rows = (total_ns > above) & (total_ns <= np.percentile(total_ns, high))
        if rows.any():
            sums = pieces_of(pieces[rows].sum(axis=0))
            found.append(Band(name, int(rows.sum()), int(total_ns[rows].sum()), sums))
    return found


def singles(total_ns: Ints, pieces: Ints) -> list[Single]:
    """The rows nearest to the median and the 95th percentile, and the worst; the first of equals."""
    if not len(total_ns):
        return []
    found = []
    for name, q in SINGLES:
        percentile = float(np.percentile(total_ns, q))
        row = int(np.argmin(np.abs(total_ns - percentile)))
        found.append(Single(name, row, percentile, int(total_ns[row]), pieces_of(pieces[row])))
    return found
