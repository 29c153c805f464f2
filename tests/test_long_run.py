"""Long runs at a smaller size: the generator's traces are sound, and what is planted in one is found."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from cbtrace.site.analysis.attribution import attribute
from cbtrace.site.analysis.latency import completed
from cbtrace.site.analysis.slow_gaps import slow_gaps
from cbtrace.site.analysis.summary import summarize
from cbtrace.site.analysis.window import step_durations
from cbtrace.site.pages.run import time_origin
from cbtrace.site.pages.unfinished_section import ROWS, unfinished_section
from cbtrace.site.words import load_words
from cbtrace.traces import Trace, open_trace
from cbtrace.traces.invariants import check
from cbtrace.traces.schema import AdmissionStop, EndReason, EventKind

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from long_run import Measured, exponent
from long_trace import planted, write_long_trace
from long_workload import Plan

from site_gaps import true_gaps

MS = 1_000_000


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("long") / "planted.cbt"
    write_long_trace(path, planted(2000))
    return open_trace(path)


def test_a_trace_holds_what_was_simulated_and_agrees_with_itself(tmp_path: Path) -> None:
    schedule = write_long_trace(tmp_path / "run.cbt", Plan(4000, seed=5))
    trace = open_trace(tmp_path / "run.cbt")
    assert check(trace) == []
    assert len(trace.steps.index) == schedule.step == 4000
    assert len(trace.requests.id) == schedule.submitted
    assert int(trace.requests.generated.sum()) == int(trace.steps.new_tokens.sum()) == schedule.tokens
    assert trace.steps.active.max() == 64
    kinds = set(trace.events.kind.tolist())
    assert {EventKind.SOFT_RESET, EventKind.OFFLOAD, EventKind.RESTORE, EventKind.CANCEL_REQUESTED} <= kinds
    assert {AdmissionStop.REQUEST_CAP, AdmissionStop.KV_BLOCKS} <= set(trace.steps.stop.tolist())
    assert (trace.requests.prefix_hit > 0).any() and (trace.requests.recomputed > 0).any()
    assert len(trace.gpu.time_ns) > 100 and len(trace.memory.time_ns) > 5


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_long_trace(tmp_path / name, Plan(300, seed=seed))
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c


def test_what_is_planted_is_the_only_one_of_its_kind_and_is_found(quiet: Trace) -> None:
    plan, requests = planted(2000), quiet.requests
    assert check(quiet) == []
    durations = step_durations(quiet.steps)
    assert np.flatnonzero(durations > 100 * MS).tolist() == [plan.stall_step]
    assert durations[plan.stall_step] > 500 * MS
    resets = quiet.events.kind == EventKind.SOFT_RESET
    assert quiet.events.step[resets].tolist() == [plan.reset_step]
    cancelled = np.flatnonzero(requests.end_reason == EndReason.CANCELLED)
    assert len(cancelled) == 1
    assert quiet.events.request[quiet.events.kind == EventKind.CANCEL_REQUESTED].tolist() == cancelled.tolist()
    summary = summarize(quiet)
    assert summary.token_gap_ms.max is not None and summary.token_gap_ms.max > 500
    assert (summary.soft_resets, summary.requests.cancelled) == (1, 1)


def test_the_stall_is_the_slowest_row_and_stands_for_all_who_felt_it(quiet: Trace) -> None:
    stall, tokens = planted(2000).stall_step, quiet.tokens
    worst, *others = slow_gaps(quiet, attribute(quiet).gaps).slowest
    felt = (tokens.step == stall) & (tokens.position > 1) & completed(quiet.requests)[tokens.request]
    assert (worst.first_step, worst.last_step, worst.longest_step) == (stall, stall, stall)
    assert worst.count == felt.sum() > 50
    assert (worst.request, worst.position) == (tokens.request[felt][0], tokens.position[felt][0])
    assert worst.duration_ns > 500 * MS > others[0].duration_ns
    assert len({(gap.first_step, gap.last_step) for gap in others}) > 40  # other moments, not the same one again


def test_the_soft_reset_is_a_row_though_others_are_slower(quiet: Trace) -> None:
    (at,) = np.flatnonzero(quiet.events.kind == EventKind.SOFT_RESET)
    found = slow_gaps(quiet, attribute(quiet).gaps)
    gap = found.most["recompute"]
    assert gap.soft_reset and gap.count == 1
    assert gap.request == quiet.events.request[at]
    assert gap.first_step == gap.longest_step == quiet.events.step[at] == planted(2000).reset_step
    assert gap.own_recompute == quiet.requests.recomputed[gap.request] == gap.recompute_tokens > 0
    assert (gap.request, gap.position, gap.duration_ns) in true_gaps(quiet)
    assert gap.duration_ns < found.slowest[-1].duration_ns


def test_the_cancelled_request_is_the_first_that_did_not_complete(quiet: Trace) -> None:
    (cancelled,) = np.flatnonzero(quiet.requests.end_reason == EndReason.CANCELLED).tolist()
    section = unfinished_section(quiet, time_origin(quiet), load_words())
    assert section is not None
    first, *others = section.rows
    assert (first.how, first.ordinal, first.request) == ("cancelled", cancelled, quiet.requests.id[cancelled])
    ended = int(quiet.requests.end_ns[cancelled]) - time_origin(quiet)
    assert first.ended == f"{ended / 1e9:.3f}"
    begin, end = map(float, first.window.split(","))
    assert begin < float(first.submitted) < ended / 1e9 < end
    assert first.generated == quiet.requests.generated[cancelled]
    running = np.flatnonzero(quiet.requests.end_reason == EndReason.RUNNING).tolist()
    assert [row.ordinal for row in others] == running[: ROWS - 1]
    assert f"1 cancelled, {len(running)} still running" in section.title


@pytest.mark.parametrize("power", [0.9, 1.0, 1.2])
def test_the_exponent_of_growth_is_that_of_a_power(power: float) -> None:
    sizes = (10_000, 100_000, 1_000_000)
    others = dict.fromkeys(Measured.__dataclass_fields__, 1)
    found = [Measured(**others | {"steps": n, "read_s": 3e-5 * n**power}) for n in sizes]  # type: ignore[arg-type]
    assert exponent(found, "read_s") == pytest.approx(power)
