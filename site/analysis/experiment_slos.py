"""Whether the runs of a variant meet the SLOs of the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cbtrace.site.analysis.experiment import ExperimentRun, Variant
from cbtrace.traces.experiment import Experiment

SloState = Literal["met", "missed", "unclear", "unknown"]

METRIC_OF = {
    "ttft_p95_ms": ("ttft_ms.p95", 1.0),
    "token_gap_p99_ms": ("token_gap_ms.p99", 1.0),
    "e2e_p95_ms": ("e2e_ms.p95", 1.0),
    "peak_memory_gib": ("peak_memory_bytes", float(1 << 30)),
}
"""The metric that an SLO limits, and how many of the metric's units one unit of the SLO is."""
FAILURES = "failures"

ONE_RUN_FACTOR = 2.0
"""A single run tells only when it is off the limit by this factor: run-to-run noise does not explain that much."""


@dataclass(frozen=True)
class Slo:
    """A limit that must hold."""

    name: str
    metric: str
    """Key of the run-level value; ``failures`` for requests that did not complete."""
    limit: float
    """In the unit of the metric."""


@dataclass(frozen=True)
class SloCheck:
    """What the runs of one variant say about one SLO."""

    slo: Slo
    state: SloState
    met: int
    """Runs that meet it."""
    runs: int
    worst: float | None
    """The largest value over the runs, in the unit of the metric; ``None`` without runs."""


def slos_of(experiment: Experiment) -> list[Slo]:
    """The limits of the plan. One that this version does not know is left out: :func:`unknown_slos` names it."""
    given = {name: value for name, value in experiment.slos.items() if isinstance(value, (int, float))}
    found = [
        Slo(name, metric, float(given[name]) * scale) for name, (metric, scale) in METRIC_OF.items() if name in given
    ]
    return [*found, Slo(FAILURES, FAILURES, float(given.get(FAILURES, 0)))]


def unknown_slos(experiment: Experiment) -> list[str]:
    """SLOs of a newer plan, which nothing is said about."""
    return sorted(set(experiment.slos) - {*METRIC_OF, FAILURES})


def latency_limits(slos: list[Slo]) -> list[Slo]:
    """The limits that say how slow is too slow."""
    return [slo for slo in slos if slo.metric.endswith(("p95", "p99"))]


def check_slos(variant: Variant, slos: list[Slo]) -> list[SloCheck]:
    """Check every limit over all runs that count.

    Met when every run meets it, missed when none does; between, and for a single run within :data:`ONE_RUN_FACTOR` of
    the limit, it is unclear. Failures are counted, not measured: there one run tells.
    """
    return [_check(slo, list(_values(variant, slo))) for slo in slos]


def _check(slo: Slo, values: list[float]) -> SloCheck:
    met = sum(value <= slo.limit for value in values)
    return SloCheck(slo, _state(slo, values, met), met, len(values), max(values, default=None))


def _state(slo: Slo, values: list[float], met: int) -> SloState:
    if not values:
        return "unknown"
    if slo.metric == FAILURES:
        return "met" if met == len(values) else "missed"
    if len(values) == 1 and slo.limit / ONE_RUN_FACTOR < values[0] < slo.limit * ONE_RUN_FACTOR:
        return "unclear"
    if met == len(values):
        return "met"
    return "unclear" if met else "missed"


def _values(variant: Variant, slo: Slo) -> Iterator[float]:
    if slo.metric != FAILURES:
        yield from variant.values(slo.metric)
        return
    for run in variant.measured:
        missing = incomplete(run)
        if missing is not None:
            yield float(missing)


def incomplete(run: ExperimentRun) -> int | None:
    """Requests of a run that did not complete; ``None`` when they were not counted."""
    correctness = run.entry.correctness
    return None if correctness is None else max(0, correctness.requests - correctness.complete)
