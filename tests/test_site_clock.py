"""The phases of an asynchronous engine: what the host does behind the device's back delays nobody."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cbtrace.site.analysis.clock import Phase, phase_clock
from cbtrace.traces.columns import Events, Ints, Steps

INSTANTS = ("start_ns", "scheduled_ns", "prepared_ns", "launched_ns", "ready_ns", "done_ns")


def steps_at(rows: list[tuple[int, ...]], gpu: list[int]) -> Steps:
    """Steps with these instants (start to done) and GPU times, and nothing else of note."""
    columns: dict[str, Ints] = {field.name: np.zeros(len(rows), dtype=np.int64) for field in dataclasses.fields(Steps)}
    columns |= {name: np.array([row[at] for row in rows]) for at, name in enumerate(INSTANTS)}
    return Steps(**columns | {"index": np.arange(len(rows)), "gpu_ns": np.array(gpu)})  # type: ignore[arg-type]


NO_EVENTS = Events(*(np.zeros(0, dtype=np.int64) for _ in range(8)), text=[])
ASYNC = [(0, 2, 10, 12, 40, 44), (12, 14, 30, 32, 70, 74), (44, 46, 60, 62, 100, 104)]
"""Batches 1 and 2 are prepared and launched while the device computes the batch before."""


@pytest.mark.parametrize(
    ("gpu", "device", "host"),
    [
        ([28, 30, 30], 30, 0),  # the device works without a pause: the host's 4 + 16 are hidden
        ([28, 12, 30], 12, 18),  # it waits: what it does not hide of the host counts
        ([-1, -1, -1], 0, 20),  # nothing is known of the device: the host's work counts in full
    ],
)
def test_host_work_behind_the_device_is_not_counted(gpu: list[int], device: int, host: int) -> None:
    clock = phase_clock(steps_at(ASYNC, gpu), NO_EVENTS)
    start, end = np.array([40]), np.array([70])  # from the results of batch 0 to those of batch 1
    amounts = {phase: int(clock.amount(phase, start, end)[0]) for phase in Phase}
    assert amounts[Phase.DEVICE] == device
    assert amounts[Phase.HOST] == host
    assert sum(amounts.values()) == 30
