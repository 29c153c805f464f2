"""Synthetic traces of tensor-parallel ranks with known truths: one schedule, and lags that ranks have by design."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cbtrace.traces import Trace
from cbtrace.traces.rank_groups import RankGroup, rank_groups, rank_of_file
from cbtrace.traces.schema import Clock, EndReason, Frame, Memory, Step
from cbtrace.traces.stepcode import pack_times, unpack_times
from trace_builder import TraceBuilder, engine, header

STEPS = 24
STEP_NS = 1_200_000
WALL_NS = 1_700_000_000_000_000_000


@dataclass
class Rank:
    """How one rank is recorded. All ranks take the same steps at the same time, but for what is set here."""

    number: int
    world: int = 2
    split: int | None = 2
    run_id: str = "00112233445566aa"
    began_ns: int = 0
    """When its recording began, in true time."""
    boot_ns: int = 0
    """When its host started: another time is another monotonic clock."""
    wall_ahead_ns: int = 0
    """By how much its host's wall clock is wrong."""
    come_late: Callable[[int], int] = field(default=lambda step: 0)
    """By how much it comes late to the meeting before a step, ns: at most a fifth of a step."""
    launch_late: Callable[[int], int] = field(default=lambda step: 0)
    """And how much later it launches, counted from the others' launch; at most a fifth as well."""
    gpu_ns: Callable[[int], int] = field(default=lambda step: 500_000)
    prompt: int = 40
    """Of the second request: another one is another schedule."""
    steps: int = STEPS
    pause_before: int = -1
    """All ranks have nothing to do for 5 ms before this step."""


@dataclass
class _Builder(TraceBuilder):
    rank: Rank = field(default_factory=lambda: Rank(0))

    def write(self, frame: Frame) -> None:
        if isinstance(frame, Step):
            start, scheduled, prepared, launched, ready, done = (int(at) for at in unpack_times([frame.times])[0])
            late = self.rank.launch_late(frame.index)
            start = start + self.rank.come_late(frame.index)
            frame.times = pack_times(start, scheduled, prepared + late, launched + late, ready, done)
            frame.gpu_ns = self.rank.gpu_ns(frame.index)
        super().write(frame)


def record_rank(path: Path, rank: Rank) -> Trace:
    """Two requests, prefilled in chunks and decoded to the end of ``rank.steps`` steps of 1.2 ms without a pause.

    A step is scheduled 0.2 ms after its start, and so on: every 0.2 ms one instant.
    """
    head, found = header(f"rank {rank.number}"), engine()
    head.run_id, head.rank, head.world_size = rank.run_id, rank.number, rank.world
    head.mono_ns, head.wall_ns = 10**12 + rank.began_ns - rank.boot_ns, WALL_NS + rank.began_ns + rank.wall_ahead_ns
    if rank.split is not None:
        found.model = found.model | {"tensor_parallel": rank.split, "parameter_bytes": 1000 + rank.number}
    build = _Builder(path, name=head.name, step_ns=STEP_NS, described_by=(head, found), rank=rank)
    build.write(Memory(0, "model_loaded", allocated=5000 + rank.number, reserved=6000, device_used=7000))
    build.now = 50_000_000 - rank.began_ns
    first, second = build.submit(20, rank.steps), build.submit(rank.prompt, rank.steps)
    build.now += 10_000
    for request in (first, second):
        build.admit(request)
    for number in range(rank.steps):
        build.now += 5_000_000 if number == rank.pause_before else 0
        build.step({request: min(16, request.pending) if request.pending else 1 for request in (first, second)})
        if number == rank.steps // 2:
            build.write(Clock(build.now, head.wall_ns + build.now))
            build.write(Memory(build.now, "", allocated=5500, reserved=6000, peak_reserved=6500 + rank.number))
    for request in (first, second):
        build.finish(request, EndReason.CANCELLED)
    return build.close()


def group_of(path: Path, others: Iterable[Path]) -> RankGroup | None:
    """The run of one file among others; None for a file of one process."""
    places = filter(None, map(rank_of_file, dict.fromkeys([path, *others])))
    return next((group for group in rank_groups(places) if path in group.paths), None)


def rank_paths(folder: Path, *ranks: Rank, stem: str = "run") -> list[Path]:
    """Record ranks under the names that the recorder gives them."""
    paths = [folder / (f"{stem}.cbt" if not rank.number else f"{stem}.rank{rank.number}.cbt") for rank in ranks]
    for path, rank in zip(paths, ranks, strict=True):
        record_rank(path, rank)
    return paths
