"""No event is lost from any level of zoom: a mark stands for all of its kind in its point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cbtrace.site.analysis.marks import MARK_NAMES, Marks, marks, point_marks
from site_runs import troubled_run
from trace_builder import eventful

EVENTS = st.lists(st.tuples(st.integers(-5, 200), st.integers(0, len(MARK_NAMES) - 1)), max_size=60)


@given(EVENTS, st.lists(st.integers(0, 180), min_size=1, max_size=20, unique=True))
def test_every_event_is_in_the_mark_of_its_point(events: list[tuple[int, int]], starts: list[int]) -> None:
    starts.sort()
    events.sort()
    time, kind = np.array(events, dtype=np.int64).reshape(-1, 2).T
    made = point_marks(Marks(time, kind), np.array(starts, dtype=np.int64))
    expected: dict[tuple[int, int], list[int]] = {}
    for at, of in events:
        point = max(0, sum(start <= at for start in starts) - 1)
        expected.setdefault((point, of), []).append(at)
    rows = zip(made.point.tolist(), made.kind.tolist(), made.time_ns.tolist(), made.count.tolist(), strict=True)
    assert {(point, of): (first, count) for point, of, first, count in rows} == {
        key: (min(times), len(times)) for key, times in expected.items()
    }
    assert (np.diff(made.point) >= 0).all()


def test_what_happened_in_a_run_is_marked(tmp_path: Path) -> None:
    trace = eventful(tmp_path / "run.cbt").close()
    found = marks(trace.events, trace.requests)
    names = {MARK_NAMES[kind] for kind in found.kind.tolist()}
    assert {"soft_reset", "offload", "restore"} <= names
    trace = troubled_run(tmp_path / "troubled.cbt")
    failed = marks(trace.events, trace.requests)
    assert [MARK_NAMES[kind] for kind in failed.kind.tolist()] == ["failure"]
    assert failed.time_ns.tolist() == [int(trace.requests.end_ns[3])]
