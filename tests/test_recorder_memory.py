"""Memory samples: the real process on a CPU, and PyTorch's CUDA allocator played by a small model of it."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cbtrace.recorder.memory as memory_module
from cbtrace.recorder.memory import MemoryProbe
from cbtrace.traces.schema import Memory

MIB = 1 << 20


class FakeAllocator:
    """Counts as the CUDA caching allocator does: running maxima that only a reset brings down."""

    def __init__(self) -> None:
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self.device_used, self.device_total = 500, 10_000

    def change(self, allocated: int) -> None:
        self.allocated = allocated
        self.reserved = max(self.reserved, allocated)
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def current_device(self) -> int:
        return 0

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        return {
            "allocated_bytes": {"all": {"current": self.allocated, "peak": self.peak_allocated}},
            "reserved_bytes": {"all": {"current": self.reserved, "peak": self.peak_reserved}},
        }

    def reset_peak_memory_stats(self, device: int) -> None:
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    def mem_get_info(self, device: int) -> tuple[int, int]:
        return self.device_total - self.device_used, self.device_total


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeAllocator:
    fake = FakeAllocator()
    monkeypatch.setattr(torch, "cuda", fake)
    return fake


def clock() -> int:
    return 7


def every(probe: MemoryProbe, now_ns: int) -> Memory:
    frame = probe.sample(now_ns)
    assert frame is not None
    return frame


def test_on_a_cpu_the_process_is_measured_and_nothing_else():
    probe = MemoryProbe(torch.device("cpu"), clock)
    before = probe.mark("model_loaded")
    ballast = torch.ones(64 * MIB, dtype=torch.uint8)
    after = probe.mark("cache_created")
    assert before is not None and after is not None
    assert before == Memory(7, "model_loaded", host_rss=before.host_rss)
    assert 60 * MIB <= after.host_rss - before.host_rss <= 80 * MIB
    assert abs(after.host_rss - psutil.Process().memory_info().rss) < 20 * MIB
    assert probe.reasons == []
    del ballast


def test_the_process_is_measured_alike_without_proc(monkeypatch: pytest.MonkeyPatch):
    with_proc = MemoryProbe("cpu", clock)
    monkeypatch.setattr(memory_module, "STATM", "/no/proc/here")
    without = every(MemoryProbe("cpu", clock), 0)
    assert without.host_rss > 0
    assert abs(every(with_proc, 0).host_rss - without.host_rss) < 20 * MIB


def test_a_closed_probe_takes_no_sample_and_holds_no_file():
    probe = MemoryProbe("cpu", clock, period_ns=0)
    every(probe, 0)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    probe.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files - 1
    assert probe.sample(1) is None and probe.reasons == []


def test_a_file_that_was_closed_behind_the_probe_costs_only_the_resident_set(cuda: FakeAllocator):
    probe = MemoryProbe("cuda", clock, period_ns=0)
    before = every(probe, 0)
    assert probe._statm is not None
    os.close(probe._statm.fileno())
    after = every(probe, 1)
    assert before.host_rss > 0 and after.host_rss == -1 and after.device_used == before.device_used
    assert len(probe.reasons) == 1
    probe.close()


def test_a_sample_is_taken_when_it_is_due_and_after_a_mark_later(cuda: FakeAllocator):
    probe = MemoryProbe("cuda", clock, period_ns=100)
    assert every(probe, 1_000).t_ns == 1_000
    cuda.change(50)
    assert probe.sample(1_099) is None
    assert every(probe, 1_100).mark == ""
    assert probe.next_ns == 1_200
    probe.mark("warmed_up")
    assert probe.next_ns == 107


def test_a_sample_that_says_nothing_new_is_left_out_for_a_while(cuda: FakeAllocator, monkeypatch: pytest.MonkeyPatch):
    resident = iter([MIB, *[MIB, 2 * MIB - 1] * 12, *[MIB] * 10])
    monkeypatch.setattr(memory_module, "STATM", "/no/proc/here")
    monkeypatch.setattr(psutil.Process, "memory_info", lambda _self: SimpleNamespace(rss=next(resident)))
    probe = MemoryProbe("cuda", clock, period_ns=100)
    assert [now for now in range(0, 2_500, 100) if probe.sample(now)] == [0, 1_000, 2_000]
    cuda.change(50)
    cuda.change(0)
    transient = every(probe, 2_500)
    assert (transient.allocated, transient.peak_allocated) == (0, 50)
    assert every(probe, 2_600).peak_allocated == 0  # the transient is over, which is new
    probe.mark("warmed_up")
    assert every(probe, 2_700).mark == ""


def test_a_transient_between_two_samples_is_in_the_next_one_and_in_no_other(cuda: FakeAllocator):
    cuda.change(100)
    probe = MemoryProbe("cuda", clock, period_ns=10)
    first = every(probe, 10)
    cuda.change(900)
    cuda.change(120)
    second, third = every(probe, 20), every(probe, 30)
    assert [frame.peak_allocated for frame in (first, second, third)] == [100, 900, 120]
    assert [frame.allocated for frame in (first, second, third)] == [100, 120, 120]
    assert (second.reserved, second.peak_reserved) == (900, 900)
    assert (second.device_used, second.device_total) == (500, 10_000)
    assert second.host_rss > 0


sizes = st.lists(st.one_of(st.none(), st.integers(0, 1_000)), max_size=40)


@given(sizes)
def test_each_peak_is_the_true_maximum_since_the_sample_before(history: list[int | None]):
    """``None`` in the history is a sample; a number is what is allocated from then on."""
    cuda = FakeAllocator()
    probe = probe_of(cuda)
    largest = 0
    for now, size in enumerate(history):
        if size is None:
            assert every(probe, now).peak_allocated == largest
            largest = cuda.allocated
        else:
            cuda.change(size)
            largest = max(largest, size)


@given(sizes)
def test_kept_user_peaks_are_never_touched_and_a_given_peak_is_still_the_true_one(history: list[int | None]):
    cuda = FakeAllocator()
    cuda.change(300)
    cuda.change(0)
    probe = probe_of(cuda, keep_user_peaks=True)
    largest, running = 0, 300
    for now, size in enumerate(history):
        if size is None:
            assert every(probe, now).peak_allocated == (largest if largest > running else -1)
            largest, running = cuda.allocated, max(running, largest)
        else:
            cuda.change(size)
            largest = max(largest, size)
    assert cuda.peak_allocated == max(running, largest)


def probe_of(cuda: FakeAllocator, **options: Any) -> MemoryProbe:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "cuda", cuda)
        return MemoryProbe("cuda", clock, period_ns=0, **options)


def test_a_user_s_own_reset_leaves_the_peak_unknown_rather_than_too_low(cuda: FakeAllocator):
    cuda.change(500)
    probe = MemoryProbe("cuda", clock, period_ns=0, keep_user_peaks=True)
    cuda.change(900)
    cuda.change(100)
    cuda.reset_peak_memory_stats(0)
    assert every(probe, 0).peak_allocated == -1


def test_a_source_that_fails_is_given_up_once_and_the_others_go_on(
    cuda: FakeAllocator, monkeypatch: pytest.MonkeyPatch
):
    def fail(device: int) -> Any:
        raise RuntimeError("not with this allocator")

    monkeypatch.setattr(cuda, "memory_stats_as_nested_dict", fail)
    probe = MemoryProbe("cuda", clock, period_ns=0)
    frames = [every(probe, 0), every(probe, 1)]
    assert [frame.allocated for frame in frames] == [-1, -1]
    assert [frame.device_used for frame in frames] == [500, 500]
    assert probe.reasons == ["the allocator's memory cannot be read: RuntimeError"]


def test_peaks_that_cannot_be_reset_are_not_passed_off_as_new(cuda: FakeAllocator, monkeypatch: pytest.MonkeyPatch):
    def fail(device: int) -> None:
        raise RuntimeError("not here")

    monkeypatch.setattr(cuda, "reset_peak_memory_stats", fail)
    probe = MemoryProbe("cuda", clock, period_ns=0)
    cuda.change(800)
    cuda.change(0)
    assert [every(probe, now).peak_allocated for now in range(3)] == [800, -1, -1]
    assert probe.reasons == ["peaks cannot be reset: RuntimeError"]


def test_an_unknown_device_and_a_missing_library_cost_only_their_fields(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory_module, "STATM", "/no/proc/here")
    monkeypatch.setitem(__import__("sys").modules, "psutil", None)
    probe = MemoryProbe("no such device", clock)
    assert probe.mark("model_loaded") is None
    assert probe.sample(1 << 40) is None
    assert len(probe.reasons) == 2


def test_metal_has_amounts_and_no_peaks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 5)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 9)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 100)
    frame = every(MemoryProbe("mps", clock), 0)
    assert (frame.allocated, frame.reserved, frame.device_total) == (5, 9, 100)
    assert (frame.peak_allocated, frame.device_used) == (-1, -1)


def test_the_real_modules_have_what_is_called():
    for module in (torch.cuda, torch.xpu):
        for name in ("memory_stats_as_nested_dict", "reset_peak_memory_stats", "mem_get_info", "current_device"):
            assert callable(getattr(module, name)), name


def test_the_engine_s_own_probe_is_never_used():
    """It empties the allocator's cache and synchronizes: once called while requests run, the figures are wrong."""
    code = re.sub(r'""".*?"""', "", inspect.getsource(memory_module), flags=re.DOTALL)
    assert "breakdown" not in code
    assert "empty_cache" not in code
    assert "synchronize" not in code
