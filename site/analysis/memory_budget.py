"""Where the memory of the GPU went: measured terms that add up to the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cbtrace.traces.columns import MemorySamples

STAGES = (
    ("weights", None, "model_loaded"),
    ("kv_cache", "model_loaded", "cache_created"),
    ("static_inputs", "cache_created", "inputs_created"),
    ("warm_up", "inputs_created", "before_first_request"),
)
"""Terms that stay: what was allocated between two marks."""

PREDICTED = {
    "kv_cache": ("kv_cache", "kv_trash"),
    "static_inputs": ("input_output", "attention_mask", "block_table", "kv_indices"),
    "activations": ("logits_rows", "activation_peak", "cache_reads"),
}
"""Measured terms, and those of the engine's own memory model that forecast them. It charges for no other."""


@dataclass(frozen=True)
class MemoryTerm:
    """One part of the memory. ``bytes`` may be negative where something was given back."""

    name: str
    bytes: int


@dataclass(frozen=True)
class MemoryBudget:
    """Measured terms; together with ``unattributed`` they add up to ``device_total``."""

    terms: list[MemoryTerm]
    unattributed: int
    device_total: int


@dataclass(frozen=True)
class MarkRow:
    """Memory at one budget mark; -1 unknown."""

    mark: str
    allocated: int
    reserved: int
    device_used: int
    host_rss: int


def marks(memory: MemorySamples) -> list[MarkRow]:
    """The budget marks in order of time."""
    rows = [i for i in np.argsort(memory.time_ns, kind="stable").tolist() if memory.mark[i]]
    return [
        MarkRow(
            memory.mark[i],
            int(memory.allocated[i]),
            int(memory.reserved[i]),
            int(memory.device_used[i]),
            int(memory.host_rss[i]),
        )
        for i in rows
    ]


def forecast(term: str, predicted: Mapping[str, int]) -> int | None:
    """What the engine's memory model says of a measured term; ``None`` when it says nothing."""
    found = [predicted[name] for name in PREDICTED.get(term, ()) if name in predicted]
    return sum(found) if found else None


def memory_budget(memory: MemorySamples) -> MemoryBudget | None:
    """The budget at the moment when most of the device was used; ``None`` when the device was not measured."""
    plain = np.array([not mark for mark in memory.mark], dtype=bool)
    measured = np.flatnonzero(plain & (memory.device_used >= 0) & (memory.device_total > 0) & (memory.reserved >= 0))
    at_mark = {memory.mark[i]: int(memory.allocated[i]) for i in range(len(memory.mark)) if memory.mark[i]}
    names = [mark for _, before, after in STAGES for mark in (before, after) if mark]
    if not len(measured) or any(at_mark.get(mark, -1) < 0 for mark in names):
        return None
    fullest = measured[np.argmax(memory.device_used[measured])]
    total, used = int(memory.device_total[fullest]), int(memory.device_used[fullest])
    resident = at_mark["before_first_request"]
    peak = int(max(memory.peak_allocated[measured].max(), resident))
    reserved = int(memory.reserved[fullest])
    terms = [MemoryTerm(name, at_mark[after] - (at_mark[before] if before else 0)) for name, before, after in STAGES]
    terms += [
        MemoryTerm("activations", peak - resident),
        MemoryTerm("allocator_slack", max(reserved - peak, 0)),
        MemoryTerm("outside_allocator", max(used - reserved, 0)),
        MemoryTerm("free", total - used),
    ]
    return MemoryBudget(terms, total - sum(term.bytes for term in terms), total)
