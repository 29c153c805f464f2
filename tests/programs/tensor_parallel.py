"""A user's program for several processes, as torchrun starts them: a tiny random Llama, split over all of them, answers
eight requests. It prints the tokens of rank 0, and fails if another rank has other ones.

    tensor_parallel.py MODEL_FOLDER LATE_RANK DELAY_MS

The folder is made by rank 0. The late rank schedules each step so much later. The program knows nothing of cbtrace.
"""

import json
import sys
import time
from typing import Any

import torch.distributed as dist
from generate import model, prompts
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig
from transformers.generation.continuous_batching.scheduler import FIFOScheduler


def schedule_late(seconds: float) -> None:
    schedule = FIFOScheduler.schedule_batch

    def late(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return schedule(*args, **kwargs)

    FIFOScheduler.schedule_batch = late


def main() -> None:
    dist.init_process_group("gloo")
    rank, folder = dist.get_rank(), sys.argv[1]
    if rank == 0:
        model().save_pretrained(folder)
    if rank == int(sys.argv[2]):
        schedule_late(float(sys.argv[3]) / 1000)
    dist.barrier()
    split = DistributedConfig(tp_size=dist.get_world_size())
    block = "page_size" if hasattr(ContinuousBatchingConfig(), "page_size") else "block_size"
    outputs = (
        LlamaForCausalLM.from_pretrained(folder, distributed_config=split)
        .eval()
        .generate_batch(
            prompts(),
            generation_config=GenerationConfig(max_new_tokens=24, do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(num_blocks=14, max_batch_tokens=64, **{block: 16}),
            progress_bar=False,
        )
    )
    tokens = {name: output.generated_tokens for name, output in sorted(outputs.items())}
    of_all: list[dict[str, list[int]]] = [{}] * dist.get_world_size()
    dist.all_gather_object(of_all, tokens)
    assert all(other == tokens for other in of_all)
    if rank == 0:
        print(json.dumps(tokens), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
