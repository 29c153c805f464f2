"""The headline of a run: cards and the table of latencies."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.site import formats
from cbtrace.site.analysis.catalogue import LATENCIES, METRICS, Metric, value_of
from cbtrace.site.analysis.distribution import Distribution
from cbtrace.site.analysis.summary import RunSummary
from cbtrace.site.words import Words


@dataclass(frozen=True)
class Card:
    """One number with its note."""

    metric: str
    label: str
    unit: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class LatencyRow:
    """One latency: percentiles as text."""

    metric: str
    label: str
    unit: str
    p50: str
    p95: str
    p99: str
    max: str
    n: str
    adjusted: str
    formula: str


def metric_text(value: float | None, metric: Metric) -> str:
    """A value of ``metric`` as text; the unit is told beside it, except for bytes, whose unit varies."""
    if metric.unit == "bytes":
        return formats.size(value)
    if metric.unit == "%":
        return formats.percent(value)
    return formats.seconds(value) if metric.unit == "s" else formats.number(value)


def shown_unit(metric: Metric) -> str:
    """The unit to print beside a label."""
    return "" if metric.unit in ("bytes", "%") else metric.unit


def cards(summary: RunSummary, words: Words) -> list[Card]:
    """The headline numbers that are one number each."""
    scope = summary.peak_memory_scope or "unknown"
    number, kv = formats.number, summary.kv
    notes = {
        "throughput_generated_tps": {
            "tokens": number(summary.generated_tokens),
            "seconds": formats.seconds(summary.window_s),
        },
        "throughput_prompt_tps": {
            "computed": number(summary.prompt_tokens_computed),
            "hit": number(summary.prompt_tokens_prefix_hit),
        },
        "requests.finished": {
            "failed": number(summary.requests.failed),
            "cancelled": number(summary.requests.cancelled),
            "running": number(summary.requests.running),
        },
        "soft_resets": {"recomputed": number(summary.prompt_tokens_recomputed)},
        "offloads": {"restores": number(summary.restores)},
        "wasted_tokens": {},
        "kv.peak_used_bytes": {"capacity": formats.size(kv.capacity_bytes if kv else None)},
        "gpu_busy": {"timed": number(summary.gpu_timed_steps), "steps": number(summary.steps)},
    }
    texts = {name: f"card.{name}.note" for name in notes}
    if summary.offloads and summary.prompt_tokens_recomputed:
        # An asynchronous engine drops the token in flight of a request that it offloads, and computes it again.
        texts["soft_resets"] = "card.soft_resets.note_offloads"
    made = [_card(summary, METRICS[name], words, words(texts[name], **notes[name])) for name in notes]
    peak = _card(summary, METRICS["peak_memory_bytes"], words, words(f"card.peak_memory_bytes.{scope}"))
    return [*made[:-2], peak, *made[-2:]]


def _card(summary: RunSummary, metric: Metric, words: Words, note: str) -> Card:
    value = metric_text(value_of(summary, metric), metric)
    return Card(metric.id, words(f"metric.{metric.id}.label"), shown_unit(metric), value, note)


def latency_rows(summary: RunSummary, words: Words) -> list[LatencyRow]:
    """The latencies, one row each."""
    return [_latency_row(metric, getattr(summary, metric.id), words) for metric in LATENCIES]


def _latency_row(metric: Metric, values: Distribution, words: Words) -> LatencyRow:
    adjusted = formats.UNKNOWN
    if values.adjusted is not None and values.n + values.excluded:
        p95 = values.adjusted.p95
        adjusted = words("run.infinite") if p95 is None else formats.milliseconds(p95)
    p50, p95_text, p99, most = (formats.milliseconds(v) for v in (values.p50, values.p95, values.p99, values.max))
    name = f"metric.{metric.id}"
    return LatencyRow(
        metric=metric.id,
        label=words(f"{name}.label"),
        unit=metric.unit,
        p50=p50,
        p95=p95_text,
        p99=p99,
        max=most,
        n=formats.number(values.n),
        adjusted=adjusted,
        formula=words(f"{name}.formula"),
    )


def latency_note(summary: RunSummary, words: Words) -> str:
    """How many requests are behind the percentiles, and which are not."""
    counts = summary.requests
    values = {
        "n": counts.finished - counts.empty,
        "total": counts.total,
        "excluded": summary.ttft_ms.excluded,
        "running": counts.running,
    }
    note = words("run.latency_note", **values)
    return f"{note} {words('run.latency_unseen', count=counts.submit_unseen)}" if counts.submit_unseen else note
