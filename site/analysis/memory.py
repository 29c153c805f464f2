"""Memory of a run: the peak, and whose memory it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis import buckets
from cbtrace.traces.columns import Ints, MemorySamples


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


@dataclass(frozen=True)
class MemorySeries:
    """Memory over time, one entry a bucket of samples: the largest of each; -1 unknown. Bytes."""

    time_ns: Ints
    allocated: Ints
    reserved: Ints
    device_used: Ints
    host_rss: Ints


def memory_series(memory: MemorySamples, limit: int) -> MemorySeries:
    """The samples, marks included, as at most ``limit`` points. Allocator peaks since the sample before are kept."""
    order = np.argsort(memory.time_ns, kind="stable")
    k = max(1, -(-len(order) // limit))
    starts = buckets.bucket_starts(len(order), k)

    def largest(column: Ints) -> Ints:
        return buckets.largest(column[order], k)

    return MemorySeries(
        time_ns=memory.time_ns[order][starts],
        allocated=largest(np.maximum(memory.allocated, memory.peak_allocated)),
        reserved=largest(np.maximum(memory.reserved, memory.peak_reserved)),
        device_used=largest(memory.device_used),
        host_rss=largest(memory.host_rss),
    )
