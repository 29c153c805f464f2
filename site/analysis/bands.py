"""A cut summed over all of its rows, over bands of percentiles, and at single rows that stand for a percentile."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.pieces import PIECES
from cbtrace.traces.columns import Ints

BANDS = (("all", 0, 100), ("low", 0, 50), ("middle", 50, 95), ("high", 95, 99), ("top", 99, 100))
"""Bands of the ordered values, in per cent: from above the first to the second."""
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
    """The row that stands for a percentile: the smallest one that so many per cent are not above."""

    id: str
    row: int
    total_ns: int
    pieces: dict[str, int]


def pieces_of(values: Ints) -> dict[str, int]:
    """The pieces of one row that are not zero."""
    return {name: int(value) for name, value in zip(PIECES, values.tolist(), strict=True) if value}


def bands(total_ns: Ints, pieces: Ints) -> list[Band]:
    """The bands that have rows. ``pieces`` has the shape (n, len(PIECES))."""
    order = np.argsort(total_ns, kind="stable")
    found = []
    for name, low, high in BANDS:
        rows = order[_rank(low, len(order)) : _rank(high, len(order))]
        if len(rows):
            sums = pieces_of(pieces[rows].sum(axis=0))
            found.append(Band(name, len(rows), int(total_ns[rows].sum()), sums))
    return found


def singles(total_ns: Ints, pieces: Ints) -> list[Single]:
    """The rows that stand for the median, the 95th percentile and the worst."""
    order = np.argsort(total_ns, kind="stable")
    if not len(order):
        return []
    rows = [(name, int(order[max(_rank(q, len(order)) - 1, 0)])) for name, q in SINGLES]
    return [Single(name, row, int(total_ns[row]), pieces_of(pieces[row])) for name, row in rows]


def _rank(q: int, n: int) -> int:
    return math.ceil(q * n / 100)
