"""A cut summed over all of its rows, over bands of percentiles, and at single rows that stand for a percentile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.pieces import COLUMN, PIECES
from cbtrace.site.analysis.quantiles import Counted, quantiles
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


def bands(total_ns: Ints, pieces: Ints, count: Ints) -> list[Band]:
    """The bands that have rows. ``pieces`` has the shape (n, len(PIECES)); row i stands for ``count[i]`` equal ones.
    Above p95 there is always the worst row, however few there are, unless it has equals below."""
    if not len(total_ns):
        return []
    edges = sorted({edge for _, low, high in BANDS for edge in (low, high)})
    at = dict(zip(edges, quantiles(Counted(total_ns, count), [edge / 100 for edge in edges]).tolist(), strict=True))
    found = []
    for name, low, high in BANDS:
        above = -1.0 if low == 0 else at[low]
        inside = np.where((total_ns > above) & (total_ns <= at[high]), count, 0)
        if inside.any():
            sums = {name: int(inside @ pieces[:, column]) for name, column in COLUMN.items()}
            amounts = {name: amount for name, amount in sums.items() if amount}
            found.append(Band(name, int(inside.sum()), int(inside @ total_ns), amounts))
    return found


def singles(total_ns: Ints, pieces: Ints, count: Ints) -> list[Single]:
    """The rows nearest to the median and the 95th percentile, and the worst; the first of equals. Of equal values that
    a row stands for, it is the first."""
    if not len(total_ns):
        return []
    found = []
    at = quantiles(Counted(total_ns, count), [q / 100 for _, q in SINGLES]).tolist()
    for (name, _), percentile in zip(SINGLES, at, strict=True):
        row = int(np.argmin(np.abs(total_ns - percentile)))
        found.append(Single(name, row, percentile, int(total_ns[row]), pieces_of(pieces[row])))
    return found
