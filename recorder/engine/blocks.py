"""The cache of Transformers 5.14 to 5.17: one pool of equal blocks, drawn on by every group of layers."""

from __future__ import annotations

import math
from typing import Any

from cbtrace.traces.schema import KvGeometry, KvGroup


class BlocksKv:
    """A unit is a block: ``block_size`` tokens for the layers of one group."""

    name = "blocks"

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.geometry = _geometry(cache)
        self.cache_budget = int(cache.num_pages)
        self._manager = cache._block_manager

    def free_and_cached(self) -> tuple[int, int]:
        """The engine counts cached blocks as free; here they are apart."""
        manager = self._manager
        return len(manager._uninit_block_ids), len(manager._init_block_ids)

    def groups(self) -> bytes | None:
        """All groups share the pool, so there is nothing to tell apart."""
        return None

    def held(self, request_id: str) -> tuple[int, int]:
        """Length of the request's block tables, over all groups."""
        blocks = sum(len(group.block_table.get(request_id, ())) for group in self.cache.group_cache_managers)
        return blocks, blocks * self.geometry.unit_bytes

    def can_ever_hold(self, tokens: int) -> bool:
        """Ask the engine's own count of the blocks that a fresh request needs."""
        blocks = math.ceil(tokens / self.cache.block_size)
        return bool(self.cache.blocks_needed(blocks, 0) <= self.cache.num_blocks)

    def margin_met(self, margin: float) -> bool:
        """Free blocks, cached ones included, against the margin's share of all."""
        return bool(self.cache.get_num_free_blocks() >= margin * self.cache.num_blocks)


def _geometry(cache: Any) -> KvGeometry:
    layers_per_group = len(cache.key_cache)
    item = cache.key_cache[0].element_size()
    token_bytes = 2 * cache.num_key_value_heads * cache.head_dim * item
    block_bytes = layers_per_group * cache.block_size * token_bytes
    groups = [
        KvGroup(
            name="sliding_attention" if hasattr(group, "sliding_window") else "full_attention",
            layers=layers_per_group,
            block_bytes=block_bytes,
            tokens_per_block=cache.block_size,
            window=int(getattr(group, "sliding_window", -1)),
        )
        for group in cache.group_cache_managers
    ]
    whole_model = layers_per_group * len(groups) * token_bytes
    return KvGeometry(
        unit_bytes=block_bytes,
        capacity_units=cache.num_blocks,
        # Two more blocks than can be given out lie in the tensors, for padding to read from and write to.
        reserved_bytes=2 * block_bytes,
        capacity_tokens=cache.num_blocks * block_bytes // whole_model,
        groups=groups,
    )
