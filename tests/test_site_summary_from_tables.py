"""Every value of the JSON summary, computed again from the exported tables with plain Python, to the last digit."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pytest

from cbtrace.site.analysis.summary import SUMMARY_SCHEMA, summarize, summary_json
from cbtrace.traces import Finding, Trace, codec, open_trace
from cbtrace.traces.blocks import each_payload
from cbtrace.traces.export.tables import write_tables
from cbtrace.traces.frames import PREAMBLE_BYTES, Damage, FrameScanner, seal
from cbtrace.traces.schema import (
    Admit,
    EventKind,
    Footer,
    Frame,
    Gpu,
    Memory,
    Overwritten,
    Request,
    Roster,
    Step,
    StepFlag,
)
from cbtrace.traces.versions import decoder
from site_runs import busy_run, troubled_run
from trace_builder import TraceBuilder, eventful

KEPT = sorted((Path(__file__).parent / "fixtures").glob("*.cbt"))
EOS, LENGTH, CANCELLED, FAILED, RUNNING = 1, 2, 3, 4, 0
UNSEEN, FORKED = 2, 4
UNKNOWN = -1
Rows = list[dict[str, Any]]


def quantile(values: list[Any], q: int) -> float:
    """Linear interpolation from the nearer neighbor, as IEEE arithmetic has it."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * (q / 100)
    low = math.floor(at)
    below, above, share = ordered[low], ordered[min(low + 1, len(ordered) - 1)], at - low
    step = above - below
    return float(above - step * (1 - share) if share >= 0.5 else below + step * share)


def spread(values: list[Any], excluded: int | None) -> dict[str, Any]:
    shown = {f"p{q}": quantile(values, q) / 1e6 if values else None for q in (50, 95, 99)}
    found: dict[str, Any] = shown | {"max": max(values) / 1e6 if values else None, "n": len(values), "excluded": 0}
    if excluded is None:
        return found | {"adjusted": None}
    total = len(values) + excluded
    ordered = [*sorted(values), *[math.inf] * excluded]
    finite = {q: total and math.isfinite(ordered[math.ceil((total - 1) * q / 100)]) for q in (50, 95, 99)}
    huge = max(values, default=0) + 1  # never reached by a finite percentile
    stand_ins = [*values, *[huge] * excluded]
    adjusted = {f"p{q}": quantile(stand_ins, q) / 1e6 if finite[q] else None for q in (50, 95, 99)}
    return found | {"excluded": excluded, "adjusted": adjusted}


def latencies(requests: Rows, tokens: Rows) -> dict[str, Any]:
    lines: dict[int, list[tuple[int, int]]] = {}
    for token in tokens:
        lines.setdefault(token["request"], []).append((token["position"], token["time_ns"]))
    done = [number for number, r in enumerate(requests) if r["end_reason"] in (EOS, LENGTH) and r["generated"] > 0]
    ended = [r for r in requests if r["end_reason"] != RUNNING]
    excluded = len(ended) - len(done)
    rows = [requests[number] for number in done]
    seen = [r for r in rows if not r["flags"] & UNSEEN and r["submit_ns"] >= 0]
    long = [r for r in rows if r["generated"] > 1 and r["first_token_ns"] >= 0 and r["last_token_ns"] >= 0]
    gaps = [
        after - before
        for number in done
        for (place, before), (following, after) in zip(lines.get(number, []), lines.get(number, [])[1:], strict=False)
        if following == place + 1
    ]
    return {
        "ttft_ms": spread([r["first_token_ns"] - r["submit_ns"] for r in seen if r["first_token_ns"] >= 0], excluded),
        "token_gap_ms": spread(gaps, None),
        "tpot_ms": spread([(r["last_token_ns"] - r["first_token_ns"]) / (r["generated"] - 1) for r in long], excluded),
        "e2e_ms": spread([r["end_ns"] - r["submit_ns"] for r in seen if r["end_ns"] >= 0], excluded),
        "queue_ms": spread([r["admitted_ns"] - r["submit_ns"] for r in seen if r["admitted_ns"] >= 0], excluded),
    }


def step_times(steps: Rows) -> list[int]:
    found = []
    for number, step in enumerate(steps):
        before = steps[number - 1] if number else None
        overlaps = (
            before is not None
            and step["flags"] & StepFlag.ASYNC
            and step["index"] == before["index"] + 1
            and step["start_ns"] <= before["done_ns"]
        )
        found.append(
            step["ready_ns"] - before["ready_ns"] if before and overlaps else step["done_ns"] - step["start_ns"]
        )
    return found


