"""Members stored as changes add up to those of the trace, for every step and any size of a file."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from cbtrace.site.pages.step_data import step_parts
from cbtrace.traces import Trace, open_trace
from packed_tables import groups, table
from site_runs import busy_run, crowded_run, troubled_run
from trace_builder import eventful

Member = tuple[int, int, int, int, bool]


def recorded(trace: Trace) -> dict[int, set[Member]]:
    """By step: request, prefill, decode and recompute tokens, and whether its token was dropped."""
    members = trace.step_requests
    found: dict[int, set[Member]] = defaultdict(set)
    columns = (members.step, members.request, members.prefill, members.decode, members.recompute, members.wasted)
    for step, *member in zip(*(column.tolist() for column in columns), strict=True):
        found[step].add(tuple(member))  # type: ignore[arg-type]
    return {step: found[step] for step in trace.steps.index.tolist()}


def stored(trace: Trace, rows: int, at_once: int = 5) -> dict[int, set[Member]]:
    """The same of the files, ``at_once`` of which are made together."""
    files = -(-len(trace.steps.index) // rows)
    parted = [range(first, min(first + at_once, files)) for first in range(0, files, at_once)]
    found: dict[int, set[Member]] = {}
    for part in (part for parts in parted for part in step_parts(trace, 0, rows, {}, parts)):
        steps = table(part["steps"])["index"]
        lists = {name: groups(part["members"][name]) for name in ("joined", "left", "others", "wasted")}
        there: set[int] = set()
        for row, step in enumerate(steps):
            there -= {one["request"] for one in lists["left"][row]}
            there |= {one["request"] for one in lists["joined"][row]}
            dropped = {one["request"] for one in lists["wasted"][row]}
            work = [(one["request"], one["prefill"], one["decode"], one["recompute"]) for one in lists["others"][row]]
            work += [(request, 0, 1, 0) for request in there]
            found[step] = {(*one, one[0] in dropped) for one in work}
    return found


@pytest.mark.parametrize("rows", [1, 7, 64, 2048])
def test_every_step_has_all_of_its_members(tmp_path: Path, rows: int) -> None:
    for number, trace in enumerate(
        (
            busy_run(tmp_path / "a.cbt", requests=30, resets=3),
            troubled_run(tmp_path / "b.cbt"),
            eventful(tmp_path / "c.cbt").close(),
            crowded_run(tmp_path / "d.cbt", steps=300, requests=60),
        )
    ):
        assert stored(trace, rows) == stored(trace, rows, 10**6) == recorded(trace), number


def test_a_damaged_trace_has_the_members_that_are_known(tmp_path: Path) -> None:
    path = tmp_path / "run.cbt"
    busy_run(path, requests=30, resets=3)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 300] = bytes(300)
    path.write_bytes(data)
    trace = open_trace(path)
    assert not trace.recovery.whole
    assert stored(trace, 16) == recorded(trace)
