"""Percentiles of a set of durations, always from all values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbtrace.site.analysis.quantiles import Counted, quantiles
from cbtrace.traces.columns import Ints

Durations = Ints | NDArray[np.float64] | Counted
"""Nanoseconds: whole ones, but for means such as TPOT."""

NS_PER_MS = 1e6
HEADLINE = (50, 95, 99)

CURVE_PROBABILITIES = tuple(sorted({i / 100 for i in range(101)} | {0.99 + i / 1000 for i in range(10)} | {0.9995}))
"""Where a cumulative curve is stored: every percentile, finer in the last one. The first and last are the extremes."""


@dataclass(frozen=True)
class Adjusted:
    """Percentiles with every request that was kept out counted as infinite. ``None`` is infinite, or empty."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True)
class Distribution:
    """A latency in milliseconds: linear interpolation over all ``n`` values. ``None`` when there are none."""

    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None
    n: int
    excluded: int = 0
    """Requests kept out of the percentiles: failed, cancelled or empty."""
    adjusted: Adjusted | None = None
    """Beside the plain percentiles, for metrics with one value a request."""


def describe(values_ns: Durations) -> Distribution:
    """Percentiles of ``values_ns`` (any order), in milliseconds."""
    if not len(values_ns):
        return Distribution(None, None, None, None, 0)
    p50, p95, p99 = (float(v) / NS_PER_MS for v in quantiles(values_ns, [q / 100 for q in HEADLINE]))
    return Distribution(p50, p95, p99, float(values_ns.max()) / NS_PER_MS, len(values_ns))


def describe_with_excluded(values_ns: Ints | NDArray[np.float64], excluded: int) -> Distribution:
    """As :func:`describe`, with the adjusted percentiles of ``excluded`` further values at +infinity."""
    plain = describe(values_ns)
    adjusted = Adjusted(*(_adjusted_percentile(values_ns, excluded, q) for q in HEADLINE))
    return Distribution(plain.p50, plain.p95, plain.p99, plain.max, plain.n, excluded, adjusted)


def _adjusted_percentile(values_ns: Ints | NDArray[np.float64], excluded: int, q: int) -> float | None:
    total = len(values_ns) + excluded
    if not total or math.ceil((total - 1) * q / 100) >= len(values_ns):
        return None
    # Stand-ins beyond every value: the interpolation never reaches them, as the rank was checked.
    beyond = np.full(excluded, values_ns.max() + 1)
    return float(np.percentile(np.concatenate([values_ns, beyond]), q)) / NS_PER_MS


def curve(values_ns: Durations) -> list[float]:
    """The quantiles at :data:`CURVE_PROBABILITIES` in milliseconds: a cumulative curve of bounded size."""
    if not len(values_ns):
        return []
    return [float(v) / NS_PER_MS for v in quantiles(values_ns, CURVE_PROBABILITIES)]
