"""Every request in every step, ordered by request, with where it was between its steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.pieces import COLUMN
from cbtrace.traces.columns import Admissions, Bools, Events, Ints, StepRequests, Steps
from cbtrace.traces.schema import EventKind

AWAY = {EventKind.SOFT_RESET: "reset_wait", EventKind.OFFLOAD: "offloaded"}
"""What takes an active request out, and the piece that its absence is."""


@dataclass(frozen=True)
class MemberRows:
    """One row for each request in each step, ordered by request, then by step."""

    request: Ints
    step_row: Ints
    """Row of the step in the table of steps."""
    kind: Ints
    """Column of the piece that computing for the request is."""
    absent: dict[str, Ints]
    """By piece: nanoseconds between the results of the request's step before and the beginning of this interval."""
    absent_steps: Ints
    """Steps in between, in which the request was not."""
    steps: int
    """How many steps there are."""

    def find(self, request: Ints, step_row: Ints) -> Ints:
        """Rows of pairs of request and step; -1 for those that are not there."""
        keys, wanted = self._key(self.request, self.step_row), self._key(request, step_row)
        at = np.searchsorted(keys, wanted)
        there = np.append(keys, -1)[at] == wanted
        return np.where(there, at, -1)

    def first(self, request: Ints) -> Ints:
        """The first row of each request; -1 for one that was in no step."""
        at = np.searchsorted(self.request, request)
        there = np.append(self.request, -1)[at] == request
        return np.where(there, at, -1)

    def _key(self, request: Ints, step_row: Ints) -> Ints:
        return request * (self.steps + 1) + step_row


def member_rows(steps: Steps, members: StepRequests, admissions: Admissions, events: Events) -> MemberRows:
    """Order the members of all steps by request, and say what each request did between its steps."""
    order = np.lexsort((members.step, members.request))
    request = members.request[order]
    row = np.searchsorted(steps.index, members.step[order]).astype(np.int64)
    again = np.concatenate([[False], request[1:] == request[:-1]])
    before = np.concatenate([[-1], row[:-1]])
    apart = again & (row - before > 1)
    absent = {name: np.zeros(len(row), dtype=np.int64) for name in ("not_scheduled", *AWAY.values(), "unattributed")}
    spans = _Spans(request[apart], before[apart], row[apart])
    for name, amount in _absences(spans, steps, admissions, events).items():
        absent[name][apart] = amount
    return MemberRows(
        request=request,
        step_row=row,
        kind=_kinds(members, order),
        absent=absent,
        absent_steps=np.where(apart, row - before - 1, 0),
        steps=len(steps.index),
    )


def _kinds(members: StepRequests, order: Ints) -> Ints:
    kinds = (
        ("recompute", members.recompute > 0),
        ("prefill", members.prefill > 0),
        ("wasted", members.wasted),
    )
    found: Ints = np.select([holds for _, holds in kinds], [COLUMN[name] for name, _ in kinds], COLUMN["decode"])
    return found[order]


@dataclass(frozen=True)
class _Spans:
    """Absences: the request was in the steps of rows ``before`` and ``row``, and in none between."""

    request: Ints
    before: Ints
    row: Ints


def _absences(spans: _Spans, steps: Steps, admissions: Admissions, events: Events) -> dict[str, Ints]:
    """By piece, the time of each absence: active and not scheduled, then away, then active again."""
    start, end = steps.ready_ns[spans.before], steps.ready_ns[spans.row - 1]
    left_row, kind = _departure(spans, steps, events)
    gone = kind >= 0
    back_row = np.maximum(_return(spans, steps, admissions), left_row)
    left = np.where(gone, steps.ready_ns[np.maximum(left_row - 1, 0)], end)
    back = np.where(gone, steps.ready_ns[np.maximum(back_row - 1, 0)], end)
    found = {"not_scheduled": (left - start) + (end - back)}
    for event, name in AWAY.items():
        found[name] = np.where(kind == event, back - left, 0)
    doubtful = _doubtful(spans, steps)
    for amount in found.values():
        amount[doubtful] = 0
    found["unattributed"] = np.where(doubtful, end - start, 0)
    return found


def _departure(spans: _Spans, steps: Steps, events: Events) -> tuple[Ints, Ints]:
    """When the request left: the row of the first step that saw it gone, and the kind of event; -1 if it stayed."""
    rows = np.flatnonzero(np.isin(events.kind, list(AWAY)))
    step_row = np.searchsorted(steps.index, events.step[rows])
    order = np.lexsort((step_row, events.request[rows]))
    rows, step_row = rows[order], step_row[order]
    width = len(steps.index) + 1
    keys = events.request[rows] * width + step_row
    at = np.searchsorted(keys, spans.request * width + spans.before + 1)
    limit = spans.request * width + spans.row
    found = np.append(keys, np.iinfo(np.int64).max)[at] <= limit
    kind = np.where(found, np.append(events.kind[rows], -1)[at], -1)
    return np.where(found, np.append(step_row, 0)[at], 0), kind


def _return(spans: _Spans, steps: Steps, admissions: Admissions) -> Ints:
    """The row of the step of the last admission before the absence ended."""
    step_row = np.searchsorted(steps.index, admissions.step)
    order = np.lexsort((step_row, admissions.request))
    width = len(steps.index) + 1
    keys = admissions.request[order] * width + step_row[order]
    at = np.searchsorted(keys, spans.request * width + spans.row, side="right") - 1
    back = np.append(step_row[order], 0)[at]
    found: Ints = np.clip(back, spans.before + 1, spans.row).astype(np.int64)
    return found


def _doubtful(spans: _Spans, steps: Steps) -> Bools:
    """Whether damage hides a step of the absence, or who was in one."""
    gap = np.concatenate([[False], np.diff(steps.index) != 1])
    lost = np.concatenate([[0], np.cumsum(gap | ~steps.members_known)])
    found: Bools = lost[spans.row] > lost[spans.before + 1]
    return found
