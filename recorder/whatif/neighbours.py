"""Settings worth a look when none is named: those around what a recording was run with, one change at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

from cbtrace.recorder.whatif.settings import CHANGEABLE, SCHEDULERS
from cbtrace.traces import Trace
from cbtrace.traces.schema import EventKind, Facts, Scalar

_BLOCKS = (0.5, 0.75, 1.0, 1.5, 2.0)
_TOKENS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 2.0)
_LEAST_TOKENS = 64
_MARGINS = (0.0, 0.15, 0.3, 0.5)
_OFFLOAD_GIB = 2.0


def neighbours(trace: Trace) -> list[dict[str, Scalar]]:
    """Changes to try, each once. What does not apply to the recorded engine, or changes nothing, is not among them."""
    resolved = trace.engines[0].resolved if trace.engines else {}
    return [
        {key: value}
        for key, value in dict.fromkeys(_tried(trace, resolved))
        if key in resolved and key in CHANGEABLE and resolved[key] != value
    ]


def _tried(trace: Trace, resolved: Facts) -> Iterator[tuple[str, Scalar]]:
    blocks, tokens = resolved.get("num_blocks"), resolved.get("max_batch_tokens")
    if isinstance(blocks, int):
        # Of a cache that was never nearly full, only sizes near what was used can make a difference.
        used = min(blocks, math.ceil(1.25 * _largest_use(trace) * blocks))
        yield from (("num_blocks", max(2, round(used * by))) for by in _BLOCKS)
    if isinstance(tokens, int):
        yield from (("max_batch_tokens", max(_LEAST_TOKENS, round(tokens * by))) for by in _TOKENS)
    yield from (("safety_margin", margin) for margin in _MARGINS)
    yield from (("scheduler_type", name) for name in SCHEDULERS)
    if str(trace.engines[0].model.get("device", "")).startswith("cuda"):
        yield "use_async_batching", resolved.get("use_async_batching") is not True
    if (trace.events.kind == EventKind.SOFT_RESET).any():
        yield "cpu_offload_space", _OFFLOAD_GIB


def _largest_use(trace: Trace) -> float:
    """The largest share of the KV cache that requests held."""
    steps = trace.steps
    capacity = steps.kv_used + steps.kv_free + steps.kv_cached
    return float((steps.kv_used / capacity.clip(1)).max(initial=0.0))
