"""Goodput: requests that met every SLO, by second of the measured window; and how many meet which limit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.latency import completed
from cbtrace.site.analysis.window import NS_PER_S, measured_window
from cbtrace.traces.columns import Ints
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import EndReason, RequestFlag

LIMITS = 6
"""How many limits a ladder has at most."""


@dataclass(frozen=True)
class ServiceTimes:
    """What SLOs are held against, one entry a completed request; ns. A request without a second token has no gap: 0."""

    ttft: Ints
    longest_gap: Ints
    e2e: Ints
    missed: int
    """Failed, cancelled and empty requests: they meet no SLO."""
    running: int
    """Without an end when the recording ended: neither met nor missed."""
    unseen: int
    """Completed, but an instant of theirs is not known."""
    window_s: float

    @property
    def judged(self) -> int:
        """Requests that have met their SLOs or missed them."""
        return len(self.ttft) + self.missed


@dataclass(frozen=True)
class Slos:
    """Limits in ns; ``None`` is no limit. The token gap of a request is its longest one."""

    ttft: float | None = None
    longest_gap: float | None = None
    e2e: float | None = None


@dataclass(frozen=True)
class Goodput:
    """Requests that met every SLO."""

    met: int
    judged: int
    per_second: float | None


def service_times(trace: Trace, longest_gap: Ints) -> ServiceTimes:
    """The times of all completed requests of ``trace``; ``longest_gap`` is by request, ns, -1 for none."""
    requests = trace.requests
    done = completed(requests)
    seen = done & ((requests.flags & RequestFlag.SUBMIT_UNSEEN) == 0) & (requests.submit_ns >= 0)
    seen &= (requests.first_token_ns >= 0) & (requests.end_ns >= 0)
    running = requests.end_reason == EndReason.RUNNING
    return ServiceTimes(
        ttft=(requests.first_token_ns - requests.submit_ns)[seen],
        longest_gap=np.maximum(longest_gap[seen], 0),
        e2e=(requests.end_ns - requests.submit_ns)[seen],
        missed=int((~done & ~running).sum()),
        running=int(running.sum()),
        unseen=int((done & ~seen).sum()),
        window_s=measured_window(requests).duration_ns / NS_PER_S,
    )


def goodput(times: ServiceTimes, slos: Slos) -> Goodput:
    """How many requests met all of ``slos``."""
    met = np.ones(len(times.ttft), dtype=bool)
    for name in ("ttft", "longest_gap", "e2e"):
        limit = getattr(slos, name)
        if limit is not None:
            met &= getattr(times, name) <= limit
    count = int(met.sum())
    return Goodput(count, times.judged, count / times.window_s if times.window_s > 0 else None)


def ladder(values: Ints) -> list[tuple[int, int]]:
    """Round limits in ns, up to one that all ``values`` meet, and how many are within each."""
    found = []
    for limit in _round_limits(int(values.min()), int(values.max())) if len(values) else ():
        found.append((limit, int((values <= limit).sum())))
    step = max(1, math.ceil(len(found) / LIMITS))
    return found[::-1][::step][::-1]


def _round_limits(low: int, high: int) -> Iterator[int]:
    """1, 2 and 5 times powers of ten: from the first not below ``low`` to the first not below ``high``."""
    power = 10 ** max(0, len(str(max(low, 1))) - 1)
    while True:
        for factor in (1, 2, 5):
            limit = factor * power
            if limit >= low:
                yield limit
            if limit >= high:
                return
        power *= 10
