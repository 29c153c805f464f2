"""The demo's runs: a small model with random weights, the same requests under three settings, really executed.

Nothing is downloaded and any device will do. The tokens mean nothing; scheduling, KV pressure and times are real.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbtrace.recorder.errors import RecordError
from cbtrace.recorder.session import record

REQUESTS = 40
NEW_TOKENS = 64
BLOCK_TOKENS = 16
SEED = 20260101

_VOCABULARY = 512
_PROMPT_TOKENS = (16, 96)
_AUTOMATIC_BYTES = 1536 << 20


@dataclass(frozen=True)
class DemoRun:
    """One run of the demo. ``settings`` are what it changes in the automatic configuration."""

    slug: str
    name: str
    settings: Mapping[str, int]


RUNS = (
    DemoRun("automatic", "automatic", {}),
    DemoRun("few-kv-blocks", "few KV blocks", {"num_blocks": 48}),
    DemoRun("few-batch-tokens", "few batch tokens", {"max_batch_tokens": 64}),
)


def record_demo(folder: Path, progress: Callable[[int, int, str], None] | None = None) -> list[Path]:
    """Record the runs of :data:`RUNS` into ``folder``, which exists, and return their traces in that order.

    Traces of an earlier demo are replaced. ``progress`` is told, before each part, how many are done, how many there
    are, and what comes next.

    Raises:
        RecordError: PyTorch or Transformers is missing.
        CbtraceError: a trace cannot be written.
    """
    tell = progress or (lambda _done, _total, _name: None)
    tell(0, len(RUNS) + 1, "making the model")
    model = _model()
    prompts = _prompts()
    # Their warnings about warm-up and progress say nothing about this demo.
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    # What only the first run of a process pays (libraries, thread pools) would make the first settings look slow.
    _generate(model, prompts, {"num_blocks": 256, "max_batch_tokens": 256})
    traces = []
    for number, run in enumerate(RUNS, 1):
        tell(number, len(RUNS) + 1, run.name)
        path = folder / f"{run.slug}.cbt"
        with record(path, name=run.name, tags={"demo": run.slug}, overwrite=True):
            _generate(model, prompts, run.settings)
        traces.append(path)
    return traces


def _model() -> Any:
    """A Llama of 1.1 million parameters."""
    try:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise RecordError(
            f'The demo runs a model and needs {error.name}: run pip install "cbtrace[record]".',
            slug="record-extra-missing",
        ) from error
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    return LlamaForCausalLM(config).eval().to("cuda" if torch.cuda.is_available() else "cpu")


def _prompts() -> list[list[int]]:
    import torch

    generator = torch.Generator().manual_seed(SEED)
    lengths = torch.randint(*_PROMPT_TOKENS, (REQUESTS,), generator=generator)
    return [torch.randint(1, _VOCABULARY, (int(length),), generator=generator).tolist() for length in lengths]


def _generate(model: Any, prompts: list[list[int]], settings: Mapping[str, int]) -> None:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    # Renamed with the KV cache that came in Transformers 5.20.
    block = "page_size" if hasattr(ContinuousBatchingConfig(), "page_size") else "block_size"
    sizes = {block: BLOCK_TOKENS, "max_memory_percent": _memory_share(), **settings}
    generation = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0)
    outputs = model.generate_batch(
        prompts,
        generation_config=generation,
        continuous_batching_config=ContinuousBatchingConfig(**sizes),
        progress_bar=False,
    )
    short = [name for name, output in outputs.items() if len(output.generated_tokens) != NEW_TOKENS]
    if short or len(outputs) != len(prompts):
        raise RecordError(f"The demo's engine left {len(prompts) - len(outputs) + len(short)} requests unfinished.")


def _memory_share() -> float:
    """The share of memory that automatic sizing may take.

    By default that is 60 to 90 % of the device's memory, and on the CPU the device's memory is the machine's: the KV
    cache of a model as small as this would still be made as large, and everything else would be swapped out.
    """
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
    else:
        import psutil

        memory = psutil.virtual_memory()
        free, total = memory.available, memory.total
    return min(_AUTOMATIC_BYTES, float(free) / 2) / float(total)
