"""The GPU step timer against a simulated CUDA stream (no GPU here), and the real absence of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cbtrace.recorder.gpu_time import GpuStepTimer


class FakeStream:
    """Work in order: an event has a time once the stream has come to it."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.waiting: list[Any] = []

    def run(self, milliseconds: float) -> None:
        self.waiting.append(milliseconds)

    def drain(self, steps: int | None = None) -> None:
        todo, self.waiting = self.waiting[:steps], self.waiting[len(self.waiting[:steps]) :]
        for work in todo:
            if isinstance(work, FakeEvent):
                work.at_ms = self.now_ms
            else:
                self.now_ms += work


class FakeEvent:
    made = 0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        FakeEvent.made += 1
        self.at_ms: float | None = None

    def record(self, stream: FakeStream) -> None:
        self.at_ms = None
        stream.waiting.append(self)

    def query(self) -> bool:
        return self.at_ms is not None

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.at_ms is not None and end.at_ms is not None, "CUDA raises for an event that is not done"
        return end.at_ms - self.at_ms

    def synchronize(self) -> None:
        raise AssertionError("the timer must never wait for the GPU")


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> FakeStream:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", FakeEvent.synchronize)
    FakeEvent.made = 0
    return FakeStream()


def launch(timer: GpuStepTimer, stream: FakeStream, step: int, milliseconds: float) -> None:
    timer.begin(step)
    stream.run(milliseconds)
    timer.end(step)


def test_steps_in_flight_are_told_apart_as_async_batching_needs(stream: FakeStream):
    timer = GpuStepTimer(lambda: stream, "cuda:0")
    launch(timer, stream, 0, 3.25)
    for step in range(1, 40):
        launch(timer, stream, step, 3.25 + step)
        stream.drain()
        assert timer.collect(step - 1) == round((3.25 + step - 1) * 1e6)
    assert FakeEvent.made == 16, "events are used again, a step makes none"
    assert (timer.reason, timer.not_ready) == ("", 0)


def test_a_step_that_is_not_done_is_lost_not_waited_for(stream: FakeStream):
    timer = GpuStepTimer(lambda: stream, "cuda:0")
    launch(timer, stream, 0, 5.0)
    stream.drain(1)
    assert timer.collect(0) == -1
    assert timer.not_ready == 1
    stream.drain()
    assert timer.collect(0) == -1, "it was given up: its events may be in use again"
    launch(timer, stream, 1, 2.0)
    stream.drain()
    assert timer.collect(1) == 2_000_000


def test_a_step_that_broke_off_has_no_time(stream: FakeStream):
    timer = GpuStepTimer(lambda: stream, "cuda:0")
    launch(timer, stream, 0, 1.0)
    timer.begin(8)  # the same events again, and the launch raised
    stream.drain()
    assert timer.collect(8) == -1
    assert timer.collect(0) == -1, "its events were taken over"
    assert timer.collect(123) == -1
    assert timer.not_ready == 0


def test_the_stream_is_asked_for_at_every_step(stream: FakeStream):
    streams = [FakeStream(), FakeStream()]
    current = streams[0]
    timer = GpuStepTimer(lambda: current, "cuda:0")
    launch(timer, current, 0, 1.0)
    current = streams[1]
    launch(timer, current, 1, 1.0)
    assert [len(each.waiting) for each in streams] == [3, 3]


@pytest.mark.parametrize("broken", ["record", "query", "elapsed_time"])
def test_a_cuda_error_ends_the_timer_with_a_reason(stream: FakeStream, monkeypatch: pytest.MonkeyPatch, broken: str):
    def fail(*args: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    timer = GpuStepTimer(lambda: stream, "cuda:0")
    monkeypatch.setattr(FakeEvent, broken, fail)
    launch(timer, stream, 0, 1.0)
    stream.drain()
    assert timer.collect(0) == -1
    assert timer.reason == "CUDA events failed: RuntimeError"
    monkeypatch.undo()
    launch(timer, stream, 1, 1.0)
    assert timer.collect(1) == -1


def test_an_engine_without_a_stream_costs_only_the_times():
    def gone() -> Any:
        raise AttributeError("inputs_and_outputs")

    for device in ("cuda:0", "cpu", "no such device"):
        timer = GpuStepTimer(gone, device)
        timer.begin(0)
        timer.end(0)
        assert timer.collect(0) == -1
        assert timer.reason


def test_nothing_is_measured_on_a_cpu():
    timer = GpuStepTimer(lambda: pytest.fail("there is no stream to ask for"), torch.device("cpu"))
    timer.begin(0)
    timer.end(0)
    assert timer.collect(0) == -1
    assert timer.reason == "the model is not on a CUDA device"
