"""Quantiles of values that occur many times each, to the last digit those of the same values written out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbtrace.traces.columns import Ints


@dataclass(frozen=True)
class Counted:
    """Whole numbers, ``values[i]`` of them ``counts[i]`` times, in any order."""

    values: Ints
    counts: Ints

    def __len__(self) -> int:
        return int(self.counts.sum())

    def max(self) -> int:
        """The largest value."""
        return int(self.values[self.counts > 0].max())

    def sum(self) -> int:
        """The sum of all."""
        return int(self.values @ self.counts)


def quantiles(found: Ints | NDArray[np.float64] | Counted, at: Sequence[float]) -> NDArray[np.float64]:
    """The quantiles ``at`` (from 0 to 1) by linear interpolation between the two values around each."""
    if not isinstance(found, Counted):
        return np.asarray(np.quantile(found, at))
    order = np.argsort(found.values, kind="stable")
    values, upto = found.values[order], np.cumsum(found.counts[order])
    last = int(upto[-1]) - 1
    place = last * np.asarray(at, dtype=np.float64)
    before = np.floor(place).astype(np.int64)
    low = values[np.searchsorted(upto, before, side="right")]
    high = values[np.searchsorted(upto, np.minimum(before + 1, last), side="right")]
    # Of two values, the quantile at the rest is interpolated by numpy just as it is within all of them.
    return np.array([np.quantile([a, b], rest) for a, b, rest in zip(low, high, place - before, strict=True)])
