"""The slowest token gaps of a run, each with the steps it spans and what was in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.captures import captures_within
from cbtrace.site.analysis.latency import Gaps, completed, token_gaps
from cbtrace.site.analysis.window import step_durations
from cbtrace.traces.columns import Events, Ints, Requests, StepRequests, Steps, Tokens
from cbtrace.traces.schema import EventKind


@dataclass(frozen=True)
class SlowGap:
    """One gap, from token ``position - 1`` to token ``position`` of a request, and the steps after the former."""

    row: int
    """Its row among all gaps of completed requests."""
    request: int
    position: int
    start_ns: int
    duration_ns: int
    first_step: int
    last_step: int
    steps: int
    steps_with_request: int
    """Steps of the gap in which the request itself had tokens."""
    prefill_tokens: int
    decode_tokens: int
    recompute_tokens: int
    own_recompute: int
    """Tokens of the request itself that were computed again."""
    captures: int
    """CUDA graphs that were captured meanwhile."""
    soft_reset: bool
    offloaded: bool
    longest_step: int
    longest_step_ns: int


def slowest_gaps(
    requests: Requests, tokens: Tokens, steps: Steps, step_requests: StepRequests, events: Events, limit: int
) -> list[SlowGap]:
    """The ``limit`` slowest gaps of completed requests, slowest first; equal ones in order of request and position."""
    gaps = token_gaps(tokens, completed(requests))
    order = np.lexsort((gaps.position, gaps.request, -gaps.duration_ns))[:limit]
    durations = step_durations(steps)
    return [_describe(gaps, int(i), steps, durations, step_requests, events) for i in order]


def _describe(
    gaps: Gaps, i: int, steps: Steps, durations: Ints, step_requests: StepRequests, events: Events
) -> SlowGap:
    request, first, last = int(gaps.request[i]), int(gaps.first_step[i]) + 1, int(gaps.last_step[i])
    lo, hi = np.searchsorted(steps.index, (first, last + 1))
    rows = slice(*np.searchsorted(step_requests.step, (first, last + 1)))
    own = step_requests.request[rows] == request
    happened = events.kind[(events.request == request) & (events.step >= first) & (events.step <= last)]
    longest = lo + int(np.argmax(durations[lo:hi])) if hi > lo else -1
    return SlowGap(
        row=i,
        request=request,
        position=int(gaps.position[i]),
        start_ns=int(gaps.start_ns[i]),
        duration_ns=int(gaps.duration_ns[i]),
        first_step=first,
        last_step=last,
        steps=int(hi - lo),
        steps_with_request=int(own.sum()),
        prefill_tokens=int(steps.prefill_tokens[lo:hi].sum()),
        decode_tokens=int(steps.decode_tokens[lo:hi].sum()),
        recompute_tokens=int(steps.recompute_tokens[lo:hi].sum()),
        own_recompute=int(step_requests.recompute[rows][own].sum()),
        captures=captures_within(events, int(gaps.start_ns[i]), int(gaps.start_ns[i] + gaps.duration_ns[i])),
        soft_reset=bool((happened == EventKind.SOFT_RESET).any()),
        offloaded=bool((happened == EventKind.OFFLOAD).any()),
        longest_step=int(steps.index[longest]) if longest >= 0 else -1,
        longest_step_ns=int(durations[longest]) if longest >= 0 else -1,
    )
