"""What happened between the steps of a run: events worth a mark, and for each level of zoom one mark a point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.traces.columns import Events, Ints, Requests
from cbtrace.traces.schema import EndReason, EventKind

MARK_KINDS = {
    "soft_reset": EventKind.SOFT_RESET,
    "offload": EventKind.OFFLOAD,
    "restore": EventKind.RESTORE,
    "capture": EventKind.GRAPH_CAPTURE,
    "cancel": EventKind.CANCEL_REQUESTED,
    "out_of_memory": EventKind.OUT_OF_MEMORY,
    "fatal_error": EventKind.FATAL_ERROR,
    "oversize": EventKind.OVERSIZE,
}
"""Events that are drawn, by their names in the charts."""
MARK_NAMES = (*MARK_KINDS, "failure")
"""All kinds of marks; the last one is a failed request, at its end."""


@dataclass(frozen=True)
class Marks:
    """One row a mark."""

    time_ns: Ints
    kind: Ints
    """Index into :data:`MARK_NAMES`."""


@dataclass(frozen=True)
class PointMarks(Marks):
    """Marks of a level of zoom: one for all events of a kind in a point, at the time of the first. By point."""

    point: Ints
    count: Ints
    """How many events it stands for."""


def marks(events: Events, requests: Requests) -> Marks:
    """Every event worth a mark, and the end of every failed request, in order of time."""
    kind = np.full(len(events.kind), -1, dtype=np.int64)
    for place, event_kind in enumerate(MARK_KINDS.values()):
        kind[events.kind == event_kind] = place
    failed = requests.end_ns[requests.end_reason == EndReason.FAILED]
    time = np.concatenate([events.time_ns[kind >= 0], failed])
    kinds = np.concatenate([kind[kind >= 0], np.full(len(failed), len(MARK_NAMES) - 1, dtype=np.int64)])
    order = np.lexsort((kinds, time))
    return Marks(time[order], kinds[order])


def point_marks(made: Marks, starts_ns: Ints) -> PointMarks:
    """The marks of points that begin at ``starts_ns``. What happened before the first one belongs to it."""
    point = np.maximum(np.searchsorted(starts_ns, made.time_ns, side="right") - 1, 0)
    key, first, count = np.unique(point * len(MARK_NAMES) + made.kind, return_index=True, return_counts=True)
    return PointMarks(made.time_ns[first], made.kind[first], key // len(MARK_NAMES), count)
