"""Captures of CUDA graphs: those of the warm-up, which is a phase of its own, and those that requests waited for."""

from __future__ import annotations

import numpy as np

from cbtrace.traces.columns import Bools, Events, Ints
from cbtrace.traces.schema import EventKind


def captures_outside_warm_up(events: Events) -> Bools:
    """The rows of ``events`` that are graph captures and lie in no warm-up. Both are told when they end."""
    captured: Bools = events.kind == EventKind.GRAPH_CAPTURE
    warm = np.zeros_like(captured)
    for row in np.flatnonzero((events.kind == EventKind.WARMUP_END) & (events.duration_ns >= 0)):
        end = events.time_ns[row]
        warm |= (events.time_ns >= end - events.duration_ns[row]) & (events.time_ns <= end)
    return captured & ~warm


def captures_within(events: Events, start_ns: int, end_ns: int) -> int:
    """Captures that were under way between two instants: a step may wait for a capture of the next one."""
    captured = events.kind == EventKind.GRAPH_CAPTURE
    ends: Ints = events.time_ns[captured]
    begins = ends - np.maximum(events.duration_ns[captured], 0)
    return int(((begins < end_ns) & (ends > start_ns)).sum())
