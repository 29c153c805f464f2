"""The summary of a run: recomputed here from the tables by other means, and stable in its keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cbtrace.site.analysis.catalogue import METRICS, STATISTICS, value_of
from cbtrace.site.analysis.summary import SUMMARY_SCHEMA, summarize, summary_json
from cbtrace.traces import Trace, open_trace
from cbtrace.traces.schema import EndReason, EventKind, Memory
from site_runs import busy_run, troubled_run
from trace_builder import CAPACITY, UNIT_BYTES, TraceBuilder, eventful

KEYS = {
    "ttft_ms",
    "token_gap_ms",
    "tpot_ms",
    "e2e_ms",
    "queue_ms",
    "generated_tokens",
    "prompt_tokens_computed",
    "prompt_tokens_prefix_hit",
    "prompt_tokens_recomputed",
    "wasted_tokens",
    "throughput_generated_tps",
    "throughput_prompt_tps",
    "soft_resets",
    "offloads",
    "restores",
    "requests",
    "peak_memory_bytes",
    "kv",
    "recovery",
}


def percentile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    rank = (len(ordered) - 1) * q / 100
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def true_times(trace: Trace) -> dict[int, list[int]]:
    times: dict[int, list[int]] = {}
    for request, time in zip(trace.tokens.request.tolist(), trace.tokens.time_ns.tolist(), strict=True):
        times.setdefault(request, []).append(time)
    return times


@pytest.mark.parametrize("make", [busy_run, troubled_run])
def test_latencies_and_throughput_from_first_principles(tmp_path: Path, make: object) -> None:
    trace = make(tmp_path / "run.cbt")  # type: ignore[operator]
    found = summarize(trace)
    requests, times = trace.requests, true_times(trace)
    good = [i for i in range(len(requests.id)) if requests.end_reason[i] in (EndReason.EOS, EndReason.LENGTH)]
    good = [i for i in good if i in times]
    expected = {
        "ttft_ms": [times[i][0] - int(requests.submit_ns[i]) for i in good],
        "token_gap_ms": [b - a for i in good for a, b in zip(times[i], times[i][1:], strict=False)],
        "tpot_ms": [(times[i][-1] - times[i][0]) / (len(times[i]) - 1) for i in good if len(times[i]) > 1],
        "e2e_ms": [int(requests.end_ns[i] - requests.submit_ns[i]) for i in good],
        "queue_ms": [int(requests.admitted_ns[i] - requests.submit_ns[i]) for i in good],
    }
    for name, values in expected.items():
        shown = getattr(found, name)
        assert shown.n == len(values), name
        assert shown.max == max(values) / 1e6, name
        for q in (50, 95, 99):
            assert getattr(shown, f"p{q}") == pytest.approx(percentile(values, q) / 1e6, rel=1e-12), name
    window = max(t[-1] for t in times.values()) - int(min(requests.submit_ns))
    assert found.generated_tokens == sum(len(t) for t in times.values())
    assert found.throughput_generated_tps == pytest.approx(found.generated_tokens / window * 1e9, rel=1e-12)
    assert found.window_s == window / 1e9


def test_tokens_are_conserved(tmp_path: Path) -> None:
    trace = busy_run(tmp_path / "run.cbt", resets=3)
    found = summarize(trace)
    steps = trace.steps
    assert found.soft_resets == 3
    assert found.prompt_tokens_recomputed == int(steps.recompute_tokens.sum()) > 0
    assert found.prompt_tokens_computed == int(steps.prefill_tokens.sum())
    assert found.prompt_tokens_computed + found.prompt_tokens_prefix_hit == found.prompt_tokens_submitted


def test_events_are_counted_by_kind(tmp_path: Path) -> None:
    build = eventful(tmp_path / "run.cbt")
    found = summarize(build.close())
    kinds = [frame.kind for frame in build.frames if hasattr(frame, "kind")]
    assert found.soft_resets == kinds.count(EventKind.SOFT_RESET) == 1
    assert found.offloads == kinds.count(EventKind.OFFLOAD) == 1
    assert found.restores == kinds.count(EventKind.RESTORE) == 1
    assert found.wasted_tokens == sum(member.wasted for member in build.truth) == 1


def test_kv_is_in_bytes_and_adds_up(tmp_path: Path) -> None:
    trace = busy_run(tmp_path / "run.cbt")
    kv = summarize(trace).kv
    assert kv is not None
    assert kv.capacity_bytes == CAPACITY * UNIT_BYTES
    assert kv.peak_used_bytes == max(kv.capacity_bytes - trace.steps.kv_free - trace.steps.kv_cached)
    assert kv.min_free_bytes == min(trace.steps.kv_free)
    assert kv.safety_margin is None  # not among the settings of this trace: unknown, not zero


def test_the_peak_leaves_out_what_came_before_the_first_step(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    request = build.submit(3, 2)
    build.write(Memory(build.now, "", peak_reserved=9999))
    build.write(Memory(build.now, "warmed_up", peak_reserved=7777))
    build.now += 1000
    build.admit(request)
    build.step({request: 3})
    build.write(Memory(build.now, "", reserved=100, peak_reserved=500))
    build.step([request])
    build.finish(request)
    found = summarize(build.close())
    assert (found.peak_memory_bytes, found.peak_memory_scope) == (500, "allocator_reserved")


def test_without_a_gpu_the_peak_is_the_process(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    request = build.submit(3, 1)
    build.admit(request)
    build.step({request: 3})
    build.write(Memory(build.now, "", host_rss=12345))
    build.finish(request)
    found = summarize(build.close())
    assert (found.peak_memory_bytes, found.peak_memory_scope) == (12345, "host_rss")


def test_gpu_busy_is_unknown_when_one_step_is_untimed(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    request = build.submit(3, 3)
    build.admit(request)
    build.step({request: 3}, gpu_ns=400_000)
    build.step([request], gpu_ns=400_000)
    timed = build.steps
    build.step([request])
    build.finish(request)
    found = summarize(build.close())
    assert found.gpu_busy is None
    assert found.gpu_timed_steps == timed


def test_the_json_has_the_promised_keys_and_plain_values(tmp_path: Path) -> None:
    found = summary_json(summarize(eventful(tmp_path / "run.cbt").close()))
    assert found.keys() >= KEYS
    assert found["schema"] == SUMMARY_SCHEMA
    for name in ("ttft_ms", "token_gap_ms", "tpot_ms", "e2e_ms", "queue_ms"):
        assert found[name].keys() >= {*STATISTICS, "n"}
    assert found["requests"].keys() >= {"finished", "failed", "cancelled", "running"}
    assert json.loads(json.dumps(found, allow_nan=False)) == json.loads(json.dumps(found))


def test_every_metric_of_the_catalogue_is_in_the_summary(tmp_path: Path) -> None:
    found = summarize(busy_run(tmp_path / "run.cbt"))
    for metric in METRICS.values():
        value = value_of(found, metric, "p50" if metric.distribution else None)
        assert value is not None or metric.id == "gpu_busy", metric.id


def test_a_run_without_requests_has_no_numbers_and_no_error(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    build.close()
    found = summarize(open_trace(tmp_path / "run.cbt"))
    assert found.ttft_ms.n == 0
    assert found.throughput_generated_tps is None
    assert found.peak_memory_bytes is None
