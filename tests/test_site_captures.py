"""Graph captures: those of the warm-up are no part of a run's numbers, and a gap names those that it waited for."""

from __future__ import annotations

from pathlib import Path

from cbtrace.site.analysis.attribution import attribute
from cbtrace.site.analysis.slow_gaps import slow_gaps
from cbtrace.site.analysis.summary import summarize
from cbtrace.site.pages.compare_data import _happened
from cbtrace.traces import Trace
from cbtrace.traces.schema import Event, EventKind
from trace_builder import TraceBuilder

MS = 1_000_000


def run(path: Path) -> Trace:
    """A warm-up with a capture, then six tokens; one capture for step 3, while step 2 is awaited."""
    build = TraceBuilder(path)
    build.write(Event(EventKind.WARMUP_BEGIN, build.now, 0))
    build.write(Event(EventKind.GRAPH_CAPTURE, build.now + 800 * MS, 0, tokens=1, duration_ns=700 * MS))
    build.now += 1000 * MS
    build.write(Event(EventKind.WARMUP_END, build.now, 0, duration_ns=1000 * MS))
    reader = build.submit(3, 6)
    build.admit(reader)
    build.step({reader: 3})
    build.step([reader])
    build.step_ns *= 9
    build.step([reader])
    build.write(
        Event(EventKind.GRAPH_CAPTURE, build.now - build.step_ns // 2, 3, tokens=2, duration_ns=build.step_ns // 8)
    )
    build.step_ns //= 9
    for _ in range(3):
        build.step([reader])
    build.finish(reader)
    return build.close()


def test_what_the_warm_up_captured_is_not_counted(tmp_path: Path) -> None:
    trace = run(tmp_path / "run.cbt")
    assert summarize(trace).graph_captures == 1
    told = _happened(trace)["capture"]
    assert told["count"] == 1 and told["duration_ns"] < 700 * MS


def test_a_gap_names_the_capture_of_the_next_step_that_it_waited_for(tmp_path: Path) -> None:
    trace = run(tmp_path / "run.cbt")
    gaps = slow_gaps(trace, attribute(trace).gaps).slowest
    assert (gaps[0].last_step, gaps[0].captures) == (2, 1)
    assert sum(gap.captures for gap in gaps) == 1
