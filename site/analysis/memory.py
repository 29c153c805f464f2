"""Memory of a run: the peak, and whose memory it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.traces.columns import MemorySamples


@dataclass(frozen=True)
class PeakMemory:
    """The largest amount seen while requests ran."""

    bytes: int
    scope: str
    """``allocator_reserved`` (what PyTorch's allocator held of the device) or ``host_rss`` (resident set, no GPU)."""


def peak_memory(memory: MemorySamples, from_ns: int) -> PeakMemory | None:
    """The peak over the plain samples from ``from_ns`` on; ``None`` when nothing was sampled.

    Budget marks are left out: their peaks belong to loading and warm-up. A sample's peak reaches back to the sample
    before, so the first one may include a little of what came earlier.
    """
    sampled = (memory.time_ns >= from_ns) & np.array([not mark for mark in memory.mark], dtype=bool)
    for scope, column in (
        ("allocator_reserved", np.maximum(memory.peak_reserved, memory.reserved)),
        ("host_rss", memory.host_rss),
    ):
        known = column[sampled & (column >= 0)]
        if len(known):
            return PeakMemory(int(known.max()), scope)
    return None