def counts(requests: Rows) -> dict[str, int]:
    reasons = [r["end_reason"] for r in requests]
    return {
        "finished": reasons.count(EOS) + reasons.count(LENGTH),
        "failed": reasons.count(FAILED),
        "cancelled": reasons.count(CANCELLED),
        "running": reasons.count(RUNNING),
        "empty": sum(r["end_reason"] in (EOS, LENGTH) and not r["generated"] for r in requests),
        "submit_unseen": sum(r["flags"] & UNSEEN > 0 for r in requests),
        "forked": sum(r["flags"] & FORKED > 0 for r in requests),
        "soft_reset": sum(r["soft_resets"] > 0 for r in requests),
    }


def totals(tables: dict[str, Rows], whole: bool) -> dict[str, Any]:
    steps, requests, events = tables["steps"], tables["requests"], tables["events"]
    submits = [r["submit_ns"] for r in requests if r["submit_ns"] >= 0]
    lasts = [r["last_token_ns"] for r in requests if r["last_token_ns"] >= 0]
    window = max(lasts) - min(submits) if submits and lasts else 0
    generated, computed = sum(r["generated"] for r in requests), sum(r["prefill_computed"] for r in requests)
    if whole:
        assert len(tables["tokens"]) == sum(step["new_tokens"] for step in steps) == generated
        assert sum(step["prefill_tokens"] for step in steps) == computed
    gpu = [step["gpu_ns"] for step in steps if step["gpu_ns"] >= 0]
    kinds = [event["kind"] for event in events]
    return {
        "steps": len(steps),
        "window_s": window / 1e9,
        "generated_tokens": generated,
        "prompt_tokens_submitted": sum(r["prompt_tokens"] for r in requests if r["prompt_tokens"] != UNKNOWN),
        "prompt_tokens_computed": computed,
        "prompt_tokens_prefix_hit": sum(r["prefix_hit"] for r in requests),
        "prompt_tokens_recomputed": sum(row["recompute"] for row in tables["step_requests"]),
        "wasted_tokens": sum(row["wasted"] for row in tables["step_requests"]),
        "throughput_generated_tps": generated / (window / 1e9) if window else None,
        "throughput_prompt_tps": computed / (window / 1e9) if window else None,
        "soft_resets": kinds.count(EventKind.SOFT_RESET),
        "offloads": kinds.count(EventKind.OFFLOAD),
        "restores": kinds.count(EventKind.RESTORE),
        "graph_captures": len(captures_in_service(events)),
        "gpu_busy": sum(gpu) / window if steps and len(gpu) == len(steps) and window else None,
        "gpu_timed_steps": len(gpu),
    }


def captures_in_service(events: Rows) -> Rows:
    """Graph captures that ended in no warm-up."""
    ends = [event for event in events if event["kind"] == EventKind.WARMUP_END and event["duration_ns"] >= 0]
    warm = [(event["time_ns"] - event["duration_ns"], event["time_ns"]) for event in ends]
    captures = [event for event in events if event["kind"] == EventKind.GRAPH_CAPTURE]
    return [event for event in captures if not any(lo <= event["time_ns"] <= hi for lo, hi in warm)]


def memory(tables: dict[str, Rows]) -> dict[str, Any]:
    begin = tables["steps"][0]["start_ns"] if tables["steps"] else 0
    samples = [row for row in tables["memory"] if row["time_ns"] >= begin and not row["mark"]]
    reserved = [max(row["peak_reserved"], row["reserved"]) for row in samples]
    for scope, values in (("allocator_reserved", reserved), ("host_rss", [row["host_rss"] for row in samples])):
        if known := [value for value in values if value >= 0]:
            return {"peak_memory_bytes": max(known), "peak_memory_scope": scope}
    return {"peak_memory_bytes": None, "peak_memory_scope": None}


