"""What recording costs a running engine: the same workload with and without the recorder, taken in turns.

One engine is kept for all rounds, so that nothing but the recorder differs; each round runs the workload twice, once
recorded and once not, in random order. Prints the ratio of wall times with its interval, and the recorder's own cost a
step as its footer tells it. What a step costs by part is in ``hook_replay.py``.

    python benchmarks/recorder_overhead.py                                # CPU, 64 requests at a time
    python benchmarks/recorder_overhead.py --device cuda --shape 1b       # a 1.2 B Llama on a GPU
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation import ContinuousBatchingConfig

from cbtrace.recorder import attach
from cbtrace.recorder.gpu_time import GpuStepTimer
from cbtrace.recorder.memory import MemoryProbe
from cbtrace.recorder.step_watch import StepWatch
from cbtrace.traces import TraceWriter, open_trace

SHAPES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
}


def build_model(shape: str, device: str) -> Any:
    """A Llama of random weights; on a GPU in bf16 and with flash attention where there is one."""
    torch.manual_seed(0)
    sizes = SHAPES[shape]
    kv_heads = 2 if shape == "tiny" else 8
    config = LlamaConfig(**sizes, num_key_value_heads=kv_heads, vocab_size=512 if shape == "tiny" else 32000)
    with torch.device(device):
        model = LlamaForCausalLM(config).eval()
    if device != "cpu":
        model = model.to(torch.bfloat16)
        with contextlib.suppress(Exception):
            model.set_attn_implementation("flash_attention_3")
    return model


def workload(options: argparse.Namespace, vocabulary: int) -> list[list[int]]:
    """Prompts of log-normal length."""
    source = random.Random(0)
    lengths = [min(max(int(source.lognormvariate(options.mean_log, 1.0)), 8), 4000) for _ in range(options.requests)]
    return [[source.randrange(vocabulary) for _ in range(length)] for length in lengths]


def run(manager: Any, inputs: list[list[int]], new_tokens: int) -> float:
    """Submit everything, wait for the last result; return seconds."""
    begun = time.perf_counter()
    ids = manager.add_requests(inputs, max_new_tokens=new_tokens)
    finished = 0
    while finished < len(ids):
        result = manager.get_result(timeout=5)
        if result is None and not manager.is_running():
            raise SystemExit("the engine died")
        finished += result is not None and result.is_finished()
    return time.perf_counter() - begun


class PartTimes:
    """Time inside the recorder's parts, by wrapping their methods for a while. They nest: writing is in results."""

    PARTS = (
        ("scheduling", StepWatch, ("scheduled", "prepared")),
        ("results", StepWatch, ("results_ready", "updated")),
        ("GPU events", GpuStepTimer, ("begin", "end", "collect")),
        ("memory samples", MemoryProbe, ("sample",)),
        ("encode, checksum and write", TraceWriter, ("write",)),
    )

    def __init__(self) -> None:
        self.spent = {part: [0, 0] for part, _, _ in self.PARTS}
        self._originals: list[tuple[type, str, Any]] = []

    def __enter__(self) -> PartTimes:
        for part, owner, names in self.PARTS:
            for name in names:
                self._originals.append((owner, name, vars(owner)[name]))
                setattr(owner, name, self._timed(part, vars(owner)[name]))
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, original in self._originals:
            setattr(owner, name, original)

    def _timed(self, part: str, original: Any) -> Any:
        spent = self.spent[part]

        def timed(*args: Any) -> Any:
            begun = time.perf_counter_ns()
            try:
                return original(*args)
            finally:
                spent[0] += time.perf_counter_ns() - begun
                spent[1] += 1

        return timed


def interval(ratios: np.ndarray, rounds: int = 10_000) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    source = np.random.default_rng(0)
    medians = np.median(source.choice(ratios, (rounds, ratios.size)), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--mean-log", type=float, default=3.0, help="mean of the logarithm of prompt lengths")
    parser.add_argument("--blocks", type=int, default=1024)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--batch-tokens", type=int, default=512)
    options = parser.parse_args()
    size = "page_size" if hasattr(ContinuousBatchingConfig, "page_size") else "block_size"
    settings = {size: options.block_size, "num_blocks": options.blocks, "max_batch_tokens": options.batch_tokens}
    # Without sharing, or the second run of the same prompts would find all of them in the prefix cache.
    config = ContinuousBatchingConfig(
        **settings,
        allow_block_sharing=False,
        max_blocks_per_request=0,
        max_memory_percent=0.1 if options.device == "cpu" else None,
    )
    if options.device == "cpu":
        torch.set_num_threads(1)
    model = build_model(options.shape, options.device)
    inputs = workload(options, model.config.vocab_size)
    generation = GenerationConfig(max_new_tokens=options.new_tokens, do_sample=False, eos_token_id=-1)
    manager = model.init_continuous_batching(generation, config)
    manager.warmup()
    manager.start()
    order = random.Random(1)
    walls: dict[bool, list[float]] = {True: [], False: []}
    footers, steps = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            run(manager, inputs, options.new_tokens)
        for number in range(options.pairs):
            for recorded in order.sample([True, False], 2):
                if recorded:
                    recording = attach(manager, Path(folder) / f"{number}.cbt")
                    walls[True].append(run(manager, inputs, options.new_tokens))
                    recording.close()
                    trace = open_trace(recording.paths[0])
                    footers.append(trace.footer)
                    steps.append(np.diff(trace.steps.ready_ns))
                else:
                    walls[False].append(run(manager, inputs, options.new_tokens))
        with PartTimes() as parts:
            recording = attach(manager, Path(folder) / "parts.cbt")
            run(manager, inputs, options.new_tokens)
            recording.close()
        counted = open_trace(recording.paths[0]).footer.steps
    manager.stop(block=True, timeout=60)
    ratios = np.array(walls[True]) / np.array(walls[False])
    low, high = interval(ratios)
    step_ms = np.percentile(np.concatenate(steps), [50, 99]) / 1e6
    device = torch.cuda.get_device_name() if options.device != "cpu" else "CPU"
    is_async = manager.continuous_batching_config.use_async_batching
    print(f"{device}, {options.shape}, Transformers {transformers.__version__}, async {is_async}")
    print(
        f"{options.requests} requests of {options.new_tokens} tokens, step ms p50 {step_ms[0]:.2f} p99 {step_ms[1]:.2f}"
    )
    print(
        f"  wall, recorded / not: median {np.median(ratios):.4f} of {options.pairs} pairs, 95 % [{low:.4f}, {high:.4f}]"
    )
    print(f"  wall, not recorded: longest / shortest {max(walls[False]) / min(walls[False]):.3f}")
    share = np.median([footer.cost_ns / 1e9 / wall for footer, wall in zip(footers, walls[True], strict=True)])
    p50, p99 = (np.median([getattr(f, f"cost_{p}_ns") for f in footers]) / 1e3 for p in ("p50", "p99"))
    print(f"  own cost, as the footer tells: {share:.2%} of the wall, us a step p50 {p50:.1f} p99 {p99:.1f}")
    print("  by part, us a step (one run more, each part wrapped in a clock of its own; they nest):")
    for part, (nanoseconds, calls) in parts.spent.items():
        print(f"    {part:<28} {nanoseconds / counted / 1e3:7.1f}   {calls / counted:5.2f} calls")


if __name__ == "__main__":
    main()
