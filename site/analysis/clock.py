"""What the engine was doing at every instant: the time axis cut into phases that never overlap.

The generation thread does one thing at a time, and batches are in flight beside it. Each instant belongs to the first
of these phases that holds: a graph capture; a copy between CPU and GPU (offload, restore); the device at work on a
batch, where its time was measured; work of the host (scheduling, writing inputs, updating requests); a batch in flight;
warm-up; nothing at all. The device comes before the host: an asynchronous engine prepares one batch while the device
computes another, and what happens behind the device's back delays nobody. Amounts are exact sums of whole nanoseconds,
so that the phases of any span add up to it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from cbtrace.traces.columns import Bools, Events, Ints, Steps
from cbtrace.traces.schema import EventKind

_NEVER = np.iinfo(np.int64).max


class Phase(enum.IntEnum):
    """What the engine does, in order of precedence."""

    CAPTURE = 0
    COPY = 1
    DEVICE = 2
    HOST = 3
    COMPUTE = 4
    WARM_UP = 5
    IDLE = 6


@dataclass(frozen=True)
class _Spans:
    """Disjoint spans of time, in order."""

    start: Ints
    width: Ints
    passed: Ints
    """Nanoseconds in the spans before each."""

    @classmethod
    def of(cls, start: Ints, width: Ints) -> _Spans:
        return cls(start, width, np.cumsum(width) - width)

    def before(self, at_ns: Ints) -> Ints:
        """Nanoseconds in the spans before each instant."""
        if not len(self.start):
            return np.zeros_like(at_ns)
        row = np.searchsorted(self.start, at_ns, side="right") - 1
        inside = np.maximum(row, 0)
        since = np.minimum(at_ns - self.start[inside], self.width[inside])
        found: Ints = np.where(row < 0, 0, self.passed[inside] + since)
        return found

    def amount(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """Nanoseconds in the spans from each instant to another; none where that is earlier."""
        return self.before(np.maximum(start_ns, end_ns)) - self.before(start_ns)


@dataclass(frozen=True)
class PhaseClock:
    """When the engine was in which phase; it is idle where it is in none."""

    spans: dict[Phase, _Spans]

    def amount(self, phase: Phase, start_ns: Ints, end_ns: Ints) -> Ints:
        """Nanoseconds of ``phase`` in each span; spans are arrays of one shape, and an empty one has none."""
        if phase == Phase.IDLE:
            return self.amounts(start_ns, end_ns)[phase]
        return self.spans[phase].amount(start_ns, end_ns)

    def amounts(self, start_ns: Ints, end_ns: Ints) -> dict[Phase, Ints]:
        """Nanoseconds of every phase in each span, which they add up to."""
        found = {phase: spans.amount(start_ns, end_ns) for phase, spans in self.spans.items()}
        found[Phase.IDLE] = np.maximum(end_ns - start_ns, 0)
        for phase in self.spans:
            found[Phase.IDLE] -= found[phase]
        return found


def phase_clock(steps: Steps, events: Events) -> PhaseClock:
    """The clock of a run, from the instants of its steps and the durations of its events."""
    held = {
        Phase.CAPTURE: [_captures(events)],
        Phase.COPY: [_copies(steps, events)],
        Phase.DEVICE: [_device(steps)],
        Phase.HOST: [(steps.start_ns, steps.prepared_ns), (steps.ready_ns, steps.done_ns)],
        Phase.COMPUTE: [(steps.prepared_ns, steps.ready_ns)],
        Phase.WARM_UP: [_warm_ups(events)],
    }
    # Sorted in place and not by numpy.unique, which takes many times as long for millions of values.
    edges = np.sort(np.concatenate([at for spans in held.values() for span in spans for at in span]), kind="stable")
    edges = edges[np.diff(edges, prepend=edges[:1] - 1) != 0]
    phase_of = np.full(len(edges), Phase.IDLE, dtype=np.int8)
    for phase in sorted(held, reverse=True):  # the first of those that hold is written last
        phase_of[_holding(edges, held[phase])] = phase
    width = np.diff(edges, append=edges[-1:])
    rows = {phase: np.flatnonzero(phase_of == phase) for phase in held}
    return PhaseClock({phase: _Spans.of(edges[at], width[at]) for phase, at in rows.items()})


def _holding(edges: Ints, spans: list[tuple[Ints, Ints]]) -> Bools:
    """After which edges one of the spans is open."""
    opened = np.zeros(len(edges) + 1, dtype=np.int32)
    for start, end in spans:
        sound = start < end
        for at, change in ((start, 1), (end, -1)):
            np.add.at(opened, np.searchsorted(edges, at[sound]), np.int32(change))
    found: Bools = np.cumsum(opened[:-1], dtype=np.int32) > 0
    return found


def _device(steps: Steps) -> tuple[Ints, Ints]:
    """The device's work on each batch, taken to end when its results came and to begin no sooner than its launch. When
    the host came late for the results, the work was earlier by as much; its amount is the same."""
    timed = steps.gpu_ns > 0
    ready, prepared = steps.ready_ns[timed], steps.prepared_ns[timed]
    return np.maximum(ready - steps.gpu_ns[timed], prepared), ready


def _captures(events: Events) -> tuple[Ints, Ints]:
    """A capture is told when it ends."""
    rows = (events.kind == EventKind.GRAPH_CAPTURE) & (events.duration_ns > 0)
    return events.time_ns[rows] - events.duration_ns[rows], events.time_ns[rows]


def _copies(steps: Steps, events: Events) -> tuple[Ints, Ints]:
    """Copies happen while the batch is prepared and are told at their end, which is kept within that time."""
    rows = np.isin(events.kind, (EventKind.OFFLOAD, EventKind.RESTORE)) & (events.duration_ns > 0)
    at = np.searchsorted(steps.index, events.step[rows])
    found = at < len(steps.index)
    at, end, duration = at[found], events.time_ns[rows][found], events.duration_ns[rows][found]
    start = np.maximum(end - duration, steps.start_ns[at])
    return start, np.minimum(end, steps.prepared_ns[at])


def _warm_ups(events: Events) -> tuple[Ints, Ints]:
    rows = (events.kind == EventKind.WARMUP_END) & (events.duration_ns > 0)
    return events.time_ns[rows] - events.duration_ns[rows], events.time_ns[rows]


@dataclass(frozen=True)
class AdmissionClock:
    """Why a request that waits at an instant was not admitted by the last decision before it."""

    decided_ns: Ints
    """Instants of the scheduler's decisions, in order."""
    spans: list[_Spans]
    """By reason: the time under decisions with it."""

    def next_decision(self, at_ns: Ints) -> Ints:
        """The first decision at or after each instant; far beyond any time where there is none."""
        padded = np.append(self.decided_ns, _NEVER)
        found: Ints = padded[np.searchsorted(self.decided_ns, at_ns)]
        return found

    def amount(self, reason: int, start_ns: Ints, end_ns: Ints) -> Ints:
        """Nanoseconds of each span in which the last decision had ``reason``."""
        return self.spans[reason].amount(start_ns, end_ns)


def admission_clock(steps: Steps, reasons: int) -> AdmissionClock:
    """The decisions of a run. Reasons beyond ``reasons - 1`` (a newer engine's) count as the last one, unknown."""
    order = np.argsort(steps.scheduled_ns, kind="stable")
    decided = steps.scheduled_ns[order]
    reason = np.where((steps.stop < 0) | (steps.stop >= reasons), reasons - 1, steps.stop)[order]
    width = np.append(np.diff(decided), _NEVER)[: len(decided)]  # the last decision holds for ever
    rows = [np.flatnonzero(reason == one) for one in range(reasons)]
    return AdmissionClock(decided, [_Spans.of(decided[at], width[at]) for at in rows])
