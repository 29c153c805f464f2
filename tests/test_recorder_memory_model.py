"""The engine's memory model, asked of the installed version for real caches."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cbtrace.recorder.memory_model import build_handler, predicted_memory
from engines import Case, tiny_gemma2, tiny_llama

MODELS = {"llama": tiny_llama, "gemma2": tiny_gemma2}


@pytest.fixture(params=MODELS, scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A manager and its processor, with a cache and static inputs that really exist."""
    case = Case([], settings={"num_blocks": 40, "max_batch_tokens": 96})
    manager = MODELS[request.param]().init_continuous_batching(
        generation_config=case.generation_config(), continuous_batching_config=case.config()
    )
    yield SimpleNamespace(manager=manager, model=manager.model, processor=manager._create_batch_processor())


def units(cache: Any) -> int:
    return int(cache.num_sectors if hasattr(cache, "cache_allocators") else cache.num_blocks)


def changed(config: Any, **settings: Any) -> Any:
    config = copy.deepcopy(config)
    for name, value in settings.items():
        assert hasattr(config, name)
        setattr(config, name, value)
    return config


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_async_batching": True},
        {"return_logprobs": True},
        {"max_blocks_per_request": 8},
        {"max_blocks_per_request": 12, "use_async_batching": True, "return_logprobs": True},
        {"max_requests_per_batch": 3},
    ],
)
def test_the_terms_add_up_to_the_version_s_own_footprint(engine: Any, settings: dict[str, Any]):
    cache = engine.processor.cache
    config = changed(engine.processor.cb_config, **settings)
    terms, reason = predicted_memory(cache, config, engine.model)
    assert reason == ""
    handler = build_handler(cache, config, engine.model)
    assert sum(terms.values()) == handler.compute_memory_footprint(cache.max_batch_tokens, units(cache))
    assert all(type(size) is int and size >= 0 for size in terms.values())
    assert terms["kv_cache"] > 0 and terms["activation_peak"] > 0
    assert (terms["block_table"] > 0) == (config.max_blocks_per_request > 0)


def test_the_terms_are_the_tensors_that_were_allocated(engine: Any):
    """A term must not only add up: it must be the memory that its name says."""
    cache, inputs = engine.processor.cache, engine.processor.inputs_and_outputs
    terms, _ = predicted_memory(cache, engine.processor.cb_config, engine.model)
    assert terms["kv_indices"] == inputs.read_index_storage.nbytes + inputs.write_index_storage.nbytes
    masks = inputs.attention_mask or {}
    assert terms["attention_mask"] == sum(mask.nbytes for mask in masks.values()) > 0
    if hasattr(cache, "cache_allocators"):
        assert terms["kv_cache"] + terms["kv_trash"] == cache.cache_tensor.nbytes
    else:
        tensors = cache.key_cache + cache.value_cache
        allocated = sum(tensor.nbytes for tensor in tensors)
        assert terms["kv_cache"] * (cache.num_blocks + 2) == allocated * cache.num_blocks, "the trash is not charged"
    allocated = inputs._bulk_input_tensor.nbytes + inputs.output_ids.nbytes
    assert 0.7 * allocated <= terms["input_output"] <= allocated, "the engine rounds its rows up to 128 bytes"


def test_async_batching_doubles_the_static_inputs_and_nothing_else(engine: Any):
    cache, config = engine.processor.cache, engine.processor.cb_config
    sync, _ = predicted_memory(cache, changed(config, use_async_batching=False), engine.model)
    double, _ = predicted_memory(cache, changed(config, use_async_batching=True), engine.model)
    inputs = {"attention_mask", "block_table", "kv_indices", "input_output"}
    assert double == {name: size * 2 if name in inputs else size for name, size in sync.items()}


def test_flash_attention_needs_no_masks(engine: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine.processor.cache.config, "_attn_implementation_internal", "flash_attention_2")
    terms, reason = predicted_memory(engine.processor.cache, engine.processor.cb_config, engine.model)
    assert reason == ""
    assert terms["attention_mask"] == 0


def test_the_gpu_is_not_looked_at(engine: Any, monkeypatch: pytest.MonkeyPatch):
    """The handler's own constructor would empty the allocator's cache and synchronize."""
    module = importlib.import_module("transformers.generation.continuous_batching.cache")
    monkeypatch.setattr(module, "get_device_and_memory_breakdown", lambda: pytest.fail("the engine's probe ran"))
    terms, _ = predicted_memory(engine.processor.cache, engine.processor.cb_config, engine.model)
    assert terms


def test_a_version_that_wants_more_is_said_to_be_unknown(engine: Any, monkeypatch: pytest.MonkeyPatch):
    module = importlib.import_module("transformers.generation.continuous_batching.cache")

    class Newer(module.PagedAttentionMemoryHandler):
        def __init__(self, config: Any, quantized_cache_bits: int) -> None: ...

    monkeypatch.setattr(module, "PagedAttentionMemoryHandler", Newer)
    terms, reason = predicted_memory(engine.processor.cache, engine.processor.cb_config, engine.model)
    assert terms == {}
    assert "quantized_cache_bits" in reason


def test_a_formula_whose_terms_cannot_be_told_apart_is_not_shown(engine: Any, monkeypatch: pytest.MonkeyPatch):
    module = importlib.import_module("transformers.generation.continuous_batching.cache")
    handler = module.PagedAttentionMemoryHandler
    real = handler.compute_memory_footprint

    def grows_without_masks(self: Any, tokens: int, count: int) -> int:
        return int(real(self, tokens, count)) + (10**9 if self.num_attention_masks == 0 else 0)

    monkeypatch.setattr(handler, "compute_memory_footprint", grows_without_masks)
    terms, reason = predicted_memory(engine.processor.cache, engine.processor.cb_config, engine.model)
    assert terms == {}
    assert "cannot be told apart" in reason


def test_garbage_gives_a_reason_and_no_error():
    for cache in (None, object(), SimpleNamespace(cache_allocators={})):
        terms, reason = predicted_memory(cache, None, None)
        assert terms == {}
        assert reason
