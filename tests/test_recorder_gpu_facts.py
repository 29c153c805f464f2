"""The GPU's facts through a stand-in for ``pynvml``, and their absence."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cbtrace.recorder.facts import NONE
from cbtrace.recorder.gpu_facts import gpu_facts
from fake_nvml import UNKNOWN, FakeNvml, NVMLError


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(nvml: Any, visible: int = 1) -> Any:
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
        return nvml

    return put


def test_one_gpu_is_described_in_full_before_cuda_is_started(install: Any):
    nvml = install(FakeNvml("GPU-aaaa"))
    assert gpu_facts() == {
        "software.driver": "580.1",
        "hardware.gpu.count": 1,
        "hardware.gpu.count_in_machine": 1,
        "hardware.gpu.name": "Fake GPU",
        "hardware.gpu.device_memory_bytes": 9_000,
        "hardware.gpu.memory_bytes": None,
        "hardware.gpu.multiprocessors": None,
        "hardware.gpu.compute_capability": None,
        "hardware.gpu.power_limit_mw": 700_000,
        "hardware.gpu.power_limit_default_mw": 700_000,
        "hardware.gpu.persistence_mode": True,
        "hardware.gpu.sm_clock_max_mhz": 1_980,
        "hardware.gpu.sm_clock_set_mhz": 1_900,
        "hardware.gpu.memory_clock_max_mhz": 3_201,
        "hardware.gpu.memory_clock_set_mhz": 3_201,
        "hardware.gpu.ecc": True,
        "hardware.gpu.mig": False,
        "hardware.gpu.pcie_generation": 5,
        "hardware.gpu.pcie_width": 16,
        "hardware.gpu.nvlinks": 4,
        "hardware.gpu.other_processes": 2,
    }
    assert nvml.users == 0


def test_of_several_gpus_only_what_they_agree_on_is_known(install: Any):
    install(FakeNvml("GPU-aaaa", "GPU-bbbb", names=("Big", "Small")), visible=2)
    facts = gpu_facts()
    assert facts["hardware.gpu.name"] is None
    assert facts["hardware.gpu.power_limit_mw"] == 700_000


def test_once_cuda_is_started_the_used_gpu_is_found_whatever_its_number(install: Any, monkeypatch: pytest.MonkeyPatch):
    nvml = install(FakeNvml("GPU-aaaa", "GPU-bbbb", names=("Big", "Small")))
    used = SimpleNamespace(uuid="bbbb", name="Small", total_memory=8_500, multi_processor_count=132, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: used)
    facts = gpu_facts()
    assert facts["hardware.gpu.name"] == "Small"
    assert facts["hardware.gpu.memory_bytes"] == 8_500
    assert facts["hardware.gpu.compute_capability"] == "9.0"
    assert "bbbb" not in str(facts), "a UUID identifies a machine"
    assert facts["hardware.gpu.other_processes"] is None, "we are on the GPU and not in the list: a container hides us"
    nvml.pids = [os.getpid(), 12]
    assert gpu_facts()["hardware.gpu.other_processes"] == 1


def test_a_gpu_that_pytorch_may_not_use_is_not_described(install: Any):
    install(FakeNvml("GPU-aaaa"), visible=0)
    facts = gpu_facts()
    assert facts["hardware.gpu.name"] == NONE
    assert facts["hardware.gpu.power_limit_mw"] is None
    assert facts["hardware.gpu.count_in_machine"] == 1


def test_what_nvml_refuses_is_unknown_and_the_rest_is_known(install: Any):
    nvml = install(FakeNvml("GPU-aaaa"))
    nvml.failing["nvmlDeviceGetEccMode"] = NVMLError(UNKNOWN)
    nvml.failing["nvmlDeviceGetApplicationsClock"] = AttributeError("gone from the bindings")
    facts = gpu_facts()
    assert facts["hardware.gpu.ecc"] is None
    assert facts["hardware.gpu.sm_clock_set_mhz"] is None
    assert facts["hardware.gpu.mig"] is False


def test_without_the_bindings_the_same_facts_are_there_and_unknown(install: Any):
    install(FakeNvml("GPU-aaaa"))
    with_nvml = set(gpu_facts())
    install(None)
    facts = gpu_facts()
    assert set(facts) == with_nvml
    assert {name for name, value in facts.items() if value is not None} == {"hardware.gpu.count"}
