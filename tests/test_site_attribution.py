"""The cut of every TTFT and token gap: exact on traces where each piece is known, and a sum everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cbtrace.site.analysis.attribution import attribute
from cbtrace.site.analysis.clock import Phase, phase_clock
from cbtrace.site.analysis.pieces import COLUMN, PIECES
from cbtrace.traces import Trace, open_trace
from cbtrace.traces.schema import AdmissionStop, EndReason, Event, EventKind, Step, StepFlag
from cbtrace.traces.stepcode import pack_slots, pack_times
from site_gaps import every_gap, true_gaps
from site_runs import busy_run, troubled_run
from trace_builder import CAPACITY, SimRequest, TraceBuilder, eventful

MS = 1_000_000


def named(pieces: Any) -> dict[str, int]:
    """The pieces of one row that are not zero."""
    return {PIECES[i]: int(value) for i, value in enumerate(pieces) if value}


def check_sums(trace: Trace) -> None:
    """The invariant: every completed request and gap is cut, and each cut adds up to the nanosecond."""
    gaps = every_gap(trace)
    for part in (attribute(trace).ttft, gaps):
        assert (part.pieces.sum(axis=1) == part.total_ns).all()
        assert (part.pieces >= 0).all()
    found = zip(gaps.request.tolist(), gaps.position.tolist(), gaps.total_ns.tolist(), strict=True)
    assert list(found) == true_gaps(trace)


def test_a_prompt_alone_is_queue_wait_host_and_prefill(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt", step_ns=6 * MS)
    request = build.submit(10, 2)  # visible 100 ns after submit
    build.now += 900
    build.admit(request)  # 900 ns later, at the beginning of its step
    build.step({request: 10})  # instants every ms: scheduled, prepared | launched, ready, done
    build.step([request])
    build.finish(request)
    cuts = attribute(build.close())
    assert named(cuts.ttft.pieces[0]) == {
        "input_queue": 100,
        "wait_next_step": 900,
        "host": 2 * MS,  # start to prepared
        "prefill": 2 * MS,  # prepared to ready
    }
    # The gap: one ms of update, one between the steps, then scheduling, writing and computing of the next.
    assert named(cuts.gaps.pieces[0]) == {"host": 3 * MS, "idle": 1 * MS, "decode": 2 * MS}


def test_waiting_is_split_by_the_reason_of_each_decision(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt", step_ns=6 * MS)
    first = build.submit(10, 5)
    build.admit(first)
    late = build.submit(8, 1)
    visible = build.now
    build.step({first: 10}, stop=AdmissionStop.KV_BLOCKS)
    build.step([first], stop=AdmissionStop.SAFETY_MARGIN)
    build.step([first], stop=AdmissionStop.KV_BLOCKS)
    build.admit(late)
    admitted = build.now
    build.step({first: 1, late: 8})
    build.finish(late)
    build.step([first])
    build.finish(first)
    pieces = named(attribute(build.close()).ttft.pieces[1])
    assert admitted - visible == 18 * MS
    assert pieces["wait_next_step"] == 1 * MS  # until the first decision after it became visible
    assert pieces["wait_kv_blocks"] == 6 * MS + 5 * MS
    assert pieces["wait_safety_margin"] == 6 * MS
    assert pieces["prefill"] == 2 * MS
    assert "unattributed" not in pieces


def test_chunks_and_the_time_between_them(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt", step_ns=6 * MS)
    other, chunked = build.submit(4, 6), build.submit(20, 1)
    build.admit(other)
    build.admit(chunked)
    build.step({other: 4, chunked: 10})
    build.step([other])  # the second chunk has to wait
    build.step({other: 1, chunked: 10})
    build.finish(chunked)
    build.step([other])
    build.step([other])
    build.step([other])
    build.finish(other)
    pieces = named(attribute(build.close()).ttft.pieces[1])
    assert pieces["prefill"] == 2 * MS + 2 * MS
    assert pieces["not_scheduled"] == 6 * MS
    assert pieces["host"] == 2 * MS + 3 * MS


def test_a_gap_over_a_soft_reset(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt", step_ns=6 * MS)
    victim, other = build.submit(10, 3), build.submit(4, 9)
    build.admit(victim)
    build.admit(other)
    build.step({victim: 10, other: 4})
    build.step([other])  # starved
    build.soft_reset(victim)
    for _ in range(3):
        build.step([other])
    build.admit(victim)
    build.step([other])  # admitted by a prefix match, and not scheduled yet
    build.step({victim: 11, other: 1})
    build.step([victim, other])
    build.finish(victim)
    build.step([other])
    build.finish(other)
    cuts = attribute(build.close())
    first = named(cuts.gaps.pieces[0])
    assert first["not_scheduled"] == 6 * MS + 6 * MS
    assert first["reset_wait"] == 18 * MS
    assert first["recompute"] == 2 * MS
    assert cuts.gaps.absent_steps[0] == 5
    assert sum(first.values()) == 36 * MS


def test_an_offload_is_its_own_piece(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt", step_ns=6 * MS)
    away, other = build.submit(10, 3), build.submit(4, 9)
    build.admit(away)
    build.admit(other)
    build.step({away: 10, other: 4})
    build.offload(away)
    build.step([other])
    build.step([other])
    build.restore(away)
    build.step([away, other])
    build.step([away, other])
    build.finish(away)
    build.step([other])
    build.finish(other)
    pieces = named(attribute(build.close()).gaps.pieces[0])
    assert pieces["offloaded"] == 12 * MS
    assert pieces["decode"] == 2 * MS


def test_a_neighbor_s_prompt_is_shared_and_estimated_from_like_steps(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt", step_ns=6 * MS)
    reader, prompt = build.submit(3, 6), build.submit(100, 1)
    build.admit(reader)
    build.step({reader: 3})
    build.step([reader])
    build.step([reader])
    build.admit(prompt)
    build.step_ns = 60 * MS
    build.step({reader: 1, prompt: 100})
    build.finish(prompt)
    build.step_ns = 6 * MS
    build.step([reader])
    build.step([reader])
    build.finish(reader)
    cuts = attribute(build.close())
    shared = named(cuts.gaps.pieces[2])
    assert shared["decode"] == 2 * MS  # as a decode-only step of one token
    assert shared["shared_step"] == 20 * MS - 2 * MS
    assert "shared_step" not in named(cuts.gaps.pieces[0])


def test_without_a_like_step_there_is_no_estimate(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt", step_ns=6 * MS)
    reader, prompt = build.submit(3, 2), build.submit(100, 1)
    build.admit(reader)
    build.step({reader: 3})
    build.admit(prompt)
    build.step({reader: 1, prompt: 100})
    build.finish(prompt)
    build.finish(reader)
    pieces = named(attribute(build.close()).gaps.pieces[0])
    assert pieces["unattributed"] == 2 * MS
    assert "shared_step" not in pieces


def test_a_graph_capture_is_taken_out_of_the_step(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt", step_ns=6 * MS)
    request = build.submit(3, 3)
    build.admit(request)
    build.step({request: 3})
    at = build.now
    build.step([request])
    build.write(Event(EventKind.GRAPH_CAPTURE, at + 3 * MS, 1, tokens=1, duration_ns=MS // 2))
    build.step([request])
    build.finish(request)
    cuts = attribute(build.close())
    assert named(cuts.gaps.pieces[0])["capture"] == MS // 2
    assert named(cuts.gaps.pieces[0])["decode"] == 2 * MS - MS // 2
    assert "capture" not in named(cuts.gaps.pieces[1])


def test_warm_up_before_the_first_step_is_named(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt", step_ns=6 * MS)
    request = build.submit(3, 1)
    build.now += 50 * MS
    build.write(Event(EventKind.WARMUP_END, build.now, 0, duration_ns=40 * MS))
    build.admit(request)
    build.step({request: 3})
    build.finish(request)
    pieces = named(attribute(build.close()).ttft.pieces[0])
    assert pieces["warm_up"] == 40 * MS
    assert pieces["wait_next_step"] == 10 * MS


def write_step(build: TraceBuilder, times: list[int], members: list[SimRequest], flags: int = StepFlag.ASYNC) -> None:
    """A step with instants of one's own: starts, scheduled, prepared, launched, ready, done."""
    slots = pack_slots([request.slot for request in members])
    held = sum(request.held for request in members)
    build.write(Step(build.steps, pack_times(*times), -1, slots, CAPACITY - held, 0, 0, len(members), 0, flags))
    build.steps += 1


