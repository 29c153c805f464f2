"""Tensor-parallel ranks side by side: who was late, who waited, and how far that can be told.

Ranks compute every layer together, so all of them are as slow as the last one, and their step times are nearly alike
whoever is to blame. What tells them apart is when each one arrives:

* Before each step the ranks *meet* on the CPU, to agree on new requests. Who comes first waits there until the last one
  comes: the difference of their instants :attr:`~cbtrace.traces.columns.Steps.start_ns`, and not less than that.
* Behind the meeting each rank schedules and writes the inputs by itself. The last one to begin its launch
  (:attr:`~cbtrace.traces.columns.Steps.prepared_ns`) is the *slowest rank* of the step, and its *lag* is how much later
  it is than the first. Nobody gets results before it has launched. In an asynchronous engine the devices may still be
  busy with the batch before, so that a lag costs less than its length, or nothing.
* On the device a rank waits inside of kernels, so that its own GPU time contains the wait: the rank with the shortest
  time waited least. A device that is itself slower holds up every layer on all ranks alike, and no step tells it;
  clocks and power of the devices may.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.distribution import Distribution, describe
from cbtrace.site.analysis.memory import PeakMemory, peak_memory
from cbtrace.site.analysis.window import step_durations
from cbtrace.traces.columns import Bools, Ints
from cbtrace.traces.rank_join import UNKNOWN, RankJoin, RankJoiner
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import StepFlag

PAUSE_NS = 1_000_000
"""A step that begins this much later than the one before has ended, on every rank, follows a pause: the ranks had
nothing to do. Its meeting is counted apart: a request wakes the engine of rank 0 only, and the others come to the
meeting when they next look for work, which says nothing of how quick they are."""


@dataclass(frozen=True)
class RankMemory:
    """Memory of one rank. Bytes; ``None`` is unknown."""

    marks: Mapping[str, int]
    """At each budget mark: what the allocator had allocated, or without a GPU the resident set."""
    peak: PeakMemory | None
    device_used: int | None
    """Most of the device in use by anybody, over all samples."""
    kv_bytes: int | None
    """Of this rank's part of the KV cache, reserved blocks included."""
    weight_bytes: int | None
    """Of this rank's parameters."""


@dataclass(frozen=True)
class RankStats:
    """One rank."""

    rank: int
    file: str
    whole: bool
    steps: int
    step_ms: Distribution
    """As all times here, of the steps that all ranks have, so that ranks can be compared; where there are none, of its
    own."""
    gpu_ms: Distribution
    """Of the steps whose time on the device is known."""
    host_ms: Distribution
    """Its own work on the CPU in a step, without any wait: writing inputs, and updating requests."""
    memory: RankMemory
    sm_clock_mhz: int | None
    """Median over the NVML samples."""


@dataclass(frozen=True)
class RankWaits:
    """What one rank waited for others, over the steps that all ranks have. Nanoseconds."""

    slowest: int
    """Steps in which it was the last to launch."""
    meeting_ns: int
    """At meetings, for the last one to come."""
    launch_ns: int
    """From its own launch to that of the last one: waited on the device, or hidden behind an earlier batch."""
    gpu_beyond_ns: int | None
    """GPU time beyond that of the rank with the shortest time in each step; ``None`` when any is unknown."""


@dataclass(frozen=True)
class RankAnalysis:
    """All ranks of a run. Columns have a row for each step of ``join.index``; -1 is unknown."""

    join: RankJoin
    ranks: list[RankStats]
    waits: list[RankWaits] | None
    """One for each rank; ``None`` where the ranks have no common clock, or no common step."""
    step_ns: Ints
    """Step time of each rank, shape (ranks, rows)."""
    slowest: Ints
    """Number of the slowest rank."""
    lag_ns: Ints
    """By how much it launched later than the first one."""
    meeting_ns: Ints
    """From the first rank's coming to the meeting before the step to the last one's; 0 after a pause."""
    gpu_spread_ns: Ints
    """Longest less shortest GPU time over the ranks."""
    compared: int
    """Steps that all ranks have."""
    after_pause: int
    """Of those, steps that follow a pause. The first of all, before which ranks start up, is none of them."""
    after_pause_ns: int
    """From the first rank's coming to the last one's, summed over these meetings."""
    skew_share: float | None
    """Sum of ``lag_ns`` and ``meeting_ns`` over the step time of the first rank in the same steps."""


def analyze_ranks(traces: Iterable[Trace]) -> RankAnalysis:
    """Analyze the traces of one run, one at least, the rank whose clock requests go by first.

    Each trace is let go before the next one is asked for.
    """
    joiner = RankJoiner()
    found: list[_Rank] = []
    of_steps: list[tuple[Ints, Ints, Bools]] = []
    for trace in traces:
        joiner.add(trace)
        found.append(_Rank(trace))
        of_steps.append((trace.steps.index, step_durations(trace.steps), _after_pause(trace)))
    join = joiner.join()
    step_ns = np.stack([_on_rows(join.index, index, durations) for index, durations, _ in of_steps])
    paused = np.stack([_on_rows(join.index, index, flags.astype(np.int64)) for index, _, flags in of_steps])
    rows = join.on_all & join.one_clock
    after_pause = rows & (paused == 1).all(axis=0)
    slowest, lag = _lags(join, rows)
    apart = _spread(join.of_all("start_ns"))
    meeting = np.where(rows, np.where(after_pause, 0, apart), UNKNOWN)
    busy = int(step_ns[0, rows].sum())
    return RankAnalysis(
        join=join,
        ranks=_stats(found, join, step_ns),
        waits=_waits(join, slowest, rows, after_pause) if rows.any() and len(found) > 1 else None,
        step_ns=step_ns,
        slowest=slowest,
        lag_ns=lag,
        meeting_ns=meeting,
        gpu_spread_ns=_gpu_spread(join),
        compared=int(join.on_all.sum()),
        after_pause=int(after_pause[1:].sum()),
        after_pause_ns=int(apart[1:][after_pause[1:]].sum()),
        skew_share=int((lag + meeting)[rows].sum()) / busy if busy > 0 else None,
    )


