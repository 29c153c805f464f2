"""The steps of a recorded run as a time model sees them: shapes, and how long each part took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbtrace.recorder.whatif.pace import Shape
from cbtrace.traces import Trace
from cbtrace.traces.columns import Steps
from cbtrace.traces.schema import EventKind, StepFlag

Floats = NDArray[np.float64]
_LOOP_NS = 1_000_000
"""A longer pause between two steps is one in which the engine had nothing to do."""


@dataclass(frozen=True)
class Measured:
    """One row a step: its shape, and the nanoseconds of its parts. NaN where a part does not apply or is not known."""

    shapes: list[Shape]
    parts: dict[str, Floats]
    between_ns: float
    has_device_times: bool


def measure(trace: Trace) -> Measured:
    """Read the parts of every step off a trace.

    Without device times (on a CPU) a synchronous batch is the device's work from its launch to the results. A
    synchronous engine waits for the device where it launches, so its launch is what that took beyond the device's time.
    """
    steps, resolved = trace.steps, trace.engines[0].resolved
    is_async = resolved.get("use_async_batching") is True
    captured = (steps.flags & StepFlag.GRAPH_CAPTURED) > 0
    timed = bool((steps.gpu_ns >= 0).any())
    launch = (steps.launched_ns - steps.prepared_ns).astype(np.float64)
    device = np.where(steps.gpu_ns >= 0, steps.gpu_ns, np.nan) if timed else launch
    host_launch = launch if is_async else launch - device
    copy, copied = _copies(trace)
    prepare = _span(steps.scheduled_ns, steps.prepared_ns)
    # Requests are put off between two attempts to schedule, or while the batch is prepared.
    before = copy > prepare
    parts = {
        "schedule": _span(steps.start_ns, steps.scheduled_ns) - np.where(before, copy, 0),
        "copy": np.where(copied > 0, copy, np.nan),
        "prepare": prepare - np.where(before, 0, copy),
        "launch": np.where(captured, np.nan, np.maximum(host_launch, 0)),
        "capture": np.where(captured, launch, np.nan),
        "device": np.where(captured, np.nan, device),
        "update": _span(steps.ready_ns, steps.done_ns),
    }
    return Measured(_shapes(trace, is_async, copied), parts, _between(trace, is_async), timed)


def _span(begin: NDArray[np.int64], end: NDArray[np.int64]) -> Floats:
    return (end - begin).astype(np.float64)


def _between(trace: Trace, is_async: bool) -> float:
    """Mean pause of the loop while it had work. An asynchronous engine applies results after the next launch."""
    ahead = 2 if is_async else 1
    pauses = trace.steps.start_ns[ahead:] - trace.steps.done_ns[:-ahead]
    pauses = pauses[(pauses >= 0) & (pauses < _LOOP_NS)]
    return float(np.mean(pauses)) if pauses.size else 0.0


def _copies(trace: Trace) -> tuple[Floats, Floats]:
    """By step: nanoseconds in which KV was copied to the CPU and back, and the KV's tokens."""
    rows = trace.steps.index.size
    took, tokens = np.zeros(rows), np.zeros(rows)
    events = trace.events
    for kind in (EventKind.OFFLOAD, EventKind.RESTORE):
        of_kind = np.flatnonzero((events.kind == kind) & (events.duration_ns >= 0))
        at = np.searchsorted(trace.steps.index, events.step[of_kind])
        here = (at < rows) & (events.tokens[of_kind] > 0)
        durations = np.zeros(rows)
        # All requests of a round are copied at once: each event has the time of the round.
        np.maximum.at(durations, at[here], events.duration_ns[of_kind][here])
        np.add.at(tokens, at[here], events.tokens[of_kind][here])
        took += durations
    return took, tokens


def _shapes(trace: Trace, is_async: bool, copied: Floats) -> list[Shape]:
    steps = trace.steps
    budget = int(trace.engines[0].resolved.get("max_batch_tokens") or 0) if is_async else 0
    fast = (steps.flags & StepFlag.DECODE_FAST_PATH) > 0
    captured = (steps.flags & StepFlag.GRAPH_CAPTURED) > 0
    graph = captured | ((steps.flags & StepFlag.GRAPH_HIT) > 0)
    queries = steps.prefill_tokens + steps.decode_tokens + steps.recompute_tokens
    kv_read = np.maximum(steps.kv_read, 0)
    first_replays = _first_replays(steps, is_async)
    return [
        Shape(
            members=int(steps.members[row]),
            waiting=int(steps.waiting[row]),
            queries=int(queries[row]),
            new_tokens=int(steps.new_tokens[row] + steps.wasted_tokens[row]),
            kv_read=int(kv_read[row]),
            indexed_kv=0 if fast[row] else int(kv_read[row]),
            padded_queries=int(steps.padded_queries[row]),
            padded_kv=max(0, int(steps.padded_kv[row])),
            max_batch_tokens=budget,
            uses_graph=bool(graph[row]),
            captured=bool(captured[row]),
            first_replay=row in first_replays,
            copied_tokens=int(copied[row]),
        )
        for row in range(steps.index.size)
    ]


def _first_replays(steps: Steps, is_async: bool) -> set[int]:
    """Rows in which a graph is replayed for the first time since it was captured.

    An asynchronous engine keeps the graphs of its two sets of inputs apart, which take turns. The longest sequence, by
    which graphs are kept as well, is not at hand: of two graphs of equal sizes, the next replay counts.
    """
    found, fresh = set(), set()
    for row, flags in enumerate(steps.flags.tolist()):
        turn = int(steps.index[row]) % 2 if is_async else 0
        graph = (turn, int(steps.padded_queries[row]), int(steps.padded_kv[row]))
        if flags & StepFlag.GRAPH_CAPTURED:
            fresh.add(graph)
        elif flags & StepFlag.GRAPH_HIT and graph in fresh:
            fresh.remove(graph)
            found.add(row)
    return found
