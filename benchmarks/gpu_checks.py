"""Checks on a real GPU what the tests cannot check without one, and prints a table.

Async batching, CUDA graphs, CPU offload, soft resets, cancelling, out-of-memory, static batching, GPU times, memory
marks and NVML are each run for real on a Llama of random weights and compared with what the engine itself holds. Exit
code 1 when a check fails. Takes about three minutes on an H200.

    python benchmarks/gpu_checks.py --out FOLDER [--layers 16 --hidden 2048]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gpu_static import static_batching
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation import ContinuousBatchingConfig
from verdict_table import Table

from cbtrace.recorder import record
from cbtrace.traces import Trace, open_trace
from cbtrace.traces.schema import EndReason, EventKind, StepFlag

PAGE = 256


def build_model(layers: int, hidden: int) -> Any:
    """A bf16 Llama of random weights with the best attention there is."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=8,
        vocab_size=32000,
        max_position_embeddings=16384,
    )
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    with contextlib.suppress(Exception):
        model.set_attn_implementation("flash_attention_3")
    return model


def prompts(count: int, longest: int = 2000, seed: int = 0) -> list[list[int]]:
    """Log-normal lengths from 8 tokens up."""
    source = random.Random(seed)
    lengths = [min(max(int(source.lognormvariate(5.5, 1.0)), 8), longest) for _ in range(count)]
    return [[source.randrange(32000) for _ in range(length)] for length in lengths]


def settings(**changes: Any) -> Any:
    """Engine settings; without paged-KV kernels there is no decode fast path."""
    size = "page_size" if hasattr(ContinuousBatchingConfig, "page_size") else "block_size"
    return ContinuousBatchingConfig(
        **{size: PAGE, "max_blocks_per_request": 0, "num_blocks": 512, "max_batch_tokens": 2048} | changes
    )


