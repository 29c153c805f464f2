"""Throughput against latency: which settings no other one beats in both."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from cbtrace.site.analysis.experiment import ExperimentRuns, Variant
from cbtrace.site.analysis.experiment_effects import THROUGHPUT


@dataclass(frozen=True)
class FrontPoint:
    """One variant: medians over its runs."""

    variant: Variant
    throughput: float
    latency: float
    runs: int
    on_front: bool
    """No other variant has at least its throughput and at most its latency. By medians: noise is not looked at."""


def frontier(runs: ExperimentRuns, latency: str) -> list[FrontPoint]:
    """All variants that served the baseline's workload and have runs that count, fastest first.

    ``latency`` is the key of a run-level value, such as ``ttft_ms.p95``.
    """
    workload = runs.baseline.entry.workload if runs.baseline is not None else None
    found = []
    for variant in runs.variants:
        throughput, slow = variant.values(THROUGHPUT), variant.values(latency)
        if variant.entry.workload == workload and throughput and slow:
            found.append((variant, statistics.median(throughput), statistics.median(slow)))
    points = [
        FrontPoint(variant, rate, delay, len(variant.measured), not _beaten(rate, delay, [it[1:] for it in found]))
        for variant, rate, delay in found
    ]
    return sorted(points, key=lambda point: -point.throughput)


def _beaten(rate: float, delay: float, all_points: list[tuple[float, float]]) -> bool:
    return any(r >= rate and d <= delay and (r, d) != (rate, delay) for r, d in all_points)
