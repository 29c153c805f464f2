"""What each request was about in each of its steps, and where it was between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.pieces import COLUMN
from cbtrace.traces.columns import Admissions, Bools, Events, Ints, Steps
from cbtrace.traces.pairs import Block
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import EventKind

AWAY = {EventKind.SOFT_RESET: "reset_wait", EventKind.OFFLOAD: "offloaded"}
"""What takes an active request out, and the piece that its absence is."""
ABSENT = ("not_scheduled", *AWAY.values(), "unattributed")
"""The pieces that an absence is cut into."""


@dataclass(frozen=True)
class MemberRows:
    """One row for each request in each step, ordered by request, then by step; of some requests, all rows."""

    request: Ints
    step_row: Ints
    """Row of the step in the table of steps."""
    kind: Ints
    """Column of the piece that computing for the request is."""
    apart: Ints
    """Rows before which the request was absent: it was in an earlier step, and not in the one before."""
    absent: dict[str, Ints]
    """By piece, of :attr:`apart`: ns between the results of the request's step before and the beginning of this one's
    interval."""
    absent_steps: Ints
    """Of :attr:`apart`: steps in between."""


class Whereabouts:
    """Knows of every request when it left and came back."""

    def __init__(self, trace: Trace) -> None:
        self._ready = trace.steps.ready_ns
        self._width = len(trace.steps.index) + 1
        self._gone_keys, self._gone_row, self._gone_kind = _departures(trace.steps, trace.events, self._width)
        self._back_keys, self._back_row = _returns(trace.steps, trace.admissions, self._width)
        gap = np.concatenate([[False], np.diff(trace.steps.index) != 1])[: len(trace.steps.index)]
        self._lost = np.concatenate([[0], np.cumsum(gap | ~trace.steps.members_known)])

    def rows(self, pairs: Block) -> MemberRows:
        """What the requests of ``pairs`` were about; ``pairs`` are all of theirs, by request, then by step."""
        request, row = pairs.request, pairs.row
        apart = np.flatnonzero((np.diff(row) > 1) & (request[1:] == request[:-1])) + 1
        spans = _Spans(request[apart], row[apart - 1], row[apart])
        absent = self._absences(spans) if len(apart) else dict.fromkeys(ABSENT, apart)
        return MemberRows(request, row, _kinds(pairs), apart, absent, spans.row - spans.before - 1)

    def _absences(self, spans: _Spans) -> dict[str, Ints]:
        """By piece, the time of each absence: active and not scheduled, then away, then active again."""
        start, end = self._ready[spans.before], self._ready[spans.row - 1]
        left_row, kind = self._departure(spans)
        gone = kind >= 0
        back_row = np.maximum(self._return(spans), left_row)
        left = np.where(gone, self._ready[np.maximum(left_row - 1, 0)], end)
        back = np.where(gone, self._ready[np.maximum(back_row - 1, 0)], end)
        found = {"not_scheduled": (left - start) + (end - back)}
        for event, name in AWAY.items():
            found[name] = np.where(kind == event, back - left, 0)
        doubtful: Bools = self._lost[spans.row] > self._lost[spans.before + 1]
        for amount in found.values():
            amount[doubtful] = 0
        found["unattributed"] = np.where(doubtful, end - start, 0)
        return found

    def _departure(self, spans: _Spans) -> tuple[Ints, Ints]:
        """When the request left: row of the first step that saw it gone, and the kind of event; -1 if it stayed."""
        at = np.searchsorted(self._gone_keys, spans.request * self._width + spans.before + 1)
        limit = spans.request * self._width + spans.row
        found = np.append(self._gone_keys, np.iinfo(np.int64).max)[at] <= limit
        kind = np.where(found, np.append(self._gone_kind, -1)[at], -1)
        return np.where(found, np.append(self._gone_row, 0)[at], 0), kind

    def _return(self, spans: _Spans) -> Ints:
        """The row of the step of the last admission before the absence ended."""
        at = np.searchsorted(self._back_keys, spans.request * self._width + spans.row, side="right") - 1
        back = np.append(self._back_row, 0)[at]
        found: Ints = np.clip(back, spans.before + 1, spans.row).astype(np.int64)
        return found


@dataclass(frozen=True)
class _Spans:
    """Absences: the request was in the steps of rows ``before`` and ``row``, and in none between."""

    request: Ints
    before: Ints
    row: Ints


def _departures(steps: Steps, events: Events, width: int) -> tuple[Ints, Ints, Ints]:
    """Keys of request and row of the step, the row, and the kind of event; in order of the keys."""
    rows = np.flatnonzero(np.isin(events.kind, list(AWAY)))
    step_row = np.searchsorted(steps.index, events.step[rows])
    order = np.lexsort((step_row, events.request[rows]))
    rows, step_row = rows[order], step_row[order]
    return events.request[rows] * width + step_row, step_row, events.kind[rows]


def _returns(steps: Steps, admissions: Admissions, width: int) -> tuple[Ints, Ints]:
    """Keys of request and row of the step, and the row; in order of the keys."""
    step_row = np.searchsorted(steps.index, admissions.step)
    order = np.lexsort((step_row, admissions.request))
    return admissions.request[order] * width + step_row[order], step_row[order]


def _kinds(pairs: Block) -> Ints:
    found = np.full(len(pairs.row), COLUMN["decode"], dtype=np.int64)
    found[pairs.wasted] = COLUMN["wasted"]
    found[pairs.prefill > 0] = COLUMN["prefill"]
    found[pairs.recompute > 0] = COLUMN["recompute"]
    return found
