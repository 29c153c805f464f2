"""The interface to an engine's KV cache: how much is free, what a request holds, what would never fit."""

from __future__ import annotations

from typing import Any, Protocol

from cbtrace.traces.schema import KvGeometry


class KvAdapter(Protocol):
    """Reads a cache without touching it. Called on the generation thread, several times a step: keep it cheap."""

    name: str
    geometry: KvGeometry
    cache: Any
    cache_budget: int
    """KV entries that a batch off the decode fast path may read."""

    def free_and_cached(self) -> tuple[int, int]:
        """Return (free, cached) units. Cached units hold a reusable prefix and belong to no request."""

    def groups(self) -> bytes | None:
        """Return (free, cached) blocks for each group as packed int32 pairs; None when groups share one pool."""

    def held(self, request_id: str) -> tuple[int, int]:
        """Return (blocks, bytes) that a request holds over all groups, shared ones included."""

    def can_ever_hold(self, tokens: int) -> bool:
        """Return whether an otherwise empty cache could hold one request of so many tokens."""

    def margin_met(self, margin: float) -> bool:
        """Return whether the free share is at least ``margin``, as the engine counts it."""


def adapter_for(cache: Any) -> KvAdapter:
    """Choose by what the cache can do, not by version number: an unknown version may still be one of the two."""
    from cbtrace.recorder.engine.blocks import BlocksKv
    from cbtrace.recorder.engine.sectors import SectorsKv

    return SectorsKv(cache) if hasattr(cache, "cache_allocators") else BlocksKv(cache)
