"""Long runs at a smaller size: the generator's traces are sound, and what is planted in one is found."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from cbtrace.site.analysis.attribution import attribute
from cbtrace.site.analysis.summary import summarize
from cbtrace.site.analysis.window import step_durations
from cbtrace.traces import Trace, open_trace
from cbtrace.traces.invariants import check
from cbtrace.traces.schema import AdmissionStop, EndReason, EventKind

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from long_run import Measured, exponent
from long_trace import planted, write_long_trace
from long_workload import Plan

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
    cuts = attribute(quiet)
    assert {gap.longest_step for gap in cuts.slowest} == {plan.stall_step}  # as many requests waited as are listed
    summary = summarize(quiet, cuts)
    assert summary.token_gap_ms.max == max(gap.duration_ns for gap in cuts.slowest) / MS > 500
    assert (summary.soft_resets, summary.requests.cancelled) == (1, 1)


@pytest.mark.parametrize("power", [0.9, 1.0, 1.2])
def test_the_exponent_of_growth_is_that_of_a_power(power: float) -> None:
    sizes = (10_000, 100_000, 1_000_000)
    found = [Measured(n, *([0.0] * 4), 3e-5 * n**power, *([1.0] * 7)) for n in sizes]  # type: ignore[arg-type]
    assert exponent(found, "read_s") == pytest.approx(power)
