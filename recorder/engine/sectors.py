"""The cache of Transformers 5.20 and newer: sectors handed to one allocator an attention type, cut into blocks."""

from __future__ import annotations

import math
import struct
from typing import Any

from cbtrace.traces.schema import KvGeometry, KvGroup

_NOBODY = "__cbtrace_nobody__"
"""An id no request has: the engine's own arithmetic for a fresh request then starts from an empty block table."""


class SectorsKv:
    """A unit is the largest number of bytes that divides every allocator's block."""

    name = "sectors"

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.geometry = _geometry(cache)
        self.cache_budget = int(cache.max_tokens_read)
        unit = self.geometry.unit_bytes
        self._sector_units = cache.bytes_per_sector // unit
        self._allocators = [(a, a.index, a.bytes_per_block // unit) for a in cache.cache_allocators.values()]

    def free_and_cached(self) -> tuple[int, int]:
        """Free sectors, and free blocks inside sectors that an allocator owns, both count as free."""
        pool = self.cache.pool
        free = len(pool.free_sectors) * self._sector_units
        cached = 0
        for allocator, index, units in self._allocators:
            free += pool.count_free_blocks(index) * units
            cached += len(allocator.ledger.cached_blocks) * units
        return free, cached

    def groups(self) -> bytes | None:
        """Free blocks inside one type's sectors are of no use to another: that is why they are told apart."""
        if len(self._allocators) == 1:
            return None
        pool = self.cache.pool
        pairs = [
            value
            for allocator, index, _ in self._allocators
            for value in (pool.count_free_blocks(index), len(allocator.ledger.cached_blocks))
        ]
        return struct.pack(f"<{len(pairs)}i", *pairs)

    def held(self, request_id: str) -> tuple[int, int]:
        """Length of the request's block tables, over all allocators."""
        blocks = units = 0
        for allocator, _, block_units in self._allocators:
            length = len(allocator.block_table.get(request_id, ()))
            blocks += length
            units += length * block_units
        return blocks, units * self.geometry.unit_bytes

    def can_ever_hold(self, tokens: int) -> bool:
        """Sectors a fresh request needs, each allocator rounded up to whole sectors, against all there are."""
        sectors = sum(
            math.ceil(allocator.needs_new_blocks(_NOBODY, 0, tokens) / allocator.blocks_per_sector)
            for allocator, _, _ in self._allocators
        )
        return bool(sectors <= self.cache.num_sectors)

    def margin_met(self, margin: float) -> bool:
        """Free bytes, cached ones excluded, against the margin's share of all."""
        return bool(self.cache.compute_free_capacity() >= margin)


def _geometry(cache: Any) -> KvGeometry:
    allocators = list(cache.cache_allocators.values())
    unit = math.gcd(cache.bytes_per_sector, *(a.bytes_per_block for a in allocators))
    capacity = cache.num_sectors * cache.bytes_per_sector
    whole_model = sum(a.bytes_per_page // a.tokens_per_page * len(a.layer_indices) for a in allocators)
    return KvGeometry(
        unit_bytes=unit,
        capacity_units=capacity // unit,
        # Two more sectors than can be given out lie in the tensor, for padding to read from and write to.
        reserved_bytes=2 * cache.bytes_per_sector,
        capacity_tokens=capacity // whole_model,
        groups=[
            KvGroup(
                name=a.layer_type,
                layers=len(a.layer_indices),
                block_bytes=a.bytes_per_block,
                tokens_per_block=a.tokens_per_page,
                window=int(getattr(a, "sliding_window", -1)),
            )
            for a in allocators
        ],
        unit_name="block" if len(allocators) == 1 and unit == allocators[0].bytes_per_block else "unit",
    )
