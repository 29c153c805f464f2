"""A stand-in for ``pynvml`` with the functions that cbtrace uses: no test machine has a driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As in ``pynvml``: ``value`` is NVML's code."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


NOT_SUPPORTED, NOT_FOUND, UNKNOWN = 3, 6, 999


class FakeNvml:
    """Some GPUs by UUID and PCI address. ``failing`` maps a function's name to the error it raises."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_TEMPERATURE_GPU = 0
    NVML_NVLINK_MAX_LINKS = 18

    def __init__(self, *uuids: str, names: tuple[str, ...] = ()) -> None:
        self.uuids = list(uuids)
        self.names = list(names) or ["Fake GPU"] * len(uuids)
        self.failing: dict[str, Exception] = {}
        self.users = 0
        self.calls: list[str] = []
        self.pids = [11, 12]

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            self.calls.append(name)
            if name in self.failing:
                return lambda *args: _raise(self.failing[name])
        return super().__getattribute__(name)

    def nvmlInit(self) -> None:  # noqa: N802
        self.users += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.users -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        if uuid not in self.uuids:
            raise NVMLError(NOT_FOUND)
        return self.uuids.index(uuid)

    def nvmlDeviceGetHandleByPciBusId(self, address: str) -> int:  # noqa: N802
        return int(address.split(":")[1], 16)

    def nvmlDeviceGetName(self, gpu: int) -> str:  # noqa: N802
        return self.names[gpu]

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=40 + gpu, memory=5)

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=1_000 + gpu, total=9_000, free=8_000 - gpu)

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:  # noqa: N802
        return 300_000 + gpu

    def nvmlDeviceGetClockInfo(self, gpu: int, kind: int) -> int:  # noqa: N802
        return {1: 1_700, 2: 3_200}[kind]

    def nvmlDeviceGetMaxClockInfo(self, gpu: int, kind: int) -> int:  # noqa: N802
        return {1: 1_980, 2: 3_201}[kind]

    def nvmlDeviceGetApplicationsClock(self, gpu: int, kind: int) -> int:  # noqa: N802
        return {1: 1_900, 2: 3_201}[kind]

    def nvmlDeviceGetTemperature(self, gpu: int, sensor: int) -> int:  # noqa: N802
        return 55

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: int) -> int:  # noqa: N802
        return 4

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: int) -> int:  # noqa: N802
        return 8

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: int) -> int:  # noqa: N802
        return 700_000

    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: int) -> int:  # noqa: N802
        return 700_000

    def nvmlDeviceGetPersistenceMode(self, gpu: int) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetEccMode(self, gpu: int) -> list[int]:  # noqa: N802
        return [1, 1]

    def nvmlDeviceGetMigMode(self, gpu: int) -> list[int]:  # noqa: N802
        return [0, 0]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: int) -> int:  # noqa: N802
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: int) -> int:  # noqa: N802
        return 16

    def nvmlDeviceGetNvLinkState(self, gpu: int, link: int) -> int:  # noqa: N802
        if link >= 4:
            raise NVMLError(NOT_SUPPORTED)
        return 1


def _raise(error: Exception) -> Any:
    raise error
