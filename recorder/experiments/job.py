"""What a runner and the process of a run say to each other: one line of JSON each time."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from cbtrace.recorder.experiments.model_source import ModelSource
from cbtrace.recorder.experiments.plan_spec import Generation
from cbtrace.recorder.experiments.static_batches import BatchBy
from cbtrace.recorder.experiments.workload import WorkloadSpec
from cbtrace.traces.experiment import FailureKind, SubmitLag
from cbtrace.traces.schema import Facts, Scalar

COMPARED = ("software.", "hardware.", "torch.", "environment.")
"""Conditions that all runs of an experiment must share."""
VOLATILE = ("hardware.gpu.other_processes", "environment.CUDA_VISIBLE_DEVICES")
"""Conditions that change by themselves, and which of the GPUs a run got: ``hardware.gpu`` tells what it is."""
ROUGH = ("hardware.ram_bytes", "hardware.gpu.memory_bytes", "hardware.gpu.device_memory_bytes")
ROUGH_SHARE = 0.01
"""Amounts that differ by less than this from one start of a machine to the next: what its kernel keeps for itself."""


class Job(Struct):
    """One run, as its process gets it."""

    trace: str
    name: str
    tags: dict[str, str]
    plan_folder: str
    model: ModelSource
    generation: Generation
    workload: WorkloadSpec
    workload_name: str
    seed: int
    settings: dict[str, Any]
    kind: Literal["continuous", "static"] = "continuous"
    batch_size: int = 1
    batch_by: BatchBy = "arrival"
    warmup_requests: int = 0
    token_ids: bool = True
    conditions: Facts = field(default_factory=dict)
    """Those of the runs before; the run refuses others. Empty: any."""
    placement: Facts = field(default_factory=dict)
    """Where in a cluster it runs, for the trace's fingerprint (``placement.*``)."""


class Report(Struct, omit_defaults=True):
    """What the process says: its phase and progress now and then, and once how it ended."""

    phase: str = ""
    steps: int = 0
    pending: int = 0
    """Requests that the engine has and has not finished."""
    conditions: Facts | None = None
    workload: Facts | None = None
    """What the trace is told of the workload."""
    differing: list[str] | None = None
    """It refuses to run: these conditions differ from those of the runs before."""
    done: bool = False
    failure: FailureKind | None = None
    text: str = ""
    lag: SubmitLag | None = None


def differing_conditions(before: Facts, now: Facts) -> list[str]:
    """Name the conditions that are known and not the same."""
    names = [
        name
        for name in sorted(set(before) & set(now))
        if name.startswith(COMPARED) and name not in VOLATILE and not _same(name, before[name], now[name])
    ]
    return [f"{name} was {before[name]} and is {now[name]}" for name in names]


def _same(name: str, before: Scalar, now: Scalar) -> bool:
    if None in (before, now):
        return True
    if name in ROUGH and isinstance(before, (int, float)) and isinstance(now, (int, float)):
        return abs(before - now) <= ROUGH_SHARE * abs(before)
    return before == now
