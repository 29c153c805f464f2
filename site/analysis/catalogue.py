"""The catalogue of metrics: what each is called, its unit and which direction is better. Pages and compare use it.

The texts (label, formula, scope) are words ``metric.<id>.label`` and so on, and ``id`` is the key in the JSON summary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cbtrace.site.analysis.summary import RunSummary

Better = Literal["lower", "higher", "neither"]
Change = Literal["time", "rate", "count", "amount"]
"""What a change is called: faster or slower, faster or slower the other way, fewer or more, less or more."""

STATISTICS = ("p50", "p95", "p99", "max")


@dataclass(frozen=True)
class Metric:
    """One metric of a run. A *distribution* has the statistics of :data:`STATISTICS`, others are one number."""

    id: str
    unit: str
    better: Better
    change: Change
    distribution: bool = False


@dataclass(frozen=True)
class MetricGroup:
    """Metrics that are shown together; ``id`` is also the key of its label, ``group.<id>``."""

    id: str
    metrics: tuple[Metric, ...]


GROUPS = (
    MetricGroup(
        "latency",
        (
            Metric("ttft_ms", "ms", "lower", "time", True),
            Metric("token_gap_ms", "ms", "lower", "time", True),
            Metric("tpot_ms", "ms", "lower", "time", True),
            Metric("e2e_ms", "ms", "lower", "time", True),
            Metric("queue_ms", "ms", "lower", "time", True),
        ),
    ),
    MetricGroup(
        "throughput",
        (
            Metric("throughput_generated_tps", "tokens/s", "higher", "rate"),
            Metric("throughput_prompt_tps", "tokens/s", "higher", "rate"),
            Metric("window_s", "s", "lower", "time"),
            Metric("gpu_busy", "%", "neither", "amount"),
        ),
    ),
    MetricGroup(
        "tokens",
        (
            Metric("generated_tokens", "tokens", "neither", "count"),
            Metric("prompt_tokens_computed", "tokens", "neither", "count"),
            Metric("prompt_tokens_prefix_hit", "tokens", "higher", "count"),
            Metric("prompt_tokens_recomputed", "tokens", "lower", "count"),
            Metric("wasted_tokens", "tokens", "lower", "count"),
        ),
    ),
    MetricGroup(
        "scheduling",
        (
            Metric("steps", "steps", "neither", "count"),
            Metric("step_ms", "ms", "neither", "time", True),
            Metric("soft_resets", "", "lower", "count"),
            Metric("offloads", "", "lower", "count"),
            Metric("restores", "", "lower", "count"),
            Metric("graph_captures", "", "lower", "count"),
        ),
    ),
    MetricGroup(
        "requests",
        (
            Metric("requests.finished", "", "neither", "count"),
            Metric("requests.failed", "", "lower", "count"),
            Metric("requests.cancelled", "", "neither", "count"),
            Metric("requests.running", "", "neither", "count"),
        ),
    ),
    MetricGroup(
        "memory",
        (
            Metric("peak_memory_bytes", "bytes", "lower", "amount"),
            Metric("kv.capacity_bytes", "bytes", "neither", "amount"),
            Metric("kv.peak_used_bytes", "bytes", "neither", "amount"),
        ),
    ),
)

RANK_METRICS = (
    Metric("rank_slowest", "%", "neither", "amount"),
    Metric("rank_gpu_ms", "ms", "neither", "time", True),
    Metric("rank_host_ms", "ms", "lower", "time", True),
    Metric("rank_meeting_s", "s", "lower", "time"),
    Metric("rank_launch_s", "s", "lower", "time"),
    Metric("rank_gpu_beyond_s", "s", "lower", "time"),
)
"""Of one rank of a run beside the others: defined with the rest, and no part of a run's summary."""

METRICS = {metric.id: metric for group in GROUPS for metric in group.metrics}
LATENCIES = GROUPS[0].metrics


def value_of(summary: RunSummary, metric: Metric, statistic: str | None = None) -> float | None:
    """The number of ``metric`` in ``summary``; ``statistic`` for distributions. ``None`` is unknown."""
    value: object = summary
    for part in metric.id.split("."):
        value = getattr(value, part, None)
    if statistic is not None:
        value = getattr(value, statistic, None)
    return value if isinstance(value, (int, float)) else None