class Engine:
    """One manager at a time, with what it held kept for comparison."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @contextlib.contextmanager
    def manager(self, new_tokens: int, warmup: bool = True, **changes: Any) -> Iterator[Any]:
        generation = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1)
        manager = self.model.init_continuous_batching(generation, settings(**changes))
        if warmup:
            manager.warmup()
        try:
            yield manager
        finally:
            if manager._generation_thread is not None:
                manager.stop(block=True, timeout=60)
            manager.batch_processor = None
            manager.destroy()
            gc.collect()
            torch.cuda.empty_cache()

    def run(self, inputs: list[list[int]], new_tokens: int, **changes: Any) -> dict[str, list[int]]:
        """All requests queued before the loop starts: the schedule is the same every time."""
        with self.manager(new_tokens, **changes) as manager:
            ids = manager.add_requests(inputs, max_new_tokens=new_tokens)
            manager.start()
            outputs = drain(manager, len(ids))
            self.graphs = graphs_of(manager.batch_processor)
        return {request_id: outputs[request_id] for request_id in ids if request_id in outputs}


def drain(manager: Any, count: int, seconds: float = 120) -> dict[str, list[int]]:
    """Results by id until all have finished, the engine has died or the time is up."""
    outputs: dict[str, list[int]] = {}
    deadline = time.monotonic() + seconds
    while len(outputs) < count and time.monotonic() < deadline:
        result = manager.get_result(timeout=0.5)
        if result is not None and (result.is_finished() or result.error is not None):
            outputs[result.request_id] = result.generated_tokens
        elif result is None and not manager.is_running():
            break
    return outputs


def graphs_of(processor: Any) -> int:
    """Graphs that the engine holds, over both input pairs when it is asynchronous."""
    io = processor.inputs_and_outputs
    devices = [pair.device_io for pair in io.io_pairs] if hasattr(io, "io_pairs") else [io]
    held = 0
    for device in devices:
        store = device.graphs
        held += len(getattr(store, "_storage", getattr(store, "graphs", store)))
    return held


def count(trace: Trace, kind: EventKind) -> int:
    return int((trace.events.kind == kind).sum())


def check_common(table: Table, name: str, trace: Trace, outputs: dict[str, list[int]], new_tokens: int) -> None:
    """What holds of every run."""
    steps, requests = trace.steps, trace.requests
    table.check(f"{name}: trace is whole", trace.recovery.status == "clean", trace.recovery.status)
    counts = np.bincount(trace.tokens.request, minlength=len(requests.id)).tolist()
    lengths = dict(zip(requests.id, counts, strict=True))
    expected = {request_id: len(tokens) for request_id, tokens in outputs.items()}
    table.check(f"{name}: a token time for every token", lengths == expected, len(lengths))
    table.check(f"{name}: all requests complete", set(requests.generated.tolist()) == {new_tokens})
    whole = requests.prefill_computed + requests.prefix_hit == requests.prompt_tokens
    table.check(f"{name}: prompt tokens add up", bool(whole.all()), int(requests.prefill_computed.sum()))
    computed = int((steps.prefill_tokens + steps.decode_tokens + steps.recompute_tokens).sum())
    table.say(
        "    ",
        f"{name}: steps, tokens computed, delivered, wasted",
        (steps.index.size, computed, int(steps.new_tokens.sum()), int(steps.wasted_tokens.sum())),
    )


def check_times(table: Table, name: str, trace: Trace) -> None:
    """GPU times and host times agree."""
    steps = trace.steps
    timed = steps.gpu_ns >= 0
    table.check(f"{name}: every step has a GPU time", bool(timed.all()), f"{int(timed.sum())} of {timed.size}")
    window = int(steps.ready_ns[-1] - steps.start_ns[0])
    busy = steps.gpu_ns[timed].sum() / window
    table.check(f"{name}: GPU busy at most the window", 0 < busy <= 1.0, f"{busy:.1%} of {window / 1e9:.2f} s")
    intervals = np.diff(steps.ready_ns)
    step_ms = np.percentile(intervals, [50, 99]) / 1e6
    table.say(
        "    ",
        f"{name}: step ms p50, p99; recorder us p50, p99",
        (*np.round(step_ms, 2).tolist(), trace.footer.cost_p50_ns / 1e3, trace.footer.cost_p99_ns / 1e3),
    )


def check_memory(table: Table, name: str, trace: Trace) -> None:
    """Marks follow the engine's own sizes; samples add up with the device."""
    memory, kv = trace.memory, trace.engines[0].kv
    at = {mark: row for row, mark in enumerate(memory.mark) if mark}
    made = int(memory.allocated[at["cache_created"]] - memory.allocated[at["model_loaded"]])
    expected = kv.capacity_units * kv.unit_bytes + kv.reserved_bytes
    table.check(f"{name}: cache mark = KV bytes within 4 MiB", abs(made - expected) < 4 << 20, (made, expected))
    weights = trace.engines[0].model["parameter_bytes"]
    loaded = int(memory.allocated[at["model_loaded"]])
    close = abs(loaded - weights) < 64 << 20
    table.check(f"{name}: weights mark within 64 MiB of the weights", close, (loaded, weights))
    bounded = (memory.reserved <= memory.device_used) & (memory.device_used <= memory.device_total)
    table.check(f"{name}: allocated <= reserved <= used <= total", bool(bounded.all()), memory.time_ns.size)
    peaks = (memory.peak_allocated >= memory.allocated) & (memory.peak_reserved >= memory.reserved)
    table.check(f"{name}: peaks are at least the samples", bool(peaks.all()))
    gpu = trace.gpu
    table.check(f"{name}: NVML samples", gpu.time_ns.size > 3, gpu.time_ns.size)
    if gpu.time_ns.size:
        used, power = gpu.memory_used.max() / 2**30, gpu.power_mw.max() / 1e3
        seen = (round(used, 2), round(power), int(gpu.utilization.max()), int(gpu.processes.max()))
        table.say("    ", f"{name}: NVML memory GiB, power W, utilization, processes", seen)