def kv(steps: Rows, trace: Trace) -> dict[str, Any] | None:
    """Sizes and settings are no tables: they come from the engine's frame, and must agree with the steps."""
    if not trace.engines:
        return None
    engine = trace.engines[-1]
    cache, margin = engine.kv, engine.resolved.get("safety_margin")
    capacity = cache.capacity_units * cache.unit_bytes
    its_own = [step for step in steps if step["start_ns"] >= engine.t_ns]
    assert {step["kv_free"] + step["kv_cached"] + step["kv_used"] for step in its_own} <= {capacity}
    assert isinstance(margin, float) or margin is None
    return {
        "unit_name": cache.unit_name,
        "unit_bytes": cache.unit_bytes,
        "capacity_units": cache.capacity_units,
        "capacity_bytes": capacity,
        "capacity_tokens": cache.capacity_tokens,
        "reserved_bytes": cache.reserved_bytes,
        "safety_margin": margin,
        "margin_bytes": None if margin is None else round(margin * capacity),
        "peak_used_bytes": max((step["kv_used"] for step in steps), default=None),
        "mean_used_bytes": _held(steps),
        "peak_cached_bytes": max((step["kv_cached"] for step in steps), default=None),
        "min_free_bytes": min((step["kv_free"] for step in steps), default=None),
    }


def _held(steps: Rows) -> float | None:
    if len(steps) < 2:
        return float(steps[0]["kv_used"]) if steps else None
    instants = [step["scheduled_ns"] for step in steps]
    weighted = sum(
        step["kv_used"] * (after - before) for step, before, after in zip(steps, instants, instants[1:], strict=False)
    )
    return weighted / (instants[-1] - instants[0])


def recovery(path: Path, steps: Rows, trace: Trace) -> dict[str, Any]:
    """Counted again from the bytes of the file."""
    data = path.read_bytes()
    found = list(each_payload(FrameScanner(io.BytesIO(data[PREAMBLE_BYTES:]).read, PREAMBLE_BYTES)))
    lost = [part for part in found if isinstance(part, Damage)]
    payloads = [part for part in found if not isinstance(part, Damage)]
    decode = decoder(data[8])
    frames = [decode(payload) for payload in payloads]
    repeated = len(payloads) - len(set(payloads))
    footer = next((frame for frame in frames if isinstance(frame, Footer)), None)
    ring = next((frame for frame in frames if isinstance(frame, Overwritten)), None)
    indices = [step["index"] for step in steps]
    there = len(indices) + (ring.steps if ring else 0)
    missing = max([footer.steps if footer else 0, *(index + 1 for index in indices)]) - there
    admissions = admissions_lost(frames, ring)
    nameless = set(trace.ordinals.tolist()) - {frame.request for frame in frames if isinstance(frame, Request)}
    broken = repeated or missing or admissions or nameless or any(part.reason == "damaged" for part in lost)
    ended = footer and ("ring" if ring else {"closed": "clean"}.get(footer.reason, "stopped"))
    return {
        "status": "damaged" if broken else ended or "cut",
        "frames_read": len(payloads),
        "bytes_total": len(data),
        "bytes_dropped": sum(part.end - part.start for part in lost),
        "ranges": [{"start": part.start, "end": part.end, "reason": part.reason} for part in lost],
        "cut_at": -1 if footer else lost[-1].start if lost else len(data),
        "after_step": max(indices, default=-1),
        "steps_missing": missing,
        "steps_overwritten": ring.steps if ring else 0,
        "admissions_lost": admissions,
        "frames_repeated": repeated,
        "findings": [words(finding) for finding in trace.recovery.findings],
    }


def admissions_lost(frames: list[Frame], ring: Overwritten | None) -> int:
    """Numbers of admissions that are skipped, up to the highest that is known of; from a ring's mark on."""
    since = frames[frames.index(ring) :] if ring else frames
    rosters = [frame for frame in since if isinstance(frame, Roster)]
    first = rosters[0].next_serial if ring else 0
    there = {frame.serial for frame in since if isinstance(frame, Admit) and frame.serial >= first}
    return max([first, *(roster.next_serial for roster in rosters), *(one + 1 for one in there)]) - first - len(there)


def words(finding: Finding) -> dict[str, str]:
    """Not numbers: tests/test_traces_recovery.py has their truth."""
    severity = {0: "info", 1: "warning", 2: "data_loss", 3: "broken"}[finding.severity]
    return {"slug": finding.slug, "severity": severity, "place": finding.place, "meaning": finding.meaning}


