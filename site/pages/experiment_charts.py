"""Data of an experiment's charts: every run-level value of every run, so that the reader chooses what is drawn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from cbtrace.site.analysis.catalogue import GROUPS
from cbtrace.site.analysis.experiment import ExperimentRun, ExperimentRuns, Variant
from cbtrace.site.analysis.experiment_effects import THROUGHPUT
from cbtrace.site.analysis.experiment_failures import kind_of, phase_of
from cbtrace.site.analysis.experiment_frontier import FrontPoint, frontier
from cbtrace.site.analysis.experiment_slos import FAILURES, slos_of
from cbtrace.site.analysis.experiment_stages import StageResult, VariableResult
from cbtrace.site.analysis.noise import LEVEL
from cbtrace.site.analysis.run_values import RUN_VALUES
from cbtrace.site.analysis.student import student_quantile
from cbtrace.site.pages.experiment_effects import value_label
from cbtrace.site.pages.experiment_predictions import front_forecasts, value_labels, variable_forecasts
from cbtrace.site.pages.experiment_stages import failure_text
from cbtrace.site.words import Words

LATENCIES = ("ttft_ms.p95", "token_gap_ms.p99", "e2e_ms.p95", "ttft_ms.p50", "token_gap_ms.p50")
"""What throughput is drawn against."""
INTERVAL_RUNS = 3
"""Fewer runs have no interval drawn: that of two is so wide that nothing else could be read."""


def chart_data(runs: ExperimentRuns, results: Sequence[StageResult], words: Words) -> dict[str, Any]:
    """All charts of the page."""
    drawn = [found for result in results for found in result.variables]
    used = [key for key in RUN_VALUES if any(run.value(key) is not None for run in _runs(runs))]
    return {
        "metrics": [_metric(key, words) for key in used],
        "groups": [{"id": group.id, "label": words(f"group.{group.id}")} for group in GROUPS],
        "limits": {slo.metric: slo.limit for slo in slos_of(runs.experiment) if slo.metric != FAILURES},
        "variables": [_variable(runs, found, used, words) for found in drawn],
        "latencies": list(LATENCIES),
        "fronts": {key: [_front_row(point) for point in frontier(runs, key)] for key in LATENCIES},
        "forecasts": {key: front_forecasts(runs, key) for key in LATENCIES},
        "numbers": {variant.name: number for number, variant in enumerate(runs.variants, 1)},
        "words": {key.removeprefix("experiment.js."): text for key, text in words.starting("experiment.js.").items()},
    }


def _runs(runs: ExperimentRuns) -> list[ExperimentRun]:
    return [run for variant in runs.variants for run in variant.runs]


def _metric(key: str, words: Words) -> dict[str, Any]:
    metric = RUN_VALUES[key].metric
    group = next(group.id for group in GROUPS if metric in group.metrics)
    return {"key": key, "label": value_label(key, words), "unit": metric.unit, "group": group}


def _variable(runs: ExperimentRuns, found: VariableResult, keys: Sequence[str], words: Words) -> dict[str, Any]:
    """Points by value: the runs' values in the order of ``metrics``, intervals of means, failures; and predictions."""
    predicted = variable_forecasts(runs, found.variable, keys)
    labels = [point.point.value or point.point.variant.name for point in found.points]
    return {
        "name": found.variable.name,
        "labels": value_labels(labels, [it["label"] for it in predicted]),
        "forecasts": predicted,
        "points": [
            {
                "label": point.point.value or point.point.variant.name,
                "start": point.point.start,
                "runs": [_run(run, keys) for run in point.point.variant.done],
                "intervals": [interval(point.point.variant.values(key)) for key in keys],
                "failures": [_failure(run, words) for run in point.point.variant.failed],
            }
            for point in found.points
        ],
    }


def _run(run: ExperimentRun, keys: Sequence[str]) -> dict[str, Any]:
    return {"repeat": run.entry.repeat, "predicted": run.predicted, "values": [run.value(key) for key in keys]}


def _failure(run: ExperimentRun, words: Words) -> dict[str, Any]:
    phase = phase_of(run)
    return {"phase": phase, "text": failure_text(kind_of(run), phase, words)}


def interval(values: Sequence[float]) -> list[float] | None:
    """Mean of a variant's runs and the interval that holds it with 95 %, by Student; ``None`` below three runs."""
    if len(values) < INTERVAL_RUNS:
        return None
    mean = statistics.fmean(values)
    half = student_quantile(LEVEL, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return [mean, mean - half, mean + half]


def _front_row(point: FrontPoint) -> dict[str, Any]:
    return {
        "variant": point.variant.name,
        "kind": point.variant.entry.kind if point.variant.entry.based_on else "baseline",
        "throughput": point.throughput,
        "latency": point.latency,
        "front": point.on_front,
        "runs": _pairs(point.variant),
    }


def _pairs(variant: Variant) -> list[list[float | None]]:
    """Throughput of each run, then each latency of :data:`LATENCIES`."""
    return [[run.value(key) for key in (THROUGHPUT, *LATENCIES)] for run in variant.measured]