def batching(table: Table, engine: Engine, out: Path) -> None:
    """Sync and async, with and without graphs: same tokens as unrecorded, the right batch for each token."""
    inputs = prompts(64)
    for name, changes in {
        "eager sync": {"use_cuda_graph": False, "use_async_batching": False},
        "graphs sync": {"use_cuda_graph": True, "use_async_batching": False},
        "eager async": {"use_cuda_graph": False, "use_async_batching": True},
        "graphs async": {"use_cuda_graph": True, "use_async_batching": True},
    }.items():
        plain = engine.run(inputs, 96, **changes)
        path = out / f"{name.replace(' ', '_')}.cbt"
        with record(path, name=name):
            outputs = engine.run(inputs, 96, **changes)
        trace = open_trace(path)
        table.check(f"{name}: recorded tokens = unrecorded tokens", outputs == plain)
        check_common(table, name, trace, outputs, 96)
        check_times(table, name, trace)
        flags = trace.steps.flags
        is_async = bool(changes["use_async_batching"])
        table.check(f"{name}: steps marked async", bool(((flags & StepFlag.ASYNC) > 0).all()) == is_async)
        captured, hit = ((flags & bit) > 0 for bit in (StepFlag.GRAPH_CAPTURED, StepFlag.GRAPH_HIT))
        graphs = count(trace, EventKind.GRAPH_CAPTURE)
        if changes["use_cuda_graph"]:
            table.check(f"{name}: capture events = graphs held", graphs == engine.graphs, (graphs, engine.graphs))
            shares = (int(captured.sum()), int(hit.sum()))
            table.check(f"{name}: every step hit or captured", bool((captured ^ hit).all()), shares)
            tokens = trace.steps.prefill_tokens + trace.steps.decode_tokens + trace.steps.recompute_tokens
            padded = (trace.steps.padded_queries >= tokens) & (trace.steps.padded_kv >= trace.steps.kv_read)
            table.check(f"{name}: padded sizes at least the real ones", bool(padded.all()))
        else:
            table.check(f"{name}: no graphs", graphs == 0 and not captured.any() and not hit.any())
        if is_async:
            # Every request is in the batch after its last one when it ends, but for those that end with the run.
            last = int(trace.steps.index[-1])
            ends = [int(trace.tokens.step[trace.tokens.request == r].max()) for r in range(len(trace.requests.id))]
            expected = sum(end < last for end in ends)
            wasted = int(trace.steps.wasted_tokens.sum())
            table.check(f"{name}: one wasted token for each early end", wasted == expected, (wasted, expected))
            overlap = (trace.steps.start_ns[1:] < trace.steps.ready_ns[:-1]).mean()
            table.check(f"{name}: batches overlap", overlap > 0.5, f"{overlap:.0%}")
        else:
            table.check(f"{name}: nothing wasted", int(trace.steps.wasted_tokens.sum()) == 0)
        if name == "eager sync":  # the first run: nothing of an earlier engine is in the allocator
            check_memory(table, name, trace)


def pressure(table: Table, engine: Engine, out: Path) -> None:
    """Soft resets and CPU offload: which requests, how much, and that they come back."""
    inputs = prompts(96)
    for name, changes in {
        "soft resets": {"num_blocks": 64},
        "CPU offload": {"num_blocks": 64, "cpu_offload_space": 8.0},
        "CPU offload sync": {"num_blocks": 64, "cpu_offload_space": 8.0, "use_async_batching": False},
    }.items():
        path = out / f"{name.replace(' ', '_')}.cbt"
        with record(path, name=name):
            outputs = engine.run(inputs, 192, **changes)
        trace = open_trace(path)
        check_common(table, name, trace, outputs, 192)
        check_times(table, name, trace)
        resets, offloads, restores = (
            count(trace, kind) for kind in (EventKind.SOFT_RESET, EventKind.OFFLOAD, EventKind.RESTORE)
        )
        table.say("    ", f"{name}: soft resets, offloads, restores", (resets, offloads, restores))
        events = trace.events
        if "cpu_offload_space" in changes:
            table.check(f"{name}: every offload is restored", offloads == restores > 0)
            gone, back = (np.flatnonzero(events.kind == kind) for kind in (EventKind.OFFLOAD, EventKind.RESTORE))
            same = sorted(events.request[gone].tolist()) == sorted(events.request[back].tolist())
            table.check(f"{name}: the same requests come back", same)
            unit = trace.engines[0].kv.unit_bytes
            exact = bool(np.all(events.bytes[gone] == events.blocks[gone] * unit))
            table.check(f"{name}: bytes = blocks x block size", exact)
            rounds = np.round(events.duration_ns[gone] / 1e6, 2).tolist()[:6]
            moved = round(float(events.bytes[gone].sum()) / 2**30, 3)
            table.say("    ", f"{name}: GiB out, host ms of the rounds", (moved, rounds))
        else:
            table.check(f"{name}: resets and recomputation", resets > 0 and trace.requests.recomputed.sum() > 0)
            owed = int(events.tokens[events.kind == EventKind.SOFT_RESET].sum())
            paid = int((trace.requests.recomputed + trace.requests.recompute_saved).sum())
            table.check(f"{name}: recomputed = lost", owed == paid, (owed, paid))


