"""What any comparison needs of one run, bounded: numbers, conditions, quantile curves, cuts and budgets.

This is a run's *side*: plain data, loaded by the compare page for every chosen run, and read by
:mod:`~cbtrace.site.pages.compare_static`. What is larger is in :mod:`~cbtrace.site.pages.compare_requests`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np

from cbtrace.site import formats
from cbtrace.site.analysis.attribution import Cuts, TtftCuts
from cbtrace.site.analysis.bands import Band, bands
from cbtrace.site.analysis.captures import captures_outside_warm_up
from cbtrace.site.analysis.catalogue import GROUPS, LATENCIES, METRICS, Metric
from cbtrace.site.analysis.comparability import comparability_rules
from cbtrace.site.analysis.comparison import MEMORY, measured_run
from cbtrace.site.analysis.distribution import CURVE_PROBABILITIES, curve
from cbtrace.site.analysis.gaps import GapKinds
from cbtrace.site.analysis.kv import KvBudget
from cbtrace.site.analysis.latency import latencies
from cbtrace.site.analysis.memory_budget import STAGES, memory_budget
from cbtrace.site.analysis.pieces import PIECES
from cbtrace.site.analysis.run_values import DIRECTION_WORDS, HEADLINE_KEYS, RUN_VALUES
from cbtrace.site.analysis.student import student_table
from cbtrace.site.analysis.summary import RunSummary
from cbtrace.site.pages.labels import run_name
from cbtrace.site.pages.run import model_label
from cbtrace.site.plain_text import plain
from cbtrace.site.words import Words
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import EndReason, EventKind

SLOW_BANDS = ("high", "top")
"""The slowest twentieth of the values, whose cut is shown beside that of all."""

HAPPENED = {
    "soft_reset": EventKind.SOFT_RESET,
    "offload": EventKind.OFFLOAD,
    "restore": EventKind.RESTORE,
    "capture": EventKind.GRAPH_CAPTURE,
    "out_of_memory": EventKind.OUT_OF_MEMORY,
    "fatal_error": EventKind.FATAL_ERROR,
    "cancel": EventKind.CANCEL_REQUESTED,
}
"""Events that are counted side by side."""

MEMORY_TERMS = (
    *(name for name, _, _ in STAGES),
    "activations",
    "allocator_slack",
    "outside_allocator",
    "free",
    "unattributed",
)
"""Measured parts of the GPU's memory, in the order of the run's page."""

COUNTS = (
    "requests.failed",
    "requests.cancelled",
    "requests.running",
    "prompt_tokens_recomputed",
    "wasted_tokens",
)
"""Metrics that stand beside the events."""
EFFECTS = (
    *(f"{metric.id}.{statistic}" for metric in LATENCIES for statistic in ("p50", "p95", "p99")),
    "throughput_generated_tps",
    "throughput_prompt_tps",
    "peak_memory_bytes",
)
"""Values whose change is drawn in per cent."""

KV_AMOUNTS = (
    "capacity_bytes",
    "peak_used_bytes",
    "mean_used_bytes",
    "peak_cached_bytes",
    "min_free_bytes",
    "margin_bytes",
    "reserved_bytes",
)

_ARRAYS = {"ttft_ms": "ttft", "token_gap_ms": "gaps", "tpot_ms": "tpot", "e2e_ms": "e2e", "queue_ms": "queue"}


def compare_data(trace: Trace, summary: RunSummary, cuts: Cuts, slug: str) -> dict[str, Any]:
    """One run's side of any comparison."""
    run = measured_run(trace, summary)
    said = asdict(run.conditions)
    said["recorded_us"] = said.pop("recorded_ns") // 1000  # a whole number that a script can hold exactly
    arrays = latencies(trace.requests, cuts.gaps.durations)
    return said | {
        "slug": slug,
        "run_id": plain(summary.run_id, 40),
        "name": plain(run_name(trace, summary), 200),
        "model": plain(model_label(trace), 200),
        "recorded": formats.instant(summary.recorded_ns),
        "values": dict(run.values),
        "memory_scope": run.memory_scope,
        "curves": {metric.id: _rounded(curve(getattr(arrays, _ARRAYS[metric.id]))) for metric in LATENCIES},
        "cuts": {"ttft": _cut(cuts.ttft), "gap": _cut(cuts.gaps)},
        "kv": _kv(summary.kv),
        "memory": _memory(trace),
        "happened": _happened(trace),
        "failures": _failures(trace),
    }


def _rounded(values: list[float]) -> list[float]:
    """Microseconds are enough for a curve; the numbers of the tables are not rounded."""
    return [round(value, 3) for value in values]


def _cut(cut: TtftCuts | GapKinds) -> dict[str, Any]:
    """The cut of all values and of the slowest twentieth: how many, and whole nanoseconds by piece."""
    found = bands(cut.total_ns, cut.pieces, cut.count)
    return {"all": _sum(found[:1]), "slow": _sum([band for band in found if band.id in SLOW_BANDS])}


