"""The GPU as a condition of a run: what it is, how it is set, who else is on it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cbtrace.recorder.facts import NONE, collect
from cbtrace.recorder.nvml import GpuIdentity, NvmlUnavailableError, find_handle, identify_gpu, load_nvml
from cbtrace.traces.schema import Facts

_Readers = Mapping[str, Callable[[], Any]]


def gpu_facts(device: Any = None) -> Facts:
    """Facts under ``hardware.gpu`` and ``software.driver``, for ``device`` or else PyTorch's current one. Never raises.

    Before CUDA is initialized PyTorch cannot be asked which GPU it uses: then a fact is given if all GPUs of the
    machine agree on it. ``device_memory_bytes`` is the GPU's own figure, ``memory_bytes`` what CUDA offers of it.
    Clocks are in MHz, power is in milliwatts; ``*_clock_set_mhz`` is the application clock.
    """
    by_torch = collect(_gpu_by_torch(device))
    nvml: Any = None
    handles: list[Any] = []
    try:
        nvml = load_nvml()
        handles = _handles(nvml, device)
    except Exception:
        handles = []
    by_nvml = collect(_gpu_by_nvml(nvml, handles))
    if nvml is not None:
        collect({"": nvml.nvmlShutdown})
    return by_nvml | {name: fact for name, fact in by_torch.items() if fact is not None or name not in by_nvml}


def _gpu_by_torch(device: Any) -> _Readers:
    def properties() -> Any:
        torch = _torch()
        if not torch.cuda.is_initialized():
            raise RuntimeError("asking would initialize CUDA")
        return torch.cuda.get_device_properties(torch.cuda.current_device() if device is None else device)

    return {
        "hardware.gpu.count": lambda: _torch().cuda.device_count(),
        "hardware.gpu.name": lambda: properties().name if _torch().cuda.device_count() else NONE,
        "hardware.gpu.memory_bytes": lambda: properties().total_memory,
        "hardware.gpu.multiprocessors": lambda: properties().multi_processor_count,
        "hardware.gpu.compute_capability": lambda: f"{properties().major}.{properties().minor}",
    }


def _handles(nvml: Any, device: Any) -> list[Any]:
    """The GPU that is used; all of the machine while that is not known; none when PyTorch may use none."""
    cuda = _torch().cuda
    if cuda.device_count() == 0:
        return []
    if device is None and _cuda_started():
        device = f"cuda:{cuda.current_device()}"
    try:
        return [find_handle(nvml, identify_gpu(device) or GpuIdentity())]
    except NvmlUnavailableError:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _torch() -> Any:
    return importlib.import_module("torch")


def _cuda_started() -> bool:
    return bool(_torch().cuda.is_initialized())


def _gpu_by_nvml(nvml: Any, handles: list[Any]) -> _Readers:
    per_gpu: dict[str, Callable[[Any], Any]] = {
        "name": lambda gpu: nvml.nvmlDeviceGetName(gpu),
        "device_memory_bytes": lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total,
        "power_limit_mw": lambda gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu),
        "power_limit_default_mw": lambda gpu: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu),
        "persistence_mode": lambda gpu: bool(nvml.nvmlDeviceGetPersistenceMode(gpu)),
        "sm_clock_max_mhz": lambda gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "sm_clock_set_mhz": lambda gpu: nvml.nvmlDeviceGetApplicationsClock(gpu, nvml.NVML_CLOCK_SM),
        "memory_clock_max_mhz": lambda gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM),
        "memory_clock_set_mhz": lambda gpu: nvml.nvmlDeviceGetApplicationsClock(gpu, nvml.NVML_CLOCK_MEM),
        "ecc": lambda gpu: bool(nvml.nvmlDeviceGetEccMode(gpu)[0]),
        "mig": lambda gpu: bool(nvml.nvmlDeviceGetMigMode(gpu)[0]),
        "pcie_generation": lambda gpu: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
        "pcie_width": lambda gpu: nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),
        "nvlinks": lambda gpu: _active_nvlinks(nvml, gpu),
        "other_processes": lambda gpu: _other_processes(nvml, gpu),
    }
    readers: dict[str, Callable[[], Any]] = {
        "software.driver": lambda: nvml.nvmlSystemGetDriverVersion(),
        "hardware.gpu.count_in_machine": lambda: nvml.nvmlDeviceGetCount(),
    }
    for name, read in per_gpu.items():
        readers[f"hardware.gpu.{name}"] = partial(_agreed, read, handles)
    return readers


def _agreed(read: Callable[[Any], Any], handles: list[Any]) -> Any:
    """The value that all GPUs share; unknown when they differ or there is none."""
    values = [read(gpu) for gpu in handles]
    return values[0] if values and all(value == values[0] for value in values) else None


def _active_nvlinks(nvml: Any, gpu: Any) -> int:
    active = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active += bool(nvml.nvmlDeviceGetNvLinkState(gpu, link))
        except nvml.NVMLError:
            break  # past the last link, or none at all
    return active


def _other_processes(nvml: Any, gpu: Any) -> int | None:
    """Compute processes beside this one; unknown where a container hides which of them we are."""
    pids = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)]
    if os.getpid() in pids:
        return len(pids) - 1
    return None if _cuda_started() else len(pids)
