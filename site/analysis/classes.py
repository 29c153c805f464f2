"""Latency by class of request: which requests suffer, and under which conditions they arrived."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.distribution import Distribution, describe
from cbtrace.site.analysis.latency import completed
from cbtrace.traces.columns import Bools, Ints, Requests, Steps
from cbtrace.traces.pairs import Block
from cbtrace.traces.reader import Trace


@dataclass(frozen=True)
class RequestClass:
    """Completed requests that are alike in one respect: ``low`` to ``high`` of it (``high`` included)."""

    dimension: str
    low: int
    high: int
    n: int
    ttft_ms: Distribution
    queue_ms: Distribution
    e2e_ms: Distribution
    longest_gap_ms: Distribution
    """The longest token gap of each request."""
    soft_resets: int


@dataclass(frozen=True)
class Chunking:
    """How prompts were split over steps."""

    whole: int
    chunked: int
    chunks: int
    """Steps with prompt tokens of chunked requests."""
    budget_full: int
    """Unfinished chunks whose step had as many tokens as the budget allows."""
    other: int
    """Unfinished chunks for another reason: the cache budget, or no free KV."""


def request_classes(trace: Trace, longest_gap_ns: Ints, capacity: int) -> list[RequestClass]:
    """Classes along each dimension that has more than one. ``longest_gap_ns`` is by request, -1 without a gap."""
    requests = trace.requests
    rows = np.flatnonzero(completed(requests) & (requests.submit_ns >= 0) & (requests.first_token_ns >= 0))
    found: list[RequestClass] = []
    for dimension, values in _dimensions(trace, rows, capacity):
        classes = [
            _describe(requests, rows[inside], longest_gap_ns, dimension, low, high)
            for low, high, inside in _split(values)
        ]
        if len(classes) > 1:
            found += classes
    return found


def _dimensions(trace: Trace, rows: Ints, capacity: int) -> Iterator[tuple[str, Ints]]:
    requests, steps = trace.requests, trace.steps
    yield "prompt_tokens", requests.prompt_tokens[rows]
    yield "generated", requests.generated[rows]
    yield "prefix_hit", (requests.prefix_hit[rows] > 0).astype(np.int64)
    yield "chunked", (prefill_steps(trace.chunks, len(requests.id))[rows] > 1).astype(np.int64)
    if not len(steps.index):
        return
    at = np.clip(np.searchsorted(steps.scheduled_ns, requests.submit_ns[rows], side="right") - 1, 0, None)
    yield "waiting_at_submit", steps.waiting[at]
    if capacity > 0:
        yield "kv_free_at_submit", np.where(steps.kv_free[at] < 0, 0, 100 * steps.kv_free[at] // capacity)


def prefill_steps(chunks: Block, requests: int) -> Ints:
    """By request: steps in which prompt tokens of it were computed for the first time."""
    return np.bincount(chunks.request[chunks.prefill > 0], minlength=requests)


def _split(values: Ints) -> Iterator[tuple[int, int, Bools]]:
    """Up to four classes of about equal size; equal values are never split."""
    distinct = np.unique(values)
    if len(distinct) <= 2:
        edges = distinct[1:]
    else:
        edges = np.unique(np.quantile(values, (0.25, 0.5, 0.75), method="higher"))
        edges = edges[edges > distinct[0]]
    for low, high in zip([None, *edges.tolist()], [*edges.tolist(), None], strict=True):
        inside = np.ones(len(values), dtype=bool)
        inside &= True if low is None else values >= low
        inside &= True if high is None else values < high
        if inside.any():
            yield int(values[inside].min()), int(values[inside].max()), inside


def _describe(
    requests: Requests, rows: Ints, longest_gap_ns: Ints, dimension: str, low: int, high: int
) -> RequestClass:
    admitted, ended, gapped = (
        rows[column[rows] >= 0] for column in (requests.admitted_ns, requests.end_ns, longest_gap_ns)
    )
    return RequestClass(
        dimension=dimension,
        low=low,
        high=high,
        n=len(rows),
        ttft_ms=describe((requests.first_token_ns - requests.submit_ns)[rows]),
        queue_ms=describe((requests.admitted_ns - requests.submit_ns)[admitted]),
        e2e_ms=describe((requests.end_ns - requests.submit_ns)[ended]),
        longest_gap_ms=describe(longest_gap_ns[gapped]),
        soft_resets=int(requests.soft_resets[rows].sum()),
    )


def chunking(steps: Steps, chunks: Block, requests: int, token_budget: int | None) -> Chunking:
    """How often prompts were computed in chunks, and what ended a chunk early."""
    counts = prefill_steps(chunks, requests)
    row = chunks.row[(chunks.prefill > 0) & ~chunks.new_token & ~chunks.wasted]
    computed = steps.prefill_tokens + steps.decode_tokens + steps.recompute_tokens
    full = computed[row] >= token_budget if token_budget is not None else np.zeros(len(row), dtype=bool)
    return Chunking(
        whole=int((counts == 1).sum()),
        chunked=int((counts > 1).sum()),
        chunks=int(counts[counts > 1].sum()),
        budget_full=int(full.sum()),
        other=int((~full).sum()),
    )
