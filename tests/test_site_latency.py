"""Latencies of traces whose truth is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cbtrace.site.analysis.attribution import attribute
from cbtrace.site.analysis.latency import completed, count_requests, latencies
from cbtrace.traces.schema import RequestFlag
from site_gaps import every_gap
from site_runs import busy_run, troubled_run
from trace_builder import TraceBuilder


def test_gaps_are_the_differences_of_the_true_token_times(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    request = build.submit(3, 4)
    build.admit(request)
    build.step({request: 3})
    build.now += 5_000_000  # the engine pauses
    build.step([request])
    build.step([request])
    build.finish(request)
    trace = build.close()
    gaps = every_gap(trace)
    times = build.token_times[0]
    assert gaps.total_ns.tolist() == np.diff(times).tolist()
    assert gaps.position.tolist() == [2, 3]
    assert (gaps.first_step.tolist(), gaps.last_step.tolist()) == ([1, 2], [1, 2])


def test_a_soft_reset_restarts_no_clock(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    request = build.submit(6, 3)
    submitted = build.now - 100
    build.admit(request)
    build.step({request: 6})
    build.soft_reset(request)
    build.now += 7_000_000
    build.admit(request)
    build.step({request: 7})
    build.step([request])
    build.finish(request)
    trace = build.close()
    found = latencies(trace.requests, attribute(trace).gaps.durations)
    times = build.token_times[0]
    assert len(times) == 3
    assert found.ttft.tolist() == [times[0] - submitted]
    assert np.repeat(found.gaps.values, found.gaps.counts).tolist() == np.diff(times).tolist()
    assert found.tpot.tolist() == [(times[-1] - times[0]) / 2]


def test_only_completed_requests_enter_and_the_others_are_counted(tmp_path: Path) -> None:
    trace = troubled_run(tmp_path / "run.cbt")
    counts = count_requests(trace.requests)
    assert (counts.finished, counts.failed, counts.cancelled, counts.running, counts.empty) == (4, 1, 1, 1, 1)
    assert counts.total == 7
    found = latencies(trace.requests, attribute(trace).gaps.durations)
    assert len(found.ttft) == len(found.e2e) == len(found.queue) == 3
    assert found.excluded == 3  # failed, cancelled and empty; the running one is neither
    assert completed(trace.requests).sum() == 3
    assert len(found.gaps) == 3 * 5


def test_an_unseen_submit_has_gaps_but_no_ttft(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    request = build.submit(3, 2, flags=RequestFlag.SUBMIT_UNSEEN)
    build.admit(request)
    build.step({request: 3})
    build.step([request])
    build.finish(request)
    trace = build.close()
    found = latencies(trace.requests, attribute(trace).gaps.durations)
    assert len(found.ttft) == len(found.e2e) == len(found.queue) == 0
    assert len(found.gaps) == len(found.tpot) == 1


def test_every_token_of_a_longer_run_is_in_a_gap_or_first(tmp_path: Path) -> None:
    trace = busy_run(tmp_path / "run.cbt")
    gaps = every_gap(trace)
    assert len(gaps.request) == trace.requests.generated.sum() - len(trace.requests.id)
    assert (gaps.total_ns > 0).all()