def cancelling(table: Table, engine: Engine, out: Path) -> None:
    """Half of the requests are cancelled in flight under async batching with block sharing."""
    inputs, path = prompts(64), out / "cancel.cbt"
    with record(path, name="cancel"), engine.manager(256) as manager:
        ids = manager.add_requests(inputs, max_new_tokens=256)
        manager.start()
        time.sleep(1.0)
        for request_id in ids[::2]:
            manager.cancel_request(request_id)
        outputs = drain(manager, 32, 60)
        alive = manager.is_running()
    trace = open_trace(path)
    reasons = trace.requests.end_reason
    cancelled, failed = int((reasons == EndReason.CANCELLED).sum()), int((reasons == EndReason.FAILED).sum())
    whole = int((reasons == EndReason.LENGTH).sum())
    table.say("    ", "cancel: ended as length, cancelled, failed", (whole, cancelled, failed))
    table.check("cancel: the engine survives it under async", alive and failed == 0, list(trace.events.text)[-3:])
    table.check("cancel: the others complete", len(outputs) >= 32, len(outputs))
    per_request = np.bincount(trace.tokens.request, minlength=len(trace.requests.id))
    table.check("cancel: tokens delivered = tokens counted", bool(np.all(per_request == trace.requests.generated)))


def running_out(table: Table, engine: Engine, out: Path) -> None:
    """Out of memory in each phase that can be provoked."""

    def texts(path: Path) -> list[str]:
        trace = open_trace(path)
        return [trace.events.text[row] for row in np.flatnonzero(trace.events.kind == EventKind.OUT_OF_MEMORY)]

    path = out / "oom_load.cbt"
    with contextlib.suppress(torch.OutOfMemoryError), record(path):
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    table.check("out of memory: model load", texts(path) == ["model load: OutOfMemoryError"], texts(path))

    path = out / "oom_cache.cbt"
    with contextlib.suppress(Exception), record(path):
        engine.run(prompts(2), 4, num_blocks=1 << 22)
    phases = [text.split(":")[0] for text in texts(path)]
    table.check("out of memory: cache creation", phases == ["cache creation"], texts(path))

    path = out / "oom_prefill.cbt"
    with record(path), engine.manager(8, use_cuda_graph=False, use_async_batching=False) as manager:
        manager.add_requests([[1] * 8000], max_new_tokens=8)
        free, _ = torch.cuda.mem_get_info()
        ballast = torch.empty(free - (96 << 20), dtype=torch.uint8, device="cuda")
        manager.start()
        drain(manager, 1, 30)
        del ballast
    table.check("out of memory: prefill", texts(path)[:1] == ["prefill: OutOfMemoryError"], texts(path))


def giving_back(table: Table, engine: Engine, out: Path) -> None:
    """A recording that goes on must not keep the memory of engines that are gone."""

    def held() -> int:
        gc.collect()
        # Every engine computes on a new stream, and the libraries keep a workspace for each stream.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()

    inputs = prompts(8)
    engine.run(inputs, 16)
    before = held()
    with record(out / "given-back.cbt"):
        engine.run(inputs, 16)
        during = held()
    table.check("memory after an engine, recording or not", before == during == held(), (before, during, held()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the traces")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parts: dict[str, Callable[[Table, Engine, Path], None]] = {
        "batching": batching,
        "pressure": pressure,
        "cancelling": cancelling,
        "giving back": giving_back,
        "static batching": static_batching,
        "running out": running_out,
    }
    parser.add_argument("--only", choices=sorted(parts), help="one part")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    table = Table()
    model = build_model(options.layers, options.hidden)
    print(
        f"Transformers {transformers.__version__}, PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, "
        f"{model.config._attn_implementation}, {sum(p.numel() for p in model.parameters()) / 1e9:.2f} B parameters"
    )
    engine = Engine(model)
    for name, part in parts.items():
        if options.only in (None, name):
            try:
                part(table, engine, options.out)
            except Exception:
                traceback.print_exc()
                table.check(f"{name}: ran to its end", False)
    print(f"{table.failed} of {len(table.rows)} rows failed")
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
