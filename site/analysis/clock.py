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

from cbtrace.traces.columns import Events, Ints, Steps
from cbtrace.traces.schema import EventKind


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
class PhaseClock:
    """A step function of time: between ``edges[i]`` and ``edges[i + 1]`` the engine is in ``phase[i]``; idle beyond."""

    edges: Ints
    phase: Ints
    passed: Ints
    """Shape (phases, edges): nanoseconds of each phase before each edge."""

    def amount(self, phase: Phase, start_ns: Ints, end_ns: Ints) -> Ints:
        """Nanoseconds of ``phase`` in each span; spans are arrays of one shape, and an empty one has none."""
        end_ns = np.maximum(start_ns, end_ns)
        if phase == Phase.IDLE:
            busy: Ints = sum(
                (self.amount(other, start_ns, end_ns) for other in Phase if other != Phase.IDLE),
                start=np.zeros_like(start_ns),
            )
            return end_ns - start_ns - busy
        return self._before(phase, end_ns) - self._before(phase, start_ns)

    def _before(self, phase: Phase, at_ns: Ints) -> Ints:
        """Nanoseconds of ``phase`` before each instant."""
        if not len(self.edges):
            return np.zeros_like(at_ns)
        segment = np.searchsorted(self.edges, at_ns, side="right") - 1
        inside = np.maximum(segment, 0)
        since = np.where(self.phase[inside] == phase, at_ns - self.edges[inside], 0)
        found: Ints = np.where(segment < 0, 0, self.passed[phase, inside] + since)
        return found


def phase_clock(steps: Steps, events: Events) -> PhaseClock:
    """The clock of a run, from the instants of its steps and the durations of its events."""
    spans = [
        (Phase.CAPTURE, *_captures(events)),
        (Phase.COPY, *_copies(steps, events)),
        (Phase.DEVICE, *_device(steps)),
        (Phase.HOST, steps.start_ns, steps.prepared_ns),
        (Phase.HOST, steps.ready_ns, steps.done_ns),
        (Phase.COMPUTE, steps.prepared_ns, steps.ready_ns),
        (Phase.WARM_UP, *_warm_ups(events)),
    ]
    edges = np.unique(np.concatenate([at for _, start, end in spans for at in (start, end)]))
    open_spans = np.zeros((len(Phase), len(edges) + 1), dtype=np.int64)
    for phase, start, end in spans:
        sound = start < end
        np.add.at(open_spans[phase], np.searchsorted(edges, start[sound]), 1)
        np.add.at(open_spans[phase], np.searchsorted(edges, end[sound]), -1)
    holds = np.cumsum(open_spans[:, :-1], axis=1) > 0
    holds[Phase.IDLE] = True
    phase_of = np.argmax(holds, axis=0).astype(np.int64)
    width = np.diff(edges, append=edges[-1:])
    amounts = np.where(phase_of == np.arange(len(Phase))[:, None], width, 0)
    passed = np.concatenate([np.zeros((len(Phase), 1), dtype=np.int64), np.cumsum(amounts, axis=1)[:, :-1]], axis=1)
    return PhaseClock(edges, phase_of, passed[:, : len(edges)])


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
    reason: Ints
    passed: Ints
    """Shape (reasons, decisions): nanoseconds under each reason before each decision."""

    def next_decision(self, at_ns: Ints) -> Ints:
        """The first decision at or after each instant; far beyond any time where there is none."""
        padded = np.append(self.decided_ns, np.iinfo(np.int64).max)
        found: Ints = padded[np.searchsorted(self.decided_ns, at_ns)]
        return found

    def amount(self, reason: int, start_ns: Ints, end_ns: Ints) -> Ints:
        """Nanoseconds of each span in which the last decision had ``reason``."""
        return self._before(reason, np.maximum(start_ns, end_ns)) - self._before(reason, start_ns)

    def _before(self, reason: int, at_ns: Ints) -> Ints:
        if not len(self.decided_ns):
            return np.zeros_like(at_ns)
        row = np.searchsorted(self.decided_ns, at_ns, side="right") - 1
        inside = np.maximum(row, 0)
        since = np.where(self.reason[inside] == reason, at_ns - self.decided_ns[inside], 0)
        found: Ints = np.where(row < 0, 0, self.passed[reason, inside] + since)
        return found


def admission_clock(steps: Steps, reasons: int) -> AdmissionClock:
    """The decisions of a run. Reasons beyond ``reasons - 1`` (a newer engine's) count as the last one, unknown."""
    order = np.argsort(steps.scheduled_ns, kind="stable")
    decided = steps.scheduled_ns[order]
    reason = np.where((steps.stop < 0) | (steps.stop >= reasons), reasons - 1, steps.stop)[order]
    width = np.diff(decided, append=decided[-1:])
    amounts = np.where(reason == np.arange(reasons)[:, None], width, 0)
    passed = np.cumsum(amounts, axis=1) - amounts
    return AdmissionClock(decided, reason, passed)
