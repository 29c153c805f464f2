"""The engine's own forecast of its memory, term by term.

Before it makes its cache, the engine solves a formula for how many tokens and blocks fit: the class
``PagedAttentionMemoryHandler`` of ``transformers.generation.continuous_batching.cache``. We ask the installed version's
formula, at the sizes that were settled on, and split its answer into terms: a term is what the answer loses when the
thing it pays for is taken out of the handler (no attention masks, no cache groups, no input buffers). So the terms
follow the installed version, whatever its coefficients, and add up to its ``compute_memory_footprint`` exactly.

What no version charges is in no term: graph pools, warm-up workspaces, the CPU pool, copies made while forking, and,
up to 5.17, the cache's two trash blocks. The configuration is the resolved one; the engine settles
``max_requests_per_batch`` and ``max_blocks_per_request`` only after the cache is made, so it may have planned with
larger ones.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

_MODULE = "transformers.generation.continuous_batching.cache"


def predicted_memory(cache: Any, cb_config: Any, model: Any) -> tuple[dict[str, int], str]:
    """Bytes by term at the cache's own sizes, and why there are none (``""`` when there are). Never raises.

    ``cache`` is the engine's ``PagedAttentionCache``, ``cb_config`` the resolved configuration, ``model`` the model it
    serves. The terms: ``kv_cache``, ``kv_trash`` (5.20 and newer), ``attention_mask``, ``block_table``, ``kv_indices``
    (read and write), ``input_output`` (packed inputs and outputs), ``logits_rows`` and ``cache_reads`` (5.20 and newer;
    before, part of the next), ``activation_peak``.
    """
    try:
        handler = build_handler(cache, cb_config, model)
        if hasattr(cache, "cache_allocators"):
            return _sector_terms(handler, cache.max_batch_tokens, cache.num_sectors), ""
        return _block_terms(handler, cache.max_batch_tokens, cache.num_blocks), ""
    except Exception as error:
        return {}, f"the engine's memory model cannot be asked: {type(error).__name__}: {error}"


def build_handler(cache: Any, cb_config: Any, model: Any) -> Any:
    """The installed version's memory handler for an existing cache, without its look at the GPU (which empties the
    allocator's cache and synchronizes). Raises when the version wants something we do not know."""
    module = importlib.import_module(_MODULE)
    handler = type("Handler", (module.PagedAttentionMemoryHandler,), {"get_available_memory": lambda self: 0})
    known = _sector_arguments(cache, model) if hasattr(cache, "cache_allocators") else _block_arguments(cache, module)
    known |= {
        "config": cache.config,
        "cb_config": cb_config,
        "continuous_batching_config": cb_config,
        "dtype": cache.dtype,
    }
    return handler(**{name: known[name] for name in inspect.signature(handler).parameters})


def _block_arguments(cache: Any, module: Any) -> dict[str, Any]:
    groups, types = module.group_layers_by_attn_type(cache.config)
    return {"group_types": types, "group_size": len(groups[0])}


def _sector_arguments(cache: Any, model: Any) -> dict[str, Any]:
    heads = getattr(cache.config, "num_key_value_heads", None) or cache.config.num_attention_heads
    allocator = next(iter(cache.cache_allocators.values()))
    slices_logits = getattr(model, "_supports_logits_to_keep", None)
    return {
        "bytes_per_sector": cache.bytes_per_sector,
        "tokens_per_sector": cache.tokens_per_sector,
        "bytes_per_block": 0,  # only read while the size is being chosen
        "attn_types": list(cache.cache_allocators),
        "model_supports_logits_to_keep": callable(slices_logits) and slices_logits(),
        "kv_tp_size": heads // allocator.num_key_value_heads,
    }


def _block_terms(handler: Any, tokens: int, blocks: int) -> dict[str, int]:
    def footprint() -> int:
        return int(handler.compute_memory_footprint(tokens, blocks))

    total = footprint()
    terms = {"kv_cache": total - _without(handler, "group_size", footprint)}
    terms |= _buffer_terms(handler, footprint)
    return _with_rest(terms, total)


def _sector_terms(handler: Any, tokens: int, sectors: int) -> dict[str, int]:
    def footprint() -> int:
        return int(handler.compute_memory_footprint(tokens, sectors))

    terms = {"kv_cache": sectors * handler.bytes_per_sector, "kv_trash": handler.trash_bytes}
    terms |= _buffer_terms(handler, footprint)
    terms["logits_rows"] = handler.fixed_overhead_bytes - handler.trash_bytes
    # Each readable token costs its copy at the attention peak and its read index; the index is an input buffer.
    copy_bytes = _without(handler, "io_multiplier", lambda: handler.bytes_per_cache_token)
    terms["cache_reads"] = sectors * handler.tokens_per_sector * copy_bytes
    return _with_rest(terms, footprint())


def _buffer_terms(handler: Any, footprint: Callable[[], int]) -> dict[str, int]:
    """The static inputs; both generations charge each of them ``io_multiplier`` times (2 when batching is async)."""
    total = footprint()
    masks = total - _without(handler, "num_attention_masks", footprint)
    tables = total - _without(handler, "max_blocks_per_request", footprint)
    indices = total - _without(handler, "num_groups", footprint) - tables
    buffers = total - _without(handler, "io_multiplier", footprint)
    return {
        "attention_mask": masks,
        "block_table": tables,
        "kv_indices": indices,
        "input_output": buffers - masks - tables - indices,
    }


def _without(handler: Any, attribute: str, measure: Callable[[], int]) -> int:
    """What ``measure`` gives with ``attribute`` of the handler at zero."""
    value = getattr(handler, attribute)
    setattr(handler, attribute, 0)
    try:
        return measure()
    finally:
        setattr(handler, attribute, value)


def _with_rest(terms: dict[str, int], total: int) -> dict[str, int]:
    """What no other term pays for is the activation peak; a term below zero means that the formula has changed."""
    terms["activation_peak"] = total - sum(terms.values())
    if min(terms.values()) < 0:
        raise ValueError("its terms cannot be told apart in this version")
    return terms
