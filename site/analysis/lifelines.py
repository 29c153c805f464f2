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
_COMPUTING = np.zeros(max(COLUMN.values()) + 1, dtype=np.int64)
for _name in ("prefill", "decode", "recompute", "wasted"):
    _COMPUTING[COLUMN[_name]] = STATE[_name]


@dataclass(frozen=True)
class Lifelines:
    """Spans of all requests, ordered by request, then by time."""

    request: Ints
    state: Ints
    """Index into :data:`STATES`."""
    start_ns: Ints
    end_ns: Ints


def lifelines(requests: Requests, first: int, end: int, rows: MemberRows, costs: StepCosts) -> Lifelines:
    """The spans of the requests from ``first`` up to and without ``end``, whose rows are given.

    One that is absent over several steps is in the state of the larger part of them.
    """
    parts = [_queued(requests, first, end), _computed(requests, rows, costs), _absent(rows, costs)]
    request, state, start, stop = (np.concatenate([part[i] for part in parts]) for i in range(4))
    order = np.lexsort((stop, start, request))
    return _merged(request[order], state[order], start[order], stop[order])


def _computed(requests: Requests, rows: MemberRows, costs: StepCosts) -> tuple[Ints, Ints, Ints, Ints]:
    """Spans in steps. Steps that follow one another and are of one kind are one span."""
    newcomer = np.diff(rows.request, prepend=-1) != 0
    begins = newcomer | (np.diff(rows.kind, prepend=-1) != 0)
    begins[rows.apart] = True
    at = np.flatnonzero(begins)
    last = np.append(at[1:], len(begins))[: len(at)] - 1
    request, start = rows.request[at], costs.start_ns[rows.step_row[at]]
    start = np.where(newcomer[at], np.maximum(start, requests.admitted_ns[request]), start)
    return request, _COMPUTING[rows.kind[at]], start, costs.end_ns[rows.step_row[last]]


def _queued(requests: Requests, first: int, end: int) -> tuple[Ints, Ints, Ints, Ints]:
    submit, admitted = requests.submit_ns[first:end], requests.admitted_ns[first:end]
    rows = np.flatnonzero((submit >= 0) & (admitted > submit))
    state = np.full(len(rows), STATE["queued"], dtype=np.int64)
    return rows + first, state, submit[rows], admitted[rows]


def _absent(rows: MemberRows, costs: StepCosts) -> tuple[Ints, Ints, Ints, Ints]:
    names, at = list(rows.absent), rows.apart
    state = np.array([STATE[name] for name in names], dtype=np.int64)[
        np.stack([rows.absent[name] for name in names]).argmax(axis=0)
    ]
    return rows.request[at], state, costs.end_ns[rows.step_row[at - 1]], costs.start_ns[rows.step_row[at]]


def _merged(request: Ints, state: Ints, start: Ints, end: Ints) -> Lifelines:
    """Consecutive spans of one state of a request as one."""
    if not len(request):
        return Lifelines(request, state, start, end)
    new = np.concatenate([[True], (request[1:] != request[:-1]) | (state[1:] != state[:-1])])
    at = np.flatnonzero(new)
    last = np.append(at[1:], len(request)) - 1
    return Lifelines(request[at], state[at], start[at], end[last])
