"""A user's program: a tiny random Llama answers eight requests in a KV cache of 14 blocks of 16, so that soft resets
happen. It knows nothing of cbtrace.

    generate.py [--new-tokens N] [--with generate_batch|manager] [--in spawned|forked]... [--then exit|fail|hang|_exit]

With ``manager``, all requests wait before the first step, which makes the schedule the same each time. With ``--in``,
child processes of multiprocessing generate, one after the other.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)


def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).eval()


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(8, 40, (8,), generator=generator)
    return [torch.randint(1, 128, (int(length),), generator=generator).tolist() for length in lengths]


def generate(how: str, new_tokens: int) -> None:
    block = "page_size" if hasattr(ContinuousBatchingConfig(), "page_size") else "block_size"
    settings = {
        "generation_config": GenerationConfig(
            max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        "continuous_batching_config": ContinuousBatchingConfig(num_blocks=14, max_batch_tokens=256, **{block: 16}),
    }
    tokens = {}
    if how == "generate_batch":
        outputs = model().generate_batch(prompts(), progress_bar=False, **settings)
        tokens = {name: output.generated_tokens for name, output in outputs.items()}
    else:
        manager = model().init_continuous_batching(**settings)
        manager.add_requests(prompts(), max_new_tokens=new_tokens)
        manager.start()
        while len(tokens) < 8 and manager.is_running():
            output = manager.get_result(timeout=1)
            if output is not None and output.is_finished():
                tokens[output.request_id] = output.generated_tokens
        manager.stop(block=True)
    print(json.dumps(tokens, sort_keys=True), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--with", dest="how", default="generate_batch")
    parser.add_argument("--in", dest="children", action="append", default=[])
    parser.add_argument("--then", default="exit")
    arguments = parser.parse_args()
    for child in arguments.children:
        method = {"spawned": "spawn", "forked": "fork"}[child]
        process = multiprocessing.get_context(method).Process(
            target=generate, args=(arguments.how, arguments.new_tokens)
        )
        process.start()
        process.join()
    if not arguments.children:
        generate(arguments.how, arguments.new_tokens)
    if arguments.then == "fail":
        raise ValueError("the program's own failure")
    if arguments.then == "_exit":
        os._exit(7)
    while arguments.then == "hang":
        time.sleep(0.1)
    sys.exit(3)


if __name__ == "__main__":
    main()
