"""The NVML sampler against a stand-in for ``pynvml`` (there is no driver here), and the real absence of one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml
import pytest
import torch

from cbtrace.recorder.nvml import (
    GpuIdentity,
    NvmlSampler,
    NvmlUnavailableError,
    find_handle,
    identify_gpu,
    load_nvml,
)
from cbtrace.traces.schema import Gpu
from fake_nvml import NOT_SUPPORTED, UNKNOWN, FakeNvml, NVMLError

TWO = ("GPU-aaaa", "GPU-bbbb")


def sampler(nvml: Any, emit: Callable[[Gpu], object], gpu: GpuIdentity | None = None, **options: Any) -> NvmlSampler:
    ticks = iter(range(1, 1_000_000))
    gpu = gpu or GpuIdentity("GPU-aaaa")
    return NvmlSampler(emit, lambda: next(ticks), gpu, **({"period_s": 0.001, "nvml": nvml} | options))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the sampler did not get there in 10 s"
        time.sleep(0.001)


def test_every_field_of_a_sample_is_read_from_the_chosen_gpu():
    nvml, frames = FakeNvml(*TWO), []
    watch = sampler(nvml, frames.append, GpuIdentity("bbbb"))
    assert watch.start()
    wait_for(lambda: len(frames) >= 3)
    watch.stop()
    assert frames[0] == Gpu(
        t_ns=1,
        utilization=41,
        memory_used=1_001,
        power_mw=300_001,
        sm_clock_mhz=1_700,
        memory_clock_mhz=3_200,
        temperature_c=55,
        throttle=4,
        processes=2,
    )
    assert [frame.t_ns for frame in frames[:3]] == [1, 2, 3]
    assert watch.samples == len(frames)
    assert (watch.reason, watch.errors) == ("", {})


def test_stopping_ends_the_thread_at_once_and_gives_nvml_back():
    nvml = FakeNvml(*TWO)
    watch = sampler(nvml, lambda frame: None, period_s=60.0)
    before = set(threading.enumerate())
    assert watch.start()
    assert watch.start(), "a second start is the same sampler"
    started = set(threading.enumerate()) - before
    assert len(started) == 1
    assert all(thread.daemon for thread in started)
    wait_for(lambda: watch.samples == 1)
    begun = time.monotonic()
    watch.stop()
    assert time.monotonic() - begun < 1.0, "stop waits for the thread, not for the period"
    assert not any(thread.is_alive() for thread in started)
    assert nvml.users == 0
    watch.stop()


@pytest.mark.parametrize(
    ("gpu", "handle"),
    [
        (GpuIdentity("GPU-bbbb"), 1),
        (GpuIdentity("bbbb"), 1),
        (GpuIdentity("bbbb", "00000000:00:00.0"), 1),
        (GpuIdentity("not-listed", "00000000:01:00.0"), 1),
        (GpuIdentity("", "00000000:01:00.0"), 1),
    ],
)
def test_the_gpu_is_found_by_uuid_then_by_pci_address(gpu: GpuIdentity, handle: int):
    assert find_handle(FakeNvml(*TWO), gpu) == handle


def test_a_mig_slice_is_found_by_its_uuid():
    assert find_handle(FakeNvml("GPU-aaaa", "MIG-cccc"), GpuIdentity("cccc")) == 1


def test_the_only_gpu_needs_no_identity_and_one_of_several_is_never_guessed():
    assert find_handle(FakeNvml("GPU-aaaa"), GpuIdentity()) == 0
    watch = sampler(FakeNvml(*TWO), lambda frame: None, GpuIdentity())
    with pytest.raises(NvmlUnavailableError):
        find_handle(FakeNvml(*TWO), GpuIdentity())
    assert not watch.start()
    assert "which of its GPUs" in watch.reason


def test_a_failed_start_gives_nvml_back():
    nvml = FakeNvml(*TWO)
    assert not sampler(nvml, lambda frame: None, GpuIdentity("cccc")).start()
    assert nvml.users == 0


def test_an_unsupported_field_is_absent_and_not_asked_again():
    nvml, frames = FakeNvml(*TWO), []
    nvml.failing["nvmlDeviceGetPowerUsage"] = NVMLError(NOT_SUPPORTED)
    watch = sampler(nvml, frames.append)
    watch.start()
    wait_for(lambda: len(frames) >= 3)
    watch.stop()
    assert {frame.power_mw for frame in frames} == {-1}
    assert {frame.temperature_c for frame in frames} == {55}
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 1
    assert watch.errors == {}


def test_a_reading_that_fails_now_and_then_is_counted_and_tried_again():
    nvml, frames = FakeNvml(*TWO), []
    nvml.failing["nvmlDeviceGetTemperature"] = NVMLError(UNKNOWN)
    watch = sampler(nvml, frames.append)
    watch.start()
    wait_for(lambda: len(frames) >= 2)
    nvml.failing.clear()
    wait_for(lambda: frames[-1].temperature_c == 55)
    watch.stop()
    failed = sum(frame.temperature_c == -1 for frame in frames)
    assert watch.errors == {"temperature_c": failed}
    assert failed >= 2


def test_older_drivers_tell_throttling_under_its_old_name():
    nvml, frames = FakeNvml(*TWO), []
    nvml.failing["nvmlDeviceGetCurrentClocksEventReasons"] = NVMLError(13)
    watch = sampler(nvml, frames.append)
    watch.start()
    wait_for(lambda: len(frames) >= 1)
    watch.stop()
    assert frames[0].throttle == 8


def test_a_gpu_that_stops_answering_ends_the_sampler_with_a_reason():
    nvml, frames = FakeNvml(*TWO), []
    watch = sampler(nvml, frames.append)
    watch.start()
    wait_for(lambda: len(frames) >= 2)
    lost = NVMLError(15)
    nvml.failing |= {name: lost for name in dir(FakeNvml) if name.startswith("nvmlDeviceGet")}
    wait_for(lambda: watch.reason != "")
    watch.stop()
    assert watch.reason == f"NVML stopped answering after {len(frames)} samples"
    assert nvml.users == 0


def test_a_trace_that_refuses_frames_ends_the_sampler_and_nothing_else():
    def refuse(frame: Gpu) -> None:
        raise OSError("disk full")

    watch = sampler(FakeNvml(*TWO), refuse)
    assert watch.start()
    wait_for(lambda: watch.reason != "")
    watch.stop()
    assert watch.reason == "the NVML sampler ended: OSError"


def test_without_an_nvidia_gpu_there_is_no_sampler():
    watch = NvmlSampler(lambda frame: None, lambda: 0, identify_gpu("cpu"))
    assert not watch.start()
    assert watch.reason == "the model is not on an NVIDIA GPU"
    watch.stop()


def has_driver() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    pynvml.nvmlShutdown()
    return True


def test_the_real_bindings_either_start_or_say_why_not():
    watch = NvmlSampler(lambda frame: None, lambda: 0, GpuIdentity("GPU-of-another-machine", "ffff:ff:ff.0"))
    if has_driver():
        load_nvml().nvmlShutdown()
    else:
        assert not watch.start()
        assert watch.reason.startswith("NVML cannot start: ")


def test_the_real_bindings_have_every_function_that_is_called():
    """A function that a new ``nvidia-ml-py`` drops would only show as a field that is always absent."""
    for name in dir(FakeNvml):
        if name.startswith(("nvml", "NVML")) and name != "nvmlDeviceGetCurrentClocksThrottleReasons":
            assert hasattr(pynvml, name), name


def test_identity_of_a_cuda_device(monkeypatch: pytest.MonkeyPatch):
    class Properties:
        uuid = "aaaa-1111"
        pci_domain_id, pci_bus_id, pci_device_id = 0, 0xAB, 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert identify_gpu("cuda:0") is None, "CUDA is not initialized, and asking would do it"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert identify_gpu("cuda:0") == GpuIdentity("aaaa-1111", "00000000:ab:00.0")
    assert identify_gpu("cpu") is None
    assert identify_gpu("no such device") is None
