"""Latencies of the requests of a trace, as the catalogue of metrics defines them.

A soft reset, an offload or a restore never restarts a clock: TTFT counts from the first submit, and the line of tokens
goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbtrace.site.analysis.quantiles import Counted
from cbtrace.traces.columns import Bools, Ints, Requests
from cbtrace.traces.schema import EndReason, RequestFlag


@dataclass(frozen=True)
class RequestCounts:
    """How the requests of a trace ended. ``empty`` ones finished without a token and are part of ``finished``."""

    finished: int
    failed: int
    cancelled: int
    running: int
    empty: int
    submit_unseen: int
    forked: int
    soft_reset: int

    @property
    def total(self) -> int:
        """All requests that were submitted."""
        return self.finished + self.failed + self.cancelled + self.running


@dataclass(frozen=True)
class Latencies:
    """Durations in nanoseconds. Per-request arrays have one entry a counted request; ``gaps`` are pooled."""

    ttft: Ints
    queue: Ints
    tpot: NDArray[np.float64]
    e2e: Ints
    gaps: Counted
    excluded: int
    """Failed, cancelled and empty requests: counted, and kept out of every array."""


def completed(requests: Requests) -> Bools:
    """Requests that ended normally with at least one token: those that enter the latency percentiles."""
    return finished(requests) & (requests.generated > 0)


def finished(requests: Requests) -> Bools:
    """Requests that ended normally, with a token or without."""
    return np.isin(requests.end_reason, (EndReason.EOS, EndReason.LENGTH))


def unfinished(requests: Requests) -> dict[str, Bools]:
    """The requests that did not complete, by what became of them, the worst first."""
    reason = requests.end_reason
    return {
        "failed": reason == EndReason.FAILED,
        "cancelled": reason == EndReason.CANCELLED,
        "empty": finished(requests) & (requests.generated == 0),
        "running": reason == EndReason.RUNNING,
    }


def count_requests(requests: Requests) -> RequestCounts:
    """Count the requests by how they ended."""
    return RequestCounts(
        finished=int(finished(requests).sum()),
        **{how: int(which.sum()) for how, which in unfinished(requests).items()},
        submit_unseen=int(((requests.flags & RequestFlag.SUBMIT_UNSEEN) != 0).sum()),
        forked=int(((requests.flags & RequestFlag.FORKED) != 0).sum()),
        soft_reset=int((requests.soft_resets > 0).sum()),
    )


def latencies(requests: Requests, gaps: Counted) -> Latencies:
    """Every latency of the completed requests; ``gaps`` are the lengths of their token gaps.

    Requests whose submit was not seen (the recorder came later) have no true TTFT, queue time or E2E and enter only
    TPOT and token gaps. An instant that the trace lost leaves its request out of what needs it.
    """
    done = completed(requests)
    seen = done & ((requests.flags & RequestFlag.SUBMIT_UNSEEN) == 0) & (requests.submit_ns >= 0)
    admitted = seen & (requests.admitted_ns >= 0)
    first = requests.first_token_ns >= 0
    several = done & (requests.generated > 1) & first & (requests.last_token_ns >= 0)
    span = requests.last_token_ns[several] - requests.first_token_ns[several]
    ended = requests.end_reason != EndReason.RUNNING
    return Latencies(
        ttft=(requests.first_token_ns - requests.submit_ns)[seen & first],
        queue=(requests.admitted_ns - requests.submit_ns)[admitted],
        tpot=span / (requests.generated[several] - 1),
        e2e=(requests.end_ns - requests.submit_ns)[seen & (requests.end_ns >= 0)],
        gaps=gaps,
        excluded=int((ended & ~done).sum()),
    )
