"""Goodput from first principles: who meets every limit, and who meets none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cbtrace.site.analysis.attribution import attribute
from cbtrace.site.analysis.goodput import LIMITS, ServiceTimes, Slos, goodput, ladder, service_times
from cbtrace.site.pages.goodput_section import goodput_data, goodput_section
from cbtrace.site.words import load_words
from cbtrace.traces import Trace
from cbtrace.traces.schema import EndReason
from packed_tables import table
from site_runs import busy_run, troubled_run

MS = 1_000_000


def times_of(trace: Trace) -> ServiceTimes:
    return service_times(trace, attribute(trace).longest_gap)


def test_every_limit_must_hold_and_failures_meet_none(tmp_path: Path) -> None:
    trace = troubled_run(tmp_path / "run.cbt")  # three good, a failed, a cancelled, an empty and a running one
    times = times_of(trace)
    assert (len(times.ttft), times.missed, times.running, times.judged) == (3, 3, 1, 6)
    assert goodput(times, Slos()).met == 3
    assert goodput(times, Slos()).per_second == 3 / times.window_s
    assert goodput(times, Slos(ttft=0)).met == 0
    assert goodput(times, Slos(ttft=10**12, longest_gap=0.5 * MS)).met == 0


def test_the_count_is_that_of_a_loop_over_requests_and_tokens(tmp_path: Path) -> None:
    trace = busy_run(tmp_path / "run.cbt", stall_step=20)
    requests, tokens = trace.requests, trace.tokens
    times = times_of(trace)
    limits = tuple(int(np.quantile(values, 0.7)) for values in (times.ttft, times.longest_gap, times.e2e))
    met = 0
    for row in range(len(requests.id)):
        at = tokens.time_ns[tokens.request == row]
        longest = int(np.diff(at).max()) if len(at) > 1 else 0
        ttft = int(at[0]) - int(requests.submit_ns[row])
        e2e = int(requests.end_ns[row]) - int(requests.submit_ns[row])
        done = requests.end_reason[row] in (EndReason.EOS, EndReason.LENGTH)
        met += bool(done and ttft <= limits[0] and longest <= limits[1] and e2e <= limits[2])
    assert goodput(times, Slos(*limits)).met == met
    assert 0 < met < len(requests.id)


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60))
def test_a_ladder_of_limits_rises_to_one_that_all_meet(values: list[int]) -> None:
    rungs = ladder(np.array(values, dtype=np.int64))
    assert 1 <= len(rungs) <= LIMITS
    assert [limit for limit, _ in rungs] == sorted({limit for limit, _ in rungs})
    assert rungs[-1][1] == len(values)
    for limit, count in rungs:
        assert count == sum(value <= limit for value in values)
        assert str(limit).rstrip("0") in ("1", "2", "5")


def test_the_page_carries_all_times_and_the_words(tmp_path: Path) -> None:
    times = times_of(busy_run(tmp_path / "run.cbt"))
    words = load_words()
    data = goodput_data(times, words)
    stored = table(data["times"])
    assert len(stored["ttft_us"]) == data["judged"] == 12
    for name, exact in (("ttft", times.ttft), ("gap", times.longest_gap), ("e2e", times.e2e)):
        rounded_up = sorted(stored[f"{name}_us"])
        assert rounded_up == sorted(-(-ns // 1000) for ns in exact.tolist())
    shown = goodput_section(times, words)
    assert [row.id for row in shown.rows] == ["ttft", "gap", "e2e"]
    assert shown.rows[0].cells[-1].replace("\N{NO-BREAK SPACE}", " ").endswith("100 %")
