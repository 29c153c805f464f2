"""Recording within a size: stopping at the limit, and rings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from cbtrace.traces import Trace, TraceFullError, TraceWriter, open_trace
from cbtrace.traces.invariants import check
from cbtrace.traces.schema import Event, EventKind, Footer, Frame, Memory, Roster, Step
from cbtrace.traces.writer import SMALLEST_LIMIT
from trace_builder import TraceBuilder, TrueMember

LIMIT = 1 << 16


def run(build: TraceBuilder, steps: int, roster_every: int = 32) -> None:
    """Eight requests at a time, each for some hundred steps; a soft reset and a waiting request now and then."""
    build.roster_every = roster_every
    for number in range(steps):
        live = [request for request in build.requests[-12:] if request.slot >= 0]
        for request in live:
            if request.generated >= request.limit:
                build.finish(request)
        while len(build.slots) < 8:
            request = build.submit(4, 60 + 7 * (len(build.requests) % 9))
            build.admit(request)
        live = [request for request, _ in build.slots.values()]
        if number % 50 == 49:
            build.soft_reset(live[number % 8])
            build.admit(live[number % 8])
        build.step({request: max(request.pending, 1) for request in live})


def claims_only_what_is_true(trace: Trace, build: TraceBuilder) -> None:
    truth = {(member.step, member.request): member for member in build.truth}
    table = trace.step_requests
    for row in zip(*(getattr(table, field.name).tolist() for field in fields(TrueMember)), strict=True):
        got = TrueMember(*row)
        meant = truth[got.step, int(trace.ordinals[got.request])]
        assert (got.prefill, got.decode, got.recompute) == (meant.prefill, meant.decode, meant.recompute)
        assert got.position in (meant.position, -1)
    for row in range(len(trace.tokens.step)):
        times = build.token_times[int(trace.ordinals[trace.tokens.request[row]])]
        assert trace.tokens.position[row] in (-1, times.index(int(trace.tokens.time_ns[row])) + 1)


def limited(path: Path, ring: bool) -> TraceBuilder:
    build = TraceBuilder(path)
    build.writer.close()
    build.writer = TraceWriter(path, overwrite=True, max_bytes=LIMIT, ring=ring)
    for frame in build.frames:
        build.writer.write(frame)
    build.write(Memory(1, "model_loaded", allocated=5))
    return build


def test_at_the_limit_recording_stops_with_room_for_the_reason(tmp_path: Path) -> None:
    build = limited(tmp_path / "run.cbt", ring=False)
    with pytest.raises(TraceFullError) as caught:
        run(build, 10_000)
    build.footer(caught.value.footer_reason)
    build.writer.close()
    assert LIMIT - 1200 < Path(build.path).stat().st_size <= LIMIT
    trace = open_trace(build.path)
    assert trace.recovery.status == "stopped"
    assert [finding.slug for finding in trace.recovery.findings] == ["stopped-max-size"]
    assert trace.recovery.after_step == build.steps - 1
    claims_only_what_is_true(trace, build)


@pytest.mark.parametrize("positions", [True, False])
def test_a_ring_keeps_the_newest_steps_and_what_explains_them(tmp_path: Path, positions: bool) -> None:
    build = limited(tmp_path / "run.cbt", ring=True)
    build.write(Event(EventKind.WARMUP_END, 3, 0, duration_ns=7))
    build.roster_positions = positions
    run(build, 4_000)
    trace = build.close()
    report = trace.recovery
    assert Path(build.path).stat().st_size <= LIMIT
    assert [file.name for file in tmp_path.iterdir()] == ["run.cbt"]
    assert report.status == "ring"
    assert [finding.slug for finding in report.findings] == ["steps-overwritten"]
    assert report.steps_overwritten == trace.steps.index[0] > 2_500
    assert report.steps_missing == report.admissions_lost == 0
    assert trace.steps.index.tolist() == list(range(report.steps_overwritten, build.steps))
    assert trace.header.name == "synthetic"
    assert trace.geometry is not None
    assert trace.memory.mark == ["model_loaded"]
    assert trace.events.kind[0] == EventKind.WARMUP_END
    assert trace.steps.members_known.all()
    assert "" not in trace.requests.id
    assert check(trace) == list(report.findings)
    claims_only_what_is_true(trace, build)
    known = trace.step_requests.position >= 0
    assert known.all() if positions else known[trace.step_requests.step > trace.steps.index[0] + 300].any()
    assert (trace.tokens.position > 0).all() if positions else (trace.tokens.position > 0).any()
    assert (trace.steps.kv_read >= 0).all() if positions else True


def test_a_ring_that_never_fills_is_a_whole_trace(tmp_path: Path) -> None:
    build = limited(tmp_path / "run.cbt", ring=True)
    run(build, 300)
    trace = build.close()
    assert trace.recovery.whole
    assert len(trace.steps.index) == 300


def test_a_ring_without_rosters_stops_at_its_limit(tmp_path: Path) -> None:
    build = limited(tmp_path / "run.cbt", ring=True)
    with pytest.raises(TraceFullError):
        run(build, 10_000, roster_every=0)


def test_events_give_way_to_newer_ones_before_they_fill_a_ring(tmp_path: Path) -> None:
    build = limited(tmp_path / "run.cbt", ring=True)
    for number in range(200):
        for _ in range(40):
            build.now += 1
            build.write(Event(EventKind.CACHE_EVICTION, build.now, build.steps, blocks=number))
        run(build, 8, roster_every=8)
    trace = build.close()
    assert trace.recovery.status == "ring"
    assert trace.events.blocks[-1] == 199
    assert np.all(np.diff(trace.events.time_ns) > 0)


KILLED = """
import sys
from pathlib import Path
from test_traces_ring import limited, run
build = limited(Path(sys.argv[1]), ring=True)
while True:
    run(build, 50)
    print(build.steps, flush=True)
