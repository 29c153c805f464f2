"""What recording costs a running engine, by one of two designs.

``turns`` (the default on a CPU): two equal engines, one recorded, take strict turns (:mod:`overhead_turns`), so that
drift of the machine cancels. ``runs`` (the default on a GPU, where two engines would share its memory and overlap on
it): one engine runs the workload again and again, once recorded and once not in random order (``--variants``: also
recorded without parts). Either prints the ratio with its interval, the recorder's own cost a step as its footers tell
it, and that cost by part from one recording more. ``hook_replay.py`` shows what the hooks cost without an engine.

    python benchmarks/recorder_overhead.py                                # CPU, 64 requests at a time
    python benchmarks/recorder_overhead.py --device cuda --shape 1b       # a 1.2 B Llama on a GPU
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from overhead_turns import CLOCKS, Twin, ratio_of_sums, take_turns
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation import ContinuousBatchingConfig

from cbtrace.recorder import attach
from cbtrace.recorder.gpu_time import GpuStepTimer
from cbtrace.recorder.memory import MemoryProbe
from cbtrace.recorder.sink import Sink
from cbtrace.recorder.step_watch import StepWatch
from cbtrace.traces import Trace, open_trace

SHAPES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
}

_ON_A_CPU = {"max_memory_percent": 0.1, "use_cuda_graph": False, "use_async_batching": False}
"""The engine would choose graphs for a model on the CPU, too, where there is a GPU beside it."""

VARIANTS: dict[str, dict[str, bool] | None] = {
    "off": None,
    "on": {},
    "without NVML": {"nvml": False},
    "without GPU time": {"gpu_time": False},
    "without both": {"nvml": False, "gpu_time": False},
}
"""Settings of the recordings that are compared."""


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
    """Time inside the recorder's parts, by wrapping their methods for a while. They nest: writing is in results. Each
    clock adds half a microsecond or so to what it is around."""

    PARTS = (
        ("scheduling", StepWatch, ("scheduled", "prepared")),
        ("results", StepWatch, ("results_ready", "updated")),
        ("GPU events", GpuStepTimer, ("begin", "end", "collect")),
        ("memory samples", MemoryProbe, ("sample",)),
        ("encode, checksum and write", Sink, ("release", "emit")),
        ("  of it, the system's write", os, ("write",)),
    )

    def __init__(self) -> None:
        self.spent: dict[str, list[int]] = {part: [] for part, _, _ in self.PARTS}
        self._originals: list[tuple[Any, str, Any]] = []

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
                spent.append(time.perf_counter_ns() - begun)

        return timed

    def report(self, steps: int) -> None:
        """Print a table: one call of each part, and how many a step makes."""
        print("  by part (one recording more, each part with a clock around it; they nest):")
        print(f"    {'':<28} {'us a call, p50':>15} {'mean':>8} {'calls a step':>13}")
        for part, spent in self.spent.items():
            p50, mean = (np.median(spent) / 1e3, np.mean(spent) / 1e3) if spent else (0.0, 0.0)
            print(f"    {part:<28} {p50:15.1f} {mean:8.1f} {len(spent) / steps:13.2f}")


def interval(ratios: np.ndarray, rounds: int = 10_000) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    source = np.random.default_rng(0)
    medians = np.median(source.choice(ratios, (rounds, ratios.size)), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)


def make_engine(options: argparse.Namespace, model: Any) -> Any:
    """A manager that is not yet started."""
    size = "page_size" if hasattr(ContinuousBatchingConfig, "page_size") else "block_size"
    config = ContinuousBatchingConfig(
        **{size: options.block_size},
        num_blocks=options.blocks,
        max_batch_tokens=options.batch_tokens,
        # Without sharing, or the second run of the same prompts would find all of them in the prefix cache.
        allow_block_sharing=False,
        max_blocks_per_request=0,
        **({} if options.device != "cpu" else _ON_A_CPU),
    )
    generation = GenerationConfig(max_new_tokens=options.new_tokens, do_sample=False, eos_token_id=-1)
    return model.init_continuous_batching(generation, config)


class Bystander:
    """When the engine had applied the results of each step, and how many graphs it captured: the same, and next to
    nothing, in every variant."""

    def __init__(self, processor: Any) -> None:
        self._times: list[int] = []
        self.captures = 0
        apply, clock = processor.update_batch, time.perf_counter_ns
        capture = getattr(processor.model_runner, "_capture_graph", None)

        def update_batch() -> None:
            apply()
            self._times.append(clock())

        def capture_graph(*args: Any, **kwargs: Any) -> Any:
            self.captures += 1
            return capture(*args, **kwargs)  # type: ignore[misc]

        processor.update_batch = update_batch
        if capture is not None:
            processor.model_runner._capture_graph = capture_graph

    def steps_ms(self) -> np.ndarray:
        """Milliseconds of each step since the last call, without the first."""
        times, self._times[:] = np.array(self._times), []
        return np.diff(times) / 1e6


def trimmed_mean(values: np.ndarray) -> float:
    """Mean without the tenth at either end: what a stall of the machine does not touch."""
    low, high = np.percentile(values, [10, 90])
    return float(values[(values >= low) & (values <= high)].mean())


class OneRun(NamedTuple):
    """What one run told."""

    name: str
    wall_s: float
    steps_ms: np.ndarray
    trace: Trace | None


class Rounds:
    """The walls of each variant, taken in turns in random order, and what its recordings told."""

    def __init__(self, manager: Any, inputs: list[list[int]], options: argparse.Namespace, folder: Path) -> None:
        self.manager, self.inputs, self.new_tokens, self.folder = manager, inputs, options.new_tokens, folder
        self.variants = ["off", *options.variants]
        self.walls: dict[str, list[float]] = {name: [] for name in self.variants}
        self.footers: dict[str, list[Any]] = {name: [] for name in self.variants}
        self.step_ns: list[np.ndarray] = []
        self.bystander = Bystander(manager.batch_processor)
        self.repeated = 0
        self.step_ms: dict[str, list[float]] = {name: [] for name in self.variants}
        """Trimmed mean of the steps of each run."""

    def take(self, rounds: int) -> None:
        """A round in which a graph was captured, once for each new size of a batch, is taken again."""
        order = random.Random(1)
        for _ in range(2):
            run(self.manager, self.inputs, self.new_tokens)
        done = 0
        while done < rounds:
            before = self.bystander.captures
            taken = [self._take_one(name) for name in order.sample(self.variants, len(self.variants))]
            if self.bystander.captures > before and self.repeated < rounds:
                self.repeated += 1
                continue
            done += 1
            for one in taken:
                self._keep(one)

    def _take_one(self, name: str) -> OneRun:
        settings, path = VARIANTS[name], self.folder / "round.cbt"
        recording = attach(self.manager, path, overwrite=True, **settings) if settings is not None else None
        self.bystander.steps_ms()
        wall = run(self.manager, self.inputs, self.new_tokens)
        steps_ms = self.bystander.steps_ms()
        if recording is None:
            return OneRun(name, wall, steps_ms, None)
        recording.close()
        return OneRun(name, wall, steps_ms, open_trace(path))

    def _keep(self, one: OneRun) -> None:
        self.walls[one.name].append(one.wall_s)
        self.step_ms[one.name].append(trimmed_mean(one.steps_ms))
        if one.trace is not None:
            self.footers[one.name].append(one.trace.footer)
            self.step_ns.append(np.diff(one.trace.steps.ready_ns))

    def report(self, name: str) -> str:
        """Two lines about a variant."""
        wall, step = (self._ratio(values, name) for values in (self.walls, self.step_ms))
        footers, walls = self.footers[name], self.walls[name]
        share = np.median([footer.cost_ns / 1e9 / wall for footer, wall in zip(footers, walls, strict=True)])
        p50, p99 = (np.median([getattr(footer, f"cost_{p}_ns") for footer in footers]) / 1e3 for p in ("p50", "p99"))
        own = f"own cost {share:.2%} of the wall, {p50:.0f} us a step p50, {p99:.0f} p99"
        return f"  {name:<16} wall on / off {wall}   {own}\n  {'':<16} step on / off {step}   trimmed mean of a run"

    @staticmethod
    def _ratio(values: dict[str, list[float]], name: str) -> str:
        """Median over rounds, and its interval."""
        ratios = np.array(values[name]) / np.array(values["off"])
        low, high = interval(ratios)
        return f"{np.median(ratios):.4f}, 95 % [{low:.4f}, {high:.4f}]"

    def details(self) -> str:
        """What each run took, in the order of the rounds."""
        kinds = (("s", self.walls), ("ms a step", self.step_ms))
        lines = [
            f"    {name}, {unit}: {' '.join(f'{value:.3f}' for value in kind[name])}"
            for unit, kind in kinds
            for name in kind
        ]
        return "\n".join(lines)


def by_runs(options: argparse.Namespace, model: Any, inputs: list[list[int]], folder: Path) -> None:
    """Compare whole runs of one engine."""
    manager = make_engine(options, model)
    manager.warmup()
    manager.start()
    rounds = Rounds(manager, inputs, options, folder)
    rounds.take(options.rounds)
    with PartTimes() as parts:
        recording = attach(manager, folder / "parts.cbt")
        run(manager, inputs, options.new_tokens)
        recording.close()
    manager.stop(block=True, timeout=60)
    _head(options, manager, rounds.step_ns)
    print(f"  rounds in which a graph was captured, taken again: {rounds.repeated}")
    print(f"  off: longest / shortest wall {max(rounds.walls['off']) / min(rounds.walls['off']):.3f}")
    for name in rounds.variants[1:]:
        print(rounds.report(name))
    print(rounds.details())
    parts.report(open_trace(folder / "parts.cbt").footer.steps)


def by_turns(options: argparse.Namespace, model: Any, inputs: list[list[int]], folder: Path) -> None:
    """Compare the steps of two engines that take turns."""
    with torch.inference_mode():
        twins = (Twin(make_engine(options, model)), Twin(make_engine(options, model)))
        turns = take_turns(twins, inputs, options.new_tokens, options.rounds, folder)
        with PartTimes() as parts:
            steps = take_turns(twins, inputs, options.new_tokens, 2, folder).steps
    _head(options, twins[0].manager, turns.step_ns)
    for clock in CLOCKS:
        ratio, low, high = ratio_of_sums(turns.blocks(clock))
        both = turns.turns(clock) / 1e3
        added = both[:, 0] - both[:, 1]
        print(
            f"  {clock:<22} on / off {ratio:.4f}, 95 % [{low:.4f}, {high:.4f}]"
            f"   added, us a step: p50 {np.median(added):.0f}, mean {added.mean():.0f}; off: {both[:, 1].mean():.0f}"
        )
    p50, p99 = (np.median([getattr(footer, f"cost_{p}_ns") for footer in turns.footers]) / 1e3 for p in ("p50", "p99"))
    mean = sum(footer.cost_ns for footer in turns.footers) / turns.steps / 1e3
    print(f"  own cost as footers tell it, us a step: p50 {p50:.0f}, mean {mean:.0f}, p99 {p99:.0f} (wall time)")
    parts.report(steps)


def _head(options: argparse.Namespace, manager: Any, step_ns: list[Any]) -> None:
    device = torch.cuda.get_device_name() if options.device != "cpu" else "CPU"
    is_async = manager.continuous_batching_config.use_async_batching
    p50, p99 = np.percentile(np.concatenate(step_ns), [50, 99]) / 1e6
    versions = f"Transformers {transformers.__version__}, async {is_async}"
    print(f"{device}, {options.shape}, {versions}, {options.rounds} rounds by {options.design}")
    print(f"{options.requests} requests of {options.new_tokens} tokens; step ms p50 {p50:.2f}, p99 {p99:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--design", choices=["turns", "runs"], help="default: turns on a CPU, runs on a GPU")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--mean-log", type=float, default=3.0, help="mean of the logarithm of prompt lengths")
    parser.add_argument("--blocks", type=int, default=1024)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--batch-tokens", type=int, default=512)
    recorded = [name for name, settings in VARIANTS.items() if settings is not None]
    parser.add_argument("--variants", nargs="+", choices=recorded, default=["on"])
    options = parser.parse_args()
    options.design = options.design or ("turns" if options.device == "cpu" else "runs")
    if options.device == "cpu":
        torch.set_num_threads(1)
    model = build_model(options.shape, options.device)
    inputs = workload(options, model.config.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        {"turns": by_turns, "runs": by_runs}[options.design](options, model, inputs, Path(folder))


if __name__ == "__main__":
    main()
