"""What any comparison needs of one run, bounded: numbers, conditions, quantile curves, cuts and budgets.

This is a run's *side*: plain data, loaded by the compare page for every chosen run, and read by
:mod:`~cbtrace.site.pages.compare_static`. What is larger is in :mod:`~cbtrace.site.pages.compare_requests`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from cbtrace.site import formats
from cbtrace.site.analysis.attribution import Cuts, GapCuts, TtftCuts
from cbtrace.site.analysis.bands import Band, bands
from cbtrace.site.analysis.catalogue import GROUPS, LATENCIES, STATISTICS, Metric, value_of
from cbtrace.site.analysis.conditions import conditions, settings
from cbtrace.site.analysis.distribution import CURVE_PROBABILITIES, curve
from cbtrace.site.analysis.kv import KvBudget
from cbtrace.site.analysis.latency import latencies
from cbtrace.site.analysis.memory_budget import memory_budget
from cbtrace.site.analysis.pieces import PIECES
from cbtrace.site.analysis.summary import RunSummary
from cbtrace.site.pages.labels import health, run_name
from cbtrace.site.pages.run import model_label
from cbtrace.site.plain_text import distinct, plain
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
    engine = trace.engines[-1] if trace.engines else None
    arrays = latencies(trace.requests, trace.tokens)
    return {
        "slug": slug,
        "name": plain(run_name(trace, summary), 200),
        "model": plain(model_label(trace), 200),
        "recorded": formats.instant(summary.recorded_ns),
        "predicted": summary.predicted,
        "health": health(trace),
        "values": {metric.id: _values(summary, metric) for group in GROUPS for metric in group.metrics},
        "peak_memory_scope": summary.peak_memory_scope,
        "requested": {plain(s.name, 80): _text(s.requested) for s in settings(engine)} if engine else {},
        "resolved": {plain(s.name, 80): _text(s.resolved) for s in settings(engine)} if engine else {},
        "conditions": {plain(fact.name, 80): _text(fact.value) for fact in conditions(trace.header, engine)},
        "curves": {metric.id: _rounded(curve(getattr(arrays, _ARRAYS[metric.id]))) for metric in LATENCIES},
        "cuts": {"ttft": _cut(cuts.ttft), "gap": _cut(cuts.gaps)},
        "kv": _kv(summary.kv),
        "memory": _memory(trace),
        "happened": _happened(trace),
        "failures": _failures(trace),
    }


def _values(summary: RunSummary, metric: Metric) -> dict[str, float | None]:
    if not metric.distribution:
        return {"value": value_of(summary, metric)}
    return {name: value_of(summary, metric, name) for name in (*STATISTICS, "n")}


def _text(value: object) -> str | None:
    return None if value is None else distinct(formats.fact(value), 200)


def _rounded(values: list[float]) -> list[float]:
    """Microseconds are enough for a curve; the numbers of the tables are not rounded."""
    return [round(value, 3) for value in values]


def _cut(cut: TtftCuts | GapCuts) -> dict[str, Any]:
    """The cut of all values and of the slowest twentieth: how many, and whole nanoseconds by piece."""
    found = bands(cut.total_ns, cut.pieces)
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
    """How often each kind of event came, the bytes that it moved, and how long captures took.

    Offloads and restores of one round each carry the time of the whole round, so that a sum would count it again.
    """
    events = trace.events
    found = {}
    for name, kind in HAPPENED.items():
        rows = events.kind == kind
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


def catalogue_data(words: Words) -> dict[str, Any]:
    """The metrics that the compare page lists, and its texts."""
    return {
        "groups": [
            {
                "label": words(f"group.{group.id}"),
                "metrics": [
                    {
                        "id": metric.id,
                        "label": words(f"metric.{metric.id}.label"),
                        "unit": metric.unit,
                        "better": metric.better,
                        "change": metric.change,
                        "statistics": list(STATISTICS) if metric.distribution else [],
                    }
                    for metric in group.metrics
                ],
            }
            for group in GROUPS
        ],
        "latencies": [metric.id for metric in LATENCIES],
        "probabilities": list(CURVE_PROBABILITIES),
        "pieces": list(PIECES),
        "piece_labels": {piece: words(f"piece.{piece}") for piece in PIECES},
        "words": {key.removeprefix("compare.js."): text for key, text in words.starting("compare.js.").items()},
    }
