"""Real engines small enough for tests: random weights from a fixed seed, on the CPU."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import Gemma2Config, Gemma2ForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation import ContinuousBatchingConfig

from cbtrace.recorder import record
from cbtrace.site.analysis.cut_check import check_cuts
from cbtrace.traces import Trace, open_trace

torch.set_num_threads(1)

VERSION = transformers.__version__
BLOCK = 16
VOCABULARY = 512


def tiny_llama() -> Any:
    """Full attention only: prefixes are shared."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
    )
    return LlamaForCausalLM(config).eval()


def tiny_gemma2() -> Any:
    """Four sliding-window layers and two of full attention."""
    torch.manual_seed(0)
    config = Gemma2Config(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=VOCABULARY,
        sliding_window=32,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    )
    return Gemma2ForCausalLM(config).eval()


def prompts(count: int, shortest: int, longest: int, seed: int = 1) -> list[list[int]]:
    """Random prompts without a common prefix."""
    source = random.Random(seed)
    return [[source.randrange(VOCABULARY) for _ in range(source.randrange(shortest, longest))] for _ in range(count)]


@dataclass
class Case:
    """One workload on one engine: what to send and how the engine is set."""

    inputs: list[list[int]]
    new_tokens: int = 48
    settings: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)

    def config(self) -> Any:
        """Small blocks, so that a short run fills the cache; a share of memory that cannot exhaust the machine."""
        settings = {"num_blocks": 64, "max_batch_tokens": 64, "max_memory_percent": 0.05} | self.settings
        size = "page_size" if hasattr(ContinuousBatchingConfig, "page_size") else "block_size"
        return ContinuousBatchingConfig(**{size: BLOCK} | settings)

    def generation_config(self) -> Any:
        """Greedy, without an end token unless the case has one."""
        settings = {"max_new_tokens": self.new_tokens, "do_sample": False, "eos_token_id": -1} | self.generation
        return GenerationConfig(**settings)

    def run(self, model: Any, **options: Any) -> dict[str, list[int]]:
        """Generate; return the tokens by request id, in the engine's order."""
        outputs = model.generate_batch(
            self.inputs,
            generation_config=self.generation_config(),
            continuous_batching_config=self.config(),
            progress_bar=False,
            **options,
        )
        return {request_id: output.generated_tokens for request_id, output in outputs.items()}

    def run_at_once(self, model: Any) -> dict[str, list[int]]:
        """Generate with every request queued before the loop starts: the schedule then is the same every time."""
        manager = model.init_continuous_batching(
            generation_config=self.generation_config(), continuous_batching_config=self.config()
        )
        ids = manager.add_requests(self.inputs, max_new_tokens=self.new_tokens)
        manager.start()
        outputs = {output.request_id: output.generated_tokens for output in drain(manager, len(ids))}
        manager.stop(block=True, timeout=30)
        return {request_id: outputs[request_id] for request_id in ids}

    @contextlib.contextmanager
    def manager(self, model: Any) -> Any:
        """A started manager that is stopped at the end."""
        manager = model.init_continuous_batching(
            generation_config=self.generation_config(), continuous_batching_config=self.config()
        )
        manager.start()
        try:
            yield manager
        finally:
            manager.stop(block=True, timeout=30)


def recorded(case: Case, model: Any, path: Path, **options: Any) -> tuple[Trace, dict[str, list[int]]]:
    """Run a case under recording. Whatever it was, the cuts of its TTFTs and token gaps add up to the nanosecond."""
    with record(path, **options):
        tokens = case.run_at_once(model)
    trace = open_trace(path)
    assert [finding.meaning for finding in check_cuts(trace) if finding.slug == "cuts-not-conserved"] == []
    return trace, tokens


def drain(manager: Any, count: int) -> list[Any]:
    """Take results until ``count`` requests have finished or the engine has died."""
    finished: list[Any] = []
    while len(finished) < count and manager.is_running():
        result = manager.get_result(timeout=0.5)
        if result is not None and (result.is_finished() or result.error is not None):
            finished.append(result)
    return finished