"""


@pytest.mark.parametrize("after", [400, 900, 1500, 2100])
def test_a_killed_ring_is_a_trace(tmp_path: Path, after: int) -> None:
    path = tmp_path / "run.cbt"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", KILLED, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    while int(process.stdout.readline()) < after:
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    trace = open_trace(path)
    assert trace.recovery.status == "cut"
    assert trace.recovery.after_step >= after - 1
    assert trace.recovery.steps_missing == 0
    assert trace.steps.members_known.all()


KILLED_WHILE_REWRITING = """
import os, signal, sys
from pathlib import Path
from cbtrace.traces import writer
from test_traces_ring import limited, run

path, stage, begun = Path(sys.argv[1]), sys.argv[2], []

def die():
    if len(begun) == 2:  # the first rewriting is let pass
        os.kill(os.getpid(), signal.SIGKILL)

def copy(source, target, start, end, append=writer.append_bytes):
    if stage == "while copying" and end - start > 1000:
        append(source, target, start, start + (end - start) // 2)
        die()
        start += (end - start) // 2
    append(source, target, start, end)

def replace(aside, target, rename=Path.replace):
    if stage == "before the new name":
        die()
    rename(aside, target)
    if stage == "after the new name":
        die()

def write(file, data, write_all=writer._write_all):
    begun.append(file)
    if stage == "before the head":
        die()
    write_all(file, data)

writer.append_bytes, writer._write_all, Path.replace = copy, write, replace
run(limited(path, ring=True), 10_000)
"""


@pytest.mark.parametrize("stage", ["before the head", "while copying", "before the new name", "after the new name"])
def test_a_ring_killed_while_it_is_rewritten_is_a_trace(tmp_path: Path, stage: str) -> None:
    path = tmp_path / "run.cbt"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", KILLED_WHILE_REWRITING, str(path), stage]
    assert subprocess.run(command, env=environment, timeout=60, check=False).returncode == -signal.SIGKILL
    assert (tmp_path / ".run.cbt.ring").exists() == (stage != "after the new name")
    trace = open_trace(path)
    assert [finding.slug for finding in check(trace)] == ["unfinished", "steps-overwritten"]
    assert (trace.recovery.status, trace.recovery.steps_missing) == ("cut", 0)
    assert np.all(np.diff(trace.steps.index) == 1)
    assert trace.steps.members_known.all()
    # The next recording under this name takes away what was left beside it.
    TraceWriter(path, overwrite=True, max_bytes=LIMIT, ring=True).close()
    assert [file.name for file in tmp_path.iterdir()] == ["run.cbt"]


def test_a_limit_too_small_for_anything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least"):
        TraceWriter(tmp_path / "run.cbt", max_bytes=SMALLEST_LIMIT - 1)
    assert not list(tmp_path.iterdir())


def test_the_end_mark_fits_when_nothing_else_does(tmp_path: Path) -> None:
    build = limited(tmp_path / "run.cbt", ring=False)
    with pytest.raises(TraceFullError):
        run(build, 10_000)
    build.writer.write(Footer(1, "max_size", 1, 1, 1, 1, 1, 1, text="x" * 300))
    assert Path(build.path).stat().st_size <= LIMIT


def test_a_ring_of_an_asynchronous_engine_claims_only_what_is_true(tmp_path: Path) -> None:
    """Such an engine schedules a step, and with it a roster, before the step before is written."""
    build = limited(tmp_path / "run.cbt", ring=True)
    build.roster_positions = True
    write, late = build.writer.write, []

    def swapped(frame: Frame) -> None:
        if isinstance(frame, Roster) and late:
            write(frame)
            write(late.pop())
            return
        while late:
            write(late.pop())
        if isinstance(frame, Step):
            late.append(frame)
        else:
            write(frame)

    build.writer.write = swapped  # type: ignore[method-assign]
    run(build, 4_000)
    trace = build.close()
    assert [finding.slug for finding in trace.recovery.findings] == ["steps-overwritten"]
    assert check(trace) == list(trace.recovery.findings)
    claims_only_what_is_true(trace, build)
    assert trace.steps.index[0] == build.steps - len(trace.steps.index)
    assert trace.steps.members_known.all()
