"""An engine's settings as a trace holds them, with some of them changed, as the engine takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cbtrace.recorder.facts import UNSET
from cbtrace.recorder.whatif.errors import ReplayError
from cbtrace.traces import Trace
from cbtrace.traces.schema import Engine, Facts, Scalar

_SIZING = frozenset({"max_batch_tokens", "block_size", "page_size"})
"""What the engine's own choice of the number of blocks depends on."""
_NOT_FOR_REPLAY = ("use_cuda_graph", "use_async_batching", "varlen_compile_config", "decode_compile_config")
"""These change how a batch is run, which a replay does not do; the order of calls is the replay's own."""
CHANGEABLE: dict[str, type] = {
    "num_blocks": int,
    "block_size": int,
    "page_size": int,
    "max_batch_tokens": int,
    "max_requests_per_batch": int,
    "safety_margin": float,
    "scheduler_type": str,
    "allow_block_sharing": bool,
    "use_async_batching": bool,
    "use_cuda_graph": bool,
    "q_padding_interval_size": int,
    "kv_padding_interval_size": int,
    "cpu_offload_space": float,
}
"""Settings whose effect a replay can tell, and of which type each is."""
SCHEDULERS = ("fifo", "prefill_first")
"""Values of ``scheduler_type``."""
SHARES = ("safety_margin",)
"""Settings that are shares, from 0 to 1."""
_GIB = 1 << 30


@dataclass(frozen=True)
class EngineSettings:
    """Resolved settings of an engine. Sizes of memory are bytes; 0 is unknown."""

    facts: Facts
    device_bytes: int = 0
    device_taken: tuple[int, int] = (0, 0)
    """Reserved and allocated on the device before the cache was made."""

    @classmethod
    def of(cls, engine: Engine) -> EngineSettings:
        """The settings that an engine was recorded with."""
        return cls(dict(engine.resolved))

    def changed(self, trace: Trace, changes: Mapping[str, Scalar]) -> EngineSettings:
        """These with other values for some, on the device of the trace.

        What the engine chose by itself stays as it chose it, except what it would choose anew: the safety margin of
        another scheduler, and the number of blocks where it depends on what changes and the device's memory is known.

        Raises:
            ReplayError: the effect of one of them cannot be told.
        """
        for key in changes:
            if key not in CHANGEABLE or key not in self.facts:
                known = ", ".join(name for name in CHANGEABLE if name in self.facts)
                raise ReplayError(
                    f"What another {key} would do cannot be told from a recording of this engine. "
                    f"What can be changed: {known}.",
                    slug="whatif-setting",
                )
        _check_host_memory(trace, changes)
        if changes.get("use_cuda_graph") is True and not any(self.graphs):
            raise ReplayError(
                f"{trace.path.name} is of an engine without CUDA graphs, so that the sizes to which batches would "
                "be padded are not known: name a recording with graphs first.",
                slug="whatif-setting",
            )
        device = device_before_cache(trace)
        anew = {"safety_margin"} if "scheduler_type" in changes else set()
        if device is not None and changes.keys() & _SIZING:
            anew.add("num_blocks")
        requested = trace.engines[0].requested
        kept = {
            key: value for key, value in self.facts.items() if key not in anew or requested.get(key, UNSET) != UNSET
        }
        total, *taken = device or (0, 0, 0)
        return EngineSettings(kept | dict(changes), total, (taken[0], taken[1]))

    @property
    def is_async(self) -> bool:
        """Whether a batch is launched before the results of the last one are applied."""
        return self.facts.get("use_async_batching") is True

    @property
    def graphs(self) -> tuple[bool, bool]:
        """Whether CUDA graphs are used: for batches of any kind, and on the decode fast path."""
        value = str(self.facts.get("use_cuda_graph", False)).split(",")
        return value[0] == "True", value[-1] == "True"

    @property
    def compiled(self) -> bool:
        """Whether the forward pass is compiled, which pads batches as graphs do."""
        return any(str(key).startswith(("varlen_compile_config.", "decode_compile_config.")) for key in self.facts)

    def dry_config(self) -> Any:
        """The engine's configuration, for an engine that computes nothing."""
        from transformers.generation import ContinuousBatchingConfig

        known = {f.name for f in dataclasses.fields(ContinuousBatchingConfig)}
        values = {
            name: value
            for name, value in self.facts.items()
            if name in known and name not in _NOT_FOR_REPLAY and value != UNSET
        }
        return ContinuousBatchingConfig(**values, use_cuda_graph=False, use_async_batching=False)


def _check_host_memory(trace: Trace, changes: Mapping[str, Scalar]) -> None:
    """Its unit is GiB: who means MiB asks for more than any host has."""
    asked, there = changes.get("cpu_offload_space"), trace.header.fingerprint.get("hardware.ram_bytes")
    if isinstance(asked, (int, float)) and isinstance(there, int) and asked * _GIB > there:
        raise ReplayError(
            f"cpu_offload_space is in GiB, and {asked:,g} is more than the {there / _GIB:,.0f} GiB of memory that the "
            "recorded host has: choose less.",
            slug="whatif-setting",
        )


def device_before_cache(trace: Trace) -> tuple[int, int, int] | None:
    """Bytes of the device, reserved and allocated on it when the cache was about to be made; None when unknown."""
    memory = trace.memory
    if "model_loaded" not in memory.mark:
        return None
    row = memory.mark.index("model_loaded")
    found = (int(memory.device_total[row]), int(memory.reserved[row]), int(memory.allocated[row]))
    return found if min(found) >= 0 else None
