"""The summary of a run: every headline number, as shown on the pages, printed by ``cbtrace info`` and exported as JSON.

``SUMMARY_SCHEMA`` is the version of the JSON form. A key never changes its meaning; new keys may come in a later
version of the same number, and a removal or a change raises it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cbtrace.site.analysis.attribution import Cuts, attribute
from cbtrace.site.analysis.captures import captures_outside_warm_up
from cbtrace.site.analysis.distribution import Distribution, describe, describe_with_excluded
from cbtrace.site.analysis.kv import KvBudget, kv_budget
from cbtrace.site.analysis.latency import RequestCounts, count_requests, latencies
from cbtrace.site.analysis.memory import peak_memory
from cbtrace.site.analysis.window import NS_PER_S, gpu_busy, measured_window, step_durations
from cbtrace.traces.columns import Ints
from cbtrace.traces.reader import Trace
from cbtrace.traces.recovery import RecoveryReport
from cbtrace.traces.schema import EventKind

SUMMARY_SCHEMA = 1


@dataclass(frozen=True)
class RunSummary:
    """Headline numbers of one run. Definitions and units are those of the catalogue of metrics; ``None`` is unknown."""

    run_id: str
    name: str
    tags: dict[str, str]
    recorded_ns: int
    """Wall clock at the start of the recording, ns since the epoch."""
    predicted: bool
    ttft_ms: Distribution
    token_gap_ms: Distribution
    tpot_ms: Distribution
    e2e_ms: Distribution
    queue_ms: Distribution
    step_ms: Distribution
    requests: RequestCounts
    steps: int
    window_s: float
    generated_tokens: int
    prompt_tokens_submitted: int
    prompt_tokens_computed: int
    prompt_tokens_prefix_hit: int
    prompt_tokens_recomputed: int
    """Tokens computed again after soft resets: never part of prompt throughput."""
    wasted_tokens: int
    throughput_generated_tps: float | None
    throughput_prompt_tps: float | None
    soft_resets: int
    offloads: int
    restores: int
    graph_captures: int
    """Outside the warm-up."""
    gpu_busy: float | None
    gpu_timed_steps: int
    peak_memory_bytes: int | None
    peak_memory_scope: str | None
    kv: KvBudget | None
    recovery: RecoveryReport


def summarize(trace: Trace, cuts: Cuts | None = None) -> RunSummary:
    """Compute every headline number of ``trace`` from all of its values (nothing is sampled).

    ``cuts`` are those of :func:`~cbtrace.site.analysis.attribution.attribute`, which are made if they are not given.
    """
    header, steps, requests, events = trace.header, trace.steps, trace.requests, trace.events
    latency = latencies(requests, (cuts or attribute(trace)).gaps.durations)
    window = measured_window(requests)
    busy = gpu_busy(steps, window)
    peak = peak_memory(trace.memory, int(steps.start_ns[0]) if len(steps.index) else 0)
    generated, computed = int(requests.generated.sum()), int(requests.prefill_computed.sum())
    return RunSummary(
        run_id=header.run_id,
        name=header.name,
        tags=dict(sorted(header.tags.items())),
        recorded_ns=header.wall_ns,
        predicted=header.predicted,
        ttft_ms=describe_with_excluded(latency.ttft, latency.excluded),
        token_gap_ms=describe(latency.gaps),
        tpot_ms=describe_with_excluded(latency.tpot, latency.excluded),
        e2e_ms=describe_with_excluded(latency.e2e, latency.excluded),
        queue_ms=describe_with_excluded(latency.queue, latency.excluded),
        step_ms=describe(step_durations(steps)),
        requests=count_requests(requests),
        steps=len(steps.index),
        window_s=window.duration_ns / NS_PER_S,
        generated_tokens=generated,
        prompt_tokens_submitted=int(requests.prompt_tokens[requests.prompt_tokens >= 0].sum()),
        prompt_tokens_computed=computed,
        prompt_tokens_prefix_hit=int(requests.prefix_hit.sum()),
        prompt_tokens_recomputed=int(requests.recomputed.sum()),
        wasted_tokens=int(requests.wasted.sum()),
        throughput_generated_tps=window.per_second(generated),
        throughput_prompt_tps=window.per_second(computed),
        soft_resets=_count(events.kind, EventKind.SOFT_RESET),
        offloads=_count(events.kind, EventKind.OFFLOAD),
        restores=_count(events.kind, EventKind.RESTORE),
        graph_captures=int(captures_outside_warm_up(events).sum()),
        gpu_busy=busy.busy,
        gpu_timed_steps=busy.timed_steps,
        peak_memory_bytes=peak.bytes if peak else None,
        peak_memory_scope=peak.scope if peak else None,
        kv=kv_budget(trace.engines[-1], steps) if trace.engines else None,
        recovery=trace.recovery,
    )


def _count(kinds: Ints, kind: EventKind) -> int:
    return int((kinds == kind).sum())


def summary_json(summary: RunSummary) -> dict[str, Any]:
    """The JSON form: plain types, keys as the fields, with the version of this schema. Severities are their names."""
    plain = {"schema": SUMMARY_SCHEMA, **asdict(summary)}
    for finding in plain["recovery"]["findings"]:
        finding["severity"] = finding["severity"].name.lower()
    return plain
