"""An engine's settings as a trace holds them, with some of them changed, as the engine takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cbtrace.recorder.facts import UNSET
from cbtrace.traces.schema import Engine, Facts, Scalar

_NOT_FOR_REPLAY = ("use_cuda_graph", "use_async_batching", "varlen_compile_config", "decode_compile_config")
"""These change how a batch is run, which a replay does not do; the order of calls is the replay's own."""


@dataclass(frozen=True)
class EngineSettings:
    """Resolved settings of an engine. Sizes of memory are bytes; 0 is unknown."""

    facts: Facts
    device_bytes: int = 0
    device_taken: tuple[int, int] = (0, 0)
    """Reserved and allocated on the device before the cache was made."""
    host_bytes: int = 0

    @classmethod
    def of(cls, engine: Engine, **memory: Any) -> EngineSettings:
        """The settings that an engine was recorded with."""
        return cls(dict(engine.resolved), **memory)

    def with_changes(self, changes: Mapping[str, Scalar]) -> EngineSettings:
        """The same with other values for some."""
        return dataclasses.replace(self, facts=self.facts | dict(changes))

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
