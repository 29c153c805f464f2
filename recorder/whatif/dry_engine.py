"""The engine's own processor without a model behind it: real scheduler, cache bookkeeping and offloading, no memory.

The installed Transformers builds it around a model on the meta device, so that every decision is made by the code that
makes it on a GPU. Two parts are replaced: the inputs only advance the requests (the engine's own fill tensors), and the
runner computes nothing, but keeps the engine's padding and its book of captured graphs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from cbtrace.recorder.engine_watch import effective_settings
from cbtrace.recorder.model_facts import config_facts
from cbtrace.recorder.whatif.settings import EngineSettings
from cbtrace.traces.schema import Facts

_PACKAGE = "transformers.generation.continuous_batching"
END_TOKEN = 8
"""What ends a request that ended before its limit."""
_TOKEN = 7


@dataclass(frozen=True)
class Output:
    """What a request generates: one token again and again. Decisions depend on how many there are, and, where blocks of
    equal tokens are shared, on whether two requests generated the same."""

    token: int = _TOKEN
    end_after: int = 0
    """The number of the token that is an end token; 0 when its limit ends it."""


_KV_LENGTH_FLOOR = 1024
_ROOMY = 1 << 50


class DryInputs:
    """Stands in for the static inputs: advances the requests of a batch as filling its tensors would."""

    compute_stream = None
    pairs = 1

    def __init__(self, **_: Any) -> None:
        self._members: list[list[Any]] = [[] for _ in range(self.pairs)]
        self._graphs: list[dict[tuple[int, ...], bool]] = [{} for _ in range(self.pairs)]
        """By the sizes under which a graph is kept: whether it was replayed yet."""
        self.current_pair = 0
        self.use_block_table = False
        self.key: tuple[int, ...] = ()
        """Sizes under which the graph of the prepared batch is kept."""
        self.outputs: dict[str, Output] = {}
        """By request id."""

    def prepare_batch_tensors(
        self,
        requests_in_batch: list[Any],
        logits_processors: Any,
        use_decode_fast_path: bool,
        num_q_tokens: int,
        max_kv_read: int,
        use_padding: bool = False,
    ) -> None:
        """Advance every member of the batch."""
        longest = 1
        for member in requests_in_batch:
            state = member.state
            state.position_offset += member.query_length
            longest = max(longest, state.position_offset)
            if member.has_new_token:
                state.tokens_to_process = [_TOKEN]
        self._members[self.current_pair] = list(requests_in_batch)
        self.use_block_table = use_decode_fast_path
        padded = max(_KV_LENGTH_FLOOR, 1 << (longest - 1).bit_length())
        self.key = (num_q_tokens,) if use_decode_fast_path else (num_q_tokens, max_kv_read, padded)

    def get_model_kwargs(self, use_padding: bool = False) -> dict[str, Any]:
        """Nothing is computed from them."""
        return {}

    def prepare_batch_update(self) -> tuple[list[Any], list[int], None]:
        """The members of the batch whose results are due, and their tokens."""
        members = self._members[self.current_pair]
        return members, [self._token_of(member.state) for member in members if member.has_new_token], None

    def _token_of(self, state: Any) -> int:
        before = len(state.initial_tokens) - state._true_initial_tokens if state._true_initial_tokens else 0
        number = before + len(state.generated_tokens) + 1
        output = self.outputs.get(state.request_id, Output())
        return END_TOKEN if number == output.end_after else output.token

    def retrieve_device_outputs(self) -> None:
        """Results are there at once."""

    def has_graph(self) -> bool:
        """Whether the prepared batch's sizes were captured before."""
        return self.key in self._graphs[self.current_pair]

    def keep_graph(self) -> None:
        """They are from now on."""
        self._graphs[self.current_pair][self.key] = False

    def is_first_replay(self) -> bool:
        """Whether the graph of these sizes was captured and never replayed."""
        return self._graphs[self.current_pair].get(self.key) is False

    def replay_graph(self) -> None:
        """It is now."""
        self._graphs[self.current_pair][self.key] = True

    def reset(self) -> None:
        """Forget the batches under way."""
        self._members = [[] for _ in range(self.pairs)]


class DryAsyncInputs(DryInputs):
    """Two sets in turn: a batch's results are due after the next one was launched. Each keeps graphs of its own."""

    pairs = 2

    def retrieve_device_outputs(self) -> None:
        """Turn to the other set."""
        self.current_pair = 1 - self.current_pair


class _NoOutput:
    def deliver(self, _output: Any) -> None: ...

    def deliver_batch(self, _outputs: Any) -> None: ...

    def fail_and_deliver(self, _state: Any, _error: Exception) -> None: ...


