"""What NVIDIA's management library says about the GPU beside the allocator: a sampler on a thread of its own.

NVML looks at the whole device, so its numbers include every other process on it. Utilization is NVML's own: the share
of its last sampling window (1/6 s to 1 s, by GPU) in which at least one kernel ran; it says nothing about how much of
the GPU the kernel used. ``memory_used`` counts what the driver reserves for itself (NVML's first memory structure), so
that used and free add up to the device's total.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cbtrace.traces.schema import Gpu

_GIVE_UP_AFTER = 10
"""Samples in a row without one answer before the sampler ends."""
_NEVER_ANSWERED = frozenset({3, 4, 13})
"""NVML's codes for not supported, no permission and no such function: asking again is of no use."""


class NvmlUnavailableError(Exception):
    """NVML cannot be asked about this GPU; the text is one sentence that says why."""


@dataclass(frozen=True)
class GpuIdentity:
    """Which physical GPU PyTorch uses. Ordinals will not do: ``CUDA_VISIBLE_DEVICES`` renumbers, NVML does not."""

    uuid: str = ""
    """As PyTorch gives it, with or without NVML's ``GPU-`` or ``MIG-`` in front."""
    pci_bus_id: str = ""
    """``domain:bus:device.0`` in hexadecimal."""


def identify_gpu(device: Any) -> GpuIdentity | None:
    """The GPU behind a ``torch.device``, or ``None`` when it is no NVIDIA GPU or CUDA is not initialized yet (asking
    would initialize it, and that is the user's to do). Never raises."""
    try:
        torch = importlib.import_module("torch")
        if torch.device(device).type != "cuda" or torch.version.hip or not torch.cuda.is_initialized():
            return None
        properties: Any = torch.cuda.get_device_properties(device)
        uuid = str(getattr(properties, "uuid", ""))
        bus = getattr(properties, "pci_bus_id", None)
        if bus is None:
            return GpuIdentity(uuid)
        pci = f"{getattr(properties, 'pci_domain_id', 0):08x}:{bus:02x}:{properties.pci_device_id:02x}.0"
        return GpuIdentity(uuid, pci)
    except Exception:
        return None


def load_nvml(nvml: Any = None) -> Any:
    """NVML's bindings (``pynvml`` unless others are given), initialized; pair it with ``nvmlShutdown``. Raises
    :class:`NvmlUnavailableError`."""
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            raise NvmlUnavailableError("nvidia-ml-py is not installed") from None
    try:
        nvml.nvmlInit()
    except Exception as error:
        raise NvmlUnavailableError(f"NVML cannot start: {error}") from None
    return nvml


def find_handle(nvml: Any, gpu: GpuIdentity) -> Any:
    """NVML's handle of ``gpu``: by UUID, then by PCI address, or the only GPU of the machine. Raises
    :class:`NvmlUnavailableError` rather than pick one of several."""
    bare = gpu.uuid.removeprefix("GPU-").removeprefix("MIG-")
    attempts = [(nvml.nvmlDeviceGetHandleByUUID, prefix + bare) for prefix in ("GPU-", "MIG-") if bare]
    if gpu.pci_bus_id:
        attempts.append((nvml.nvmlDeviceGetHandleByPciBusId, gpu.pci_bus_id))
    for find, name in attempts:
        try:
            return find(name)
        except Exception:
            continue
    try:
        if nvml.nvmlDeviceGetCount() == 1:
            return nvml.nvmlDeviceGetHandleByIndex(0)
    except Exception as error:
        raise NvmlUnavailableError(f"NVML lists no GPU: {error}") from None
    raise NvmlUnavailableError("NVML does not say which of its GPUs is the one that PyTorch uses")


def _throttle(nvml: Any, handle: Any) -> int:
    # Drivers before 535 know these bits as throttle reasons; the meaning of each bit is the same.
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except Exception:
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


_READERS: dict[str, Callable[[Any, Any], int]] = {
    "utilization": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    "memory_used": lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).used,
    "power_mw": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle),
    "sm_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
    "temperature_c": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
    "throttle": _throttle,
    "processes": lambda nvml, handle: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
}


class NvmlSampler:
    """Samples one GPU every ``period_s`` seconds and hands each :class:`~cbtrace.traces.schema.Gpu` to ``emit``.

    ``emit`` is called on the sampler's thread. ``clock`` gives the trace's time in nanoseconds. Nothing raises: without
    a driver, ``pynvml`` or an NVIDIA GPU, :meth:`start` returns False and :attr:`reason` says why. A field that the GPU
    does not offer is -1 in every sample; any other failed reading is -1 once and counted in :attr:`errors`.
    """

    def __init__(
        self,
        emit: Callable[[Gpu], object],
        clock: Callable[[], int],
        gpu: GpuIdentity | None,
        period_s: float = 0.1,
        nvml: Any = None,
    ) -> None:
        self.reason = ""
        """Why there is no sampler, or why it ended by itself; empty while all is well."""
        self.samples = 0
        self.errors: Counter[str] = Counter()
        """Failed readings by field."""
        self._emit = emit
        self._clock = clock
        self._gpu = gpu
        self._period_s = period_s
        self._bindings = nvml
        self._nvml: Any = None
        self._handle: Any = None
        self._readers = dict(_READERS)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Start sampling; False when that is not possible. A second call does nothing."""
        if self._thread is not None:
            return True
        try:
            if self._gpu is None:
                raise NvmlUnavailableError("the model is not on an NVIDIA GPU")
            self._nvml = load_nvml(self._bindings)
            self._handle = find_handle(self._nvml, self._gpu)
            thread = threading.Thread(target=self._run, name="cbtrace-nvml", daemon=True)
            thread.start()
            self._thread = thread
        except Exception as error:
            self.reason = str(error) or type(error).__name__
            self._shut_down()
        return self._thread is not None

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread and wait for it, at most ``timeout_s`` seconds (one sample takes a few milliseconds)."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        silent = 0
        try:
            while silent < _GIVE_UP_AFTER:
                frame, answered = self._sample()
                silent = 0 if answered else silent + 1
                if answered:
                    self._emit(frame)
                    self.samples += 1
                if self._stopping.wait(self._period_s):
                    return
            self.reason = f"NVML stopped answering after {self.samples} samples"
        except Exception as error:
            self.reason = f"the NVML sampler ended: {type(error).__name__}"
        finally:
            self._shut_down()

    def _sample(self) -> tuple[Gpu, bool]:
        """One frame, and whether NVML answered at all."""
        frame = Gpu(self._clock())
        answered = False
        for field, read in list(self._readers.items()):
            try:
                setattr(frame, field, int(read(self._nvml, self._handle)))
                answered = True
            except Exception as error:
                if getattr(error, "value", None) in _NEVER_ANSWERED:
                    del self._readers[field]
                else:
                    self.errors[field] += 1
        return frame, answered

    def _shut_down(self) -> None:
        if self._nvml is not None:
            # NVML counts its users: this gives back our share and leaves PyTorch's.
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()
            self._nvml = None
