"""The life of each request as spans of one state each: queued, prefilling, decoding, kept out, away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.members import MemberRows
from cbtrace.site.analysis.pieces import COLUMN
from cbtrace.site.analysis.step_cost import StepCosts
from cbtrace.traces.columns import Ints, Requests

STATES = (
    "queued",
    "prefill",
    "decode",
    "recompute",
    "wasted",
    "not_scheduled",
    "reset_wait",
    "offloaded",
    "unattributed",
)
STATE = {name: i for i, name in enumerate(STATES)}


@dataclass(frozen=True)
class Lifelines:
    """Spans of all requests, ordered by request, then by time."""

    request: Ints
    state: Ints
    """Index into :data:`STATES`."""
    start_ns: Ints
    end_ns: Ints


def lifelines(requests: Requests, rows: MemberRows, costs: StepCosts) -> Lifelines:
    """The spans of every request. One that is absent over several steps is in the state of the larger part of them."""
    begin, end = costs.start_ns[rows.step_row], costs.end_ns[rows.step_row]
    first = np.concatenate([[True], rows.request[1:] != rows.request[:-1]])[: len(rows.request)]
    begin = np.where(first, np.maximum(begin, requests.admitted_ns[rows.request]), begin)
    parts = [_queued(requests), (rows.request, _computing(rows), begin, end), _absent(rows, costs)]
    request, state, start, stop = (np.concatenate([part[i] for part in parts]) for i in range(4))
    order = np.lexsort((stop, start, request))
    return _merged(request[order], state[order], start[order], stop[order])


def _queued(requests: Requests) -> tuple[Ints, Ints, Ints, Ints]:
    rows = np.flatnonzero((requests.submit_ns >= 0) & (requests.admitted_ns > requests.submit_ns))
    state = np.full(len(rows), STATE["queued"], dtype=np.int64)
    return rows, state, requests.submit_ns[rows], requests.admitted_ns[rows]


def _computing(rows: MemberRows) -> Ints:
    """States of the member rows, from the columns of their pieces."""
    state = np.zeros(max(COLUMN.values()) + 1, dtype=np.int64)
    for name in ("prefill", "decode", "recompute", "wasted"):
        state[COLUMN[name]] = STATE[name]
    found: Ints = state[rows.kind]
    return found


def _absent(rows: MemberRows, costs: StepCosts) -> tuple[Ints, Ints, Ints, Ints]:
    names = list(rows.absent)
    at = np.flatnonzero(rows.absent_steps > 0)
    amounts = np.stack([rows.absent[name][at] for name in names])
    state = np.array([STATE[name] for name in names], dtype=np.int64)[amounts.argmax(axis=0)]
    return rows.request[at], state, costs.end_ns[rows.step_row[at - 1]], costs.start_ns[rows.step_row[at]]


def _merged(request: Ints, state: Ints, start: Ints, end: Ints) -> Lifelines:
    """Consecutive spans of one state of a request as one."""
    if not len(request):
        return Lifelines(request, state, start, end)
    new = np.concatenate([[True], (request[1:] != request[:-1]) | (state[1:] != state[:-1])])
    at = np.flatnonzero(new)
    last = np.append(at[1:], len(request)) - 1
    return Lifelines(request[at], state[at], start[at], end[last])
