"""A user's program for several processes, as torchrun starts them: each rank answers requests of its own with a tiny
random Llama, and they meet before and after. It prints how many tokens its rank made.

    ranks.py [--record PATH]

With ``--record``, it records itself; otherwise it knows nothing of cbtrace.
"""

import argparse
import contextlib
from typing import Any

import torch
import torch.distributed as dist
from generate import model, prompts
from transformers import ContinuousBatchingConfig, GenerationConfig


def generate(rank: int) -> int:
    """Rank N answers 4 + N requests with 8 tokens each."""
    block = "page_size" if hasattr(ContinuousBatchingConfig(), "page_size") else "block_size"
    outputs = model().generate_batch(
        prompts()[: 4 + rank],
        generation_config=GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=32, max_batch_tokens=256, **{block: 16}),
        progress_bar=False,
    )
    return sum(len(output.generated_tokens) for output in outputs.values())


def recording(path: str | None) -> contextlib.AbstractContextManager[Any]:
    if path is None:
        return contextlib.nullcontext()
    from cbtrace.recorder import record

    return record(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record")
    path = parser.parse_args().record
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with recording(path):
        dist.barrier()
        tokens = torch.tensor([generate(rank), generate(rank)])
    dist.all_reduce(tokens)
    if rank == 0:
        print(tokens.tolist(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