def test_an_asynchronous_engine_schedules_while_a_step_is_in_flight(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    request = build.submit(3, 4)
    build.admit(request)
    build.step({request: 3})  # ready at +4/6 ms, done at +5/6 ms
    base = build.now
    at = [base + i * MS for i in range(40)]
    # Step 1 is in flight from 2; step 2 is prepared at 4..6, with a capture, before the results of step 1 at 10.
    write_step(build, [at[0], at[1], at[2], at[3], at[10], at[11]], [request])
    write_step(build, [at[4], at[5], at[6], at[9], at[16], at[17]], [request])
    build.write(Event(EventKind.GRAPH_CAPTURE, at[9], 2, tokens=1, duration_ns=2 * MS))
    write_step(build, [at[12], at[13], at[14], at[15], at[20], at[21]], [request])
    request.generated = 4
    build.finish(request)
    trace = build.close()
    cuts = attribute(trace)
    second = named(cuts.gaps.pieces[1])
    # From 10 to 16: update of step 1, scheduling and writing of step 3, and waiting for step 2.
    assert second == {"host": MS + 2 * MS, "decode": 3 * MS}
    # The capture of step 2 lies before the results of step 1, and is part of that gap.
    assert named(cuts.gaps.pieces[0])["capture"] == 2 * MS
    check_sums(trace)


def test_a_request_admitted_behind_a_step_in_flight(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    first = build.submit(3, 4)
    build.admit(first)
    build.step({first: 3})
    base = build.now
    at = [base + i * MS for i in range(40)]
    second = build.submit(1, 1)
    write_step(build, [at[0], at[1], at[2], at[3], at[10], at[11]], [first])
    build.now = at[4]
    build.admit(second)
    second.position = 1
    write_step(build, [at[4], at[5], at[6], at[7], at[16], at[17]], [first, second])
    first.generated, second.generated = 3, 1
    build.finish(second)
    build.finish(first)
    trace = build.close()
    cuts = attribute(trace)
    pieces = named(cuts.ttft.pieces[1])
    assert pieces["step_in_flight"] == 6 * MS  # from 4, when it was admitted, to 10
    check_sums(trace)


def test_damage_is_unattributed_and_never_spread(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt", step_ns=6 * MS)
    request = build.submit(3, 6)
    build.admit(request)
    build.step({request: 3})
    build.step([request])
    build.steps += 2  # two steps are not in the file
    build.now += 12 * MS
    build.step([request])
    build.finish(request)
    trace = build.close()
    check_sums(trace)
    cuts = attribute(trace)
    lost = [named(row) for row in cuts.gaps.pieces if named(row).get("unattributed")]
    assert all(set(row) == {"unattributed"} for row in lost)


@pytest.mark.parametrize("make", [busy_run, troubled_run])
def test_sums_of_longer_runs(tmp_path: Path, make: Any) -> None:
    trace = make(tmp_path / "run.cbt")
    check_sums(trace)
    assert attribute(trace).gaps.pieces[:, COLUMN["unattributed"]].sum() < attribute(trace).gaps.total_ns.sum()


def test_sums_of_an_eventful_run(tmp_path: Path) -> None:
    check_sums(eventful(tmp_path / "run.cbt").close())


TESTS = Path(__file__).parent
RECORDED = sorted([*TESTS.glob("fixtures/*.cbt"), *TESTS.parent.glob("traces/samples/*.cbt")])


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_sums_of_real_recordings_of_every_kind(path: Path) -> None:
    trace = open_trace(path)
    check_sums(trace)
    cuts = attribute(trace)
    for part in (cuts.ttft, cuts.gaps):
        assert part.pieces[:, COLUMN["unattributed"]].sum() <= 0.02 * part.total_ns.sum()


MOVES = st.lists(
    st.tuples(st.sampled_from(["submit", "step", "reset", "offload", "pause", "capture", "finish"]), st.integers(0, 9)),
    max_size=60,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MOVES, st.integers(0, 2**16), st.integers(0, 8))
def test_sums_of_any_course_of_events_and_any_damage(
    tmp_path: Path, moves: list[tuple[str, int]], damage: int, width: int
) -> None:
    path = tmp_path / "run.cbt"
    path.unlink(missing_ok=True)
    play(path, moves)
    check_sums(open_trace(path))
    data = bytearray(path.read_bytes())
    start = 200 + damage % max(1, len(data) - 200)
    data[start : start + width * 8] = bytes(len(data[start : start + width * 8]))
    path.write_bytes(bytes(data))
    check_sums(open_trace(path))


def play(path: Path, moves: list[tuple[str, int]]) -> None:
    """Run a toy engine through ``moves``."""
    build = TraceBuilder(path, roster_every=5)
    waiting: list[SimRequest] = []
    active: list[SimRequest] = []
    offloaded: list[SimRequest] = []
    for move, number in [*moves, *[("step", number) for number in range(12)]]:
        if move == "submit":
            waiting.append(build.submit(1 + 3 * number, 1 + number % 4))
        elif move == "pause":
            build.now += number * MS
        elif move == "capture":
            build.write(Event(EventKind.GRAPH_CAPTURE, build.now, build.steps, tokens=1, duration_ns=number * MS // 20))
        elif move == "reset" and active:
            waiting.append(active.pop(number % len(active)))
            build.soft_reset(waiting[-1])
        elif move == "offload" and active:
            offloaded.append(active.pop(number % len(active)))
            build.offload(offloaded[-1])
        elif move == "finish" and active:
            build.finish(active.pop(number % len(active)), EndReason(1 + number % 4))
        elif move == "step":
            one_step(build, waiting, active, offloaded, number)
    build.close()


def one_step(
    build: TraceBuilder, waiting: list[SimRequest], active: list[SimRequest], offloaded: list[SimRequest], number: int
) -> None:
    if offloaded and number % 3 == 0:
        active.append(offloaded.pop(0))
        build.restore(active[-1])
    elif waiting and len(active) < 3:
        active.append(waiting.pop(0))
        build.admit(active[-1])
    chosen = [request for i, request in enumerate(active) if len(active) == 1 or i != number % 4]
    if not chosen:
        return
    work = {request: min(5, request.pending) if request.pending else 1 for request in chosen}
    build.step(work, stop=AdmissionStop(number % 7) if waiting else AdmissionStop.NOTHING_WAITING)
    for request in [request for request in active if request.generated >= request.limit]:
        active.remove(request)
        build.finish(request)


def test_phases_never_overlap_and_add_up(tmp_path: Path) -> None:
    trace = busy_run(tmp_path / "run.cbt")
    clock = phase_clock(trace.steps, trace.events)
    source = np.random.default_rng(0)
    start = source.integers(-MS, 80 * MS, 200)
    end = start + source.integers(0, 30 * MS, 200)
    total = sum(clock.amount(phase, start, end) for phase in Phase)
    assert (total == end - start).all()