def recomputed(path: Path, folder: Path) -> dict[str, Any]:
    trace = open_trace(path)
    tables = {file.stem: polars.read_parquet(file).to_dicts() for file in write_tables(trace, folder)}
    return {
        "schema": SUMMARY_SCHEMA,
        "run_id": trace.header.run_id,
        "name": trace.header.name,
        "tags": trace.header.tags,
        "recorded_ns": trace.header.wall_ns,
        "predicted": trace.header.predicted,
        **latencies(tables["requests"], tables["tokens"]),
        "step_ms": spread(step_times(tables["steps"]), None),
        "requests": counts(tables["requests"]),
        **totals(tables, trace.recovery.whole),
        **memory(tables),
        "kv": kv(tables["steps"], trace),
        "recovery": recovery(path, tables["steps"], trace),
    }


def many_lengths(path: Path) -> Trace:
    """Values whose mean and percentiles do not come out even, GPU times, memory, samples of the device."""
    build = TraceBuilder(path)
    running = [build.submit(7 + 3 * number, 3 + number) for number in range(9)]
    for request in running:
        build.admit(request)
        build.now += 1_234_567 + 89 * request.ordinal
    build.step({request: request.prompt for request in running}, gpu_ns=7_654_321)
    build.write(Memory(build.now, "", reserved=2**33 + 1, peak_reserved=2**33 + 7, host_rss=5))
    build.write(Gpu(build.now, utilization=50))
    while alive := [request for request in running if not request.ended]:
        build.now += 1009 * len(alive)
        build.step(alive, gpu_ns=1_000_003 * len(alive))
        for request in alive:
            if request.generated >= request.limit:
                build.finish(request)
    return build.close()


def cut(path: Path) -> Trace:
    busy_run(path)
    path.write_bytes(path.read_bytes()[:-777])
    return open_trace(path)


def damaged(path: Path) -> Trace:
    trace = many_lengths(path)
    size = path.stat().st_size
    data = bytearray(path.read_bytes())
    data[size * 2 // 3] ^= 0xFF
    path.write_bytes(data)
    return trace


def frames_changed(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> Trace:
    """A busy run whose frames are not those that were written; all of them are sound."""
    busy_run(path)
    data = path.read_bytes()
    found = FrameScanner(io.BytesIO(data[PREAMBLE_BYTES:]).read, PREAMBLE_BYTES)
    payloads = change([part[1] for part in found if not isinstance(part, Damage)])
    path.write_bytes(data[:PREAMBLE_BYTES] + b"".join(map(seal, payloads)))
    return open_trace(path)


def repeated(path: Path) -> Trace:
    return frames_changed(path, lambda payloads: [*payloads[:30], *payloads[5:]])


def without_frames(path: Path) -> Trace:
    def change(payloads: list[bytes]) -> list[bytes]:
        admits = [payload for payload in payloads if isinstance(codec.decode(payload), Admit)]
        steps = [payload for payload in payloads if isinstance(codec.decode(payload), Step)]
        requests = [payload for payload in payloads if isinstance(codec.decode(payload), Request)]
        return [payload for payload in payloads if payload not in (*admits[3:5], *steps[20:23], requests[2])]

    return frames_changed(path, change)


def stopped(path: Path) -> Trace:
    return eventful(path).close("disk_full")


def events(path: Path) -> Trace:
    return eventful(path).close()


MADE = [events, busy_run, troubled_run, many_lengths, cut, damaged, repeated, without_frames, stopped]


@pytest.mark.parametrize("make", MADE)
def test_every_value_is_that_of_the_tables(tmp_path: Path, make: Callable[[Path], Trace]) -> None:
    make(tmp_path / "run.cbt")
    agrees(tmp_path / "run.cbt", tmp_path)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_every_value_of_a_kept_trace_is_that_of_its_tables(tmp_path: Path, path: Path) -> None:
    agrees(path, tmp_path)


def agrees(path: Path, tmp_path: Path) -> None:
    found = json.loads(json.dumps(summary_json(summarize(open_trace(path))), allow_nan=False))
    expected = json.loads(json.dumps(recomputed(path, tmp_path / "tables")))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == value, key
        assert type(found[key]) is type(value), key


def test_a_digit_that_differs_is_noticed(tmp_path: Path) -> None:
    """Comparing is exact: the smallest change of a float is a difference."""
    path = tmp_path / "run.cbt"
    many_lengths(path)
    expected = recomputed(path, tmp_path / "tables")
    found = summary_json(summarize(open_trace(path)))
    assert found["tpot_ms"] == expected["tpot_ms"]
    found["tpot_ms"]["p95"] = math.nextafter(found["tpot_ms"]["p95"], math.inf)
    assert found["tpot_ms"] != expected["tpot_ms"]
