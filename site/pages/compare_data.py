"""What the compare page needs of one run, bounded: numbers, conditions, quantile curves and requests to pair."""

from __future__ import annotations

from typing import Any

from cbtrace.site import formats
from cbtrace.site.analysis.catalogue import GROUPS, LATENCIES, STATISTICS, Metric, value_of
from cbtrace.site.analysis.conditions import conditions, settings
from cbtrace.site.analysis.distribution import CURVE_PROBABILITIES, curve
from cbtrace.site.analysis.latency import latencies
from cbtrace.site.analysis.summary import RunSummary
from cbtrace.site.pages.labels import health, run_name
from cbtrace.site.pages.run import model_label
from cbtrace.site.words import Words
from cbtrace.traces.columns import Requests
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import EndReason

PAIRED_REQUESTS = 2000
"""Most requests of a run that can be paired, in order of submission."""


def compare_data(trace: Trace, summary: RunSummary, slug: str) -> dict[str, Any]:
    """One run's side of any comparison."""
    engine = trace.engines[-1] if trace.engines else None
    arrays = latencies(trace.requests, trace.tokens)
    return {
        "slug": slug,
        "name": run_name(trace, summary),
        "model": model_label(trace),
        "recorded": formats.instant(summary.recorded_ns),
        "predicted": summary.predicted,
        "health": health(trace),
        "values": {metric.id: _values(summary, metric) for group in GROUPS for metric in group.metrics},
        "requested": {s.name: _text(s.requested) for s in settings(engine)} if engine else {},
        "resolved": {s.name: _text(s.resolved) for s in settings(engine)} if engine else {},
        "conditions": {fact.name: _text(fact.value) for fact in conditions(trace.header, engine)},
        "curves": {metric.id: _rounded(curve(getattr(arrays, _ARRAYS[metric.id]))) for metric in LATENCIES},
        "requests": _requests(trace.requests),
    }


_ARRAYS = {"ttft_ms": "ttft", "token_gap_ms": "gaps", "tpot_ms": "tpot", "e2e_ms": "e2e", "queue_ms": "queue"}


def _values(summary: RunSummary, metric: Metric) -> dict[str, float | None]:
    if not metric.distribution:
        return {"value": value_of(summary, metric)}
    return {name: value_of(summary, metric, name) for name in (*STATISTICS, "n")}


def _text(value: object) -> str | None:
    return None if value is None else formats.fact(value)


def _rounded(values: list[float]) -> list[float]:
    """Microseconds are enough for a curve; the numbers of the tables are not rounded."""
    return [round(value, 3) for value in values]


def _requests(requests: Requests) -> dict[str, Any]:
    """Requests in order of submission. Latencies are ms, ``null`` where the request did not end normally."""
    order = sorted(range(len(requests.id)), key=lambda i: (int(requests.submit_ns[i]), i))[:PAIRED_REQUESTS]
    done = {EndReason.EOS, EndReason.LENGTH}
    ended = [int(requests.end_reason[i]) in done and requests.generated[i] > 0 for i in order]

    def since_submit(column: Any) -> list[float | None]:
        return [
            round((int(column[i]) - int(requests.submit_ns[i])) / 1e6, 3) if ok and column[i] >= 0 else None
            for i, ok in zip(order, ended, strict=True)
        ]

    return {
        "limited": len(requests.id) > PAIRED_REQUESTS,
        "prompt": [requests.prompt_hash[i].hex() for i in order],
        "output": [requests.output_hash[i].hex() for i in order],
        "generated": [int(requests.generated[i]) for i in order],
        "ttft_ms": since_submit(requests.first_token_ns),
        "e2e_ms": since_submit(requests.end_ns),
    }


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
        "paired_requests": PAIRED_REQUESTS,
        "words": {key.removeprefix("compare.js."): text for key, text in words.starting("compare.js.").items()},
    }