@dataclass
class DryEngine:
    """A manager that was never started, and its processor: prepare, generate and update are called by hand."""

    manager: Any
    processor: Any
    is_async: bool

    @property
    def resolved(self) -> Facts:
        """What the engine made of the settings that it chooses itself."""
        config = config_facts(self.manager.continuous_batching_config)
        return {key: config[key] for key in ("num_blocks", "max_batch_tokens")} | effective_settings(self.processor)


def build_dry_engine(model: Facts, settings: EngineSettings) -> DryEngine:
    """Build the engine that would serve a model of these facts (:attr:`~cbtrace.traces.schema.Engine.model`).

    What the engine raises at settings it refuses, or at a cache that does not fit, is passed on.
    """
    import torch
    from transformers import GenerationConfig, LlamaForCausalLM

    schedulers = import_module(f"{_PACKAGE}.scheduler").SCHEDULER_MAPPING
    if settings.facts.get("scheduler_type") not in schedulers:
        raise ValueError(f"its schedulers are {', '.join(schedulers)}")
    api = import_module(f"{_PACKAGE}.continuous_api")
    with torch.device("meta"):
        stand_in = LlamaForCausalLM(_stand_in_config(model)).to(getattr(torch, str(model["dtype"])))
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=1)
    manager = api.ContinuousBatchingManager(stand_in, generation, settings.dry_config())
    manager.output_router = _NoOutput()
    manager.distributed_helper.set_tp_seed = lambda *_: None
    # What the engine reckons its memory with: neither is to be had here when the manager is made.
    stand_in.config._attn_implementation = str(model["attention"])
    manager.continuous_batching_config.use_async_batching = settings.is_async
    with (
        _without_memory(settings),
        patch.object(api, "ContinuousBatchingIOs", DryInputs),
        patch.object(api, "ContinuousBatchingAsyncIOs", DryAsyncInputs),
    ):
        processor = manager._create_batch_processor()
    processor.use_async_batching = settings.is_async
    _dry_runner(processor, settings)
    return DryEngine(manager, processor, settings.is_async)


def _stand_in_config(model: Facts) -> Any:
    """A Llama with the model's KV geometry: the scheduler sees nothing else of a model."""
    from transformers import LlamaConfig

    kinds = {key.removeprefix("layers."): int(str(count)) for key, count in model.items() if key.startswith("layers.")}
    config = LlamaConfig(
        hidden_size=model["hidden_size"],
        intermediate_size=model["intermediate_size"],
        num_hidden_layers=model["layers"],
        num_attention_heads=model["heads"],
        num_key_value_heads=model["kv_heads"],
        head_dim=model["head_dim"],
        vocab_size=model["vocabulary"],
        attn_implementation="sdpa",
    )
    config.layer_types = [kind for kind, count in kinds.items() for _ in range(count)]
    if isinstance(model.get("sliding_window"), int):
        config.sliding_window = model["sliding_window"]
    return config


@contextlib.contextmanager
def _without_memory(settings: EngineSettings) -> Iterator[None]:
    """The engine asks for the device's memory and, for offloading, pins memory of the host: give it numbers instead."""
    import psutil
    import torch

    cache = import_module(f"{_PACKAGE}.cache")
    offloading = import_module(f"{_PACKAGE}.offloading_manager")
    breakdown = (torch.device("cpu"), settings.device_bytes or _ROOMY, *settings.device_taken)
    torch_for_pool = _TorchWithoutPinning(torch)
    memory = SimpleNamespace(available=_ROOMY, total=_ROOMY)
    with (
        patch.object(cache, "get_device_and_memory_breakdown", lambda: breakdown),
        patch.object(offloading, "torch", torch_for_pool),
        patch.object(psutil, "virtual_memory", lambda: memory),
    ):
        yield


class _TorchWithoutPinning:
    """Torch, but for the pool of offloaded blocks, which is made on the meta device."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def empty(self, *sizes: Any, pin_memory: bool = False, **options: Any) -> Any:
        return self._torch.empty(*sizes, **options, **({"device": "meta"} if pin_memory else {}))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


def _dry_runner(processor: Any, settings: EngineSettings) -> None:
    runner, inputs = processor.model_runner, processor.inputs_and_outputs
    runner.use_cuda_graph_varlen, runner.use_cuda_graph_decode = settings.graphs
    runner.pad_inputs = any(settings.graphs) or settings.compiled
    runner._capture_graph = inputs.keep_graph

    def compute_batch(_model: Any, _batch_data: Any) -> None:
        uses_graph = runner.use_cuda_graph_decode if inputs.use_block_table else runner.use_cuda_graph_varlen
        if uses_graph and inputs.has_graph():
            inputs.replay_graph()
        elif uses_graph:
            runner._capture_graph()

    runner.compute_batch = compute_batch