def _sum(found: list[Band]) -> dict[str, Any]:
    pieces: Counter[str] = Counter()
    for band in found:
        pieces.update(band.pieces)
    return {
        "n": sum(band.n for band in found),
        "total_ns": sum(band.total_ns for band in found),
        "pieces": dict(pieces),
    }


def _kv(kv: KvBudget | None) -> dict[str, Any] | None:
    if kv is None or not kv.capacity_bytes:
        return None
    amounts = {name: getattr(kv, name) for name in KV_AMOUNTS}
    return {"unit": kv.unit_name, "unit_bytes": kv.unit_bytes, "capacity_tokens": kv.capacity_tokens} | amounts


def _memory(trace: Trace) -> dict[str, Any]:
    """Measured terms, which add up to ``total`` (``None`` when the device was not measured), and predicted ones."""
    budget = memory_budget(trace.memory)
    predicted = dict(trace.engines[-1].predicted_memory) if trace.engines else {}
    if budget is None:
        return {"measured": None, "predicted": predicted}
    terms = {term.name: term.bytes for term in budget.terms} | {"unattributed": budget.unattributed}
    return {"measured": {"terms": terms, "total": budget.device_total}, "predicted": predicted}


def _happened(trace: Trace) -> dict[str, Any]:
    """How often each kind of event came, the bytes that it moved, and how long captures took. What was captured in the
    warm-up is left out.

    Offloads and restores of one round each carry the time of the whole round, so that a sum would count it again.
    """
    events = trace.events
    found = {}
    for name, kind in HAPPENED.items():
        rows = captures_outside_warm_up(events) if name == "capture" else events.kind == kind
        took, moved = events.duration_ns[rows], events.bytes[rows]
        found[name] = {
            "count": int(rows.sum()),
            "duration_ns": int(took[took >= 0].sum()) if name == "capture" and (took >= 0).any() else None,
            "bytes": int(moved[moved >= 0].sum()) if (moved >= 0).any() else None,
        }
    return found


def _failures(trace: Trace) -> dict[str, int]:
    """Failed requests by the class of their error, the most frequent ones."""
    rows = np.flatnonzero(trace.requests.end_reason == EndReason.FAILED)
    counts = Counter(plain(trace.requests.error[i], 80) for i in rows)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:20])


def catalogue_data(words: Words, *, alone: bool = False) -> dict[str, Any]:
    """The metrics that the compare page lists, the rules by which it compares, and its texts.

    ``alone``: the page stands alone, without the pages of the runs and of the metrics that it would link to.
    """
    return {
        "alone": alone,
        "rules": comparison_rules(words),
        "effects": list(EFFECTS),
        "latencies": [_metric(metric, words) for metric in LATENCIES],
        "counts": [_metric(METRICS[name], words) for name in COUNTS],
        "probabilities": list(CURVE_PROBABILITIES),
        "pieces": list(PIECES),
        "events": list(HAPPENED),
        "kv": list(KV_AMOUNTS),
        "memory": list(MEMORY_TERMS),
        "labels": {
            "piece": {piece: words(f"piece.{piece}") for piece in PIECES},
            "event": {name: words(f"event.{kind.name}") for name, kind in HAPPENED.items()},
            "kv": {name: words(f"kv.row.{name.removesuffix('_bytes')}") for name in KV_AMOUNTS},
            "memory": _tails(words.starting("memory.")),
            "predicted": _tails(words.starting("predicted.")),
        },
        "words": _tails(words.starting("compare.js.")),
    }


def comparison_rules(words: Words) -> dict[str, Any]:
    """What the browser needs to compare as :mod:`~cbtrace.site.analysis.comparison` does."""
    groups = {metric.id: words(f"group.{group.id}") for group in GROUPS for metric in group.metrics}
    values = [
        _metric(value.metric, words) | {"key": key, "statistic": value.statistic, "group": groups[value.metric.id]}
        for key, value in RUN_VALUES.items()
    ]
    return {
        "comparability": comparability_rules(),
        "directions": {kind: list(pair) for kind, pair in DIRECTION_WORDS.items()},
        "values": values,
        "headline": list(HEADLINE_KEYS),
        "memory": MEMORY,
        "student": student_table(),
    }


def _metric(metric: Metric, words: Words) -> dict[str, Any]:
    return {
        "metric": metric.id,
        "label": words(f"metric.{metric.id}.label"),
        "unit": metric.unit,
        "better": metric.better,
        "change": metric.change,
    }


def _tails(texts: dict[str, str]) -> dict[str, str]:
    """Texts by the last part of their keys."""
    return {key.rpartition(".")[2]: text for key, text in texts.items()}