def _on_rows(index: Ints, own: Ints, values: Ints) -> Ints:
    """Values of a rank's steps on the rows of the join."""
    found = np.full(len(index), UNKNOWN, dtype=np.int64)
    found[np.searchsorted(index, own)] = values
    return found


class _Rank:
    """What is kept of a trace beside its steps."""

    def __init__(self, trace: Trace) -> None:
        self.number = trace.header.rank
        self.file = trace.path.name
        self.whole = trace.recovery.whole
        self.memory = _memory(trace)
        self.clocks = trace.gpu.sm_clock_mhz[trace.gpu.sm_clock_mhz >= 0]


def _stats(ranks: list[_Rank], join: RankJoin, step_ns: Ints) -> list[RankStats]:
    scheduled, prepared, ready, done = map(join.of_all, ("scheduled_ns", "prepared_ns", "ready_ns", "done_ns"))
    host_ns = (prepared - scheduled) + (done - ready)
    gpu_ns, shared = join.of_all("gpu_ns"), join.on_all
    stats = []
    for i, (rank, steps) in enumerate(zip(ranks, join.ranks, strict=True)):
        rows = shared if shared.any() else steps.known
        gpu = gpu_ns[i, rows]
        stats.append(
            RankStats(
                rank=rank.number,
                file=rank.file,
                whole=rank.whole,
                steps=int(steps.known.sum()),
                step_ms=describe(step_ns[i, rows]),
                gpu_ms=describe(gpu[gpu >= 0]),
                host_ms=describe(host_ns[i, rows]),
                memory=rank.memory,
                sm_clock_mhz=int(np.median(rank.clocks)) if len(rank.clocks) else None,
            )
        )
    return stats


def _memory(trace: Trace) -> RankMemory:
    memory, kv = trace.memory, trace.geometry
    held = np.where(memory.allocated >= 0, memory.allocated, memory.host_rss)
    model = trace.engines[-1].model if trace.engines else {}
    weights = model.get("parameter_bytes")
    first = int(trace.steps.start_ns[0]) if len(trace.steps.index) else 0
    return RankMemory(
        marks={mark: int(size) for mark, size in zip(memory.mark, held.tolist(), strict=True) if mark and size >= 0},
        peak=peak_memory(memory, first),
        device_used=int(memory.device_used.max()) if (memory.device_used >= 0).any() else None,
        kv_bytes=kv.capacity_units * kv.unit_bytes + kv.reserved_bytes if kv else None,
        weight_bytes=weights if isinstance(weights, int) else None,
    )


def _after_pause(trace: Trace) -> Bools:
    """Steps that begin well after the work before them has ended. An asynchronous engine begins one before the update
    of the one before it, and so is compared with the one before that."""
    steps = trace.steps
    paused = np.ones(len(steps.index), dtype=np.bool_)
    ahead = 2 if len(steps.flags) and steps.flags[0] & StepFlag.ASYNC else 1
    paused[ahead:] = steps.start_ns[ahead:] - steps.done_ns[:-ahead] > PAUSE_NS
    return paused


def _lags(join: RankJoin, rows: Bools) -> tuple[Ints, Ints]:
    prepared = join.of_all("prepared_ns")
    numbers = np.array([steps.rank for steps in join.ranks], dtype=np.int64)
    slowest = np.where(rows, numbers[prepared.argmax(axis=0)], UNKNOWN)
    return slowest, np.where(rows, _spread(prepared), UNKNOWN)


def _gpu_spread(join: RankJoin) -> Ints:
    gpu = join.of_all("gpu_ns")
    return np.where((gpu >= 0).all(axis=0), _spread(gpu), UNKNOWN)


def _spread(of_all: Ints) -> Ints:
    """Largest less smallest value over the ranks."""
    found: Ints = of_all.max(axis=0) - of_all.min(axis=0)
    return found


def _waits(join: RankJoin, slowest: Ints, rows: Bools, paused: Bools) -> list[RankWaits]:
    start, prepared, gpu = (join.of_all(name) for name in ("start_ns", "prepared_ns", "gpu_ns"))
    meeting = np.where(rows & ~paused, start.max(axis=0) - start, 0).sum(axis=1)
    launch = np.where(rows, prepared.max(axis=0) - prepared, 0).sum(axis=1)
    timed = bool((gpu[:, rows] >= 0).all())
    beyond = np.where(rows, gpu - gpu.min(axis=0), 0).sum(axis=1)
    return [
        RankWaits(
            slowest=int((slowest == steps.rank).sum()),
            meeting_ns=int(meeting[i]),
            launch_ns=int(launch[i]),
            gpu_beyond_ns=int(beyond[i]) if timed else None,
        )
        for i, steps in enumerate(join.ranks)
    ]
